"""Carries out the faults of a round, and remembers when each could be felt.

What is done to one process is done one after the other; all else may fall together. The sleeps are in the
plan: when a fault comes, and how long it lasts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, assert_never

import anyio

from tests.faults.disk import let_files_grow, let_no_file_grow
from tests.faults.felt import Felt
from tests.faults.moments import Moments
from tests.faults.plan import FaultKind, FaultPlan
from tests.faults.scene import Scene
from tests.faults.violation import Violation, What
from tests.real.waiting import until

ORPHAN_BOUND_S: Final = 5.0  # for a server to see the end of its stdin, and go
LOOK_S: Final = 0.05
KILLS: Final = {FaultKind.KILL: 1, FaultKind.KILL_STARTING: 2, FaultKind.TERM_KILL: 1}
"""How often the proxy is killed in each."""

_OF_THE_PROXY: Final = frozenset({*KILLS, FaultKind.TERM, FaultKind.STOP})
_OF_THE_SERVER: Final = frozenset({FaultKind.UPSTREAM_KILL, FaultKind.UPSTREAM_STOP})


class Breaker:
    """Of one round."""

    def __init__(self, scene: Scene, moments: Moments) -> None:
        self._scene = scene
        self._proxy = scene.proxy
        self._moments = moments
        self._turn = anyio.Lock()
        self._server_turn = anyio.Lock()
        self._orphans: set[int] = set()
        self.felt: list[Felt] = []
        self.violations: list[Violation] = []

    async def run(self, faults: Iterable[FaultPlan]) -> None:
        """Returns when all of them are over, and the proxy serves."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            async with anyio.create_task_group() as breaking:
                for fault in faults:
                    breaking.start_soon(self._break, fault)
            async with self._turn:
                await self._proxy.serve()
            await self._see_orphans_off()
            group.cancel_scope.cancel()

    async def _watch(self) -> None:
        """A proxy that ends by itself is noted, and started again."""
        while True:
            async with self._turn:
                if not self._proxy.runs:
                    self._proxy.note_exit("while it served")
                    await self._proxy.serve()
            await anyio.sleep(LOOK_S)

    async def _break(self, fault: FaultPlan) -> None:
        await self._moments.wait(fault.moment, fault.count)
        await anyio.sleep(fault.delay_s)
        if fault.kind in _OF_THE_PROXY:
            async with self._turn:
                await self._carry_out(fault)
        elif fault.kind in _OF_THE_SERVER:
            async with self._server_turn:
                await self._carry_out(fault)
        else:
            await self._carry_out(fault)

    async def _carry_out(self, fault: FaultPlan) -> None:
        felt = Felt(fault.kind, time.monotonic())
        self.felt.append(felt)
        match fault.kind:
            case FaultKind.KILL:
                await self._kill()
                await self._proxy.serve()
            case FaultKind.KILL_STARTING:
                await self._kill()
                self._proxy.spawn()
                await anyio.sleep(fault.seconds)
                await self._kill()
                await self._proxy.serve()
            case FaultKind.TERM:
                await self._terminate()
                await self._proxy.serve()
            case FaultKind.TERM_KILL:
                self._proxy.signal(signal.SIGTERM)
                await anyio.sleep(fault.seconds)
                await self._kill()
                await self._proxy.serve()
            case FaultKind.STOP:
                self._proxy.signal(signal.SIGSTOP)
                await anyio.sleep(fault.seconds)
                self._proxy.signal(signal.SIGCONT)
            case FaultKind.UPSTREAM_KILL:
                await self._kill_server(fault)
            case FaultKind.UPSTREAM_STOP:
                await self._stop_server(fault)
            case FaultKind.RESET:
                assert self._scene.relay is not None
                self._scene.relay.reset(fault.part)
            case FaultKind.DISK_FULL:
                if self._scene.disk.is_small:
                    self._scene.disk.fill()
                    await anyio.sleep(fault.seconds)
                    self._scene.disk.free()
            case FaultKind.DISK_ERROR:
                pid = self._proxy.pid
                with suppress(ProcessLookupError):
                    let_no_file_grow(pid, fault.part)
                await anyio.sleep(fault.seconds)
                let_files_grow(pid)
            case kind:
                assert_never(kind)
        felt.ended = time.monotonic()

    async def _kill(self) -> None:
        """With no chance to see its children off: they must go by themselves."""
        self._orphans.update(self._proxy.children())
        if self._proxy.runs:
            await self._proxy.kill9()

    async def _terminate(self) -> None:
        if not self._proxy.runs:
            return
        self._orphans.update(self._proxy.children())
        try:
            await self._proxy.terminate()
        except AssertionError as exc:
            self.violations.append(Violation(What.BAD_EXIT, "proxy", str(exc)[-2000:]))
            await self._kill()

    async def _see_orphans_off(self) -> None:
        try:
            await until(lambda: not _alive(self._orphans), "orphans end", within_s=ORPHAN_BOUND_S)
        except AssertionError:
            left = _alive(self._orphans)
            self.violations.append(
                Violation(What.LEFT_OVER, "server", f"{len(left)} processes of a killed proxy")
            )

    async def _kill_server(self, fault: FaultPlan) -> None:
        server = self._scene.server
        if server is not None:
            await server.kill()
            await anyio.sleep(fault.seconds)
            await server.start()
            return
        for pid in _share(self._scene.server_pids(), fault.part):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _stop_server(self, fault: FaultPlan) -> None:
        pids = _share(self._scene.server_pids(), fault.part)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number is signal.SIGSTOP:
                await anyio.sleep(fault.seconds)


def _share(pids: list[int], part: float) -> list[int]:
    """At least one, if there is one."""
    return pids[: max(1, round(len(pids) * part))]


def _alive(pids: set[int]) -> list[int]:
    """Those that run; a zombie does not, its new parent has yet to look."""
    return [pid for pid in pids if _state(pid) not in (None, "Z")]


def _state(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return None
