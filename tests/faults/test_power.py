"""Power cuts: the whole proxy on a disk that drops whatever was not synced. Contract section 1 (I3).

A proxy serves a load while every write and sync of its is recorded. Then the disk is made as it would be had
the power failed at some moment, and what clients knew by then is asked for again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio
import pytest

from proxy.clock import SystemClock
from proxy.errors import TaskNotFound
from proxy.stores.disk import DiskStore, Durability
from tests.faults.calls import READ_ID, Callers, Clients
from tests.faults.dice import plan_round
from tests.faults.disk_trace import Act, read_trace, traced
from tests.faults.journal import digest
from tests.faults.moments import Moments
from tests.faults.plan import EraPlan, Kind, Transport
from tests.faults.power_cut import PowerCut
from tests.faults.rounds import play_load
from tests.faults.scene import Proxy, Scene, opened
from tests.faults.seen import CallSeen, TaskSeen

pytestmark = [pytest.mark.anyio, pytest.mark.real]

SEED: Final = 11
LEFT_OUT: Final = frozenset({Kind.MUTE, Kind.ENDLESS, Kind.HUGE})  # they only make it long
STORE_CUTS: Final = 12
PROXY_CUTS: Final = 2
BOUND_S: Final = 120.0


class RecordedProxy(Proxy):
    """Runs under strace. The trace is whole once the process has ended."""

    @property
    def trace(self) -> Path:
        return self.home / "trace"

    def command(self) -> list[str]:
        return traced(super().command(), self.trace)


@asynccontextmanager
async def recorded(home: Path, durability: str) -> AsyncIterator[Scene]:
    plan = EraPlan(
        Transport.HTTP,
        relayed=False,
        resumable=False,
        retention_s=3600.0,
        durability=durability,
        small_disk=False,
    )
    async with opened(home, plan, RecordedProxy) as scene:
        yield scene


async def load(scene: Scene) -> list[TaskSeen]:
    """Serve some calls, and stop; the tasks as their clients saw them."""
    plan = plan_round(SEED, 0, scene.era)
    calls = [CallSeen(call) for call in plan.calls if call.kind not in LEFT_OUT]
    moments = Moments()
    async with Clients(scene.proxy.url) as clients:
        await play_load(Callers(clients, moments, scene.era.retention_s), calls, moments)
    await scene.proxy.terminate()
    tasks = [call.task for call in calls if call.task is not None]
    assert len(tasks) > 10
    assert [v for task in tasks for v in task.violations] == []
    return tasks


def known_at(tasks: Sequence[TaskSeen], moment: float) -> list[TaskSeen]:
    return [task.as_of(moment) for task in tasks if task.told_at <= moment]


def moments_of(tasks: Sequence[TaskSeen]) -> list[float]:
    """Right after something was answered that must last."""
    told = [task.told_at for task in tasks]
    ended = [task.ended_at for task in tasks if task.ended_at is not None]
    answered = [at for task in tasks for at in task.answered.values()]
    return sorted([*told, *ended, *answered])


def cut(acts: Sequence[Act], scene: Scene, moment: float, target: Path, chance: Random | None) -> Path:
    """The store directory of a disk that lost its power at this monotonic moment."""
    disk = scene.disk.store.parent
    PowerCut(acts, disk, time.time() - time.monotonic() + moment).write(target, chance)
    return target / scene.disk.store.name


async def lost(store_directory: Path, known: Sequence[TaskSeen]) -> list[str]:
    """What a store says otherwise than was known."""
    found: list[str] = []
    async with DiskStore(store_directory, durability=Durability.PROCESS, clock=SystemClock()) as store:
        for seen in known:
            try:
                task = await store.get(seen.id)
            except TaskNotFound:
                found.append(f"{seen.plan.label} is not known")
                continue
            if seen.ended is None:
                if again := seen.answered.keys() & {question.key for question in task.inputs}:
                    found.append(f"{seen.plan.label} asks {again} again")
                continue
            call = CallSeen(seen.plan, task=seen)
            if (final := call.final()) is None:
                if task.result is not None or task.error is not None or not task.status.is_terminal:
                    found.append(f"{seen.plan.label} is {task.status}, not cancelled")
            elif digest(final[1]) != digest(task.result or task.error or b"{}"):
                found.append(f"{seen.plan.label} ended otherwise: {task!r}")
    return found


async def test_at_power_nothing_that_was_answered_is_lost_by_a_power_cut(tmp_path: Path) -> None:
    """Handles, ends and answers; also where what was not synced reached the disk in part and in any order."""
    with anyio.fail_after(BOUND_S):
        async with recorded(tmp_path / "scene", "power") as scene:
            tasks = await load(scene)
            acts = read_trace(scene.proxy.home / "trace")
            moments = moments_of(tasks)
            Random(SEED).shuffle(moments)
            for number, moment in enumerate(moments[:STORE_CUTS]):
                known = known_at(tasks, moment)
                for chance in (None, Random(number)):
                    store = cut(acts, scene, moment, tmp_path / f"{number} {chance is None}", chance)
                    assert await lost(store, known) == [], f"cut {number}"
            for number, moment in enumerate(moments[:PROXY_CUTS]):
                store = cut(acts, scene, moment, tmp_path / f"proxy {number}", Random(number))
                await serves(scene, store, known_at(tasks, moment))


async def serves(scene: Scene, store: Path, known: Sequence[TaskSeen]) -> None:
    """A proxy on this store answers for all that was known, byte for byte where it had ended."""
    home = store.parent / "home"
    home.mkdir()
    upstream = scene.proxy.upstream
    settings: dict[str, Any] = {"store": {"url": f"disk:{store}"}}
    proxy = Proxy(home, upstream if isinstance(upstream, str) else list(upstream), settings)
    try:
        await proxy.serve()
        async with Clients(proxy.url) as clients:
            for task in known:
                answer = await clients.of(task.plan).get_task(task.id, request_id=READ_ID)
                task.read(answer, time.monotonic(), time.time() * 1000)
    finally:
        await proxy.stop()
    assert [str(violation) for task in known for violation in task.violations] == []


async def test_at_process_a_power_cut_does_lose(tmp_path: Path) -> None:
    """What `durability: process` saves, and the proof that the disk above drops anything."""
    with anyio.fail_after(BOUND_S):
        async with recorded(tmp_path / "scene", "process") as scene:
            tasks = await load(scene)
            acts = read_trace(scene.proxy.home / "trace")
            moment = max(task.told_at for task in tasks)
            store = cut(acts, scene, moment, tmp_path / "cut", None)
            assert await lost(store, known_at(tasks, moment)) != []
