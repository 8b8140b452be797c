"""Work on large texts, away from the event loop: one piece of it at a time in the whole process.

Known to every layer, as `clock` is. A flood of large messages waits here, and the loop goes on; more threads
would gain nothing, since Python runs one at a time. What is run here must be made of short steps: each call
into C keeps Python's lock to its end. Contract sections 1 (I6) and 8, "Bounds".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

_AT_ONCE: Final = 1

_T = TypeVar("_T")

_limiter: RunVar[CapacityLimiter] = RunVar("aside")


async def aside(work: Callable[[], _T]) -> _T:
    """What `work` returns or raises. Cancelled while it waits for its turn, it is not done; after that it is
    waited for, so that clients who hang up cannot start more of it than one at a time."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(_AT_ONCE)
        _limiter.set(limiter)
    return await to_thread.run_sync(work, limiter=limiter)
