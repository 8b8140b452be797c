"""Runs calls and tasks under the proxy's own lifetime, not under that of any client's request.

Above: `conversion` starts calls and turns them into tasks, `task_methods` answers and cancels them.
Below: the pool's sessions and the store. The runner's task group is the root's child: it owns one task
for each call in flight, one that keeps its limits, and one for each running task that stores what
happens to it. Whoever moves a stored task does it by compare-and-set, so that this runner, a cancel and
an update may meet at any point. Contract sections 4 and 9.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock, Pulse
from proxy.eras.capabilities import missing_capability
from proxy.eras.to_modern import error_code, url_elicitations
from proxy.errors import (
    ErrorCode,
    IllegalTransition,
    ProxyError,
    StoreError,
    TaskConflict,
    TaskNotFound,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.logs import get_logger, task_hash
from proxy.protocol import names
from proxy.protocol.envelope import RawObject
from proxy.protocol.jsonrpc import RequestId, error_object
from proxy.routing.live import LiveCall
from proxy.stores.base import TaskStore
from proxy.tasks import lifecycle
from proxy.tasks.lifecycle import TaskEvent
from proxy.tasks.policy import Policy
from proxy.tasks.task import InputAnswer, Task, TaskStatus
from proxy.upstream.base import Failure, Outcome, Result
from proxy.upstream.pool import Pool
from proxy.upstream.session import LegacySession

URL_ROUNDS: Final = 10  # how often one call may ask for URL elicitations before it counts as stuck
STORE_RETRY_FIRST_S: Final = 0.2
STORE_RETRY_LAST_S: Final = 10.0
WAITING_FOR_PROCESS: Final = "Waiting for an upstream process."

log = get_logger()


@dataclass(eq=False)
class UrlQuestion:
    """A URL elicitation that a -32042 error asked for: answered to us, not to a server that waits."""

    params: bytes
    action: str | None = None
    method: str = names.ELICITATION_CREATE
    id: RequestId = RequestId(b"null", "")  # noqa: RUF009 - frozen

    async def answer(self, result: bytes) -> None:
        self.action = RawObject.parse(result).text("action")

    def refuse(self, error: bytes) -> None:
        self.action = "cancel"


class Runner:
    """See the module. `run` must be running."""

    def __init__(self, pool: Pool, store: TaskStore, policy: Policy, clock: Clock) -> None:
        self._pool = pool
        self._store = store
        self._policy = policy
        self._clock = clock
        self._tasks: TaskGroup | None = None
        self._calls: set[LiveCall] = set()
        self._live: dict[str, LiveCall] = {}
        self._ends = Pulse()

    async def run(self, *, task_status: StartStatus[None]) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            await anyio.sleep_forever()

    def spawn(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run something of ours beyond the request that asked for it."""
        assert self._tasks is not None  # `run` is running
        self._tasks.start_soon(_guarded, work, args)

    def give_up_waiting(self) -> None:
        """At the end of the drain: calls that clients still wait for are answered with an error."""
        for call in self._calls:
            if not call.is_task:
                call.lose(UpstreamUnavailable("the proxy shuts down; the outcome is unknown"))
                call.scope.cancel()

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    async def wait_idle(self) -> None:
        """Until no call is in flight."""
        while self._calls or self._live:
            await self._ends.event.wait()

    def __repr__(self) -> str:
        return f"<Runner {len(self._calls)} calls, {len(self._live)} tasks>"

    # -- calls --------------------------------------------------------------------------------------

    def start(self, call: LiveCall) -> None:
        """Send the call upstream; what becomes of it is told to `call`."""
        self._calls.add(call)
        self.spawn(self._drive, call)
        self.spawn(self._keep_limits, call)

    async def check_early(self, call: LiveCall) -> None:
        """Judge a call that becomes a task at once while it is none yet, if a session is at hand."""
        session = self._pool.at_hand(call.request.owner, call.request.capabilities)
        if session is not None:
            await call.check(call.request, session)

    async def _drive(self, call: LiveCall) -> None:
        request = call.request
        try:
            with call.scope:
                async with self._pool.lease(
                    request.owner, request.capabilities, on_starting=call.wait_for_start
                ) as session:
                    call.got_session(session.info.server_info, self._clock.monotonic())
                    await call.check(request, session)
                    if request.log_level is not None:
                        await session.ensure_log_level(self._lowest_level(call))
                    await self._call_upstream(call, session)
        except ProxyError as exc:
            call.lose(exc)
        except Exception:
            call.lose(ProxyError("internal error of the proxy; the outcome of the call is unknown"))
            raise
        finally:
            self._calls.discard(call)
            self._ends.beat()

    def _lowest_level(self, call: LiveCall) -> str:
        """The lowest level that any call of the same session asks for (LOG-004)."""
        mine = (call.request.owner, call.request.capabilities.offered)
        same = (
            c.request.log_level
            for c in self._calls
            if (c.request.owner, c.request.capabilities.offered) == mine and not c.ended
        )
        return min(filter(None, same), key=names.LOG_LEVELS.index)

    async def _call_upstream(self, call: LiveCall, session: LegacySession) -> None:
        """The call, and its further steps where the upstream first wants URLs visited (-32042)."""
        request = call.request
        for _ in range(URL_ROUNDS):
            outcome = await session.call(
                request.method, request.params.raw, call, want_progress=call.want_progress
            )
            if not await self._continue_after_urls(call, outcome):
                call.settle(outcome)
                return
        call.lose(UpstreamError(f"the upstream asked {URL_ROUNDS} times in a row for URLs to be visited"))

    async def _continue_after_urls(self, call: LiveCall, outcome: Outcome) -> bool:
        """Whether the outcome only asks for URL elicitations, and all of them were accepted."""
        if (
            not isinstance(outcome, Failure)
            or error_code(outcome.error) != names.LEGACY_URL_ELICITATION_REQUIRED
        ):
            return False
        questions = [UrlQuestion(params) for params in url_elicitations(outcome.error)]
        if not questions or call.request.method not in names.CARRIES_INPUT:
            return False
        missing = call.request.capabilities.missing_for(names.ELICITATION_CREATE, questions[0].params)
        if missing is not None:
            call.lose(missing_capability(missing.required, "the server wants the user to visit a URL"))
            return True
        for question in questions:
            call.ask(question)
        while any(q.action is None for q in questions) and not call.ended:
            await call.turned.event.wait()
        return all(q.action == "accept" for q in questions)

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
        """Store from now on what happens to the call of this task, until its end. `task` is stored."""
        call.is_task = True
        self._live[task.id] = call
        self.spawn(self._follow, call, task)

    async def _follow(self, call: LiveCall, task: Task) -> None:
        shown = {r.key for r in task.inputs}
        try:
            while not task.status.is_terminal:
                changed = call.changed.event
                step = self._next_step(call, task, shown)
                if step is None:
                    await changed.wait()
                    continue
                task = await self._store_step(task, step)
                shown.update(r.key for r in task.inputs)
        except TaskNotFound:
            log.error("task_vanished", task=task_hash(task.id))
        except Exception:
            call.lose(ProxyError("internal error of the proxy; the outcome of the call is unknown"))
            task = await self._store_step(task, Step(lambda t, now: self._ending(call, t, now)))
            raise
        finally:
            del self._live[task.id]
            call.stop("the task has ended")
            self._ends.beat()
        log.info(f"task_{task.status}", task=task_hash(task.id), tool=task.name)

    def _next_step(self, call: LiveCall, task: Task, shown: set[str]) -> Step | None:
        """What the record lacks of what the call has come to; decided from the two alone."""
        if call.ended:
            return Step(lambda t, now: self._ending(call, t, now))
        fresh = tuple(q.request for k, q in call.questions.items() if k not in shown)
        if fresh:
            return Step(lambda t, now: lifecycle.asked(t, fresh, call.next_key, now))
        gone = {r.key for r in task.inputs} - call.questions.keys()
        if gone:
            return Step(lambda t, now: lifecycle.withdrawn(t, gone, now))
        text = WAITING_FOR_PROCESS if call.sent_at is None else call.progress_text
        if text is not None and task.status is TaskStatus.WORKING and text != task.status_message:
            return Step(lambda t, now: lifecycle.noted(t, text, now), may_be_lost=True)
        return None

    def _ending(self, call: LiveCall, task: Task, now_ms: int) -> Task:
        polling = self._policy.polling
        match call.outcome:
            case Result(raw):
                return self._completed(call, task, raw, now_ms)
            case Failure(error):
                message = RawObject.parse(error).text("message") or "The upstream answered with an error."
                return lifecycle.failed(task, TaskEvent.ERROR, error, message, polling, now_ms)
            case None:
                pass
        if call.loss is None:
            return lifecycle.cancelled(task, polling, now_ms)
        event = TaskEvent.LIMIT_PASSED if call.limit_passed else TaskEvent.CALL_LOST
        error = error_object(ErrorCode.INTERNAL_ERROR, call.loss.message, call.loss.data)
        return lifecycle.failed(task, event, error, call.loss.message, polling, now_ms)

    def _completed(self, call: LiveCall, task: Task, result: bytes, now_ms: int) -> Task:
        polling, limit = self._policy.polling, self._policy.max_result_bytes
        fault = None
        if len(result) > limit:
            fault = f"the result has {len(result)} bytes, over the limit of {limit} (limits.result)"
        elif result[:1] != b"{":
            fault = "the upstream answered with a result that is not an object"
        if fault is None:
            return lifecycle.completed(task, result, call.server_info, polling, now_ms)
        error = error_object(ErrorCode.INTERNAL_ERROR, fault)
        return lifecycle.failed(task, TaskEvent.CALL_LOST, error, fault, polling, now_ms)

    async def _store_step(self, task: Task, step: Step) -> Task:
        """Store what `step` makes of the task; of the stored one, where somebody else moved it meanwhile.

        While the store is broken the task keeps its last stored state and this goes on trying
        (contract section 9). Raises TaskNotFound.
        """
        delay_s = STORE_RETRY_FIRST_S
        while True:
            try:
                new = step.apply(task, self._clock.wall_ms())
                if new is task:
                    return task
                if step.may_be_lost:
                    await self._store.note(task, new)
                else:
                    await self._store.compare_and_set(task, new)
                return new
            except IllegalTransition:
                if task.status.is_terminal:
                    return task  # it ended first; what came late is dropped (I4)
                raise
            except TaskConflict:
                task = await self._read_again(task)
            except StoreError as exc:
                log.error("task_not_stored", task=task_hash(task.id), reason=exc.message)
                await self._clock.sleep(delay_s)
                delay_s = min(delay_s * 2, STORE_RETRY_LAST_S)
                task = await self._read_again(task)

    async def _read_again(self, task: Task) -> Task:
        try:
            return await self._store.get(task.id)
        except StoreError:
            return task

    # -- what clients do to running tasks --------------------------------------------------------------

    def deliver(self, task_id: str, answers: Mapping[str, InputAnswer]) -> None:
        """Hand accepted and stored answers to the upstream; does not wait for it."""
        call = self._live.get(task_id)
        if call is not None:
            self.spawn(self._deliver, call, task_id, answers)

    async def _deliver(self, call: LiveCall, task_id: str, answers: Mapping[str, InputAnswer]) -> None:
        for key, answer in answers.items():
            await self.answer(call, key, answer.value)
        delay_s = STORE_RETRY_FIRST_S
        while True:  # the answers need not be kept any longer; at the latest they go when the task ends
            try:
                task = await self._store.get(task_id)
                if task.status.is_terminal:
                    return
                await self._store.note(task, lifecycle.delivered(task, answers.keys()))
                return
            except TaskConflict:
                continue
            except TaskNotFound:
                return
            except StoreError:
                await self._clock.sleep(delay_s)
                delay_s = min(delay_s * 2, STORE_RETRY_LAST_S)

    async def answer(self, call: LiveCall, key: str, value: bytes) -> None:
        """Hand one answer to the asker. After a broken send it is sent once more, under the same id."""
        question = call.take(key)
        if question is None:
            return
        for attempt in (1, 2):
            try:
                await question.answer(value)
                break
            except UpstreamError as exc:
                log.warning("answer_not_delivered", attempt=attempt, reason=exc.message)

    def cancel(self, task_id: str) -> None:
        """The stored task is cancelled: tell the upstream, do not wait for it."""
        call = self._live.get(task_id)
        if call is not None:
            call.stop("the task was cancelled")


async def _guarded(work: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
    """A fault of ours in the work of one call is told loudly, and does not end all the others."""
    try:
        await work(*args)
    except Exception:
        log.exception("work_failed", work=getattr(work, "__name__", str(work)))


@dataclass(frozen=True, slots=True)
class Step:
    """A change of a record, repeatable on a newer state of it."""

    apply: Callable[[Task, int], Task]
    may_be_lost: bool = False


def _limit_error(waiting: bool, limit_s: float) -> UpstreamTimeout:
    if waiting:
        what, setting = "the server's question was not answered", "tasks.input_limit"
    else:
        what, setting = "the call did not end", "tasks.runtime_limit"
    return UpstreamTimeout(f"{what} within {limit_s:g} s ({setting})")
