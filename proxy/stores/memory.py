"""The store that forgets: everything in memory, gone when the process ends (`store.url: memory:`).

Above: `routing`, through `stores.base`. Below: `index`, `watching`. Gives up invariant I3 of the contract,
and nothing else: what callers see is the same as with `disk`, so most tests run on it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from typing import Final, Self

from anyio import AsyncContextManagerMixin
from anyio.lowlevel import checkpoint

from proxy.clock import Clock
from proxy.stores.base import Observer, Watch
from proxy.stores.index import Index, without_result
from proxy.stores.memos import Memos, new_memo
from proxy.stores.watching import Watchers
from proxy.tasks.task import Task, TaskStatus

SECRET_BYTES: Final = 32
_EXPIRE_AT_ONCE: Final = 256  # tasks; between such steps others have their turn


class MemoryStore(AsyncContextManagerMixin):
    """Implements `proxy.stores.base.Store`. Can be used without entering it, too.

    Writes let other tasks run once before they decide, as a store with a disk does; what follows
    happens in one step.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._index = Index(clock)
        self._memos = Memos()
        self._watchers = Watchers()
        self._secret = secrets.token_bytes(SECRET_BYTES)

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        yield self

    def observe(self, observer: Observer) -> None:
        self._watchers.observer = observer

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._index)} tasks>"

    async def create(self, task: Task) -> None:
        await checkpoint()
        self._index.check_create(task)
        self._put(task)

    async def get(self, task_id: str, *, result: bool = True) -> Task:
        task = self._index.live(task_id)
        return task if result else without_result(task)

    async def compare_and_set(self, old: Task, new: Task) -> None:
        await checkpoint()
        self._index.check_change(old, new)
        self._put(new)

    async def note(self, old: Task, new: Task) -> None:
        self._index.check_change(old, new)
        self._put(new)

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
        while over := list(islice(self._index.over(), _EXPIRE_AT_ONCE)):
            for task in over:
                self._index.remove(task.id)
            removed += len(over)
            await checkpoint()
        for key in self._memos.over(self._clock.wall_ms()):
            self._memos.remove(key)
        return removed

    async def secret(self) -> bytes:
        return self._secret

    async def check(self) -> None:
        """Memory can always be written."""

    async def remember(self, key: str, value: bytes, *, keep_s: float) -> None:
        await checkpoint()
        self._memos.put(new_memo(key, value, keep_s, self._clock.wall_ms()))
        for surplus in self._memos.surplus():
            self._memos.remove(surplus)

    async def recall(self, key: str) -> bytes | None:
        return self._memos.value(key, self._clock.wall_ms())

    async def forget(self, key: str) -> None:
        await checkpoint()
        self._memos.remove(key)

    async def remembered(self, prefix: str) -> list[tuple[str, bytes]]:
        return [(memo.key, memo.value) for memo in self._memos.live(prefix, self._clock.wall_ms())]

    def _put(self, task: Task) -> None:
        before = self._index.get(task.id)
        self._index.put(task)
        self._watchers.publish(before, task)
