"""An upstream behind `upstream.base.Forwarder`, played by the test."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from proxy.clock import Pulse
from proxy.errors import ProxyError
from proxy.routing.legacy import Reply
from proxy.upstream.base import Forwarded

Headers = Sequence[tuple[str, str]]

JSON: Headers = [("Content-Type", "application/json")]
EVENTS: Headers = [("Content-Type", "text/event-stream")]


class Body:
    """A response body that the test writes while it is read."""

    def __init__(self, *chunks: bytes, ended: bool = True) -> None:
        self._chunks = deque(chunks)
        self._end: bool | ProxyError = ended
        self._changed = Pulse()
        self.reads = 0

    def say(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._changed.beat()

    def end(self, error: ProxyError | None = None) -> None:
        self._end = error or True
        self._changed.beat()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks and self._end is False:
            await self._changed.event.wait()
        self.reads += 1
        if self._chunks:
            return self._chunks.popleft()
        if isinstance(self._end, ProxyError):
            raise self._end
        raise StopAsyncIteration


async def body_of(reply: Reply) -> bytes:
    """All of it, once it has ended."""
    return reply.body if isinstance(reply.body, bytes) else b"".join([chunk async for chunk in reply.body])


@dataclass
class Asked:
    """What was forwarded; `left` once its context was left."""

    method: str
    headers: Headers
    body: bytes | None
    query: str
    path: str | None
    plain: bool
    left: bool = False


@dataclass
class FakeForwarder:
    """Answers in the order of `answers`; a fault is raised."""

    answers: deque[Forwarded | ProxyError] = field(default_factory=deque)
    asked: list[Asked] = field(default_factory=list)

    def will(self, status: int, headers: Headers, body: Body | bytes = b"") -> None:
        self.answers.append(Forwarded(status, headers, Body(body) if isinstance(body, bytes) else body))

    @asynccontextmanager
    async def forward(
        self,
        method: str,
        headers: Headers,
        body: bytes | None = None,
        *,
        query: str = "",
        path: str | None = None,
        plain: bool = False,
    ) -> AsyncIterator[Forwarded]:
        asked = Asked(method, headers, body, query, path, plain)
        self.asked.append(asked)
        answer = self.answers.popleft()
        if isinstance(answer, ProxyError):
            raise answer
        try:
            yield answer
        finally:
            asked.left = True
