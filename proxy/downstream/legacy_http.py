"""Legacy clients at the HTTP entrance: who may come in, and how the response of a handler is written.

Above: `http`, which has read the message and judged its era. Below: a `routing.legacy.LegacyHandler`, which
does everything else. Transports 2025-03-26 ... 2025-11-25, "Streamable HTTP"; contract section 6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext
from http import HTTPMethod, HTTPStatus
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from proxy.clock import Clock
from proxy.downstream.posted import Posted
from proxy.downstream.responses import refusal
from proxy.downstream.streams import WrittenStreams
from proxy.errors import ProxyError, ShuttingDown, UpstreamError
from proxy.limits import Gauge
from proxy.logs import get_logger
from proxy.metrics import Metrics, Outcome
from proxy.owners import Owner
from proxy.protocol.jsonrpc import Request
from proxy.routing.counted import counted
from proxy.routing.legacy import HttpMessage, LegacyHandler, Reply

AT_ONCE_BYTES: Final = 64 * 1024  # the transport takes as much without waiting for the client
EVENT_STREAM: Final = "text/event-stream"
NOT_OURS: Final = web.ResponseKey("not_ours", tuple)
"""Headers that aiohttp would add to a response, and that its handler did not give."""

_ADDED: Final = ("Content-Type", "Server")

log = get_logger()


class LegacyEntrance:
    """Serves the messages of legacy clients. `watch` must be running."""

    def __init__(
        self, handler: LegacyHandler, *, calls: Gauge, listens: Gauge, clock: Clock, metrics: Metrics
    ) -> None:
        self._handler = handler
        self._clock = clock
        self._metrics = metrics
        self._calls = calls
        self._listens = listens
        self._streams = WrittenStreams(clock)
        self._retry_after_s: int | None = None

    async def watch(self) -> None:
        await self._streams.watch()

    def drain(self, retry_after_s: int) -> None:
        """Refuse new calls and streams from now on, and end the streams that never end by themselves."""
        self._retry_after_s = retry_after_s
        self._handler.drain()

    async def post(self, http: web.Request, posted: Posted, owner: Owner) -> web.StreamResponse:
        """Raises ProxyError. What asks for nothing is never refused: a call may be waiting for it."""
        message = HttpMessage(
            HTTPMethod.POST,
            tuple(http.headers.items()),
            owner,
            posted.body,
            posted.messages,
            posted.is_batch,
            http.rel_url.raw_query_string,
        )
        try:
            if (asks := _first_request(posted)) is None:
                return await self._serve(http, message)
            with counted(asks.method, "legacy", self._metrics, self._clock) as ending:
                self._refuse_if_draining()
                with self._calls.hold():
                    response = await self._serve(http, message)
                ending.outcome = _outcome_of(response)
                return response
        except UpstreamError as exc:
            return refusal(posted.rid, exc, exc.status or HTTPStatus.BAD_GATEWAY)

    async def other(self, http: web.Request, owner: Owner) -> web.StreamResponse:
        """GET, HEAD and DELETE. Raises ProxyError."""
        method = HTTPMethod(http.method)
        message = HttpMessage(method, tuple(http.headers.items()), owner, query=http.rel_url.raw_query_string)
        if method is HTTPMethod.GET:
            self._refuse_if_draining()
        with self._listens.hold() if method is HTTPMethod.GET else nullcontext():
            try:
                return await self._serve(http, message)
            except UpstreamError as exc:
                return refusal(None, exc, exc.status or HTTPStatus.BAD_GATEWAY)

    def _refuse_if_draining(self) -> None:
        if self._retry_after_s is not None:
            raise ShuttingDown(retry_after_s=self._retry_after_s)

    async def _serve(self, http: web.Request, message: HttpMessage) -> web.StreamResponse:
        """Raises ProxyError as long as nothing was written."""
        response: web.StreamResponse | None = None
        try:
            async with self._handler.serve(message) as reply:
                response = _response_of(reply)
                await self._write(http, response, reply)
        except Exception as exc:
            if response is None or not response.prepared:
                raise
            _cut(http, message, exc)
        return response

    async def _write(self, http: web.Request, response: web.StreamResponse, reply: Reply) -> None:
        if isinstance(response, web.Response):
            await response.prepare(http)
            await response.write_eof()
            return
        chunks = _once(reply.body) if isinstance(reply.body, bytes) else reply.body
        await self._streams.write(http, response, chunks, is_events=_takes_comments(response))


def _first_request(posted: Posted) -> Request | None:
    """Stands for all of a batch, which has one response."""
    return next((message for message in posted.messages if isinstance(message, Request)), None)


def _outcome_of(response: web.StreamResponse) -> Outcome:
    """As far as the status tells: what is in the body is not read here."""
    if response.status < HTTPStatus.BAD_REQUEST:
        return Outcome.RESULT
    if response.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return Outcome.REFUSED
    return Outcome.UPSTREAM_FAILED


def _response_of(reply: Reply) -> web.StreamResponse:
    headers = CIMultiDict(reply.headers)
    if isinstance(reply.body, bytes) and len(reply.body) <= AT_ONCE_BYTES:
        response: web.StreamResponse = web.Response(status=reply.status, headers=headers, body=reply.body)
    else:
        response = web.StreamResponse(status=reply.status, headers=headers)
        if _takes_comments(response):
            response.headers.setdefault("X-Accel-Buffering", "no")  # nginx would hold events back
    if missing := tuple(name for name in _ADDED if name not in headers):
        response[NOT_OURS] = missing
    return response


def leave_as_given(response: web.StreamResponse) -> None:
    """Take off what aiohttp has added to the response of a handler. To be called before its head goes."""
    for name in response.get(NOT_OURS, ()):
        response.headers.popall(name, None)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _takes_comments(response: web.StreamResponse) -> bool:
    """An event stream that is not compressed."""
    headers = response.headers
    return (
        headers.get("Content-Type", "").partition(";")[0].strip().lower() == EVENT_STREAM
        and headers.get("Content-Encoding", "identity").lower() == "identity"
        and "Content-Length" not in headers
    )


def _cut(http: web.Request, message: HttpMessage, exc: Exception) -> None:
    """What is half written must not be followed by anything: without us the connection would break, too."""
    match exc:
        case ConnectionError():
            log.debug("client_gone", method=message.method.value)
        case ProxyError():
            log.warning("upstream_failed", reason=exc.message)
        case _:
            log.exception("request_failed", method=message.method.value)
    if http.transport is not None:
        http.transport.abort()
