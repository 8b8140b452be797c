"""Replies that last no longer than the token that they were asked for with.

Above: `legacy_http`, for what stays open and tells of tasks. A stream ends in good order: its client comes
back with a newer token, or is refused. Contract section 8, "A token whose own `exp` has passed".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf

import anyio

from proxy.errors import ProxyError
from proxy.routing.legacy import Reply


@asynccontextmanager
async def while_good(
    serving: AbstractAsyncContextManager[Reply], good_for_s: float, expired: Callable[[], ProxyError]
) -> AsyncIterator[Reply]:
    """Raises what `expired` makes if there is no reply in time; one that has begun is cut short."""
    deadline = anyio.current_time() + good_for_s
    with anyio.CancelScope(deadline=deadline) as until_there:
        async with serving as reply:
            until_there.deadline = inf
            if isinstance(reply.body, bytes):
                yield reply
            else:
                yield Reply(reply.status, reply.headers, _until(deadline, reply.body))
    if until_there.cancelled_caught:
        raise expired()


async def _until(deadline: float, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        with anyio.CancelScope(deadline=deadline) as scope:
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return
        if scope.cancelled_caught:
            return
        yield chunk
