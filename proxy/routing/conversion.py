"""From call to task, and the rounds of a call that asks before it is one.

Above: `bridge`, which sends every method that goes upstream through here. Below: `runner`, which owns the
calls, `rounds` and `parking`. A round ends with the final result, with questions (the call is then parked
until a retry brings the answers), with a task handle, or with an error. Contract section 4; Tasks extension,
"Task Creation"; MRTR 2026-07-28.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from typing import Final, assert_never

from proxy.clock import Clock
from proxy.eras.capabilities import TASKS_REQUIRED, missing_capability
from proxy.eras.era import Era
from proxy.errors import (
    ClientProtocolError,
    ErrorCode,
    InternalError,
    LimitReached,
    ProxyError,
    StoreError,
    UpstreamUnavailable,
)
from proxy.logs import get_logger
from proxy.protocol import names
from proxy.protocol.envelope import dumps, splice
from proxy.routing.base import Answer, ClientRequest, ResultAnswer, Sink
from proxy.routing.live import LiveCall, SessionCheck
from proxy.routing.outcomes import answer_of, with_server_info
from proxy.routing.parking import Parking
from proxy.routing.rounds import Round
from proxy.routing.runner import Runner
from proxy.routing.task_quota import TaskQuota
from proxy.stores.base import TaskStore
from proxy.tasks import lifecycle, views
from proxy.tasks.policy import CONVERTIBLE, InputMode, Policy, ToolMode, ToolPolicy
from proxy.tasks.task import ID_PREFIX, ID_RANDOM_BYTES

GATHER_S: Final = 0.05  # questions that a server asks at the same time go out together
NO_TOOL: Final = ToolPolicy(mode=ToolMode.NEVER)

log = get_logger()


class Conversion:
    """Serves the methods that may ask, and those that may become tasks."""

    def __init__(
        self,
        runner: Runner,
        store: TaskStore,
        policy: Policy,
        clock: Clock,
        state_key: bytes,
        upstream_era: Callable[[], Era | None] = lambda: Era.LEGACY,
        quota: TaskQuota | None = None,
    ) -> None:
        """`upstream_era`: what is known of it now. A modern one's `requestState` passes (MRTR-020)."""
        self._runner = runner
        self._store = store
        self._policy = policy
        self._clock = clock
        self._upstream_era = upstream_era
        self._quota = quota or TaskQuota(store, clock)
        self._parking = Parking(runner, clock, state_key, policy.mrtr_wait_s)

    async def serve(self, request: ClientRequest, sink: Sink, check: SessionCheck) -> Answer:
        """Answer one request that goes upstream. Raises ProxyError; cancelled when the client hangs up.

        `check` judges the request by what the upstream declared, before anything is sent.
        """
        state = _request_state(request)
        if state is not None and self._upstream_era() is None:
            await self._runner.meet(request)  # we were restarted: whose state it is shows the server's era
        if state is None or self._upstream_era() is Era.MODERN:
            rnd = self._first_round(request, check)
        else:
            parked = self._parking.find(state, request)
            if parked.call.session is not None:
                await check(request, parked.call.session)
            rnd = parked.resume(request, _may_convert(request, parked.call.policy))
        if not rnd.running:
            rnd.running = True
            self._runner.spawn(self._run, rnd)
        return await rnd.watch(request, sink)

    @property
    def parked(self) -> int:
        """How many calls have asked their client and wait for its retry."""
        return self._parking.waiting

    def stop_parked(self) -> None:
        """At the drain: nobody could come back in time."""
        self._parking.stop_all()

    def _first_round(self, request: ClientRequest, check: SessionCheck) -> Round:
        member = CONVERTIBLE.get(request.method)
        name = (request.params.text(member) if member else None) or ""
        policy = self._policy.for_tool(name) if member else NO_TOOL
        if policy.mode is ToolMode.REQUIRED and not request.capabilities.tasks:
            raise missing_capability(TASKS_REQUIRED, f"tool {name!r} is served as a task only")
        may_convert = _may_convert(request, policy)
        want_progress = request.progress_token is not None or may_convert
        call = LiveCall(request, name, policy, want_progress, check, may_convert=may_convert)
        return Round(request, call, may_convert)

    # -- a round from its beginning to its answer -------------------------------------------------------

    async def _run(self, rnd: Round) -> None:
        try:
            rnd.finish(await self._answer(rnd))
        except ProxyError as exc:
            rnd.fail(exc)
        except Exception:
            rnd.call.stop("internal error")
            rnd.fail(InternalError())
            raise
        finally:
            if not rnd.done:  # cancelled with the proxy
                rnd.fail(UpstreamUnavailable("the proxy was stopped; the outcome is unknown"))
        if rnd.answers is not None:
            self._parking.forget_what_is_too_much()

    async def _answer(self, rnd: Round) -> Answer:
        arrival, call = self._clock.monotonic(), rnd.call
        if rnd.answers is not None:
            self._runner.resume(call, rnd.request, rnd.answers)
        else:
            handle = await self._begin(rnd)
            if handle is not None:
                return handle
        due = False
        while True:
            changed = call.changed.event
            left_s = self._threshold_left_s(rnd, arrival)
            match _next_step(rnd, due or left_s <= 0):
                case _Step.ANSWER:
                    return _final_answer(call)
                case _Step.REFUSED:
                    assert call.refusal is not None
                    self._parking.open_again(rnd)
                    raise call.refusal
                case _Step.CONVERT:
                    handle = await self._convert(rnd)
                    if handle is not None:
                        return handle
                case _Step.ASK:
                    await self._gather(call)
                    if _next_step(rnd, due) is _Step.ASK:
                        return self._ask(rnd)
                case _Step.WAIT:
                    due = not await self._clock.wait(changed, left_s)
                case step:
                    assert_never(step)

    async def _begin(self, rnd: Round) -> Answer | None:
        """Send the call, if there is room. A tool that is a task at once is stored first, and its handle
        returned."""
        call, handle = rnd.call, None
        with self._runner.admitted(call):
            if rnd.may_convert and call.policy.at_once:
                await self._runner.check_early(call)
                if not call.ended:
                    handle = await self._convert(rnd)
            self._runner.start(call)
        return handle

    def _threshold_left_s(self, rnd: Round, arrival: float) -> float:
        """Until the call becomes a task; endless if it cannot."""
        if not rnd.may_convert:
            return float("inf")
        due = rnd.call.on_the_clock_since(arrival) + rnd.call.policy.threshold_s
        return due - self._clock.monotonic()

    async def _gather(self, call: LiveCall) -> None:
        """Give questions that are asked together the time to arrive together; not if the call ends."""
        until = self._clock.monotonic() + GATHER_S
        while not call.ended:
            if not await self._clock.wait(call.turned.event, until - self._clock.monotonic()):
                return

    # -- its answer -----------------------------------------------------------------------------------

    async def _convert(self, rnd: Round) -> Answer | None:
        """Store the task, then answer its handle. None if there is something better to answer: what the
        client lacks for a question that came meanwhile, or, if the store is broken or the owner has too many
        tasks, the call's own result.

        Raises StoreError or LimitReached for tools that are served as tasks only: nothing was sent then. A
        record of which the store cannot say whether it will still be made has no reader: its id is given to
        nobody.
        """
        call, now_ms = rnd.call, self._clock.wall_ms()
        task = lifecycle.created(
            id=ID_PREFIX + secrets.token_urlsafe(ID_RANDOM_BYTES),
            owner=rnd.request.owner.key,
            method=rnd.request.method,
            name=call.name,
            now_ms=now_ms,
            retention_ms=self._policy.retention_ms,
            next_key=call.next_key,
            repeat=call.repeat,
        )
        open_questions = [q.request for q in call.questions.values()]
        task = lifecycle.asked(task, open_questions, call.next_key, now_ms)
        is_waiting = call.sent_at is None and not call.policy.at_once
        call.may_be_stored_unsent |= is_waiting
        info = call.server_info if call.trace is not None else None
        task = replace(task, trace=call.trace, sent=not is_waiting, server_info=info)
        call.converting = True
        try:
            await self._quota.take(rnd.request.owner)
            await self._store.create(task)
        except (StoreError, LimitReached) as exc:
            self._not_stored(rnd, exc)
            return None
        self._runner.follow(call, task)
        if call.missing is not None:
            return None
        handle = views.create_task_result(task, self._policy.polling, self._clock.wall_ms())
        return ResultAnswer(with_server_info(handle, call.server_info))

    def _not_stored(self, rnd: Round, fault: StoreError | LimitReached) -> None:
        """The call goes on without a task, unless its tool is served as one only: then nothing was sent."""
        call = rnd.call
        if isinstance(fault, StoreError):
            log.error("task_not_stored", tool=call.name, reason=fault.message)
        else:
            log.warning("task_not_admitted", tool=call.name, reason=fault.message)
        call.converting = False
        call.changed.beat()
        if call.policy.mode is ToolMode.REQUIRED:
            if isinstance(fault, LimitReached):
                raise fault
            raise StoreError("the task could not be stored; the call was not sent") from fault
        rnd.may_convert = False

    def _ask(self, rnd: Round) -> Answer:
        """The open questions; the call is parked until the retry that brings the answers."""
        requests = tuple(q.request for q in rnd.call.questions.values())
        body = {
            "resultType": dumps(names.INPUT_REQUIRED),
            "inputRequests": views.input_requests(requests),
            "requestState": dumps(self._parking.park(rnd.call, rnd.request)),
        }
        return ResultAnswer(with_server_info(splice(b"{}", body), rnd.call.server_info))


