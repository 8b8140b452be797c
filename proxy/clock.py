"""The two clocks of the proxy, and the one place where it sleeps.

Wall time is only for what is shown and for what must survive a restart (`createdAt`, expiry of stored
records); durations are measured with the monotonic clock, so that a jump of the wall clock neither
ends nor prolongs anything that runs. Every layer may import this module; the pure ones get their
`now` as an argument instead. Tests put a `ManualClock` in its place.
"""

from __future__ import annotations

import time
from typing import Protocol

import anyio


class Clock(Protocol):
    """Time as the proxy sees it."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep at least this long on the monotonic clock; `inf` sleeps until cancelled."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
