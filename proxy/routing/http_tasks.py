"""2025 tasks for legacy clients whose sessions are the upstream's own: ours are taken out, the rest passes.

Above: `downstream`, through `legacy.LegacyHandler`. Below: `http_passthrough`, which passes on whatever is
not ours, `passed_session`, what is known of each session, and `served`, which writes our own answers. The
calls of tasks run on the client's own upstream session, with ids of ours. Contract sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from http import HTTPMethod, HTTPStatus
from types import TracebackType
from typing import Final

import anyio

from proxy.clock import Clock
from proxy.eras.attribution import AskingTools
from proxy.eras.tasks_2025 import VERSION, asked_version, declared_by, grant, related_task, with_marks
from proxy.errors import ErrorCode, ProxyError, StoreError
from proxy.logs import get_logger
from proxy.owners import ANONYMOUS, Owner
from proxy.protocol import jsonrpc, names
from proxy.protocol.jsonrpc import (
    ErrorResponse,
    Message,
    MessageError,
    Notification,
    Request,
    RequestId,
    ResultResponse,
)
from proxy.protocol.sse import Event
from proxy.routing.get_streams import GetStream
from proxy.routing.http_passthrough import HttpPassthrough
from proxy.routing.in_flight import rid_in, text_of
from proxy.routing.legacy import JSON, HttpMessage, Reply
from proxy.routing.offers import is_offer
from proxy.routing.passed_session import OwnersPart, PassedSession, PassedSessions, PlainCall, asker_of
from proxy.routing.rewording import Reword, Rewording, header_in, whole, without_header
from proxy.routing.runner import Runner
from proxy.routing.served import Served, StreamChannel
from proxy.tasks.inputs import QUESTION_METHODS

GIVE_WAY_S: Final = 0.05  # between two tries of a client's GET, while the server notices that ours has gone
GIVE_WAY_TRIES: Final = 20

_DELETE, _BAD_REQUEST = HTTPMethod.DELETE, HTTPStatus.BAD_REQUEST  # to name one takes microseconds each time

_OURS: Final = frozenset({names.TOOLS_CALL, names.TASKS_LIST, *names.TASK_METHODS_2025})
_ACCEPTED: Final = Reply(HTTPStatus.ACCEPTED, [])
_ENDED: Final = Reply(HTTPStatus.OK, [])
_TOOLS_CHANGED: Final = jsonrpc.notification(names.TOOLS_LIST_CHANGED)

TasksEnded = Callable[[str], Awaitable[None]]
"""Waits until the tasks of an earlier process that were taken up in the session of this id have ended. Raises
ProxyError if that cannot be known."""

log = get_logger()


class HttpTasks:
    """Implements `LegacyHandler`, and `http_passthrough.GetWatcher`."""

    def __init__(
        self,
        passthrough: HttpPassthrough,
        sessions: PassedSessions,
        runner: Runner,
        asking: AskingTools,
        clock: Clock,
        *,
        max_bytes: int,
        max_depth: int,
    ) -> None:
        self._pass = passthrough
        self._sessions = sessions
        self._runner = runner
        self._asking = asking
        self._clock = clock
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        self._served = Served()
        passthrough.watch(self)

    def serve(self, message: HttpMessage) -> AbstractAsyncContextManager[Reply]:
        """See `LegacyHandler`. Only sessions of 2025-11-25 are looked at."""
        if self._pass.is_for_layer(message):  # which has its own tasks
            return self._pass.serve(message)
        said = message.messages[0] if message.messages and not message.is_batch else None
        if isinstance(said, Request) and said.method == names.INITIALIZE:
            asks = asked_version(said.params) == VERSION
            return self._initialize(message, said) if asks else self._pass.serve(message)
        session_id = message.header(names.H_SESSION_ID) or ""
        is_ours = message.header(names.H_PROTOCOL_VERSION) == VERSION
        if not session_id and not is_ours:  # where the server has no sessions, that alone tells clients apart
            return self._pass.serve(message)
        session = self._sessions.known(session_id)
        if session is not None:
            return self._of_session(message, session, said)
        return self._recalled(message, said) if is_ours else self._pass.serve(message)

    def drain(self) -> None:
        self._pass.drain()

    # -- which session, and what of it ----------------------------------------------------------------

    @asynccontextmanager
    async def _initialize(self, message: HttpMessage, request: Request) -> AsyncIterator[Reply]:
        """The capability is added, and what must be known of the session is remembered before it is told."""
        async with self._pass.serve(message) as reply:
            if self._pass.is_old:
                yield reply
                return
            session_id = header_in(reply.headers, names.H_SESSION_ID.lower())

            async def reword(result: bytes) -> bytes:
                granted = grant(VERSION, result, lists=not message.owner.is_anonymous)
                if granted is None:
                    if text_of(result, "protocolVersion") == VERSION:
                        await self._sessions.begin_without_tasks(session_id)
                    return result
                session = await self._sessions.begin(session_id, granted, declared_by(request.params))
                self._sessions.part(session, message.owner, message.headers).adopted.is_accepted = True
                return granted.result

            yield await self._rewording(request.id, reword).of(reply)

    @asynccontextmanager
    async def _recalled(self, message: HttpMessage, said: Message | None) -> AsyncIterator[Reply]:
        session = await self._sessions.find(message.header(names.H_SESSION_ID) or "")
        async with self._of_session(message, session, said) as reply:
            yield reply

    def _of_session(
        self, message: HttpMessage, session: PassedSession, said: Message | None
    ) -> AbstractAsyncContextManager[Reply]:
        ends = message.method is _DELETE and bool(session.id)
        if not session.facts.has_tasks:
            return self._delete(message, session) if ends else self._pass.serve(message)
        part = self._sessions.part(session, message.owner, message.headers)
        if session.facts.is_held:
            message = _at_version(message, session.facts.upstream_version)
        if session.ended:
            return _just(_gone(said))
        if isinstance(said, Request):
            return self._of_request(message, session, part, said)
        match said:
            case ResultResponse(RequestId() as rid) | ErrorResponse(RequestId() as rid) if is_offer(rid):
                message.check_token()
                part.tasks.take_answer(said)
                return _just(_ACCEPTED)
            case ResultResponse(rid) | ErrorResponse(RequestId() as rid):
                session.note_answered(rid.value)
                return self._pass.serve(message)
            case Notification(names.CANCELLED, params) if self._served.waits(
                part, named := rid_in(params, "requestId")
            ):
                message.check_token()
                self._served.cancel(part, named)
                return _just(_ACCEPTED)
            case None if message.method is HTTPMethod.GET:
                return self._get(message, part)
            case None if ends:
                return self._delete(message, session)
            case _:
                return self._pass.serve(message)

    # -- POST ---------------------------------------------------------------------------------------

    def _of_request(
        self, message: HttpMessage, session: PassedSession, part: OwnersPart, request: Request
    ) -> AbstractAsyncContextManager[Reply]:
        method = request.method
        if method in _OURS and part.tasks.claims(request):
            return self._claimed(message, part, request)
        if method in names.CARRIES_INPUT:
            call = PlainCall(method, request.readable, self._clock.monotonic())
            return _Tracked(self._pass.pass_on(message), session, part, call)
        if method == names.TOOLS_LIST:
            return self._tools_list(message, part, request.id)
        return self._pass.pass_on(message)

    @asynccontextmanager
    async def _claimed(
        self, message: HttpMessage, part: OwnersPart, request: Request
    ) -> AsyncIterator[Reply]:
        refused = await self._refusal(message, part, request)
        if refused is not None:
            yield refused
            return
        async with self._served.serve(message, part, request) as reply:
            if reply is not None:
                yield reply
                return
        async with self._pass.serve(message) as passed:  # for a task of the upstream's own
            yield passed

    async def _refusal(self, message: HttpMessage, part: OwnersPart, request: Request) -> Reply | None:
        """What the upstream says of the session, where the last that we saw was no acceptance: a call
        that becomes a task at once would not be told that the session is lost, or the token refused."""
        if part.adopted.is_accepted or request.method != names.TOOLS_CALL:
            return None
        ping = jsonrpc.request(request.id, names.PING, None)
        asked = replace(_plain(message), body=ping, messages=(jsonrpc.parse_checked(ping),))
        async with self._pass.serve(asked) as reply:
            if reply.status >= _BAD_REQUEST:
                return Reply(reply.status, reply.headers, await whole(reply.body, self._max_bytes))
        part.adopted.is_accepted = True
        return None

    @asynccontextmanager
    async def _tools_list(
        self, message: HttpMessage, part: OwnersPart, rid: RequestId
    ) -> AsyncIterator[Reply]:
        async def reword(result: bytes) -> bytes:
            return with_marks(result, part.tasks.mark)

        async with self._pass.serve(_plain(message)) as reply:
            if reply.status >= _BAD_REQUEST:
                part.adopted.is_accepted = False
            yield await self._rewording(rid, reword).of(reply)

    def _rewording(self, rid: RequestId, reword: Reword) -> Rewording:
        return Rewording(rid, reword, max_bytes=self._max_bytes, max_depth=self._max_depth)

    # -- GET ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _get(self, message: HttpMessage, part: OwnersPart) -> AsyncIterator[Reply]:
        """A stream that we keep for our calls gives way to the client's own."""
        tries = GIVE_WAY_TRIES if part.adopted.client_listens(True) else 0
        try:
            while True:
                async with self._pass.serve(message) as reply:
                    if reply.status != HTTPStatus.CONFLICT or not tries:
                        yield reply
                        return
                tries -= 1
                await self._clock.sleep(GIVE_WAY_S)
        finally:
            if part.tasks.channel is None:
                part.adopted.client_listens(False)

    def opened(self, session_id: str, owner: Owner, stream: GetStream) -> None:
        """See `GetWatcher`."""
        session = self._sessions.known(session_id)
        if session is not None:
            self._sessions.part(session, owner).tasks.set_channel(StreamChannel(stream))

    def closed(self, session_id: str, owner: Owner) -> None:
        """See `GetWatcher`. Another stream of the session may still be open."""
        session = self._sessions.known(session_id)
        part = session.parts.get(owner) if session is not None else None
        if part is not None:
            left = self._pass.streams.find(session_id, owner)
            part.tasks.set_channel(None if left is None else StreamChannel(left))

    def takes(self, session_id: str, owner: Owner, event: Event) -> bool:
        """See `GetWatcher`: what belongs to the call of one of our tasks is not for the client as it is."""
        session = self._sessions.known(session_id)
        part = session.parts.get(owner) if session is not None else None
        if session is None or part is None or not part.adopted.in_use or not event.data:
            return False
        try:
            message = jsonrpc.parse(event.data, self._max_depth)
        except MessageError:
            return False
        if not self._is_of_task(session, owner, message):
            return False
        part.adopted.received(event.data)
        return True

    def _is_of_task(self, session: PassedSession, owner: Owner, message: Message) -> bool:
        match message:
            case Request(rid, method, params) if method in QUESTION_METHODS:
                related = related_task(params)
                asker = None if related is not None else asker_of(session, owner, self._asking)
                if isinstance(asker, PlainCall):
                    session.note_asked(rid.value, asker)
                elif asker is not None:
                    session.parts[owner].note_asked(rid.value)
                return asker is not None and not isinstance(asker, PlainCall)
            case Notification(names.PROGRESS, params):
                token = rid_in(params, names.META_PROGRESS_TOKEN)
                calls = session.parts[owner].adopted.calls
                return token is not None and any(call.id == token.value for call in calls)
            case Notification(names.CANCELLED, params):
                named = rid_in(params, "requestId")
                if named is not None:
                    session.note_answered(named.value)
                return named is not None and named.value in session.parts[owner].asked
            case Notification(names.TOOLS_LIST_CHANGED):
                session.parts[owner].adopted.received(_TOOLS_CHANGED)  # the client is told, too
                return False
            case _:
                return False

    # -- DELETE -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _delete(self, message: HttpMessage, session: PassedSession) -> AsyncIterator[Reply]:
        """At once; while calls of our tasks run on the session, whoever's, the upstream is told after the
        last: to us a client with a new token is another owner."""
        if session.has_calls:
            message.check_token()
            with anyio.CancelScope(shield=True):  # the store has a bound
                await self._sessions.defer_end(session)
            self._runner.spawn(self._end_later, message, session)
            yield _ENDED
            return
        async with self._pass.serve(message) as reply:
            if reply.status < _BAD_REQUEST:
                await self._sessions.forget(session.id)
            yield reply

    async def _end_later(self, message: HttpMessage, session: PassedSession) -> None:
        await session.wait_unused()
        await self._end(message, session.id)

    async def _end(self, message: HttpMessage, session_id: str) -> None:
        """If the upstream cannot be told, the next start tries again."""
        try:
            async with self._pass.serve(message):
                pass
        except ProxyError as exc:
            log.warning("session_not_ended", reason=exc.message)
            return
        await self._sessions.forget(session_id)

    async def end_deferred(self, tasks_ended: TasksEnded) -> None:
        """At the start: have the upstream told, in time, of sessions whose end was put off when we were
        stopped: each after the last of its tasks that were taken up. Without the token of their owner, which
        is not stored; a server that wants one ends them in its own time."""
        try:
            for session_id in await self._sessions.deferred():
                session = await self._sessions.find(session_id)
                session.ended = True
                self._runner.spawn(self._end_deferred, session, tasks_ended)
        except StoreError as exc:
            log.error("sessions_not_ended", reason=exc.message)

    async def _end_deferred(self, session: PassedSession, tasks_ended: TasksEnded) -> None:
        try:
            await tasks_ended(session.id)
        except ProxyError as exc:
            log.warning("session_not_ended", reason=exc.message)
            return
        headers = ((names.H_SESSION_ID, session.id),)
        await self._end_later(HttpMessage(HTTPMethod.DELETE, headers, ANONYMOUS), session)


