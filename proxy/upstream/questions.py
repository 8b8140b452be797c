"""The questions that the upstream asks in one session: whose they are, and what becomes of them.

Above: `inbox` brings them, `session` says when calls begin and end. Below: `pending`, whose table and rule
say which call a question belongs to. A question is with one call at a time, or waits for one; it ends
when it is answered, refused, or withdrawn by the upstream. Contract section 2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from proxy.clock import Clock, Pulse
from proxy.eras.capabilities import ClientCapabilities
from proxy.eras.tasks_2025 import related_task, with_related_task
from proxy.errors import ErrorCode
from proxy.protocol import jsonrpc, names
from proxy.protocol.jsonrpc import Request, RequestId
from proxy.upstream.pending import AskingTools, PendingCall, PendingTable

UNCLAIMED_S: Final = 60.0  # how long a question without a call waits for one
MAX_OPEN: Final = 1_000  # questions of one session; a server that asks more does not wait for answers

_KINDS: Final = frozenset({names.ELICITATION_CREATE, names.SAMPLING_CREATE_MESSAGE, names.ROOTS_LIST})


class UpstreamQuestion:
    """A request of the upstream, answered at most once. Implements `base.Question`.

    `origin` is the call on whose stream it came, if there is one that can carry it, or which was alone when
    it came: then it is that call's and nobody else's. `up_to` is the newest call that can have asked it.
    `holder` is the call that it is with; `related_task` the upstream's own 2025 task that it is part of,
    which the answer names, too (T25-REL-005).
    """

    def __init__(
        self, questions: Questions, request: Request, origin: PendingCall | None, up_to: float
    ) -> None:
        self._questions = questions
        self._request = request
        self.origin = origin
        self.up_to = up_to
        self.holder: PendingCall | None = None
        self.related_task: str | None = None
        self.restored = False
        self.being_answered = False
        self.was_answered = False  # by somebody, though perhaps in vain

    @property
    def id(self) -> RequestId:
        return self._request.id

    @property
    def method(self) -> str:
        return self._request.method

    @property
    def params(self) -> bytes | None:
        return self._request.params

    async def answer(self, result: bytes) -> None:
        await self._questions.answer(self, result)

    async def reject(self, error: bytes) -> None:
        await self._questions.reject(self, error)

    def refuse(self, error: bytes) -> None:
        self._questions.refuse(self, error)

    def __repr__(self) -> str:
        holder = "unclaimed" if self.holder is None else f"of call {self.holder.id}"
        return f"<UpstreamQuestion {self.method} {self.id.raw[:40]!r} {holder}>"


class Questions:
    """Those that are open in one session. Nothing in here waits but `answer` and `expire`.

    `send` hands a message over and raises UpstreamError if it cannot; `post` sends one that nobody waits
    for.
    """

    def __init__(
        self,
        table: PendingTable,
        asking: AskingTools,
        capabilities: ClientCapabilities,
        clock: Clock,
        *,
        send: Callable[[bytes], Awaitable[None]],
        post: Callable[[bytes], None],
        is_clients: bool = False,
    ) -> None:
        """`is_clients`: the session is a legacy client's own, who may have tasks of the upstream's there."""
        self._is_clients = is_clients
        self._table = table
        self._asking = asking
        self._capabilities = capabilities
        self._clock = clock
        self._send = send
        self._post = post
        self._open: dict[UpstreamQuestion, None] = {}
        self._unclaimed: dict[UpstreamQuestion, float] = {}  # and until when they wait
        self._came = Pulse()
        self._roots: bytes | None = None  # the client's last answer, for questions without a call

    def __len__(self) -> int:
        return len(self._open)

    # -- what the upstream does ---------------------------------------------------------------------

    def ask(self, request: Request, call_id: int | None) -> None:
        """The upstream asks, on the stream of the call `call_id` if the wire tells. Never left in silence
        (ELIC-011)."""
        related = related_task(request.params)
        of_task = self._table.of_task(related)
        if related is not None and of_task is None and self._is_clients:
            return  # of a task of the upstream's that the client has asked for, and is told of elsewhere
        origin = of_task or self._table.get(call_id)
        asker = origin if origin is not None and origin.carries_input else None
        if call_id is None and asker is None and request.method != names.ROOTS_LIST:
            asker = self._table.lone_carrier()
        question = UpstreamQuestion(self, request, asker, self._table.newest)
        question.related_task = related
        if self._is_replayed(question):
            return
        self._open[question] = None
        fault = self._fault_of(question, came_late=call_id is not None and origin is None)
        if fault is not None:
            question.refuse(fault)
        else:
            self._place(question)

    def withdraw(self, rid: RequestId, call_id: int | None) -> None:
        """The upstream does not want an answer any more. Ids of several calls' questions can be equal."""
        origin = self._table.get(call_id)
        named = [q for q in self._open if q.id.value == rid.value]
        question = next((q for q in named if q.origin is origin), named[0] if named else None)
        if question is not None:
            holder = question.holder
            self._close(question)
            if holder is not None:
                holder.listener.on_withdrawn(question)

    def _is_replayed(self, question: UpstreamQuestion) -> bool:
        """Whether it is open already: resumed streams repeat what was not acknowledged, and with some servers
        what came on other streams of the session, too."""
        return any(
            q.id.value == question.id.value
            and q.method == question.method
            and (q.origin is question.origin or (q.restored and _is_its(q, question)))
            for q in self._open
        )

    def _fault_of(self, question: UpstreamQuestion, *, came_late: bool) -> bytes | None:
        """Why nobody is asked this, as an error object."""
        if question.method not in _KINDS:
            return jsonrpc.error_object(ErrorCode.METHOD_NOT_FOUND, f"unknown method {question.method}")
        if not _has_usable_params(question):
            return jsonrpc.error_object(
                ErrorCode.INVALID_PARAMS, f"the params of {question.method} are no object"
            )
        if came_late:
            return _CALL_HAS_ENDED
        if len(self._open) > MAX_OPEN:
            return jsonrpc.error_object(ErrorCode.INTERNAL_ERROR, f"{MAX_OPEN} questions are open already")
        return None

    def restore(self, call: PendingCall, request: Request) -> UpstreamQuestion:
        """A question of this call that an earlier process was asked, and has not answered. If the upstream
        repeats it, or has done so already on the stream of another call, that is no second one. Whether it
        came on the call's own stream is not known any more: it may move on."""
        for repeated in [q for q in self._open if _is_same(q, request) and not q.restored]:
            holder = repeated.holder
            self._close(repeated)
            if holder is not None:
                holder.listener.on_withdrawn(repeated)
        origin = call if call.upstream_task is not None else None
        question = UpstreamQuestion(self, request, origin, float("inf"))
        question.restored = True
        question.related_task = call.upstream_task
        question.holder = call
        call.questions.append(question)
        self._open[question] = None
        return question

    # -- what our calls do --------------------------------------------------------------------------

    def begin(self, call: PendingCall) -> None:
        """Give a new call the questions that have waited for one."""
        if call.carries_input:
            waiting, self._unclaimed = self._unclaimed, {}
            for question in waiting:
                self._place(question)

    def end(self, call: PendingCall) -> None:
        """The call is out of the table. Its open questions move on to another call, or are refused."""
        left, call.questions = list(call.questions), []
        for question in left:
            assert isinstance(question, UpstreamQuestion)  # no other is put there
            question.holder = None
            call.listener.on_withdrawn(question)
            missing = self._capabilities.missing_for(question.method, question.params)
            if missing is not None:
                question.refuse(missing.refusal(question.method))
            elif self._moves_on(question):
                self._place(question)
            else:
                question.refuse(_CALL_HAS_ENDED)

    def _moves_on(self, question: UpstreamQuestion) -> bool:
        """Not if it is known to be of the call that has ended, or was answered there: nobody is asked twice.
        Where nobody is left to ask, only roots still wait: they are the client's, not the call's, and servers
        ask for them once a session."""
        if question.origin is not None or question.was_answered:
            return False
        return (
            question.method == names.ROOTS_LIST
            or self._table.attribute(self._asking, question.up_to) is not None
        )

    async def answer(self, question: UpstreamQuestion, result: bytes) -> None:
        """See `base.Question`. If it fails, or is cancelled, the question is open as before."""
        told = result
        if question.related_task is not None:
            told = with_related_task(result, question.related_task)
        is_taken = await self._say(question, jsonrpc.result_response(question.id, told))
        if is_taken and question.method == names.ROOTS_LIST:
            self._roots = told

    async def reject(self, question: UpstreamQuestion, error: bytes) -> None:
        """See `base.Question`; and as above."""
        await self._say(question, jsonrpc.error_response(question.id, error))

    async def _say(self, question: UpstreamQuestion, message: bytes) -> bool:
        """Whether it was for us to say, and is said."""
        if question not in self._open or question.being_answered:
            return False
        question.being_answered = question.was_answered = True
        self._take_from_holder(question)
        try:
            await self._send(message)
        except BaseException:
            question.being_answered = False
            self._give_back(question)
            raise
        self._close(question)
        return True

    def refuse(self, question: UpstreamQuestion, error: bytes) -> None:
        """See `base.Question`."""
        if question in self._open and not question.being_answered:
            self._close(question)
            self._post(jsonrpc.error_response(question.id, error))

    # -- where a question is -------------------------------------------------------------------------

    def _place(self, question: UpstreamQuestion) -> None:
        """Give it to the call it belongs to; else answer it ourselves, or let it wait for a call."""
        call = question.origin or self._table.attribute(self._asking, question.up_to)
        if call is not None:
            self._give(question, call)
            return
        missing = self._capabilities.missing_for(question.method, question.params)
        if missing is not None:
            question.refuse(missing.refusal(question.method))
        elif question.method == names.ROOTS_LIST and self._roots is not None:
            self._close(question)
            self._post(jsonrpc.result_response(question.id, self._roots))
        else:
            question.up_to = float("inf")  # it waits for whatever comes
            self._unclaimed[question] = self._clock.monotonic() + UNCLAIMED_S
            self._came.beat()

    def _give(self, question: UpstreamQuestion, call: PendingCall) -> None:
        """Also learn that the tool asks; not from roots, which servers ask for when the session begins,
        whatever call is first."""
        if call is self._table.alone() and question.method != names.ROOTS_LIST:
            self._asking.saw(call)
        question.holder = call
        call.questions.append(question)
        call.listener.on_question(question)

    def _take_from_holder(self, question: UpstreamQuestion) -> None:
        if question.holder is not None and question in question.holder.questions:
            question.holder.questions.remove(question)

    def _give_back(self, question: UpstreamQuestion) -> None:
        """Its answer could not be sent; meanwhile its call may have ended."""
        if question.holder is not None and question.holder in self._table:
            question.holder.questions.append(question)
        else:
            question.refuse(_CALL_HAS_ENDED)

    def _close(self, question: UpstreamQuestion) -> None:
        """Nothing more is to be said about it."""
        self._open.pop(question, None)
        self._unclaimed.pop(question, None)
        self._take_from_holder(question)
        question.holder = None

    async def expire(self) -> None:
        """Refuse those that no call came for. Runs as long as the session."""
        while True:
            came = self._came.event
            if not self._unclaimed:
                await came.wait()
                continue
            question, until = next(iter(self._unclaimed.items()))
            await self._clock.sleep(until - self._clock.monotonic())
            if self._unclaimed.get(question) == until:
                question.refuse(
                    jsonrpc.error_object(
                        ErrorCode.INTERNAL_ERROR,
                        f"no request of the client is in flight that can carry {question.method}",
                    )
                )

    def __repr__(self) -> str:
        return f"<Questions {len(self._open)} open, {len(self._unclaimed)} unclaimed>"


def _is_its(restored: UpstreamQuestion, question: UpstreamQuestion) -> bool:
    """Whether it came again, on its call's stream or with the same words."""
    return restored.holder is question.origin or restored.params == question.params


def _is_same(question: UpstreamQuestion, request: Request) -> bool:
    is_named = question.id.value == request.id.value and question.method == request.method
    return is_named and question.params == request.params


def _has_usable_params(question: UpstreamQuestion) -> bool:
    if question.params is None:
        return question.method == names.ROOTS_LIST
    return question.params[:1] == b"{"


_CALL_HAS_ENDED: Final = jsonrpc.error_object(ErrorCode.INTERNAL_ERROR, "the call that asked has ended")
