"""What is left of a store's directory is noticed, and a sound one is not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.clock import SystemClock
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.results import RESULTS_NAME
from tests.faults.store_files import store_faults
from tests.manual_clock import ManualClock
from tests.stores.disks import LARGE
from tests.stores.records import a_task, completed

pytestmark = pytest.mark.anyio


async def filled(store: Path) -> Path:
    """A store with a task whose result has a file of its own; that file."""
    async with DiskStore(store, durability=Durability.PROCESS, clock=SystemClock()) as opened:
        clock = ManualClock()
        task = a_task(clock, retention_ms=10**15)
        await opened.create(task)
        await opened.compare_and_set(task, completed(task, clock, LARGE))
    [file] = (store / RESULTS_NAME).iterdir()
    return file


async def test_a_sound_store_has_no_faults_and_strays_are_swept(tmp_path: Path) -> None:
    file = await filled(tmp_path / "store")
    stray = file.with_name(file.name[:-4] + "0000")
    stray.write_bytes(b"half")
    assert await store_faults(tmp_path / "store") == []
    assert not stray.exists()


async def test_a_file_that_no_sweep_takes_is_left_over(tmp_path: Path) -> None:
    file = await filled(tmp_path / "store")
    file.with_name("foreign").write_bytes(b"")
    [violation] = await store_faults(tmp_path / "store")
    assert "1 result files of no task" in violation.words


async def test_a_record_that_was_set_aside_is_a_fault(tmp_path: Path) -> None:
    file = await filled(tmp_path / "store")
    file.write_bytes(b"torn")
    words = [violation.words for violation in await store_faults(tmp_path / "store")]
    assert "records were set aside as damaged" in words


async def test_a_table_of_damaged_rows_is_a_fault(tmp_path: Path) -> None:
    await filled(tmp_path / "store")
    with closing(sqlite3.connect(tmp_path / "store" / "cache.db")) as database, database:
        database.execute("CREATE TABLE Damaged (x)")
    assert len(await store_faults(tmp_path / "store")) == 1
