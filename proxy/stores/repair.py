"""Puts a new database in the place of a damaged one, with every row that can still be read.

Above: `place` and `opening`. Below: `scan`, `directory`. Nothing is thrown away: the damaged files are moved
to a directory beside the new ones, for whoever wants to look at them, and the results of tasks that are lost
stay, marked. That directory is called unfinished until all of this is done: whatever ends a repair in
between (kill -9, a disk that is full), the next start goes on with it. Contract section 9.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import structlog
from diskcache import Cache
from diskcache.core import DBNAME

from proxy.stores.directory import make_private_directory, sync_directory
from proxy.stores.scan import readable_rows

_UNFINISHED: Final = ".unfinished"
_ASIDE: Final = re.compile(r"damaged-(\d+)(\.unfinished)?\Z")
_FILES: Final = (
    DBNAME,
    f"{DBNAME}-wal",
    f"{DBNAME}-shm",
)  # while the first is not moved, none counts as moved
_AT_ONCE: Final = 500  # rows in one transaction

_log = structlog.get_logger()


def unfinished(directory: Path) -> list[Path]:
    """Where repairs that are not finished have moved what they repair; the latest first."""
    return [aside for _, aside, is_unfinished in reversed(_asides(directory)) if is_unfinished]


def databases(directory: Path) -> list[Path]:
    """The one in use, if it is there, and those that have not been taken over by it; the latest first."""
    return [directory / DBNAME, *(aside / DBNAME for aside in unfinished(directory))]


def begin(directory: Path) -> None:
    """Move the database away, for `refill` and `finish`. It must be closed. Raises OSError."""
    last = max((number for number, _, _ in _asides(directory)), default=0)
    make_private_directory(directory / f"damaged-{last + 1}{_UNFINISHED}")
    sync_directory(directory)
    go_on(directory)


def go_on(directory: Path) -> None:
    """Finish the move, if one was interrupted. Before this nothing may be opened. Raises OSError."""
    for aside in unfinished(directory)[:1]:
        if (aside / DBNAME).exists() and (directory / DBNAME).exists():
            return  # all were moved before there was a new one
        for name in _FILES:
            with suppress(FileNotFoundError):
                (directory / name).rename(aside / name)
        sync_directory(aside)
        sync_directory(directory)


def refill(directory: Path, cache: Cache) -> None:
    """Take over what can be read of what was moved away; what is in `cache` already is newer, and stays.

    May be repeated. Raises sqlite3.Error, Timeout or OSError.
    """
    for aside in unfinished(directory):
        if not (aside / DBNAME).exists():
            continue
        with closing(sqlite3.connect(aside / DBNAME, isolation_level=None)) as connection:
            rows = [row for row in readable_rows(connection) if row.is_plain]
        for start in range(0, len(rows), _AT_ONCE):
            with cache.transact():
                for row in rows[start : start + _AT_ONCE]:
                    cache.add(row.key, row.value)
        _log.error("database_set_aside", moved_to=str(_finished(aside)), rows_kept=len(rows))


def finish(directory: Path) -> None:
    """Once all is taken over, and the results of what is lost are out of danger. Raises OSError."""
    for aside in unfinished(directory):
        aside.rename(_finished(aside)) if any(aside.iterdir()) else aside.rmdir()
        sync_directory(directory)


def _finished(aside: Path) -> Path:
    return aside.with_name(aside.name.removesuffix(_UNFINISHED))


def _asides(directory: Path) -> list[tuple[int, Path, bool]]:
    """The directories of all repairs by number, oldest first, and whether they are unfinished."""
    names = os.listdir(directory) if directory.is_dir() else []
    matches = [match for name in names if (match := _ASIDE.match(name))]
    return sorted((int(match[1]), directory / match[0], match[2] is not None) for match in matches)
