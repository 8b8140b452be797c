"""Servers that nothing can be passed through to, found out where a legacy client begins: those that speak
HTTP+SSE alone, and modern ones.

Above: `http_passthrough`. Below: the session layer, which serves clients of such a server, and a `Forwarder`
to ask it. The handshake that it refused has not run, so handing it on is no second run. Transports
2025-11-25, "Backwards Compatibility"; contract sections 2 and 7.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPMethod, HTTPStatus
from typing import Final

import anyio

from proxy.eras.era import Era
from proxy.eras.to_modern import is_discover_result, is_modern_error
from proxy.errors import UpstreamError, UpstreamProtocolError
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import JsonError, check
from proxy.protocol.sse import BlockSplitter, EventDecoder, EventTooLarge
from proxy.routing.legacy import HttpMessage, LegacyHandler, Reply
from proxy.upstream.base import Forwarded, Forwarder, KnownEra, KnownServer

OLD_SERVERS_SAY: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
ENDPOINT_TIMEOUT_S: Final = 3.0  # old servers send it at once; the client waits meanwhile
MAX_REFUSAL_BYTES: Final = 1024 * 1024

_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_ENDPOINT: Final = "endpoint"
_MAX_DEPTH: Final = 64  # of a refusal

log = get_logger()


class OldServers:
    """Has `handler` serve what is for such a server, once it has shown itself. They share `known`.

    `era` is what is known of the server's, shared too; `probe_params` are those of `server/discover`.
    """

    def __init__(
        self,
        handler: LegacyHandler,
        known: KnownServer,
        upstream: Forwarder,
        era: KnownEra | None = None,
        probe_params: bytes = b"{}",
    ) -> None:
        self._handler = handler
        self._known = known
        self._upstream = upstream
        self._era = era
        self._probe_params = probe_params
        self._speaks_http = False

    @property
    def is_known(self) -> bool:
        return self._known.is_old or (self._era is not None and not self._era.serves_legacy)

    def serve(self, message: HttpMessage) -> AbstractAsyncContextManager[Reply]:
        """See `LegacyHandler`."""
        return self._handler.serve(message)

    def drain(self) -> None:
        self._handler.drain()

    def may_be_meant(self, answer: Forwarded) -> bool:
        """Whether a handshake was answered as such a server does; one that ever accepted one is none."""
        self._speaks_http = self._speaks_http or answer.status == HTTPStatus.OK
        return answer.status in OLD_SERVERS_SAY and not self._speaks_http and not answer.is_encoded

    @asynccontextmanager
    async def serve_refused(self, message: HttpMessage, refusal: Reply) -> AsyncIterator[Reply]:
        """A handshake that was refused like that: by the handler, if the server is an old one.

        A 401 or 403 to the question is the answer, for an old server may ask for credentials there alone.
        """
        is_of_modern = is_modern(refusal)
        found = False if is_of_modern else await self._ask(message)
        if isinstance(found, Reply):
            yield found
            return
        if found:
            log.info("upstream_is_old")
            self._known.is_old = True
        elif self._era is None or not (is_of_modern or await self._answers_discovery(message)):
            yield refusal
            return
        else:
            self._era.corrected(Era.MODERN)
        async with self._handler.serve(message) as reply:
            yield reply

    async def _answers_discovery(self, message: HttpMessage) -> bool:
        """Whether `server/discover`, asked with the client's credentials, is answered as modern servers
        do."""
        dropped = ("accept", "content-type", "mcp-protocol-version")
        headers = [(key, value) for key, value in message.headers if key.lower() not in dropped]
        headers += [("Accept", "application/json, text/event-stream"), ("Content-Type", "application/json")]
        headers += [(names.H_PROTOCOL_VERSION, names.LATEST_MODERN), (names.H_METHOD, names.DISCOVER)]
        body = jsonrpc.request(0, names.DISCOVER, self._probe_params)
        try:
            with anyio.move_on_after(ENDPOINT_TIMEOUT_S):
                async with self._upstream.forward(
                    HTTPMethod.POST.value, headers, body, query=message.query, plain=True
                ) as answer:
                    return _is_discovery(await whole(answer))
        except UpstreamError as exc:
            log.info("upstream_discovery_not_answered", reason=exc.message)
        return False

    async def _ask(self, message: HttpMessage) -> Reply | bool:
        """Whether a GET brings the event stream of 2024-11-05, or how it was refused."""
        dropped = ("accept", "content-type")
        headers = [(key, value) for key, value in message.headers if key.lower() not in dropped]
        headers.append(("Accept", "text/event-stream"))
        try:
            with anyio.move_on_after(ENDPOINT_TIMEOUT_S):
                async with self._upstream.forward(
                    HTTPMethod.GET.value, headers, query=message.query, plain=True
                ) as answer:
                    return await whole(answer) if answer.status in _REFUSED else await _is_old(answer)
        except (UpstreamError, EventTooLarge) as exc:
            log.info("upstream_sse_not_offered", reason=str(exc))
        return False


async def _is_old(answer: Forwarded) -> bool:
    """Whether the first event names the endpoint for messages."""
    if not answer.is_event_stream or answer.is_encoded:
        return False
    splitter = BlockSplitter(MAX_REFUSAL_BYTES)
    async for chunk in answer.chunks:
        for block in splitter.feed(chunk):
            if block.event is not None:
                return block.event.event == _ENDPOINT
    return False


def _is_discovery(reply: Reply) -> bool:
    """An answer as JSON, or on an event stream."""
    assert isinstance(reply.body, bytes)
    events = EventDecoder(MAX_REFUSAL_BYTES).feed(reply.body)
    for text in [reply.body, *(event.data for event in events)]:
        try:
            check(text, _MAX_DEPTH)
        except JsonError:
            continue
        if is_discover_result(text) or is_modern_error(text):
            return True
    return False


def is_modern(refusal: Reply) -> bool:
    """Whether only a server of the modern era says this (VER-011, VER-013)."""
    assert isinstance(refusal.body, bytes)
    try:
        check(refusal.body, _MAX_DEPTH)
    except JsonError:
        return False
    return is_modern_error(refusal.body)


async def whole(answer: Forwarded) -> Reply:
    """A refusal, read to its end. Raises UpstreamError."""
    body = bytearray()
    async for chunk in answer.chunks:
        body += chunk
        if len(body) > MAX_REFUSAL_BYTES:
            raise UpstreamProtocolError(f"upstream sent an error of more than {MAX_REFUSAL_BYTES} bytes")
    return Reply(answer.status, answer.headers, bytes(body))
