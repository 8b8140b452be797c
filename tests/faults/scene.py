"""What an era takes place on: a proxy, its disk, a server of the bench's own, maybe a relay between them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio

from tests.faults.disk import Disk
from tests.faults.journal import Journal
from tests.faults.plan import (
    DRAIN_S,
    INPUT_LIMIT_S,
    RUNTIME_LIMIT_S,
    THRESHOLD_S,
    EraPlan,
    Transport,
)
from tests.faults.ports import lasting_port
from tests.faults.relay import Relay
from tests.real.processes import MARKER, Program, accepts
from tests.real.proxy_process import ProxyProcess
from tests.real.waiting import until

START_BOUND_S: Final = 30.0
TRY_AGAIN_S: Final = 0.2
MRTR_WAIT_S: Final = 4.0


class NotServing(AssertionError):
    """The proxy does not come up again."""


class Proxy(ProxyProcess):
    """Started again and again, as a supervisor does, until it serves. `exits`: how it ended by itself."""

    def __init__(self, home: Path, upstream: str | list[str], settings: dict[str, Any]) -> None:
        super().__init__(home, upstream, settings)
        self.port = lasting_port()
        self.exits: list[str] = []

    def is_ready(self) -> bool:
        """Whether it serves, though its disk be full."""
        return accepts(self.port)

    @property
    def runs(self) -> bool:
        return self._program is not None and self._program.exit_code is None

    def spawn(self) -> None:
        self._program = Program(self.command(), log=self.log, env={MARKER: self.marker})

    async def serve(self) -> None:
        """Start it, if it does not run, and wait until it serves; NotServing after START_BOUND_S."""
        with anyio.move_on_after(START_BOUND_S):
            while True:
                if not self.runs:
                    self.spawn()
                await until(lambda: not self.runs or self.is_ready(), "it serves", within_s=START_BOUND_S)
                if self.runs:
                    return
                self.note_exit("while it started")
                await anyio.sleep(TRY_AGAIN_S)
        raise NotServing(f"the proxy does not start\n{self.program.tail()}")

    def note_exit(self, when: str) -> None:
        last = self.program.tail(1)[:500]
        self.exits.append(f"{when}, with exit code {self.program.exit_code}: {last}")

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class HttpServer:
    """The server, where it is no child of the proxy's."""

    def __init__(self, home: Path, journal: Path, *, resumable: bool) -> None:
        self.port = lasting_port()
        self._home = home
        self._command = server_command(journal, "http", str(self.port), "ids" if resumable else "plain")
        self._program: Program | None = None

    @property
    def program(self) -> Program:
        assert self._program is not None, "the server was not started"
        return self._program

    async def start(self) -> None:
        self._program = Program(self._command, log=self._home / "server.log")
        await until(lambda: accepts(self.port), "the server listens", within_s=START_BOUND_S)

    async def kill(self) -> None:
        await self.program.kill()

    def signal(self, number: signal.Signals) -> None:
        self.program.send(number)


class Scene:
    """See the module. `server` and `relay` are None where the proxy starts the server."""

    def __init__(self, home: Path, era: EraPlan, make_proxy: type[Proxy]) -> None:
        home.mkdir(parents=True)
        self.home = home
        self.era = era
        self.journal = Journal(home / "journal.jsonl")
        self.disk = Disk(home, small=era.small_disk)
        self.server: HttpServer | None = None
        self.relay: Relay | None = None
        journal = home / "journal.jsonl"
        upstream: str | list[str] = server_command(journal, "stdio")
        if era.transport is Transport.HTTP:
            self.server = HttpServer(home, journal, resumable=era.resumable)
            self.relay = Relay(self.server.port) if era.relayed else None
            port = self.relay.port if self.relay is not None else self.server.port
            upstream = f"http://127.0.0.1:{port}/mcp"
        self.proxy = make_proxy(home, upstream, _settings(era, self.disk.store))

    def server_pids(self) -> list[int]:
        """The server's processes."""
        return [self.server.program.pid] if self.server is not None else self.proxy.children()


@asynccontextmanager
async def opened(home: Path, era: EraPlan, make_proxy: type[Proxy] = Proxy) -> AsyncIterator[Scene]:
    """A scene whose parts run. Whatever happens on it, nothing of it is left."""
    scene = Scene(home, era, make_proxy)
    try:
        async with anyio.create_task_group() as group:
            if scene.server is not None:
                await scene.server.start()
            if scene.relay is not None:
                await group.start(scene.relay.run)
            await scene.proxy.serve()
            yield scene
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            if scene.proxy.runs:
                scene.proxy.signal(signal.SIGCONT)
            await scene.proxy.stop()
            if scene.server is not None and scene.server.program.exit_code is None:
                await scene.server.kill()
            scene.disk.close()


def server_command(journal: Path, *how: str) -> list[str]:
    return [sys.executable, "-m", "tests.faults.server", str(journal), *how]


def _settings(era: EraPlan, store: Path) -> dict[str, Any]:
    return {
        "tasks": {
            "threshold": f"{THRESHOLD_S}s",
            "retention": f"{era.retention_s}s",
            "runtime_limit": f"{RUNTIME_LIMIT_S}s",
            "input_limit": f"{INPUT_LIMIT_S}s",
            "mrtr_wait": f"{MRTR_WAIT_S}s",
            "tools": [
                {"match": "ask_*", "input": "task"},
                {"match": "must_*", "mode": "required"},
                {"match": "now_*", "threshold": "0s"},
                {"match": "again_*", "repeatable": True},
            ],
        },
        "limits": {"failed_lookups": "10000/s"},  # all that has expired is asked for, at once
        "drain": f"{DRAIN_S}s",
        "store": {"url": f"disk:{store}", "durability": era.durability},
        "log": {"format": "json"},
    }
