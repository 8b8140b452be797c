"""From call to task, and the rounds of a call that asks before it is one.

Above: `bridge`, which sends `tools/call`, `prompts/get` and `resources/read` through here. Below:
`runner`, which owns the calls. Contract section 4; Tasks extension, "Task Creation"; MRTR.

A *round* is one request of the client on its way to its answer: the first call, or a retry with
`requestState`. The round runs in the runner's task group, and the client's request only watches it; so
a second, identical retry watches the same round and gets the same answer, and a client that hangs up
before the answer ends the call when nobody else watches. A round ends with the final result, with
questions (the call is then *parked* under a new state), with a task handle, or with an error.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Final

import anyio

from proxy.clock import Clock
from proxy.eras.capabilities import TASKS_REQUIRED, missing_capability
from proxy.eras.to_legacy import call_digest
from proxy.eras.to_modern import error_code, lift_error, lift_result, with_progress_token
from proxy.errors import (
    HTTP_STATUS,
    ClientProtocolError,
    ErrorCode,
    ProxyError,
    StoreError,
    UpstreamUnavailable,
)
from proxy.logs import get_logger, task_hash
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, splice
from proxy.protocol.request_state import NONCE_BYTES, Claim, InvalidState, seal, unseal
from proxy.routing.base import Answer, ClientRequest, ErrorAnswer, ResultAnswer, Sink
from proxy.routing.live import LiveCall, SessionCheck
from proxy.routing.runner import Runner
from proxy.stores.base import TaskStore
from proxy.tasks import inputs, lifecycle, views
from proxy.tasks.policy import CONVERTIBLE, InputMode, Policy, ToolMode
from proxy.tasks.task import ID_PREFIX, ID_RANDOM_BYTES, Task
from proxy.upstream.base import Failure, Result

GATHER_S: Final = 0.05  # questions that a server asks at the same time go out together
MAX_STATES: Final = 10_000  # parked calls and remembered retries
MAX_REMEMBERED_BYTES: Final = 64 * 1024 * 1024  # answers kept for identical retries, all together

log = get_logger()


@dataclass(eq=False)
class Round:
    """One request of the client on its way to its answer."""

    request: ClientRequest
    call: LiveCall
    answers: dict[str, bytes] = field(default_factory=dict)
    answer: Answer | None = None
    fault: ProxyError | None = None
    done: anyio.Event = field(default_factory=anyio.Event)
    watchers: int = 0
    running: bool = False

    @property
    def abandoned(self) -> bool:
        """Nobody waits for the answer any more."""
        return self.watchers == 0

    @property
    def size(self) -> int:
        """Bytes of the answer that are held for an identical retry."""
        match self.answer:
            case ResultAnswer(result):
                return len(result)
            case ErrorAnswer(error):
                return len(error)
            case None:
                return 0

    def finish(self, answer: Answer) -> None:
        self.answer = answer
        self.done.set()

    def fail(self, fault: ProxyError) -> None:
        self.fault = fault
        self.done.set()


@dataclass(eq=False)
class State:
    """What a `requestState` stands for: a parked call until its retry comes, then that retry."""

    call: LiveCall
    round: Round | None = None
    answers_digest: bytes = b""


class Conversion:
    """Serves the methods that may ask, and those that may become tasks."""

    def __init__(
        self, runner: Runner, store: TaskStore, policy: Policy, clock: Clock, state_key: bytes
    ) -> None:
        self._runner = runner
        self._store = store
        self._policy = policy
        self._clock = clock
        self._key = state_key
        self._states: dict[bytes, State] = {}

    async def serve(self, request: ClientRequest, sink: Sink, check: SessionCheck) -> Answer:
        """Answer one request that goes upstream. Raises ProxyError; cancelled when the client hangs up.

        `check` judges the request by what the upstream declared, before anything is sent.
        """
        state = _text(request, "requestState") if request.method in names.CARRIES_INPUT else None
        rnd = self._first_round(request, check) if state is None else self._retry(request, state)
        return await self._watch(rnd, sink)

    def stop_parked(self) -> None:
        """At the drain: whoever is parked has nobody who could come back in time."""
        for state in self._states.values():
            if state.round is None:
                state.call.stop("the proxy is shutting down")

    # -- rounds -------------------------------------------------------------------------------------

    def _first_round(self, request: ClientRequest, check: SessionCheck) -> Round:
        member = CONVERTIBLE.get(request.method)
        name = (request.params.text(member) if member else None) or ""
        policy = self._policy.for_tool(name)
        convertible = member is not None and policy.mode is not ToolMode.NEVER
        if convertible and policy.mode is ToolMode.REQUIRED and not request.capabilities.tasks:
            raise missing_capability(TASKS_REQUIRED, f"tool {name!r} is served as a task only")
        want_progress = request.progress_token is not None or (convertible and request.capabilities.tasks)
        return Round(request, LiveCall(request, name, policy, want_progress, check))

    def _retry(self, request: ClientRequest, text: str) -> Round:
        """The round of a retry: a new one, or the one that an identical retry has begun (MRTR-010)."""
        try:
            nonce = unseal(self._key, text, self._clock.wall_ms(), _claim(request))
        except InvalidState as exc:
            raise ClientProtocolError(ErrorCode.INVALID_PARAMS, str(exc)) from exc
        state = self._states.get(nonce)
        if state is None:
            raise ClientProtocolError(
                ErrorCode.INVALID_PARAMS,
                "requestState: the call it belongs to is over, or was lost when the proxy restarted; "
                "it is not run again",
            )
        responses = inputs.parse_responses(request.params.raw) or {}
        digest = hashlib.sha256(repr(sorted(responses.items())).encode()).digest()
        if state.round is not None:
            if state.answers_digest != digest:
                raise ClientProtocolError(
                    ErrorCode.INVALID_PARAMS, "requestState was used already, with other answers"
                )
            return state.round
        open_questions = state.call.questions
        answers = {key: value for key, value in responses.items() if key in open_questions}
        for key, value in answers.items():
            inputs.check_answer(key, open_questions[key].request.method, value)
        state.round, state.answers_digest = Round(request, state.call, answers), digest
        return state.round

    async def _watch(self, rnd: Round, sink: Sink) -> Answer:
        """Wait for the round's answer, passing notifications on. Starts the round for its first watcher."""
        rnd.watchers += 1
        listener = _Forwarder(rnd.request, sink)
        rnd.call.listen(listener)
        try:
            if not rnd.running:
                rnd.running = True
                self._runner.spawn(self._run_round, rnd)
            await rnd.done.wait()
        finally:
            rnd.call.unlisten(listener)
            rnd.watchers -= 1
            if rnd.abandoned and not rnd.done.is_set():
                rnd.call.stop("the client hung up")
        if rnd.fault is not None:
            raise rnd.fault
        assert rnd.answer is not None  # a round that is done has one or the other
        return rnd.answer

    async def _run_round(self, rnd: Round) -> None:
        try:
            rnd.finish(await self._answer(rnd))
        except ProxyError as exc:
            rnd.fail(exc)
        finally:
            if not rnd.done.is_set():  # cancelled with the proxy
                rnd.fail(UpstreamUnavailable("the proxy was stopped"))
        self._bound_memory()

    def _bound_memory(self) -> None:
        """Forget the oldest answered retries where all that are remembered take too much."""
        answered = [(n, s.round) for n, s in self._states.items() if s.round is not None and s.round.size]
        total = sum(r.size for _, r in answered)
        for nonce, rnd in answered:
            if total <= MAX_REMEMBERED_BYTES:
                break
            del self._states[nonce]
            total -= rnd.size

    async def _answer(self, rnd: Round) -> Answer:
        call, request = rnd.call, rnd.request
        may_convert = self._may_convert(rnd)
        if not call.started:
            if may_convert and call.policy.at_once:
                await self._runner.check_early(call)
                handle = await self._convert(rnd)
                if handle is not None:
                    return handle
                may_convert = False
            if rnd.abandoned:
                raise UpstreamUnavailable("the client hung up before the call was sent")
            call.started = True
            self._runner.start(call)
        for key, value in rnd.answers.items():
            await self._runner.answer(call, key, value)
        arrival = self._clock.monotonic()
        while True:
            changed = call.changed.event
            threshold_s = call.policy.threshold_s if may_convert else float("inf")
            deadline = call.on_the_clock_since(arrival) + threshold_s
            if call.missing is not None:
                call.stop("the client cannot answer the server's question")
                raise missing_capability(call.missing.required, "the server asked the client for input")
            if call.ended:
                return self._final_answer(call, request.method)
            if call.questions:
                if may_convert and call.policy.input is InputMode.TASK:
                    handle = await self._convert(rnd)
                    if handle is not None:
                        return handle
                    may_convert = False
                await self._gather(call)
                if call.questions and not call.ended:
                    return self._park(call, _claim(request))
                continue
            if self._clock.monotonic() >= deadline:
                handle = await self._convert(rnd)
                if handle is not None:
                    return handle
                may_convert = False
                continue
            await self._clock.wait(changed, deadline - self._clock.monotonic())

    async def _gather(self, call: LiveCall) -> None:
        """Give questions that are asked together the time to arrive together; not if the call ends."""
        until = self._clock.monotonic() + GATHER_S
        while not call.ended and (left := until - self._clock.monotonic()) > 0:
            await self._clock.wait(call.turned.event, left)

    def _may_convert(self, rnd: Round) -> bool:
        call = rnd.call
        return (
            rnd.request.method in CONVERTIBLE
            and rnd.request.capabilities.tasks
            and call.policy.mode is not ToolMode.NEVER
        )

    def _final_answer(self, call: LiveCall, method: str) -> Answer:
        match call.outcome:
            case Result(raw):
                return ResultAnswer(lift_result(method, raw, call.server_info))
            case Failure(error):
                return upstream_error(error)
            case None:
                pass
        raise call.loss or UpstreamUnavailable(f"the call was cancelled: {call.stopped}")

    # -- tasks --------------------------------------------------------------------------------------

    async def _convert(self, rnd: Round) -> Answer | None:
        """Store the task, then answer its handle; None if the store is broken and the call goes on without.

        Raises StoreError for tools that are served as tasks only: nothing was sent then.
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
        )
        if call.questions:
            open_requests = [q.request for q in call.questions.values()]
            task = lifecycle.asked(task, open_requests, call.next_key, now_ms)
        try:
            await self._store.create(task)
        except StoreError as exc:
            if call.policy.mode is ToolMode.REQUIRED:
                raise StoreError("the task could not be stored; the call was not sent") from exc
            log.error("task_not_stored", tool=call.name, reason=exc.message)
            return None
        log.info("task_created", task=task_hash(task.id), tool=call.name)
        self._runner.follow(call, task)
        if rnd.abandoned:  # the client hung up before the handle could be given to it
            call.stop("the client hung up")
            raise UpstreamUnavailable("the client hung up before the task's handle was sent")
        if not call.started:
            call.started = True
            self._runner.start(call)
        return self._handle(call, task)

    def _handle(self, call: LiveCall, task: Task) -> Answer:
        raw = views.create_task_result(task, self._policy.polling, self._clock.wall_ms())
        return ResultAnswer(with_server_info(raw, call.server_info))

    # -- parking ------------------------------------------------------------------------------------

    def _park(self, call: LiveCall, claim: Claim) -> Answer:
        """Answer with the open questions; the call waits for the retry that brings the answers."""
        if len(self._states) >= MAX_STATES:
            call.stop("too many calls wait for their clients")
            raise UpstreamUnavailable(
                f"{MAX_STATES} calls wait for answers of their clients; try again later"
            )
        nonce = secrets.token_bytes(NONCE_BYTES)
        wait_ms = int(self._policy.mrtr_wait_s * 1000)
        state = State(call)
        self._states[nonce] = state
        self._runner.spawn(self._forget_state, nonce, state)
        requests = tuple(q.request for q in call.questions.values())
        body = {
            "resultType": dumps(names.INPUT_REQUIRED),
            "inputRequests": views.input_requests(requests),
            "requestState": dumps(seal(self._key, nonce, self._clock.wall_ms() + wait_ms, claim)),
        }
        return ResultAnswer(with_server_info(splice(b"{}", body), call.server_info))

    async def _forget_state(self, nonce: bytes, state: State) -> None:
        """After its time: a parked call is cancelled upstream, a remembered retry is forgotten (MRTR-012)."""
        await self._clock.sleep(self._policy.mrtr_wait_s)
        if state.round is None:
            state.call.stop("the client did not come back with its answers")
        self._states.pop(nonce, None)


class _Forwarder:
    """Passes a call's notifications to one watching request, as that request wants them."""

    def __init__(self, request: ClientRequest, sink: Sink) -> None:
        self._request = request
        self._sink = sink

    def __call__(self, method: str, params: bytes | None) -> None:
        token, level = self._request.progress_token, self._request.log_level
        if method == names.PROGRESS:
            if token is not None and params is not None:
                self._sink.notify(method, with_progress_token(params, token))
        elif method == names.LOG_MESSAGE:
            if level is not None and params is not None and _at_least(params, level):
                self._sink.notify(method, params)
        else:
            self._sink.notify(method, params)


