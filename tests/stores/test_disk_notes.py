"""Progress in the disk store: in memory at once, on the disk once a second. Contract section 4; PROG-004."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from proxy.errors import StoreError
from proxy.stores.disk import DiskStore
from proxy.stores.writer import Writer
from tests.manual_clock import ManualClock
from tests.stores.disks import Gate, on_disk
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
