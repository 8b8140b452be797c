"""Runs calls and tasks under the proxy's own lifetime, not under that of any client's request.

Above: `conversion` starts calls and turns them into tasks, `task_methods` answers and cancels them.
Below: the pool's sessions, and a `following.Follower` for each running task. The runner's task group is the
root's child: it owns one task for each call in flight, one that keeps its limits, and the followers.
Whoever moves a stored task does it by compare-and-set, so that a follower, a cancel and an update may meet
at any point. Contract sections 4 and 9.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock, Pulse
from proxy.eras.patience import MAX_ROUNDS, again_s
from proxy.eras.to_modern import OF_ANOTHER_ERA, error_code
from proxy.errors import (
    InternalError,
    ProxyError,
    ServerGone,
    SessionUnknown,
    StoreError,
    TaskNotFound,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.limits import Gauge
from proxy.logs import get_logger
from proxy.metrics import Metrics
from proxy.owners import Credentials
from proxy.protocol import names
from proxy.protocol.envelope import RawObject
from proxy.protocol.jsonrpc import RequestId
from proxy.routing import modern_input, url_elicitations
from proxy.routing.base import ClientRequest
from proxy.routing.delivery import Delivery
from proxy.routing.following import Follower
from proxy.routing.live import LiveCall, OpenQuestion
from proxy.routing.mirrored import headers_of, should_be_built_anew
from proxy.routing.upstream_task import UpstreamTask, is_wanted
from proxy.stores.base import TaskStore
from proxy.tasks.policy import Policy
from proxy.tasks.task import Task
from proxy.upstream.base import Failure, Outcome, Question
from proxy.upstream.pool import Pool
from proxy.upstream.session import LegacySession

LOOK_AGAIN_S: Final = 1.0
OLD_SESSIONS: Final = 3  # of a server that was restarted, which one call is tried on before a further one

log = get_logger()


class Runner:
    """See the module. `run` must be running. Each call has a place of `bound` from when it is `admitted`,
    also while it is parked or a task, until it has ended."""

    def __init__(
        self,
        pool: Pool,
        store: TaskStore,
        policy: Policy,
        clock: Clock,
        metrics: Metrics,
        bound: Gauge,
        credentials: Credentials,
    ) -> None:
        self._delivery = Delivery(credentials, clock)
        self._metrics = metrics
        self._bound = bound
        self._pool = pool
        self._store = store
        self._policy = policy
        self._clock = clock
        self._tasks: TaskGroup | None = None
        self._admitted: dict[LiveCall, Callable[[], None]] = {}
        self._calls: dict[LiveCall, Callable[[], None]] = {}
        self._followers: dict[str, Follower] = {}
        self._ends = Pulse()

    async def run(self, *, task_status: StartStatus[None]) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            await anyio.sleep_forever()

    def spawn(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run something of ours beyond the request that asked for it."""
        assert self._tasks is not None  # `run` is running
        name = getattr(work, "__qualname__", str(work))
        self._tasks.start_soon(_guarded, work, args, name=name)

    def give_up_waiting(self) -> None:
        """At the end of the drain: calls that clients still wait for are answered with an error."""
        for call in self._calls:
            if not call.is_task:
                call.lose(UpstreamUnavailable("the proxy shuts down; the outcome is unknown"))
                call.scope.cancel()

    def freeze(self) -> None:
        """Before the upstreams are ended: what still runs as a task stays stored as running (contract 9)."""
        for follower in self._followers.values():
            follower.freeze()
            follower.call.leave()

    async def wait_idle(self) -> None:
        """Until no call is in flight, and no task runs."""
        while self._calls or self._followers:
            await self._ends.event.wait()

    def __repr__(self) -> str:
        return f"<Runner {len(self._calls)} calls, {len(self._followers)} tasks>"

    # -- calls --------------------------------------------------------------------------------------

    @contextmanager
    def admitted(self, call: LiveCall) -> Iterator[None]:
        """Room for one more call, which is to be started inside. Raises LimitReached (429) on entry."""
        self._admitted[call] = self._bound.take(call.request.owner)
        try:
            yield
        finally:
            if call in self._admitted:  # it was not started
                self._admitted.pop(call)()

    def start(self, call: LiveCall) -> None:
        """Send the call upstream, unless it has ended already; what becomes of it is told to `call`."""
        if call.ended:
            return
        if call not in self._admitted:  # an earlier process left it, and it is not refused
            self._admitted[call] = self._bound.count(call.request.owner)
        self._calls[call] = self._admitted.pop(call)
        self.spawn(self._drive, call)
        self.spawn(self._keep_limits, call)

    def resume(self, call: LiveCall, request: ClientRequest, answers: Mapping[str, bytes]) -> None:
        """A later request of the client goes on with the call, and brings answers to open questions."""
        call.goes_on_with(request)
        asked = {key: call.questions[key] for key in answers if key in call.questions}
        call.take(asked)
        self.spawn(self._resume, call, asked, answers)

    async def _resume(
        self, call: LiveCall, asked: Mapping[str, OpenQuestion], answers: Mapping[str, bytes]
    ) -> None:
        if call.session is not None:
            await self._keep_log_level(call, call.session)
        questions = {key: one.question for key, one in asked.items()}
        await self._delivery.deliver(call, questions, answers, asked)

    async def meet(self, request: ClientRequest) -> None:
        """Start a session for this client if there is none. Raises UpstreamError."""
        async with self._pool.lease(request.owner, request.capabilities, for_call=False):
            pass

    async def check_early(self, call: LiveCall) -> None:
        """Judge a call that becomes a task at once while it is none yet, if a session is at hand."""
        session = self._pool.at_hand(call.request.owner, call.request.capabilities)
        if session is not None:
            await call.check(call.request, session)

    async def _drive(self, call: LiveCall) -> None:
        try:
            with call.scope:
                if call.before is not None:
                    await call.before()
                if call.left_round is not None:
                    call.next_params = await call.left_round(call)
                try:
                    await self._run(call)
                except UpstreamError as exc:
                    if not call.falls_back():
                        raise
                    log.info("call_not_resumed", reason=exc.message)
                    await self._run(call)
            await self._give_up_left(call)
        except UpstreamError as exc:
            call.lose(_honest(exc) if call.ran_before or call.runs_upstream else exc)
        except ProxyError as exc:
            call.lose(exc)
        except Exception:
            call.lose(InternalError("the outcome of the call is unknown"))
            raise
        finally:
            self._calls.pop(call)()
            self._ends.beat()

    async def _give_up_left(self, call: LiveCall) -> None:
        """One that was stopped before it was taken up: the upstream works on it, and is told all the same."""
        if call.resumes is None or call.place is None:
            return
        upstream_task = None if call.trace is None else call.trace.upstream_task
        try:
            async with call.place() as session:
                if upstream_task is not None:
                    session.cancel_task(upstream_task)
                else:
                    session.cancel_call(call.resumes.call_id)
        except UpstreamError as exc:
            log.warning("call_not_cancelled", reason=exc.message)

    def _place_of(self, call: LiveCall) -> AbstractAsyncContextManager[LegacySession]:
        if call.place is not None:
            return call.place()
        request = call.request
        return self._pool.lease(request.owner, request.capabilities, on_starting=call.wait_for_start)

    async def _run(self, call: LiveCall) -> None:
        """Where there is room. A server that was restarted refuses what comes on our old sessions, and runs
        nothing of it; nor does a process that has died by then. That is sent again on another session, which
        is new if no old one is left."""
        for _ in range(OLD_SESSIONS):
            try:
                await self._run_on(call, self._place_of(call))
                return
            except (SessionUnknown, ServerGone) as exc:
                if call.place is not None or call.runs_upstream:
                    raise
                log.info("call_sent_again", reason=exc.message)
        await self._run_on(call, self._place_of(call))

    async def _run_on(self, call: LiveCall, place: AbstractAsyncContextManager[LegacySession]) -> None:
        async with place as session:
            await self._about_to_send(call)
            call.got_session(session, self._clock.monotonic())
            await call.check(call.request, session)
            await self._keep_log_level(call, session)
            await self._call_upstream(call, session)

    async def _about_to_send(self, call: LiveCall) -> None:
        """A record that says that nothing was sent must not outlive this moment."""
        call.was_sent = True  # whatever is stored from now on says so
        if call.may_be_stored_unsent:
            while call.converting and not call.is_task:  # its record is on its way to the store
                await call.changed.event.wait()
            for follower in [f for f in self._followers.values() if f.call is call]:
                await follower.mark_started()

    async def _keep_log_level(self, call: LiveCall, session: LegacySession) -> None:
        """Have the upstream log from the lowest level on that a call of this session asks for (LOG-004)."""
        if call.log_level is not None:
            others = (c.log_level for c in self._calls if c.session is session and not c.ended)
            levels = [call.log_level, *filter(None, others)]
            await session.ensure_log_level(min(levels, key=names.LOG_LEVELS.index))

    async def _call_upstream(self, call: LiveCall, session: LegacySession) -> None:
        """The call, and its further steps: where a legacy upstream first wants URLs visited (-32042), or a
        modern one answers a task with questions."""
        params: RawObject | bytes = call.next_params or call.request.params
        for attempt in range(MAX_ROUNDS):
            outcome = await self._sent_or_resumed(call, session, params)
            asked = modern_input.asked_for(call, outcome)
            # A 2025 client gets the very error, as it would have without us.
            urls = url_elicitations.asked_for(call, outcome) if call.place is None else []
            if asked is not None:
                params = call.next_params = await modern_input.next_params(call, asked)
                if not asked.questions:  # the server only wants to be asked again (MRTR-019)
                    await self._clock.sleep(again_s(attempt))
            elif not urls or not await url_elicitations.visited(call, urls):
                call.settle(outcome)
                return
        call.lose(UpstreamError(f"the upstream asked for input {MAX_ROUNDS} times in a row"))

    async def _sent_or_resumed(
        self, call: LiveCall, session: LegacySession, params: RawObject | bytes
    ) -> Outcome:
        """What the upstream answers to a call that is sent now, or that an earlier process has sent."""
        resumes, call.resumes = call.resumes, None
        upstream_task = None if resumes is None or call.trace is None else call.trace.upstream_task
        if upstream_task is not None:
            return await UpstreamTask(call, session, self._clock).outcome_of(upstream_task)
        if resumes is None and await is_wanted(call, session):
            ttl_ms = int(self._policy.runtime_limit_s * 1_000)
            return await UpstreamTask(call, session, self._clock).outcome(params, ttl_ms)
        if resumes is None:
            if call.next_params is None:
                return await self._sent(call, session, params)
            return await self._delivery.of_round(call, partial(self._sent, call, session, params))
        pending = session.take_up(resumes, call.request.method, call.name, call)
        call.attach(session, resumes.call_id)
        outcome = await session.answer_to(pending)
        return await UpstreamTask(call, session, self._clock).outcome_after(outcome)

    async def _sent(self, call: LiveCall, session: LegacySession, params: RawObject | bytes) -> Outcome:
        method, progress = call.request.method, call.want_progress
        headers = await headers_of(call, session)
        try:
            outcome = await session.call(method, params, call, want_progress=progress, headers=headers)
            if should_be_built_anew(call, session, outcome):
                session.catalogue.forget()
                headers = await headers_of(call, session)
                outcome = await session.call(method, params, call, want_progress=progress, headers=headers)
        except UpstreamProtocolError:
            self.spawn(session.doubt)
            raise
        if isinstance(outcome, Failure) and error_code(outcome.error) in OF_ANOTHER_ERA:
            self.spawn(session.doubt)
        return outcome

    # -- limits -------------------------------------------------------------------------------------

    async def _keep_limits(self, call: LiveCall) -> None:
        """End the call at the runtime limit, which stands still while input is awaited, or the input limit.

        Measured on the monotonic clock. The upstream is told, as for a cancel (CANC-005).
        """
        running_s = 0.0
        while not call.ended:
            waiting, began = bool(call.questions), self._clock.monotonic()
            limit_s = self._policy.input_limit_s if waiting else self._policy.runtime_limit_s
            if not await self._turns_within(call, limit_s if waiting else limit_s - running_s):
                call.pass_limit(_limit_error(waiting, limit_s))
            if not waiting:
                running_s += self._clock.monotonic() - began

    async def _turns_within(self, call: LiveCall, seconds: float) -> bool:
        """Whether the call ended, or began or stopped to wait for input, within this time."""
        waiting, until = bool(call.questions), self._clock.monotonic() + seconds
        while True:
            turned = call.turned.event
            if call.ended or bool(call.questions) != waiting:
                return True
            if not await self._clock.wait(turned, until - self._clock.monotonic()):
                return False

    # -- tasks --------------------------------------------------------------------------------------

    def follow(self, call: LiveCall, task: Task) -> None:
        """The call has become this task, which is stored: what happens is stored from now on, to its end."""
        self._metrics.task_created()
        self._start_following(call, task, self._clock.monotonic())

    def _start_following(self, call: LiveCall, task: Task, created: float | None) -> None:
        """`created`: when, on the monotonic clock; None if that was in an earlier process."""
        call.is_task = True
        follower = Follower(call, task, self._store, self._policy, self._clock)
        self._followers[task.id] = follower
        call.changed.beat()
        self.spawn(self._follow, follower, created)

    async def _follow(self, follower: Follower, created: float | None) -> None:
        try:
            await follower.run()
        finally:
            task = follower.task
            del self._followers[task.id]
            if task.status.is_terminal:
                age_s = None if created is None else self._clock.monotonic() - created
                self._metrics.task_ended(task.status, age_s)
            self._ends.beat()

    def take_up(self, call: LiveCall, task: Task, *, deliver: bool = True) -> None:
        """Go on with a task that an earlier process left: follow it, send or resume its call, and `deliver`
        answers of the client that may not have reached the upstream."""
        answers = {a.key: a for a in task.answers} if deliver else {}
        # Those to questions of our own (visited URLs) have no request of the upstream.
        upstreams = {key: a for key, a in answers.items() if RequestId.parse(a.question_id) is not None}
        questions = {key: call.restored(a.question_id) for key, a in upstreams.items()}
        self._metrics.task_taken_up()
        self._start_following(call, task, None)
        self.start(call)
        if questions:
            values = {key: a.value for key, a in answers.items()}
            self.spawn(self._deliver, self._followers[task.id], questions, values)

    def carry_out(self, task: Task) -> None:
        """Do upstream what a client made of the stored task: answer, or cancel. Does not wait for it.

        May be called again with the same record: an answer is sent once.
        """
        follower = self._followers.get(task.id)
        if follower is None:
            return
        if task.status.is_terminal:
            follower.call.stop("the task was cancelled")
            return
        answers = {answer.key: answer.value for answer in task.answers}
        questions = follower.call.take(answers)
        if questions:
            self.spawn(self._deliver, follower, questions, answers)

    async def _deliver(
        self, follower: Follower, questions: Mapping[str, Question], answers: Mapping[str, bytes]
    ) -> None:
        delivered = await self._delivery.deliver(follower.call, questions, answers)
        if delivered and follower.call.round is None:  # else they go out with the next round
            await follower.forget_answers(delivered)

    def refuse(self, task_id: str, key: str, error: bytes) -> None:
        """The client answers an open question of a task with an error (raw): its asker gets that."""
        follower = self._followers.get(task_id)
        if follower is not None:
            for question in follower.call.take([key]).values():
                self.spawn(self._delivery.reject, follower.call, question, error)

    def look_again(self, task: Task) -> None:
        """A change of `task` has failed, and may be made all the same: then carry it out."""
        self.spawn(self._look_again, task)

    async def _look_again(self, task: Task) -> None:
        while task.id in self._followers:
            with suppress(StoreError, TaskNotFound):
                stored = await self._store.get(task.id, result=False)
                if stored.revision > task.revision:
                    self.carry_out(stored)
                    return
            await self._clock.sleep(LOOK_AGAIN_S)


async def _guarded(work: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
    """A fault of ours in the work of one call is told loudly, and does not end all the others."""
    try:
        await work(*args)
    except Exception:
        log.exception("work_failed", work=getattr(work, "__name__", str(work)))


def _honest(fault: UpstreamError) -> UpstreamError:
    """For a call that was sent before, too, or runs as a task of the upstream: it may have run, whatever
    became of what we sent last."""
    if isinstance(fault, UpstreamRefused) or "outcome unknown" in fault.message:
        return fault
    return UpstreamClosed(f"{fault.message}; outcome unknown: the call had been sent before")


def _limit_error(waiting: bool, limit_s: float) -> UpstreamTimeout:
    if waiting:
        what, setting = "the server's question was not answered", "tasks.input_limit"
    else:
        what, setting = "the call did not end", "tasks.runtime_limit"
    return UpstreamTimeout(f"{what} within {limit_s:g} s ({setting})")
