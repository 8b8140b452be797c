"""The store directory of a sidecar: one process holds it, guests beside it, adopted by the next start."""

from __future__ import annotations

import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from proxy.errors import TaskNotFound
from proxy.stores import directory as directory_module
from proxy.stores.base import Store, TaskStore
from proxy.stores.directory import DirectoryInUse, HeldDirectory
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.sharing import GUESTS, open_shared_directory
from proxy.tasks import lifecycle
from proxy.tasks.policy import Polling
from proxy.tasks.task import ID_PREFIX, Task
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

OWNER = "local-user"
RESULT = b'{"content":[],"note":"' + b"x" * 100_000 + b'"}'  # large enough for a file of its own


def opened(directory: Path, clock: ManualClock) -> AbstractAsyncContextManager[Store]:
    return open_shared_directory(directory, Durability.PROCESS, OWNER, clock)


def new_task(clock: ManualClock, letter: str, id: str | None = None) -> Task:
    return lifecycle.created(
        id=id or ID_PREFIX + letter * 32,
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


async def test_a_task_that_expires_while_others_are_taken_over_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more tasks than one page has, of which the first and the last are over before their turn."""
    clock = ManualClock()
    ids: list[str] = []
    async with opened(tmp_path / "s", clock), opened(tmp_path / "s", clock) as guest:
        for letter in "abc":
            ids.append((await completed(guest, clock, letter)).id)
        for number in range(100):
            await guest.create(task := new_task(clock, "d", id=f"{ID_PREFIX}{number:032d}"))
            ids.append(task.id)
    get = DiskStore.get

    async def expiring(store: DiskStore, task_id: str, *, result: bool = True) -> Task:
        if task_id in (ids[0], ids[-1]):
            raise TaskNotFound
        return await get(store, task_id, result=result)

    with monkeypatch.context() as patched:
        patched.setattr(DiskStore, "get", expiring)
        async with opened(tmp_path / "s", clock) as later:
            found = {task.id for task in await later.owned(OWNER, limit=1000)}
    assert found == set(ids[1:-1])
    assert list((tmp_path / "s" / GUESTS).iterdir()) == []


async def test_a_guest_whose_directory_is_just_being_taken_over_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the making of the directory and its lock."""
    clock = ManualClock()
    make_private = directory_module._make_private
    taken: list[HeldDirectory] = []

    def slowly(path: Path) -> None:
        make_private(path)
        if path.parent.name == GUESTS and not taken:
            monkeypatch.setattr(directory_module, "_make_private", make_private)
            taken.append(HeldDirectory(path))

    async with opened(tmp_path / "s", clock):
        monkeypatch.setattr(directory_module, "_make_private", slowly)
        async with opened(tmp_path / "s", clock) as guest:
            await guest.check()
    assert taken


async def test_a_guest_that_finds_no_directory_of_its_own_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = directory_module._lock

    def refuse(path: Path) -> int:
        if path.parent.name == GUESTS:
            raise DirectoryInUse("in use")
        return lock(path)

    async with opened(tmp_path / "s", ManualClock()):
        monkeypatch.setattr(directory_module, "_lock", refuse)
        with pytest.raises(DirectoryInUse):
            async with opened(tmp_path / "s", ManualClock()):
                pass


async def test_a_directory_that_a_guest_is_just_making_is_left_to_it(tmp_path: Path) -> None:
    newborn = tmp_path / "s" / GUESTS / "1-abc"
    newborn.mkdir(parents=True, mode=0o700)
    (tmp_path / "s").chmod(0o700)
    async with opened(tmp_path / "s", ManualClock()):
        assert newborn.is_dir()
        HeldDirectory(newborn).release()


async def test_nobody_can_hold_a_directory_that_is_about_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest that had opened its lock before, and gets it only now, finds that it was removed."""
    clock = ManualClock()
    async with opened(tmp_path / "s", clock), opened(tmp_path / "s", clock) as guest:
        await completed(guest, clock, "a")
    lock_file = directory_module._lock_file
    [left] = (tmp_path / "s" / GUESTS).iterdir()
    early = lock_file(left / directory_module.LOCK_NAME)
    refused: list[str] = []
    rmtree = shutil.rmtree

    def remove(path: Path, *, ignore_errors: bool) -> None:
        with monkeypatch.context() as patched, pytest.raises(DirectoryInUse) as caught:
            patched.setattr(directory_module, "_lock_file", lambda _: early)
            HeldDirectory(path)
        refused.append(caught.value.message)
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", remove)
    async with opened(tmp_path / "s", clock) as later:
        assert len(await later.owned(OWNER)) == 1
    assert len(refused) == 1
    assert not left.exists()


async def test_what_cannot_be_looked_into_stops_no_start(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    (tmp_path / "s" / GUESTS).write_text("not a directory")
    async with opened(tmp_path / "s", ManualClock()) as store:
        await store.check()
