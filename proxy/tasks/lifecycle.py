"""How a task moves: the table of states, and every next record made from the last one.

Above: the runner and the task methods, which store what comes out by compare-and-set. Nothing else
makes a `Task` from a `Task`. Tasks extension, "Task Status"; contract section 4.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from proxy.errors import IllegalTransition
from proxy.protocol.outline import Outline
from proxy.tasks.lost_call import CallTrace, Repeat, RoundTrace
from proxy.tasks.policy import Polling
from proxy.tasks.task import InputAnswer, InputRequest, Task, TaskStatus


class TaskEvent(StrEnum):
    """What can happen to a task."""

    INPUT_ASKED = "input_asked"
    INPUT_SETTLED = "input_settled"
    RESULT = "result"
    ERROR = "error"
    CALL_LOST = "call_lost"
    LIMIT_PASSED = "limit_passed"
    CANCEL = "cancel"


_ENDINGS: Final[Mapping[TaskEvent, TaskStatus]] = {
    TaskEvent.RESULT: TaskStatus.COMPLETED,
    TaskEvent.ERROR: TaskStatus.FAILED,
    TaskEvent.CALL_LOST: TaskStatus.FAILED,
    TaskEvent.LIMIT_PASSED: TaskStatus.FAILED,
    TaskEvent.CANCEL: TaskStatus.CANCELLED,
}

TRANSITIONS: Final[Mapping[TaskStatus, Mapping[TaskEvent, TaskStatus]]] = {
    TaskStatus.WORKING: {TaskEvent.INPUT_ASKED: TaskStatus.INPUT_REQUIRED, **_ENDINGS},
    TaskStatus.INPUT_REQUIRED: {
        TaskEvent.INPUT_ASKED: TaskStatus.INPUT_REQUIRED,
        TaskEvent.INPUT_SETTLED: TaskStatus.WORKING,
        **_ENDINGS,
    },
    TaskStatus.COMPLETED: {},
    TaskStatus.FAILED: {},
    TaskStatus.CANCELLED: {},
}

NAME_MAX_CHARS: Final = 1_000  # of the tool: a call is kept in memory also where no server knows such a tool
WORKING_MESSAGE: Final = "The call is running."
WAITING_MESSAGE: Final = "Waiting for input."
COMPLETED_MESSAGE: Final = "The call has finished."
CANCELLED_MESSAGE: Final = "The task was cancelled."


def next_status(status: TaskStatus, event: TaskEvent) -> TaskStatus:
    """The status after `event`. Raises IllegalTransition, naming both, where the table has none."""
    try:
        return TRANSITIONS[status][event]
    except KeyError:
        raise IllegalTransition(f"a task that is {status} cannot take {event}") from None


def created(
    *,
    id: str,
    owner: str,
    method: str,
    name: str,
    now_ms: int,
    retention_ms: int,
    next_key: int = 1,
    repeat: Repeat | None = None,
) -> Task:
    """A new task, working. `retention_ms` is how long it is kept after its end; `repeat` is for tools whose
    call may be sent again after a restart."""
    return Task(
        id=id,
        owner=owner,
        method=method,
        name=name[:NAME_MAX_CHARS],
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        retention_ms=retention_ms,
        status_message=WORKING_MESSAGE,
        next_key=next_key,
        repeat=repeat,
    )


def asked(task: Task, requests: Sequence[InputRequest], next_key: int, now_ms: int) -> Task:
    """The upstream asks; `requests` carry keys never used before in this task's life.

    Those that are in the record already are left out, so that a change of which nobody knows whether it
    was stored may be tried again. One that was answered and delivered would be opened again; but the call no
    longer has it then, and offers only what it has.
    """
    known = {r.key for r in task.inputs} | {a.key for a in task.answers}
    requests = [r for r in requests if r.key not in known]
    if not requests:
        return task
    status = next_status(task.status, TaskEvent.INPUT_ASKED)
    return _moved(
        task,
        now_ms,
        status=status,
        status_message=WAITING_MESSAGE,
        inputs=(*task.inputs, *requests),
        next_key=max(next_key, task.next_key),
    )


def answered(task: Task, answers: Sequence[InputAnswer], now_ms: int) -> Task:
    """Some open questions are answered; the answers are kept until `delivered`.

    Answers to keys that are not open are the caller's to leave out.
    """
    closed = _closed(task, {a.key for a in answers}, now_ms)
    if closed is task:
        return task
    return replace(closed, answers=(*task.answers, *answers))


def withdrawn(task: Task, keys: Collection[str], now_ms: int) -> Task:
    """The upstream no longer wants these answers."""
    return _closed(task, keys, now_ms)


def _closed(task: Task, keys: Collection[str], now_ms: int) -> Task:
    left = tuple(r for r in task.inputs if r.key not in keys)
    if len(left) == len(task.inputs):
        return task
    if left:
        return _moved(task, now_ms, inputs=left)
    status = next_status(task.status, TaskEvent.INPUT_SETTLED)
    return _moved(task, now_ms, status=status, status_message=WORKING_MESSAGE, inputs=())


def delivered(task: Task, keys: Collection[str]) -> Task:
    """These answers have reached the upstream and need not be kept. Shows nothing to anybody."""
    left = tuple(a for a in task.answers if a.key not in keys)
    return replace(task, answers=left, revision=task.revision + 1)


def noted(task: Task, message: str, now_ms: int) -> Task:
    """Progress while the task works. Returns the same record where nothing changes."""
    if task.status is not TaskStatus.WORKING or message == task.status_message:
        return task
    return _moved(task, now_ms, status_message=message)


def taken_up(task: Task, now_ms: int) -> Task:
    """A later process goes on with the task. Its last notes may be lost, so it may say again what it said
    earlier; but not with an earlier time."""
    return _moved(task, now_ms) if task.status is TaskStatus.WORKING else task


def kept(
    old: Task,
    new: Task,
    *,
    trace: CallTrace | None,
    sent: bool,
    server_info: bytes | None = None,
    round: RoundTrace | None = None,
) -> Task:
    """`new`, which is `old` or what comes after it, with what a later process needs of the call. Shows
    nothing to anybody. Returns the same record where nothing changes."""
    server_info = server_info if server_info is not None else new.server_info
    if (new.trace, new.sent, new.server_info, new.round) == (trace, sent, server_info, round):
        return new
    return replace(
        new, trace=trace, sent=sent, server_info=server_info, round=round, revision=old.revision + 1
    )


def started(task: Task) -> Task:
    """The call is about to be sent. A new state in any case, so that nothing older is stored after it."""
    return replace(task, sent=True, revision=task.revision + 1)


def completed(
    task: Task,
    result: bytes,
    server_info: bytes | None,
    polling: Polling,
    now_ms: int,
    *,
    tool_error: str | None,
    outline: Outline | None = None,
) -> Task:
    """The upstream answered with a result; `result` is its raw JSON, `outline` where its members stand.

    `tool_error` is what people read of a result with `isError: true`, None for any other.
    """
    ended = _ended(task, TaskEvent.RESULT, COMPLETED_MESSAGE, polling, now_ms, result=result)
    return replace(ended, server_info=server_info, tool_error=tool_error, result_outline=outline)


def failed(task: Task, event: TaskEvent, error: bytes, message: str, polling: Polling, now_ms: int) -> Task:
    """The upstream answered with an error, or the call was lost, or a limit passed.

    `error` is the raw JSON-RPC error object, `message` what people read.
    """
    return _ended(task, event, message, polling, now_ms, error=error)


def cancelled(task: Task, polling: Polling, now_ms: int) -> Task:
    return _ended(task, TaskEvent.CANCEL, CANCELLED_MESSAGE, polling, now_ms)


def _ended(
    task: Task,
    event: TaskEvent,
    message: str,
    polling: Polling,
    now_ms: int,
    *,
    result: bytes | None = None,
    error: bytes | None = None,
) -> Task:
    """From here on every read is the same, so ttl and poll interval are fixed now."""
    age_ms = max(0, now_ms - task.created_at_ms)
    return _moved(
        task,
        now_ms,
        status=next_status(task.status, event),
        status_message=message,
        inputs=(),
        answers=(),
        trace=None,
        repeat=None,
        round=None,
        ttl_ms=age_ms + task.retention_ms,
        poll_interval_ms=polling.interval_ms(age_ms),
        result=result,
        error=error,
    )


def _moved(task: Task, now_ms: int, **changes: object) -> Task:
    """`lastUpdatedAt` never moves backwards, whatever the wall clock does."""
    return replace(
        task,
        updated_at_ms=max(now_ms, task.updated_at_ms),
        revision=task.revision + 1,
        **changes,  # type: ignore[arg-type]
    )
