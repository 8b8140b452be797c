"""All tasks of a store in memory, found by id, by owner in order of age, and by when they expire.

Above: `memory`, where this is the store, and `disk`, where it is rebuilt at start and holds the tasks without
their results. Below: `tasks.task`. Synchronous, used from the event loop alone. How long a task is still kept
is worked out from the wall clock when it is put here, and then measured on the other: a jump of the wall
clock neither ends nor prolongs it. Contract sections 4 (`ttlMs`) and 9.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar

from proxy.clock import Clock
from proxy.errors import TaskConflict, TaskNotFound
from proxy.tasks.task import Task, TaskStatus

LOOKED_AT: Final = 100  # tasks of one owner, where the loop must not be held up


class Index:
    """Looks tasks up, and says whether a change may be made. A task over its ttl is gone for the readers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[str, Task] = {}
        self._by_owner: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self._ends: dict[str, float] = {}  # of those that have ended, on the monotonic clock
        self._by_end: list[tuple[float, str]] = []
        self._counts = dict.fromkeys(TaskStatus, 0)

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, task_id: str) -> Task | None:
        """The task as it is kept, also one that is over."""
        return self._tasks.get(task_id)

    def live(self, task_id: str) -> Task:
        """Raises TaskNotFound if there is none, or its ttl is over."""
        task = self._tasks.get(task_id)
        if task is None or self._is_over(task_id):
            raise TaskNotFound
        return task

    def check_create(self, task: Task) -> None:
        """Raises TaskConflict if the id of `task` is taken."""
        if task.id in self._tasks and not self._is_over(task.id):
            raise TaskConflict("task not created: its id is taken")

    def check_change(self, old: Task, new: Task) -> None:
        """Raises TaskConflict or TaskNotFound unless `new` may replace `old` now."""
        assert new.id == old.id
        assert new.revision == old.revision + 1
        kept = self.live(old.id)
        if kept.revision != old.revision:
            raise TaskConflict(f"task is at revision {kept.revision}, not {old.revision}")

    def put(self, task: Task) -> None:
        """Take in a new task or a new state of one."""
        self.remove(task.id)
        self._tasks[task.id] = task
        self._counts[task.status] += 1
        insort(self._by_owner[task.owner], _age(task))
        if task.status.is_terminal and task.ttl_ms is not None:
            left_ms = task.created_at_ms + task.ttl_ms - self._clock.wall_ms()
            end = self._ends[task.id] = self._clock.monotonic() + left_ms / 1000
            insort(self._by_end, (end, task.id))

    def remove(self, task_id: str) -> None:
        """Forget a task; one that is not there is no fault."""
        task = self._tasks.pop(task_id, None)
        if task is None:
            return
        self._counts[task.status] -= 1
        _discard(self._by_owner[task.owner], _age(task))
        if not self._by_owner[task.owner]:
            del self._by_owner[task.owner]
        if (end := self._ends.pop(task_id, None)) is not None:
            _discard(self._by_end, (end, task_id))

    def owned(self, owner: str, after: str | None, limit: int) -> list[Task]:
        """Up to `limit` live tasks of `owner`, oldest first, from behind the task `after`.

        Raises TaskNotFound if `after` is no live task of this owner.
        """
        ages = self._by_owner.get(owner, [])
        start = 0
        if after is not None:
            last = self.live(after)
            if last.owner != owner:
                raise TaskNotFound
            start = bisect_right(ages, _age(last))
        found: list[Task] = []
        for _, task_id in islice(ages, start, None):
            if len(found) >= limit:
                break
            if not self._is_over(task_id):
                found.append(without_result(self._tasks[task_id]))
        return found

    def owns(self, owner: str) -> bool:
        """Whether a live task of `owner` has not failed. Of more than LOOKED_AT one is taken to be such."""
        ages = self._by_owner.get(owner, ())
        newest = (task_id for _, task_id in islice(reversed(ages), LOOKED_AT))
        return len(ages) > LOOKED_AT or any(
            self._tasks[task_id].status is not TaskStatus.FAILED and not self._is_over(task_id)
            for task_id in newest
        )

    def counts(self) -> Mapping[TaskStatus, int]:
        """How many tasks of each status there are."""
        return dict(self._counts)

    def unfinished(self) -> list[Task]:
        return [task for task in self._tasks.values() if not task.status.is_terminal]

    def over(self) -> Iterator[Task]:
        """The tasks whose ttl is over, the longest gone first. Do not change the index while iterating."""
        for _, task_id in self._by_end:
            if not self._is_over(task_id):
                return
            yield self._tasks[task_id]

    def _is_over(self, task_id: str) -> bool:
        """A task that runs never is."""
        end = self._ends.get(task_id)
        return end is not None and self._clock.monotonic() >= end


def without_result(task: Task) -> Task:
    return task if task.result is None else replace(task, result=None)


def _age(task: Task) -> tuple[int, str]:
    return task.created_at_ms, task.id


_Place = TypeVar("_Place", tuple[int, str], tuple[float, str])


def _discard(entries: list[_Place], entry: _Place) -> None:
    del entries[bisect_left(entries, entry)]
