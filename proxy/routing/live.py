"""One call on its way: what the upstream has said of it so far, and who is told.

Above: `conversion` (rounds of the client) and `following` (the task, once there is one) watch it. Below: the
upstream session tells it, as its `CallListener`. It belongs to the runner's task group, never to a
request of the client; so a client that goes away takes nothing with it but its own watching.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Final

import anyio

from proxy.clock import Pulse
from proxy.eras.capabilities import ClientCapabilities, Missing
from proxy.eras.to_modern import ServerInfo, lift_question
from proxy.errors import ErrorCode, ProxyError, UpstreamRefused
from proxy.logs import get_logger
from proxy.protocol import names
from proxy.protocol.jsonrpc import RequestId, error_object
from proxy.routing.base import ClientRequest
from proxy.routing.progress import progress_text, shortened
from proxy.tasks.inputs import overflow
from proxy.tasks.lost_call import REPEAT_MAX_BYTES, CallTrace, Repeat, RoundTrace
from proxy.tasks.policy import ToolPolicy
from proxy.tasks.task import InputRequest
from proxy.upstream.base import Outcome, Position, Question, StreamPosition, WaitingRound
from proxy.upstream.session import LegacySession

WAITING_FOR_PROCESS: Final = "Waiting for an upstream process."
START_GRACE_S: Final = 10.0  # a server that takes longer to start shows as a task that waits

log = get_logger()

SessionCheck = Callable[[ClientRequest, LegacySession], Awaitable[None]]
"""Raises ProxyError where the session's server cannot be asked this."""

Place = Callable[[], AbstractAsyncContextManager[LegacySession]]
"""A session for one call, as long as the context lasts. Raises UpstreamError if there is none."""

