"""Reads every row of a table that is still readable, also where the database is damaged.

Above: `rows` and `repair`. Below: SQLite alone. Rows come as they stand, unread: each has a seal of its own.
Contract section 9: a record is served whole or not at all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final, NamedTuple

from diskcache.core import MODE_RAW

from proxy.stores.faults import hinders_readers

_ROWS: Final = """
    SELECT rowid, key, value,
        raw = 1 AND mode = ? AND filename IS NULL AND typeof(key) = 'blob' AND typeof(value) = 'blob'
    FROM Cache
"""


class Row(NamedTuple):
    """`is_plain`: key and value are bytes, as we write them; of any other row neither may be looked at."""

    rowid: int
    key: bytes
    value: bytes
    is_plain: bool


def all_rows(connection: sqlite3.Connection) -> Iterator[Row]:
    """Raises sqlite3.Error where the database is damaged."""
    connection.text_factory = bytes  # a planted text need not be UTF-8
    yield from map(Row._make, connection.execute(_ROWS, (MODE_RAW,)))


def readable_rows(connection: sqlite3.Connection) -> Iterator[Row]:
    """From the front up to the first damage, then from the back; a row in between is lost.

    Raises sqlite3.Error only where it is not the database that keeps them from being read.
    """
    connection.text_factory = bytes
    last = 0
    for row in _until_damage(connection, "ASC", last):
        last = row.rowid
        yield row
    yield from _until_damage(connection, "DESC", last)


def _until_damage(connection: sqlite3.Connection, order: str, after: int) -> Iterator[Row]:
    statement = f"{_ROWS} WHERE rowid > ? ORDER BY rowid {order}"
    try:
        yield from map(Row._make, connection.execute(statement, (MODE_RAW, after)))
    except UnicodeDecodeError:  # of an error that quotes what is no text
        return
    except sqlite3.Error as exc:
        if hinders_readers(exc):
            raise
