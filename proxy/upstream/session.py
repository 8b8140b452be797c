"""One legacy session with the upstream: handshake, calls, questions, subscriptions, over any transport.

Above: `pool`, which starts and ends sessions, and `routing`, which calls. Below: `pending` (who waits
for what) and a `Transport` (bytes). A session belongs to one owner and one set of declared
capabilities. The house style's tree has no module of this name; it would put this into `stdio` and
`http`, but both speak the same protocol. MCP 2025-11-25, "Lifecycle".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock
from proxy.eras.capabilities import ClientCapabilities, initialize_params
from proxy.eras.to_legacy import cancelled_params, lower_name, lower_params
from proxy.eras.to_modern import ServerInfo
from proxy.errors import (
    ErrorCode,
    SessionLost,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    only_fault,
)
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, elements
from proxy.protocol.jsonrpc import (
    ErrorResponse,
    MessageError,
    Notification,
    Request,
    RequestId,
    ResultResponse,
)
from proxy.upstream.base import CallListener, Failure, Outcome, Question, Result, Transport
from proxy.upstream.catalogue import Catalogue
from proxy.upstream.pending import AskingTools, PendingCall, PendingTable

COURTESY_TIMEOUT_S: Final = 5.0  # cancel notices and refusals: must not pile up before a stuck server
SETTING_TIMEOUT_S: Final = 10.0  # setLevel, subscribe: a server that ignores them must not hold up a call
UNCLAIMED_QUESTION_S: Final = 60.0  # how long a question without a call waits for one
OUTBOX_SIZE: Final = 1_000  # messages that nobody waits for; more means that the server does not read

ChangeListener = Callable[[str, bytes | None], None]
"""Told the method and params of a list change or resource update. Must not block."""

_CHANGES: Final = frozenset(
    {
        names.TOOLS_LIST_CHANGED,
        names.PROMPTS_LIST_CHANGED,
        names.RESOURCES_LIST_CHANGED,
        names.RESOURCES_UPDATED,
    }
)
_QUESTIONS: Final = frozenset({names.ELICITATION_CREATE, names.SAMPLING_CREATE_MESSAGE, names.ROOTS_LIST})

log = get_logger()


class SessionQuestion:
    """A request of the upstream, answered at most once. Implements `base.Question`."""

    def __init__(self, session: LegacySession, request: Request, *, exact: bool) -> None:
        self._session = session
        self._request = request
        self._done = False
        self.exact = exact  # the wire said which call it belongs to

    @property
    def id(self) -> RequestId:
        return self._request.id

    @property
    def method(self) -> str:
        return self._request.method

    @property
    def params(self) -> bytes | None:
        return self._request.params

    @property
    def done(self) -> bool:
        return self._done

    async def answer(self, result: bytes) -> None:
        if self._done:
            return
        self._done = True
        try:
            await self._session.send_answer(self, result)
        except UpstreamError:
            self._done = False  # not handed over: the same answer may be tried again
            raise

    def refuse(self, error: bytes) -> None:
        if not self._done:
            self._done = True
            self._session.forget_question(self)
            self._session.post(jsonrpc.error_response(self.id, error))

    def withdraw(self) -> None:
        """The upstream does not want an answer any more."""
        self._done = True

    def __repr__(self) -> str:
        return f"<Question {self.method} {self.id.raw[:40]!r}{' done' if self._done else ''}>"


class LegacySession:
    """A session after `run` has called `started()`; see `base.Transport` for what may be concurrent."""

    def __init__(
        self,
        transport: Transport,
        *,
        name: str,
        capabilities: ClientCapabilities,
        client_version: str,
        asking: AskingTools,
        clock: Clock,
        max_depth: int,
        start_timeout_s: float,
        on_change: ChangeListener,
    ) -> None:
        self._transport = transport
        self._name = name
        self._capabilities = capabilities
        self._client_version = client_version
        self._clock = clock
        self._max_depth = max_depth
        self._start_timeout_s = start_timeout_s
        self._on_change = on_change
        self._table = PendingTable(asking)
        self._info: ServerInfo | None = None
        self._ended = anyio.Event()  # no answer can come any more
        self._gone = anyio.Event()  # nothing of the connection is left
        self._replace_me = False
        self._loss: UpstreamError | None = None
        self._unclaimed: list[SessionQuestion] = []
        self._known_roots: bytes | None = None
        self._log_level: str | None = None
        self.catalogue = Catalogue(self.ask, clock)
        self._settings = anyio.Lock()
        self._watched: dict[str, int] = {}
        self._tasks: TaskGroup | None = None
        self._outbox, self._outgoing = anyio.create_memory_object_stream[bytes](OUTBOX_SIZE)

    # -- life ---------------------------------------------------------------------------------------

    async def run(self, *, task_status: StartStatus[None]) -> None:
        """Connect, shake hands, call `started()`, serve until the end.

        Raises UpstreamError before `started` if that fails. When it returns, every call has been settled
        and nothing of the session is left.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await tasks.start(self._run_transport)
                tasks.start_soon(self._deliver_outbox)
                try:
                    await self._shake_hands()
                except UpstreamError:
                    self._transport.close()
                    await self._gone.wait()
                    raise
                task_status.started()
                await self._gone.wait()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_fault(group) from None
        finally:
            self.lost(None, UpstreamClosed(f"upstream '{self._name}': the session was ended"))
            self._outbox.close()
            self._outgoing.close()

    async def _run_transport(self, *, task_status: StartStatus[None]) -> None:
        try:
            await self._transport.run(self, task_status=task_status)
        finally:
            self._gone.set()

    async def _shake_hands(self) -> None:
        """initialize, its answer, initialized: first, in this order, never cancelled (VER-015, VER-017)."""
        call = self._table.add(names.INITIALIZE, None, _Nobody())
        params = initialize_params(self._capabilities, "mcp-taskproxy", self._client_version)
        try:
            with anyio.fail_after(self._start_timeout_s):
                request = jsonrpc.request(call.id, names.INITIALIZE, params)
                await self._transport.send(request, call=call.id)
                await call.ended.wait()
        except TimeoutError:
            raise UpstreamTimeout(
                f"upstream '{self._name}' did not answer initialize within {self._start_timeout_s:g} s"
            ) from None
        finally:
            self._table.remove(call)
        match call.outcome:
            case Result(raw):
                self._info = ServerInfo.parse(raw)
            case Failure(error):
                raise UpstreamProtocolError(
                    f"upstream '{self._name}' refused initialize: {error[:200].decode(errors='replace')}"
                )
            case None:
                raise call.loss or UpstreamClosed(f"upstream '{self._name}' went away during initialize")
        self._transport.established(self._info.version)
        await self._transport.send(jsonrpc.notification(names.INITIALIZED))
        log.info(
            "upstream_connected",
            upstream=self._name,
            transport=self._transport.describe(),
            version=self._info.version,
        )

    async def _deliver_outbox(self) -> None:
        async for message in self._outgoing:
            with anyio.move_on_after(COURTESY_TIMEOUT_S), suppress(UpstreamError):
                await self._transport.send(message)

    def close(self) -> None:
        """End the session in an orderly way; `run` returns when that is done. No new calls from now on."""
        self._replace_me = True
        self._transport.close()

    @property
    def info(self) -> ServerInfo:
        assert self._info is not None  # set before `started`
        return self._info

    @property
    def is_alive(self) -> bool:
        """Whether new calls may be sent here."""
        return self._info is not None and not self._ended.is_set() and not self._replace_me

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def __repr__(self) -> str:
        state = "READY" if self.is_alive else ("ENDED" if self._ended.is_set() else "STARTING")
        where = self._transport.describe()
        return f"<Upstream '{self._name}' {where} legacy {state}, {len(self._table)} pending>"

    # -- calls --------------------------------------------------------------------------------------

    async def call(
        self, method: str, params: bytes | None, listener: CallListener, *, want_progress: bool
    ) -> Outcome:
        """Send a modern request's method and params, translated, and wait for the upstream's answer.

        Raises UpstreamError if no answer can come. If it is cancelled, the upstream is told with our id
        and nobody waits for its answer. The wait itself has no bound here: whoever calls has one.
        """
        member = names.NAME_MEMBER.get(method)
        pending = self._table.add(method, member and lower_name(params, member), listener)
        if pending.carries_input:
            self._hand_over(self._unclaimed)
        token = pending.id if want_progress else None
        message = jsonrpc.request(pending.id, method, lower_params(method, params, token))
        try:
            await self._send_call(pending, message)
            await pending.ended.wait()
        except anyio.get_cancelled_exc_class():
            if not pending.ended.is_set():
                self.post(
                    jsonrpc.notification(names.CANCELLED, cancelled_params(pending.id, "no longer needed"))
                )
            raise
        finally:
            self._retire(pending)
        if pending.outcome is None:
            raise pending.loss or UpstreamClosed(f"upstream '{self._name}' closed the session")
        return pending.outcome

    async def _send_call(self, pending: PendingCall, message: bytes) -> None:
        if self._loss is not None:
            raise self._loss
        await self._transport.send(message, call=pending.id)

    async def ask(self, method: str, params: bytes | None) -> Outcome:
        """A request of our own, bounded by SETTING_TIMEOUT_S. Raises UpstreamError, also in time-outs."""
        try:
            with anyio.fail_after(SETTING_TIMEOUT_S):
                return await self.call(method, params, _Nobody(), want_progress=False)
        except TimeoutError:
            raise UpstreamTimeout(f"upstream '{self._name}' did not answer {method} in time") from None

    async def notify(self, method: str, params: bytes | None) -> None:
        await self._transport.send(jsonrpc.notification(method, params))

    def post(self, message: bytes) -> None:
        """Send a message that nobody waits for. Dropped if the server has stopped reading."""
        try:
            self._outbox.send_nowait(message)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            log.warning("upstream_message_dropped", upstream=self._name)

    def _retire(self, pending: PendingCall) -> None:
        """Its open questions move on to another call, unless they are known to be its own (contract 2)."""
        self._table.remove(pending)
        self._transport.abandon(pending.id)
        left = [q for q in pending.questions if isinstance(q, SessionQuestion) and not q.done]
        pending.questions.clear()
        for question in left:
            pending.listener.on_withdrawn(question)
            if question.exact or (not pending.ended.is_set() and self._table.attribute() is None):
                question.refuse(
                    jsonrpc.error_object(ErrorCode.INTERNAL_ERROR, "the call that asked has ended")
                )
            else:
                self._place(question, None)

    def _settle_all(self, loss: UpstreamError) -> None:
        for call in self._table.all():
            call.lose(loss)

    # -- settings of the session --------------------------------------------------------------------

    async def ensure_log_level(self, level: str) -> None:
        """Have the upstream log at least from `level` on (LOG-004). A refusal is not told the client."""
        if not self.info.declares("logging"):
            return
        async with self._settings:
            if self._log_level == level:
                return
            try:
                await self.ask(names.LOGGING_SET_LEVEL, dumps({"level": level}))
                self._log_level = level
            except UpstreamError as exc:
                log.warning(
                    "upstream_setting_failed", upstream=self._name, setting="level", reason=exc.message
                )

    async def watch_resource(self, uri: str) -> None:
        """Subscribe once per URI, however many listen (SUB-010). Raises UpstreamError if that fails."""
        async with self._settings:
            if not self._watched.get(uri):
                outcome = await self.ask(names.RESOURCES_SUBSCRIBE, dumps({"uri": uri}))
                if isinstance(outcome, Failure):
                    raise UpstreamProtocolError(f"upstream '{self._name}' refused to subscribe to a resource")
            self._watched[uri] = self._watched.get(uri, 0) + 1

    async def unwatch_resource(self, uri: str) -> None:
        """The last one to go unsubscribes upstream (SUB-008)."""
        async with self._settings:
            left = self._watched.get(uri, 0) - 1
            if left > 0:
                self._watched[uri] = left
            elif self._watched.pop(uri, None) is not None and self.is_alive:
                with suppress(UpstreamError):
                    await self.ask(names.RESOURCES_UNSUBSCRIBE, dumps({"uri": uri}))

    # -- what comes from the upstream (base.Receiver) ------------------------------------------------

    def received(self, message: bytes, call: int | None) -> None:
        try:
            parsed = jsonrpc.parse(message, self._max_depth)
        except MessageError as exc:
            self._received_junk(message, call, exc)
            return
        match parsed:
            case ResultResponse(rid, result):
                self._answered(rid, call, Result(result))
            case ErrorResponse(rid, error):
                self._answered(rid, call, Failure(error))
            case Request():
                self._asked(parsed, self._table.get(call))
            case Notification(method, params):
                self._notified(method, params, self._table.get(call))

    def _received_junk(self, message: bytes, call: int | None, fault: MessageError) -> None:
        """An array is a batch of old servers and taken apart (F20); the rest is noise."""
        if fault.code is ErrorCode.INVALID_REQUEST and message.lstrip()[:1] == b"[":
            for element in elements(message):
                self.received(element, call)
            return
        answered = self._table.answered_by(fault.id) or self._table.get(call)
        if answered is not None and fault.id is not None:
            answered.lose(UpstreamProtocolError(f"upstream '{self._name}' sent an invalid response: {fault}"))
            return
        log.warning("upstream_noise_skipped", upstream=self._name, reason=fault.message, bytes=len(message))

    def _answered(self, rid: RequestId | None, origin: int | None, outcome: Outcome) -> None:
        pending = self._table.answered_by(rid)
        if pending is None and rid is None:
            pending = self._table.get(origin)  # an error to a request whose id the server could not read
        if pending is None:
            log.debug("late_answer_dropped", upstream=self._name)
            return
        pending.settle(outcome)

    def _notified(self, method: str, params: bytes | None, origin: PendingCall | None) -> None:
        if method == names.PROGRESS:
            self._progressed(params)
        elif method == names.CANCELLED:
            self._question_withdrawn(params)
        elif method in _CHANGES:
            if method == names.TOOLS_LIST_CHANGED:
                self.catalogue.forget()
            self._on_change(method, params)
        elif method != names.ELICITATION_COMPLETE:  # ours alone to know (ELIC-004)
            pending = origin or self._table.alone()
            if pending is not None:
                pending.listener.on_notification(method, params)

    def _progressed(self, params: bytes | None) -> None:
        try:
            token = RawObject.parse(params or b"").get(names.META_PROGRESS_TOKEN)
            rid = RequestId.parse(token) if token is not None else None
            pending = self._table.answered_by(rid)
            if pending is None or params is None or not pending.rises(params):
                return
        except (JsonError, DuplicateMember):
            return
        pending.listener.on_notification(names.PROGRESS, params)

    def lost(self, call: int | None, error: UpstreamError) -> None:
        if call is not None:
            pending = self._table.get(call)
            if pending is not None:
                pending.lose(error)
            if isinstance(error, SessionLost):
                self._replace_me = True  # the others in flight may still be answered
            return
        if not self._ended.is_set():
            self._loss = error
            self._ended.set()
            self._settle_all(error)

    # -- questions ----------------------------------------------------------------------------------

    def _asked(self, request: Request, origin: PendingCall | None) -> None:
        if request.method == names.PING:
            self.post(jsonrpc.result_response(request.id, b"{}"))
            return
        question = SessionQuestion(self, request, exact=origin is not None and origin.carries_input)
        missing = self._capabilities.missing_for(request.method, request.params)
        if request.method not in _QUESTIONS:
            question.refuse(
                jsonrpc.error_object(ErrorCode.METHOD_NOT_FOUND, f"unknown method {request.method}")
            )
        elif origin is None and missing is not None and self._table.attribute() is None:
            question.refuse(missing.refusal(request.method))
        else:
            self._place(question, origin)

    def _place(self, question: SessionQuestion, origin: PendingCall | None) -> None:
        """Give the question to the call it belongs to, or keep it for the next one that can carry it."""
        pending = origin if origin is not None and origin.carries_input else None
        pending = pending or self._table.attribute()
        if pending is not None:
            pending.questions.append(question)
            pending.listener.on_question(question)
        elif question.method == names.ROOTS_LIST and self._known_roots is not None:
            self.post(jsonrpc.result_response(question.id, self._known_roots))
            question.withdraw()
        elif not self._ended.is_set() and self._tasks is not None:
            self._unclaimed.append(question)
            self._tasks.start_soon(self._expire_question, question)

    def _hand_over(self, questions: list[SessionQuestion]) -> None:
        waiting = [q for q in questions if not q.done]
        questions.clear()
        for question in waiting:
            self._place(question, None)

    async def _expire_question(self, question: SessionQuestion) -> None:
        await self._clock.sleep(UNCLAIMED_QUESTION_S)
        if question in self._unclaimed:
            self._unclaimed.remove(question)
            question.refuse(
                jsonrpc.error_object(
                    ErrorCode.INTERNAL_ERROR,
                    f"no request of the client is in flight that can carry {question.method}",
                )
            )

    def forget_question(self, question: SessionQuestion) -> None:
        """It is answered or refused; no call waits for it any more."""
        for call in self._table.all():
            if question in call.questions:
                call.questions.remove(question)

    async def send_answer(self, question: SessionQuestion, result: bytes) -> None:
        if self._loss is not None:
            raise self._loss
        await self._transport.send(jsonrpc.result_response(question.id, result))
        self.forget_question(question)
        if question.method == names.ROOTS_LIST:
            self._known_roots = result

    def _question_withdrawn(self, params: bytes | None) -> None:
        try:
            raw = RawObject.parse(params or b"").get("requestId")
            rid = RequestId.parse(raw) if raw is not None else None
        except (JsonError, DuplicateMember):
            return
        if rid is None:
            return
        for call in self._table.all():
            for question in call.questions:
                if question.id.value == rid.value and isinstance(question, SessionQuestion):
                    question.withdraw()
                    call.questions.remove(question)
                    call.listener.on_withdrawn(question)
                    return
        self._unclaimed = [q for q in self._unclaimed if q.id.value != rid.value]


class _Nobody:
    """The listener of requests of our own."""

    def on_notification(self, method: str, params: bytes | None) -> None:
        """Nothing to tell anybody."""

    def on_question(self, question: Question) -> None:
        question.refuse(jsonrpc.error_object(ErrorCode.METHOD_NOT_FOUND, "no client is concerned"))

    def on_withdrawn(self, question: Question) -> None:
        """Was refused already."""
