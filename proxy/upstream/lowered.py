"""A modern server as a legacy client needs it: a transport that speaks legacy upwards and modern
downwards.

Above: whatever serves one legacy client (`routing.own_server`), by way of `matching`. Below: one
`LegacySession` with the modern server, made when the client's `initialize` comes, with exactly what the
client declared. So nothing that serves legacy clients has to know what era the server is of. Contract
section 7; implements `base.Transport`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock, Pulse
from proxy.eras.capabilities import ClientCapabilities
from proxy.eras.lowering import (
    initialize_result,
    with_elicitation_id,
    with_legacy_schemas,
    without_unusable_tools,
)
from proxy.errors import (
    ClientProtocolError,
    ErrorCode,
    ProxyError,
    UpstreamClosed,
    UpstreamError,
)
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, loads
from proxy.protocol.jsonrpc import (
    ErrorResponse,
    MessageError,
    Notification,
    Request,
    RequestId,
    ResultResponse,
)
from proxy.protocol.param_headers import headers_for, read_arguments
from proxy.upstream.base import NO_HEADERS, Headers, Receiver
from proxy.upstream.endpoint import OUTCOME_UNKNOWN
from proxy.upstream.lowered_call import LoweredCall, Refused
from proxy.upstream.lowered_listen import LoweredListen
from proxy.upstream.session import ChangeListener, LegacySession

MakeSession = Callable[[ClientCapabilities, ChangeListener], LegacySession]
"""A session with the modern server, not yet started; and who is told what belongs to no one call."""

LAST_WORDS_S: Final = 5.0  # for cancelling tasks of the server's own; must not hold up the end

_QUESTION: Final = "tpx-question-"
_NO_CAPABILITIES: Final = b"{}"

log = get_logger()


@dataclass(slots=True, eq=False)
class _Question:
    """Asked of the client, and what it answered."""

    call: int
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: ResultResponse | ErrorResponse | None = None


class LoweredTransport:
    """See the module. One instance is one client's session."""

    def __init__(self, make_session: MakeSession, *, name: str, clock: Clock, max_depth: int) -> None:
        self._make_session = make_session
        self._name = name
        self._clock = clock
        self._max_depth = max_depth
        self._receiver: Receiver
        self._group: TaskGroup | None = None
        self._session: LegacySession | None = None
        self._listen: LoweredListen | None = None
        self._meta: dict[str, Any] = {}
        self._capabilities: ClientCapabilities
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._settled = Pulse()
        self._greeted = False
        self._questions: dict[str, _Question] = {}
        self._question_ids = (f"{_QUESTION}{number}" for number in itertools.count(1))
        self._ending = anyio.Event()
        self._error: UpstreamError | None = None

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        self._receiver = receiver
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                task_status.started()
                await self._ending.wait()
                await self._give_up()
                if self._session is not None:
                    self._session.close()
                    await self._session.wait_gone()
                group.cancel_scope.cancel()
        finally:
            receiver.lost(
                None, self._error or UpstreamClosed(f"upstream '{self._name}': the session was closed")
            )

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        if self._group is None or self._ending.is_set():
            raise UpstreamClosed(f"upstream '{self._name}': the session is closed, nothing was sent")
        try:
            said = jsonrpc.parse(message, self._max_depth)
        except MessageError as exc:
            raise UpstreamError(f"upstream '{self._name}' was sent nothing: {exc.message}") from exc
        match said:
            case Request():
                assert call is not None  # a request has an answer
                self._group.start_soon(self._serve, said, call)
            case Notification(names.CANCELLED, params):
                self._cancel(params)
            case Notification():
                pass  # a modern server takes none
            case ResultResponse() | ErrorResponse():
                self._answered(said)

    def abandon(self, call: int) -> None:
        if (scope := self._scopes.get(call)) is not None:
            scope.cancel()

    def established(self, version: str) -> None:
        """The version is between the client and us."""

    def close(self) -> None:
        self._ending.set()

    def leave(self) -> None:
        """There is no session upstream that a later process could find again."""

    def describe(self) -> str:
        return "modern, for a legacy client" if self._session is None else f"modern {self._session!r}"

    def __repr__(self) -> str:
        return f"<LoweredTransport {self._session!r}, {len(self._scopes)} in flight>"

    async def _give_up(self) -> None:
        """Answer nothing more; calls in flight may still tell the server so."""
        for scope in list(self._scopes.values()):
            scope.cancel()
        with anyio.move_on_after(LAST_WORDS_S):
            while self._scopes:
                await self._settled.event.wait()

    # -- requests -----------------------------------------------------------------------------------

    async def _serve(self, request: Request, call: int) -> None:
        """Have it answered, unless it is cancelled. A fault of one is not the others'."""
        with anyio.CancelScope() as scope:
            self._scopes[call] = scope
            try:
                result = await self._result(request, call)
                self._receiver.received(jsonrpc.result_response(request.id, result), call)
            except Refused as exc:
                self._receiver.received(jsonrpc.error_response(request.id, exc.error), call)
            except UpstreamError as exc:
                self._receiver.lost(call, exc)
            except ProxyError as exc:
                error = jsonrpc.error_object(exc.code, exc.message, exc.data)
                self._receiver.received(jsonrpc.error_response(request.id, error), call)
            except (JsonError, DuplicateMember) as exc:
                error = jsonrpc.error_object(ErrorCode.INVALID_PARAMS, f"Invalid params: {exc}")
                self._receiver.received(jsonrpc.error_response(request.id, error), call)
            finally:
                del self._scopes[call]
                self._settled.beat()
        if scope.cancelled_caught and self._error is not None:  # the server is gone, not the client
            self._receiver.lost(call, self._error)

    async def _result(self, request: Request, call: int) -> bytes:
        match request.method:
            case names.INITIALIZE:
                return await self._initialized(request.params)
            case names.PING:
                return b"{}"
            case names.LOGGING_SET_LEVEL:
                return self._level_set(request.params)
            case names.RESOURCES_SUBSCRIBE | names.RESOURCES_UNSUBSCRIBE:
                return await self._subscribed(request)
            case _:
                return await self._called(request, call)

    async def _called(self, request: Request, call: int) -> bytes:
        session = self._established()
        lowered = LoweredCall(
            request,
            call,
            session,
            self._meta,
            self._clock,
            ask=self._ask,
            question_ids=self._question_ids,
            waits=lambda waiting, call: self._receiver.moved(call, waiting),
            told=self._receiver.received,
            headers_of=self._headers_of,
        )
        try:
            result = await lowered.result()
        finally:
            if lowered.is_doubtful and self._group is not None:
                self._group.start_soon(session.doubt)
        if request.method == names.TOOLS_LIST:
            result = with_legacy_schemas(result)
        if request.method == names.TOOLS_LIST and session.mirrors_params:
            result, left_out = without_unusable_tools(result)
            if left_out:
                log.warning("tools_left_out", upstream=self._name, count=len(left_out))
        return result

    async def _headers_of(self, params: bytes) -> Headers:
        """What of the arguments a modern server over HTTP wants as headers, too (HTTP-042)."""
        session = self._established()
        obj = RawObject.parse(params)
        tool, arguments = obj.text("name"), obj.get("arguments")
        if not session.mirrors_params or tool is None or arguments is None:
            return NO_HEADERS
        mirrored = await session.catalogue.mirrored(tool)
        return headers_for(mirrored, read_arguments(arguments)) if mirrored else NO_HEADERS

    def _established(self) -> LegacySession:
        if self._session is None:
            raise ClientProtocolError(ErrorCode.INVALID_REQUEST, "Invalid request: not initialized")
        return self._session

    # -- the session --------------------------------------------------------------------------------

    async def _initialized(self, params: bytes | None) -> bytes:
        """The first request of the client opens the session with the server."""
        assert self._group is not None  # `run` is running
        try:
            said = RawObject.parse(params or b"{}")
            declared, info = said.get("capabilities"), said.object("clientInfo")
            asked = said.text("protocolVersion")
            capabilities = ClientCapabilities.parse(declared if declared is not None else _NO_CAPABILITIES)
        except (JsonError, DuplicateMember) as exc:
            raise ClientProtocolError(ErrorCode.INVALID_PARAMS, f"Invalid params: {exc}") from exc
        if self._greeted:
            raise ClientProtocolError(ErrorCode.INVALID_REQUEST, "Invalid request: initialized already")
        self._greeted = True
        self._capabilities = capabilities
        session = self._make_session(capabilities, self._heard)
        try:
            await self._group.start(session.run)
        except BaseException:
            self._greeted = False
            raise
        self._group.start_soon(self._watch, session)
        self._session = session
        offered = json.loads(capabilities.offered)
        if session.info.has_tasks:
            offered.setdefault("extensions", {})[names.TASKS_EXTENSION] = {}
        self._meta = {
            names.META_PROTOCOL_VERSION: names.LATEST_MODERN,
            names.META_CLIENT_INFO: loads(info.raw)
            if info is not None
            else {"name": "unknown", "version": "0"},
            names.META_CLIENT_CAPABILITIES: offered,
        }
        self._listen = LoweredListen(session, self._meta, self._clock, self._tell)
        self._group.start_soon(self._listen.run)
        return initialize_result(session.info, asked)

    async def _watch(self, session: LegacySession) -> None:
        """When the session takes no more calls, the client's ends with it; the next one finds out what the
        server is now."""
        await session.wait_ended()
        if not self._ending.is_set():
            changed = f"upstream '{self._name}' is no longer what it was; {OUTCOME_UNKNOWN}"
            self._error = session.loss or UpstreamClosed(changed)
            self._ending.set()

    def _level_set(self, params: bytes | None) -> bytes:
        level = _text(params, "level")
        if level not in names.LOG_LEVELS:
            known = ", ".join(names.LOG_LEVELS)
            raise ClientProtocolError(ErrorCode.INVALID_PARAMS, f"Invalid params: level is none of {known}")
        self._meta[names.META_LOG_LEVEL] = level
        return b"{}"

    async def _subscribed(self, request: Request) -> bytes:
        uri = _text(request.params, "uri")
        self._established()
        assert self._listen is not None  # since the session is
        if uri is None:
            raise ClientProtocolError(ErrorCode.INVALID_PARAMS, "Invalid params: uri is not a string")
        if request.method == names.RESOURCES_UNSUBSCRIBE:
            await self._listen.unsubscribe(uri)
        elif not await self._listen.subscribe(uri):
            raise UpstreamError(f"upstream '{self._name}' does not tell of changes of this resource")
        return b"{}"

    def _heard(self, method: str, params: bytes | None) -> None:
        """A log line on stdio while several calls are in flight: the session's, for a legacy client."""
        self._tell(jsonrpc.notification(method, params))

    def _tell(self, message: bytes) -> None:
        self._receiver.received(message, None)

    # -- questions ----------------------------------------------------------------------------------

    async def _ask(self, rid: str, method: str, params: bytes | None, call: int) -> bytes:
        """A request to the client, if it has declared that. If the wait is cancelled, the client is told."""
        missing = self._capabilities.missing_for(method, params)
        if missing is not None:
            raise Refused(missing.refusal(method, ErrorCode.INTERNAL_ERROR))  # of its call, not of tools/call
        question = self._questions[rid] = _Question(call)
        question_params = with_elicitation_id(params, rid) if method == names.ELICITATION_CREATE else params
        self._receiver.received(jsonrpc.request(RequestId(dumps(rid), rid), method, question_params), call)
        try:
            await question.answered.wait()
        finally:
            self._questions.pop(rid, None)
            if not question.answered.is_set():
                withdrawn = dumps({"requestId": rid, "reason": "no longer needed"})
                self._receiver.received(jsonrpc.notification(names.CANCELLED, withdrawn), call)
        match question.answer:
            case ResultResponse(_, result):
                return result
            case ErrorResponse(_, error):
                raise Refused(error)
            case None:
                raise UpstreamClosed("the question was not answered")

    def _answered(self, answer: ResultResponse | ErrorResponse) -> None:
        rid = None if answer.id is None else answer.id.value
        question = self._questions.pop(rid, None) if isinstance(rid, str) else None
        if question is not None:
            question.answer = answer
            question.answered.set()

    def _cancel(self, params: bytes | None) -> None:
        try:
            raw = RawObject.parse(params or b"{}").get("requestId")
        except (JsonError, DuplicateMember):
            return
        rid = RequestId.parse(raw) if raw is not None else None
        if rid is not None and isinstance(rid.value, int):
            self.abandon(rid.value)


def _text(params: bytes | None, member: str) -> str | None:
    try:
        return RawObject.parse(params or b"{}").text(member)
    except (JsonError, DuplicateMember):
        return None
