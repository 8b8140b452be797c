"""Writes the response of a handler to an HTTP client: all of it at once, or as it comes.

Above: `legacy_http` and `well_known`. Below: `streams`, and aiohttp. The head is the handler's, with nothing
added but what belongs to our own hop. Contract section 6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from proxy.clock import Clock
from proxy.downstream.streams import WrittenStreams
from proxy.errors import ProxyError
from proxy.logs import get_logger
from proxy.room import Place
from proxy.routing.legacy import Reply

AT_ONCE_BYTES: Final = 64 * 1024  # the transport takes as much without waiting for the client
EVENT_STREAM: Final = "text/event-stream"

_ADDED: Final = ("Content-Type", "Server")

log = get_logger()


class _Whole(web.Response):
    """`not_given`: headers that aiohttp would add, and that the handler did not give."""

    not_given: Sequence[str] = ()


class _Streamed(web.StreamResponse):
    """As `_Whole`."""

    not_given: Sequence[str] = ()


class ReplyWriter:
    """For any number of responses at once. `watch` must be running."""

    def __init__(self, clock: Clock) -> None:
        self._streams = WrittenStreams(clock)

    async def watch(self) -> None:
        """Keep quiet streams alive until cancelled."""
        await self._streams.watch()

    async def write(
        self,
        http: web.Request,
        serving: AbstractAsyncContextManager[Reply],
        place: Place | None = None,
    ) -> web.StreamResponse:
        """Raises ProxyError if there is no reply; as soon as something was written, it can only break off.
        `place`: where large pieces of it are counted while they are written."""
        response: web.StreamResponse | None = None
        try:
            async with serving as reply:
                response = _response_of(reply)
                await self._write(http, response, reply, place)
        except Exception as exc:
            if response is None or not response.prepared:
                raise
            _cut(http, exc)
        return response

    async def _write(
        self, http: web.Request, response: web.StreamResponse, reply: Reply, place: Place | None
    ) -> None:
        if isinstance(response, web.Response):
            await response.prepare(http)
            await response.write_eof()
            return
        chunks = _once(reply.body) if isinstance(reply.body, bytes) else reply.body
        is_events = _takes_comments(response)
        await self._streams.write(http, response, chunks, is_events=is_events, place=place)


def _response_of(reply: Reply) -> _Whole | _Streamed:
    headers = CIMultiDict(reply.headers)
    if isinstance(reply.body, bytes) and len(reply.body) <= AT_ONCE_BYTES:
        response: _Whole | _Streamed = _Whole(status=reply.status, headers=headers, body=reply.body)
    else:
        response = _Streamed(status=reply.status, headers=headers)
        if isinstance(reply.body, bytes):
            response.content_length = len(reply.body)
        if _takes_comments(response):
            response.headers.setdefault("X-Accel-Buffering", "no")  # nginx would hold events back
    response.not_given = [name for name in _ADDED if name not in headers]
    return response


def leave_as_given(response: web.StreamResponse) -> None:
    """Take off what aiohttp has added to the response of a handler. To be called before its head goes."""
    if isinstance(response, _Whole | _Streamed):
        for name in response.not_given:
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


def _cut(http: web.Request, exc: Exception) -> None:
    """What is half written must not be followed by anything: without us the connection would break, too."""
    match exc:
        case ConnectionError():
            log.debug("client_gone", method=http.method)
        case ProxyError():
            log.warning("upstream_failed", reason=exc.message)
        case _:
            log.exception("request_failed", method=http.method)
    if http.transport is not None:
        http.transport.abort()
