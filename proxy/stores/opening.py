"""What a disk store does at start, in one thread: take the directory, read what it holds, sweep it.

Above: `disk`. Below: `place`, `rows`. A disk that is full or read-only does not keep the start from
reading what is there; a damaged database does not keep it from beginning anew. Contract section 9 (restart:
all records, all terminal results; disk full or store broken).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import structlog

from proxy.clock import Clock
from proxy.errors import ConfigError, StoreError
from proxy.stores import repair
from proxy.stores.directory import unusable
from proxy.stores.encrypting import encrypt_rest
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.faults import is_damaged, is_full, is_unwritable, reason_of, root
from proxy.stores.index import Index
from proxy.stores.memos import Memos
from proxy.stores.place import Place
from proxy.stores.rows import Loaded, load, load_without_writing

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A directory that is ours until `place` is released, and what was in it (as in `rows.Loaded`)."""

    place: Place
    index: Index
    files: dict[str, str]
    unreadable: Collection[str]
    row_keys: dict[str, bytes]
    memos: Memos


def open_store(
    directory: Path, clock: Clock, *, synced: bool, keys: Keys = NO_KEYS, wanted_s: float = 0
) -> OpenStore:
    """`wanted_s`: how long after its last change a task may be of use to anybody. Raises ConfigError if the
    directory cannot be used, with one line that names it."""
    place = Place(directory, synced=synced, keys=keys)
    try:
        loaded = _load(place, clock, wanted_s)
    except BaseException as exc:
        place.release()
        if isinstance(exc, (OSError, sqlite3.Error, StoreError)):
            raise unusable(directory, exc) from exc
        raise
    memos = Memos(loaded.memos)
    return OpenStore(place, loaded.index, loaded.files, loaded.unreadable, loaded.row_keys, memos)


def _load(place: Place, clock: Clock, wanted_s: float) -> Loaded:
    try:
        place.hold()
        loaded = _load_rows(place, clock, wanted_s)
        place.sweep(place.results.names(), loaded.files.values(), loaded.unreadable)
    except (ConfigError, OSError, sqlite3.Error, StoreError) as exc:
        if not _may_begin_without_writing(place, exc):
            raise
        place.disconnect()
        loaded = load_without_writing(place.path, place.results, clock, place.keys)
        place.stand_in(loaded.kept)
        _log.error("store_not_writable", directory=str(place.path), reason=reason_of(root(exc)))
    return loaded


def _load_rows(place: Place, clock: Clock, wanted_s: float) -> Loaded:
    try:
        return _load_whole(place, clock, wanted_s)
    except sqlite3.DatabaseError as exc:
        if not is_damaged(exc):
            raise
    place.begin_anew()
    return _load_whole(place, clock, wanted_s)


def _load_whole(place: Place, clock: Clock, wanted_s: float) -> Loaded:
    place.make_whole().close()  # this thread's connection
    if place.keys and not repair.unfinished(
        place.path
    ):  # else it takes rows over once more, under the keys that they had
        encrypt_rest(place.path, place.results, place.keys)
    return load(place.path, place.results, clock, place.keys, wanted_s=wanted_s)


def _may_begin_without_writing(place: Place, fault: BaseException) -> bool:
    """Whether it is better to serve what can be served than not to start: where a store is read-only that is
    there already, and where a disk is full. A directory that never was one is the operator's mistake."""
    is_there = place.held is not None and any(path.exists() for path in repair.databases(place.path))
    return is_unwritable(fault) if is_there else is_full(fault)
