"""The proxy as its users run it: a process with a configuration file, a port and a store directory."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import yaml

from tests.real.processes import (
    MARKER,
    Program,
    descriptors,
    free_port,
    marked_processes,
    rss_kib,
)
from tests.real.waiting import until

START_BOUND_S: Final = 40.0
DRAIN_S: Final = 1.0  # the configured drain time, short so that tests are
EXIT_BOUND_S: Final = DRAIN_S + 10.0

Upstream = str | Sequence[str]
"""A URL, or a command with its arguments."""


class ProxyProcess:
    """One proxy on one port and one store directory, through any number of starts.

    `settings` are merged over a small configuration: the store in `home`, a short drain time. `port` is one
    that `free_port` gave, where the settings depend on it.
    """

    def __init__(
        self,
        home: Path,
        upstream: Upstream,
        settings: Mapping[str, Any] | None = None,
        *,
        port: int | None = None,
    ) -> None:
        self.home = home
        self.upstream = upstream
        self.port = port or free_port()
        self.marker = uuid.uuid4().hex
        self.log = home / "proxy.log"
        self.config = home / "config.yaml"
        self._program: Program | None = None
        base = {"store": {"url": f"disk:{home / 'store'}"}, "drain": f"{DRAIN_S}s"}
        self.config.write_text(yaml.safe_dump(_merged(base, settings or {})))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def program(self) -> Program:
        assert self._program is not None, "the proxy was not started"
        return self._program

    @property
    def pid(self) -> int:
        return self.program.pid

    def command(self) -> list[str]:
        flags = ["--listen", f"127.0.0.1:{self.port}", "--config", str(self.config)]
        to = ["--upstream", self.upstream] if isinstance(self.upstream, str) else ["--", *self.upstream]
        return [sys.executable, "-m", "proxy", *flags, *to]

    async def start(self) -> None:
        """Start it and wait until it says that it is ready."""
        self._program = Program(self.command(), log=self.log, env={MARKER: self.marker})
        ready = "the proxy is ready"
        await until(
            lambda: self.is_ready() or self.program.exit_code is not None, ready, within_s=START_BOUND_S
        )
        assert self.program.exit_code is None, f"{self.program!r}\n{self.program.tail()}"

    async def kill9(self) -> None:
        """The end that nothing can prepare for."""
        await self.program.kill()

    async def terminate(self) -> None:
        """SIGTERM; it must end with exit code 0 within its drain time and a margin."""
        self.program.send(signal.SIGTERM)
        code = await self.program.wait(within_s=EXIT_BOUND_S)
        assert code == 0, f"exit code {code}\n{self.program.tail()}"

    async def restart(self) -> None:
        """Start again on the same port and store; the old process must have ended."""
        assert self.program.exit_code is not None, "still running"
        await self.start()

    async def stop(self) -> None:
        """The end of a test, whatever its outcome: nothing of this proxy is left behind."""
        if self._program is not None and self._program.exit_code is None:
            await self._program.stop()
        for pid in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def children(self) -> list[int]:
        """Pids of what this proxy started, however indirectly, and what still runs."""
        return [pid for pid in marked_processes(self.marker) if pid != self.pid]

    def rss_kib(self) -> int:
        return rss_kib(self.pid)

    def descriptors(self) -> int:
        return descriptors(self.pid)

    async def children_end(self, *, within_s: float) -> None:
        await until(lambda: not self.children(), "no child process is left", within_s=within_s)

    def is_ready(self) -> bool:
        """Whether `/readyz` says so; a proxy that does not listen is not ready."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in over.items():
        inner = both.get(key)
        both[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return both
