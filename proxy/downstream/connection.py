"""One connection of a client, and what it may cost beside the requests on it.

Above: `server`. aiohttp reads HTTP; what is here bounds what it does not: heads that never end, connections
that nobody uses, too many of either, clients that do not read what they are answered. It answers a malformed
request, or one with headers over the limit, with the start of what it could not read, and logs that too: it
may be a credential. Ours say what was wrong and nothing else, and let the page read it that sent the request
(F30). Contract section 8, "Bounds"; field reports F23 and F40.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from operator import itemgetter
from typing import Any, Final

from aiohttp import EMPTY_PAYLOAD, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import _ErrInfo

from proxy.downstream.guard import ANYBODY, Guard
from proxy.downstream.heads import HeadTooLarge, body_of, origins_in, raw_refusal, size_of
from proxy.logs import get_logger

WRITE_TIMEOUT_S: Final = 60.0  # who reads nothing of a full buffer for so long is cut; no task is harmed

MAX_HEADERS: Final = 128  # of one request; clients and the gateways before them send some thirty
WHOLE_HEAD: Final = 4  # headers of the largest size that one request may have
MADE_ROOM: Final = 10  # a tenth of all connections is ended at once: to look for the oldest takes time
_TOO_MANY: Final = "Too many headers received"  # aiohttp's words, which are all that it says

log = get_logger()


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """`header_bytes`: of one header, or the request line. `head_s`: from the first byte of a request to the
    end of its headers, and from the connection to its first request. `idle_s`: between two requests.
    `write_s`: for the client to read what fills the buffers, whatever response it is of."""

    header_bytes: int
    connections: int = 10_000
    idle_s: float = 660.0
    head_s: float = 30.0
    write_s: float = WRITE_TIMEOUT_S


class Connection(web.RequestHandler):
    """See the module. To a request that comes in one piece, and a response that the buffers take, nothing is
    added but a look."""

    __slots__ = (
        "_before_head",
        "_body",
        "_bounds",
        "_guard",
        "_head",
        "_head_timer",
        "_most_of_a_head",
        "_origins",
        "_wire",
        "_write_timer",
    )

    def __init__(self, manager: Server, *, bounds: ConnectionBounds, guard: Guard, **settings: Any) -> None:
        super().__init__(
            manager,
            max_field_size=bounds.header_bytes,
            max_line_size=bounds.header_bytes,
            max_headers=MAX_HEADERS,
            keepalive_timeout=bounds.idle_s,
            auto_decompress=False,  # a body that is compressed is refused, not unpacked first
            **settings,
        )
        self._bounds = bounds
        self._guard = guard
        self._most_of_a_head = WHOLE_HEAD * bounds.header_bytes
        self._body: StreamReader = EMPTY_PAYLOAD  # of the request that came last, which may wait for others
        self._head = bytearray()  # of what comes behind that, in parts: those before the last
        self._before_head = 0  # bytes that came with the end of what was before, and may be of it as well
        self._origins: Sequence[str] = ()  # of a request that could not be read: no other one follows
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wire = self.transport
        self._begin_head()
        assert isinstance(self._manager, Server)
        if not self._manager.has_room():
            log.warning("connection_refused", connections=self._bounds.connections)
            said = f"{self._bounds.connections} connections are open (limits.connections); try again later"
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, said)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end_head()
        self._end_write()
        self._wire = None
        self._body = EMPTY_PAYLOAD  # which does not know us
        super().connection_lost(exc)

    async def start(self) -> None:
        """aiohttp's loop over the requests. What is unread at its end would keep a closed connection open."""
        try:
            await super().start()
        finally:
            if self._wire is not None and self._wire.get_write_buffer_size():
                self._begin_write()

    def data_received(self, data: bytes) -> None:
        is_head, seen = self._body.is_eof(), self._request_count
        super().data_received(data)
        if self._request_count == seen:
            if not is_head:
                self._before_head = len(data) or self._before_head
            elif data:
                self._take_part(data)
            return
        last, self._body = self._messages[-1]
        at_most = self._before_head + len(self._head) + len(data)
        if at_most > self._most_of_a_head or type(last) is _ErrInfo:
            self._look_at_last(self._request_count - seen, data)
        self._before_head = len(data) or self._before_head
        if self._head_timer is not None or self._head:
            self._end_head()

    @property
    def is_closing(self) -> bool:
        return bool(self._force_close)

    @property
    def idle_since(self) -> float | None:
        """When its last response ended, on the loop's clock; None if it is in use."""
        if self._force_close or not self._waits_for_head():
            return None
        return self._next_keepalive_close_time - self._bounds.idle_s

    # -- the head of a request ----------------------------------------------------------------------

    def _waits_for_head(self) -> bool:
        waiter = self._waiter
        return self._request_count == 0 if waiter is None else not waiter.done()

    def _begin_head(self) -> None:
        self._head_timer = self._loop.call_later(self._bounds.head_s, self._head_is_late)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = None
        self._head.clear()

    def _take_part(self, part: bytes) -> None:
        self._head += part
        if len(self._head) > self._most_of_a_head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, self._too_large())
        elif self._head_timer is None and self._waits_for_head():
            self._begin_head()

    def _look_at_last(self, count: int, data: bytes) -> None:
        """At so many requests, which `data` has ended the heads of: those over the limit are as malformed as
        what is no HTTP."""
        for at in range(-count, 0):
            message, payload = self._messages[at]
            if not isinstance(message, _ErrInfo):
                if size_of(message) <= self._most_of_a_head:
                    continue
                self._messages[at] = (_ErrInfo(HeadTooLarge.code, HeadTooLarge(), ""), payload)
            self._origins = origins_in(self._head + data)

    def _too_large(self) -> str:
        most = self._most_of_a_head
        return f"Invalid request: the headers are over {most} bytes ({WHOLE_HEAD} times limits.header)"

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head:
            said = "Invalid request: the headers did not arrive in time (limits.request_head)"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, said)
        else:
            self.force_close()

    def _refuse(self, status: HTTPStatus, said: str) -> None:
        """Answer a request that is not there, unless another one is being answered, and hang up."""
        if self.transport is not None and self._waits_for_head():
            assert isinstance(self.transport, asyncio.Transport)
            cors = self._guard.cors_headers(origins_in(self._head))
            self.transport.write(raw_refusal(status, said, cors))
        self.force_close()

    # -- what the client does not read --------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._begin_write()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._wire is not None and not self._wire.is_closing():  # else all of it has to go
            self._end_write()

    def _begin_write(self) -> None:
        if self._write_timer is None:
            self._write_timer = self._loop.call_later(self._bounds.write_s, self._cut)

    def _end_write(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = None

    def _cut(self) -> None:
        self._write_timer = None
        if self._wire is not None:
            log.info("client_not_reading", unread=self._wire.get_write_buffer_size())
            self._wire.abort()

    # -- what is no HTTP ----------------------------------------------------------------------------

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        log.info("http_request_malformed", fault=type(exc).__name__)
        is_too_large = isinstance(exc, LineTooLong | HeadTooLarge) or exc.message == _TOO_MANY
        response = web.Response(
            status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if is_too_large else HTTPStatus.BAD_REQUEST,
            body=body_of(self._words_for(exc)),
            content_type="application/json",
        )
        response.headers.extend(self._guard.cors_headers(self._origins))
        response.force_close()
        return response

    def _words_for(self, exc: HttpProcessingError) -> str:
        if isinstance(exc, LineTooLong):
            return f"Invalid request: a header is over {self._bounds.header_bytes} bytes (limits.header)"
        if isinstance(exc, HeadTooLarge):
            return self._too_large()
        if exc.message == _TOO_MANY:
            return f"Invalid request: there are more than {MAX_HEADERS} headers"
        return "Invalid request: not well-formed HTTP"


class Server(web.Server):
    """All connections, of which the idle ones make room for new ones."""

    def __init__(self, made: web.Server, bounds: ConnectionBounds, guard: Guard = ANYBODY) -> None:
        settings: dict[str, Any] = made._kwargs
        super().__init__(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **settings,
        )
        self._bounds = bounds
        self._guard = guard

    def __call__(self) -> Connection:
        loop = asyncio.get_running_loop()
        return Connection(self, bounds=self._bounds, guard=self._guard, loop=loop, **self._kwargs)

    def has_room(self) -> bool:
        """Whether the connection that was made last may stay. Those that wait for a request for longest go
        first."""
        if len(self._connections) <= self._bounds.connections:
            return True
        *others, _ = [c for c in self._connections if isinstance(c, Connection) and not c.is_closing]
        if len(others) < self._bounds.connections:
            return True
        found = ((c.idle_since, c) for c in others)
        idle = [(since, c) for since, c in found if since is not None]
        for _, connection in sorted(idle, key=itemgetter(0))[: self._bounds.connections // MADE_ROOM + 1]:
            connection.force_close()
        return bool(idle)
