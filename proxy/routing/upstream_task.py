"""A 2025 task of the upstream's own, driven to its end for a client that knows nothing of it.

Above: `runner`, for calls of tools that the upstream marks as its task tools. Below: the session. We are the
requestor: we make the task, hold `tasks/result` (on which its questions come), poll for its status, and
cancel it. Towards the client it is an ordinary call, which becomes a task of ours when it is slow, and which
a later process takes up again by its id. MCP 2025-11-25, "Tasks"; contract section 2.
"""

from __future__ import annotations

from typing import Final

import anyio

from proxy.clock import Clock
from proxy.eras.era import Era
from proxy.eras.patience import FAILED_POLLS, POLL_S, poll_s
from proxy.eras.tasks_2025 import VERSION, TaskSupport, UpstreamTasks, without_related_task
from proxy.eras.to_modern import error_message
from proxy.errors import UpstreamClosed, UpstreamError, UpstreamProtocolError, only_fault
from proxy.logs import get_logger, task_hash
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps
from proxy.routing.live import LiveCall
from proxy.upstream.base import Failure, Outcome, Result
from proxy.upstream.session import LegacySession

_TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})

log = get_logger()


async def is_wanted(call: LiveCall, session: LegacySession) -> bool:
    """Whether the upstream is to run this call as a task of its own: always where it says that the tool must
    be (T25-TOOL-006), never where it says nothing (T25-TOOL-005) or its list cannot be had, else if the
    client could have a task."""
    info = session.info
    if call.request.method != names.TOOLS_CALL or info.era is not Era.LEGACY or info.version != VERSION:
        return False
    if not UpstreamTasks.declared(RawObject.parse(info.capabilities)).tools:
        return False
    match await session.catalogue.task_support(call.name):
        case TaskSupport.REQUIRED:
            return True
        case TaskSupport.OPTIONAL:
            return call.may_convert
        case TaskSupport.FORBIDDEN | None:
            return False


class UpstreamTask:
    """Of one call. `outcome` makes the task and drives it, `outcome_of` takes up one that was made before."""

    def __init__(self, call: LiveCall, session: LegacySession, clock: Clock) -> None:
        self._call = call
        self._session = session
        self._clock = clock
        self._poll_s = POLL_S
        self._ended = anyio.Event()
        self._shown: str | None = None

    async def outcome(self, params: RawObject | bytes, ttl_ms: int) -> Outcome:
        """What the call comes to. Raises UpstreamError."""
        wish = dumps({"ttl": ttl_ms})
        created = await self._session.call(
            names.TOOLS_CALL, params, self._call, want_progress=self._call.want_progress, task=wish
        )
        task_id = self._created(created)
        return created if task_id is None else await self.outcome_of(task_id)

    async def outcome_after(self, answer: Outcome) -> Outcome:
        """What becomes of a call that an earlier process has sent, and of which it did not know any more
        whether it was to be a task."""
        if not isinstance(answer, Result) or _is_tool_result(answer.raw):
            return answer
        task_id = self._created(answer)
        return answer if task_id is None else await self.outcome_of(task_id)

    def _created(self, outcome: Outcome) -> str | None:
        """The id of the task that was made; None where the answer is that of an ordinary call."""
        if not isinstance(outcome, Result):
            return None
        try:
            task = RawObject.parse(outcome.raw).object("task")
        except (JsonError, DuplicateMember):
            return None
        task_id = task.text("taskId") if task is not None else None
        if task is not None and task_id is not None:
            self._note(task)
            log.info("upstream_task_created", task=task_hash(task_id), tool=self._call.name)
        return task_id

    async def outcome_of(self, task_id: str) -> Outcome:
        """Hold `tasks/result` and poll, until the task has ended. If that is cancelled, so is the task."""
        self._call.is_upstream_task(task_id)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._poll, task_id)
                outcome = await self._result(task_id)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_fault(group) from None
        except anyio.get_cancelled_exc_class():
            self._session.cancel_task(task_id)
            raise
        log.info("upstream_task_ended", task=task_hash(task_id), tool=self._call.name)
        return outcome

    async def _result(self, task_id: str) -> Outcome:
        """What the call would have returned. A wait that is refused before the end is begun again later."""
        params = dumps({"taskId": task_id})
        while True:
            outcome = await self._session.call(
                names.TASKS_RESULT,
                params,
                self._call,
                want_progress=False,
                upstream_task=task_id,
                on_sent=self._attach,
            )
            if isinstance(outcome, Result):
                return Result(without_related_task(outcome.raw))
            if self._shown in _TERMINAL or await self._status(task_id) in _TERMINAL:
                return outcome
            await self._clock.wait(self._ended, self._poll_s)

    def _attach(self, call_id: int) -> None:
        """Questions that an earlier process was asked are answered through this wait."""
        self._call.attach(self._session, call_id)

    # -- its status -----------------------------------------------------------------------------------

    async def _poll(self, task_id: str) -> None:
        """No faster than the upstream wants, from the first poll on (T25-GET-008, T25-GET-009)."""
        failures = 0
        while self._shown not in _TERMINAL:
            await self._clock.sleep(self._poll_s)
            try:
                await self._status(task_id)
                failures = 0
            except UpstreamProtocolError:
                raise
            except UpstreamError:
                failures += 1
                if failures >= FAILED_POLLS or self._session.loss is not None:
                    raise
        self._ended.set()

    async def _status(self, task_id: str) -> str | None:
        """As the upstream says it now. Raises UpstreamError if it does not know the task any more."""
        match await self._session.ask(names.TASKS_GET, dumps({"taskId": task_id})):
            case Failure(error):
                said = error_message(error) or "no reason given"
                raise UpstreamClosed(f"the upstream no longer knows its task ({said}); outcome unknown")
            case Result(raw):
                try:
                    self._note(RawObject.parse(raw))
                except (JsonError, DuplicateMember) as exc:
                    raise UpstreamProtocolError("the upstream's answer to tasks/get cannot be used") from exc
        return self._shown

    def _note(self, task: RawObject) -> None:
        self._shown = task.text("status")
        interval = task.get("pollInterval")
        if interval is not None:
            self._poll_s = poll_s(interval)
        message = task.text("statusMessage")
        if message and self._shown not in _TERMINAL:
            self._call.says(message)


def _is_tool_result(raw: bytes) -> bool:
    try:
        return "content" in RawObject.parse(raw)
    except JsonError:
        return True
