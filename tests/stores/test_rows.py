"""The table holds bytes and nothing else; what else lies in it is neither loaded nor lost.

Contract section 8: "The store never unpickles".
"""

from __future__ import annotations

import pickle  # noqa: TID251 - what an attacker would plant
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.errors import ConfigError, StoreError
from proxy.stores.opening import OpenStore, open_store
from proxy.stores.records import FORMAT, Record, encode, seal, stand_in
from proxy.stores.results import RESULTS_NAME, new_name
from proxy.stores.rows import SYNC_FULL, SYNC_NORMAL, check_connection, open_cache
from proxy.tasks.task import Task
from tests.manual_clock import ManualClock
from tests.stores.records import a_task, completed

CLOCK = ManualClock()
MODE_RAW, MODE_BINARY, MODE_TEXT, MODE_PICKLE = 1, 2, 3, 4


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store directory as a first start leaves it."""
    open_store(tmp_path / "store", CLOCK, synced=False).place.release()
    return tmp_path / "store"


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[bytes]:
    """A pickle that was seen to explode, and must not do so again."""
    marker = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(marker))
    pickle.loads(bomb)
    marker.unlink()
    yield bomb
    assert not marker.exists()


def plant(
    directory: Path,
    key: object,
    value: object,
    *,
    raw: int = 1,
    mode: int = MODE_RAW,
    filename: str | None = None,
) -> None:
    with closing(sqlite3.connect(directory / "cache.db")) as connection, connection:
        connection.execute(
            "INSERT INTO Cache (key, raw, mode, filename, value) VALUES (?, ?, ?, ?, ?)",
            (key, raw, mode, filename, value),
        )


def plant_task(directory: Path, task: Task) -> None:
    plant(directory, task.id.encode(), encode(Record(task=task)))


def rows(directory: Path, table: str = "Cache") -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(directory / "cache.db")) as connection:
        return connection.execute(f"SELECT key, raw, mode, filename, value FROM {table}").fetchall()


def reopened(directory: Path) -> tuple[OpenStore, list[str]]:
    """Open and release; also the reasons for which rows were set aside or refused."""
    with capture_logs() as logs:
        opened = open_store(directory, CLOCK, synced=False)
    opened.place.release()
    return opened, [f"{log['event']}: {log.get('reason', log.get('format'))}" for log in logs]


def test_pickled_rows_are_set_aside_unread(directory: Path, bomb: bytes) -> None:
    task = a_task(CLOCK)
    plant(directory, b"tpx-a", bomb, mode=MODE_PICKLE)
    plant(directory, bomb, encode(Record(task=task)), raw=0)
    (directory / "bomb.val").write_bytes(bomb)
    plant(directory, b"tpx-b", None, mode=MODE_PICKLE, filename="bomb.val")
    plant_task(directory, task)
    planted = rows(directory)
    opened, reasons = reopened(directory)
    assert reasons == ["record_set_aside: it is not plain bytes"] * 3
    assert opened.index.get(task.id) == task
    assert rows(directory, "Damaged") == planted[:3]
    assert (directory / "bomb.val").exists()
    assert reopened(directory)[1] == []


@pytest.mark.parametrize(
    ("key", "value", "mode", "filename"),
    [
        ("tpx-text-key", b"value", MODE_RAW, None),
        (7, b"value", MODE_RAW, None),
        (b"tpx-text-value", "value", MODE_RAW, None),
        (b"tpx-number", 7, MODE_RAW, None),
        (b"tpx-nothing", None, MODE_RAW, None),
        (b"tpx-file", None, MODE_BINARY, "../../outside"),
        (b"tpx-text-file", None, MODE_TEXT, "x.txt"),
        (b"tpx-no-mode", b"value", None, None),
    ],
)
def test_rows_of_other_kinds_are_set_aside(
    directory: Path, key: object, value: object, mode: int, filename: str | None
) -> None:
    plant(directory, key, value, mode=mode, filename=filename)
    assert reopened(directory)[1] == ["record_set_aside: it is not plain bytes"]
    assert (rows(directory), len(rows(directory, "Damaged"))) == ([], 1)


def test_text_that_is_no_utf8_does_not_stop_the_start(directory: Path) -> None:
    with closing(sqlite3.connect(directory / "cache.db")) as connection, connection:
        connection.execute(
            "INSERT INTO Cache (key, raw, mode, value) VALUES (CAST(x'ff' AS TEXT), 1, 1, x'00')"
        )
    assert reopened(directory)[1] == ["record_set_aside: it is not plain bytes"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no seal"),
        (b"tpx\1 half a se", "no seal"),
        (encode(Record(task=a_task(CLOCK)))[:-1], "checksum does not match"),
        (encode(Record(task=a_task(CLOCK))), "it stands under the key of another task"),
        (seal(b"\x80") + b"\x80", "not a task record"),
    ],
)
def test_damaged_records_are_set_aside_whole(directory: Path, data: bytes, reason: str) -> None:
    plant(directory, b"tpx-damaged", data)
    opened, reasons = reopened(directory)
    assert reasons == [f"record_set_aside: {reason}"]
    assert len(opened.index) == 0
    assert [row[4] for row in rows(directory, "Damaged")] == [data]


def test_a_record_of_a_newer_version_stays_where_it_is(directory: Path) -> None:
    task, later = a_task(CLOCK), FORMAT + 1
    plant(directory, task.id.encode(), seal(b"new ways", later) + b"new ways")
    (file := directory / RESULTS_NAME / new_name(task.id)).touch()
    (stray := directory / RESULTS_NAME / new_name("tpx-unknown")).touch()
    before = rows(directory)
    opened, reasons = reopened(directory)
    assert reasons == [f"records_of_newer_format: {later}"]
    assert list(opened.unreadable) == [stand_in(task.id)]
    assert rows(directory) == before
    assert (file.exists(), stray.exists()) == (True, False)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "its result file is missing"),
        (b"", "its result file is torn"),
        (seal(b"12345") + b"1234", "its result file is torn"),
    ],
)
def test_a_missing_or_torn_result_file_takes_its_record_along(
    directory: Path, content: bytes | None, reason: str
) -> None:
    task = a_task(CLOCK)
    end, name = completed(task, CLOCK, b""), new_name(task.id)
    if content is not None:
        (directory / RESULTS_NAME / name).write_bytes(content)
    plant(directory, task.id.encode(), encode(Record(task=end, result_file=name, result_size=5)))
    opened, reasons = reopened(directory)
    assert reasons == [f"record_set_aside: {reason}"]
    assert opened.index.get(task.id) is None
    kept = [file.name for file in (directory / RESULTS_NAME).iterdir()]
    assert kept == ([] if content is None else [f"{name}.damaged"])
    reopened(directory)
    assert [file.name for file in (directory / RESULTS_NAME).iterdir()] == kept


@pytest.mark.parametrize(
    "name", ["../../outside", "check", new_name("tpx-another")], ids=["outside", "check", "another task's"]
)
def test_a_record_cannot_name_a_file_that_is_not_its_own(directory: Path, name: str) -> None:
    task = a_task(CLOCK)
    record = Record(task=completed(task, CLOCK), result_file=name, result_size=5)
    plant(directory, task.id.encode(), encode(record))
    assert reopened(directory)[1] == ["record_set_aside: its result file has a foreign name"]


@pytest.mark.parametrize("thing", ["text", 7, 1.5, None, ["list"], bytearray(b"x")])
def test_the_table_takes_bytes_only(directory: Path, thing: object) -> None:
    with closing(open_cache(directory, synced=False)) as cache:
        with pytest.raises(StoreError, match="bytes only"):
            cache.set(b"key", thing)
        with pytest.raises(StoreError, match="bytes only"):
            cache.set(thing, b"value")
        with pytest.raises(StoreError, match="bytes only"):
            cache.get(thing)
        assert list(cache) == []


def test_the_table_gives_bytes_only(directory: Path, bomb: bytes) -> None:
    plant(directory, b"value", bomb, mode=MODE_PICKLE)
    plant(directory, b"text", "text")
    with closing(open_cache(directory, synced=False)) as cache:
        for key in (b"value", b"text"):
            with pytest.raises(StoreError, match="bytes only"):
                cache.get(key)
        plant(directory, bomb, b"value", raw=0)
        with pytest.raises(StoreError, match="not a pickled key"):
            list(cache)


def test_overwriting_a_planted_row_removes_no_file(directory: Path, tmp_path: Path) -> None:
    (outside := tmp_path / "outside").touch()
    plant(directory, b"key", None, mode=MODE_BINARY, filename="../outside")
    with closing(open_cache(directory, synced=False)) as cache:
        cache.set(b"key", b"value")
        assert cache.get(b"key") == b"value"
    assert outside.exists()


@pytest.mark.parametrize(("synced", "level"), [(True, SYNC_FULL), (False, SYNC_NORMAL)])
def test_a_connection_that_commits_otherwise_than_promised_is_noticed(
    directory: Path, synced: bool, level: int
) -> None:
    with closing(open_cache(directory, synced=synced)) as cache:
        assert cache._sql("PRAGMA synchronous").fetchone() == (level,)
        cache._sql("PRAGMA synchronous = 0")
        with pytest.raises(StoreError, match=rf"\('wal', 0\) instead of \('wal', {level}\)"):
            check_connection(cache, synced=synced)


def test_nothing_is_evicted(directory: Path) -> None:
    with closing(open_cache(directory, synced=False)) as cache:
        cache.reset("size_limit", 1)
        for number in range(50):
            cache.set(str(number).encode(), b"x" * 1000)
        assert len(cache) == 50


def test_a_name_that_would_be_read_as_a_variable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELSEWHERE", "elsewhere")
    with pytest.raises(ConfigError, match="its name holds a variable"):
        open_store(tmp_path / "$ELSEWHERE", CLOCK, synced=False)
