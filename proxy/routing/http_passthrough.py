"""Legacy clients before a server that speaks Streamable HTTP: what they say and hear is the server's own.

Above: `downstream.legacy_http`, through `legacy.LegacyHandler`. Below: `upstream.base.Forwarder`. Sessions,
ids, statuses and streams are the upstream's; nothing is kept here that a restart could lose. Transports
2025-03-26 ... 2025-11-25, "Streamable HTTP"; contract section 6.

Where our own tasks come in: `serve` has the message before it goes up, with all that was parsed of it; what
is forwarded with `plain` can be read and rewritten before it goes back, as `_initialize` does; `_forward` is
the one place where headers leave; and `streams` takes blocks of ours into a session's GET stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPMethod
from typing import Final

import anyio

from proxy.errors import ProxyError, UpstreamProtocolError
from proxy.protocol import names
from proxy.protocol.sse import BlockSplitter, EventTooLarge
from proxy.routing.get_streams import GetStream, GetStreams
from proxy.routing.legacy import HttpMessage, Reply
from proxy.routing.old_servers import OldServers, whole
from proxy.upstream.base import Forwarded, Forwarder

AT_ONCE_BYTES: Final = 64 * 1024  # a body that is announced as no larger is read before it is written


class HttpPassthrough:
    """Implements `LegacyHandler`. `max_bytes` bounds one event of a GET stream.

    `old` serves the clients of a server that turns out to speak HTTP+SSE alone.
    """

    def __init__(self, upstream: Forwarder, *, max_bytes: int, old: OldServers | None = None) -> None:
        self._upstream = upstream
        self._max_bytes = max_bytes
        self._old = old
        self.streams = GetStreams()

    def serve(self, message: HttpMessage) -> AbstractAsyncContextManager[Reply]:
        """See `LegacyHandler`. A client that leaves breaks our connection with the upstream, as it would have
        broken its own."""
        if self._old is not None and self._old.is_known:
            return self._old.serve(message)
        match message.method:
            case HTTPMethod.GET:
                return self._get(message)
            case HTTPMethod.POST if message.is_a(names.INITIALIZE):
                return self._initialize(message)
            case _:
                return self._pass(message)

    def drain(self) -> None:
        self.streams.end_all()
        if self._old is not None:
            self._old.drain()

    def _forward(
        self, message: HttpMessage, *, plain: bool = False
    ) -> AbstractAsyncContextManager[Forwarded]:
        body = message.body if message.method is HTTPMethod.POST else None
        return self._upstream.forward(
            message.method.value, message.headers, body, query=message.query, plain=plain
        )

    @asynccontextmanager
    async def _pass(self, message: HttpMessage) -> AsyncIterator[Reply]:
        async with self._forward(message) as answer:
            yield await reply_of(answer)

    @asynccontextmanager
    async def _initialize(self, message: HttpMessage) -> AsyncIterator[Reply]:
        async with self._forward(message, plain=True) as answer:
            if self._old is None or not self._old.may_be_meant(answer):
                yield await reply_of(answer)
                return
            refusal = await whole(answer)
        async with self._old.serve_refused(message, refusal) as reply:
            yield reply

    @asynccontextmanager
    async def _get(self, message: HttpMessage) -> AsyncIterator[Reply]:
        """Block by block, so that something of ours can stand between two of them."""
        async with self._forward(message, plain=True) as answer:
            if not answer.is_event_stream or answer.is_encoded:
                yield await reply_of(answer)
                return
            session_id = message.header(names.H_SESSION_ID) or ""
            async with anyio.create_task_group() as tasks:
                with self.streams.open(session_id, message.owner) as stream:
                    tasks.start_soon(self._read, answer, stream)
                    yield Reply(answer.status, answer.headers, stream)
                tasks.cancel_scope.cancel()

    async def _read(self, answer: Forwarded, stream: GetStream) -> None:
        splitter = BlockSplitter(self._max_bytes)
        try:
            async for chunk in answer.chunks:
                for block in splitter.feed(chunk):
                    await stream.pass_on(block.raw)
            await stream.pass_on(splitter.rest())
        except EventTooLarge as exc:
            stream.end(UpstreamProtocolError(f"on the GET stream {exc} (limits.message)"))
        except ProxyError as exc:
            stream.end(exc)
        stream.end()


async def reply_of(answer: Forwarded) -> Reply:
    """What was answered, whole if it is small, else as it comes. Raises UpstreamClosed."""
    length = answer.header("Content-Length") or ""
    if length.isdecimal() and int(length) <= AT_ONCE_BYTES:
        return Reply(answer.status, answer.headers, b"".join([chunk async for chunk in answer.chunks]))
    return Reply(answer.status, answer.headers, answer.chunks)
