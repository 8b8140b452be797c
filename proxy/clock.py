"""The two clocks of the proxy, the one place where it sleeps, and the one way to wait for a change.

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

    async def wait(self, event: anyio.Event, seconds: float) -> bool:
        """Wait for `event`, at most this long on the monotonic clock. Whether it is set."""
        ...


class Pulse:
    """Wakes whoever waits for the next change: take `event`, look at the state, then wait for it."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        self.event = anyio.Event()

    def beat(self) -> None:
        self.event.set()
        self.event = anyio.Event()


class Pauses:
    """Between tries of the same thing: each is twice as long as the one before, up to `last_s` seconds."""

    __slots__ = ("_first_s", "_last_s", "next_s")

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self.next_s = first_s

    async def one(self, clock: Clock, until: anyio.Event | None = None) -> None:
        """The next pause; it ends early with `until`."""
        pause_s, self.next_s = self.next_s, min(self.next_s * 2, self._last_s)
        if until is None:
            await clock.sleep(pause_s)
        else:
            await clock.wait(until, pause_s)

    def over(self) -> None:
        """It worked: the next one is the first again."""
        self.next_s = self._first_s


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def wait(self, event: anyio.Event, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await event.wait()
        return event.is_set()
