"""Tasks for the tests of the pure parts: one in each status, short to make."""

from __future__ import annotations

from typing import Final

from proxy.tasks import lifecycle
from proxy.tasks.lifecycle import TaskEvent
from proxy.tasks.policy import Polling
from proxy.tasks.task import InputAnswer, InputRequest, Task, TaskStatus

CREATED_MS: Final = 1_800_000_000_000
LATER_MS: Final = CREATED_MS + 90_000
RETENTION_MS: Final = 3_600_000
POLLING: Final = Polling()
TASK_ID: Final = "tpx-" + "a" * 32
RESULT: Final = b'{"isError" : false, "n":1.10, "content": [{"type":"text","text":"caf\\u00e9"}]}'
ERROR: Final = b'{"data":{"x": [1e2]}, "code":-31999,"message":"disk on fire"}'
SERVER_INFO: Final = b'{"name":"trainer","version":"1"}'


def question(number: int, method: str = "elicitation/create") -> InputRequest:
    return InputRequest(f"input-{number}", method, b'{"message": "Sure?"}', b'"q-%d"' % number)


def answer(number: int, value: bytes = b'{"action":"accept"}') -> InputAnswer:
    return InputAnswer(f"input-{number}", b'"q-%d"' % number, value)


def working() -> Task:
    return lifecycle.created(
        id=TASK_ID,
        owner="alice",
        method="tools/call",
        name="train_model",
        now_ms=CREATED_MS,
        retention_ms=RETENTION_MS,
    )


def waiting(questions: int = 1) -> Task:
    """Asked `questions` questions, none of them answered."""
    asked = [question(n) for n in range(1, questions + 1)]
    return lifecycle.asked(working(), asked, questions + 1, CREATED_MS + 1_000)


def completed() -> Task:
    return lifecycle.completed(working(), RESULT, SERVER_INFO, POLLING, LATER_MS, tool_error=None)


def failed() -> Task:
    return lifecycle.failed(working(), TaskEvent.ERROR, ERROR, "disk on fire", POLLING, LATER_MS)


def cancelled() -> Task:
    return lifecycle.cancelled(working(), POLLING, LATER_MS)


def in_status(status: TaskStatus) -> Task:
    match status:
        case TaskStatus.WORKING:
            return working()
        case TaskStatus.INPUT_REQUIRED:
            return waiting(2)
        case TaskStatus.COMPLETED:
            return completed()
        case TaskStatus.FAILED:
            return failed()
        case TaskStatus.CANCELLED:
            return cancelled()
