"""What a start does with a directory that cannot be written, and with a database that is damaged.

Contract section 9: disk full or store broken; all records, all terminal results. Issue 5, "Store faults":
never crash the start, never served half.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.errors import ConfigError, StoreError, TaskNotFound
from proxy.stores.directory import SECRET_NAME, DirectoryInUse
from proxy.stores.opening import open_store
from proxy.stores.snapshot import connect
from proxy.tasks.task import Task
from tests.manual_clock import ManualClock
from tests.stores.child import numbered_end, numbered_task
from tests.stores.disks import opened, result_files
from tests.stores.full import digest

pytestmark = pytest.mark.anyio

CLOCK: Final = ManualClock()
ENDED: Final = 12  # the first, the sixth and the eleventh have results in files
RUNNING: Final = 3
FULL: Final = "the task store cannot be written: "
NOT_FOUND: Final = TaskNotFound.MESSAGE


def expected() -> dict[str, Task]:
    """What `fill` leaves."""
    tasks = [numbered_end(n) for n in range(ENDED)] + [numbered_task(n) for n in range(100, 100 + RUNNING)]
    return {task.id: task for task in tasks}


async def fill(directory: Path, *, killed: bool) -> None:
    """Some tasks of every kind; `killed`: as `kill -9` leaves the directory, its log full of commits."""
    made = directory.with_name("made")
    async with opened(made, CLOCK) as store:
        for number in range(ENDED):
            await store.create(numbered_task(number))
            await store.compare_and_set(numbered_task(number), numbered_end(number))
        for number in range(100, 100 + RUNNING):
            await store.create(numbered_task(number))
        await store.remember("session/1", b"known", keep_s=60)
        if killed:
            shutil.copytree(made, directory)
    if not killed:
        made.rename(directory)


def play(directory: Path, begin: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.stores.full", str(directory), begin]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def started_full(directory: Path, begin: str = "full") -> tuple[dict[str, Any], dict[str, Any]]:
    """What a process says that can write nothing; and what it says once it can."""
    done = play(directory, begin)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    return shown["full"], shown["free"]


# -- nothing can be written --------------------------------------------------------------------------


@pytest.mark.parametrize(("killed", "begin"), [(False, "full"), (True, "full"), (False, "open")])
async def test_on_a_full_disk_what_is_there_is_served_and_no_id_given_out(
    directory: Path, killed: bool, begin: str
) -> None:
    """From the start on, or later. Once there is room, the same process goes on as if nothing had been."""
    await fill(directory, killed=killed)
    records = {task_id: digest(task) for task_id, task in expected().items()}
    secret = base64.b64encode((directory / SECRET_NAME).read_bytes()).decode()

    full, free = await anyio.to_thread.run_sync(started_full, directory, begin)

    for shown in (full, free):
        assert {key: value for key, value in shown["tasks"].items() if key in records} == records
        assert shown["remembered"] == ["session/1"]
        assert shown["secret"] == secret
    assert full["counts"] == {"working": RUNNING, "completed": ENDED}
    assert full["check"].startswith(FULL)
    assert full["create"].startswith(FULL)
    assert full["known"] == NOT_FOUND
    assert (free["check"], free["create"], free["known"], free["expire"]) == ("ok", "ok", "ok", "ok")
    async with opened(directory, CLOCK) as store:
        assert await store.get(numbered_task(900).id) == numbered_task(900)
        for task_id, task in expected().items():
            assert await store.get(task_id) == task


@pytest.mark.parametrize("exists", [False, True])
async def test_a_first_start_on_a_full_disk_waits_for_room(directory: Path, exists: bool) -> None:
    """What the owners of tasks are told apart by is the same before and after, and after a restart."""
    if exists:
        os.mkdir(directory, 0o700)
    full, free = await anyio.to_thread.run_sync(started_full, directory)
    assert full["tasks"] == {}
    assert full["create"].startswith(FULL)
    assert free["create"] == "ok"
    assert full["secret"] == free["secret"]
    async with opened(directory, CLOCK) as store:
        assert base64.b64encode(await store.secret()).decode() == full["secret"]
        assert await store.get(numbered_task(900).id) == numbered_task(900)


async def test_a_full_disk_does_not_let_two_into_one_directory(directory: Path) -> None:
    await fill(directory, killed=False)
    async with opened(directory, CLOCK):
        done = await anyio.to_thread.run_sync(play, directory, "full")
    assert "DirectoryInUse" in done.stderr


def test_what_never_was_a_store_and_cannot_be_one_is_the_operators_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: int = 0o777) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigError, match="cannot be used: Permission denied"):
        open_store(tmp_path / "store", CLOCK, synced=False)


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """A file system of its own at `place`, with what is there now, that cannot be written."""
    kept = place.with_name("kept")
    place.rename(kept)
    place.mkdir()
    mounted = subprocess.run(["mount", "--bind", "-o", "ro", kept, place], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"may not mount here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_store_on_a_read_only_file_system_is_read(directory: Path, killed: bool) -> None:
    await fill(directory, killed=killed)
    with read_only(directory), capture_logs() as logs:
        async with opened(directory, CLOCK) as store:
            for task_id, task in expected().items():
                assert await store.get(task_id) == task
            with pytest.raises(StoreError, match=r"cannot be written: (unable to open|attempt to write)"):
                await store.check()
            with pytest.raises(StoreError, match="cannot be written"):
                await store.create(numbered_task(900))
            with pytest.raises(DirectoryInUse):
                open_store(directory, CLOCK, synced=False)
    assert [log["event"] for log in logs] == ["store_not_writable", "store_write_failed"]


# -- what is read without writing ----------------------------------------------------------------------


def rows_of(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    with closing(connection):
        return connection.execute("SELECT k, v FROM t ORDER BY k").fetchall()


@pytest.mark.parametrize("seed", range(8))
def test_a_snapshot_has_what_sqlite_itself_would_find(tmp_path: Path, seed: int) -> None:
    """Whatever of the log is a left-over of earlier use, uncommitted, or torn."""
    chance, database = random.Random(seed), tmp_path / "a" / "cache.db"
    database.parent.mkdir()
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {chance.choice([512, 4096])}")
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute(f"PRAGMA wal_autocheckpoint = {chance.choice([5, 1000])}")
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
        for _ in range(chance.randrange(40)):
            connection.execute("BEGIN")
            for _ in range(chance.randrange(1, 5)):
                row = chance.randrange(50), chance.randbytes(chance.choice([10, 9_000]))
                connection.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", row)
            connection.execute("DELETE FROM t WHERE k = ?", (chance.randrange(50),))
            connection.execute(chance.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
        connection.execute("BEGIN")
        connection.execute("INSERT OR REPLACE INTO t VALUES (99, zeroblob(300000))")  # beyond the page cache
        for copy in ("b", "c"):
            shutil.copytree(database.parent, tmp_path / copy)
    log = tmp_path / "b" / "cache.db-wal"
    torn = log.read_bytes()[: chance.choice([None, -1, -5_000])]
    for copy in ("b", "c"):
        (tmp_path / copy / "cache.db-wal").write_bytes(torn)
    before = sorted((file.name, file.read_bytes()) for file in (tmp_path / "b").iterdir())
    snapshot = rows_of(connect(tmp_path / "b" / "cache.db"))
    assert sorted((file.name, file.read_bytes()) for file in (tmp_path / "b").iterdir()) == before
    assert snapshot == rows_of(sqlite3.connect(tmp_path / "c" / "cache.db"))


# -- a damaged database ----------------------------------------------------------------------------------


async def serves_what_is_whole(directory: Path) -> int:
    """How many records are served; each is as it was, and the store can be used."""
    whole = 0
    async with opened(directory, CLOCK) as store:
        for task_id, task in expected().items():
            try:
                assert await store.get(task_id) == task
                whole += 1
            except TaskNotFound:
                continue
        await store.check()
        await store.create(numbered_task(900))
    async with opened(directory, CLOCK) as store:
        assert await store.get(numbered_task(900).id) == numbered_task(900)
        assert sum((await store.counts()).values()) == whole + 1
    return whole


async def test_what_is_no_database_is_moved_away_and_the_start_goes_on(directory: Path) -> None:
    await fill(directory, killed=False)
    garbage = b"not a database" * 1000
    (directory / "cache.db").write_bytes(garbage)
    files = result_files(directory)
    with capture_logs() as logs:
        assert await serves_what_is_whole(directory) == 0
    [said] = [log for log in logs if log["event"] == "database_set_aside"]
    assert (said["log_level"], said["rows_kept"]) == ("error", 0)
    assert (Path(said["moved_to"]) / "cache.db").read_bytes() == garbage
    assert [name for name in result_files(directory) if name.removesuffix(".damaged") in files] == [
        f"{name}.damaged" for name in files
    ]


async def test_a_second_damaged_database_does_not_take_the_place_of_the_first(directory: Path) -> None:
    await fill(directory, killed=False)
    for number in (1, 2):
        (directory / "cache.db").write_bytes(b"garbage %d" % number * 1000)
        async with opened(directory, CLOCK):
            pass
        assert (directory / f"damaged-{number}" / "cache.db").read_bytes().startswith(b"garbage %d" % number)


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_page_is_damaged_what_is_served_is_whole(directory: Path, seed: int) -> None:
    """And what is in sound pages is mostly still there."""
    await fill(directory, killed=seed % 2 == 0)
    chance, database = random.Random(seed), directory / "cache.db"
    raw = bytearray(database.read_bytes())
    for _ in range(chance.choice([1, 3])):
        start = chance.randrange(len(raw))
        raw[start : start + 64] = chance.randbytes(len(raw[start : start + 64]))
    database.write_bytes(raw[: len(raw) - chance.choice([0, 0, 4096])])
    await serves_what_is_whole(directory)


async def test_rows_before_and_behind_a_damaged_page_are_kept(directory: Path) -> None:
    await fill(directory, killed=False)
    database = directory / "cache.db"
    with closing(sqlite3.connect(database)) as connection:
        [(root,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'Cache'").fetchall()
        connection.execute("PRAGMA journal_mode = delete")
    raw = bytearray(database.read_bytes())
    page = raw[(root - 1) * 4096 : root * 4096]
    assert page[0] == 5, "the table has several pages, and this one names them"
    first = int.from_bytes(page[-4:], "big")
    leaf = int.from_bytes(page[int.from_bytes(page[12:14], "big") :][:4], "big")
    assert leaf != first
    raw[(leaf - 1) * 4096 : leaf * 4096] = b"\xff" * 4096
    database.write_bytes(raw)
    assert 0 < await serves_what_is_whole(directory) < ENDED + RUNNING


async def test_an_index_that_lies_is_made_anew(directory: Path) -> None:
    """Reading needs no index, so that such damage would otherwise only show when something is written."""
    await fill(directory, killed=False)
    database = directory / "cache.db"
    with closing(sqlite3.connect(database)) as connection:
        [(root,)] = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'Cache_key_raw'"
        ).fetchall()
    raw = bytearray(database.read_bytes())
    raw[(root - 1) * 4096 : root * 4096] = b"\xff" * 4096
    database.write_bytes(raw)
    with capture_logs() as logs:
        assert await serves_what_is_whole(directory) == ENDED + RUNNING
    assert [log["rows_kept"] for log in logs if log["event"] == "database_set_aside"] == [ENDED + RUNNING + 1]
