"""All tasks of a store in memory, found by id, by owner in order of age, and by when they expire.

Above: `memory`, where this is the store, and `disk`, where it is rebuilt at start and holds the tasks without
their results. Below: `tasks.task`. Synchronous, used from the event loop alone. Contract section 4 (`ttlMs`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from proxy.errors import TaskConflict, TaskNotFound
from proxy.tasks.task import Task, TaskStatus


class Index:
    """Looks tasks up, and says whether a change may be made. A task over its ttl is gone for the readers."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._by_owner: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self._by_end: list[tuple[int, str]] = []
        self._counts = dict.fromkeys(TaskStatus, 0)

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, task_id: str) -> Task | None:
        """The task as it is kept, also one that is over."""
        return self._tasks.get(task_id)

    def live(self, task_id: str, now_ms: int) -> Task:
        """Raises TaskNotFound if there is none, or its ttl is over."""
        task = self._tasks.get(task_id)
        if task is None or _is_over(task, now_ms):
            raise TaskNotFound
        return task

    def check_create(self, task: Task, now_ms: int) -> None:
        """Raises TaskConflict if the id of `task` is taken."""
        kept = self._tasks.get(task.id)
        if kept is not None and not _is_over(kept, now_ms):
            raise TaskConflict("task not created: its id is taken")

    def check_change(self, old: Task, new: Task, now_ms: int) -> None:
        """Raises TaskConflict or TaskNotFound unless `new` may replace `old` now."""
        assert new.id == old.id
        assert new.revision == old.revision + 1
        kept = self.live(old.id, now_ms)
        if kept.revision != old.revision:
            raise TaskConflict(f"task is at revision {kept.revision}, not {old.revision}")

    def put(self, task: Task) -> None:
        """Take in a new task or a new state of one."""
        self.remove(task.id)
        self._tasks[task.id] = task
        self._counts[task.status] += 1
        insort(self._by_owner[task.owner], _age(task))
        if (end_ms := _end_ms(task)) is not None:
            insort(self._by_end, (end_ms, task.id))

    def remove(self, task_id: str) -> None:
        """Forget a task; one that is not there is no fault."""
        task = self._tasks.pop(task_id, None)
        if task is None:
            return
        self._counts[task.status] -= 1
        _discard(self._by_owner[task.owner], _age(task))
        if not self._by_owner[task.owner]:
            del self._by_owner[task.owner]
        if (end_ms := _end_ms(task)) is not None:
            _discard(self._by_end, (end_ms, task.id))

    def owned(self, owner: str, after: str | None, limit: int, now_ms: int) -> list[Task]:
        """Up to `limit` live tasks of `owner`, oldest first, from behind the task `after`.

        Raises TaskNotFound if `after` is no live task of this owner.
        """
        ages = self._by_owner.get(owner, [])
        start = 0
        if after is not None:
            last = self.live(after, now_ms)
            if last.owner != owner:
                raise TaskNotFound
            start = bisect_right(ages, _age(last))
        found: list[Task] = []
        for _, task_id in islice(ages, start, None):
            if len(found) >= limit:
                break
            if not _is_over(task := self._tasks[task_id], now_ms):
                found.append(without_result(task))
        return found

    def counts(self) -> Mapping[TaskStatus, int]:
        """How many tasks of each status there are."""
        return dict(self._counts)

    def unfinished(self) -> list[Task]:
        return [task for task in self._tasks.values() if not task.status.is_terminal]

    def over(self, now_ms: int) -> Iterator[Task]:
        """The tasks whose ttl is over, the longest gone first. Do not change the index while iterating."""
        for _, task_id in self._by_end:
            task = self._tasks[task_id]
            if not _is_over(task, now_ms):
                return
            yield task


def without_result(task: Task) -> Task:
    return task if task.result is None else replace(task, result=None)


def _is_over(task: Task, now_ms: int) -> bool:
    return task.status.is_terminal and task.expired(now_ms)


def _age(task: Task) -> tuple[int, str]:
    return task.created_at_ms, task.id


def _end_ms(task: Task) -> int | None:
    """When a task that is terminal expires; None while it runs."""
    if not task.status.is_terminal or task.ttl_ms is None:
        return None
    return task.created_at_ms + task.ttl_ms


def _discard(entries: list[tuple[int, str]], entry: tuple[int, str]) -> None:
    del entries[bisect_left(entries, entry)]
