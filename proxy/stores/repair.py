"""Puts a new database in the place of a damaged one, with every row that can still be read.

Above: `opening`. Below: `place`, `rows`. Nothing is thrown away: the damaged files are moved to a directory
beside the new ones, for whoever wants to look at them, and the results of tasks that are lost stay, marked.
Contract section 9; a record is served whole or not at all, since each has its own seal.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import structlog
from diskcache.core import DBNAME, MODE_RAW

from proxy.stores.directory import make_private_directory, sync_directory
from proxy.stores.place import Place

_DAMAGED: Final = "damaged"
_FILES: Final = (DBNAME, f"{DBNAME}-wal", f"{DBNAME}-shm")
_AT_ONCE: Final = 500  # rows in one transaction

_log = structlog.get_logger()

_Row = tuple[int, bytes, bytes]


def begin_anew(place: Place) -> None:
    """The place has a sound database afterwards. Raises OSError or sqlite3.Error if it cannot be written."""
    place.forget_table()
    aside = _move_away(place.path)
    cache = place.make_whole()
    count = 0
    rows = list(_readable_rows(aside / DBNAME))
    for start in range(0, len(rows), _AT_ONCE):
        with cache.transact():
            for _, key, value in rows[start : start + _AT_ONCE]:
                count += bool(cache.add(key, value))
    cache.close()
    _log.error("database_set_aside", moved_to=str(aside), rows_kept=count)


def _move_away(directory: Path) -> Path:
    number = 1
    while (aside := directory / f"{_DAMAGED}-{number}").exists():
        number += 1
    make_private_directory(aside)
    for name in _FILES:
        with suppress(FileNotFoundError):
            (directory / name).rename(aside / name)
    sync_directory(aside)
    sync_directory(directory)
    return aside


def _readable_rows(database: Path) -> Iterator[_Row]:
    """From the front up to the first damage, then from the back; a row in between is lost."""
    last = 0
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.text_factory = bytes
        for row in _rows_until_damage(connection, "ASC", last):
            last = row[0]
            yield row
        yield from _rows_until_damage(connection, "DESC", last)


def _rows_until_damage(connection: sqlite3.Connection, order: str, after: int) -> Iterator[_Row]:
    with suppress(sqlite3.Error, UnicodeDecodeError):  # of an error that quotes what is no text
        yield from connection.execute(
            f"""
            SELECT rowid, key, value FROM Cache
            WHERE rowid > ? AND raw = 1 AND mode = ? AND filename IS NULL
                AND typeof(key) = 'blob' AND typeof(value) = 'blob'
            ORDER BY rowid {order}
            """,  # noqa: S608 - ours
            (after, MODE_RAW),
        )
