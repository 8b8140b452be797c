"""What a disk store does at start, in one thread: take the directory, read what it holds, sweep it.

Above: `disk`. Below: `directory`, `rows`, `results`. Contract section 9 (restart: all records, all terminal
results).
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from diskcache import Cache

from proxy.clock import Clock
from proxy.errors import StoreError
from proxy.stores.directory import HeldDirectory, unusable
from proxy.stores.index import Index
from proxy.stores.memos import Memos
from proxy.stores.results import ResultFiles
from proxy.stores.rows import load, open_cache


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A directory that is ours until `held` is released, and what was in it (as in `rows.Loaded`)."""

    held: HeldDirectory
    secret: bytes
    results: ResultFiles
    cache: Cache
    index: Index
    files: dict[str, str]
    newer: frozenset[str]
    memos: Memos


def open_store(directory: Path, clock: Clock, *, synced: bool) -> OpenStore:
    """Raises ConfigError if the directory cannot be used, with one line that names it."""
    held = HeldDirectory(directory)
    try:
        return _open(held, clock, synced=synced)
    except BaseException as exc:
        held.release()
        if isinstance(exc, (OSError, sqlite3.Error, StoreError)):
            raise unusable(directory, exc) from exc
        raise


def _open(held: HeldDirectory, clock: Clock, *, synced: bool) -> OpenStore:
    secret = held.secret()
    results = ResultFiles(held.path, synced=synced)
    results.make_directory()
    cache = open_cache(held.path, synced=synced)
    cache.close()  # this thread's connection
    loaded = load(held.path, results, clock)
    results.remove_strays(results.names(), loaded.files.values(), loaded.newer)
    return OpenStore(
        held=held,
        secret=secret,
        results=results,
        cache=cache,
        index=loaded.index,
        files=loaded.files,
        newer=frozenset(loaded.newer),
        memos=Memos(loaded.memos),
    )
