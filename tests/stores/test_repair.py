"""A damaged database is repaired, whatever comes between. Contract section 9; issue 5, "Store faults"."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.errors import StoreError
from proxy.stores import place as place_module
from proxy.stores import repair, rows
from proxy.stores.repair import unfinished
from tests.stores.child import numbered_task
from tests.stores.disks import opened, result_files
from tests.stores.full import digest
from tests.stores.test_opening import (
    CLOCK,
    ENDED,
    FULL,
    RUNNING,
    expected,
    fill,
    read_only,
    started_full,
)

pytestmark = pytest.mark.anyio

_PAGE = 4096


def damage_index(directory: Path) -> None:
    """Every row can still be read."""
    database = directory / "cache.db"
    with closing(sqlite3.connect(database)) as connection:
        [(root,)] = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'Cache_key_raw'"
        ).fetchall()
    raw = bytearray(database.read_bytes())
    raw[(root - 1) * _PAGE : root * _PAGE] = b"\xff" * _PAGE
    database.write_bytes(raw)


def damage_all(directory: Path) -> None:
    (directory / "cache.db").write_bytes(b"not a database" * 1000)


def remove(directory: Path) -> None:
    """As a repair of an earlier version left the directory when it was killed."""
    (directory / "cache.db").unlink()


def found_after_kills(directory: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.stores.killed", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


async def test_two_kills_within_a_repair_lose_nothing(directory: Path) -> None:
    """At whatever steps they come. I3."""
    await fill(directory, killed=False)
    files = result_files(directory)
    damage_index(directory)
    found = await anyio.to_thread.run_sync(found_after_kills, directory)
    assert len(found) > 2 * 15, "there were that many steps to kill it at"
    whole = {
        "tasks": {"working": RUNNING, "completed": ENDED},
        "results": files,
        "aside": ["damaged-1"],
    }
    assert [f for f in found if f != whole] == []


@pytest.mark.parametrize("destroy", [damage_all, remove])
async def test_two_kills_within_a_repair_leave_the_results_of_lost_tasks(
    directory: Path, destroy: Any
) -> None:
    """They are all that is left: they stay, set aside."""
    await fill(directory, killed=False)
    files = [f"{name}.damaged" for name in result_files(directory)]
    destroy(directory)
    found = await anyio.to_thread.run_sync(found_after_kills, directory)
    assert len(found) > 2 * 8
    assert [f for f in found if f["tasks"] or f["results"] != files] == []


async def test_a_disk_that_fills_up_within_a_repair_costs_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be read is served; the log names the disk; once there is room, the same process goes on."""
    await fill(directory, killed=False)
    files = result_files(directory)
    damage_index(directory)
    open_cache = rows.open_cache

    def full(*arguments: Any, **named: Any) -> Any:
        if unfinished(directory):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return open_cache(*arguments, **named)

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(place_module, "open_cache", full)
        async with opened(directory, CLOCK) as store:
            for task_id, task in expected().items():
                assert await store.get(task_id) == task
            with pytest.raises(StoreError, match="no space left on device"):
                await store.create(numbered_task(900))
            await store.expire()
            assert result_files(directory) == files
            patched.undo()
            await store.create(numbered_task(900))
            for task_id, task in expected().items():
                assert await store.get(task_id) == task
            assert unfinished(directory)
            await store.expire()
            assert not unfinished(directory)
    [said] = [log for log in logs if log["event"] == "store_not_writable"]
    assert said["reason"] == "no space left on device"
    assert result_files(directory) == files
    async with opened(directory, CLOCK) as store:
        for task_id, task in {**expected(), numbered_task(900).id: numbered_task(900)}.items():
            assert await store.get(task_id) == task


async def test_a_damaged_database_on_a_full_disk_is_served_and_repaired_once_there_is_room(
    directory: Path,
) -> None:
    await fill(directory, killed=False)
    damage_index(directory)
    records = {task_id: digest(task) for task_id, task in expected().items()}
    full, free = await anyio.to_thread.run_sync(started_full, directory)
    for shown in (full, free):
        assert {key: value for key, value in shown["tasks"].items() if key in records} == records
        assert shown["remembered"] == ["session/1"]
    assert full["create"].startswith(FULL)
    assert (free["check"], free["create"], free["known"], free["expire"]) == ("ok", "ok", "ok", "ok")


@pytest.mark.parametrize("begun", [False, True])
async def test_a_damaged_database_that_cannot_be_written_is_served(directory: Path, begun: bool) -> None:
    """`begun`: the repair was interrupted after the move."""
    await fill(directory, killed=False)
    damage_index(directory)
    if begun:
        repair.begin(directory)
    with read_only(directory), capture_logs() as logs:
        async with opened(directory, CLOCK) as store:
            for task_id, task in expected().items():
                assert await store.get(task_id) == task
            assert await store.recall("session/1") == b"known"
    events = {log["event"]: log for log in logs}
    assert "database_damaged" in events
    assert events["store_not_writable"]["reason"] in ("unable to open database file", "read-only file system")


async def test_what_is_no_database_and_cannot_be_written_starts_all_the_same(directory: Path) -> None:
    await fill(directory, killed=False)
    (directory / "cache.db").write_bytes(b"garbage")
    with read_only(directory):
        async with opened(directory, CLOCK) as store:
            assert await store.owned("alice") == []


async def test_a_disk_that_is_full_while_the_damaged_one_is_read_ends_no_repair(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where SQLite cannot even read, since the disk is full, the rows are not counted as lost."""
    await fill(directory, killed=False)
    damage_index(directory)

    class Refusing:
        """A connection."""

        text_factory: object = str

        def execute(self, *_: object) -> None:
            fault = sqlite3.OperationalError("unable to open database file")
            fault.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise fault

        def close(self) -> None:
            pass

    class Sqlite:
        connect = staticmethod(lambda *_, **__: Refusing())

    with monkeypatch.context() as patched:
        patched.setattr(repair, "sqlite3", Sqlite)
        async with opened(directory, CLOCK) as store:
            assert len(await store.owned("alice")) == ENDED + RUNNING
    assert unfinished(directory)
    async with opened(directory, CLOCK) as store:
        for task_id, task in expected().items():
            assert await store.get(task_id) == task


async def test_a_new_database_that_is_damaged_before_the_repair_ended_is_repaired_too(
    directory: Path,
) -> None:
    await fill(directory, killed=False)
    damage_index(directory)
    repair.begin(directory)
    damage_all(directory)
    async with opened(directory, CLOCK) as store:
        for task_id, task in expected().items():
            assert await store.get(task_id) == task
    assert sorted(name for name in os.listdir(directory) if "damaged" in name) == ["damaged-1", "damaged-2"]
