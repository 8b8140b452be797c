"""Keeps the record of one task in step with its call, until both have ended.

Above: `runner`, which runs one follower for each task. Below: the call, which tells what the upstream says,
and the store. What is to be stored is decided from the record and the call alone, and anew after every
write; so a cancel or an update that was first, and a write of which nobody knows whether it was made, need
no care of their own. Contract sections 4 and 9; Tasks extension, "Task Status".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

import anyio

from proxy.clock import Clock, Pauses
from proxy.eras.to_modern import error_message
from proxy.errors import (
    ErrorCode,
    InternalError,
    ProxyError,
    StoreError,
    TaskConflict,
    TaskNotFound,
    UpstreamProtocolError,
)
from proxy.logs import get_logger, task_hash
from proxy.protocol.jsonrpc import error_object
from proxy.routing.live import LiveCall
from proxy.routing.outcomes import NO_MESSAGE, kept_error, legacy_server_info, read_result
from proxy.routing.progress import shortened
from proxy.stores.base import TaskStore
from proxy.tasks import lifecycle
from proxy.tasks.lifecycle import TaskEvent
from proxy.tasks.policy import Policy
from proxy.tasks.task import Task
from proxy.upstream.base import Failure, Result

STORE_RETRY_FIRST_S: Final = 0.2
STORE_RETRY_LAST_S: Final = 10.0
NOTE_GAP_S: Final = 0.1  # between two notes: no poll sees the difference, and a flood costs little (PROG-004)

log = get_logger()


class Follower:
    """Of the task of `call`. `task` is the newest state of its record that is known here."""

    def __init__(self, call: LiveCall, task: Task, store: TaskStore, policy: Policy, clock: Clock) -> None:
        self.call = call
        self._store = store
        self._policy = policy
        self._clock = clock
        self._shown: set[str] = set()
        self._fault: ProxyError | None = None
        self._pauses = _store_pauses()
        self._next_note = clock.monotonic() + NOTE_GAP_S
        self._frozen = False
        self._take_over(task)

    def freeze(self) -> None:
        """Leave the record as it is stored: the proxy stops, and the next start settles it."""
        self._frozen = True

    async def run(self) -> None:
        """Until the record is terminal. Stops the call if somebody else ended the task."""
        try:
            await self._follow()
        except TaskNotFound:
            log.error("task_vanished", task=task_hash(self.task.id))
        except Exception:
            self._fault = InternalError("the outcome of the call is unknown")
            await self._follow()
            raise
        finally:
            self.call.stop("the task has ended")

    async def _follow(self) -> None:
        while not self.task.status.is_terminal:
            if self._frozen:
                await anyio.sleep_forever()
            changed = self.call.changed.event
            now_ms = self._clock.wall_ms()
            if (new := self._next_state(now_ms)) is not self.task:
                await self._save(self._store.compare_and_set, self._kept(new))
            elif (new := self._kept(self._noted(now_ms))) is self.task:
                await changed.wait()
            elif _can_be_found(new) and not _can_be_found(self.task):
                await self._save(self._store.compare_and_set, new)  # from now on a crash does not lose it
            elif await self._may_note():
                await self._save(self._store.note, new)

    def _take_over(self, task: Task) -> None:
        self.task = task
        self._shown.update(r.key for r in task.inputs)

    # -- what is to be stored -----------------------------------------------------------------------

    def _next_state(self, now_ms: int) -> Task:
        """The record with what it lacks of what the call has come to; itself where it lacks nothing."""
        call, task = self.call, self.task
        if self._fault is not None:
            return self._failed(TaskEvent.CALL_LOST, self._fault, now_ms)
        if call.ended:
            return self._ended(now_ms)
        if fresh := [q.request for key, q in call.questions.items() if key not in self._shown]:
            return lifecycle.asked(task, fresh, call.next_key, now_ms)
        gone = {r.key for r in task.inputs} - call.questions.keys()
        return lifecycle.withdrawn(task, gone, now_ms)

    def _kept(self, new: Task) -> Task:
        """`new` with what a later process of ours will want to know of the call."""
        if new.status.is_terminal:
            return new
        call = self.call
        info = call.server_info if call.trace is not None else None
        return lifecycle.kept(
            self.task, new, trace=call.trace, sent=call.was_sent, server_info=info, round=call.round
        )

    def _noted(self, now_ms: int) -> Task:
        """The record with the news of its progress; itself where there are none."""
        call = self.call
        text = call.held_up or (call.waits_for if call.sent_at is None else call.progress_text())
        return lifecycle.noted(self.task, text or lifecycle.WORKING_MESSAGE, now_ms)

    def _ended(self, now_ms: int) -> Task:
        call, polling = self.call, self._policy.polling
        match call.outcome:
            case Result(raw):
                return self._completed(raw, now_ms)
            case Failure(error):
                message = shortened(error_message(error) or NO_MESSAGE)
                kept = kept_error(error, self._policy.max_result_bytes)
                return lifecycle.failed(self.task, TaskEvent.ERROR, kept, message, polling, now_ms)
            case None:
                pass
        if call.loss is None:
            return lifecycle.cancelled(self.task, polling, now_ms)
        event = TaskEvent.LIMIT_PASSED if call.limit_passed else TaskEvent.CALL_LOST
        return self._failed(event, call.loss, now_ms)

    def _completed(self, result: bytes, now_ms: int) -> Task:
        """`failed` where the result cannot be served, as the blocking answer would have been an error."""
        polling, limit = self._policy.polling, self._policy.max_result_bytes
        try:
            if len(result) > limit:
                raise UpstreamProtocolError(
                    f"the result has {len(result)} bytes, over the limit of {limit} (limits.result)"
                )
            read = read_result(self.task.method, result, self.call.info)
        except ProxyError as exc:
            return self._failed(TaskEvent.CALL_LOST, exc, now_ms)
        return lifecycle.completed(
            self.task,
            result,
            legacy_server_info(self.call.info),
            polling,
            now_ms,
            tool_error=read.tool_error,
            outline=read.outline,
        )

    def _failed(self, event: TaskEvent, loss: ProxyError, now_ms: int) -> Task:
        error, message = (
            kept_error(
                error_object(ErrorCode.INTERNAL_ERROR, loss.message, loss.data), self._policy.max_result_bytes
            ),
            shortened(loss.message),
        )
        return lifecycle.failed(self.task, event, error, message, self._policy.polling, now_ms)

    # -- storing it ---------------------------------------------------------------------------------

    async def _may_note(self) -> bool:
        """Whether no note was made just now; waits if one was, but not if something else is to be stored."""
        left_s = self._next_note - self._clock.monotonic()
        if left_s > 0:
            if not await self._clock.wait(self.call.turned.event, left_s):
                self._next_note = float("-inf")
            return False
        self._next_note = self._clock.monotonic() + NOTE_GAP_S
        return True

    async def _save(self, write: Callable[[Task, Task], Awaitable[None]], new: Task) -> None:
        """Offer one new state to the store; afterwards `task` is what is stored, as far as it can be known.

        While the store is broken the task keeps its last stored state (contract section 9). Raises
        TaskNotFound.
        """
        self.call.may_be_stored_unsent |= not new.sent
        try:
            await write(self.task, new)
            self._take_over(new)
            self._pauses.over()
            return
        except TaskConflict:
            pass  # a cancel or an update was first
        except StoreError as exc:
            log.error("task_not_stored", task=task_hash(self.task.id), reason=exc.message)
            await self._pauses.one(self._clock)
        await self._read_again()

    async def _read_again(self) -> None:
        try:
            self._take_over(await self._store.get(self.task.id, result=False))
        except StoreError as exc:
            log.error("task_not_read", task=task_hash(self.task.id), reason=exc.message)

    async def mark_started(self) -> None:
        """Store durably that the call is about to be sent, where a state may be stored, or on its way there,
        that says it never was. While the store is broken the call waits on. Raises TaskNotFound."""
        pauses = _store_pauses()
        while self.call.may_be_stored_unsent:
            try:
                task = await self._store.get(self.task.id, result=False)
                if not task.status.is_terminal:  # else it was cancelled this very moment
                    await self._store.compare_and_set(task, lifecycle.started(task))
                return
            except TaskConflict:
                continue
            except StoreError as exc:
                log.error("task_not_stored", task=task_hash(self.task.id), reason=exc.message)
                await pauses.one(self._clock)

    async def forget_answers(self, keys: Collection[str]) -> None:
        """These answers have reached the upstream and need not be kept; at the latest they go at the end."""
        pauses = _store_pauses()
        while not self._frozen:
            try:
                task = await self._store.get(self.task.id, result=False)
                if not task.status.is_terminal:
                    await self._store.note(task, lifecycle.delivered(task, keys))
                return
            except TaskConflict:
                continue
            except TaskNotFound:
                return
            except StoreError:
                await pauses.one(self._clock)


def _store_pauses() -> Pauses:
    """While the store is broken."""
    return Pauses(STORE_RETRY_FIRST_S, STORE_RETRY_LAST_S)


def _can_be_found(task: Task) -> bool:
    """Whether a later process can go on with the call."""
    return task.trace is not None and task.trace.can_be_found
