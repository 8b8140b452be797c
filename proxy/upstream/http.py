"""Streamable HTTP towards a legacy upstream: one instance is one of its sessions.

Above: `session`, through `base.Transport`; below: `endpoint`, `acceptance`. Every message is a POST.
The answer to a request is a JSON body or an event stream; what the server says of its own accord comes
on a GET stream, which is kept open for the life of the session. Transports 2025-03-26 ... 2025-11-25,
"Streamable HTTP".

A POST is never sent twice, but for one that was refused for our own credential (`endpoint`). A stream that
breaks before the answer is resumed by GET if its events had ids; otherwise the call is lost, outcome unknown.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPMethod, HTTPStatus
from math import inf
from typing import Final, TypeAlias

import aiohttp
import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock
from proxy.errors import (
    SessionLost,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamUnavailable,
)
from proxy.logs import get_logger
from proxy.protocol.mirrored_headers import mirrored_headers
from proxy.protocol.names import H_LAST_EVENT_ID, H_PROTOCOL_VERSION, H_SESSION_ID, MODERN_VERSIONS
from proxy.protocol.sse import MESSAGE, Event
from proxy.upstream import replies
from proxy.upstream.acceptance import REFUSED, Handovers, error_body, fault
from proxy.upstream.base import NO_HEADERS, Headers, Receiver, StreamPosition, Verdicts
from proxy.upstream.cursor import Cursor
from proxy.upstream.endpoint import OUTCOME_UNKNOWN, TRY_AGAIN, Answer, Endpoint

CONNECT_TIMEOUT_S: Final = 15.0  # name, TCP and TLS; after that only the call's own limits count
IDLE_CONNECTION_S: Final = 3.0  # servers close idle ones at 5 s; a POST into that is an unknown outcome
MAX_HEADER_BYTES: Final = 262_144  # challenges and session ids can be long; the default is 8 KiB
KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
"""In seconds and probes: a peer that vanished is noticed within two minutes, however quiet the stream."""

DELETE_TIMEOUT_S: Final = 2.0  # courtesy to the server; must not hold up the end
DRAIN_TIMEOUT_S: Final = 2.0  # between the answer and the end of its stream, so that connections are reused
RESUME_ATTEMPTS: Final = 5  # in a row that bring nothing new
QUIET_FIRST_S: Final = 4.0  # of a resumed stream: some servers replay what was missed, and no more
QUIET_LAST_S: Final = 60.0

_JSON: Final = ("application/json", "")  # a server that names no type is taken at its word

Elsewhere: TypeAlias = Callable[[int, int, bytes], Awaitable[bool]]
"""Asked with call, status and body when a request is refused: whether another transport takes it over.

