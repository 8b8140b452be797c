"""The embedded store: tasks in a directory of one machine, on diskcache (`store.url: disk:DIR`).

Above: `routing`, through `stores.base`. Below: `opening` (what a start finds), `changes` and `disk_memos`
(what is written), `results` and `rows` (what is read), and in memory an `index` of all tasks without their
results, so that reading a task that runs touches no disk. Contract sections 1 (I3, I4), 9 and 10.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Self

import anyio
import structlog
from anyio import AsyncContextManagerMixin, to_thread

from proxy.clock import Clock
from proxy.errors import StoreError, TaskConflict
from proxy.metrics import UNSERVED, Metrics
from proxy.stores.base import Observer, Watch
from proxy.stores.changes import Changes, Pending
from proxy.stores.disk_memos import DiskMemos
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.faults import reason_of
from proxy.stores.index import Index
from proxy.stores.memos import Memo, Memos, new_memo
from proxy.stores.opening import OpenStore, open_store
from proxy.stores.records import UNREADABLE, DamagedData, decode, stand_in
from proxy.stores.watching import Watchers
from proxy.stores.writer import Writer
from proxy.tasks.task import Task, TaskStatus

NOTE_INTERVAL_S: Final = 1.0  # how long a note may wait; so progress costs a task one row a second
WRITE_TIMEOUT_S: Final = 30.0  # a disk that hangs must not hang its callers; far above a slow commit
READ_TIMEOUT_S: Final = 10.0  # likewise
CHECK_TIMEOUT_S: Final = 3.0  # a readiness probe waits for it
CLOSE_TIMEOUT_S: Final = 10.0  # to commit what is queued; after that a hanging disk is left behind
_EXPIRE_AT_ONCE: Final = 256  # tasks; between such steps others have their turn

_log = structlog.get_logger()


class Durability(StrEnum):
    """What a commit survives: a power cut, or the end of the process in whatever way (`kill -9`)."""

    POWER = "power"
    PROCESS = "process"


class DiskStore(AsyncContextManagerMixin):
    """Implements `proxy.stores.base.Store`. Entering it opens the directory, or raises ConfigError.

    With `keys` it is encrypted what clients and servers said, and what is remembered beside the tasks. A
    record that cannot be read is not there, for every method: whose it is cannot be known (I5). It is kept
    for the process that can read it, and removed some time after `wanted_s`, which is how long after its last
    change a task may be of use to anybody.

    A caller that is cancelled while it waits, or is told that the store did not answer in time, may find
    its change made later; what the store says then agrees with the disk.
    """

    def __init__(
        self,
        directory: Path,
        *,
        durability: Durability,
        clock: Clock,
        metrics: Metrics = UNSERVED,
        keys: Keys = NO_KEYS,
        wanted_s: float = 0,
    ) -> None:
        self._metrics = metrics
        self._wanted_s = wanted_s
        self._path = directory.absolute()
        self._durability = durability
        self._clock = clock
        self._keys = keys
        self._index = Index(clock)
        self._memos = Memos()
        self._watchers = Watchers()
        self._opened: OpenStore
        self._writer: Writer
        self._changes: Changes
        self._disk_memos: DiskMemos

    @property
    def commits(self) -> int:
        """How many transactions were committed since the store was opened."""
        return self._writer.commits

    @property
    def unreadable(self) -> int:
        """How many records were found that another version of the proxy wrote, or one with another key."""
        return len(self._opened.unreadable)

    def __repr__(self) -> str:
        return f"<DiskStore {str(self._path)!r} {self._durability}, {len(self._index)} tasks>"

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        synced = self._durability is Durability.POWER
        opened = self._opened = await to_thread.run_sync(
            partial(
                open_store, self._path, self._clock, synced=synced, keys=self._keys, wanted_s=self._wanted_s
            )
        )
        self._writer = Writer(opened.place, self._metrics)
        self._metrics.show("store_queue", lambda: self._writer.queued)
        self._index, self._memos = opened.index, opened.memos
        self._changes = Changes(
            opened.index,
            opened.files,
            watchers=self._watchers,
            place=opened.place,
            writer=self._writer,
            keys=self._keys,
            row_keys=opened.row_keys,
        )
        self._disk_memos = DiskMemos(opened.memos, self._writer, self._keys)
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._writer.run)
            group.start_soon(self._flush_regularly)
            try:
                yield self
            except Exception as exc:  # noqa: BLE001 - raised again below, where no group wraps it
                failure = exc
            finally:
                await self._close()
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _close(self) -> None:
        self._changes.flush_notes(all=True)
        self._writer.close()
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await self._writer.stopped.wait()
            self._opened.place.release()
            return
        _log.error("store_abandoned", directory=str(self._path), waited_s=CLOSE_TIMEOUT_S)

    async def _flush_regularly(self) -> None:
        while True:
            await self._changes.wait_for_notes()
            await self._clock.sleep(NOTE_INTERVAL_S)
            if not self._writer.closed:
                self._changes.flush_notes()

    def observe(self, observer: Observer) -> None:
        self._watchers.observer = observer

    async def create(self, task: Task) -> None:
        with _bounded(WRITE_TIMEOUT_S):
            await self._changes.turn(task.id)
            if stand_in(task.id) in self._opened.unreadable:
                raise TaskConflict("task not created: its id is taken")
            self._index.check_create(task)
            await self._changes.put(task)

    async def get(self, task_id: str, *, result: bool = True) -> Task:
        task = self._index.live(task_id)
        if not result or task.status is not TaskStatus.COMPLETED:
            return task
        try:
            with _bounded(READ_TIMEOUT_S):
                return await self._changes.threads.run(
                    partial(self._with_result, task, self._changes.file_of(task_id))
                )
        except (OSError, sqlite3.Error, DamagedData, *UNREADABLE) as exc:
            if self._index.get(task_id) is not task:
                return await self.get(task_id)  # it changed or expired meanwhile
            raise StoreError(f"the result of the task cannot be read: {reason_of(exc)}") from exc

    async def compare_and_set(self, old: Task, new: Task) -> None:
        with _bounded(WRITE_TIMEOUT_S):
            await self._changes.turn(old.id)
            self._index.check_change(old, new)
            await self._changes.put(new)

    async def note(self, old: Task, new: Task) -> None:
        assert not new.status.is_terminal
        with _bounded(WRITE_TIMEOUT_S):
            await self._changes.turn(old.id)
        self._index.check_change(old, new)
        self._changes.note(new)

    async def owned(self, owner: str, *, after: str | None = None, limit: int = 100) -> list[Task]:
        return self._index.owned(owner, after, limit)

    def owns(self, owner: str) -> bool:
        return self._index.owns(owner)

    async def unfinished(self) -> list[Task]:
        return self._index.unfinished()

    async def counts(self) -> Mapping[TaskStatus, int]:
        return self._index.counts()

    def watch(self, task_ids: Collection[str]) -> AbstractAsyncContextManager[Watch]:
        return self._watchers.watch(task_ids)

    async def expire(self) -> int:
        removed = 0
        while removals := self._begin_removals():
            await _all_made(removals)
            removed += len(removals)
        while removals := self._disk_memos.begin_expiry(self._clock.wall_ms(), _EXPIRE_AT_ONCE):
            await _all_made(removals)
        with _bounded(WRITE_TIMEOUT_S):
            await self._changes.sweep(self._opened.unreadable)
        return removed

    async def secret(self) -> bytes:
        return self._opened.place.secret

    async def check(self) -> None:
        with _bounded(CHECK_TIMEOUT_S):
            await self._changes.check()

    async def remember(self, key: str, value: bytes, *, keep_s: float) -> None:
        memo = new_memo(key, value, keep_s, self._clock.wall_ms())
        with _bounded(WRITE_TIMEOUT_S):
            await self._disk_memos.put(memo)

    async def recall(self, key: str) -> bytes | None:
        return self._memos.value(key, self._clock.wall_ms())

    async def forget(self, key: str) -> None:
        with _bounded(WRITE_TIMEOUT_S):
            await self._disk_memos.remove(key)

    async def remembered(self, prefix: str) -> list[tuple[str, bytes]]:
        return [(memo.key, memo.value) for memo in self.memos(prefix)]

    def memos(self, prefix: str = "") -> list[Memo]:
        """As `remembered`, with the times: for another store that takes them over."""
        return self._memos.live(prefix, self._clock.wall_ms())

    def _begin_removals(self) -> list[Pending]:
        """Some of the tasks that are over; one that is just being changed has its turn another time."""
        over = list(islice(self._index.over(), _EXPIRE_AT_ONCE))
        return [self._changes.remove(task.id) for task in over if not self._changes.is_pending(task.id)]

    def _with_result(self, task: Task, file: str | None) -> Task:
        """In a thread: read what the index leaves out."""
        if file is not None:
            return replace(task, result=self._opened.place.results.read(file))
        key = self._changes.row_key(task.id)
        row = self._opened.place.row(key)
        if row is None:
            raise DamagedData("its row is missing")
        kept = decode(key, row, self._keys).task
        if replace(kept, result=None) != task:
            raise DamagedData("its row holds another state")
        return kept


async def _all_made(removals: list[Pending]) -> None:
    with _bounded(WRITE_TIMEOUT_S):
        for removal in removals:
            await removal.made()


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as exc:
        raise StoreError(f"the task store did not answer within {seconds:g} s") from exc