NotificationListener = Callable[[str, bytes | None], None]


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question of the upstream under the key that the client sees."""

    question: Question
    request: InputRequest


class RestoredQuestion:
    """One that an earlier process was asked; it can be answered once the call is in flight again. Implements
    `upstream.base.Question`."""

    def __init__(self, id: RequestId, method: str, params: bytes | None) -> None:
        self._id = id
        self._method = method
        self._params = params
        self._attached = anyio.Event()
        self._real: Question | None = None
        self._refusal: bytes | None = None

    @property
    def id(self) -> RequestId:
        return self._id

    @property
    def method(self) -> str:
        return self._method

    @property
    def params(self) -> bytes | None:
        return self._params

    def attach(self, real: Question | None) -> None:
        """None: its asker is not there any more, and whoever answers need not wait."""
        self._real = real
        self._attached.set()
        if real is not None and self._refusal is not None:
            real.refuse(self._refusal)

    async def answer(self, result: bytes) -> None:
        await self._attached.wait()
        if self._real is not None:
            await self._real.answer(result)

    async def reject(self, error: bytes) -> None:
        await self._attached.wait()
        if self._real is not None:
            await self._real.reject(error)

    def refuse(self, error: bytes) -> None:
        self._refusal = error
        if self._real is not None:
            self._real.refuse(error)


@dataclass(eq=False)
class LiveCall:
    """The state of one call. Changed only between awaits.

    `request` is what goes upstream; `capabilities` and `log_level` are those of the client's latest
    request for it. `place` is where a legacy client's call runs: on that client's own session; None: where
    the pool has room. `may_convert`: it may become a task of ours. `before` is waited for before anything
    else; it may raise ProxyError.

    `left_round`: an earlier process left it waiting for answers; it gives the `next_params`, with which the
    call goes on. `resumes`: an earlier process has sent it, and this is where its stream was left;
    `may_repeat`: if it cannot be resumed it is sent again; `ran_before`: it may have run, and is being sent
    again. `trace` is where a later process finds the rest
    of the stream, `round` what a modern server's next round needs while that waits for answers, `was_sent`
    whether the call was sent, by whatever process; `runs_upstream`: as a task of the upstream's own.

    `held_up` says in words what an answer of the client waits for on its way to the server; `refusal` is what
    the server says to the token that it came with, where the client can come again with another.

    `changed` beats at every change, `turned` only when the call ends or begins or stops to wait for input.
    `questions` holds what is open, by key, in the order asked. A call has ended when `ended`: with an
    `outcome`, or with a `loss`, or because we `stopped` it, also for what the client is `missing`.
    """

    request: ClientRequest
    name: str
    policy: ToolPolicy
    want_progress: bool
    check: SessionCheck
    place: Place | None = None
    may_convert: bool = False
    capabilities: ClientCapabilities = field(init=False)
    log_level: str | None = field(init=False)
    questions: dict[str, OpenQuestion] = field(default_factory=dict)
    outcome: Outcome | None = None
    loss: ProxyError | None = None
    stopped: str | None = None
    limit_passed: bool = False
    missing: Missing | None = None
    session: LegacySession | None = None
    starting: bool = False
    sent_at: float | None = None
    is_task: bool = False
    converting: bool = False
    next_key: int = 1
    trace: CallTrace | None = None
    round: RoundTrace | None = None
    resumes: StreamPosition | None = None
    was_sent: bool = False
    may_be_stored_unsent: bool = False
    waits_for: str = WAITING_FOR_PROCESS
    held_up: str | None = None
    refusal: UpstreamRefused | None = None
    before: Callable[[], Awaitable[None]] | None = None
    left_round: Callable[[LiveCall], Awaitable[bytes]] | None = None
    next_params: bytes | None = None
    may_repeat: bool = False
    ran_before: bool = False
    runs_upstream: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    changed: Pulse = field(default_factory=Pulse)
    turned: Pulse = field(default_factory=Pulse)
    _restored: list[RestoredQuestion] = field(default_factory=list)
    _listeners: list[NotificationListener] = field(default_factory=list)
    _waiting: WaitingRound | None = None
    _asked_in_round: dict[str, str] = field(default_factory=dict)  # our key -> the server's
    _progress: bytes | None = None
    _progress_text: str | None = None

    def __post_init__(self) -> None:
        self.goes_on_with(self.request)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "sent" if self.sent_at is not None else "not sent"
        return f"<LiveCall {self.request.method} {self.name!r} {state}, {len(self.questions)} open>"

    @property
    def ended(self) -> bool:
        return self.outcome is not None or self.loss is not None or self.stopped is not None

    @property
    def repeat(self) -> Repeat | None:
        """What a later process needs to send it again, if configuration allows that of this tool; with very
        large arguments it is not sent again, which the log says."""
        if not self.policy.repeatable:
            return None
        if (size := len(self.request.params.raw)) > REPEAT_MAX_BYTES:
            log.warning("task_not_repeatable", tool=self.name, size=size, limit=REPEAT_MAX_BYTES)
            return None
        return Repeat(self.request.params.raw, self.request.capabilities.offered)

    @property
    def becomes_task(self) -> bool:
        """Whether it is a task, or its record is being stored."""
        return self.is_task or self.converting

    @property
    def server_info(self) -> bytes | None:
        """The raw `serverInfo` of the server that was called."""
        return None if self.info is None else self.info.server_info

    @property
    def info(self) -> ServerInfo | None:
        """What the server that was called said of itself."""
        return None if self.session is None else self.session.info

    def restored(self, question_id: bytes, method: str = "", params: bytes | None = None) -> RestoredQuestion:
        """A question that an earlier process was asked during this call."""
        rid = RequestId.parse(question_id)
        assert rid is not None  # it was one when it was stored
        question = RestoredQuestion(rid, method, params)
        self._restored.append(question)
        return question

    def goes_on_from(self, progress: str | None) -> None:
        """What an earlier process told last stays until there is something newer."""
        self._progress_text = progress

    def says(self, text: str) -> None:
        """The upstream's own words on how far it is."""
        self._progress, self._progress_text = None, shortened(text)
        if self.is_task:
            self.changed.beat()

    def is_upstream_task(self, task_id: str) -> None:
        """It runs as a task of the upstream's own, which a later process can take up."""
        self.runs_upstream = True
        if self.trace is not None:
            self.trace = replace(self.trace, upstream_task=task_id)
            self.changed.beat()

    def attach(self, session: LegacySession, call_id: int) -> None:
        """The call is in flight again: the questions that were restored can be answered."""
        for restored in self._restored:
            real = session.asked_before(call_id, restored.id, restored.method, restored.params)
            restored.attach(real)
            for key, one in list(self.questions.items()):
                if one.question is restored and real is not None:
                    self.questions[key] = OpenQuestion(real, one.request)
        self._restored.clear()

    def falls_back(self) -> bool:
        """It could not be resumed: whether it is sent again instead, as configuration allows for its tool."""
        if not self.may_repeat:
            return False
        self.may_repeat, self.place, self.trace, self.resumes = False, None, None, None
        self.ran_before, self.runs_upstream = True, False
        self.capabilities, self.waits_for = self.request.capabilities, WAITING_FOR_PROCESS
        self.sent_at = None
        self._forget_restored()
        self.questions.clear()
        self._turn()
        return True

    def _forget_restored(self) -> None:
        for restored in self._restored:
            restored.attach(None)
        self._restored.clear()

    def goes_on_with(self, request: ClientRequest) -> None:
        """From now on this request of the client is answered: what it declared counts."""
        self.capabilities = request.capabilities
        self.log_level = request.log_level
        self.refusal = None

    def wait_for_start(self) -> None:
        """A process or session is being started for the call (and maybe for others)."""
        self.starting = True
        self.changed.beat()

    def got_session(self, session: LegacySession, now: float) -> None:
        """A session is ours; the call is about to be sent. `now` is monotonic."""
        self.sent_at = now
        self.session = session
        self.changed.beat()

    def on_the_clock_since(self, arrival: float) -> float:
        """When the threshold of a client's request that came at `arrival` (monotonic) begins to count.

        From its arrival, also while it waits for a free process (contract section 2). Only the start of a
        new process does not count, up to START_GRACE_S: else the first call of each client would become a
        task, however fast its tool.
        """
        if self.sent_at is not None:
            return max(arrival, min(self.sent_at, arrival + START_GRACE_S)) if self.starting else arrival
        return arrival + START_GRACE_S if self.starting else arrival

    def settle(self, outcome: Outcome) -> None:
        self._end(outcome=outcome)

    def lose(self, loss: ProxyError) -> None:
        self._end(loss=loss)

    def leave(self) -> None:
        """The proxy stops, and a later process of ours goes on with the call if it can be found again."""
        if self.session is not None and self.trace is not None and self.trace.can_be_found:
            self.session.leave()

    def stop(self, reason: str) -> None:
        """Nobody wants the answer any more: the upstream is told, and not waited for."""
        self._end(stopped=reason)
        self.scope.cancel()

    def pass_limit(self, loss: ProxyError) -> None:
        """A bound of ours is over."""
        if not self.ended:
            self.limit_passed = True
            self.give_up(loss)

    def give_up(self, loss: ProxyError) -> None:
        """It cannot go on: the upstream is told, and not waited for."""
        if not self.ended:
            self._end(loss=loss)
            self.scope.cancel()

    def is_held_up(self, words: str | None) -> None:
        """An answer waits for this on its way to the server; None: no longer."""
        if self.held_up != words:
            self.held_up = words
            self.changed.beat()

    def reopen(self, asked: OpenQuestion, refusal: UpstreamRefused) -> None:
        """The answer to this question was not taken, for its token: the client may come with another one."""
        if not self.ended:
            self.questions[asked.request.key] = asked
            self.refusal = refusal
            self._turn()

    def _end(
        self, *, outcome: Outcome | None = None, loss: ProxyError | None = None, stopped: str | None = None
    ) -> None:
        """The first end stays."""
        if not self.ended:
            self.outcome, self.loss, self.stopped = outcome, loss, stopped
            self._forget_restored()
            self.questions.clear()
            self._turn()

    # -- who watches --------------------------------------------------------------------------------

    def _turn(self) -> None:
        self.turned.beat()
        self.changed.beat()

    def listen(self, listener: NotificationListener) -> None:
        self._listeners.append(listener)

    def unlisten(self, listener: NotificationListener) -> None:
        self._listeners.remove(listener)

    def progress_text(self) -> str | None:
        """The newest progress in words; None before there is any. `changed` beats when there is newer."""
        if self._progress is not None:
            self._progress_text = progress_text(self._progress) or self._progress_text
            self._progress = None
        return self._progress_text

    # -- what the upstream tells (upstream.base.CallListener) -------------------------------------------

    def on_notification(self, method: str, params: bytes | None) -> None:
        if method == names.PROGRESS and params is not None:
            unread, self._progress = self._progress is not None, params
            if self.is_task and not unread:  # however many come, whoever reads is woken once (PROG-004)
                self.changed.beat()
        for listener in self._listeners:
            listener(method, params)

    def on_question(self, question: Question) -> None:
        missing = self.capabilities.missing_for(question.method, question.params)
        if missing is None:
            if (fault := self.too_much([question])) is not None:
                question.refuse(error_object(ErrorCode.INTERNAL_ERROR, fault))
            elif not self.ended:
                self.ask(question)
        elif self.is_task:  # the tool goes on (contract section 4)
            question.refuse(missing.refusal(question.method))
        else:
            self.miss(missing)

    def miss(self, missing: Missing) -> None:
        """The client cannot answer what the server asks: the call is of no use.

        The session refuses the question once the call is cancelled. The other way round the tool would go
        on, and servers on the Python SDK 1.x end the session where its answer meets the cancellation.
        """
        if not self.ended:
            self.missing = missing
            self.stop("the client cannot answer the server's question")

    def too_much(self, questions: Sequence[Question]) -> str | None:
        """Why these are not asked beside what is open; None if they are."""
        asked = [*(one.question for one in self.questions.values()), *questions]
        return overflow([len(one.id.raw) + len(one.params or b"") for one in asked])

    def ask(self, question: Question) -> None:
        """Give the question a key that was never used in this call's life."""
        key = f"input-{self.next_key}"
        self.next_key += 1
        params = lift_question(question.method, question.params)
        as_asked = question.params if params != question.params else None
        request = InputRequest(key, question.method, params, question.id.raw, as_asked)
        self.questions[key] = OpenQuestion(question, request)
        theirs = dict(self._waiting.questions) if self._waiting is not None else {}
        if question.id.raw in theirs:
            self._asked_in_round[key] = theirs[question.id.raw]
            self._keep_round()
        self._turn()

    def on_withdrawn(self, question: Question) -> None:
        for key, open_question in list(self.questions.items()):
            if open_question.question is question:
                del self.questions[key]
        self._turn()

    def on_position(self, position: Position) -> None:
        if isinstance(position, StreamPosition):
            self._move(position)
        else:
            self._waiting, self._asked_in_round = position, {}
            self._keep_round()

    def _keep_round(self) -> None:
        """What a modern server's next round needs, as far as its questions have been asked."""
        waiting, keys = self._waiting, tuple(self._asked_in_round.items())
        if waiting is None or not keys:
            self.round = None
        else:
            self.round = RoundTrace(waiting.params, waiting.offered, waiting.state, keys)
        if self.is_task:
            self.changed.beat()

    def _move(self, position: StreamPosition) -> None:
        is_ours = self.place is None if self.trace is None else self.trace.is_ours
        upstream_task = None if self.trace is None else self.trace.upstream_task
        self.trace = CallTrace(
            position.session_id,
            position.version,
            position.call_id,
            position.event_id,
            is_ours,
            upstream_task,
        )
        if self.is_task:
            self.changed.beat()

    def take(self, keys: Iterable[str]) -> dict[str, Question]:
        """Close the questions under these keys, because answers were accepted; those that are open."""
        taken = {key: self.questions.pop(key).question for key in keys if key in self.questions}
        if taken:
            self._turn()
        return taken
