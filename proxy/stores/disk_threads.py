"""The threads in which files of a disk store are read and written, never more than a bound.

Above: `changes`. A call whose caller no longer waits is left to itself, since nothing can end it; where the
disk hangs such calls pile up, and beyond the bound further ones are refused at once. Contract sections 1 (I6)
and 9 ("store broken").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread

from proxy.errors import StoreError

_AT_ONCE: Final = 4  # files written or read at a time; a disk gains little from more
MOST_THREADS: Final = 20  # with those that hang; some may for a file of their own, and others still be served

_T = TypeVar("_T")


class DiskThreads:
    """Used from the event loop."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(_AT_ONCE)
        self._lock = Lock()
        self._running = 0

    async def run(self, call: Callable[[], _T]) -> _T:
        """Call something that blocks; on cancellation it is left to itself.

        Raises StoreError beyond the bound.
        """
        return await to_thread.run_sync(
            partial(self._call, call), abandon_on_cancel=True, limiter=self._limiter
        )

    def _call(self, call: Callable[[], _T]) -> _T:
        with self._lock:
            if self._running >= MOST_THREADS:
                raise StoreError("the disk of the task store does not answer")
            self._running += 1
        try:
            return call()
        finally:
            with self._lock:
                self._running -= 1
