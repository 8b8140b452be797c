"""One round on a scene: load and faults together, then everything is asked for again and judged."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import anyio
from anyio import CapacityLimiter

from tests.faults.breaking import Breaker
from tests.faults.calls import READ_ID, Callers, Clients
from tests.faults.felt import OF_THE_DISK, Felt, felt_between
from tests.faults.journal import Row
from tests.faults.log_lines import LogLines
from tests.faults.moments import Moments
from tests.faults.plan import INPUT_LIMIT_S, LOAD_S, OWNERS, RUNTIME_LIMIT_S, EraPlan, RoundPlan, Transport
from tests.faults.scene import NotServing, Scene, opened
from tests.faults.seen import CallSeen
from tests.faults.store_files import store_faults
from tests.faults.verdict import Told, judge
from tests.faults.violation import Violation, What
from tests.real.processes import descriptors
from tests.real.proxy_process import EXIT_BOUND_S
from tests.real.waiting import until

SETTLED_S: Final = LOAD_S + 2 * (RUNTIME_LIMIT_S + INPUT_LIMIT_S) + 25.0  # load, limits, faults, restarts
READ_AGAIN: Final = 150  # older tasks, besides all of the round
READERS: Final = 8
STRANGERS: Final = 3  # tasks that a stranger asks for
QUIET_S: Final = 8.0  # for connections and threads of the load to end
DESCRIPTORS: Final = 48  # of a quiet proxy: the store's, one or two for each session, the libraries'
SESSIONS: Final = 2 * OWNERS + 1


@dataclass(slots=True)
class RoundSeen:
    """What came of a round."""

    plan: RoundPlan
    calls: list[CallSeen]
    felt: list[Felt]
    violations: list[Violation]
    seconds: float

    @property
    def tasks(self) -> int:
        return sum(call.task is not None for call in self.calls)


@dataclass(slots=True)
class Era:
    """An open scene, and all that was answered on it."""

    scene: Scene
    log: LogLines
    tasks: list[CallSeen] = field(default_factory=list)
    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    felt: list[Felt] = field(default_factory=list)

    async def play(self, plan: RoundPlan) -> RoundSeen:
        began = time.monotonic()
        breaker = Breaker(self.scene, moments := Moments())
        calls = [CallSeen(call) for call in plan.calls]
        older = Random(plan.number).sample(self.tasks, min(READ_AGAIN, len(self.tasks)))
        async with Clients(self.scene.proxy.url) as clients:
            callers = Callers(clients, moments, self.scene.era.retention_s)
            with anyio.move_on_after(SETTLED_S):
                async with anyio.create_task_group() as group:
                    group.start_soon(breaker.run, plan.faults)
                    group.start_soon(play_load, callers, calls, moments)
            tasks = [call for call in calls if call.task is not None]
            await _read_again(callers, [*tasks, *older])
            violations = [*breaker.violations, *await _ask_as_stranger(clients, calls)]
        self.tasks += tasks
        violations += await self._look_around()
        self.felt += breaker.felt  # what was broken in one round may be felt in the next
        violations += self._judge(calls, began)
        violations += _of_older(older)
        return RoundSeen(plan, calls, breaker.felt, violations, time.monotonic() - began)

    async def end(self) -> list[Violation]:
        """Everything is asked for once more; then the proxy is stopped as operators do."""
        violations: list[Violation] = []
        async with Clients(self.scene.proxy.url) as clients:
            await _read_again(Callers(clients, Moments(), self.scene.era.retention_s), self.tasks)
        violations += _of_older(self.tasks)
        try:
            await self.scene.proxy.terminate()
            await self.scene.proxy.children_end(within_s=EXIT_BOUND_S)
        except AssertionError as exc:
            violations.append(Violation(What.BAD_EXIT, "proxy", str(exc)[-2000:]))
        violations += self.log.judge([])
        if not self.scene.proxy.runs:
            violations += await store_faults(self.scene.disk.store)
        return violations

    # -- after the load -------------------------------------------------------------------------------

    async def _look_around(self) -> list[Violation]:
        """A proxy that serves nobody holds little."""
        proxy, violations = self.scene.proxy, []
        try:
            await until(
                lambda: descriptors(proxy.pid) <= DESCRIPTORS, "descriptors are closed", within_s=QUIET_S
            )
        except AssertionError:
            held = descriptors(proxy.pid)
            violations.append(
                Violation(What.LEFT_OVER, "proxy", f"{held} descriptors of a proxy that is idle")
            )
        if self.scene.server is None and len(children := proxy.children()) > SESSIONS:
            violations.append(Violation(What.LEFT_OVER, "server", f"{len(children)} processes"))
        return violations

    def _judge(self, calls: Iterable[CallSeen], began: float) -> list[Violation]:
        for row in self.scene.journal.new():
            self.rows[row.label].append(row)
        now = time.monotonic()
        plan = self.scene.era
        resumable = plan.resumable and plan.transport is Transport.HTTP
        violations: list[Violation] = []
        for call in calls:
            told = Told.of(self.rows[call.plan.label])
            violations += judge(call, told, self.felt, now, resumable=resumable)
        violations += self.log.judge(self.felt)
        exits, self.scene.proxy.exits = self.scene.proxy.exits, []
        disk_broken = felt_between(self.felt, began, now, OF_THE_DISK)
        violations += [
            Violation(What.EXITED, "proxy", words)
            for words in exits
            if not (disk_broken and "while it started" in words)
        ]
        for call in calls:  # told once
            call.violations = []
            if call.task is not None:
                call.task.violations, call.task.refusals = [], []
        return violations


@asynccontextmanager
async def era(home: Path, plan: EraPlan) -> AsyncIterator[Era]:
    """Raises NotServing, then or inside, if the proxy does not come up again."""
    failures: list[NotServing] = []
    try:
        async with opened(home, plan) as scene:
            yield Era(scene, LogLines(scene.proxy.log))
    except* NotServing as group:
        failures += _leaves(group)
    if failures:
        raise failures[0]


def _leaves(group: BaseExceptionGroup[NotServing]) -> Iterator[NotServing]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from _leaves(exc)
        else:
            yield exc


async def play_load(callers: Callers, calls: Iterable[CallSeen], moments: Moments) -> None:
    """Every call lives its life."""
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(callers.live, call)
    moments.finish()


async def _read_again(callers: Callers, calls: Iterable[CallSeen]) -> None:
    readers = CapacityLimiter(READERS)

    async def read(call: CallSeen) -> None:
        assert call.task is not None
        async with readers:
            await callers.read(call, call.task)

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(read, call)


async def _ask_as_stranger(clients: Clients, calls: Iterable[CallSeen]) -> list[Violation]:
    """Another's task and one that never was are one and the same answer (I5)."""
    owned = [call for call in calls if call.task is not None and call.plan.owner]
    unknown = await clients.stranger.get_task("tpx-" + "0" * 32, request_id=READ_ID)
    violations = []
    for call in owned[:STRANGERS]:
        assert call.task is not None
        answer = await clients.stranger.get_task(call.task.id, request_id=READ_ID)
        if answer.raw != unknown.raw:
            violations.append(Violation(What.SEEN_BY_STRANGER, call.plan.label, repr(answer.raw[:300])))
    return violations


def _of_older(calls: Iterable[CallSeen]) -> list[Violation]:
    """Of tasks of former rounds: what was seen when they were read again."""
    violations: list[Violation] = []
    for call in calls:
        assert call.task is not None
        refused = [Violation(What.UNCALLED, call.plan.label, words) for _, words in call.task.refusals]
        violations += [*call.violations, *call.task.violations, *refused]
        call.violations, call.task.violations, call.task.refusals = [], [], []
    return violations
