"""What faults wait for: the how-manieth time that something happened in a round."""

from __future__ import annotations

from collections import Counter

import anyio

from tests.faults.plan import Moment


class Moments:
    def __init__(self) -> None:
        self._counts: Counter[Moment] = Counter()
        self._beat = anyio.Event()
        self._over = False
        self.beat(Moment.BEGIN)

    def beat(self, moment: Moment) -> None:
        self._counts[moment] += 1
        self._wake()

    def finish(self) -> None:
        """No more of them will come: nobody waits any longer."""
        self._over = True
        self._wake()

    async def wait(self, moment: Moment, count: int) -> None:
        while self._counts[moment] < count and not self._over:
            await self._beat.wait()

    def _wake(self) -> None:
        self._beat.set()
        self._beat = anyio.Event()
