"""The disk store in trouble: full, locked, hanging, one bad row; never a half change, never a hang.

Holds field report F13; the contract's sections 1 (I3, I6) and 9 ("store broken").
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint
from anyio.streams.buffered import BufferedByteReceiveStream
from structlog.testing import capture_logs

from proxy.errors import ConfigError, StoreError, TaskNotFound
from proxy.metrics import Metrics
from proxy.stores import disk, writer
from proxy.stores import rows as rows_module
from proxy.stores.changes import RESULT_IN_ROW_MAX
from proxy.stores.disk import DiskStore
from proxy.stores.disk_threads import MOST_THREADS
from proxy.stores.place import Place
from proxy.stores.results import ResultFiles
from proxy.stores.rows import BytesDisk
from proxy.stores.writer import Change, Writer
from proxy.tasks.task import Task
from tests.manual_clock import ManualClock
from tests.scrape import Scraped
from tests.stores.disks import LARGE, Gate, locked, on_disk, opened, result_files, sql
from tests.stores.records import (
    a_task,
    cancelled,
    completed,
    progressed,
)

pytestmark = pytest.mark.anyio


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
    assert outcomes == ["first", "the task store cannot be written: DataError of the driver", "last"]
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


async def test_commits_and_failures_are_counted_and_what_waits_is_shown(
    directory: Path, clock: ManualClock, gate: Gate
) -> None:
    metrics = Metrics()
    async with opened(directory, clock, metrics=metrics) as store:
        before = Scraped.of(metrics)
        await store.create(a_task(clock))
        scraped = Scraped.of(metrics)
        assert scraped.value("store_commits_total") == before.value("store_commits_total") + 1
        assert scraped.value("store_commit_duration_seconds_count") == scraped.value("store_commits_total")
        async with anyio.create_task_group() as group:
            gate.shut()
            group.start_soon(store.create, a_task(clock))
            await gate.reached()  # that one is on its way; these wait for the next commit
            for _ in range(3):
                group.start_soon(store.create, a_task(clock))
            await anyio.wait_all_tasks_blocked()
            assert Scraped.of(metrics).value("store_queue") == 3
            gate.open()
        assert Scraped.of(metrics).value("store_queue") == 0
        (directory / "cache.db").unlink()
        with pytest.raises(StoreError, match="removed"):
            await store.create(a_task(clock))
        assert Scraped.of(metrics).value("store_failures_total") == 1


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

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("proxy.stores.results.pack", no_space)
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


async def test_a_lock_is_not_waited_for_once_for_each_change(
    impatient: None, directory: Path, clock: ManualClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Writer._try
    attempts: list[int] = []

    def count(writer: Writer, changes: list[Change]) -> str | None:
        attempts.append(len(changes))
        return attempt(writer, changes)

    monkeypatch.setattr(Writer, "_try", count)

    async def create(store: DiskStore) -> None:
        with pytest.raises(StoreError, match="database is locked"):
            await store.create(a_task(clock))

    async with opened(directory, clock) as store:
        gate.shut()
        with locked(directory):
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(create, store)
                await gate.reached()
                gate.open()
        assert len(attempts) <= 3
        assert await store.owned("alice") == []


async def test_what_there_was_no_time_to_try_is_not_told_as_made(
    store: DiskStore, directory: Path, clock: ManualClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3. The disk is full for a moment, then slow: one of the changes is made, and then the time is over."""
    attempt = Writer._try
    now_s = 0.0

    def full_then_slow(tried: Writer, changes: list[Change]) -> str | None:
        nonlocal now_s
        if len(changes) > 1:
            return "database or disk is full"
        now_s += writer.RETRY_S
        return attempt(tried, changes)

    monkeypatch.setattr(Writer, "_try", full_then_slow)
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: now_s))
    outcomes: dict[str, str] = {}

    async def create(task: Task) -> None:
        try:
            await store.create(task)
            outcomes[task.id] = "made"
        except StoreError as exc:
            outcomes[task.id] = exc.message

    gate.shut()
    async with anyio.create_task_group() as group:
        group.start_soon(create, before := a_task(clock))
        await gate.reached()
        tasks = [a_task(clock) for _ in range(4)]
        for task in tasks:
            group.start_soon(create, task)
        await anyio.wait_all_tasks_blocked()
        gate.open()
    refusal = "the task store cannot be written: database or disk is full"
    assert [outcomes[task.id] for task in tasks] == ["made", refusal, refusal, refusal]
    for task in (before, *tasks):
        assert (on_disk(directory, task.id) is not None) is (outcomes[task.id] == "made")
    assert [task.id for task in await store.owned("alice")] == [before.id, tasks[0].id]


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
    task = a_task(clock)
    gate.shut()
    with monkeypatch.context() as patched:
        patched.setattr(disk, "WRITE_TIMEOUT_S", 0.05)
        patched.setattr(disk, "CHECK_TIMEOUT_S", 0.05)
        with pytest.raises(StoreError, match=r"did not answer within 0\.05 s"):
            await store.create(task)
        with pytest.raises(StoreError, match="did not answer"):
            await store.create(task)  # its turn does not come
        with pytest.raises(StoreError, match="did not answer"):
            await store.check()
    gate.open()
    await store.check()
    assert await store.get(task.id) == task


