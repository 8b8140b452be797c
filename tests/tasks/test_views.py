"""A task as modern clients see it: members exactly, and the upstream's own text inside."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from proxy.protocol.envelope import loads
from proxy.protocol.outline import Pieces, whole
from proxy.tasks import lifecycle
from proxy.tasks.lifecycle import TaskEvent
from proxy.tasks.task import InputRequest, Task, TaskStatus
from proxy.tasks.views import create_task_result, detailed_task, get_task_result, input_requests, timestamp
from tests.tasks.examples import (
    CREATED_MS,
    ERROR,
    LATER_MS,
    POLLING,
    RESULT,
    TASK_ID,
    completed,
    failed,
    in_status,
    question,
    waiting,
    working,
)

BASE: Final = {
    "taskId",
    "status",
    "statusMessage",
    "createdAt",
    "lastUpdatedAt",
    "ttlMs",
    "pollIntervalMs",
}
BESIDE: Final = {
    TaskStatus.WORKING: set[str](),
    TaskStatus.INPUT_REQUIRED: {"inputRequests"},
    TaskStatus.COMPLETED: {"result"},
    TaskStatus.FAILED: {"error"},
    TaskStatus.CANCELLED: set[str](),
}

every_status = pytest.mark.parametrize("status", TaskStatus)


def as_it_is(raw: bytes) -> bytes:
    return raw


def in_one_piece(raw: bytes) -> Pieces:
    return (raw,)


def read(task: Task, now_ms: int = LATER_MS) -> bytes:
    return whole(get_task_result(task, POLLING, now_ms, lift_result=in_one_piece, lift_error=as_it_is))


@every_status
def test_tasks_get_has_the_members_of_the_status_and_no_others(status: TaskStatus) -> None:
    """TX-GET-001, TX-GET-002, TX-GET-004, TX-GET-005, TX-GET-006, TX-GET-013, TX-RES-003: flat, no nested
    task, no `ttl` or `pollInterval` of 2025, `resultType` complete in every status.
    """
    body = loads(read(in_status(status)))
    assert body.keys() == {"resultType", *BASE, *BESIDE[status]}
    assert body["resultType"] == "complete"
    assert body["status"] == status.value
    assert body["taskId"] == TASK_ID


@every_status
def test_a_notification_is_the_task_without_a_result_type(status: TaskStatus) -> None:
    """TX-NOT-004, TX-RES-002: otherwise what tasks/get says at that moment."""
    task = in_status(status)
    told = loads(detailed_task(task, POLLING, LATER_MS, lift_result=in_one_piece, lift_error=as_it_is))
    assert {"resultType": "complete", **told} == loads(read(task))


@pytest.mark.parametrize("task", [working(), waiting(2)])
def test_a_handle_is_flat_and_shows_neither_result_nor_questions(task: Task) -> None:
    """TX-NEW-003, TX-NEW-004, TX-RES-001, TX-NEW-010: also one that is created waiting for input."""
    body = loads(create_task_result(task, POLLING, CREATED_MS))
    assert body.keys() == {"resultType", *BASE}
    assert body["resultType"] == "task"
    assert body["status"] == task.status.value


@every_status
@pytest.mark.parametrize("age_ms", [-10_000, 0, 1, 86_400_000, 10**11])
def test_the_two_numbers_are_integers_that_are_not_negative(status: TaskStatus, age_ms: int) -> None:
    """TX-NEW-006, TX-NEW-007: strict clients refuse a fraction."""
    raw = read(in_status(status), CREATED_MS + age_ms)
    for member in (b"ttlMs", b"pollIntervalMs"):
        found = re.search(rb'"' + member + rb'":([^,}]*)', raw)
        assert found is not None
        assert re.fullmatch(rb"0|[1-9][0-9]*", found.group(1))


def test_a_running_task_announces_a_ttl_and_an_interval_of_its_age() -> None:
    """TX-NEW-006, TX-NEW-007."""
    young, old = loads(read(working(), CREATED_MS)), loads(read(working(), CREATED_MS + 7_200_000))
    assert (young["ttlMs"], young["pollIntervalMs"]) == (3_600_000, 300)
    assert (old["ttlMs"], old["pollIntervalMs"]) == (10_800_000, 5_000)


@pytest.mark.parametrize("status", [s for s in TaskStatus if s.is_terminal])
def test_every_read_after_the_end_is_the_same(status: TaskStatus) -> None:
    """TX-STA-002, TX-GET-009: the numbers included."""
    task = in_status(status)
    assert read(task, LATER_MS) == read(task, LATER_MS + 3_000_000)


@pytest.mark.parametrize("status", [TaskStatus.WORKING, TaskStatus.INPUT_REQUIRED])
def test_reading_a_running_task_moves_nothing_but_the_numbers(status: TaskStatus) -> None:
    """TX-GET-009, TX-GET-003: the same open questions at each poll."""
    task = in_status(status)
    first, second = loads(read(task, LATER_MS)), loads(read(task, LATER_MS + 10_000_000))
    for body in (first, second):
        del body["ttlMs"], body["pollIntervalMs"]
    assert first == second


def test_a_result_is_the_upstreams_own_text() -> None:
    """TX-GET-004: spacing, number spelling and escapes untouched."""
    assert b'"result":' + RESULT in read(completed())


def test_an_error_is_the_upstreams_own_text() -> None:
    """TX-GET-006."""
    assert b'"error":' + ERROR in read(failed())


def test_result_and_error_are_made_fit_for_the_client_by_whoever_asks() -> None:
    lifted = get_task_result(
        completed(), POLLING, LATER_MS, lift_result=lambda raw: (b'{"lifted"', b":1}"), lift_error=as_it_is
    )
    assert loads(whole(lifted))["result"] == {"lifted": 1}
    lifted = get_task_result(
        failed(), POLLING, LATER_MS, lift_result=in_one_piece, lift_error=lambda raw: b'{"lifted":2}'
    )
    assert loads(whole(lifted))["error"] == {"lifted": 2}


def test_questions_are_method_and_params_as_the_upstream_gave_them() -> None:
    """TX-GET-002, TX-SEC-003, ELIC-002: missing params stay missing, null stays null."""
    params = b'{"message" :"\\ud83d", "requestedSchema":{"n":1.0}}'
    requests = (
        question(1),
        InputRequest("input-2", "elicitation/create", params, b"2"),
        InputRequest("input-3", "roots/list", None, b"3"),
        InputRequest("input-4", "roots/list", b"null", b"4"),
    )
    raw = input_requests(requests)
    assert b'"params":' + params in raw
    body: dict[str, Any] = loads(raw)
    assert body.keys() == {"input-1", "input-2", "input-3", "input-4"}
    assert body["input-3"] == {"method": "roots/list"}
    assert body["input-4"] == {"method": "roots/list", "params": None}


def test_an_answered_question_is_not_shown_again() -> None:
    """TX-UPD-005: a client that sees it once more asks its user once more."""
    from_two = waiting(2)
    task = lifecycle.withdrawn(from_two, ["input-1"], LATER_MS)
    assert loads(read(task))["inputRequests"].keys() == {"input-2"}


@pytest.mark.parametrize(
    "ms, text",
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (CREATED_MS, "2027-01-15T08:00:00.000Z"),
        (CREATED_MS + 7, "2027-01-15T08:00:00.007Z"),
        (CREATED_MS + 59_999, "2027-01-15T08:00:59.999Z"),
        (1_709_164_799_999, "2024-02-28T23:59:59.999Z"),
    ],
)
def test_times_are_rfc_3339_in_utc_with_milliseconds(ms: int, text: str) -> None:
    """TX-NEW-005."""
    assert timestamp(ms) == text


def test_created_and_updated_are_told_apart() -> None:
    """TX-NEW-005: createdAt never changes."""
    body = loads(read(lifecycle.noted(working(), "3/10", CREATED_MS + 2_500)))
    assert body["createdAt"] == "2027-01-15T08:00:00.000Z"
    assert body["lastUpdatedAt"] == "2027-01-15T08:00:02.500Z"
    assert body["statusMessage"] == "3/10"


def test_a_message_with_characters_that_cannot_be_utf_8_is_still_json() -> None:
    """TX-NEW-008: JavaScript servers cut emoji in two; our own output is ASCII."""
    task = lifecycle.failed(working(), TaskEvent.ERROR, ERROR, "cut \ud83d here", POLLING, LATER_MS)
    raw = read(task)
    assert raw.isascii()
    assert loads(raw)["statusMessage"] == "cut \ud83d here"
