"""What an earlier process left unfinished: resumed where the upstream lets us, repeated where configuration
does, and else failed with the honest words.

Above: `app`, once the runner runs; nothing here holds up what is served. Below: the runner, which drives a
call that is resumed or repeated like any other. Contract section 9; lesson 8 of the field reports.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, assert_never

import anyio

from proxy.clock import Clock
from proxy.eras.capabilities import ANY_CAPABILITIES, ClientCapabilities
from proxy.errors import ErrorCode, StoreError, TaskConflict, TaskNotFound, UpstreamUnavailable
from proxy.logs import get_logger, task_hash
from proxy.metrics import UNSERVED, Metrics
from proxy.owners import Credentials, Owner
from proxy.protocol.envelope import RawObject
from proxy.protocol.jsonrpc import RequestId, error_object
from proxy.routing.base import ClientRequest
from proxy.routing.live import WAITING_FOR_PROCESS, LiveCall, OpenQuestion, Place
from proxy.routing.modern_input import left_round
from proxy.routing.runner import Runner
from proxy.stores.base import TaskStore
from proxy.tasks import lifecycle
from proxy.tasks.lifecycle import TaskEvent
from proxy.tasks.lost_call import CallTrace, Repeat, RoundTrace
from proxy.tasks.policy import Policy
from proxy.tasks.task import Task, TaskStatus
from proxy.upstream.base import StreamPosition
from proxy.upstream.session import LegacySession

OUTCOME_UNKNOWN: Final = "outcome unknown: the proxy stopped while the call was running"
NEVER_STARTED: Final = "never started: the proxy stopped while the call waited for an upstream process"
WAITING_FOR_OWNER: Final = "The proxy was restarted: the call goes on with your next request, by its token."
TOKEN_WAIT_S: Final = 3_600.0  # for the owner to come back; a client that polls does within seconds
AT_ONCE: Final = 32  # so many are failed at a time: each is a commit, and others have their own
RETRY_S: Final = 5.0  # after a fault of the store

_WAITING: Final = frozenset({WAITING_FOR_OWNER, WAITING_FOR_PROCESS})
_NO_ID: Final = RequestId(b"0", 0)
_NOTHING: Final = Repeat(b"{}", "{}")

log = get_logger()


@dataclass(frozen=True, slots=True)
class Resume:
    trace: CallTrace


@dataclass(frozen=True, slots=True)
class SendAgain:
    repeat: Repeat


@dataclass(frozen=True, slots=True)
class GiveUp:
    words: str


@dataclass(frozen=True, slots=True)
class WaitForInput:
    round: RoundTrace


Plan: TypeAlias = Resume | WaitForInput | SendAgain | GiveUp
"""What becomes of a task that an earlier process left."""


def plan_for(task: Task, *, can_resume: bool, may_repeat: bool) -> Plan:
    """In the contract's order. `can_resume`: whether our upstream is one that has streams; `may_repeat`:
    whether configuration, as it is now, lets the tool be repeated."""
    if task.trace is not None and task.trace.can_be_found and can_resume:
        return Resume(task.trace)
    if task.round is not None and task.inputs:
        return WaitForInput(task.round)
    if task.repeat is not None and may_repeat:
        return SendAgain(task.repeat)
    return GiveUp(_what_is_known(task))


def _what_is_known(task: Task) -> str:
    return OUTCOME_UNKNOWN if task.sent else NEVER_STARTED


PlaceOf = Callable[[Owner, Task, CallTrace], Awaitable[Place]]
"""Where a call can be resumed: the session of the upstream that it was sent on."""


class Recovery:
    """Use `run` once. `place_of` None: the upstream has no streams that could be resumed."""

    def __init__(
        self,
        store: TaskStore,
        runner: Runner,
        policy: Policy,
        credentials: Credentials,
        clock: Clock,
        place_of: PlaceOf | None,
        metrics: Metrics = UNSERVED,
    ) -> None:
        self._metrics = metrics
        self._store = store
        self._runner = runner
        self._policy = policy
        self._credentials = credentials
        self._clock = clock
        self._place_of = place_of
        self._turn = anyio.CapacityLimiter(AT_ONCE)

    async def run(self) -> None:
        """Take up every task that is not terminal; returns when each has its call, or has failed."""
        left = [await self._marked(task) for task in await self._unfinished()]
        if not left:
            return
        async with anyio.create_task_group() as tasks:
            for task in left:
                tasks.start_soon(self._take_up, task)
        log.info("unfinished_tasks_taken_up", count=len(left))

    async def _unfinished(self) -> Sequence[Task]:
        while True:
            try:
                return await self._store.unfinished()
            except StoreError as exc:
                log.error("unfinished_tasks_not_read", reason=exc.message)
                await self._clock.sleep(RETRY_S)

    async def _marked(self, task: Task) -> Task:
        """The task with a time not before what its clients were told: shown before anybody can ask."""
        marked = lifecycle.taken_up(task, self._clock.wall_ms())
        if marked is not task:
            try:
                await self._store.note(task, marked)
            except (StoreError, TaskConflict, TaskNotFound):
                return task
        return marked

    async def _take_up(self, task: Task) -> None:
        """A record that makes us stumble fails, and keeps neither the others nor the proxy from going on."""
        try:
            await self._carry_out(task)
        except TaskNotFound:
            return
        except Exception:
            log.exception("task_not_taken_up", task=task_hash(task.id), tool=task.name)
            await self._fail(task, _what_is_known(task))

    async def _carry_out(self, task: Task) -> None:
        """Once the record is read its call is followed without a further wait, so that no answer and no
        cancel of the owner comes in between."""
        place = await self._place_for(task)
        task = await self._newest(task)
        if task.status.is_terminal:
            return
        may_repeat = self._policy.for_tool(task.name).repeatable
        match plan_for(task, can_resume=self._place_of is not None, may_repeat=may_repeat):
            case Resume(trace):
                assert place is not None  # what is in flight is found where it was
                self._resume(task, trace, place, may_repeat=may_repeat)
            case WaitForInput(trace):
                self._wait_for_input(task, trace)
            case SendAgain(repeat):
                self._send_again(task, repeat)
            case GiveUp(words):
                async with self._turn:
                    await self._fail(task, words)
            case plan:
                assert_never(plan)

    async def _place_for(self, task: Task) -> Place | None:
        if self._place_of is None or task.trace is None or not task.trace.can_be_found:
            return None
        return await self._place_of(Owner(task.owner), task, task.trace)

    async def _newest(self, task: Task) -> Task:
        while True:
            try:
                return await self._store.get(task.id, result=False)
            except StoreError as exc:
                log.error("task_not_read", task=task_hash(task.id), reason=exc.message)
                await self._clock.sleep(RETRY_S)

    def _resume(self, task: Task, trace: CallTrace, place: Place, *, may_repeat: bool) -> None:
        call = self._call_of(task, place)
        call.capabilities = ANY_CAPABILITIES  # the server was told those of the client, and asks nothing else
        if task.status is TaskStatus.WORKING and task.status_message not in _WAITING:
            call.goes_on_from(task.status_message)
        call.waits_for = call.progress_text() or lifecycle.WORKING_MESSAGE
        self._have_wait_for_token(call, task)
        call.resumes = StreamPosition(trace.session_id, trace.version, trace.call_id, trace.event_id)
        call.trace, call.may_repeat = trace, task.repeat is not None and may_repeat
        for question in task.inputs:
            asked = question.as_asked if question.as_asked is not None else question.params
            restored = call.restored(question.question_id, question.method, asked)
            call.questions[question.key] = OpenQuestion(restored, question)
        self._runner.take_up(call, task)
        log.info("task_resumed", task=task_hash(task.id), tool=task.name)

    def _wait_for_input(self, task: Task, trace: RoundTrace) -> None:
        """Nothing is in flight; the next round goes out once its questions are answered."""
        left = left_round(task, trace)
        call = self._call_of(replace(task, repeat=Repeat(trace.params, trace.offered)), None)
        call.round, call.left_round = trace, left.params
        for question in task.inputs:
            call.questions[question.key] = OpenQuestion(left.questions[question.key], question)
        self._have_wait_for_token(call, task)
        self._runner.take_up(call, task, deliver=False)
        log.info("task_resumed", task=task_hash(task.id), tool=task.name)

    def _send_again(self, task: Task, repeat: Repeat) -> None:
        """What was asked of the client before is asked anew, if at all."""
        call = self._call_of(task, None)
        call.ran_before = task.sent
        self._have_wait_for_token(call, task)
        self._runner.take_up(call, task, deliver=False)
        log.info("task_repeated", task=task_hash(task.id), tool=task.name)

    def _call_of(self, task: Task, place: Place | None) -> LiveCall:
        owner = Owner(task.owner)
        repeat = task.repeat if task.repeat is not None else _NOTHING
        capabilities = ClientCapabilities(repeat.offered, tasks=True)
        request = ClientRequest(_NO_ID, task.method, RawObject.parse(repeat.params), owner, capabilities)
        tool = self._policy.for_tool(task.name)
        call = LiveCall(request, task.name, tool, want_progress=True, check=_unchecked, place=place)
        call.next_key, call.was_sent, call.may_be_stored_unsent = task.next_key, task.sent, not task.sent
        return call

    def _have_wait_for_token(self, call: LiveCall, task: Task) -> None:
        """What goes upstream needs the token of the owner, which is not stored (contract section 9)."""
        owner, then = call.request.owner, call.waits_for
        if self._place_of is None or not self._credentials.may_lack(owner):
            return

        async def wait() -> None:
            with anyio.move_on_after(TOKEN_WAIT_S):
                await self._credentials.wait_for(owner)
                call.waits_for = then
                call.changed.beat()
                return
            raise UpstreamUnavailable(
                f"{_what_is_known(task)}; its owner, whose token it needs, did not come back within "
                f"{TOKEN_WAIT_S:g} s"
            )

        call.waits_for, call.before = WAITING_FOR_OWNER, wait

    async def _fail(self, task: Task, words: str) -> None:
        """Until it is stored, or nothing is left to be stored."""
        error = error_object(ErrorCode.INTERNAL_ERROR, words)
        while True:
            now_ms = self._clock.wall_ms()
            event, polling = TaskEvent.CALL_LOST, self._policy.polling
            try:
                failed = lifecycle.failed(task, event, error, words, polling, now_ms)
                await self._store.compare_and_set(task, failed)
                self._metrics.task_ended(failed.status)
                log.warning("task_given_up", task=task_hash(task.id), tool=task.name, reason=words)
                return
            except TaskNotFound:
                return
            except TaskConflict:  # its owner was faster: a cancel ends it, an answer does not
                pass
            except StoreError as exc:
                log.error("task_not_stored", task=task_hash(task.id), reason=exc.message)
                await self._clock.sleep(RETRY_S)
            with suppress(StoreError, TaskNotFound):
                task = await self._store.get(task.id, result=False)
            if task.status.is_terminal:
                return


async def _unchecked(request: ClientRequest, session: LegacySession) -> None:
    """It was judged when it came in."""