class _Step(Enum):
    ANSWER = auto()
    REFUSED = auto()
    CONVERT = auto()
    ASK = auto()
    WAIT = auto()


def _next_step(rnd: Round, due: bool) -> _Step:
    """What the state of the call asks for; `due`: its threshold has passed."""
    call = rnd.call
    if call.ended:
        return _Step.ANSWER
    if call.refusal is not None:
        return _Step.REFUSED
    may_convert = rnd.may_convert and not (call.info is not None and call.info.has_tasks)
    if call.questions:
        into_task = may_convert and call.policy.input is InputMode.TASK
        return _Step.CONVERT if into_task else _Step.ASK
    return _Step.CONVERT if due and may_convert else _Step.WAIT


def _final_answer(call: LiveCall) -> Answer:
    """Of a call that has ended. Raises the fault that ended it."""
    if call.missing is not None:
        raise missing_capability(call.missing.required, "the server asked the client for input")
    if call.outcome is not None:
        return answer_of(call.request.method, call.outcome, call.info)
    raise call.loss or UpstreamUnavailable(f"the call was cancelled: {call.stopped}")


def _may_convert(request: ClientRequest, policy: ToolPolicy) -> bool:
    """Whether this request, whatever others declared, may be answered by a task handle."""
    return request.method in CONVERTIBLE and request.capabilities.tasks and policy.mode is not ToolMode.NEVER


def _request_state(request: ClientRequest) -> str | None:
    """Raises ClientProtocolError if it is no string."""
    if request.method not in names.CARRIES_INPUT or "requestState" not in request.params:
        return None
    state = request.params.text("requestState")
    if state is None:
        raise ClientProtocolError(ErrorCode.INVALID_PARAMS, "Invalid params: requestState is not a string")
    return state
