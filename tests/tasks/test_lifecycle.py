"""How a task moves: the whole table, every function on every status, and any order of events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import IllegalTransition
from proxy.protocol.outline import Outline
from proxy.tasks import lifecycle
from proxy.tasks.lifecycle import TRANSITIONS, TaskEvent, next_status
from proxy.tasks.task import Task, TaskStatus
from tests.tasks.examples import (
    CREATED_MS,
    ERROR,
    LATER_MS,
    POLLING,
    RESULT,
    RETENTION_MS,
    SERVER_INFO,
    answer,
    cancelled,
    completed,
    in_status,
    question,
    waiting,
    working,
)

ENDS: Final = {
    "result": "completed",
    "error": "failed",
    "call_lost": "failed",
    "limit_passed": "failed",
    "cancel": "cancelled",
}
LEGAL: Final = {
    "working": {"input_asked": "input_required", **ENDS},
    "input_required": {"input_asked": "input_required", "input_settled": "working", **ENDS},
}
"""The specification's diagram and the contract's table, written down a second time."""

every_status = pytest.mark.parametrize("status", TaskStatus)
every_event = pytest.mark.parametrize("event", TaskEvent)
a_terminal_status = pytest.mark.parametrize("status", [s for s in TaskStatus if s.is_terminal])
a_status_that_runs = pytest.mark.parametrize("status", [s for s in TaskStatus if not s.is_terminal])

Move = Callable[[Task], Task]


# The table.


@every_status
@every_event
def test_a_status_takes_the_events_of_the_diagram_and_refuses_all_others(
    status: TaskStatus, event: TaskEvent
) -> None:
    """TX-STA-001, TX-STA-002: 5 statuses by 7 events."""
    expected = LEGAL.get(status.value, {}).get(event.value)
    if expected is not None:
        assert next_status(status, event).value == expected
        return
    with pytest.raises(IllegalTransition) as raised:
        next_status(status, event)
    assert status.value in raised.value.message
    assert event.value in raised.value.message


def test_of_a_name_without_end_only_the_beginning_is_kept() -> None:
    """A client may call what no server knows, and its record is in memory until it expires."""
    made = lifecycle.created(
        id="tpx-1", owner="o", method="tools/call", name="x" * 10**6, now_ms=CREATED_MS, retention_ms=1
    )
    assert made.name == "x" * lifecycle.NAME_MAX_CHARS


def test_every_status_has_a_row_and_a_terminal_one_an_empty_row() -> None:
    """TX-STA-001: the five statuses of the extension, and no other."""
    assert {s.value for s in TRANSITIONS} == {
        "working",
        "input_required",
        "completed",
        "failed",
        "cancelled",
    }
    assert {s for s, row in TRANSITIONS.items() if not row} == {s for s in TaskStatus if s.is_terminal}


# Every function on every status.

ENDINGS: Final[dict[str, tuple[Move, TaskStatus]]] = {
    "completed": (
        lambda t: lifecycle.completed(t, RESULT, SERVER_INFO, POLLING, LATER_MS, tool_error=None),
        TaskStatus.COMPLETED,
    ),
    **{
        event.value: (
            lambda t, event=event: lifecycle.failed(  # type: ignore[misc]
                t, event, ERROR, "disk on fire", POLLING, LATER_MS
            ),
            TaskStatus.FAILED,
        )
        for event in (TaskEvent.ERROR, TaskEvent.CALL_LOST, TaskEvent.LIMIT_PASSED)
    },
    "cancelled": (lambda t: lifecycle.cancelled(t, POLLING, LATER_MS), TaskStatus.CANCELLED),
}
an_ending = pytest.mark.parametrize("end, ending", ENDINGS.values(), ids=ENDINGS)


@a_status_that_runs
@an_ending
def test_an_ending_fixes_what_every_later_read_shows(
    status: TaskStatus, end: Move, ending: TaskStatus
) -> None:
    """TX-STA-001, TX-NEW-006: open questions and what users entered go, ttl becomes the time elapsed plus the
    retention."""
    before = replace(in_status(status), answers=(answer(7),))
    after = end(before)
    assert after.status is ending
    assert after.inputs == ()
    assert after.answers == ()
    assert after.ttl_ms == LATER_MS - CREATED_MS + RETENTION_MS
    assert after.poll_interval_ms == POLLING.interval_ms(LATER_MS - CREATED_MS)
    assert after.updated_at_ms == LATER_MS
    assert after.created_at_ms == CREATED_MS
    assert after.revision == before.revision + 1


@a_terminal_status
@an_ending
def test_an_ending_after_the_end_raises_and_changes_nothing(
    status: TaskStatus, end: Move, ending: TaskStatus
) -> None:
    """TX-STA-002 (I4)."""
    task = in_status(status)
    with pytest.raises(IllegalTransition, match=status.value):
        end(task)
    assert task == in_status(status)


@a_terminal_status
def test_a_question_after_the_end_raises(status: TaskStatus) -> None:
    """TX-STA-002."""
    with pytest.raises(IllegalTransition):
        lifecycle.asked(in_status(status), [question(9)], 10, LATER_MS)


@a_terminal_status
@pytest.mark.parametrize(
    "late",
    [
        lambda t: lifecycle.noted(t, "9/10", LATER_MS + 5),
        lambda t: lifecycle.answered(t, [answer(1)], LATER_MS + 5),
        lambda t: lifecycle.withdrawn(t, ["input-1"], LATER_MS + 5),
    ],
    ids=["progress", "an answer", "a withdrawal"],
)
def test_what_comes_late_finds_the_very_same_record(status: TaskStatus, late: Move) -> None:
    """TX-STA-002: not even `lastUpdatedAt` moves."""
    task = in_status(status)
    assert late(task) is task


def test_a_result_is_kept_as_the_text_it_came_in() -> None:
    """Contract section 4: with or without isError."""
    for result in (RESULT, b'{"isError":true,"content":[]}'):
        task = lifecycle.completed(working(), result, SERVER_INFO, POLLING, LATER_MS, tool_error=None)
        assert task.result == result
        assert task.error is None
        assert task.server_info == SERVER_INFO
        assert task.status_message


def test_what_a_tool_reports_as_its_error_is_kept_beside_the_result() -> None:
    """TX-STA-004, T25-STA-003: completed is what the record says; the 2025 dialect reads the other field."""
    outline = Outline((), 1)
    task = lifecycle.completed(
        waiting(), RESULT, None, POLLING, LATER_MS, tool_error="no such table", outline=outline
    )
    assert (task.status, task.result, task.tool_error) == (TaskStatus.COMPLETED, RESULT, "no such table")
    assert task.result_outline == outline
    assert completed().tool_error is None


@pytest.mark.parametrize("event", [TaskEvent.ERROR, TaskEvent.CALL_LOST, TaskEvent.LIMIT_PASSED])
def test_a_failure_keeps_its_error_and_says_what_happened(event: TaskEvent) -> None:
    """TX-STA-003, TX-STA-006: failed always comes with a JSON-RPC error object, and with words."""
    task = lifecycle.failed(working(), event, ERROR, "disk on fire", POLLING, LATER_MS)
    assert task.error == ERROR
    assert task.result is None
    assert task.status_message == "disk on fire"


@pytest.mark.parametrize("event", [TaskEvent.INPUT_ASKED, TaskEvent.INPUT_SETTLED])
def test_an_error_cannot_come_with_an_event_that_ends_nothing(event: TaskEvent) -> None:
    """TX-STA-003: the record refuses an error in any status but failed."""
    with pytest.raises((ValueError, IllegalTransition)):
        lifecycle.failed(working(), event, ERROR, "no", POLLING, LATER_MS)


def test_a_cancelled_task_has_neither_result_nor_error() -> None:
    """Contract section 4."""
    assert (cancelled().result, cancelled().error) == (None, None)


# Creation, progress, questions.


def test_a_new_task_works_and_has_no_end() -> None:
    task = working()
    assert task.status is TaskStatus.WORKING
    assert task.revision == 0
    assert task.ttl_ms is None


def test_progress_moves_last_updated_only_where_the_words_change() -> None:
    """Contract section 4: before the end, status, words and open keys alone move it."""
    first = lifecycle.noted(working(), "3/10 rows copied", CREATED_MS + 5)
    assert (first.status_message, first.updated_at_ms) == ("3/10 rows copied", CREATED_MS + 5)
    assert lifecycle.noted(first, "3/10 rows copied", CREATED_MS + 9) is first


def test_progress_while_input_is_awaited_is_left_out() -> None:
    task = waiting()
    assert lifecycle.noted(task, "3/10", LATER_MS) is task


def test_questions_pile_up_under_keys_of_their_own() -> None:
    """A second round does not touch the first."""
    task = lifecycle.asked(waiting(), [question(2), question(3)], 4, LATER_MS)
    assert [r.key for r in task.inputs] == ["input-1", "input-2", "input-3"]
    assert task.next_key == 4
    assert task.status is TaskStatus.INPUT_REQUIRED


def test_the_next_key_never_goes_back() -> None:
    """A key is never used twice in a task's life."""
    task = replace(working(), next_key=9)
    assert lifecycle.asked(task, [question(2)], 3, LATER_MS).next_key == 9


