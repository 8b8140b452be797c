"""Many callers, random faults, lost waiters: whatever the store said in the end, a restart says again."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import pytest

from proxy.errors import StoreError, TaskConflict, TaskNotFound
from proxy.stores.disk import DiskStore
from proxy.stores.writer import Change, Writer
from proxy.tasks.task import Task, TaskStatus
from tests.manual_clock import ManualClock
from tests.stores.disks import opened, result_files
from tests.stores.records import RESULT, a_task, asked, completed, moved, progressed

pytestmark = pytest.mark.anyio

ACTORS = 10
STEPS = 40


class Actor:
    """Does one random thing after the other to tasks that it shares with the others."""

    def __init__(self, store: DiskStore, clock: ManualClock, tasks: list[Task], seed: int) -> None:
        self.store = store
        self.clock = clock
        self.tasks = tasks
        self.random = random.Random(seed)

    async def run(self) -> None:
        for _ in range(STEPS):
            patience = self.random.choice([20.0, 20.0, 0.001])  # seconds: whoever waits gives up, or never
            try:
                with anyio.move_on_after(patience):
                    await self.step(self.random.choice(self.tasks))
            except (StoreError, TaskConflict, TaskNotFound):
                pass
            await anyio.lowlevel.checkpoint()

    async def step(self, task: Task) -> None:
        match self.random.randrange(10):
            case 0 | 1:
                await self.store.create(task)
            case 2:
                await self.clock.advance(self.random.choice([0.5, 1.0, 90.0]))
                await self.store.expire()
            case choice:
                await self.change(await self.store.get(task.id), choice)

    async def change(self, old: Task, choice: int) -> None:
        if old.status.is_terminal:
            return
        if choice < 6:
            await self.store.note(old, progressed(old, self.clock, str(choice)))
        elif choice == 6:
            result = RESULT * self.random.choice([1, 1_000])
            await self.store.compare_and_set(old, completed(old, self.clock, result))
        elif old.status is TaskStatus.WORKING:
            await self.store.compare_and_set(old, asked(old, self.clock))
        else:
            working = moved(old, self.clock, status=TaskStatus.WORKING, inputs=())
            await self.store.compare_and_set(old, working)


async def found(store: DiskStore, tasks: list[Task]) -> dict[str, Task]:
    states: dict[str, Task] = {}
    for task in tasks:
        try:
            states[task.id] = await store.get(task.id)
        except TaskNotFound:
            continue
    return states


@pytest.mark.parametrize("seed", range(4))
async def test_a_restart_finds_what_the_store_said(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    attempt, faults = Writer._try, random.Random(seed)

    def fail_sometimes(writer: Writer, changes: list[Change]) -> str | None:
        return "disk i/o error" if faults.random() < 0.15 else attempt(writer, changes)

    tasks = [a_task(clock) for _ in range(15)]
    async with opened(directory, clock) as store:
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "_try", fail_sometimes)
            async with anyio.create_task_group() as group:
                for number in range(ACTORS):
                    group.start_soon(Actor(store, clock, tasks, 100 * seed + number).run)
        await store.check()  # behind all changes that lost their waiters
        said = await found(store, tasks)
        listed = await store.owned("alice")
    async with opened(directory, clock) as store:
        assert await found(store, tasks) == said
        assert await store.owned("alice") == listed
        assert said, "the play has left nothing to be compared"
        await store.expire()
        large = [task for task in said.values() if len(task.result or b"") > 40_000]
        assert len(result_files(directory)) == len(large)
