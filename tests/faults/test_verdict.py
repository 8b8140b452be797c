"""Each way in which a call may have gone wrong is noticed, and what a fault explains is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from tests.faults.felt import Felt
from tests.faults.journal import Event, Row, digest
from tests.faults.plan import CallPlan, FaultKind, Kind
from tests.faults.seen import CallSeen, TaskSeen
from tests.faults.verdict import Told, judge
from tests.faults.violation import What
from tests.real.modern_client import Answer

RESULT: Final = b'{"x": 1.0}'
ERROR: Final = b'{"code":1234,"message":"broke"}'
START: Final = Row(0.0, Event.START, "0.0")
ENDED: Final = Row(1.0, Event.RESULT, "0.0", digest(RESULT))
STOPPED: Final = Row(1.0, Event.CANCELLED, "0.0")
KILL: Final = (Felt(FaultKind.KILL, 0.5, 0.9),)
DISK: Final = (Felt(FaultKind.DISK_FULL, 0.5, 0.9),)
UNKNOWN: Final = "outcome unknown: the proxy stopped while the call was running"


def call(ended: bytes | None = None, *, kind: Kind = Kind.SLOW, over: bool = True) -> CallSeen:
    """A call that became a task, and `ended` in this object: a member of DetailedTask, with its status."""
    seen = CallSeen(CallPlan("0.0", kind, 0.0, 0, 1.0, 0.1), sent_at=0.0, over=over)
    seen.task = TaskSeen("tpx-1", seen.plan, 60.0, told_at=0.1, first={})
    if ended is not None:
        seen.task.ended, seen.task.ended_at = b'{"id":7,"result":{' + ended + b"}}", 1.0
    return seen


def result(raw: bytes) -> bytes:
    return b'"status":"completed","result":' + raw


def failed(message: str, code: int = -32603) -> bytes:
    return b'"status":"failed","error":{"code":%d,"message":"%s"}' % (code, message.encode())


def found(seen: CallSeen, rows: Sequence[Row], felt: Sequence[Felt] = (), now: float = 2.0) -> list[What]:
    return [violation.what for violation in judge(seen, Told.of(rows), felt, now)]


def test_the_servers_own_result_and_error_are_right() -> None:
    assert found(call(result(b'{"x": 1.0,"resultType":"complete"}')), [START, ENDED]) == []
    error = Row(1.0, Event.ERROR, "0.0", digest(ERROR))
    assert found(call(b'"status":"failed","error":' + ERROR), [START, error]) == []


@pytest.mark.parametrize("raw", [b'{"x": 1.00}', b'{"x": 1}', b'{"y": 1.0}', b'{"x": 1.0,"z":0}'])
def test_any_other_result_is_wrong(raw: bytes) -> None:
    assert found(call(result(raw)), [START, ENDED]) == [What.WRONG_RESULT]


def test_a_result_that_the_server_never_gave_is_wrong() -> None:
    assert found(call(result(RESULT)), [START, STOPPED], KILL) == [What.WRONG_RESULT]


def test_a_second_run_is_noticed_unless_the_tool_is_repeatable() -> None:
    assert found(call(result(RESULT)), [START, START, ENDED], KILL) == [What.RAN_TWICE]
    assert found(call(result(RESULT), kind=Kind.REPEATABLE), [START, START, ENDED], KILL) == []


def test_unknown_needs_a_fault() -> None:
    assert found(call(failed(UNKNOWN)), [START, ENDED], KILL) == []
    assert found(call(failed(UNKNOWN)), [START, ENDED]) == [What.UNCALLED]
    long_before = (Felt(FaultKind.KILL, -20.0, -10.0),)
    assert found(call(failed(UNKNOWN)), [START, ENDED], long_before) == [What.UNCALLED]
    not_over = (Felt(FaultKind.UPSTREAM_STOP, -20.0),)
    assert found(call(failed(UNKNOWN)), [START, ENDED], not_over) == []


def test_a_session_may_be_lost_by_a_server_that_was_killed_long_before() -> None:
    words = failed("upstream 'x' no longer knows the session (404: )")
    long_before = [Felt(FaultKind.UPSTREAM_KILL, -60.0, -59.0)]
    assert found(call(words), []) == [What.UNCALLED]
    assert found(call(words), [], long_before) == []
    assert found(call(failed(UNKNOWN)), [], long_before) == [What.UNCALLED]


def test_who_says_that_nothing_was_sent_must_be_right() -> None:
    words = failed("upstream 'x' could not be reached")
    assert found(call(words), [], KILL) == []
    assert found(call(words), [START, ENDED], KILL) == [What.UNTRUE]


def test_who_cannot_know_must_say_so() -> None:
    assert found(call(failed("upstream 'x' was killed by SIGKILL")), [START], KILL) == [What.UNTRUE]
    assert found(call(failed("upstream 'x' was killed by SIGKILL")), [], KILL) == []


def test_a_limit_is_no_earlier_than_it_says() -> None:
    seen = call(failed("the call did not end within 6 s (tasks.runtime_limit)"))
    assert found(seen, [START, STOPPED]) == [What.UNCALLED]
    assert seen.task is not None
    seen.task.ended_at = 6.0
    assert found(seen, [START, STOPPED]) == []


def test_what_can_be_taken_up_after_a_restart_is_not_failed() -> None:
    kill = Felt(FaultKind.KILL, 5.0, 5.5)
    seen = call(failed(UNKNOWN))
    assert seen.task is not None
    seen.task.ended_at = 6.0

    def resumed(*felt: Felt) -> list[What]:
        return [v.what for v in judge(seen, Told.of([START]), felt, 7.0, resumable=True)]

    assert resumed(kill) == [What.NOT_TAKEN_UP]
    assert found(seen, [START], [kill], now=7.0) == [], "the server's streams cannot be resumed"
    assert resumed(Felt(FaultKind.KILL, 0.5, 5.5)) == [], "where its stream stood was not stored yet"
    assert resumed(Felt(FaultKind.KILL, -0.1, 0.5), kill) == [], "its sender was killed before it arrived"
    assert resumed(kill, Felt(FaultKind.UPSTREAM_KILL, 5.2, 5.3)) == [], "its stream is gone"
    assert found(call(failed(UNKNOWN), kind=Kind.REPEATABLE), [START], KILL) == [What.NOT_TAKEN_UP]


def test_cancelled_is_for_those_who_asked_for_it() -> None:
    seen = call(b'"status":"cancelled"')
    assert found(seen, [START, STOPPED]) == [What.UNCALLED]
    seen.cancel_sent = True
    assert found(seen, [START, STOPPED]) == []


def test_a_task_without_an_end_is_stuck() -> None:
    assert found(call(over=False), [START, ENDED], KILL) == [What.STUCK]


def test_what_nobody_waits_for_does_not_run_on() -> None:
    seen = CallSeen(CallPlan("0.0", Kind.HANGS_UP, 0.0, 0, 1.0, 0.1), sent_at=0.0, over=True)
    assert found(seen, [START]) == [What.NOT_TOLD]
    assert found(seen, [START, STOPPED]) == []
    assert found(seen, [START], KILL) == []


def test_a_cut_needs_a_fault() -> None:
    seen = CallSeen(CallPlan("0.0", Kind.SLOW, 0.0, 0, 1.0, 0.1), sent_at=0.0, cut_at=1.0, over=True)
    assert found(seen, [START, STOPPED]) == [What.UNCALLED]
    assert found(seen, [START, STOPPED], KILL) == []


def test_a_refused_read_needs_a_broken_disk() -> None:
    seen = call(result(RESULT))
    assert seen.task is not None
    seen.task.refusals.append((0.7, "tasks/get: broken"))
    assert found(seen, [START, ENDED], KILL) == [What.UNCALLED]
    assert found(seen, [START, ENDED], DISK) == []


def test_an_answer_to_anothers_question_is_noticed() -> None:
    assert found(call(result(RESULT)), [START, Row(0.5, Event.CROSSED, "0.0"), ENDED]) == [What.CROSSED]


def test_an_answer_that_is_neither_result_nor_error_is_malformed() -> None:
    seen = CallSeen(CallPlan("0.0", Kind.FAST, 0.0, 0, 0.0, 0.1), sent_at=0.0, answered_at=0.1, over=True)
    seen.answer = Answer(200, "application/json", b'{"id":1}')
    assert found(seen, [START, ENDED]) == [What.MALFORMED]
