"""Legacy clients before a server that speaks Streamable HTTP: what they say and hear is the server's own.

Above: `downstream.legacy_http`, through `legacy.LegacyHandler`. Below: `upstream.base.Forwarder`. Sessions,
ids, statuses and streams are the upstream's; nothing is kept here that a restart could lose. Transports
2025-03-26 ... 2025-11-25, "Streamable HTTP"; contract section 6.

Where 2025 tasks are served, `http_tasks` stands before this, and watches the GET streams: it puts blocks of
ours between those of the upstream, and takes out what belongs to the call of a task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from http import HTTPMethod
from types import TracebackType
from typing import Final, Protocol

import anyio

from proxy.errors import ProxyError, UpstreamProtocolError
from proxy.owners import Owner
from proxy.protocol import names
from proxy.protocol.sse import Block, BlockSplitter, Event, EventTooLarge
from proxy.routing.get_streams import GetStream, GetStreams
from proxy.routing.legacy import HttpMessage, Reply
from proxy.routing.old_servers import OldServers, whole
from proxy.sessions.table import ID_PREFIX as SESSION_PREFIX
from proxy.upstream.base import Forwarded, Forwarder

_GET, _POST = HTTPMethod.GET, HTTPMethod.POST  # to name one of this enum takes a microsecond each time
AT_ONCE_BYTES: Final = 64 * 1024  # a body that is announced as no larger is read before it is written


class GetWatcher(Protocol):
    """Who looks after the GET streams of sessions. Nothing of it blocks."""

    def opened(self, session_id: str, owner: Owner, stream: GetStream) -> None: ...

    def closed(self, session_id: str, owner: Owner) -> None:
        """One of its streams; there may be others."""
        ...

    def takes(self, session_id: str, owner: Owner, event: Event) -> bool:
        """Whether this event of the upstream is not for the client."""
        ...


class HttpPassthrough:
    """Implements `LegacyHandler`. `max_bytes` bounds one event of a GET stream.

    `old` serves the clients of a server that turns out to speak HTTP+SSE alone.
    """

    def __init__(self, upstream: Forwarder, *, max_bytes: int, old: OldServers | None = None) -> None:
        self._upstream = upstream
        self._max_bytes = max_bytes
        self._old = old
        self._watcher: GetWatcher | None = None
        self.streams = GetStreams()

    @property
    def is_old(self) -> bool:
        """Whether the server has shown itself as one that nothing can be passed through to."""
        return self._old is not None and self._old.is_known

    def is_for_layer(self, message: HttpMessage) -> bool:
        """Whether it belongs to a session of our own: before such a server, which after a restart may not
        have shown itself yet."""
        if self._old is None:
            return False
        return self._old.is_known or (message.header(names.H_SESSION_ID) or "").startswith(SESSION_PREFIX)

    def watch(self, watcher: GetWatcher) -> None:
        """From now on `watcher` looks after the GET streams."""
        self._watcher = watcher

    def serve(self, message: HttpMessage) -> AbstractAsyncContextManager[Reply]:
        """See `LegacyHandler`. A client that leaves breaks our connection with the upstream, as it would have
        broken its own."""
        if self._old is not None and self.is_for_layer(message):
            return self._old.serve(message)
        if message.is_a(names.INITIALIZE):
            return self._initialize(message)
        if message.method is _GET:
            return self._get(message)
        return self.pass_on(message)

    def pass_on(self, message: HttpMessage) -> AbstractAsyncContextManager[Reply]:
        """See `LegacyHandler`. For a message that is known to need nothing else: no `initialize`, no GET, and
        of no session of our own."""
        return _Passed(self._forward(message))

    def drain(self) -> None:
        self.streams.end_all()
        if self._old is not None:
            self._old.drain()

    def _forward(
        self, message: HttpMessage, *, plain: bool = False
    ) -> AbstractAsyncContextManager[Forwarded]:
        body = message.body if message.method is _POST else None
        return self._upstream.forward(message.method, message.headers, body, query=message.query, plain=plain)

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
                with self._open_stream(session_id, message.owner) as stream:
                    tasks.start_soon(self._read, answer, stream, session_id, message.owner)
                    yield Reply(answer.status, answer.headers, stream)
                tasks.cancel_scope.cancel()

    @contextmanager
    def _open_stream(self, session_id: str, owner: Owner) -> Iterator[GetStream]:
        try:
            with self.streams.open(session_id, owner) as stream:
                if self._watcher is not None:
                    self._watcher.opened(session_id, owner, stream)
                yield stream
        finally:
            if self._watcher is not None:
                self._watcher.closed(session_id, owner)

    async def _read(self, answer: Forwarded, stream: GetStream, session_id: str, owner: Owner) -> None:
        splitter = BlockSplitter(self._max_bytes)
        try:
            async for chunk in answer.chunks:
                for block in splitter.feed(chunk):
                    if not self._is_taken(block, session_id, owner):
                        await stream.pass_on(block.raw)
            await stream.pass_on(splitter.rest())
        except EventTooLarge as exc:
            stream.end(UpstreamProtocolError(f"on the GET stream {exc} (limits.message)"))
        except ProxyError as exc:
            stream.end(exc)
        stream.end()

    def _is_taken(self, block: Block, session_id: str, owner: Owner) -> bool:
        watcher, event = self._watcher, block.event
        return watcher is not None and event is not None and watcher.takes(session_id, owner, event)


class _Passed:
    """The reply to what was forwarded. No generator: every message but few comes through here."""

    __slots__ = ("_forwarded",)

    def __init__(self, forwarded: AbstractAsyncContextManager[Forwarded]) -> None:
        self._forwarded = forwarded

    async def __aenter__(self) -> Reply:
        answer = await self._forwarded.__aenter__()
        try:
            if (body := answer.at_hand()) is not None:  # as of nearly all
                return Reply(answer.status, answer.headers, body)
            return await reply_of(answer)
        except BaseException as exc:
            await self._forwarded.__aexit__(type(exc), exc, exc.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._forwarded.__aexit__(kind, exc, trace)


async def reply_of(answer: Forwarded) -> Reply:
    """What was answered, whole if it is small, else as it comes. Raises UpstreamClosed."""
    if (whole := answer.at_hand()) is not None:
        return Reply(answer.status, answer.headers, whole)
    length = answer.header("Content-Length") or ""
    if length.isdecimal() and int(length) <= AT_ONCE_BYTES:
        return Reply(answer.status, answer.headers, b"".join([chunk async for chunk in answer.chunks]))
    return Reply(answer.status, answer.headers, answer.chunks)
