"""Bounds on what clients may hold at a time, each with a clear error and a time to come back.

Above: `downstream`. Contract section 8, "Bounds".
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AbstractContextManager
from math import ceil
from typing import Final

from proxy.clock import Clock, Pulse
from proxy.errors import LimitReached, PolledTooFast

BUSY_RETRY_S: Final = 1
MAX_BUCKETS: Final = 10_000


class Gauge:
    """At most `limit` at a time."""

    def __init__(self, what: str, limit: int, setting: str) -> None:
        self._what = what
        self._limit = limit
        self._setting = setting
        self.held = 0
        self._emptied = Pulse()

    def hold(self) -> AbstractContextManager[None]:
        """One more while inside. Raises LimitReached (429) on entry if `limit` are held already."""
        return self

    def __enter__(self) -> None:
        if self.held >= self._limit:
            raise LimitReached(
                f"{self._limit} {self._what} are in progress ({self._setting}); try again later",
                retry_after_s=BUSY_RETRY_S,
            )
        self.held += 1

    def __exit__(self, *raised: object) -> None:
        self.held -= 1
        if not self.held:
            self._emptied.beat()

    async def wait_empty(self) -> None:
        """Until none is held."""
        while self.held:
            await self._emptied.event.wait()


class PollLimit:
    """A token bucket for each task id: `per_second` polls, bursts of one second's worth.

    A bucket is a time and a count; those that were not used for long are the first to be forgotten.
    """

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, task_id: str) -> None:
        """Raises PolledTooFast (429) if this id is polled too fast."""
        now, burst = self._clock.monotonic(), max(1.0, self._per_second)
        at, tokens = self._buckets.pop(task_id, (now, burst))
        tokens = min(burst, tokens + (now - at) * self._per_second)
        served = tokens >= 1
        # A refused poll costs nothing: else who polls a little too fast would never be served again.
        self._buckets[task_id] = (now, tokens - 1 if served else tokens)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if not served:
            raise PolledTooFast(
                "this task is polled too fast (limits.polls_per_task)",
                retry_after_s=ceil((1 - tokens) / self._per_second),
            )
