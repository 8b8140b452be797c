"""How a stored task is changed for its owner, in whatever dialect: read, decide, compare-and-set, carry out.

Above: `task_methods` (modern) and `tasks_2025`. Below: the store, and the runner for what must reach the
upstream. Each change is one compare-and-set, made again from the newer record where somebody else was first.
Contract sections 4 and 5, I4 and I5.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from proxy.audit import Audit
from proxy.clock import Clock
from proxy.errors import StoreError, TaskConflict, TaskNotFound
from proxy.metrics import UNSERVED, Denied, Metrics
from proxy.owners import Owner
from proxy.routing.runner import Runner
from proxy.stores.base import TaskStore
from proxy.tasks import lifecycle
from proxy.tasks.policy import Policy
from proxy.tasks.task import Task, TaskStatus, is_task_id


class TaskChanges:
    """Reads and changes the tasks of one owner at a time."""

    def __init__(
        self,
        store: TaskStore,
        runner: Runner,
        policy: Policy,
        clock: Clock,
        audit: Audit,
        metrics: Metrics = UNSERVED,
    ) -> None:
        self._metrics = metrics
        self._audit = audit
        self._store = store
        self._runner = runner
        self._policy = policy
        self._clock = clock

    async def owned(self, owner: Owner, task_id: str | None) -> Task:
        """The task of this id, if it is the owner's, without its result.

        Raises TaskNotFound otherwise, one answer for all, and no sooner or later for one of them.
        """
        try:
            if task_id is None or not is_task_id(task_id):
                raise TaskNotFound
            task = await self._store.get(task_id, result=False)
        except TaskNotFound:
            self._deny(owner, task_id, Denied.UNKNOWN)
            raise
        if task.owner != owner.key:
            self._deny(owner, task_id, Denied.FOREIGN)
            raise TaskNotFound
        return task

    def _deny(self, owner: Owner, task_id: str | None, reason: Denied) -> None:
        self._metrics.lookup_denied(reason)
        self._audit.denied(owner, task_id, reason)

    async def with_result(self, task: Task) -> Task:
        """The same with its result, if it has one, for its owner. Raises TaskNotFound if it has expired."""
        if task.status is TaskStatus.COMPLETED:
            task = await self._store.get(task.id)
        self._audit.result_read(task)
        return task

    async def change(self, owner: Owner, task_id: str | None, apply: Callable[[Task], Task]) -> Task:
        """Store what `apply` makes of the task, again from the newer record after a conflict; carry it out.

        Once begun it is finished, though the client hangs up: what is stored must reach the upstream. Raises
        TaskNotFound, StoreError, and what `apply` raises.
        """
        while True:
            task = await self.owned(owner, task_id)
            new = apply(task)
            with anyio.CancelScope(shield=True):  # the store has a bound
                if await self._stored(task, new):
                    self._runner.carry_out(new)
                    return new

    def cancelled(self, task: Task) -> Task:
        """For `change`: the task after `tasks/cancel`. Raises IllegalTransition if it has ended."""
        return lifecycle.cancelled(task, self._policy.polling, self._clock.wall_ms())

    async def _stored(self, task: Task, new: Task) -> bool:
        """Whether `new` is what is stored now; False after a conflict. Raises StoreError."""
        if new is task:
            return True
        try:
            await self._store.compare_and_set(task, new)
        except TaskConflict:
            return False
        except StoreError:
            self._runner.look_again(task)  # the client may come again, but need not
            raise
        return True