class _Tracked:
    """A call that passes through, known while it is in flight. No generator: this is the hot path."""

    __slots__ = ("_call", "_part", "_reply", "_session")

    def __init__(
        self,
        reply: AbstractAsyncContextManager[Reply],
        session: PassedSession,
        part: OwnersPart,
        call: PlainCall,
    ) -> None:
        self._reply = reply
        self._session = session
        self._part = part
        self._call = call

    async def __aenter__(self) -> Reply:
        self._session.plain[self._call] = None
        try:
            reply = await self._reply.__aenter__()
            if reply.status >= _BAD_REQUEST:
                self._part.adopted.is_accepted = False
            return reply
        except BaseException:
            del self._session.plain[self._call]
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        del self._session.plain[self._call]
        return await self._reply.__aexit__(kind, exc, trace)


@asynccontextmanager
async def _just(reply: Reply) -> AsyncIterator[Reply]:
    yield reply


def _gone(said: Message | None) -> Reply:
    """The session was ended by its client (HTTP-070)."""
    rid = said.id if isinstance(said, Request) else None
    body = jsonrpc.error_response(rid, jsonrpc.error_object(ErrorCode.INVALID_REQUEST, "Session not found"))
    return Reply(HTTPStatus.NOT_FOUND, (JSON,), body)


def _plain(message: HttpMessage) -> HttpMessage:
    """Without compression: we have to read the answer."""
    return replace(message, headers=without_header(message.headers, "Accept-Encoding"))


def _at_version(message: HttpMessage, version: str) -> HttpMessage:
    """What the upstream negotiated, where we hold another version with the client."""
    headers = without_header(message.headers, names.H_PROTOCOL_VERSION)
    return replace(message, headers=[*headers, (names.H_PROTOCOL_VERSION, version)])
