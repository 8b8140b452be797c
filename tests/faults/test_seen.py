"""Each thing that a client must never be shown of its task is noticed, and what is right is not."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.faults.plan import CallPlan, Kind
from tests.faults.seen import CallSeen, TaskSeen
from tests.faults.violation import What
from tests.real.modern_client import Answer

PLAN: Final = CallPlan("0.0", Kind.SLOW, 0.0, 1, 1.0, 0.1)
CREATED: Final = "2026-07-28T10:00:00.000Z"
CREATED_MS: Final = 1_785_232_800_000.0
ID: Final = "tpx-" + "a" * 32
WORKING: Final[dict[str, Any]] = {
    "resultType": "complete", "taskId": ID, "status": "working", "createdAt": CREATED,
    "lastUpdatedAt": "2026-07-28T10:00:01.000Z", "ttlMs": 60_000, "pollIntervalMs": 300,
}  # fmt: skip
ASKING: Final = {**WORKING, "status": "input_required", "inputRequests": {"input-1": {}}}
COMPLETED: Final = {
    **WORKING,
    "status": "completed",
    "lastUpdatedAt": "2026-07-28T10:00:02.000Z",
    "result": {},
}


def seen() -> TaskSeen:
    return TaskSeen(ID, PLAN, 60.0, told_at=0.0, first={**WORKING, "resultType": "task"})


def answer(result: dict[str, Any] | None = None, error: dict[str, Any] | None = None) -> Answer:
    body = {"result": result} if error is None else {"error": error}
    return Answer(200, "application/json", json.dumps({"jsonrpc": "2.0", "id": 7, **body}).encode())


def found(*answers: Answer, task: TaskSeen | None = None, wall_ms: float = CREATED_MS + 1_000) -> list[What]:
    task = task or seen()
    for number, one in enumerate(answers):
        task.read(one, float(number), wall_ms)
    return [violation.what for violation in task.violations]


NOT_FOUND: Final = answer(error={"code": -32602, "message": "Task not found"})
BROKEN: Final = answer(error={"code": -32603, "message": "the task store cannot be read"})


def test_a_task_that_goes_its_way_is_no_violation() -> None:
    assert found(answer(WORKING), answer(ASKING), answer(WORKING), answer(COMPLETED), answer(COMPLETED)) == []


def test_an_id_that_is_not_known_any_more_is_lost() -> None:
    assert found(answer(WORKING), NOT_FOUND) == [What.LOST]
    assert found(answer(COMPLETED), NOT_FOUND) == [What.LOST]


def test_a_task_may_be_gone_once_it_has_expired_and_then_stays_gone() -> None:
    late_ms = CREATED_MS + 60_000
    assert found(answer(COMPLETED), NOT_FOUND, wall_ms=late_ms) == []
    assert found(answer(COMPLETED), NOT_FOUND, answer(COMPLETED), wall_ms=late_ms) == [What.CAME_BACK]


def test_a_task_that_was_not_read_for_its_whole_retention_may_have_ended_and_expired() -> None:
    task = seen()
    task.read(answer(WORKING), 1.0, CREATED_MS)
    task.read(NOT_FOUND, 61.5, CREATED_MS)
    assert task.gone
    assert task.violations == []


def test_an_end_that_changes_in_any_byte_is_noticed() -> None:
    assert found(answer(COMPLETED), answer({**COMPLETED, "ttlMs": 60_001})) == [What.CHANGED]
    assert What.CHANGED in found(answer(COMPLETED), answer(WORKING))


def test_an_end_that_was_told_otherwise_is_noticed_whichever_came_first() -> None:
    told = {key: member for key, member in COMPLETED.items() if key != "resultType"}
    for first in (True, False):
        right, wrong = seen(), seen()
        for task, status in ((right, "completed"), (wrong, "failed")):
            if first:
                task.notified({**told, "status": status, "_meta": {}})
            task.read(answer(COMPLETED), 1.0, CREATED_MS)
            if not first:
                task.notified({**told, "status": status, "_meta": {}})
        assert right.violations == []
        assert [violation.what for violation in wrong.violations] == [What.CHANGED]


def test_time_that_runs_backwards_is_noticed() -> None:
    earlier = {**WORKING, "lastUpdatedAt": "2026-07-28T10:00:00.500Z"}
    assert found(answer(WORKING), answer(earlier)) == [What.MOVED_BACK]
    assert found(answer({**WORKING, "createdAt": "2026-07-28T09:00:00.000Z"})) == [What.MOVED_BACK]


def test_a_key_is_not_shown_after_its_answer_was_acknowledged() -> None:
    task = seen()
    task.read(answer(ASKING), 0.0, CREATED_MS)
    task.answered["input-1"] = 0.5
    assert found(answer(ASKING), task=task) == [What.KEY_SHOWN_AGAIN]


def test_after_the_acknowledgement_of_a_cancel_a_task_is_at_its_end() -> None:
    task = seen()
    task.cancelled_at = 0.5
    assert found(answer(WORKING), task=task) == [What.CANCEL_UNHEARD]


def test_what_was_known_at_a_moment_is_all_that_is_held_against_others() -> None:
    task = seen()
    task.read(answer(ASKING), 1.0, CREATED_MS)
    task.answered["input-1"] = 2.0
    task.read(answer(COMPLETED), 3.0, CREATED_MS)
    failed = {**COMPLETED, "status": "failed", "error": {}}
    assert found(answer(ASKING), answer(failed), task=task.as_of(1.5)) == []
    assert found(answer(ASKING), task=task.as_of(2.5)) == [What.KEY_SHOWN_AGAIN]
    assert found(answer(failed), task=task.as_of(2.5)) == []
    assert found(answer(failed), task=task.as_of(3.5)) == [What.CHANGED]
    assert found(NOT_FOUND, task=task.as_of(0.5)) == [What.LOST]


def test_input_required_without_a_question_is_malformed() -> None:
    assert found(answer({**ASKING, "inputRequests": {}})) == [What.MALFORMED]
    assert found(answer({**WORKING, "status": "paused"})) == [What.MALFORMED]
    assert found(Answer(200, "application/json", b'{"jsonrpc":"2.0","id":7}')) == [What.MALFORMED]


def test_a_refusal_is_kept_for_the_verdict() -> None:
    task = seen()
    assert found(BROKEN, task=task) == []
    assert task.refusals == [(0.0, "tasks/get: the task store cannot be read")]


def test_the_end_of_a_call_is_found_as_it_was_on_the_wire() -> None:
    call = CallSeen(PLAN)
    assert call.final() is None
    call.answer = Answer(200, "application/json", b'{"id":1,"result":{"x": 1.0}}')
    assert call.final() == ("result", b'{"x": 1.0}')
    call.task = seen()
    assert call.final() is None
    call.task.ended = b'{"id":7,"result":{"status":"failed","error":{"code": 1}}}'
    assert call.final() == ("error", b'{"code": 1}')
