"""The one writer of a disk store: takes changes in order and commits those that wait together.

Above: `changes`. Below: `place`, whose table (diskcache) it alone writes. A commit costs about the same for
one row as for hundreds, so whatever is queued while one commit runs shares the next. The writer alone tells
that a change happened: it is settled in the event loop after its commit, whether or not anybody still waits.
Contract section 1 (I3).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import anyio
import structlog
from anyio import CapacityLimiter, from_thread, to_thread
from diskcache import Cache, Timeout
from diskcache.core import DBNAME

from proxy.errors import ConfigError, StoreError
from proxy.metrics import UNSERVED, Metrics
from proxy.stores.faults import reason_of, root
from proxy.stores.place import Place
from proxy.stores.rows import LOCK_WAIT_S, check_connection

BATCH_SIZE: Final = 256  # more would keep the event loop for milliseconds when they settle at once
RETRY_S: Final = LOCK_WAIT_S  # where already the batch took that long to fail, it is the disk, not a change

_LOST: Final = "the database file was removed or replaced while it was in use"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Change:
    """One row to be replaced, or removed if `row` is None.

    `settle` is called in the event loop with None once the change is durable, else with the reason why
    it was not made. `new_file` is a result file that nothing names if the change fails, `old_file` one
    that nothing names once it is made. `old_key` is of a row that goes with it.
    """

    key: bytes
    row: bytes | None
    settle: Callable[[str | None], None]
    new_file: str | None = None
    old_file: str | None = None
    old_key: bytes | None = None


class Writer:
    """Commits changes in the order in which they were queued."""

    def __init__(self, place: Place, metrics: Metrics = UNSERVED) -> None:
        self._metrics = metrics
        self._place = place
        self._queue: SimpleQueue[Change | None] = SimpleQueue()
        self.closed = False
        self._connected = False
        self._failing = False
        self._database = place.path / DBNAME
        self._opened = _identity(self._database) if place.is_whole else None
        self._log_file: tuple[int, int] | None = None  # the write-ahead log of this connection
        self.commits = 0
        self.stopped = anyio.Event()

    @property
    def queued(self) -> int:
        """How many changes wait for a commit to begin."""
        return self._queue.qsize()

    async def run(self) -> None:
        """Serve until `close`. Cancelling leaves the thread to itself; it still ends at `close`."""
        await to_thread.run_sync(self._work, abandon_on_cancel=True, limiter=CapacityLimiter(1))

    def queue(self, change: Change) -> None:
        """Raises StoreError after `close`."""
        if self.closed:
            raise StoreError("the task store is closed")
        self._queue.put(change)

    def close(self) -> None:
        """Take no more; `stopped` is set once all that was queued is settled."""
        self.closed = True
        self._queue.put(None)

    def _work(self) -> None:
        try:
            while changes := self._next_batch():
                reasons = self._commit(changes)
                from_thread.run_sync(_settle, changes, reasons)
                self._remove_files(changes, reasons)
        finally:
            self._place.disconnect()
            from_thread.run_sync(self.stopped.set)

    def _next_batch(self) -> list[Change]:
        """Wait for a change and take what waits with it. Empty after the last."""
        changes: list[Change] = []
        while (change := self._queue.get()) is not None:
            changes.append(change)
            if len(changes) == BATCH_SIZE or self._queue.empty():
                return changes
        if changes:
            self._queue.put(None)  # the end comes after these
        return changes

    def _commit(self, changes: list[Change]) -> list[str | None]:
        """For each change why it could not be made, or None. A bad one does not fail its neighbours.

        Once the time is over, those not tried alone were not made for the reason that all were not.
        """
        until = time.monotonic() + RETRY_S
        reason = self._try(changes)
        if reason is None or len(changes) == 1:
            return [reason] * len(changes)
        return [self._try([change]) if time.monotonic() < until else reason for change in changes]

    def _try(self, changes: list[Change]) -> str | None:
        """Make all of the changes in one transaction, or none; then the reason is returned."""
        began = time.monotonic()
        try:
            self._check_place()
            self._leave_lost_log()
            cache = self._open()
            with cache.transact():
                for change in changes:
                    if change.old_key is not None:
                        cache.delete(change.old_key)
                    if change.row is None:
                        cache.delete(change.key)
                    else:
                        cache.set(change.key, change.row)
        except (sqlite3.Error, Timeout, OSError, StoreError, ConfigError) as exc:
            return self._recover(exc)
        self._metrics.committed(time.monotonic() - began)
        self._failing = False
        self._log_file = self._log_file or _identity(self._log_path)
        self.commits += 1
        return None

    def _open(self) -> Cache:
        """The table, also where it could not be had at the start."""
        was_whole = self._place.is_whole
        cache = self._place.make_whole()
        if not was_whole:
            _log.info("store_writable_again")
        self._opened = self._opened or _identity(self._database)
        if self._opened is None:
            raise StoreError(_LOST)
        if not self._connected:
            check_connection(cache, synced=self._place.synced)
            self._connected = True
        return cache

    @property
    def _log_path(self) -> Path:
        return self._place.path / f"{DBNAME}-wal"

    def _check_place(self) -> None:
        """Raises StoreError if the database was removed or replaced: nobody would find what is written."""
        if self._opened is not None and _identity(self._database) != self._opened:
            raise StoreError(_LOST)

    def _leave_lost_log(self) -> None:
        """If the log was removed, close: that moves what stands in it into the database. Then begin anew."""
        if self._log_file is not None and _identity(self._log_path) != self._log_file:
            self._place.disconnect()
            self._connected = False
            self._log_file = None

    def _recover(self, exc: Exception) -> str:
        """Leave no transaction open: diskcache does not roll back when the commit itself fails."""
        self._metrics.commit_failed()
        self._place.close()
        self._connected = False
        self._log_file = None
        reason = reason_of(root(exc))
        if not self._failing:
            _log.error("store_write_failed", reason=reason)
        self._failing = True
        return reason

    def _remove_files(self, changes: list[Change], reasons: list[str | None]) -> None:
        for change, reason in zip(changes, reasons, strict=True):
            unnamed = change.old_file if reason is None else change.new_file
            if unnamed is not None:
                self._place.results.remove(unnamed)


def _settle(changes: list[Change], reasons: list[str | None]) -> None:
    for change, reason in zip(changes, reasons, strict=True):
        change.settle(reason)


def _identity(file: Path) -> tuple[int, int] | None:
    """Which file stands under this name; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