def _claim(request: ClientRequest) -> Claim:
    return Claim(request.owner.key, call_digest(request.method, request.params.raw))


def _at_least(params: bytes, level: str) -> bool:
    try:
        given = RawObject.parse(params).text("level")
    except (JsonError, DuplicateMember):
        return False
    return given in names.LOG_LEVELS and names.LOG_LEVELS.index(given) >= names.LOG_LEVELS.index(level)


def upstream_error(error: bytes) -> ErrorAnswer:
    """An upstream's error as the answer to a modern client. "Method not found" is 404 over HTTP."""
    lifted = lift_error(error)
    unknown = error_code(lifted) == ErrorCode.METHOD_NOT_FOUND
    code = ErrorCode.METHOD_NOT_FOUND if unknown else ErrorCode.INTERNAL_ERROR
    return ErrorAnswer(lifted, HTTP_STATUS[code])


def with_server_info(result: bytes, server_info: bytes | None) -> bytes:
    if server_info is None:
        return result
    return splice(result, {names.META: splice(b"{}", {names.META_SERVER_INFO: server_info})})


def _text(request: ClientRequest, member: str) -> str | None:
    """A string member of params; -32602 if it is something else or given twice."""
    try:
        raw = request.params.get(member)
    except DuplicateMember as exc:
        raise ClientProtocolError(ErrorCode.INVALID_PARAMS, f"Invalid params: {exc}") from exc
    if raw is None:
        return None
    text = request.params.text(member)
    if text is None:
        raise ClientProtocolError(ErrorCode.INVALID_PARAMS, f"Invalid params: {member} is not a string")
    return text
