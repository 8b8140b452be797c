"""A process that speaks MCP on stdin and stdout, with its client's ends of the pipes in hand."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import anyio
import anyio.to_thread

from proxy.protocol import names
from tests.real.processes import MARKER, marked_processes
from tests.real.waiting import until
from tests.setup_tools import TESTS

ANSWER_BOUND_S: Final = 40.0
CHUNK: Final = 65_536
CLIENT: Final = {"name": "raw-stdio-client", "version": "1"}

SMALL_SERVER: Final = [sys.executable, str(TESTS / "real" / "small_server.py")]
"""A legacy server that starts quickly."""


def proxied(command: str | Sequence[str], *flags: str) -> list[str]:
    """The command of a proxy before a server, a command or a URL, as a client's configuration has it."""
    to = ["--upstream", command] if isinstance(command, str) else ["--", *command]
    listen = ["--listen", "stdio"] if isinstance(command, str) else []
    return [sys.executable, "-m", "proxy", *listen, *flags, *to]


def meta(*, tasks: bool = True, **capabilities: Any) -> dict[str, Any]:
    """What a modern request says of its client."""
    if tasks:
        capabilities["extensions"] = {names.TASKS_EXTENSION: {}}
    return {
        names.META_PROTOCOL_VERSION: names.LATEST_MODERN,
        names.META_CLIENT_INFO: CLIENT,
        names.META_CLIENT_CAPABILITIES: capabilities,
    }


class StdioProcess:
    """Use it as an async context manager; nothing of it is left afterwards.

    Its state directory and log are in `home`, and outlive it. `lines` is all that was read of its stdout.
    """

    def __init__(self, command: Sequence[str], home: Path, **env: str) -> None:
        self.home = home
        self.marker = uuid.uuid4().hex
        self.lines: list[bytes] = []
        self._command = command
        self._env = {**os.environ, "XDG_STATE_HOME": str(home / "state"), MARKER: self.marker, **env}
        self._log = home / "stdio.log"
        self._ids = itertools.count(1)
        self._rest = b""
        self._taken = 0

    async def __aenter__(self) -> Self:
        self._process = self._started()
        return self

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                cwd=TESTS.parent,
                start_new_session=True,
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.close_stdin()
        self.close_stdout()
        with anyio.CancelScope(shield=True):  # killed; who is not waited for stays as a zombie
            await anyio.to_thread.run_sync(self._process.wait)
        if exc is not None:
            print(self.log()[-5_000:])

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self) -> str:
        """What it said on stderr, and what those before it in `home` said."""
        return self._log.read_text(errors="replace")

    # -- talking ------------------------------------------------------------------------------------

    async def write(self, text: bytes) -> None:
        assert self._process.stdin is not None
        await anyio.to_thread.run_sync(_write_all, self._process.stdin.fileno(), text)

    async def send(self, *messages: Mapping[str, Any]) -> None:
        await self.write(b"".join(json.dumps({"jsonrpc": "2.0", **m}).encode() + b"\n" for m in messages))

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, rid: int | str | None = None
    ) -> int | str:
        """Send a request; its id."""
        asked = next(self._ids) if rid is None else rid
        await self.send({"id": asked, "method": method, **({} if params is None else {"params": params})})
        return asked

    async def message(self) -> dict[str, Any]:
        """The next one. Raises EOFError at the end of its stdout."""
        while self._taken == len(self.lines):
            await self._read()
        self._taken += 1
        found: dict[str, Any] = json.loads(self.lines[self._taken - 1])
        return found

    async def message_where(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next one that is wanted; those before it are passed over."""
        with anyio.fail_after(ANSWER_BOUND_S):
            while not wanted(message := await self.message()):
                pass
        return message

    async def answer(self, rid: int | str) -> dict[str, Any]:
        """The response message to this request."""
        return await self.message_where(lambda m: "method" not in m and m.get("id") == rid)

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self.answer(await self.request(method, params))

    async def ask_modern(
        self, method: str, params: Mapping[str, Any] | None = None, **capabilities: Any
    ) -> dict[str, Any]:
        return await self.ask(method, {**(params or {}), names.META: meta(**capabilities)})

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A legacy `tools/call`; the response message."""
        return await self.ask(names.TOOLS_CALL, {"name": tool, "arguments": arguments})

    async def call_modern(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A `tools/call` of a client that can have tasks; the response message."""
        return await self.ask_modern(names.TOOLS_CALL, {"name": tool, "arguments": arguments})

    async def initialize(self, version: str = names.LATEST_LEGACY, **capabilities: Any) -> dict[str, Any]:
        """The legacy handshake; the response to its first half."""
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": CLIENT}
        answer = await self.ask(names.INITIALIZE, params)
        await self.send({"method": names.INITIALIZED})
        return answer

    async def read_to_end(self) -> None:
        """Until its stdout has ended."""
        with anyio.fail_after(ANSWER_BOUND_S), contextlib.suppress(EOFError):
            while True:
                await self._read()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        await anyio.wait_readable(fd)
        chunk = os.read(fd, CHUNK)
        if not chunk:
            raise EOFError(f"stdout has ended; the last words: {self.log()[-2_000:]}")
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self.lines += lines

    # -- ending -------------------------------------------------------------------------------------

    def close_stdin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close_stdout(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def exit_code(self, *, within_s: float) -> int:
        try:
            return await anyio.to_thread.run_sync(partial(self._process.wait, timeout=within_s))
        except subprocess.TimeoutExpired as exc:
            raise AssertionError(f"{self._command} still runs after {within_s} s\n{self.log()}") from exc

    def left(self) -> list[int]:
        """Pids of what it started, however indirectly, and what still runs, itself included."""
        return marked_processes(self.marker)

    async def nothing_is_left(self, *, within_s: float) -> None:
        await until(lambda: not self.left(), f"no process of {self._command} is left", within_s=within_s)


def _write_all(fd: int, text: bytes) -> None:
    view = memoryview(text)
    while view:
        view = view[os.write(fd, view) :]
