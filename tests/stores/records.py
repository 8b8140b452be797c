"""Tasks for the store tests: short to make, and to move on."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, Final

from proxy.clock import Clock
from proxy.tasks.task import InputAnswer, InputRequest, Task, TaskStatus

TTL_MS: Final = 60_000
RESULT: Final = b'{"content": [{"type":"text","text":"4.20"}], "resultType":"complete"}'
_numbers: Final = count(1)


def a_task(clock: Clock, *, owner: str = "alice", **fields: Any) -> Task:
    """A task that was just created, with an id of its own."""
    now = clock.wall_ms()
    task = Task(
        id=f"tpx-{next(_numbers):032d}",
        owner=owner,
        method="tools/call",
        name="train_model",
        created_at_ms=now,
        updated_at_ms=now,
        retention_ms=TTL_MS,
    )
    return replace(task, **fields)


def moved(task: Task, clock: Clock, **fields: Any) -> Task:
    """The next state of `task`."""
    return replace(task, updated_at_ms=clock.wall_ms(), revision=task.revision + 1, **fields)


def progressed(task: Task, clock: Clock, message: str) -> Task:
    return moved(task, clock, status_message=message)


def asked(task: Task, clock: Clock) -> Task:
    """`task` with an open question and an answer that is under way to another."""
    return moved(
        task,
        clock,
        status=TaskStatus.INPUT_REQUIRED,
        inputs=(InputRequest("input-2", "elicitation/create", b'{"message": "Sure?"}', b'"q-2"'),),
        answers=(InputAnswer("input-1", b"1", b'{"action": "accept"}'),),
        next_key=3,
    )


def completed(task: Task, clock: Clock, result: bytes = RESULT) -> Task:
    return _ended(task, clock, TaskStatus.COMPLETED, result=result)


def failed(task: Task, clock: Clock) -> Task:
    return _ended(task, clock, TaskStatus.FAILED, error=b'{"code": -32603, "message": "lost"}')


def cancelled(task: Task, clock: Clock) -> Task:
    return _ended(task, clock, TaskStatus.CANCELLED)


def _ended(task: Task, clock: Clock, status: TaskStatus, **fields: Any) -> Task:
    ttl_ms = clock.wall_ms() - task.created_at_ms + TTL_MS
    return moved(task, clock, status=status, ttl_ms=ttl_ms, poll_interval_ms=5_000, inputs=(), **fields)
