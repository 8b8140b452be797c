"""The session layer for legacy HTTP clients before stdio and HTTP+SSE servers.

Above: `downstream.http`, by way of `legacy.LegacyHandler`. Below: `http_session`, one for each, and the table
of all. A session belongs to its owner, has a server of its own, and ends by DELETE, when it is idle,
or to make room. Transports 2025-03-26 ... 2025-11-25, "Streamable HTTP"; contract section 6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPMethod, HTTPStatus
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock, Pulse
from proxy.errors import ClientProtocolError, ErrorCode, LimitReached
from proxy.limits import Gauge
from proxy.logs import get_logger
from proxy.owners import Owner
from proxy.protocol import names
from proxy.protocol.envelope import elements
from proxy.protocol.jsonrpc import Message, Notification, Request
from proxy.routing.http_posts import stream_reply
from proxy.routing.http_session import HttpSession, Server
from proxy.routing.legacy import HttpMessage, Reply
from proxy.routing.own_server import Client
from proxy.routing.passthrough import BATCHES_IN, SHUTTING_DOWN
from proxy.sessions.table import SessionTable

SWEEP_S: Final = 10.0
SWEEPS_IN_IDLE_TIME: Final = 4  # where the idle time is short
_RETRY_S: Final = 1

_EVENT_STREAM: Final = frozenset({"text/event-stream", "text/*", "*/*"})

log = get_logger()


class SessionLayer:
    """A `LegacyHandler`. `run` must be running. `make_server` makes the server of one session."""

    def __init__(
        self,
        make_server: Callable[[Owner, Client], Server],
        clock: Clock,
        *,
        max_sessions: int,
        calls: Gauge,
        requests: Gauge,
        idle_s: float,
        max_per_owner: int | None = None,
    ) -> None:
        """`calls` at the servers, and HTTP `requests`: see `HttpSession`."""
        self._make_server = make_server
        self._clock = clock
        self._calls = calls
        calls.make_room = self._make_room
        self._requests = requests
        self._idle_s = idle_s
        self._sessions: SessionTable[HttpSession] = SessionTable(max_sessions, max_per_owner)
        self._tasks: TaskGroup | None = None
        self._closing = False
        self._changed = Pulse()

    def __repr__(self) -> str:
        return f"<SessionLayer {len(self._sessions)} sessions>"

    def __len__(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    # -- life ---------------------------------------------------------------------------------------

    async def run(self, *, task_status: StartStatus[None]) -> None:
        """Own the sessions, and end those that nobody uses."""
        async with anyio.create_task_group() as self._tasks:
            task_status.started()
            while True:
                await self._clock.sleep(min(SWEEP_S, self._idle_s / SWEEPS_IN_IDLE_TIME))
                for session in self._sessions:
                    session.forget(self._idle_s)
                for session in self._sessions.idle(self._clock.monotonic(), self._idle_s):
                    session.end("the session was not used for too long")

    def drain(self) -> None:
        """End the streams that never end by themselves."""
        for session in self._sessions:
            session.listening.end()

    async def wait_idle(self) -> None:
        """Until no client waits for an answer, whether it still listens or not."""
        while any(session.is_waiting for session in self._sessions):
            await self._changed.event.wait()

    async def close(self) -> None:
        """End all sessions and their servers, those of tasks too. Bounded, as ending a server is."""
        self._closing = True
        for session in self._sessions:
            session.end("the proxy is shutting down", at_once=True)
        while len(self._sessions):
            await self._changed.event.wait()

    async def _live(self, session: HttpSession) -> None:
        try:
            await session.run()
        finally:
            self._sessions.remove(session)
            self._changed.beat()

    # -- requests -----------------------------------------------------------------------------------

    def serve(self, message: HttpMessage) -> AbstractAsyncContextManager[Reply]:
        """See `LegacyHandler`."""
        match message.method:
            case HTTPMethod.POST:
                return self._post(message)
            case HTTPMethod.GET:
                return self._get(message)
            case HTTPMethod.DELETE:
                return self._delete(message)
            case _:
                return _not_allowed()

    @asynccontextmanager
    async def _post(self, message: HttpMessage) -> AsyncIterator[Reply]:
        if any(_takes_effect(one) for one in message.messages):
            message.check_token()
        opens = _opens_session(message)
        session = self._open(message.owner) if opens else self._find(message)
        try:
            raws = elements(message.body) if message.is_batch else [message.body]
            if message.is_batch and session.version != BATCHES_IN:
                raise _invalid("batches are of 2025-03-26 alone")
            post = session.take(
                list(zip(message.messages, raws, strict=True)),
                takes_stream=_accepts_stream(message, if_silent=True),
                is_batch=message.is_batch,
            )
            if post is None:
                yield Reply(HTTPStatus.ACCEPTED, _session_header(session))
                return
            try:
                await post.begin(session.version, self._clock)
                yield post.reply(session.version, _session_header(session))
            finally:
                session.leave(post)
        finally:
            if opens and session.version is None:  # refused, or nobody waited for the answer
                session.end("there was no handshake")

    @asynccontextmanager
    async def _get(self, message: HttpMessage) -> AsyncIterator[Reply]:
        """Listen, or go on reading a stream (F24). The newer of two readers is the one (F38)."""
        session = self._find(message)
        if not _accepts_stream(message, if_silent=False):
            raise _invalid(
                "GET is answered by an event stream, which Accept leaves out", HTTPStatus.NOT_ACCEPTABLE
            )
        event_id = message.header(names.H_LAST_EVENT_ID)
        stream, after = session.find(event_id) if event_id else (session.listening, None)
        reader = stream.attach(after)
        try:
            yield stream_reply(reader, session.version, _session_header(session))
        finally:
            reader.leave()

    @asynccontextmanager
    async def _delete(self, message: HttpMessage) -> AsyncIterator[Reply]:
        """Answered at once; the server ends when its tasks have."""
        message.check_token()
        self._find(message).end("the client ended the session")
        yield Reply(HTTPStatus.OK, ())

    # -- sessions -----------------------------------------------------------------------------------

    def _open(self, owner: Owner) -> HttpSession:
        if self._closing:
            raise LimitReached(SHUTTING_DOWN, retry_after_s=_RETRY_S, status=HTTPStatus.SERVICE_UNAVAILABLE)
        surplus = self._sessions.to_make_room(owner, self._clock.monotonic())
        if surplus is not None:
            surplus.end("the session made room for another one")
        session = HttpSession(
            self._sessions.new_id(),
            owner,
            self._make_server,
            self._clock,
            self._changed,
            self._calls,
            self._requests,
        )
        self._sessions.add(session)
        log.info("session_opened", sessions=len(self._sessions))
        assert self._tasks is not None  # `run` is running
        self._tasks.start_soon(self._live, session)
        return session

    def _make_room(self, owner: Owner) -> bool:
        """See `Gauge`: where there are too many calls, those go that nobody has waited for for minutes."""
        own_alone = self._calls.has_all_of_one(owner)
        unread = self._sessions.to_end_calls(owner, self._clock.monotonic(), own_alone=own_alone)
        if unread is not None:
            unread.end("nobody waited for its calls, and there were too many")
        return unread is not None

    def _find(self, message: HttpMessage) -> HttpSession:
        """Raises ClientProtocolError: 400 without an id, 404 for one that is not this owner's (HTTP-070,
        HTTP-071), 400 for a version that is none (VER-019)."""
        session_id = message.header(names.H_SESSION_ID)
        if session_id is None:
            raise _invalid(f"{names.H_SESSION_ID} is missing, and this is no initialize")
        session = self._sessions.find(session_id, message.owner)
        _check_version(message, session.version)
        return session


def _takes_effect(message: Message) -> bool:
    """Whether something that is asked or running depends on it; the other notifications only tell."""
    return not isinstance(message, Notification) or message.method == names.CANCELLED


def _opens_session(message: HttpMessage) -> bool:
    """Whether it is an `initialize` that asks for a new session. Raises ClientProtocolError."""
    first = message.messages[0]
    is_initialize = isinstance(first, Request) and first.method == names.INITIALIZE and not message.is_batch
    if is_initialize and message.header(names.H_SESSION_ID) is None:
        _check_version(message, None)
        return True
    return False


def _check_version(message: HttpMessage, negotiated: str | None) -> None:
    version = message.header(names.H_PROTOCOL_VERSION)
    if version is not None and version.strip() not in (*names.LEGACY_VERSIONS, negotiated):
        raise _invalid(f"{names.H_PROTOCOL_VERSION} names no version that is served here")


def _accepts_stream(message: HttpMessage, *, if_silent: bool) -> bool:
    """`if_silent` is for a client that says nothing about what it accepts."""
    values = [value for key, value in message.headers if key.lower() == "accept"]
    kinds = {kind.partition(";")[0].strip().lower() for value in values for kind in value.split(",")}
    return bool(kinds & _EVENT_STREAM) if values else if_silent


def _session_header(session: HttpSession) -> list[tuple[str, str]]:
    """Not with the answer that refuses a handshake: then there is no session."""
    is_refused = session.version is None and not session.is_waiting
    return [] if session.is_over or is_refused else [(names.H_SESSION_ID, session.id)]


def _invalid(fault: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.INVALID_REQUEST, f"Invalid request: {fault}", status=status)


@asynccontextmanager
async def _not_allowed() -> AsyncIterator[Reply]:
    yield Reply(HTTPStatus.METHOD_NOT_ALLOWED, [("Allow", "GET, POST, DELETE, OPTIONS")])
