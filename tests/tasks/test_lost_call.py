"""What a record keeps of its call for a later process: what can be found, and how long it is kept.

Contract section 9.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.tasks import lifecycle
from proxy.tasks.lifecycle import TaskEvent
from proxy.tasks.lost_call import CallTrace, Repeat, RoundTrace
from proxy.tasks.task import Task, TaskStatus
from tests.tasks.examples import ERROR, LATER_MS, POLLING, RESULT, SERVER_INFO, answer, waiting, working

TRACE = CallTrace("s", "2025-11-25", 7, "e1", is_ours=True)
ROUND = RoundTrace(b"{}", "{}", b'"s1"', (("input-1", "who"),))
REPEAT = Repeat(b'{"name":"x"}', "{}")


@pytest.mark.parametrize(
    ("event_id", "upstream_task", "found"), [("e1", None, True), ("", "t", True), ("", None, False)]
)
def test_a_call_is_found_by_an_event_or_by_the_upstreams_task(
    event_id: str, upstream_task: str | None, found: bool
) -> None:
    trace = replace(TRACE, event_id=event_id, upstream_task=upstream_task)
    assert trace.can_be_found is found


def test_what_is_kept_of_a_call_is_a_new_state_that_shows_nothing() -> None:
    task = working()
    kept = lifecycle.kept(task, task, trace=TRACE, sent=True, server_info=SERVER_INFO, round=ROUND)
    assert (kept.trace, kept.round, kept.server_info) == (TRACE, ROUND, SERVER_INFO)
    assert kept.revision == task.revision + 1
    assert kept.updated_at_ms == task.updated_at_ms
    again = lifecycle.kept(kept, kept, trace=TRACE, sent=True, round=ROUND)
    assert again is kept


def test_what_is_kept_goes_with_a_change_into_one_state() -> None:
    """A question and the event that it came with are stored together, or not at all."""
    task = working()
    moved = lifecycle.noted(task, "3/10", LATER_MS)
    kept = lifecycle.kept(task, moved, trace=TRACE, sent=True)
    assert (kept.status_message, kept.trace, kept.revision) == ("3/10", TRACE, task.revision + 1)


def test_a_call_that_is_about_to_be_sent_is_a_new_state_in_any_case() -> None:
    task = replace(working(), sent=False)
    started = lifecycle.started(task)
    assert (started.sent, started.revision) == (True, task.revision + 1)
    assert lifecycle.started(started).revision == started.revision + 1


def test_a_task_that_is_taken_up_moves_its_time_and_nothing_else() -> None:
    task = working()
    taken_up = lifecycle.taken_up(task, LATER_MS)
    assert taken_up == replace(task, updated_at_ms=LATER_MS, revision=task.revision + 1)
    assert lifecycle.taken_up(waiting(), LATER_MS) == waiting()


def ended(task: Task, status: TaskStatus) -> Task:
    match status:
        case TaskStatus.COMPLETED:
            return lifecycle.completed(task, RESULT, None, POLLING, LATER_MS, tool_error=None)
        case TaskStatus.FAILED:
            return lifecycle.failed(task, TaskEvent.ERROR, ERROR, "no", POLLING, LATER_MS)
        case _:
            return lifecycle.cancelled(task, POLLING, LATER_MS)


@pytest.mark.parametrize("status", [s for s in TaskStatus if s.is_terminal])
def test_nothing_of_it_outlives_the_end(status: TaskStatus) -> None:
    """Arguments, and what users entered, are kept no longer than they are needed."""
    task = replace(working(), trace=TRACE, round=ROUND, repeat=REPEAT, answers=(answer(1),))
    over = ended(task, status)
    assert (over.trace, over.round, over.repeat, over.answers) == (None, None, None, ())
