"""Progress in the disk store: in memory at once, on the disk once a second. Contract section 4; PROG-004."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from proxy.errors import StoreError
from proxy.stores.disk import DiskStore
from proxy.stores.writer import Writer
from tests.manual_clock import ManualClock
from tests.stores.disks import Gate, on_disk, opened
from tests.stores.records import (
    a_task,
    completed,
    progressed,
)

pytestmark = pytest.mark.anyio


async def test_notes_reach_the_disk_together_after_a_second(
    store: DiskStore, directory: Path, clock: ManualClock
) -> None:
    """PROG-004"""
    state = task = a_task(clock)
    await store.create(task)
    commits = store.commits
    for number in range(1_000):
        await store.note(state, state := progressed(state, clock, f"{number}/1000"))
    assert on_disk(directory, task.id) == task
    await clock.advance(1)
    await store.check()  # behind the note
    assert on_disk(directory, task.id) == state
    await clock.advance(10)
    await store.check()
    assert store.commits <= commits + 3
    await store.compare_and_set(state, end := completed(state, clock))
    assert on_disk(directory, task.id) == end


async def test_a_note_that_could_not_be_written_is_tried_again(
    store: DiskStore, directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task(clock)
    await store.create(task)
    await store.note(task, noted := progressed(task, clock, "1/2"))
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "_try", lambda writer, changes: "disk i/o error")
        await clock.advance(1)
        with pytest.raises(StoreError):
            await store.check()
    assert on_disk(directory, task.id) == task
    await clock.advance(1)
    await store.check()
    assert on_disk(directory, task.id) == noted


async def test_a_change_on_its_way_is_not_overtaken_by_a_note(
    store: DiskStore, directory: Path, clock: ManualClock, gate: Gate
) -> None:
    task = a_task(clock)
    await store.create(task)
    await store.note(task, noted := progressed(task, clock, "1/2"))
    gate.shut()
    async with anyio.create_task_group() as group:
        group.start_soon(store.compare_and_set, noted, end := completed(noted, clock))
        await gate.reached()
        await clock.advance(5)
        gate.open()
    await clock.advance(5)
    await store.check()
    assert await store.get(task.id) == end
    assert on_disk(directory, task.id) == end


async def test_while_the_disk_hangs_one_note_of_each_task_waits_for_it(
    store: DiskStore, directory: Path, clock: ManualClock, gate: Gate
) -> None:
    """The next goes with the first flush after that. PROG-004"""
    tasks = [a_task(clock) for _ in range(3)]
    for task in tasks:
        await store.create(task)
    gate.shut()
    for second in range(20):
        for place, state in enumerate(tasks):
            tasks[place] = progressed(state, clock, f"{second}/20")
            await store.note(state, tasks[place])
        await clock.advance(1)
    assert store._writer.queued <= len(tasks)
    gate.open()
    await store.check()
    await clock.advance(1)
    await store.check()
    assert [on_disk(directory, task.id) for task in tasks] == tasks


async def test_what_was_noted_while_another_note_was_on_its_way_is_stored_at_the_end(
    directory: Path, clock: ManualClock, gate: Gate
) -> None:
    async with opened(directory, clock) as store:
        await store.create(task := a_task(clock))
        gate.shut()
        await store.note(task, noted := progressed(task, clock, "1/2"))
        await clock.advance(1)
        await gate.reached()
        await store.note(noted, last := progressed(noted, clock, "2/2"))
        gate.open()
    assert on_disk(directory, task.id) == last


async def test_while_the_disk_hangs_readiness_probes_wait_for_one_row(
    store: DiskStore, clock: ManualClock, gate: Gate
) -> None:
    gate.shut()
    async with anyio.create_task_group() as group:
        group.start_soon(store.create, a_task(clock))
        await gate.reached()
        for _ in range(20):
            group.start_soon(store.check)
        await anyio.wait_all_tasks_blocked()
        assert store._writer.queued == 1
        gate.open()
