"""A clock that a test moves by hand.

Stands in for `proxy.clock.SystemClock`. Time is counted in whole nanoseconds, so that ten steps of
0.1 s meet a sleep of 1 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

_NS: Final = 1_000_000_000
_TURNS: Final = 20  # turns of the event loop that a woken task gets before time moves on


@dataclass(eq=False, slots=True)
class _Sleeper:
    due_ns: float
    woken: anyio.Event = field(default_factory=anyio.Event)


class ManualClock:
    """Implements `proxy.clock.Clock`; both clocks stand still between `advance` and `advance`."""

    def __init__(self, wall_ms: int = 1_800_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._now_ns = 0
        self._sleepers: list[_Sleeper] = []

    def wall_ms(self) -> int:
        return self._wall_ms + self._now_ns // 1_000_000

    def monotonic(self) -> float:
        return self._now_ns / _NS

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await checkpoint()
            return
        sleeper = _Sleeper(self._now_ns + (seconds if seconds == float("inf") else round(seconds * _NS)))
        self._sleepers.append(sleeper)
        try:
            await sleeper.woken.wait()
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    async def wait(self, event: anyio.Event, seconds: float) -> bool:
        async def stop_waiting() -> None:
            await self.sleep(seconds)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(stop_waiting)
            await event.wait()
            group.cancel_scope.cancel()
        return event.is_set()

    @property
    def sleeping(self) -> int:
        """How many tasks sleep now."""
        return len(self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Move both clocks on, waking each sleeper at its own time, the earliest first.

        A woken task runs before time moves on, so one that sleeps again within `seconds` is woken
        again. What a thread does for it is not waited for.
        """
        end_ns = self._now_ns + round(seconds * _NS)
        await _let_others_run()
        while due := [sleeper for sleeper in self._sleepers if sleeper.due_ns <= end_ns]:
            first = min(due, key=lambda sleeper: sleeper.due_ns)
            self._sleepers.remove(first)
            self._now_ns = int(first.due_ns)
            first.woken.set()
            await _let_others_run()
        self._now_ns = end_ns
        await _let_others_run()

    def jump(self, seconds: float) -> None:
        """Move both clocks on at once, without a turn for anybody: for tests that are not async.

        Nobody is woken before the next `advance`.
        """
        self._now_ns += round(seconds * _NS)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall clock alone, as an administrator or a time server does."""
        self._wall_ms = wall_ms - self._now_ns // 1_000_000


async def _let_others_run() -> None:
    for _ in range(_TURNS):
        await checkpoint()
