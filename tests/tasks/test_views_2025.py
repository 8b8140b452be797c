"""The same record in the dialect of 2025-11-25. MCP 2025-11-25, "Tasks"; contract section 5."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from proxy.tasks import lifecycle
from proxy.tasks.task import Task, TaskStatus
from proxy.tasks.views_2025 import create_task_result, list_result, status_of, task_object
from tests.tasks.examples import (
    CREATED_MS,
    LATER_MS,
    POLLING,
    RESULT,
    RETENTION_MS,
    TASK_ID,
    in_status,
    waiting,
    working,
)

MEMBERS: Final = {
    "taskId",
    "status",
    "statusMessage",
    "createdAt",
    "lastUpdatedAt",
    "ttl",
    "pollInterval",
}

every_status = pytest.mark.parametrize("status", TaskStatus)


def shown(task: Task, now_ms: int = LATER_MS) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(task_object(task, POLLING, now_ms))
    return found


def with_tool_error() -> Task:
    return lifecycle.completed(working(), RESULT, None, POLLING, LATER_MS, tool_error="no such file")


@every_status
def test_the_task_is_flat_and_holds_no_result_error_or_question(status: TaskStatus) -> None:
    """T25-GET-001, T25-GET-002, T25-GET-003, T25-GET-005, T25-GET-006, T25-REL-003."""
    task = shown(in_status(status))
    assert task.keys() == MEMBERS
    assert (task["taskId"], task["status"]) == (TASK_ID, status)
    assert task["createdAt"] == "2027-01-15T08:00:00.000Z"
    assert task["lastUpdatedAt"] >= task["createdAt"]
    assert type(task["ttl"]) is type(task["pollInterval"]) is int


def test_the_ttl_is_the_time_elapsed_plus_the_retention_and_stands_from_the_end_on() -> None:
    """T25-NEW-006, T25-SEC-006, F11."""
    assert shown(working(), CREATED_MS)["ttl"] == RETENTION_MS
    assert shown(working(), CREATED_MS + RETENTION_MS // 2)["ttl"] == RETENTION_MS + RETENTION_MS // 2
    ended = in_status(TaskStatus.COMPLETED)
    assert shown(ended)["ttl"] == LATER_MS - CREATED_MS + RETENTION_MS
    assert shown(ended, LATER_MS + RETENTION_MS) == shown(ended)


def test_what_moves_the_update_time_is_the_state_and_not_the_age() -> None:
    """T25-GET-002."""
    assert shown(working(), LATER_MS)["lastUpdatedAt"] == shown(working(), CREATED_MS)["lastUpdatedAt"]
    assert shown(waiting())["lastUpdatedAt"] > shown(working())["lastUpdatedAt"]


def test_a_tool_error_is_a_failure_in_this_dialect_alone() -> None:
    """T25-STA-003, T25-STA-005."""
    task = with_tool_error()
    assert (task.status, status_of(task)) == (TaskStatus.COMPLETED, TaskStatus.FAILED)
    assert (shown(task)["status"], shown(task)["statusMessage"]) == ("failed", "no such file")


def test_a_failed_task_says_why() -> None:
    """T25-STA-005."""
    assert shown(in_status(TaskStatus.FAILED))["statusMessage"] == "disk on fire"


def test_the_creation_is_told_by_a_nested_task_and_a_word_for_the_model() -> None:
    """T25-NEW-001, T25-NEW-003, T25-NEW-007."""
    told = json.loads(create_task_result(working(), POLLING, CREATED_MS))
    assert told.keys() == {"task", "_meta"}
    assert told["task"] == shown(working(), CREATED_MS)
    assert told["task"]["status"] == "working"
    [(key, words)] = told["_meta"].items()
    assert key == "io.modelcontextprotocol/model-immediate-response"
    assert isinstance(words, str)


@pytest.mark.parametrize("cursor", [None, "next"])
def test_a_list_holds_tasks_as_they_are(cursor: str | None) -> None:
    """T25-LST-002: `nextCursor` only where more follows."""
    more = {} if cursor is None else {"nextCursor": cursor}
    raw = list_result([task_object(working(), POLLING, LATER_MS), b'{"theirs": 1.0}'], cursor)
    assert json.loads(raw) == {"tasks": [shown(working()), {"theirs": 1.0}], **more}
    assert b'{"theirs": 1.0}' in raw


def test_an_empty_list_is_a_list() -> None:
    assert list_result([], None) == b'{"tasks":[]}'
