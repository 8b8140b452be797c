"""The disk store over time: restarts, kills, one writer for all, private files.

Holds TX-NEW-001, TX-GET-012, ELIC-009 and T25-SEC-007 where they concern the store; the contract's sections 1
(I3) and 9 (restart).
"""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from proxy.errors import StoreError, TaskConflict, TaskNotFound
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.encryption import Keys
from proxy.stores.results import new_name
from proxy.stores.rows import CHECK_KEY
from tests.manual_clock import ManualClock
from tests.stores.child import numbered_end, numbered_task
from tests.stores.disks import LARGE, Gate, on_disk, opened, result_files, sql
from tests.stores.records import (
    RESULT,
    TTL_MS,
    a_task,
    asked,
    cancelled,
    completed,
    failed,
    progressed,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("durability", Durability)
async def test_after_a_restart_every_task_answers_as_before(
    directory: Path, clock: ManualClock, durability: Durability
) -> None:
    """TX-GET-012"""
    tasks = [a_task(clock) for _ in range(6)]
    await clock.advance(1)
    states = [
        tasks[0],
        asked(tasks[1], clock),
        completed(tasks[2], clock),
        completed(tasks[3], clock, LARGE),
        failed(tasks[4], clock),
        cancelled(tasks[5], clock),
    ]
    async with opened(directory, clock, durability) as store:
        for task, state in zip(tasks, states, strict=True):
            await store.create(task)
            if state != task:
                await store.compare_and_set(task, state)
        secret, listed = await store.secret(), await store.owned("alice")
    async with opened(directory, clock, durability) as store:
        assert [await store.get(task.id) for task in tasks] == states
        assert await store.owned("alice") == listed
        assert await store.unfinished() == states[:2]
        assert await store.secret() == secret
        with pytest.raises(TaskConflict):
            await store.compare_and_set(tasks[2], cancelled(tasks[2], clock))
        await store.compare_and_set(states[0], end := cancelled(states[0], clock))
        assert await store.get(end.id) == end


def stream_until_killed(directory: Path, durability: Durability, *key: str) -> list[list[str]]:
    """What a child said that created, completed and remembered until it was killed."""
    command = [sys.executable, "-m", "tests.stores.child", "stream", str(directory), durability, *key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(600)]
        child.send_signal(signal.SIGKILL)
        return [line.split() for line in [*lines, *child.stdout]]


@pytest.mark.parametrize(
    ("durability", "key"),
    [(Durability.POWER, ()), (Durability.PROCESS, ()), (Durability.PROCESS, (b"k" * 32,))],
)
async def test_what_was_acknowledged_survives_kill_9(
    directory: Path, clock: ManualClock, durability: Durability, key: tuple[bytes, ...]
) -> None:
    """I3: what was acknowledged is there, byte for byte, after a kill in full flight; encrypted, too."""
    said = stream_until_killed(directory, durability, *(one.hex() for one in key))
    created = {int(number) for word, number in said if word == "created"}
    ended = {int(number) for word, number in said if word == "completed"}
    remembered = {int(number) for word, number in said if word == "remembered"}
    assert len(ended) > 100
    assert len(remembered) > 100
    async with opened(directory, clock, durability, keys=Keys(key)) as store:
        for number in created:
            task = await store.get(numbered_task(number).id)
            assert task == numbered_end(number) or (task == numbered_task(number) and number not in ended)
        for number in remembered:
            assert await store.recall(f"session/{number}") == b"%d" % number


async def test_a_restart_removes_what_expired_and_what_a_crash_left(
    directory: Path, clock: ManualClock
) -> None:
    """T25-SEC-007"""
    running = a_task(clock)
    async with opened(directory, clock) as store:
        await store.create(running)
        for result in (RESULT, LARGE):
            await store.create(task := a_task(clock))
            await store.compare_and_set(task, completed(task, clock, result))
    (directory / "results" / new_name(running.id)).write_bytes(b"half a resu")
    await clock.advance(TTL_MS / 1000)
    async with opened(directory, clock) as store:
        assert len(result_files(directory)) == 1
        assert await store.expire() == 2
        assert result_files(directory) == []
        assert await store.get(running.id) == running
    assert sql(directory, "SELECT key FROM Cache") == [(running.id.encode(),)]


async def test_creations_at_the_same_time_share_commits(store: DiskStore, clock: ManualClock) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(500):
            group.start_soon(store.create, a_task(clock))
    assert store.commits <= 10
    assert len(await store.owned("alice", limit=1000)) == 500


async def test_a_task_is_seen_by_nobody_before_its_commit(
    store: DiskStore, clock: ManualClock, directory: Path, gate: Gate
) -> None:
    """TX-NEW-001, F13: while the disk is slow the event loop goes on, and nothing is shown too early."""
    old = a_task(clock)
    await store.create(old)
    gate.shut()
    new = a_task(clock)
    async with store.watch([old.id, new.id]) as watch, anyio.create_task_group() as group:
        group.start_soon(store.create, new)
        group.start_soon(store.compare_and_set, old, completed(old, clock))
        await gate.reached()
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert await store.get(old.id) == old
        with pytest.raises(TaskNotFound):
            await store.get(new.id)
        assert await store.owned("alice") == [old]
        assert on_disk(directory, new.id) is None
        gate.open()
        assert {(await watch.receive()).id for _ in range(2)} == {old.id, new.id}
    assert await store.get(new.id) == new


async def test_what_is_queued_at_the_end_is_committed(
    directory: Path, clock: ManualClock, gate: Gate
) -> None:
    tasks = [a_task(clock) for _ in range(10)]
    async with anyio.create_task_group() as group, opened(directory, clock) as store:
        gate.shut()
        for task in tasks:
            group.start_soon(store.create, task)
        await gate.reached()
        gate.open()
    with pytest.raises(StoreError, match="closed"):
        await store.create(a_task(clock))
    async with opened(directory, clock) as store:
        assert await store.owned("alice") == tasks


async def test_a_waiter_that_is_cancelled_does_not_part_index_and_disk(
    directory: Path, clock: ManualClock, gate: Gate
) -> None:
    task, other = a_task(clock), a_task(clock)
    async with opened(directory, clock) as store:
        await store.create(task)
        gate.shut()
        async with anyio.create_task_group() as group:
            group.start_soon(store.create, other)
            group.start_soon(store.compare_and_set, task, end := completed(task, clock, LARGE))
            await gate.reached()
            group.cancel_scope.cancel()
        gate.open()
        await store.check()
        seen = await store.get(task.id)
        assert seen in (task, end)
        assert await store.get(other.id) == other
    async with opened(directory, clock) as store:
        assert await store.get(task.id) == seen
        assert await store.get(other.id) == other


async def test_a_cancelled_owner_still_closes_the_store_in_order(directory: Path, clock: ManualClock) -> None:
    task = a_task(clock)
    with anyio.CancelScope() as scope:
        async with opened(directory, clock) as store:
            await store.create(task)
            await store.note(task, noted := progressed(task, clock, "1/2"))
            scope.cancel()
            await anyio.sleep_forever()
    async with opened(directory, clock) as store:
        assert await store.get(task.id) == noted


async def test_a_second_change_waits_for_the_first_and_is_judged_by_its_outcome(
    store: DiskStore, clock: ManualClock, gate: Gate
) -> None:
    task = a_task(clock)
    await store.create(task)
    gate.shut()
    refused = anyio.Event()

    async def change_too_late() -> None:
        with pytest.raises(TaskConflict):
            await store.compare_and_set(task, cancelled(task, clock))
        refused.set()

    async with anyio.create_task_group() as group:
        group.start_soon(store.compare_and_set, task, end := completed(task, clock))
        await gate.reached()
        group.start_soon(change_too_late)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert not refused.is_set()
        gate.open()
    assert await store.get(task.id) == end


def modes_below(directory: Path) -> dict[str, int]:
    paths = [directory, *directory.rglob("*")]
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}


