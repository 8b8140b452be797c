"""The seam between the tasks and wherever they are kept, and the memory for what belongs to no task.

Above: `routing`. Below: `memory`, `disk`, and a Redis store later. One contract suite in
`tests/stores/` runs over every implementation.

All methods may be called concurrently from one event loop. Records are immutable; the one way to
change a task is to offer the record it was made from together with the new one. A record whose ttl is
over is gone for every method, also before `expire` has removed it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from proxy.tasks.task import Task, TaskStatus


class Watch(Protocol):
    """The changes of some tasks, each as it happens."""

    async def receive(self) -> Task:
        """The next new state of one of the tasks, in order for each task, terminal ones last.

        The record comes without its result; `get` has it. A watcher that falls far behind is told
        later states only, never a wrong order. Waits without bound; cancel it.
        """
        ...


class TaskStore(Protocol):
    """Task records, durable as configured.

    Every method raises StoreError if the store cannot read or write. Then nothing has changed; only where
    the store did not answer in time, or the wait was cancelled, the change may still be made, and
    reading again tells.
    """

    async def create(self, task: Task) -> None:
        """Keep a new task; durable when this returns, and only then visible to `get` and `owned`.

        Raises TaskConflict if its id is taken. Tasks extension, "Task Creation".
        """
        ...

    async def get(self, task_id: str, *, result: bool = True) -> Task:
        """The latest state. Raises TaskNotFound if there is none or it expired.

        It comes with its result, which may have to be read; where `result` is False, without one and at once.
        """
        ...

    async def compare_and_set(self, old: Task, new: Task) -> None:
        """Replace `old` by `new` (same id, `new.revision == old.revision + 1`), result and all, in one step.

        Durable when this returns, and only then visible. Raises TaskConflict if the stored task is no
        longer at `old.revision`, TaskNotFound if it is gone.
        """
        ...

    async def note(self, old: Task, new: Task) -> None:
        """Like `compare_and_set`, but visible at once and durable within a second or so.

        For what may be lost in a crash: progress. Raises as `compare_and_set`.
        """
        ...

    async def owned(self, owner: str, *, after: str | None = None, limit: int = 100) -> list[Task]:
        """An owner's tasks without results, oldest first (creation time, then id); `after` is an id.

        An `after` that is gone raises TaskNotFound.
        """
        ...

    def owns(self, owner: str) -> bool:
        """Whether this owner has tasks that hold something: whatever has not failed. Touches no disk, and
        does not wait; True where there are too many to look at, or that cannot be known so."""
        ...

    async def unfinished(self) -> list[Task]:
        """Every task of every owner that is not terminal: what a start has to settle."""
        ...

    async def counts(self) -> Mapping[TaskStatus, int]:
        """How many tasks of each status are kept. Those that are over count until `expire` removes them."""
        ...

    def watch(self, task_ids: Collection[str]) -> AbstractAsyncContextManager[Watch]:
        """Watch these tasks from now on; ids that do not exist are simply never reported."""
        ...

    async def expire(self) -> int:
        """Remove what is expired; returns how many tasks went."""
        ...

    async def secret(self) -> bytes:
        """32 random bytes that belong to this store and survive as its records do."""
        ...

    async def check(self) -> None:
        """Raise StoreError, naming what is broken, unless the store can be written now."""
        ...


class SessionMemory(Protocol):
    """Small things that must outlive us and belong to no task: what is known of a session.

    As durable as the tasks. Bounded in number: where there are too many, those remembered longest ago go
    first. What was damaged on the disk is absent. Errors as with TaskStore.
    """

    async def remember(self, key: str, value: bytes, *, keep_s: float) -> None:
        """Keep `value` for `keep_s` seconds of the wall clock; durable when this returns, only then visible.

        It replaces what was remembered under `key`, and is the newest again. At most 200 characters and
        4 KiB, else ValueError. What is secret does not belong in a key: hash it.
        """
        ...

    async def recall(self, key: str) -> bytes | None:
        """What is remembered; None if nothing is, or its time is over. Touches no disk."""
        ...

    async def forget(self, key: str) -> None:
        """Remember it no more; durable when this returns. A key that is not there is no fault."""
        ...

    async def remembered(self, prefix: str) -> list[tuple[str, bytes]]:
        """Keys and values of all keys that begin with `prefix`, oldest first. Touches no disk."""
        ...


Observer: TypeAlias = Callable[[Task | None, Task], None]
"""Is told the state that a task had, None if it is new, and the state that has just become visible."""


class Store(TaskStore, SessionMemory, Protocol):
    """Both in one place: what `assembly` opens. Its `expire` sweeps both."""

    def observe(self, observer: Observer) -> None:
        """Call `observer` from now on with each state that becomes visible, in the order of each task's.

        It gets records without results, must not block, and must not raise. There is one.
        """
        ...
