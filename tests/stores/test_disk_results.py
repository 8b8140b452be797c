"""Where the disk store keeps results, and that it serves them whole or not at all.

Holds TX-GET-010 and T25-SEC-007 where they concern the store; field report F11; the contract's section 8.
"""

from __future__ import annotations

import shutil
import stat
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from proxy.errors import StoreError, TaskConflict, TaskNotFound
from proxy.stores import results
from proxy.stores.changes import RESULT_IN_ROW_MAX
from proxy.stores.disk import DiskStore
from proxy.stores.encryption import Keys
from proxy.stores.records import FORMAT, Record, encode, pack, seal
from proxy.stores.results import ResultFiles, new_name
from tests.manual_clock import ManualClock
from tests.stores.disks import LARGE, Gate, on_disk, opened, result_files, sql
from tests.stores.records import (
    RESULT,
    TTL_MS,
    a_task,
    completed,
    moved,
)

pytestmark = pytest.mark.anyio


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


async def test_without_its_result_a_task_is_read_though_the_disk_is_gone(
    store: DiskStore, directory: Path, clock: ManualClock
) -> None:
    tasks = [a_task(clock) for _ in range(2)]
    for task, result in zip(tasks, (RESULT, LARGE), strict=True):
        await store.create(task)
        await store.compare_and_set(task, completed(task, clock, result))
    shutil.rmtree(directory)
    for task in tasks:
        assert await store.get(task.id, result=False) == replace(completed(task, clock), result=None)
        with pytest.raises(StoreError, match="cannot be read"):
            await store.get(task.id)


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
        StoreError, match=r"the result of the task cannot be read: (no such file|its row is missing)"
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
    with pytest.raises(StoreError, match=r"cannot be read: OperationalError of the driver$"):
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


async def test_a_task_of_a_newer_version_is_not_there_and_kept(directory: Path, clock: ManualClock) -> None:
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
            with pytest.raises(TaskNotFound):  # I5: whose it is cannot be known
                await refused()
        with pytest.raises(TaskConflict):
            await store.create(task)
        assert await store.owned("alice") == []
        await clock.advance(TTL_MS)
        await store.expire()
    assert sql(directory, "SELECT value FROM Cache") == [(sealed,)]


async def test_checks_at_once_do_not_disturb_each_other(
    store: DiskStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two readiness probes: the second writes while the first does."""
    files = ResultFiles(directory, synced=False)

    disturbed = False

    def meanwhile(content: bytes, place: bytes, keys: Keys) -> Sequence[bytes | memoryview]:
        nonlocal disturbed
        disturbed = True
        monkeypatch.setattr(results, "pack", pack)
        files.try_write()
        return pack(content, place, keys)

    monkeypatch.setattr(results, "pack", meanwhile)
    files.try_write()
    assert disturbed
    assert result_files(directory) == []


async def test_what_a_killed_check_left_is_swept(store: DiskStore, directory: Path) -> None:
    for name in ("check", f"check-{'0' * 16}"):
        (directory / "results" / name).touch()
    (directory / "results" / "check-list").touch()
    await store.expire()
    assert result_files(directory) == ["check-list"]


async def test_a_row_that_somebody_exchanged_is_not_served_as_the_tasks_result(
    store: DiskStore, directory: Path, clock: ManualClock
) -> None:
    """It is sound, and of this task, but not of the state that is known: an older one, say."""
    task = a_task(clock)
    await store.create(task)
    await store.compare_and_set(task, end := completed(task, clock))
    assert await store.get(task.id) == end
    other = encode(Record(task=replace(end, tool_error="no")))
    sql(directory, "UPDATE Cache SET value = ? WHERE key = ?", other, task.id.encode())
    with pytest.raises(StoreError, match="cannot be read: its row holds another state"):
        await store.get(task.id)
    assert await store.get(task.id, result=False) == replace(end, result=None)
