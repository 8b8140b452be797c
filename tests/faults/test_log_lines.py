"""What must not be in a log is found; what a fault explains, or a kill has torn, is no violation."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.felt import Felt
from tests.faults.log_lines import LogLines
from tests.faults.plan import FaultKind


def line(event: str, level: str, **facts: str) -> str:
    return json.dumps({"event": event, "level": level, "timestamp": datetime.now(UTC).isoformat(), **facts})


def found(tmp_path: Path, *lines: str, felt: FaultKind | None = None) -> int:
    file = tmp_path / "log"
    file.write_text("\n".join(lines) + "\n")
    now = time.monotonic()
    return len(list(LogLines(file).judge([Felt(felt, now - 1)] if felt is not None else [])))


@pytest.mark.parametrize(
    "bad",
    [
        "Traceback (most recent call last):\n  File x\nValueError",
        line("work_failed", "error", exception="Traceback"),
        line("request_failed", "error"),
        line("record_set_aside", "warning"),
        line("task_not_stored", "error"),
    ],
    ids=["a bare traceback", "a traceback", "an error", "a damaged record", "a lost write"],
)
def test_what_must_not_be_there_is_found(tmp_path: Path, bad: str) -> None:
    assert found(tmp_path, line("task_created", "info"), bad, line("task_completed", "info")) == 1


@pytest.mark.parametrize(
    "good",
    [
        line("task_failed", "warning"),
        "mcp-taskproxy: error: store directory x cannot be used",
        '{"event": "torn by a ki',
        "",
    ],
    ids=["the server's fault", "the operator's fault", "cut by a kill", "empty"],
)
def test_what_may_be_there_is_not(tmp_path: Path, good: str) -> None:
    assert found(tmp_path, good) == 0


def test_errors_of_the_store_need_a_broken_disk(tmp_path: Path) -> None:
    said = line("task_not_stored", "error")
    assert found(tmp_path, said, felt=FaultKind.KILL) == 1
    assert found(tmp_path, said, felt=FaultKind.DISK_FULL) == 0


def test_lines_are_judged_once(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("Traceback\n")
    log = LogLines(file)
    assert len(list(log.judge([]))) == 1
    assert list(log.judge([])) == []
