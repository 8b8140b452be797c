"""Encrypts with the first key what a store holds already, and wipes what that leaves behind.

Above: `opening`, before anything is read. Below: `scan`, `records`, `memos`, `results`. It is done where keys
were turned on, or a new one was put first. The rows say what is left to do, their keys too, for an id can act
as a bearer token; the header of the database says for which first key its unused parts were wiped.
Records that are damaged, or locked by another key, are left as they are. Contract section 8.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import structlog
from diskcache.core import DBNAME

from proxy.stores import memos
from proxy.stores.encryption import Keys
from proxy.stores.faults import is_damaged, reason_of
from proxy.stores.records import (
    UNREADABLE,
    DamagedData,
    decode,
    encode,
    is_as_written_now,
    row_key,
)
from proxy.stores.results import RESULTS_NAME, ResultFiles, check_name, new_name
from proxy.stores.rows import CHECK_KEY, LOCK_WAIT_S
from proxy.stores.scan import Row, all_rows

_NOT_WIPED: Final = 0  # something may be plain, or left of what was; what a new database says
_AT_ONCE: Final = 100  # rows of one transaction, whose results are written before it

_log = structlog.get_logger()


def expect_plain(directory: Path) -> None:
    """What is written from now on is not encrypted: the next start that has keys must wipe it. Raises
    sqlite3.Error; then nothing may be written."""
    with closing(_connect(directory)) as connection:
        if _mark(connection) != _NOT_WIPED:
            _set_mark(connection, _NOT_WIPED)


def encrypt_rest(directory: Path, results: ResultFiles, keys: Keys) -> None:
    """May be killed and repeated at any point. Where it cannot be written, as on a full disk, the rest waits
    for the next start. Raises sqlite3.DatabaseError if the database is damaged."""
    done = int.from_bytes(keys.first_id[:4], "big", signed=True)
    with closing(_connect(directory)) as connection:
        try:
            mark = _mark(connection)
            count, damaged = _encrypt(directory, connection, results, keys)
            if count or mark != done:
                _wipe(connection)
                _tell_of_damaged(directory, connection, results)
                _set_mark(connection, _NOT_WIPED if damaged else done)
        except (OSError, sqlite3.Error) as exc:
            if is_damaged(exc):
                raise
            _log.error("store_not_encrypted", reason=reason_of(exc), meaning=_NOT_ENCRYPTED)
            return
    if count:
        _log.info("records_encrypted", count=count)


_NOT_ENCRYPTED: Final = "some records are not encrypted with the first key yet; the next start tries again"
_TAKES_TIME: Final = "once, after a change of keys; a large store takes a while"


def _encrypt(
    directory: Path, connection: sqlite3.Connection, results: ResultFiles, keys: Keys
) -> tuple[int, int]:
    """How many rows were encrypted, and how many are damaged."""
    count = damaged = 0
    with closing(_connect(directory)) as reading:
        others = _other_rows(reading, keys)
        while rows := list(islice(others, _AT_ONCE)):
            changes, old_files = list[tuple[bytes, bytes, int]](), list[str]()
            for row in rows:
                try:
                    key, value, old_file = _encrypted(row, results, keys)
                except UNREADABLE:
                    continue
                except (DamagedData, FileNotFoundError):
                    damaged += 1  # `load` sets it aside, and the next start wipes where it was
                else:
                    changes.append((key, value, row.rowid))
                    old_files += [] if old_file is None else [old_file]
            if changes and not count:
                _log.info("records_being_encrypted", meaning=_TAKES_TIME)
                _set_mark(connection, _NOT_WIPED)  # also for a start after this one is killed
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("UPDATE Cache SET key = ?, value = ? WHERE rowid = ?", changes)
            for name in old_files:
                results.remove(name)
            count += len(changes)
    return count, damaged


def _other_rows(connection: sqlite3.Connection, keys: Keys) -> Iterator[Row]:
    for row in all_rows(connection):
        if row.is_plain and row.key != CHECK_KEY and not is_as_written_now(row.key, row.value, keys):
            yield row


def _encrypted(row: Row, results: ResultFiles, keys: Keys) -> tuple[bytes, bytes, str | None]:
    """Key and value of what takes its place, and the result file that nothing names then. Raises DamagedData,
    NewerFormat, MissingKey or OSError."""
    if memos.is_row_key(row.key):
        return row.key, memos.encode(memos.decode(row.key, row.value, keys), keys), None
    record = decode(row.key, row.value, keys)
    key, task_id, old_file = row_key(record.task.id, keys), record.task.id, record.result_file
    if old_file is not None:
        check_name(old_file, task_id)
        new_file = new_name(task_id)
        size = results.write(new_file, results.read(old_file))
        record = msgspec.structs.replace(record, result_file=new_file, result_size=size)
    return key, encode(record, keys, key), old_file


def _wipe(connection: sqlite3.Connection) -> None:
    """Nothing of what was there before stays in unused parts of the database, or in its log."""
    connection.execute("VACUUM")
    ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if busy:
        raise sqlite3.OperationalError("another program reads the database")


def _tell_of_damaged(directory: Path, connection: sqlite3.Connection, results: ResultFiles) -> None:
    """What was set aside for people is left to them."""
    found = [path.name for path in directory.glob("damaged-*")]
    found += [f"{RESULTS_NAME}/*.damaged"] * any(name.endswith(".damaged") for name in results.names())
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'Damaged'")
    found += [f"table {name} of {DBNAME}" for (name,) in tables]
    if found:
        _log.warning("damaged_records_not_encrypted", places=", ".join(sorted(found)), meaning=_SET_ASIDE)


_SET_ASIDE: Final = "set aside earlier, as they were; look at them or remove them"


def _connect(directory: Path) -> sqlite3.Connection:
    return sqlite3.connect(directory / DBNAME, timeout=LOCK_WAIT_S, isolation_level=None)


def _mark(connection: sqlite3.Connection) -> int:
    ((mark,),) = connection.execute("PRAGMA application_id")
    assert isinstance(mark, int)
    return mark


def _set_mark(connection: sqlite3.Connection, mark: int) -> None:
    connection.execute(f"PRAGMA application_id = {mark}")