async def test_reads_that_hang_take_a_bounded_number_of_threads(
    store: DiskStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6. Beyond that they are refused at once; and once the disk answers, all is well again."""
    task = a_task(clock)
    await store.create(task)
    await store.compare_and_set(task, end := completed(task, clock, LARGE))
    answers, begun, over = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
    read = ResultFiles.read

    def hang(files: ResultFiles, name: str) -> bytes:
        begun.release()
        answers.wait(20)
        result = read(files, name)
        over.release()
        return result

    with monkeypatch.context() as patched:
        patched.setattr(ResultFiles, "read", hang)
        for _ in range(MOST_THREADS):
            async with anyio.create_task_group() as group:
                group.start_soon(store.get, task.id)
                assert await to_thread.run_sync(begun.acquire, True, 5)
                group.cancel_scope.cancel()
        for _ in range(3):
            with pytest.raises(StoreError, match="does not answer"):
                await store.get(task.id)
        with pytest.raises(StoreError, match="does not answer"):
            await store.check()
        answers.set()
        for _ in range(MOST_THREADS):
            assert await to_thread.run_sync(over.acquire, True, 5)
        while True:
            try:
                assert await store.get(task.id) == end
                break
            except StoreError:  # the last is just going
                await checkpoint()


async def test_the_event_loop_asks_the_disk_nothing(
    store: DiskStore, directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for one that hangs. I6"""
    task = a_task(clock)
    loop, asked = threading.get_ident(), list[str]()
    watching = True

    def seen(event: str, arguments: tuple[object, ...]) -> None:
        if watching and threading.get_ident() == loop and str(directory) in str(arguments):
            asked.append(event)

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        seen("stat", (path,))
        return os.stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    sys.addaudithook(seen)
    await store.create(task)
    await store.compare_and_set(task, end := completed(task, clock, LARGE))
    assert await store.get(task.id) == end
    await store.check()
    await store.expire()
    watching = False
    assert asked == []


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
    with anyio.fail_after(5):
        await store._writer.stopped.wait()


@pytest.mark.parametrize("name", ["cache.db", "cache.db-wal"])
async def test_a_store_whose_files_were_removed_gives_out_no_id_that_would_be_lost(
    directory: Path, clock: ManualClock, name: str
) -> None:
    """I3: what is written to a file that nobody finds again is not stored."""
    kept: list[Task] = []
    async with opened(directory, clock) as store:
        kept.append(a_task(clock))
        await store.create(kept[0])
        os.unlink(directory / name)
        later = a_task(clock)
        if name == "cache.db":
            with pytest.raises(StoreError, match="removed or replaced"):
                await store.create(later)
            with pytest.raises(StoreError, match="removed or replaced"):
                await store.check()
            return
        await store.create(later)
        kept.append(later)
    async with opened(directory, clock) as store:
        for task in kept:
            assert await store.get(task.id) == task


async def test_where_the_log_was_removed_what_is_acknowledged_survives_a_kill(
    directory: Path, clock: ManualClock
) -> None:
    """I3: what stood in the log that is gone, and what was stored since."""
    kept = [a_task(clock) for _ in range(3)]
    async with opened(directory, clock) as store:
        await store.create(kept[0])
        os.unlink(directory / "cache.db-wal")
        for task in kept[1:]:
            await store.create(task)
        shutil.copytree(directory, directory.with_name("killed"))
    async with opened(directory.with_name("killed"), clock) as store:
        assert await store.owned("alice") == kept


async def test_a_note_that_fails_while_the_store_closes_is_let_be(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing more is queued then, though it is a second later."""
    closing, goes_on = threading.Event(), threading.Event()
    disconnect = Place.disconnect

    def slowly(place: Place) -> None:
        closing.set()
        assert goes_on.wait(10)
        disconnect(place)

    async def use() -> None:
        async with opened(directory, clock) as store:
            await store.create(task := a_task(clock))
            await store.note(task, progressed(task, clock, "1/2"))
            monkeypatch.setattr(Place, "disconnect", slowly)
            monkeypatch.setattr(Writer, "_try", lambda writer, changes: "disk i/o error")

    async with anyio.create_task_group() as group:
        group.start_soon(use)
        assert await to_thread.run_sync(closing.wait, 10)
        for _ in range(3):
            await clock.advance(1)
        goes_on.set()
