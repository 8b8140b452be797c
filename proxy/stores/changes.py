"""Carries the decided changes of a disk store to its disk, and from there into the index.

Above: `disk`, which decides them. Below: `writer`, `results`, `records`, and the index and watchers that
learn of a change once it is durable. The changes of one task are made one after the other, so that
index and disk agree however they end. Contract sections 1 (I3) and 4 (progress: memory at once, the
store once a second).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, TypeVar

import anyio

from proxy.clock import Pulse
from proxy.errors import StoreError
from proxy.stores.disk_threads import DiskThreads
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.faults import reason_of
from proxy.stores.index import Index, without_result
from proxy.stores.place import Place
from proxy.stores.records import Record, encode, row_key
from proxy.stores.results import new_name
from proxy.stores.rows import CHECK_KEY
from proxy.stores.watching import Watchers
from proxy.stores.writer import Change, Writer
from proxy.tasks.task import Task

RESULT_IN_ROW_MAX: Final = 32 * 1024  # bytes; with more, rows would be slow to commit and to load at start

_T = TypeVar("_T")


class Pending:
    """A change on its way to the disk."""

    def __init__(self) -> None:
        self._settled = anyio.Event()
        self._reason: str | None = None

    def settle(self, reason: str | None) -> None:
        """It is durable, or it was not made for this reason."""
        self._reason = reason
        self._settled.set()

    async def settled(self) -> None:
        """Wait until it is decided whether the change was made."""
        await self._settled.wait()

    async def made(self) -> None:
        """Wait until the change is durable. Raises StoreError if it was not made."""
        await self._settled.wait()
        if self._reason is not None:
            raise StoreError(f"the task store cannot be written: {self._reason}")


class Changes:
    """Used from the event loop. Whoever waits may be cancelled: what was queued is done all the same.

    `files` has the result files of the tasks in `index` that have one, by task id; `row_keys` the keys of the
    rows that stand elsewhere than a new one would: each moves with its next change, so that no id stays
    readable after keys were turned on. With `keys` rows are encrypted.
    """

    def __init__(
        self,
        index: Index,
        files: dict[str, str],
        *,
        watchers: Watchers,
        place: Place,
        writer: Writer,
        keys: Keys = NO_KEYS,
        row_keys: dict[str, bytes],
    ) -> None:
        self._index = index
        self._files = files
        self._watchers = watchers
        self._place = place
        self._results = place.results
        self._writer = writer
        self._keys = keys
        self._row_keys = row_keys
        self._pending: dict[str, Pending] = {}
        self._noted: set[str] = set()
        self._notes_on_their_way: set[str] = set()
        self._check: Pending | None = None
        self._new_notes = Pulse()
        self._files_on_their_way: set[str] = set()
        self.threads = DiskThreads()

    def file_of(self, task_id: str) -> str | None:
        """The file with the result of a task, if it has one of its own."""
        return self._files.get(task_id)

    def row_key(self, task_id: str) -> bytes:
        """Where the row of a task stands, or will if it is new."""
        return self._row_keys.get(task_id) or row_key(task_id, self._keys)

    def _change(
        self,
        task_id: str,
        record: Record | None,
        settle: Callable[[str | None], None],
        *,
        new_file: str | None = None,
        old_file: str | None = None,
    ) -> Change:
        """Where its row stands elsewhere than a new one would, that is removed with it."""
        key = row_key(task_id, self._keys)
        row = None if record is None else encode(record, self._keys, key)
        return Change(key, row, settle, new_file, old_file, self._row_keys.get(task_id))

    async def turn(self, task_id: str) -> None:
        """Wait until no change of this task is on its way. Then decide and begin, without another await."""
        while (pending := self._pending.get(task_id)) is not None:
            await pending.settled()

    def is_pending(self, task_id: str) -> bool:
        return task_id in self._pending

    async def put(self, task: Task) -> None:
        """Make a new task or state durable, then show it. Raises StoreError; begins before it first waits."""
        pending = self._pending[task.id] = Pending()
        file: str | None = None
        record = Record(task=task)
        try:
            if task.result is not None and len(task.result) > RESULT_IN_ROW_MAX:
                file = new_name(task.id)
                self._files_on_their_way.add(file)
                size = await self._write_in_thread(partial(self._results.write, file, task.result))
                record = Record(task=without_result(task), result_file=file, result_size=size)
            settle = partial(self._stored, task, file, pending)
            old_file = self._files.get(task.id)
            self._writer.queue(self._change(task.id, record, settle, new_file=file, old_file=old_file))
        except BaseException:
            self._stored(task, file, pending, "it was not begun")
            raise
        await pending.made()

    def note(self, task: Task) -> None:
        """Show a new state now; `flush_notes` makes it durable."""
        self._mark_noted(task.id)
        self._show(task)

    async def wait_for_notes(self) -> None:
        """Wait until there is something to flush."""
        while not self._noted:
            await self._new_notes.event.wait()

    def flush_notes(self, *, all: bool = False) -> None:
        """Queue what was noted. Where another change is on its way, that one carries the note.

        Where a note is, the next one waits for the next flush, so that a disk that hangs has one of each task
        to do; but for `all` at the end.
        """
        waiting = frozenset() if all else self._notes_on_their_way
        for task_id in self._noted - self._pending.keys() - waiting:
            task = self._index.get(task_id)
            assert task is not None  # it runs, so it does not expire
            assert not task.status.is_terminal  # its end took the note along; the result is not in the index
            self._noted.remove(task_id)
            settle = partial(self._note_stored, task_id)
            self._writer.queue(self._change(task_id, Record(task=task), settle))
            self._notes_on_their_way.add(task_id)

    def remove(self, task_id: str) -> Pending:
        """Begin to remove a task that is over, with its result file."""
        pending = Pending()
        settle = partial(self._removed, task_id, pending)
        self._writer.queue(self._change(task_id, None, settle, old_file=self._files.get(task_id)))
        self._pending[task_id] = pending
        return pending

    async def sweep(self, untouchable: Collection[str]) -> None:
        """Remove the result files that no record names, but for those of the tasks in `untouchable`.

        They are listed first: what is begun later, or was named meanwhile, is no stray. Raises StoreError.
        """
        try:
            listed = await self.threads.run(self._results.names)
            named = self._files_on_their_way.union(self._files.values())
            await self.threads.run(partial(self._place.sweep, listed, named, untouchable))
        except OSError as exc:
            raise StoreError(f"the results cannot be swept: {reason_of(exc)}") from exc

    async def check(self) -> None:
        """Write a little where rows and results are written. Raises StoreError."""
        await self._begin_check().made()
        await self._write_in_thread(self._results.try_write)

    def _begin_check(self) -> Pending:
        """One row at a time: a disk that hangs is asked again and again by readiness probes."""
        if self._check is None:
            self._writer.queue(Change(CHECK_KEY, b"", self._checked))
            self._check = Pending()
        return self._check

    def _checked(self, reason: str | None) -> None:
        check, self._check = self._check, None
        assert check is not None
        check.settle(reason)

    async def _write_in_thread(self, call: Callable[[], _T]) -> _T:
        try:
            return await self.threads.run(call)
        except OSError as exc:
            raise StoreError(f"the task store cannot be written: {reason_of(exc)}") from exc

    def _stored(self, task: Task, file: str | None, pending: Pending, reason: str | None) -> None:
        """What `put` began has ended."""
        if file is not None:
            self._files_on_their_way.discard(file)
        if reason is None:
            self._row_keys.pop(task.id, None)
            self._files.pop(task.id, None)
            if file is not None:
                self._files[task.id] = file
            self._noted.discard(task.id)
            self._show(task)
        del self._pending[task.id]
        pending.settle(reason)

    def _removed(self, task_id: str, pending: Pending, reason: str | None) -> None:
        if reason is None:
            self._index.remove(task_id)
            self._files.pop(task_id, None)
            self._row_keys.pop(task_id, None)
        del self._pending[task_id]
        pending.settle(reason)

    def _note_stored(self, task_id: str, reason: str | None) -> None:
        self._notes_on_their_way.discard(task_id)
        if reason is not None:
            self._mark_noted(task_id)
        else:
            self._row_keys.pop(task_id, None)

    def _mark_noted(self, task_id: str) -> None:
        self._noted.add(task_id)
        self._new_notes.beat()

    def _show(self, task: Task) -> None:
        before = self._index.get(task.id)
        self._index.put(without_result(task))
        self._watchers.publish(before, task)