Then nothing more is told of the call here. May raise UpstreamError, which is told instead of the refusal.
"""

log = get_logger()


def make_client() -> aiohttp.ClientSession:
    """The client for every upstream; to be made inside the event loop, and closed by the caller.

    The defaults that bite are off: no total time-out, no bound on connections (streams would eat it), no
    cookies (they would be shared between owners), no compression. The environment is not trusted: a
    `.netrc` adds credentials that nobody configured, and proxy variables catch loopback upstreams.
    """
    connector = aiohttp.TCPConnector(
        limit=0, keepalive_timeout=IDLE_CONNECTION_S, socket_factory=_probing_socket
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(
            total=None, connect=CONNECT_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S, sock_read=None
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,  # what is encoded all the same is refused, not unpacked without a bound
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        trust_env=False,
    )


def _probing_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE:
        if hasattr(socket, option):  # names differ by platform
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


@dataclass(slots=True, eq=False)
class _Call:
    """A request that is out."""

    id: int
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    answered: bool = False


class _End(Enum):
    """How a GET stream ended."""

    BROKEN = auto()  # or could not be had just now: worth another attempt
    QUIET = auto()  # it is open, and nothing has come on it for a while
    NOT_OFFERED = auto()
    SESSION_GONE = auto()


@dataclass(frozen=True, slots=True)
class AdoptedSession:
    """A session that somebody else opened. `id` is None where the server has no sessions.

    `is_ours`: it was an earlier process of ours, so that it is for us to end.
    """

    id: str | None
    version: str
    is_ours: bool = False


class HttpTransport:
    """`base.Transport` over Streamable HTTP. `max_depth` is the nesting that the receiver takes, too.

    A session that is `adopted` is not ended, and its GET stream is only opened when `listen` says so.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        max_bytes: int,
        client: aiohttp.ClientSession,
        headers: Callable[[], Mapping[str, str]],
        verdicts: Verdicts | None = None,
        clock: Clock,
        max_depth: int = 512,
        elsewhere: Elsewhere | None = None,
        adopted: AdoptedSession | None = None,
    ) -> None:
        self._endpoint = Endpoint(url, name=name, client=client, headers=headers, verdicts=verdicts)
        self._name = name
        self._who = f"upstream {name!r}"
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        self._clock = clock
        self._adopted = adopted
        self._session_id: str | None = None if adopted is None else adopted.id
        self._version: str | None = None if adopted is None else adopted.version
        self._calls: dict[int, _Call] = {}
        self._elsewhere = elsewhere
        self._handovers = Handovers(self._who)
        self._receiver: Receiver
        self._listening = anyio.CancelScope()
        self._left = False
        self._group: TaskGroup | None = None
        self._ending = anyio.Event()
        self._error: UpstreamError | None = None

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        self._receiver = receiver
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                task_status.started()
                await self._ending.wait()
                group.cancel_scope.cancel()
            self._lose_all()
            await self._end_session()
        finally:
            self._end(UpstreamClosed(f"{self._who}: the session was stopped; {OUTCOME_UNKNOWN}"))
            self._lose_all()
            self._handovers.end()
            assert self._error is not None
            receiver.lost(None, self._error)

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        if self._group is None or self._ending.is_set():
            raise UpstreamClosed(f"{self._who}: the session is closed, nothing was sent")
        if call is None:
            await self._hand_over(message)
            return
        assert call not in self._calls, "ids are used once"
        self._calls[call] = _Call(call)
        self._group.start_soon(self._serve, self._calls[call], message, headers)

    def take_up(self, call: int, event_id: str) -> None:
        """Fetch the rest of the answer to a request of an earlier process, from behind this event on."""
        assert self._group is not None  # `run` is running
        self._calls[call] = _Call(call)
        self._group.start_soon(self._serve_rest, self._calls[call], event_id)

    def abandon(self, call: int) -> None:
        dropped = self._calls.pop(call, None)
        if dropped is not None and not dropped.answered:  # then it ends soon, and its connection is kept
            dropped.scope.cancel()

    def established(self, version: str) -> None:
        self._version = version
        if version not in MODERN_VERSIONS:  # else there are no sessions, and no GET stream
            self.listen(True)

    def listen(self, wanted: bool) -> None:
        """Keep a GET stream open from now on, or none. A session has one at most."""
        if not wanted:
            self._listening.cancel()
        elif self._group is not None and not self._ending.is_set():
            self._listening = anyio.CancelScope()
            self._group.start_soon(self._listen, self._listening)

    def leave(self) -> None:
        self._left = True

    def close(self) -> None:
        self._end(UpstreamClosed(f"{self._who}: the session was closed; {OUTCOME_UNKNOWN}"))

    def describe(self) -> str:
        return f"http {self._endpoint}"

    def __repr__(self) -> str:
        return f"<HttpTransport {self._endpoint} {len(self._calls)} pending>"

    # What ends.

    def _end(self, error: UpstreamError) -> None:
        if self._error is None:
            self._error = error
        self._ending.set()

    def _lose_all(self) -> None:
        assert self._error is not None
        for call in list(self._calls.values()):
            self._lose(call, self._error)

    def _lose(self, call: _Call, error: UpstreamError) -> None:
        if self._calls.pop(call.id, None) is call and not call.answered:
            self._receiver.lost(call.id, error)

    async def _end_session(self) -> None:
        """Say that the session is over; whatever the server answers is fine (405: it does not care)."""
        anothers = self._adopted is not None and not self._adopted.is_ours
        if self._session_id is None or anothers or self._left or isinstance(self._error, SessionLost):
            return
        with anyio.move_on_after(DELETE_TIMEOUT_S), suppress(UpstreamError):
            async with self._open(HTTPMethod.DELETE):
                pass

    # What goes out.

    @asynccontextmanager
    async def _open(
        self,
        method: HTTPMethod,
        *,
        body: bytes | None = None,
        last_event_id: str = "",
        more: Headers = NO_HEADERS,
    ) -> AsyncIterator[Answer]:
        headers: dict[str, str] = dict(more)
        match method:
            case HTTPMethod.POST:
                headers["Accept"] = "application/json, text/event-stream"
                headers["Content-Type"] = "application/json"
            case HTTPMethod.GET:
                headers["Accept"] = "text/event-stream"
        if last_event_id:
            headers[H_LAST_EVENT_ID] = last_event_id
        if self._session_id is not None:
            headers[H_SESSION_ID] = self._session_id
        if self._version is not None:
            headers[H_PROTOCOL_VERSION] = self._version
        mirrored = mirrored_headers(body) if body is not None else {}
        headers |= mirrored
        async with self._endpoint.open(method, headers, body) as answer:
            if self._version is None and not mirrored:  # a probe that an old server refused opens no session
                self._session_id = answer.header(H_SESSION_ID) or self._session_id
            yield answer

    async def _hand_over(self, message: bytes) -> None:
        """POST what is not answered, until the server has accepted it.

        Not to a modern server, which takes no notification: closing a request's stream cancels it (HTTP-045).
        """
        if self._version in MODERN_VERSIONS:
            return
        with self._handovers.one():
            async with self._open(HTTPMethod.POST, body=message) as answer:
                if not answer.ok:
                    raise self._fault(answer, await error_body(answer, self._max_bytes))

    async def _serve(self, call: _Call, message: bytes, headers: Headers) -> None:
        """A request's life. Cancelled by the end of the session, it stays pending for `run` to settle."""
        with call.scope:
            try:
                await self._exchange(call, message, headers)
            except UpstreamError as exc:
                self._lose(call, exc)
        self._calls.pop(call.id, None)

    async def _serve_rest(self, call: _Call, event_id: str) -> None:
        with call.scope:
            try:
                await self._resume(call, Cursor(opened=True, last_id=event_id))
            except UpstreamError as exc:
                self._lose(call, exc)
        self._calls.pop(call.id, None)

    async def _exchange(self, call: _Call, message: bytes, headers: Headers) -> None:
        """Returns once the call is answered; raises UpstreamError if it will not be."""
        cursor = Cursor(opened=True)
        try:
            async with self._open(HTTPMethod.POST, body=message, more=headers) as answer:
                if answer.ok:
                    self._tell_position(call, "")
                if answer.is_event_stream:
                    answer.require_plain()
                    await self._read_stream(answer, cursor, call)
                else:
                    await self._read_body(answer, call)
        except UpstreamClosed:
            if not cursor.last_id:
                raise
        if not call.answered:
            await self._resume(call, cursor)

    async def _resume(self, call: _Call, cursor: Cursor) -> None:
        """Fetch the rest of a broken stream. Transports 2025-11-25, "Resumability and Redelivery".

        A stream that is quiet is asked for again: what came meanwhile is replayed if it was not told.
        """
        quiet_s = QUIET_FIRST_S
        while cursor.last_id and cursor.fruitless < RESUME_ATTEMPTS:
            await self._clock.sleep(cursor.next_delay_s())
            log.info("upstream_stream_resumed", upstream=self._name, call=call.id, attempt=cursor.fruitless)
            end = await self._follow(cursor, call, quiet_s=quiet_s)
            if call.answered:
                return
            if end is _End.QUIET:
                cursor.fruitless = 0  # the server is there, and offers the stream
                quiet_s = min(quiet_s * 2, QUIET_LAST_S)
            if end is _End.SESSION_GONE:
                raise SessionLost(f"{self._who} lost the session during the call; {OUTCOME_UNKNOWN}")
            if end is _End.NOT_OFFERED:
                break
        raise UpstreamClosed(f"{self._who} ended the stream of the call without an answer; {OUTCOME_UNKNOWN}")

    async def _listen(self, scope: anyio.CancelScope) -> None:
        """Keep the GET stream open for as long as the server offers it."""
        with scope:
            await self._listen_on(Cursor(opened=False))

    async def _listen_on(self, cursor: Cursor) -> None:
        while True:
            try:
                end = await self._follow(cursor, None)
            except UpstreamProtocolError:
                end = _End.BROKEN if cursor.opened else _End.NOT_OFFERED
                cursor.last_id = ""  # an event over the limit would only be replayed
            match end:
                case _End.SESSION_GONE:
                    said = f"no longer knows the session (404); {OUTCOME_UNKNOWN}"  # of the calls in flight
                    self._end(SessionLost(f"{self._who} {said}"))
                    return
                case _End.NOT_OFFERED:
                    log.info("upstream_stream_refused", upstream=self._name)
                    return
                case _End.BROKEN:
                    await self._clock.sleep(cursor.next_delay_s())

    async def _follow(self, cursor: Cursor, call: _Call | None, *, quiet_s: float = inf) -> _End:
        """One GET stream, from after the last event on, until it ends or brings no event for `quiet_s`.
        Raises UpstreamProtocolError."""
        began = self._clock.monotonic()
        try:
            async with self._open(HTTPMethod.GET, last_event_id=cursor.last_id) as answer:
                if not answer.is_event_stream:
                    return self._judge_get(answer.status, cursor)
                answer.require_plain()
                cursor.opened = True
                if await self._read_while_it_speaks(answer, cursor, call, quiet_s):
                    return _End.QUIET
        except (UpstreamUnavailable, UpstreamClosed):
            pass
        cursor.held_for(self._clock.monotonic() - began)
        return _End.BROKEN

    def _judge_get(self, status: int, cursor: Cursor) -> _End:
        """Servers say in many ways that they have no GET stream; 404 does not mean the session until a
        stream of it was open (the next POST tells). A token that ran out may be followed by a new one."""
        if status in TRY_AGAIN or (cursor.opened and status in REFUSED):
            return _End.BROKEN
        if status == HTTPStatus.NOT_FOUND and cursor.opened and self._session_id is not None:
            return _End.SESSION_GONE
        return _End.NOT_OFFERED

    # What comes in.

    async def _read_while_it_speaks(
        self, answer: Answer, cursor: Cursor, call: _Call | None, quiet_s: float
    ) -> bool:
        """Whether it has fallen silent, rather than ended."""

        def take(events: list[Event]) -> None:
            if events:
                silence.deadline = anyio.current_time() + quiet_s
            self._take(events, cursor, call)

        with anyio.CancelScope(deadline=anyio.current_time() + quiet_s) as silence:
            await answer.read_events(self._max_bytes, lambda events: take(list(events)))
        return silence.cancelled_caught

    async def _read_stream(self, answer: Answer, cursor: Cursor, call: _Call | None) -> None:
        await answer.read_events(self._max_bytes, lambda events: self._take(events, cursor, call))

    def _take(self, events: Iterable[Event], cursor: Cursor, call: _Call | None) -> None:
        for event in events:
            cursor.note(event)
            if event.event == MESSAGE and event.data:
                self._deliver(event.data, call)
            if event.id is not None and call is not None and cursor.last_id:
                self._tell_position(call, cursor.last_id)  # not that of the answer: it must be had again

    def _tell_position(self, call: _Call, event_id: str) -> None:
        if self._version is not None and self._version not in MODERN_VERSIONS and not call.answered:
            position = StreamPosition(self._session_id, self._version, call.id, event_id)
            self._receiver.moved(call.id, position)

    async def _read_body(self, answer: Answer, call: _Call) -> None:
        """An answer that is no stream. Raises UpstreamError if it holds no response to `call`."""
        if answer.ok:
            answer.require_plain()
            body = await answer.body(self._max_bytes)
            if body.strip() and answer.media_type in _JSON:
                self._deliver(body, call)
            if not call.answered:
                raise answer.unexpected(answer.words(body))
            return
        body = await error_body(answer, self._max_bytes)
        if self._elsewhere is not None and await self._elsewhere(call.id, answer.status, body):
            call.answered = True  # or will be, by the other transport
            return
        reply = replies.error_in(body, self._max_depth)
        if reply is None or not replies.is_for(reply, call.id):
            raise self._fault(answer, body)
        if self._is_gone(answer) and not replies.is_method_not_found(reply):
            raise self._fault(answer, body)  # some put the request's id even on a 404 for the session
        self._deliver(body, call)

    def _fault(self, answer: Answer, body: bytes) -> UpstreamError:
        return fault(answer, body, self._max_depth, gone=self._is_gone(answer))

    def _is_gone(self, answer: Answer) -> bool:
        """Whether the server says that it has no such session. "Session Management"."""
        return answer.status == HTTPStatus.NOT_FOUND and self._session_id is not None

    def _deliver(self, raw: bytes, call: _Call | None) -> None:
        for message in replies.messages(raw, self._max_depth):
            if call is None:
                self._receiver.received(message, None)
                continue
            if call.scope.cancel_called:
                return  # abandoned by what came just before
            if not call.answered and replies.answers(message, call.id, self._max_depth):
                call.answered = True
                call.scope.deadline = anyio.current_time() + DRAIN_TIMEOUT_S
            self._receiver.received(message, call.id)