def test_a_question_that_is_recorded_already_is_not_asked_twice() -> None:
    """A change whose commit was in doubt may be tried again."""
    task = waiting(2)
    assert lifecycle.asked(task, [question(1), question(2)], 3, LATER_MS) is task
    half = lifecycle.answered(task, [answer(1)], LATER_MS)
    assert lifecycle.asked(half, [question(1)], 3, LATER_MS) is half


def test_a_partial_answer_leaves_the_rest_outstanding() -> None:
    """TX-UPD-004, TX-UPD-005."""
    task = lifecycle.answered(waiting(2), [answer(1)], LATER_MS)
    assert task.status is TaskStatus.INPUT_REQUIRED
    assert [r.key for r in task.inputs] == ["input-2"]
    assert task.answers == (answer(1),)
    assert task.updated_at_ms == LATER_MS


def test_the_last_answer_lets_the_task_go_on() -> None:
    """Answers are kept until they are delivered."""
    task = lifecycle.answered(waiting(2), [answer(2), answer(1)], LATER_MS)
    assert task.status is TaskStatus.WORKING
    assert task.inputs == ()
    assert task.answers == (answer(2), answer(1))
    done = lifecycle.delivered(task, ["input-1"])
    assert done.answers == (answer(2),)
    assert (done.status, done.updated_at_ms) == (task.status, task.updated_at_ms)
    assert done.revision == task.revision + 1


