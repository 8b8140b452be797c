"""The record: what it refuses to be, and which ids are ours."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import pytest

from proxy.protocol.outline import Outline
from proxy.tasks.task import ID_PREFIX, ID_RANDOM_BYTES, TaskStatus, is_task_id
from tests.tasks.examples import (
    CREATED_MS,
    ERROR,
    RESULT,
    TASK_ID,
    cancelled,
    completed,
    failed,
    question,
    waiting,
    working,
)


@pytest.mark.parametrize(
    "task, wrong",
    [
        (working(), {"updated_at_ms": CREATED_MS - 1}),
        (working(), {"status": TaskStatus.INPUT_REQUIRED}),
        (working(), {"inputs": (question(1),)}),
        (working(), {"result": RESULT}),
        (working(), {"error": ERROR}),
        (waiting(), {"status": TaskStatus.WORKING}),
        (completed(), {"ttl_ms": None}),
        (completed(), {"poll_interval_ms": None}),
        (completed(), {"inputs": (question(1),)}),
        (completed(), {"error": ERROR}),
        (working(), {"tool_error": "no such table"}),
        (failed(), {"tool_error": "no such table"}),
        (failed(), {"result_outline": Outline((), 1)}),
        (cancelled(), {"tool_error": "no such table"}),
        (failed(), {"error": None}),
        (failed(), {"result": RESULT}),
        (cancelled(), {"result": RESULT}),
        (cancelled(), {"error": ERROR}),
    ],
)
def test_a_record_that_contradicts_itself_does_not_exist(task: Any, wrong: dict[str, Any]) -> None:
    """TX-STA-003: an error means failed and failed means an error, a result means completed."""
    with pytest.raises(ValueError, match=task.id):
        replace(task, **wrong)


def test_an_id_cannot_be_guessed() -> None:
    """TX-SEC-001: at least 128 random bits, URL-safe, one recognisable form."""
    assert ID_RANDOM_BYTES * 8 >= 128
    assert is_task_id(ID_PREFIX + secrets.token_urlsafe(ID_RANDOM_BYTES))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tpx-",
        "a" * 36,
        TASK_ID[:-1],
        TASK_ID + "a",
        TASK_ID + "\n",
        TASK_ID.upper(),
        "tpx_" + "a" * 32,
        " " + TASK_ID,
        "tpx-" + "ä" * 32,
        "tpx-" + "/" * 32,
        "786512e2-9e0d-44bd-8f29-789f320fe840",
    ],
)
def test_every_other_form_is_not_ours(text: str) -> None:
    """Contract section 2: those are upstream's, or nobody's."""
    assert not is_task_id(text)


def test_a_record_shows_its_state_and_nothing_of_its_content() -> None:
    assert repr(waiting(2)) == "<Task 'train_model' input_required r1, 2 open>"
    assert "disk on fire" not in repr(failed())
