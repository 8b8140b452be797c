"""Where a disk store lives: its directory, its secret and its table, as far as they can be had.

Above: `opening`, which reads what is there; `writer` and `disk`, which use the table. Below: `directory`,
`rows`. A place that cannot be written at the start, since the disk is full or read-only, is made whole by
the first write that succeeds. Until then what was read without a write stands in for the table. Everything
here blocks and runs in a thread. Contract section 9, "disk full or store broken".
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from diskcache import Cache

from proxy.stores.directory import SECRET_BYTES, HeldDirectory
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.results import ResultFiles
from proxy.stores.rows import open_cache, stay_connected


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
            self._cache = open_cache(self.path, synced=self.synced)
            self._kept = {}
        if self._stays is None:
            self._stays = stay_connected(self.path)
        return self._cache

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

    def forget_table(self) -> None:
        """Its file is to be taken away: `make_whole` makes another."""
        self.disconnect()
        self._cache = None

    def release(self) -> None:
        """Leave it to others."""
        self.disconnect()
        if self.held is not None:
            self.held.release()
            self.held = None
