"""How many tasks are kept, in all and of each owner, and how fast they are made.

Above: `conversion` and `tasks_2025`, before they store one. Below: the store. An owner's tasks are counted by
what was seen of them: those that were made count until the store is asked again, which is when there seem to
be too many. Contract section 8, "Bounds".
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from proxy.clock import Clock
from proxy.errors import LimitReached, PolledTooFast
from proxy.limits import TokenBuckets
from proxy.owners import Owner
from proxy.stores.base import TaskStore

COUNT_AGAIN_S: Final = 5.0  # tasks expire by the hour, and to count many takes milliseconds
MAX_OWNERS: Final = 10_000  # that are kept in mind
_RETRY_S: Final = 60


@dataclass(slots=True)
class _Known:
    """At most so many tasks, as counted `at` this time and made since."""

    tasks: int
    at: float


class TaskQuota:
    """`creations_per_s` is of one owner; None: as fast as they come."""

    def __init__(
        self,
        store: TaskStore,
        clock: Clock,
        *,
        total: int = 100_000,
        per_owner: int = 100_000,
        creations_per_s: float | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._total = total
        self._per_owner = per_owner
        self._rate = None if creations_per_s is None else TokenBuckets(creations_per_s, clock)
        self._owners: OrderedDict[str, _Known] = OrderedDict()

    async def take(self, owner: Owner) -> None:
        """To be called before a task is stored. Raises LimitReached (429) if it may not be; StoreError."""
        if self._rate is not None and (wait_s := self._rate.take(owner.key)):
            raise PolledTooFast("tasks are made too fast (limits.task_creations)", retry_after_s=wait_s)
        if sum((await self._store.counts()).values()) >= self._total:
            raise _reached(f"{self._total} tasks are kept (limits.tasks)")
        known = self._owners.get(owner.key)
        if known is None or (known.tasks >= self._per_owner and self._is_old(known)):
            known = await self._count(owner)
        if known.tasks >= self._per_owner:
            raise _reached(f"{self._per_owner} tasks of yours are kept (limits.tasks_per_owner)")
        known.tasks += 1

    def _is_old(self, known: _Known) -> bool:
        return self._clock.monotonic() - known.at >= COUNT_AGAIN_S

    async def _count(self, owner: Owner) -> _Known:
        found = await self._store.owned(owner.key, limit=self._per_owner)
        known = self._owners[owner.key] = _Known(len(found), self._clock.monotonic())
        self._owners.move_to_end(owner.key)
        if len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)
        return known


def _reached(said: str) -> LimitReached:
    return LimitReached(f"{said}; they are kept until their ttl is over", retry_after_s=_RETRY_S)
