"""The disk store where it meets the world: restarts, kills, locks, full disks, slow disks, lost waiters.

Holds TX-NEW-001, TX-GET-010, PROG-004, ELIC-009 and T25-SEC-007 where they concern the store; field reports
F11 and F13; the contract's sections 1 (I3), 4 (progress) and 9 (store broken).
"""

from __future__ import annotations

import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.streams.buffered import BufferedByteReceiveStream
from structlog.testing import capture_logs

from proxy.errors import ConfigError, StoreError, TaskConflict, TaskNotFound
from proxy.stores import disk, writer
from proxy.stores import rows as rows_module
from proxy.stores.changes import RESULT_IN_ROW_MAX
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.records import FORMAT, decode, seal
from proxy.stores.results import ResultFiles, new_name
from proxy.stores.rows import CHECK_KEY, BytesDisk
from proxy.stores.writer import Writer
from proxy.tasks.task import Task
from tests.manual_clock import ManualClock
from tests.stores.child import numbered_end, numbered_task
from tests.stores.records import (
    RESULT,
    TTL_MS,
    a_task,
    asked,
    cancelled,
    completed,
    failed,
    moved,
    progressed,
)

pytestmark = pytest.mark.anyio

LARGE = b'"' + b"x" * RESULT_IN_ROW_MAX + b'"'


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@asynccontextmanager
async def opened(
    directory: Path, clock: ManualClock, durability: Durability = Durability.PROCESS
) -> AsyncIterator[DiskStore]:
    with anyio.fail_after(20):
        async with DiskStore(directory, durability=durability, clock=clock) as store:
            yield store


@pytest.fixture
async def store(directory: Path, clock: ManualClock) -> AsyncIterator[DiskStore]:
    async with opened(directory, clock) as store:
        yield store


