"""A `LegacyHandler` that does as the test says, and what it was given."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from proxy.clock import Pulse
from proxy.routing.legacy import HttpMessage, Reply

EVENTS: Sequence[tuple[str, str]] = [("Content-Type", "text/event-stream")]
JSON: Sequence[tuple[str, str]] = [("Content-Type", "application/json")]
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{}}'


class Told:
    """A body that is told piece by piece."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._changed = Pulse()

    @property
    def is_behind(self) -> bool:
        """Whether something was told that nobody has taken yet."""
        return bool(self._chunks)

    def tell(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._changed.beat()

    def end(self, error: Exception | None = None) -> None:
        self._ended, self._error = True, error
        self._changed.beat()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks and not self._ended:
            await self._changed.event.wait()
        if self._chunks:
            return self._chunks.popleft()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration


@dataclass
class PlayedLegacy:
    """Replies with `reply`, or raises it, or with what `make` makes each time; `held` makes it wait first.
    `left` counts contexts that ended."""

    reply: Reply | Exception = field(default_factory=lambda: Reply(200, JSON, RESULT))
    make: Callable[[], Reply] | None = None
    held: anyio.Event | None = None
    at_exit: Exception | None = None
    seen: list[HttpMessage] = field(default_factory=list)
    left: int = 0
    drained: bool = False

    @asynccontextmanager
    async def serve(self, message: HttpMessage) -> AsyncIterator[Reply]:
        self.seen.append(message)
        try:
            if self.held is not None:
                await self.held.wait()
            if isinstance(self.reply, Exception):
                raise self.reply
            yield self.reply if self.make is None else self.make()
            if self.at_exit is not None:
                raise self.at_exit
        finally:
            self.left += 1

    def drain(self) -> None:
        self.drained = True
        if isinstance(self.reply, Reply) and isinstance(self.reply.body, Told):
            self.reply.body.end()


def legacy_call(id: Any = 1, method: str = "tools/call", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