async def test_all_files_are_private(store: DiskStore, directory: Path, clock: ManualClock) -> None:
    """ELIC-009"""
    await store.create(task := a_task(clock))
    await store.compare_and_set(task, completed(task, clock, LARGE))
    modes = modes_below(directory)
    assert (modes.pop(directory.name), modes.pop("results")) == (0o700, 0o700)
    assert modes.keys() >= {"cache.db", "cache.db-wal", "cache.db-shm", "secret", "taskproxy.lock"}
    assert set(modes.values()) == {0o600}


async def test_the_rows_hold_tasks_and_the_check_alone(
    store: DiskStore, directory: Path, clock: ManualClock
) -> None:
    await store.create(task := a_task(clock))
    await store.check()
    assert {key for (key,) in sql(directory, "SELECT key FROM Cache")} == {task.id.encode(), CHECK_KEY}


async def test_a_relative_path_stays_where_it_was_given(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory.parent)
    async with opened(Path("here"), clock) as store:
        monkeypatch.chdir("/")
        await store.create(task := a_task(clock))
        await store.compare_and_set(task, completed(task, clock, LARGE))
        assert repr(store) == f"<DiskStore {str(directory.parent / 'here')!r} process, 1 tasks>"
    assert len(result_files(directory.parent / "here")) == 1
