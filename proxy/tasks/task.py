"""The record of a task: one shape, whatever dialect created it or reads it.

Above: `lifecycle` makes the next record from the last one, `views` renders it, `stores` keep it. The
record holds what must survive `kill -9`; everything else about a running call lives in its runner.
Tasks extension, "Tasks".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from proxy.protocol.outline import Outline
from proxy.tasks.lost_call import CallTrace, Repeat, RoundTrace

ID_PREFIX: Final = "tpx-"
ID_RANDOM_BYTES: Final = 24  # 192 bits; the specification asks for enough that nobody guesses one
_ID: Final = re.compile(re.escape(ID_PREFIX) + r"[A-Za-z0-9_-]{32}\Z")


class TaskStatus(StrEnum):
    """The five statuses of the extension; the wire's own words."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL: Final = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class InputRequest:
    """An open question of the upstream.

    `key` is ours and never used twice in a task's life; `method` and `params` (raw JSON, None if
    absent) are what the client is asked; `question_id` is the raw id of upstream's request. `as_asked`
    are the params in upstream's own words, for the 2025 dialect, where they differ from `params`.
    """

    key: str
    method: str
    params: bytes | None
    question_id: bytes
    as_asked: bytes | None = None


@dataclass(frozen=True, slots=True)
class InputAnswer:
    """An answer that was accepted and may still have to reach the upstream."""

    key: str
    question_id: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Task:
    """One state of one task. Times are wall-clock milliseconds since the epoch.

    `revision` counts the states that were stored; a store's compare-and-set goes by it. `ttl_ms` and
    `poll_interval_ms` are None while the task runs, since they then follow its age
    (`policy.running_ttl_ms`, `policy.Polling`), and fixed at its end. `result` and `error`
    are raw JSON; exactly one is set in `completed` and `failed`, none otherwise. `server_info` is the raw
    `serverInfo` of the server that answered. `tool_error` says in a few words what a tool result with
    `isError: true` reports: `completed` here and in the modern dialect, failed in that of 2025 (T25-STA-003).
    `sent` is False while the call waits for a process and nothing of it has gone upstream; `trace`, `repeat`
    and `round` are for a later process, and go at the end.
    A store may hand out records without the result where it says so. `result_outline` stays: by it a result
    is spliced without being read through; records of earlier versions have none.
    """

    id: str
    owner: str
    method: str
    name: str
    created_at_ms: int
    updated_at_ms: int
    retention_ms: int
    status: TaskStatus = TaskStatus.WORKING
    status_message: str | None = None
    inputs: tuple[InputRequest, ...] = ()
    answers: tuple[InputAnswer, ...] = ()
    next_key: int = 1
    ttl_ms: int | None = None
    poll_interval_ms: int | None = None
    result: bytes | None = None
    error: bytes | None = None
    server_info: bytes | None = None
    tool_error: str | None = None
    result_outline: Outline | None = None
    sent: bool = True
    trace: CallTrace | None = None
    repeat: Repeat | None = None
    round: RoundTrace | None = None
    revision: int = 0

    def __post_init__(self) -> None:
        if self.updated_at_ms < self.created_at_ms:
            raise ValueError(f"task {self.id}: updated before it was created")
        if (self.status is TaskStatus.INPUT_REQUIRED) != bool(self.inputs):
            raise ValueError(f"task {self.id}: {self.status} with {len(self.inputs)} open questions")
        if self.status.is_terminal and (self.ttl_ms is None or self.poll_interval_ms is None):
            raise ValueError(f"task {self.id}: {self.status} without its final ttl and poll interval")
        if self.result is not None and self.status is not TaskStatus.COMPLETED:
            raise ValueError(f"task {self.id}: {self.status} with a result")
        of_a_result = self.tool_error is not None or self.result_outline is not None
        if of_a_result and self.status is not TaskStatus.COMPLETED:
            raise ValueError(f"task {self.id}: {self.status} with what is known of a result")
        if (self.error is not None) != (self.status is TaskStatus.FAILED):
            raise ValueError(f"task {self.id}: {self.status} and its error do not fit")

    def __repr__(self) -> str:
        return f"<Task {self.name!r} {self.status} r{self.revision}, {len(self.inputs)} open>"


def is_task_id(text: str) -> bool:
    """Whether `text` has the form of an id that this proxy gives out."""
    return _ID.match(text) is not None


def result_size(task: Task) -> int:
    """About how many bytes its result has, be it at hand or not."""
    return task.result_outline.end if task.result_outline is not None else 0
