"""When a session that keeps failing may be started again.

Above: the pool, which counts by owner and capabilities. Contract section 9, "upstream process dies".
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from proxy.clock import Clock

FIRST_S: Final = 0.5  # before the start after the second failure in a row
LAST_S: Final = 30.0
STABLE_S: Final = 60.0  # a session that lived this long starts a new count


@dataclass(frozen=True, slots=True)
class _Failures:
    """Starts that failed and sessions that died young, in a row."""

    count: int
    last: float

    @property
    def next_start(self) -> float:
        """At once after the first failure."""
        pause_s = 0.0 if self.count < 2 else min(LAST_S, FIRST_S * 2.0 ** (self.count - 2))
        return self.last + pause_s


class BackOff:
    """Failures by key. Those that are long ago are forgotten by `forget_old`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[Hashable, _Failures] = {}

    def failed(self, key: Hashable, lived_s: float = 0.0) -> None:
        """A session could not be started, or ended by itself after so long."""
        before = self._failures.get(key)
        count = 1 if before is None or lived_s >= STABLE_S else before.count + 1
        self._failures[key] = _Failures(count, self._clock.monotonic())

    def pause_s(self, key: Hashable) -> float:
        """How long the next start has to wait from now on."""
        failures = self._failures.get(key)
        return 0.0 if failures is None else max(0.0, failures.next_start - self._clock.monotonic())

    def forget_old(self) -> None:
        """To be called now and then."""
        now = self._clock.monotonic()
        for key, failures in list(self._failures.items()):
            if now - failures.last >= STABLE_S:
                del self._failures[key]
