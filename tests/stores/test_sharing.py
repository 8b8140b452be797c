"""The store directory of a sidecar: one process holds it, guests beside it, adopted by the next start."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from proxy.errors import TaskNotFound
from proxy.stores.base import Store, TaskStore
from proxy.stores.disk import Durability
from proxy.stores.sharing import open_shared_directory
from proxy.tasks import lifecycle
from proxy.tasks.policy import Polling
from proxy.tasks.task import ID_PREFIX, Task
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

OWNER = "local-user"
RESULT = b'{"content":[],"note":"' + b"x" * 100_000 + b'"}'  # large enough for a file of its own


def opened(directory: Path, clock: ManualClock) -> AbstractAsyncContextManager[Store]:
    return open_shared_directory(directory, Durability.PROCESS, OWNER, clock)


def new_task(clock: ManualClock, letter: str) -> Task:
    return lifecycle.created(
        id=ID_PREFIX + letter * 32,
        owner=OWNER,
        method="tools/call",
        name="train",
        now_ms=clock.wall_ms(),
        retention_ms=3_600_000,
    )


async def completed(store: TaskStore, clock: ManualClock, letter: str) -> Task:
    task = new_task(clock, letter)
    await store.create(task)
    done = lifecycle.completed(task, RESULT, None, Polling(), clock.wall_ms(), tool_error=None)
    await store.compare_and_set(task, done)
    return done


async def test_the_next_start_finds_the_tasks_of_the_last_one(tmp_path: Path) -> None:
    """AUTH-008."""
    clock = ManualClock()
    async with opened(tmp_path / "s", clock) as first:
        done = await completed(first, clock, "a")
    async with opened(tmp_path / "s", clock) as second:
        assert await second.get(done.id) == done


async def test_a_second_process_does_not_disturb_the_first_and_is_adopted_later(tmp_path: Path) -> None:
    """AUTH-008, contract section 9: two proxies on one store directory."""
    clock = ManualClock()
    async with opened(tmp_path / "s", clock) as first:
        mine = await completed(first, clock, "a")
        async with opened(tmp_path / "s", clock) as guest:
            theirs = await completed(guest, clock, "b")
            running = new_task(clock, "c")
            await guest.create(running)
            with pytest.raises(TaskNotFound):
                await guest.get(mine.id)
        with pytest.raises(TaskNotFound):
            await first.get(theirs.id)
    async with opened(tmp_path / "s", clock) as later:
        assert await later.get(mine.id) == mine
        assert await later.get(theirs.id) == theirs
        assert [t.id for t in await later.unfinished()] == [running.id]
    assert list((tmp_path / "s" / "guests").iterdir()) == []


async def test_a_guest_that_still_runs_is_left_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    holder = opened(tmp_path / "s", clock)
    async with holder as first, opened(tmp_path / "s", clock) as guest:
        theirs = await completed(guest, clock, "b")
        await first.check()
        async with opened(tmp_path / "s", clock):  # a third one
            assert await guest.get(theirs.id) == theirs


async def test_what_a_guest_remembered_is_adopted_for_the_time_that_is_left(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path / "s", clock) as first:
        await first.remember("session/both", b"mine", keep_s=100)
        async with opened(tmp_path / "s", clock) as guest:
            await guest.remember("session/both", b"theirs", keep_s=100)
            await guest.remember("session/theirs", b"versions", keep_s=100)
            assert await guest.remembered("session/") == [
                ("session/both", b"theirs"),
                ("session/theirs", b"versions"),
            ]
    await clock.advance(60)
    async with opened(tmp_path / "s", clock) as later:
        assert await later.recall("session/both") == b"mine"
        assert await later.recall("session/theirs") == b"versions"
        await clock.advance(40)
        assert await later.recall("session/theirs") is None
