"""A store that fails when the test says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager

import anyio

from proxy.errors import StoreError
from proxy.stores.base import TaskStore, Watch
from proxy.tasks.task import Task, TaskStatus


class TroubledStore:
    """Implements `proxy.stores.base.TaskStore` over another one.

    `broken`: writes fail. `unsure`: writes are made, and fail all the same. `late`: writes fail, and are made
    by `make_late_ones`. `unreadable`: reads fail. `buggy`: the next write raises what no store should. All
    writes wait for `gate`, all reads of a task for `read_gate`; `writes` counts those that were made, and
    `results_read` the tasks that were read with their results.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self.broken = False
        self.unsure = False
        self.late = False
        self.unreadable = False
        self.buggy = False
        self._late: list[Callable[[], Awaitable[None]]] = []
        self.gate = anyio.Event()
        self.gate.set()
        self.read_gate = anyio.Event()
        self.read_gate.set()
        self.waiting = 0
        self.writes: Counter[str] = Counter()
        self.results_read = 0

    async def _write(self, what: str, write: Callable[[], Awaitable[None]]) -> None:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        if self.buggy:
            self.buggy = False
            raise RuntimeError("a bug")
        if self.broken:
            raise StoreError("the task store cannot be written: disk full")
        if self.late:
            self._late.append(write)
            raise StoreError("the task store did not answer within 30 s")
        await write()
        self.writes[what] += 1
        if self.unsure:
            raise StoreError("the task store did not answer within 30 s")

    async def make_late_ones(self) -> None:
        for write in self._late:
            await write()
        self._late.clear()

    def _read(self) -> None:
        if self.unreadable:
            raise StoreError("the task store cannot be read")

    async def create(self, task: Task) -> None:
        await self._write("create", lambda: self._store.create(task))

    async def get(self, task_id: str, *, result: bool = True) -> Task:
        await self.read_gate.wait()
        self._read()
        self.results_read += result
        return await self._store.get(task_id, result=result)

    async def compare_and_set(self, old: Task, new: Task) -> None:
        await self._write("compare_and_set", lambda: self._store.compare_and_set(old, new))

    async def note(self, old: Task, new: Task) -> None:
        await self._write("note", lambda: self._store.note(old, new))

    def owns(self, owner: str) -> bool:
        return self._store.owns(owner)

    async def owned(self, owner: str, *, after: str | None = None, limit: int = 100) -> list[Task]:
        self._read()
        return await self._store.owned(owner, after=after, limit=limit)

    async def counts(self) -> Mapping[TaskStatus, int]:
        return await self._store.counts()

    async def unfinished(self) -> list[Task]:
        self._read()
        return await self._store.unfinished()

    def watch(self, task_ids: Collection[str]) -> AbstractAsyncContextManager[Watch]:
        return self._store.watch(task_ids)

    async def expire(self) -> int:
        return await self._store.expire()

    async def secret(self) -> bytes:
        return await self._store.secret()

    async def check(self) -> None:
        if self.broken:
            raise StoreError("the task store cannot be written: disk full")
