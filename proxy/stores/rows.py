"""The table of a disk store: diskcache, made to hold bytes and nothing else, and how it is read at start.

Above: `opening`, `writer`, `disk`. Below: diskcache and its SQLite file, `records`, `results`. diskcache as
it comes would unpickle whatever lies in its directory; here a row that is not plain bytes under a key of
plain bytes is refused unread. Nothing of diskcache's is used that expires, evicts or writes files.
Contract sections 1 (I3) and 8 ("the store never unpickles").
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import structlog
from diskcache import Cache, Disk
from diskcache.core import DBNAME, MODE_RAW

from proxy.clock import Clock
from proxy.errors import ConfigError, StoreError
from proxy.stores import memos, snapshot
from proxy.stores.directory import make_private_file, sync_directory
from proxy.stores.encryption import NO_KEYS, Keys, MissingKey
from proxy.stores.faults import reason_of
from proxy.stores.index import Index, without_result
from proxy.stores.records import (
    FORMAT,
    DamagedData,
    NewerFormat,
    Record,
    decode,
    is_encrypted,
    row_key,
    stand_in_of_row,
)
from proxy.stores.repair import databases
from proxy.stores.results import ResultFiles, check_name
from proxy.stores.scan import Row, all_rows, readable_rows

CHECK_KEY: Final = b"\0check"  # the row that `check` writes; no task id begins with a zero byte
LOCK_WAIT_S: Final = 5.0  # for another program, such as a backup, that holds the database
SYNC_NORMAL: Final = 1  # fsync at checkpoints: no commit is lost by kill -9, the last ones are by a power cut
SYNC_FULL: Final = 2  # fsync at each commit
UNREAD_KEPT_S: Final = 30 * 86_400.0  # after that nobody will bring the key, or the later version, back
_LARGEST_WAL: Final = 4 << 20  # what stays of the write-ahead log after a burst

_log = structlog.get_logger()


class BytesDisk(Disk):  # type: ignore[misc]  # diskcache has no types
    """Says how diskcache keeps keys and values: bytes as they are, in the row. All else is a StoreError."""

    def put(self, key: object) -> tuple[memoryview, bool]:
        return sqlite3.Binary(_bytes(key)), True

    def get(self, key: object, raw: object) -> bytes:
        return _bytes(key) if raw else _refuse("a pickled key")

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, memoryview]:
        return 0, MODE_RAW, None, sqlite3.Binary(_bytes(value))

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> bytes:
        if mode != MODE_RAW or filename is not None:
            _refuse(f"a value of mode {mode}")
        return _bytes(value)

    def remove(self, file_path: str) -> None:
        """No row of ours has a file; a planted row must not have others' files removed."""


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else _refuse(type(value).__name__)


def _refuse(what: str) -> NoReturn:
    raise StoreError(f"the task store holds bytes only, not {what}")


def open_cache(directory: Path, *, synced: bool) -> Cache:
    """Open the table, making it if need be.

    Each thread has its own connection to it and must call `close` on the cache when it is done. Raises
    ConfigError, OSError or sqlite3.Error if the table cannot be used.
    """
    path = str(directory.absolute())
    if path != os.path.expandvars(path):
        raise ConfigError(f"store directory {path} cannot be used: its name holds a variable")
    make_private_file(directory / DBNAME)  # SQLite gives its other files the same mode
    with closing(sqlite3.connect(directory / DBNAME, timeout=LOCK_WAIT_S)) as connection:
        # What is no database, or cannot be written, fails here; within diskcache it would leave a connection.
        check_whole(connection)
        connection.execute("PRAGMA user_version = 1")
    cache = _cache(path, synced=synced)
    try:
        check_connection(cache, synced=synced)
        if synced:
            sync_directory(directory)
    except BaseException:
        cache.close()
        raise
    return cache