def test_answers_to_keys_that_are_not_open_change_nothing() -> None:
    """TX-UPD-003."""
    task = waiting()
    assert lifecycle.answered(task, [answer(7)], LATER_MS) is task


def test_a_withdrawn_question_is_closed_without_an_answer() -> None:
    """Contract section 4: the last one to be withdrawn lets the task go on."""
    task = lifecycle.withdrawn(waiting(2), ["input-1", "input-9"], LATER_MS)
    assert [r.key for r in task.inputs] == ["input-2"]
    task = lifecycle.withdrawn(task, ["input-2"], LATER_MS)
    assert (task.status, task.answers) == (TaskStatus.WORKING, ())


def test_the_wall_clock_may_go_back_and_last_updated_does_not() -> None:
    """Contract section 4."""
    task = lifecycle.noted(working(), "1/2", CREATED_MS + 500)
    task = lifecycle.noted(task, "2/2", CREATED_MS - 7_000)
    assert task.updated_at_ms == CREATED_MS + 500
    task = lifecycle.completed(task, RESULT, None, POLLING, CREATED_MS - 7_000, tool_error=None)
    assert task.updated_at_ms == CREATED_MS + 500
    assert task.ttl_ms == RETENTION_MS


def test_a_result_is_kept_for_the_whole_retention_however_long_the_work_took() -> None:
    """TX-NEW-011, TX-NEW-012: not a millisecond less. The stores hold when it goes."""
    end_ms = CREATED_MS + 40 * RETENTION_MS
    task = lifecycle.completed(working(), RESULT, None, POLLING, end_ms, tool_error=None)
    assert task.ttl_ms is not None
    assert task.created_at_ms + task.ttl_ms == end_ms + RETENTION_MS


# Any order of events.

STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "ask",
                "ask",
                "answer",
                "withdraw",
                "deliver",
                "note",
                "complete",
                "error",
                "call_lost",
                "limit_passed",
                "cancel",
            ]
        ),
        st.integers(min_value=1, max_value=4),
        st.integers(min_value=-5_000, max_value=60_000),
    ),
    max_size=25,
)


def step(task: Task, what: str, number: int, now_ms: int) -> Task:
    keys = [r.key for r in task.inputs[:number]]
    match what:
        case "ask":
            asked = [question(task.next_key + n) for n in range(number)]
            return lifecycle.asked(task, asked, task.next_key + number, now_ms)
        case "answer":
            return lifecycle.answered(task, [answer(int(k.removeprefix("input-"))) for k in keys], now_ms)
        case "withdraw":
            return lifecycle.withdrawn(task, keys, now_ms)
        case "deliver":
            return lifecycle.delivered(task, [a.key for a in task.answers[:number]])
        case "note":
            return lifecycle.noted(task, f"step {number}", now_ms)
        case "complete":
            return lifecycle.completed(task, RESULT, None, POLLING, now_ms, tool_error=None)
        case "cancel":
            return lifecycle.cancelled(task, POLLING, now_ms)
        case _:
            return lifecycle.failed(task, TaskEvent(what), ERROR, "no", POLLING, now_ms)


def shown(task: Task) -> Task:
    """What anybody can see of it."""
    return replace(task, revision=0, answers=())


@given(STEPS)
def test_whatever_happens_in_whatever_order_only_legal_moves_are_made(
    steps: list[tuple[str, int, int]],
) -> None:
    """TX-STA-001, TX-STA-002."""
    task, now_ms, used = working(), CREATED_MS, set[str]()
    for what, number, passed_ms in steps:
        now_ms, before = now_ms + passed_ms, task
        with suppress(IllegalTransition):
            task = step(task, what, number, now_ms)
        moves = {before.status.value, *LEGAL.get(before.status.value, {}).values()}
        assert task.status.value in moves
        if before.status.is_terminal:
            assert shown(task) == shown(before)
        assert task.updated_at_ms >= before.updated_at_ms
        assert task.created_at_ms == before.created_at_ms
        assert task.next_key >= before.next_key
        assert (task.revision > before.revision) == (task is not before)
        assert (task.status is TaskStatus.INPUT_REQUIRED) == bool(task.inputs)
        new = {r.key for r in task.inputs} - {r.key for r in before.inputs}
        assert not new & used
        used |= new
