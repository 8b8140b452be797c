"""Child processes for tests: start, watch, stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread

from tests.setup_tools import TESTS

MARKER: Final = "STARTED_BY_TEST"
"""Environment variable that children inherit, so that those left behind can be found."""

STOP_BOUND_S: Final = 10.0


RESERVED_AT_MOST: Final = 200  # descriptors; far more than one test asks for

_reserved: Final[deque[socket.socket]] = deque()


def free_port() -> int:
    """A port of the loopback interface that is kept for the caller, also while its server is restarted.

    A socket stays bound to it and never listens. So the system gives the port to nobody else, not even to a
    connection that goes out, and a server still gets it, for all of ours set SO_REUSEADDR.
    """
    while len(_reserved) >= RESERVED_AT_MOST:
        _reserved.popleft().close()
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _reserved.append(reserved)
    port: int = reserved.getsockname()[1]
    return port


def accepts(port: int) -> bool:
    """Whether something listens on this port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Program:
    """A running child process whose output goes to a file."""

    def __init__(
        self, command: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=TESTS.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def wait(self, *, within_s: float) -> int:
        """Its exit code. Raises AssertionError with the last lines of its log if it does not end in time."""
        try:
            return await anyio.to_thread.run_sync(partial(self._process.wait, timeout=within_s))
        except subprocess.TimeoutExpired as exc:
            raise AssertionError(f"{self!r} still runs after {within_s} s\n{self.tail()}") from exc

    async def kill(self) -> None:
        self._process.kill()
        await self.wait(within_s=STOP_BOUND_S)

    async def stop(self) -> None:
        """End it, politely first. For the end of a test: says nothing about how it went."""
        self._process.terminate()
        try:
            await self.wait(within_s=STOP_BOUND_S)
        except AssertionError:
            await self.kill()

    def tail(self, lines: int = 60) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __repr__(self) -> str:
        state = "running" if self.exit_code is None else f"ended with {self.exit_code}"
        return f"<Program {self._process.args!r} {self.pid} {state}>"


def marked_processes(value: str) -> list[int]:
    """Pids of all live processes that were started, however indirectly, with MARKER=value."""
    entry = f"{MARKER}={value}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # gone, or another user's
    return sorted(found)


def rss_kib(pid: int) -> int:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} has no memory: it has ended")


def descriptors(pid: int) -> int:
    """How many file descriptors a process holds."""
    return len(os.listdir(f"/proc/{pid}/fd"))
