"""Messages to the upstream that nobody waits for: cancel notices, refusals, answers to pings.

Above: `session` and what it is made of. Below: its `send`. They go out one after the other, in the order
in which they were posted: a server that got a refusal before the notice that cancels the call would answer
the call meanwhile, and some die of that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio

from proxy.clock import Pulse
from proxy.errors import UpstreamError
from proxy.logs import get_logger

COURTESY_TIMEOUT_S: Final = 5.0  # for one of them: the others must not wait long behind a stuck server
MAX_WAITING: Final = 1_000  # more means that the server does not read

log = get_logger()


class Posts:
    """`send` hands a message over and raises UpstreamError if it cannot."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]], name: str) -> None:
        self._send = send
        self._name = name
        self._waiting: deque[bytes] = deque()
        self._came = Pulse()
        self._left = Pulse()
        self._sending = False
        self._overflown = False

    def post(self, message: bytes) -> None:
        """Send it soon. Dropped if too many wait already."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(message)
            self._came.beat()
        elif not self._overflown:
            self._overflown = True
            log.warning("upstream_messages_dropped", upstream=self._name, waiting=MAX_WAITING)

    async def deliver(self) -> None:
        """Runs as long as the session. What cannot be handed over is dropped."""
        while True:
            came = self._came.event
            if not self._waiting:
                self._overflown = False
                await came.wait()
                continue
            self._sending = True
            try:
                with anyio.move_on_after(COURTESY_TIMEOUT_S), suppress(UpstreamError):
                    await self._send(self._waiting.popleft())
            finally:
                self._sending = False
                self._left.beat()

    async def wait_delivered(self) -> None:
        """Until nothing waits any more. `deliver` must be running."""
        while self._waiting or self._sending:
            await self._left.event.wait()

    def __repr__(self) -> str:
        return f"<Posts to '{self._name}', {len(self._waiting)} waiting>"
