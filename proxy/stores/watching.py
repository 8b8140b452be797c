"""Tells watchers in this process what becomes of the tasks they watch.

Above: `memory` and `disk`, which publish every state that becomes visible. Below: `tasks.task`. A Redis
store watches by other means. Contract section 4 (`notifications/tasks`: in order, terminal last).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

from anyio.lowlevel import checkpoint

from proxy.clock import Pulse
from proxy.stores.base import Observer
from proxy.stores.index import without_result
from proxy.tasks.task import Task

BACKLOG: Final = 16  # states of one task that wait for a slow watcher; more than a burst of input takes


class Watcher:
    """Implements `proxy.stores.base.Watch`. Bounded: `BACKLOG` states for each watched task."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Task]] = {}
        self._offered = Pulse()

    def offer(self, task: Task) -> None:
        """Keep a new state; if too many wait, the oldest of the same task goes, never the newest."""
        self._waiting.setdefault(task.id, deque(maxlen=BACKLOG)).append(task)
        self._offered.beat()

    async def receive(self) -> Task:
        await checkpoint()
        while not self._waiting:
            await self._offered.event.wait()
        task_id = next(iter(self._waiting))
        states = self._waiting.pop(task_id)
        task = states.popleft()
        if states:
            self._waiting[task_id] = states  # behind the other tasks: one that is busy starves none
        return task


class Watchers:
    """Who watches what; and the observer, which sees everything."""

    def __init__(self) -> None:
        self._by_task: dict[str, list[Watcher]] = {}
        self.observer: Observer | None = None

    def publish(self, before: Task | None, task: Task) -> None:
        """Tell those who watch `task` its new state, without its result. Does not block."""
        if self.observer is not None:
            self.observer(before, without_result(task))
        for watcher in self._by_task.get(task.id, ()):
            watcher.offer(without_result(task))

    @asynccontextmanager
    async def watch(self, task_ids: Collection[str]) -> AsyncIterator[Watcher]:
        watcher = Watcher()
        watched = frozenset(task_ids)
        for task_id in watched:
            self._by_task.setdefault(task_id, []).append(watcher)
        try:
            yield watcher
        finally:
            for task_id in watched:
                self._by_task[task_id].remove(watcher)
                if not self._by_task[task_id]:
                    del self._by_task[task_id]
