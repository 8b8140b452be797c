"""Where a disk store lives: its directory, its secret and its table, as far as they can be had.

Above: `opening`, which reads what is there; `writer` and `disk`, which use the table. Below: `directory`,
`rows`, `repair`. A place that cannot be written at the start, since the disk is full or read-only, is made
whole by the first write that succeeds; so is a damaged one. Until then what was read without a write stands
in for the table. Everything here blocks and runs in a thread. Contract section 9 (disk full, store broken).
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path

import structlog
from diskcache import Cache
from diskcache.core import DBNAME

from proxy.stores import repair
from proxy.stores.directory import SECRET_BYTES, HeldDirectory
from proxy.stores.encrypting import expect_plain
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.faults import is_damaged
from proxy.stores.results import ResultFiles
from proxy.stores.rows import open_cache, stay_connected

_log = structlog.get_logger()


class Place:
    """One store directory. `synced`: what is written there survives power cuts; `keys`: with which it is
    encrypted. `held` is None as long as there is nothing that could be held; `secret` is then one that
    `make_whole` writes down."""

    def __init__(self, path: Path, *, synced: bool, keys: Keys = NO_KEYS) -> None:
        self.path = path
        self.synced = synced
        self.keys = keys
        self.results = ResultFiles(path, synced=synced, keys=keys)
        self.held: HeldDirectory | None = None
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._cache: Cache | None = None
        self._stays: sqlite3.Connection | None = None
        self._kept: Mapping[bytes, bytes] = {}

    def __repr__(self) -> str:
        return f"<Place {str(self.path)!r} {'whole' if self.is_whole else 'not writable'}>"

    @property
    def is_whole(self) -> bool:
        return self._cache is not None

    def hold(self) -> HeldDirectory:
        """Make the directory, if need be, and keep others out. Raises ConfigError, DirectoryInUse."""
        if self.held is None:
            self.held = HeldDirectory(self.path)
        return self.held

    def make_whole(self) -> Cache:
        """All that a store needs, made where it is missing; its table, which each thread closes for itself.

        Raises ConfigError, OSError, sqlite3.Error or StoreError; may then be tried again.
        """
        if self._cache is None:
            self.secret = self.hold().secret(self.secret)
            self.results.make_directory()
            self._cache = self._whole_table()
            self._kept = {}
        if self._stays is None:
            self._stays = stay_connected(self.path)
        return self._cache

    def _whole_table(self) -> Cache:
        try:
            return self._filled_table()
        except sqlite3.DatabaseError as exc:
            if not is_damaged(exc):
                raise
        repair.begin(self.path)
        return self._filled_table()

    def _filled_table(self) -> Cache:
        """With all that an earlier attempt to repair it has left to do."""
        repair.go_on(self.path)
        if not (self.path / DBNAME).exists() and not repair.unfinished(self.path) and self.results.exist():
            _log.error("database_missing", directory=str(self.path))
            repair.begin(self.path)  # there is nothing to move; but no result is swept without being kept
        cache = open_cache(self.path, synced=self.synced)
        try:
            if not self.keys:
                expect_plain(self.path)  # before the first write, whenever that can be made
            repair.refill(self.path, cache)
        except BaseException:
            cache.close()
            raise
        return cache

    def begin_anew(self) -> None:
        """The table turned out to be damaged: `make_whole` makes another, with what can be read of this one.

        Raises OSError.
        """
        self.disconnect()
        self._cache = None
        repair.begin(self.path)

    def sweep(self, names: list[str], named: Collection[str], untouchable: Collection[str]) -> None:
        """Remove those result files of `names` that are not in `named`, the files of all records, and belong
        to no task in `untouchable`, which are given as `records.stand_in` does.

        After a repair they may be all that is left of their tasks: then they are set aside. Raises OSError.
        """
        if not repair.unfinished(self.path):
            self.results.remove_strays(names, named, untouchable)
            return
        is_refilled = self.is_whole
        self.results.set_strays_aside(names, named, untouchable)
        if is_refilled:
            repair.finish(self.path)

    def stand_in(self, kept: Mapping[bytes, bytes]) -> None:
        """Until the place is whole these are its rows, and its secret is the one that is there."""
        self._kept = kept
        if self.held is not None:
            self.secret = self.held.kept_secret() or self.secret

    def row(self, key: bytes) -> bytes | None:
        """What stands in the table now. Raises sqlite3.Error."""
        if self._cache is None:
            return self._kept.get(key)
        try:
            row: bytes | None = self._cache.get(key)
        finally:
            self._cache.close()
        return row

    def close(self) -> None:
        """Close this thread's connection."""
        if self._cache is not None:
            self._cache.close()

    def disconnect(self) -> None:
        """Close this thread's connection, and last the one that stays. The table can be used again."""
        stays, self._stays = self._stays, None
        self.close()
        if stays is not None:
            stays.close()

    def release(self) -> None:
        """Leave it to others."""
        self.disconnect()
        if self.held is not None:
            self.held.release()
            self.held = None
