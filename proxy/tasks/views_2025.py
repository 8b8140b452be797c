"""A task as clients of 2025-11-25 see it: the same record in their dialect.

Above: `routing.tasks_2025`. Beside: `views`, the modern dialect. What differs: the names of two fields, a
nested task in the creation answer, no result or question inlined, and a tool's `isError` makes the task
`failed`. MCP 2025-11-25, "Tasks"; contract section 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from proxy.protocol import names
from proxy.protocol.envelope import dumps
from proxy.tasks.policy import Polling
from proxy.tasks.task import Task, TaskStatus
from proxy.tasks.views import timestamp, ttl_and_interval_ms

IMMEDIATE_RESPONSE: Final = "The tool is running as a task; its result comes later."
"""What a client may give to its model meanwhile."""


def status_of(task: Task) -> TaskStatus:
    """The status in this dialect (T25-STA-003)."""
    return TaskStatus.FAILED if task.tool_error is not None else task.status


def task_object(task: Task, polling: Polling, now_ms: int) -> bytes:
    """The flat Task: of `tasks/get`, `tasks/cancel`, lists, and status notifications."""
    ttl_ms, interval_ms = ttl_and_interval_ms(task, polling, now_ms)
    body: dict[str, object] = {"taskId": task.id, "status": status_of(task)}
    message = task.tool_error if task.tool_error is not None else task.status_message
    if message is not None:
        body["statusMessage"] = message
    return dumps(
        body
        | {
            "createdAt": timestamp(task.created_at_ms),
            "lastUpdatedAt": timestamp(task.updated_at_ms),
            "ttl": ttl_ms,
            "pollInterval": interval_ms,
        }
    )


def create_task_result(task: Task, polling: Polling, now_ms: int) -> bytes:
    """CreateTaskResult: the nested task, and no result (T25-NEW-001, T25-NEW-007)."""
    meta = dumps({names.META_IMMEDIATE_RESPONSE: IMMEDIATE_RESPONSE})
    return b'{"task":' + task_object(task, polling, now_ms) + b',"_meta":' + meta + b"}"


def list_result(tasks: Iterable[bytes], next_cursor: str | None) -> bytes:
    """ListTasksResult of raw Task objects."""
    tail = b"" if next_cursor is None else b',"nextCursor":' + dumps(next_cursor)
    return b'{"tasks":[' + b",".join(tasks) + b"]" + tail + b"}"
