"""A task as clients see it. One record, rendered; here the modern dialect.

Everything is built as raw JSON, since results and questions are the upstream's own text. Tasks
extension, "Tasks", "Task Creation", "Task Polling", "Task Status Notifications".
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from proxy.protocol import names
from proxy.protocol.envelope import dumps
from proxy.protocol.outline import Pieces, whole
from proxy.tasks.policy import Polling, running_ttl_ms
from proxy.tasks.task import InputRequest, Task

Lift = Callable[[bytes], bytes]
"""Makes a stored upstream error fit for a modern client."""

LiftResult = Callable[[bytes], Pieces]
"""The same for a stored result, which may be large."""


def create_task_result(task: Task, polling: Polling, now_ms: int) -> bytes:
    """CreateTaskResult: flat, and without result, error or questions."""
    return _object([(b'"resultType"', dumps(names.TASK)), *_fields(task, polling, now_ms)])


def detailed_task(
    task: Task, polling: Polling, now_ms: int, *, lift_result: LiftResult, lift_error: Lift
) -> bytes:
    """DetailedTask: the params of `notifications/tasks`."""
    return whole(_detailed(task, _fields(task, polling, now_ms), lift_result, lift_error))


def get_task_result(
    task: Task, polling: Polling, now_ms: int, *, lift_result: LiftResult, lift_error: Lift
) -> Pieces:
    """GetTaskResult: the DetailedTask with `resultType: "complete"`."""
    fields = [(b'"resultType"', dumps(names.COMPLETE)), *_fields(task, polling, now_ms)]
    return _detailed(task, fields, lift_result, lift_error)


def input_requests(requests: tuple[InputRequest, ...]) -> bytes:
    """The map of open questions, as in `inputRequests`."""
    return _object([(dumps(r.key), _question(r)) for r in requests])


def _question(request: InputRequest) -> bytes:
    fields = [(b'"method"', dumps(request.method))]
    if request.params is not None:
        fields.append((b'"params"', request.params))
    return _object(fields)


def _detailed(
    task: Task, fields: list[tuple[bytes, bytes]], lift_result: LiftResult, lift_error: Lift
) -> Pieces:
    if task.inputs:
        fields.append((b'"inputRequests"', input_requests(task.inputs)))
    if task.error is not None:
        fields.append((b'"error"', lift_error(task.error)))
    if task.result is None:
        return (_object(fields),)
    return (_object(fields)[:-1] + b',"result":', *lift_result(task.result), b"}")


def ttl_and_interval_ms(task: Task, polling: Polling, now_ms: int) -> tuple[int, int]:
    """`ttlMs` and `pollIntervalMs`: following the age of a task that runs, fixed at its end."""
    age_ms = now_ms - task.created_at_ms
    ttl_ms = running_ttl_ms(age_ms, task.retention_ms) if task.ttl_ms is None else task.ttl_ms
    interval_ms = polling.interval_ms(age_ms) if task.poll_interval_ms is None else task.poll_interval_ms
    return ttl_ms, interval_ms


def _fields(task: Task, polling: Polling, now_ms: int) -> list[tuple[bytes, bytes]]:
    ttl_ms, interval_ms = ttl_and_interval_ms(task, polling, now_ms)
    fields = [
        (b'"taskId"', dumps(task.id)),
        (b'"status"', dumps(task.status.value)),
        (b'"createdAt"', dumps(timestamp(task.created_at_ms))),
        (b'"lastUpdatedAt"', dumps(timestamp(task.updated_at_ms))),
        (b'"ttlMs"', b"%d" % ttl_ms),
        (b'"pollIntervalMs"', b"%d" % interval_ms),
    ]
    if task.status_message is not None:
        fields.insert(2, (b'"statusMessage"', dumps(task.status_message)))
    return fields


def timestamp(ms: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    seconds, rest = divmod(ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"


def _object(fields: list[tuple[bytes, bytes]]) -> bytes:
    return b"{" + b",".join(key + b":" + value for key, value in fields) + b"}"
