"""Carries to the disk what a store remembers beside the tasks, and from there into memory.

Above: `disk`. Below: `writer`, which commits these rows together with those of tasks, and `memos`, which
learns of a change once it is durable. The changes of one key are made one after the other, so that memory
and disk agree however they end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import islice

from proxy.stores.changes import Pending
from proxy.stores.encryption import Keys
from proxy.stores.memos import Memo, Memos, encode, row_key
from proxy.stores.writer import Change, Writer


class DiskMemos:
    """Used from the event loop. Whoever waits may be cancelled: what was queued is done all the same."""

    def __init__(self, memos: Memos, writer: Writer, keys: Keys) -> None:
        self._memos = memos
        self._keys = keys
        self._writer = writer
        self._pending: dict[str, Pending] = {}

    async def put(self, memo: Memo) -> None:
        """Make a memo durable, then show it. Raises StoreError."""
        await self._turn(memo.key)
        await self._begin(memo.key, encode(memo, self._keys), partial(self._stored, memo)).made()

    async def remove(self, key: str) -> None:
        """Forget durably. What is not there costs no commit. Raises StoreError."""
        await self._turn(key)
        if key in self._memos:
            await self._begin_removal(key).made()

    def begin_expiry(self, now_ms: int, limit: int) -> list[Pending]:
        """Begin to remove up to `limit` whose time is over."""
        return self._begin_removals(self._memos.over(now_ms), limit)

    async def _turn(self, key: str) -> None:
        """Wait until no change of this key is on its way. Then decide and begin, without another await."""
        while (pending := self._pending.get(key)) is not None:
            await pending.settled()

    def _begin_removals(self, keys: Collection[str], limit: int | None = None) -> list[Pending]:
        """One that is just being changed has its turn another time."""
        free = (key for key in keys if key not in self._pending)
        return [self._begin_removal(key) for key in list(islice(free, limit))]

    def _begin_removal(self, key: str) -> Pending:
        return self._begin(key, None, partial(self._memos.remove, key))

    def _begin(self, key: str, row: bytes | None, made: Callable[[], None]) -> Pending:
        """Queue a change of which `made` is called once it is durable. Raises StoreError after the close."""
        pending = Pending()
        self._writer.queue(Change(row_key(key), row, partial(self._settle, key, made, pending)))
        self._pending[key] = pending
        return pending

    def _settle(self, key: str, made: Callable[[], None], pending: Pending, reason: str | None) -> None:
        del self._pending[key]
        if reason is None:
            made()
        pending.settle(reason)

    def _stored(self, memo: Memo) -> None:
        self._memos.put(memo)
        if not self._writer.closed:
            self._begin_removals(self._memos.surplus())