def _cache(path: str, *, synced: bool) -> Cache:
    try:
        return Cache(
            path,
            timeout=LOCK_WAIT_S,
            disk=BytesDisk,
            eviction_policy="none",
            cull_limit=0,
            statistics=0,
            tag_index=0,
            sqlite_journal_mode="wal",
            sqlite_journal_size_limit=_LARGEST_WAL,
            sqlite_synchronous=SYNC_FULL if synced else SYNC_NORMAL,
            sqlite_fullfsync=int(synced),  # macOS, as in `directory.sync_file`
            sqlite_mmap_size=0,  # a read error in mapped memory would kill the process
        )
    except (AttributeError, TypeError, ValueError) as exc:  # settings of its own that it cannot read
        raise _damaged() from exc


def stay_connected(directory: Path) -> sqlite3.Connection:
    """A connection that does nothing but stay; any thread may close it.

    As long as there is one, SQLite keeps the log and its index. Each connection would make them anew if it
    were the only one, which a full disk does not allow: then nothing could be read.
    """
    connection = sqlite3.connect(
        directory / DBNAME, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def check_connection(cache: Cache, *, synced: bool) -> None:
    """Raises StoreError unless this thread's connection commits as durably as promised.

    diskcache sets what it was given on each new connection, but not if it cannot read its settings, and
    SQLite keeps quiet where a file system cannot hold a write-ahead log. There is no public way to ask.
    """
    wanted = ("wal", SYNC_FULL if synced else SYNC_NORMAL)
    found = tuple(cache._sql(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous"))
    if found != wanted:
        raise StoreError(f"its database runs with journal_mode, synchronous = {found} instead of {wanted}")


@dataclass(slots=True)
class Loaded:
    """What was found at start.

    `index` has the tasks without their results, `files` the names of the result files by task id, `memos`
    what is remembered beside the tasks. `row_keys` has, by task id, the keys of the rows that stand elsewhere
    than a new one would. `unreadable` has the rows that a later version wrote, or one with another key, by
    what stands for their tasks: they are left alone. `kept` has the rows whose results are not in the index,
    where they cannot be read again.
    """

    index: Index
    files: dict[str, str] = field(default_factory=dict)
    row_keys: dict[str, bytes] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)
    memos: list[memos.Memo] = field(default_factory=list)
    kept: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        self.index.put(without_result(record.task))
        if record.result_file is not None:
            self.files[record.task.id] = record.result_file


def load(
    directory: Path, results: ResultFiles, clock: Clock, keys: Keys = NO_KEYS, *, wanted_s: float = 0
) -> Loaded:
    """Read all rows, and set aside the damaged ones. Those that cannot be read, and were not
    written for UNREAD_KEPT_S on top of `wanted_s`, are removed. Raises sqlite3.Error if the database itself
    is damaged."""
    with closing(
        sqlite3.connect(directory / DBNAME, timeout=LOCK_WAIT_S, isolation_level=None)
    ) as connection:
        loaded, damaged = _read(all_rows(connection), results, clock, keys, keep=False)
        for rowid, reason in damaged:
            _set_aside(connection, rowid)
            _log.warning("record_set_aside", row=rowid, reason=reason)
        _remove_unreadable(connection, loaded, UNREAD_KEPT_S + wanted_s)
    return loaded


def _remove_unreadable(connection: sqlite3.Connection, loaded: Loaded, kept_s: float) -> None:
    """Those that nobody would want any more, if they could be read. When a row was written is known from
    diskcache, by the system's clock."""
    old = connection.execute(
        "SELECT rowid FROM Cache WHERE store_time < strftime('%s', 'now') - ?", (kept_s,)
    )
    removed = {row for (row,) in old}.intersection(loaded.unreadable.values())
    if not removed:
        return
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("DELETE FROM Cache WHERE rowid = ?", [(row,) for row in removed])
    loaded.unreadable = {task: row for task, row in loaded.unreadable.items() if row not in removed}
    _log.warning("records_removed_unread", count=len(removed))


def load_without_writing(directory: Path, results: ResultFiles, clock: Clock, keys: Keys = NO_KEYS) -> Loaded:
    """Read all rows that can be read of a database that cannot be written; damaged ones are left out, and
    left where they are. Raises OSError if it cannot be read."""
    loaded, damaged = _read(_every_row(directory), results, clock, keys, keep=True)
    for rowid, reason in damaged:
        _log.warning("record_left_out", row=rowid, reason=reason)
    return loaded


def _every_row(directory: Path) -> Iterator[Row]:
    """Also those that a repair has not taken over yet; a newer row goes before an older one of its key."""
    seen = set[bytes]()
    for database in databases(directory):
        with closing(snapshot.connect(database)) as connection:
            _tell_of_damage(connection, database)
            for row in readable_rows(connection):
                if not (row.is_plain and row.key in seen):
                    yield row
                if row.is_plain:
                    seen.add(row.key)


def _tell_of_damage(connection: sqlite3.Connection, database: Path) -> None:
    try:
        check_whole(connection)
    except sqlite3.Error as exc:
        _log.error("database_damaged", database=str(database), reason=reason_of(exc))


def check_whole(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError if pages of the database are damaged, also those that reading spares."""
    try:
        [(found,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
    except UnicodeDecodeError as exc:  # what is told of it quotes what is no text
        raise _damaged() from exc
    if found != "ok":
        raise _damaged()


def _damaged() -> sqlite3.DatabaseError:
    fault = sqlite3.DatabaseError("database disk image is malformed")
    fault.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return fault


def _read(
    rows: Iterable[Row], results: ResultFiles, clock: Clock, keys: Keys, *, keep: bool
) -> tuple[Loaded, list[tuple[int, str]]]:
    """What is in the rows; and which rows are damaged, and how."""
    loaded, damaged = Loaded(Index(clock)), list[tuple[int, str]]()
    locked, newer, not_encrypted = Counter[str](), Counter[int](), 0
    for rowid, key, value, is_plain in rows:
        if is_plain and key == CHECK_KEY:
            continue
        try:
            if not is_plain:
                raise DamagedData("it is not plain bytes")
            if memos.is_row_key(key):
                loaded.memos.append(memos.decode(key, value, keys))
                continue
            record = _checked(key, value, results, keys)
            loaded.add(record)
            if key != row_key(record.task.id, keys):
                loaded.row_keys[record.task.id] = key
            not_encrypted += not is_encrypted(value)
            if keep and record.task.result is not None:
                loaded.kept[key] = value
        except NewerFormat as exc:
            loaded.unreadable[stand_in_of_row(key)] = rowid
            newer[exc.found] += 1
        except MissingKey as exc:
            loaded.unreadable[stand_in_of_row(key)] = rowid
            locked[exc.key_id] += 1
        except DamagedData as exc:
            damaged.append((rowid, str(exc)))
    for key_id, count in locked.items():
        _log.error("records_locked", key=key_id, count=count, meaning=_LOCKED)
    for version, count in newer.items():
        _log.error("records_of_newer_format", format=version, count=count, meaning=_NEWER)
    if keys and not_encrypted:
        _log.warning("records_not_encrypted", count=not_encrypted, meaning=_NOT_ENCRYPTED)
    return loaded, damaged


_LOCKED: Final = "encrypted with a key that store.encryption does not have; to clients they are not there"
_NEWER: Final = f"a later version wrote them, this one reads up to {FORMAT}; to clients they are not there"
_NOT_ENCRYPTED: Final = (
    "stored before store.encryption was set; plain until they change or expire, or a start"
)


def _checked(key: bytes, value: bytes, results: ResultFiles, keys: Keys) -> Record:
    record = decode(key, value, keys)
    if record.result_file is not None:
        check_name(record.result_file, record.task.id)
        try:
            results.check_size(record.result_file, record.result_size)
        except DamagedData:
            results.set_aside(record.result_file)
            raise
    return record


def _set_aside(connection: sqlite3.Connection, rowid: int) -> None:
    """Move a row, unread, to the table `Damaged` for whoever wants to look at it."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE IF NOT EXISTS Damaged AS SELECT * FROM Cache WHERE 0")
    connection.execute("INSERT INTO Damaged SELECT * FROM Cache WHERE rowid = ?", (rowid,))
    connection.execute("DELETE FROM Cache WHERE rowid = ?", (rowid,))
    connection.execute("COMMIT")
