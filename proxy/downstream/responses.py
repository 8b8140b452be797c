"""Writes what comes of one request: plain JSON, or an event stream.

Above: `http`. Below: an `Exchange`, in which the router tells, and aiohttp. A response is plain JSON when
nothing but the result is to be sent, and becomes an event stream with the first notification, or after some
silence, so that a long call can be kept alive with comments. Streamable HTTP 2026-07-28, "Sending Messages
to the Server"; contract section 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from aiohttp import web
from anyio.lowlevel import checkpoint

from proxy.clock import Clock
from proxy.downstream.base import headers_of_fault, message_of_fault, pieces_of
from proxy.downstream.exchange import Exchange
from proxy.errors import ProxyError
from proxy.protocol import names, sse
from proxy.protocol.envelope import LARGE
from proxy.protocol.jsonrpc import RequestId
from proxy.protocol.outline import Pieces, whole
from proxy.routing.base import ClientRequest

PIECE_BYTES: Final = 256 * 1024
STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}

JSON_ONLY: Final = frozenset({names.TASKS_GET})
"""Methods that are answered at once, and never by a stream (contract section 4)."""

Header = tuple[str, str]


class Responder:
    """Of one request. `response` is what was begun, None before that.

    `quiet_s` is after how much silence a stream begins, or gets a comment.
    """

    def __init__(self, http: web.Request, request: ClientRequest, clock: Clock, *, quiet_s: float) -> None:
        self._http = http
        self._id = request.id
        self._clock = clock
        self._quiet_s = quiet_s
        self._may_stream = accepts_stream(http) and request.method not in JSON_ONLY
        self._stream: web.StreamResponse | None = None
        self.response: web.StreamResponse | None = None

    async def write(self, exchange: Exchange) -> None:
        """What is told, as it is told, and the end. Raises ConnectionError if the client is gone, or was cut
        since it has stopped reading, as its `Connection` does."""
        while True:
            changed = exchange.changed.event
            if told := exchange.take(writing=True):
                await self._write_told(told)
                exchange.written()
            elif exchange.done:
                await self._write_end(exchange)
                return
            elif not await self._clock.wait(changed, self._quiet_s):
                await self._write_events([sse.comment()])

    async def _write_told(self, messages: list[bytes]) -> None:
        """All of them, which then are not in the list any more: a large one is not held beside its event."""
        if sum(map(len, messages)) <= LARGE:
            await self._write_events([sse.encode(message) for message in messages])
            return
        messages.reverse()
        while messages:
            await self._write_events([sse.encode(messages.pop())])

    async def _write_events(self, events: list[bytes]) -> None:
        """Nothing where the client takes no stream."""
        if not self._may_stream:
            return
        if self._stream is None:
            self._stream = await self._begin(HTTPStatus.OK, STREAM_HEADERS.items())
            events = [sse.comment(), *events]  # some hold the status back until a byte of body (F03)
        if len(events[-1]) <= LARGE:
            events = [b"".join(events)]
        for event in events:
            await self._write(self._stream, event)

    async def _write_end(self, exchange: Exchange) -> None:
        pieces, status, headers = _end_of(self._id, exchange)
        if self._stream is not None:
            response, pieces = self._stream, (sse.encode(whole(pieces)),)
        else:
            size = sum(map(len, pieces))
            headers = [("Content-Type", "application/json"), ("Content-Length", str(size)), *headers]
            response = await self._begin(status, headers)
            if size <= PIECE_BYTES:
                pieces = (whole(pieces),)
        for piece in pieces:
            await self._write(response, piece)
        await response.write_eof()

    async def _begin(self, status: HTTPStatus, headers: Iterable[Header]) -> web.StreamResponse:
        self.response = web.StreamResponse(status=status)
        self.response.headers.extend(headers)
        await self.response.prepare(self._http)
        return self.response

    @staticmethod
    async def _write(response: web.StreamResponse, data: bytes | memoryview) -> None:
        """In pieces, so that a reader who is slow can be told from one who has stopped. One who is fast would
        keep the event loop busy: while the socket takes all, a write does not wait."""
        for start in range(0, len(data), PIECE_BYTES):
            if start:
                await checkpoint()
            await response.write(data[start : start + PIECE_BYTES])


def refusal(rid: RequestId | None, fault: ProxyError, status: HTTPStatus | None = None) -> web.Response:
    """The error response to a message that was not served; `status` where it is not the fault's own."""
    headers = [("Content-Type", "application/json"), *headers_of_fault(fault)]
    return plain_response(status or fault.http_status, headers, message_of_fault(rid, fault))


def plain_response(status: HTTPStatus, headers: Iterable[Header], body: bytes | None = None) -> web.Response:
    response = web.Response(status=status, body=body)
    response.headers.extend(headers)
    return response


def _end_of(rid: RequestId, exchange: Exchange) -> tuple[Pieces, HTTPStatus, list[Header]]:
    if exchange.answer is not None:
        return *pieces_of(rid, exchange.answer), []
    fault = exchange.fault
    assert fault is not None  # an exchange that is done has one or the other
    return (message_of_fault(rid, fault),), fault.http_status, headers_of_fault(fault)


def accepts_stream(http: web.Request) -> bool:
    """A client that names what it accepts, and no event stream among it, gets JSON alone."""
    accept = http.headers.getall("Accept", ())
    kinds = {kind.partition(";")[0].strip().lower() for value in accept for kind in value.split(",")}
    return not accept or bool(kinds & {"text/event-stream", "text/*", "*/*"})