def sql(directory: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """What another program does to the database."""
    with closing(sqlite3.connect(directory / "cache.db", timeout=10)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def on_disk(directory: Path, task_id: str) -> Task | None:
    rows = sql(directory, "SELECT value FROM Cache WHERE key = ?", task_id.encode())
    return decode(rows[0][0]).task if rows else None


def result_files(directory: Path) -> list[str]:
    return sorted(file.name for file in (directory / "results").iterdir())


class Gate:
    """Stops the writer before its next commit, to make the disk as slow as a test needs it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()
        commit = Writer._commit

        def commit_when_open(writer: Writer, changes: list[writer.Change]) -> list[str | None]:
            self._reached.set()
            assert self._open.wait(10)
            return commit(writer, changes)

        monkeypatch.setattr(Writer, "_commit", commit_when_open)

    def shut(self) -> None:
        self._reached.clear()
        self._open.clear()

    async def reached(self) -> None:
        await to_thread.run_sync(self._reached.wait, 5)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Another program writes to the database meanwhile."""
    with closing(sqlite3.connect(directory / "cache.db", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A locked database is waited for only shortly."""
    monkeypatch.setattr(rows_module, "LOCK_WAIT_S", 0.2)
    monkeypatch.setattr(writer, "RETRY_S", 0.2)


@pytest.fixture
async def full(directory: Path, clock: ManualClock) -> AsyncIterator[DiskStore]:
    """A store on a disk that is full."""
    async with opened(directory, clock) as store:
        for _ in range(20):
            await store.create(a_task(clock, owner="before"))
    sql(
        directory, "INSERT INTO Settings VALUES ('sqlite_max_page_count', 1)"
    )  # SQLite takes the present size
    async with opened(directory, clock) as store:
        yield store


def make_room(directory: Path) -> None:
    sql(directory, "UPDATE Settings SET value = 100000 WHERE key = 'sqlite_max_page_count'")


# Restart


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


def stream_until_killed(directory: Path, durability: Durability) -> list[list[str]]:
    """What a child said that created and completed tasks until it was killed."""
    command = [sys.executable, "-m", "tests.stores.child", "stream", str(directory), durability]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(400)]
        child.send_signal(signal.SIGKILL)
        return [line.split() for line in [*lines, *child.stdout]]


@pytest.mark.parametrize("durability", Durability)
async def test_what_was_acknowledged_survives_kill_9(
    directory: Path, clock: ManualClock, durability: Durability
) -> None:
    """I3: every acknowledged creation and end is there, byte for byte, after a kill in full flight."""
    said = stream_until_killed(directory, durability)
    created = {int(number) for word, number in said if word == "created"}
    ended = {int(number) for word, number in said if word == "completed"}
    assert len(ended) > 100
    async with opened(directory, clock, durability) as store:
        for number in created:
            task = await store.get(numbered_task(number).id)
            assert task == numbered_end(number) or (task == numbered_task(number) and number not in ended)


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


# One writer


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


# Faults


async def test_a_bad_change_does_not_fail_its_neighbours(
    store: DiskStore, clock: ManualClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_row = BytesDisk.store

    def refuse_poison(disk: BytesDisk, value: bytes, read: bool, key: object = None) -> object:
        if b"poison" in value:
            raise sqlite3.DataError("string or blob too big")
        return store_row(disk, value, read, key)

    monkeypatch.setattr(BytesDisk, "store", refuse_poison)
    outcomes: list[str] = []

    async def create(name: str) -> None:
        try:
            await store.create(a_task(clock, name=name))
            outcomes.append(name)
        except StoreError as exc:
            outcomes.append(exc.message)

    gate.shut()
    async with anyio.create_task_group() as group:
        for name in ("first", "poison", "last"):
            group.start_soon(create, name)
        await gate.reached()
        gate.open()
    assert outcomes == ["first", "the task store cannot be written: string or blob too big", "last"]
    assert [task.name for task in await store.owned("alice")] == ["first", "last"]


async def test_on_a_full_disk_nothing_changes_until_there_is_room(
    full: DiskStore, directory: Path, clock: ManualClock
) -> None:
    """Contract section 9, "disk full": no id is given out, a task stays as it was, and later all goes on."""
    old = (await full.owned("before"))[0]
    large = completed(old, clock, b"1" * RESULT_IN_ROW_MAX)
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(StoreError, match="cannot be written: database or disk is full"):
                await full.compare_and_set(old, large)
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(refused, full, a_task(clock, status_message="x" * 5_000))
    assert [log["event"] for log in logs] == ["store_write_failed"]
    assert await full.get(old.id) == old
    assert await full.owned("alice") == []
    make_room(directory)
    await full.compare_and_set(old, large)
    assert await full.get(old.id) == large
    await full.check()


async def refused(store: DiskStore, task: Task) -> None:
    with pytest.raises(StoreError, match="disk is full"):
        await store.create(task)


async def test_the_file_of_a_result_whose_row_failed_is_removed(
    store: DiskStore, directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task(clock)
    await store.create(task)
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "_try", lambda writer, changes: "disk i/o error")
        with pytest.raises(StoreError, match="disk i/o error"):
            await store.compare_and_set(task, completed(task, clock, LARGE))
        with pytest.raises(StoreError):
            await store.check()  # behind the removal of the file
    assert result_files(directory) == []
    await store.compare_and_set(task, end := completed(task, clock, LARGE))
    assert await store.get(task.id) == end


async def test_a_result_file_that_cannot_be_written_leaves_the_task_as_it_was(
    store: DiskStore, directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task(clock)
    await store.create(task)

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("proxy.stores.results.seal", no_space)
        with pytest.raises(StoreError, match="cannot be written: no space left on device"):
            await store.compare_and_set(task, completed(task, clock, LARGE))
        with pytest.raises(StoreError, match="no space left on device"):
            await store.check()
    assert await store.get(task.id) == task
    assert result_files(directory) == []
    await store.compare_and_set(task, end := completed(task, clock, LARGE))
    assert await store.get(task.id) == end


async def test_a_directory_that_turned_read_only_is_named_by_the_check(
    store: DiskStore, directory: Path
) -> None:
    (directory / "results").rmdir()
    (directory / "results").touch()
    with pytest.raises(StoreError, match="cannot be written: not a directory"):
        await store.check()


async def test_a_database_that_is_locked_for_three_seconds_is_waited_for(
    store: DiskStore, directory: Path, clock: ManualClock
) -> None:
    """F13 (a): 100 creations meet a lock of another process, and all succeed."""
    hold = (
        "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN EXCLUSIVE'); print('locked', flush=True); time.sleep(3); c.execute('ROLLBACK')"
    )
    command = [sys.executable, "-c", hold, str(directory / "cache.db")]
    async with await anyio.open_process(command) as other:
        assert other.stdout is not None
        assert await BufferedByteReceiveStream(other.stdout).receive_until(b"\n", 100) == b"locked"
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(store.create, a_task(clock))
    assert len(await store.owned("alice")) == 100


async def test_a_database_that_stays_locked_is_an_error_and_no_change(
    impatient: None, directory: Path, clock: ManualClock
) -> None:
    old, new = a_task(clock), a_task(clock)
    async with opened(directory, clock) as store:
        await store.create(old)
        with locked(directory):
            with pytest.raises(StoreError, match="cannot be written: database is locked"):
                await store.create(new)
            with pytest.raises(StoreError, match="database is locked"):
                await store.check()
            with pytest.raises(TaskNotFound):
                await store.get(new.id)
        await store.create(new)
        await store.compare_and_set(old, end := completed(old, clock))
        assert [await store.get(task.id) for task in (old, new)] == [end, new]


async def test_when_the_first_of_two_changes_fails_the_other_is_made(
    store: DiskStore, clock: ManualClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task(clock)
    await store.create(task)
    attempt = Writer._try
    faults = iter(["disk i/o error"])
    monkeypatch.setattr(
        Writer, "_try", lambda writer, changes: next(faults, None) or attempt(writer, changes)
    )

    async def fail_first() -> None:
        with pytest.raises(StoreError, match="disk i/o error"):
            await store.compare_and_set(task, completed(task, clock))

    gate.shut()
    async with anyio.create_task_group() as group:
        group.start_soon(fail_first)
        await gate.reached()
        group.start_soon(store.compare_and_set, task, end := cancelled(task, clock))
        gate.open()
    assert await store.get(task.id) == end


async def test_a_disk_that_hangs_is_an_error_within_a_bound(
    store: DiskStore, clock: ManualClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6"""
    monkeypatch.setattr(disk, "WRITE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(disk, "CHECK_TIMEOUT_S", 0.05)
    task = a_task(clock)
    gate.shut()
    with pytest.raises(StoreError, match=r"did not answer within 0\.05 s"):
        await store.create(task)
    with pytest.raises(StoreError, match="did not answer"):
        await store.create(task)  # its turn does not come
    with pytest.raises(StoreError, match="did not answer"):
        await store.check()
    gate.open()
    await store.check()
    assert await store.get(task.id) == task


async def test_a_disk_that_hangs_does_not_hold_up_the_end_of_the_proxy(
    directory: Path, clock: ManualClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "CLOSE_TIMEOUT_S", 0.05)
    with capture_logs() as logs:
        async with opened(directory, clock) as store:
            gate.shut()
            with anyio.move_on_after(0.01):
                await store.create(a_task(clock))
    assert [log["event"] for log in logs] == ["store_abandoned"]
    with pytest.raises(ConfigError, match="in use"):  # the hanging thread may still write
        async with opened(directory, clock):
            pass
    gate.open()
    await to_thread.run_sync(_wait_for_thread, store._writer)


def _wait_for_thread(writer: Writer) -> None:
    """The thread's last act is to close the cache, after which nothing of it is left to warn about."""
    while not writer.stopped.is_set():
        threading.Event().wait(0.01)


# Results


async def test_a_small_result_stays_in_the_row_and_a_large_one_gets_a_private_file(
    store: DiskStore, directory: Path, clock: ManualClock
) -> None:
    small, large = a_task(clock), a_task(clock)
    for task, result in ((small, b"1" * RESULT_IN_ROW_MAX), (large, b"1" * (RESULT_IN_ROW_MAX + 1))):
        await store.create(task)
        await store.compare_and_set(task, completed(task, clock, result))
    (file,) = (directory / "results").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert large.id not in file.name
    assert on_disk(directory, large.id) == replace(completed(large, clock), result=None)


@pytest.mark.parametrize("result", [RESULT, LARGE])
async def test_a_result_that_was_damaged_while_we_ran_is_an_error_and_not_served(
    store: DiskStore, directory: Path, clock: ManualClock, result: bytes
) -> None:
    """TX-GET-010"""
    task = a_task(clock)
    await store.create(task)
    await store.compare_and_set(task, completed(task, clock, result))
    for file in (directory / "results").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    sql(directory, "UPDATE Cache SET value = CAST(substr(value, 1, length(value) - 1) AS BLOB)")
    with pytest.raises(StoreError, match="cannot be read: checksum does not match"):
        await store.get(task.id)
    for file in (directory / "results").iterdir():
        file.unlink()
    sql(directory, "DELETE FROM Cache")
    with pytest.raises(
        StoreError, match="the result of the task cannot be read: (no such file|its row is missing)"
    ):
        await store.get(task.id)


async def test_a_pickle_planted_while_we_run_is_not_loaded(
    store: DiskStore, directory: Path, clock: ManualClock
) -> None:
    task = a_task(clock)
    await store.create(task)
    await store.compare_and_set(task, completed(task, clock))
    sql(directory, "UPDATE Cache SET mode = 4")
    with pytest.raises(StoreError, match="bytes only"):
        await store.get(task.id)


async def test_an_error_does_not_quote_what_is_stored(
    store: DiskStore, directory: Path, clock: ManualClock
) -> None:
    task = a_task(clock)
    await store.create(task)
    await store.compare_and_set(task, completed(task, clock))
    sql(directory, "UPDATE Cache SET value = CAST(value AS TEXT)")
    with pytest.raises(StoreError, match="cannot be read: unreadable row$"):
        await store.get(task.id)


async def test_a_task_that_expires_while_its_result_is_read_is_gone(
    store: DiskStore, directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = a_task(clock)
    await store.create(task)
    await store.compare_and_set(task, completed(task, clock, LARGE))
    reading, go_on = threading.Event(), threading.Event()
    read = ResultFiles.read

    def read_slowly(files: ResultFiles, name: str) -> bytes:
        reading.set()
        assert go_on.wait(5)
        return read(files, name)

    monkeypatch.setattr(ResultFiles, "read", read_slowly)

    async def get() -> None:
        with pytest.raises(TaskNotFound):
            await store.get(task.id)

    async with anyio.create_task_group() as group:
        group.start_soon(get)
        await to_thread.run_sync(reading.wait, 5)
        await clock.advance(TTL_MS / 1000)
        assert await store.expire() == 1
        go_on.set()


async def test_a_sweep_spares_a_file_whose_row_is_still_to_come(
    store: DiskStore, directory: Path, clock: ManualClock, gate: Gate
) -> None:
    task = a_task(clock)
    await store.create(task)
    stray = directory / "results" / new_name(task.id)
    stray.write_bytes(b"left by a crash")
    gate.shut()
    async with anyio.create_task_group() as group:
        group.start_soon(store.compare_and_set, task, end := completed(task, clock, LARGE))
        await gate.reached()
        await store.expire()
        assert not stray.exists()
        gate.open()
    assert await store.get(task.id) == end


async def test_a_task_of_a_newer_version_is_refused_and_kept(directory: Path, clock: ManualClock) -> None:
    async with opened(directory, clock) as store:
        await store.create(task := a_task(clock))
    sealed = seal(b"new ways", FORMAT + 1) + b"new ways"
    sql(directory, "UPDATE Cache SET value = ?", sealed)
    async with opened(directory, clock) as store:
        for refused in (
            partial(store.get, task.id),
            partial(store.compare_and_set, task, completed(task, clock)),
            partial(store.note, task, moved(task, clock)),
        ):
            with pytest.raises(StoreError, match="stored by a newer version of mcp-taskproxy"):
                await refused()
        with pytest.raises(TaskConflict):
            await store.create(task)
        assert await store.owned("alice") == []
        await clock.advance(TTL_MS)
        await store.expire()
    assert sql(directory, "SELECT value FROM Cache") == [(sealed,)]


# Notes


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


# Files


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
