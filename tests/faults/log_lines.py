"""The proxy's log, read for what must not be in it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from tests.faults.felt import OF_THE_DISK, Felt, felt_between
from tests.faults.violation import Violation, What

_ERRORS: Final = frozenset({"error", "critical"})
_OF_A_BROKEN_STORE: Final = frozenset(
    {
        *("store_write_failed", "store_not_writable", "store_not_swept", "store_abandoned"),
        *("task_not_stored", "task_not_read", "unfinished_tasks_not_read"),
    }
)
_OF_ANY_FAULT: Final = frozenset({"answer_not_delivered"})
_OF_THE_COMMAND_LINE: Final = "mcp-taskproxy: error: "
_NEVER: Final = frozenset(
    {"record_set_aside", "records_of_newer_format", "upstream_noise_skipped", "task_vanished"}
)
_SHOWN: Final = 1500


class LogLines:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0

    def judge(self, felt: Sequence[Felt]) -> Iterator[Violation]:
        """What is wrong with the lines since the last time. The last one of a killed process may be torn."""
        with self._file.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        since_wall_s = time.time() - time.monotonic()
        found: list[str] = []
        for line in text.decode(errors="replace").splitlines():
            if _is_bad(line, felt, since_wall_s):
                found.append(line)
            elif found:
                yield _violation(found)
                found = []
        if found:
            yield _violation(found)


def _violation(lines: list[str]) -> Violation:
    return Violation(What.BAD_LOG, "log", "\n".join(lines)[-_SHOWN:])


def _is_bad(line: str, felt: Sequence[Felt], since_wall_s: float) -> bool:
    """`since_wall_s`: the wall clock, less the monotonic one."""
    if line.startswith(_OF_THE_COMMAND_LINE) or not line.strip():
        return False  # its exit is judged
    try:
        facts = json.loads(line)
        event, level = facts["event"], facts["level"]
    except (ValueError, KeyError, TypeError):
        return not line.startswith("{")
    if event in _NEVER or "exception" in facts:
        return True
    at = datetime.fromisoformat(facts["timestamp"]).timestamp() - since_wall_s
    if level not in _ERRORS:
        return False
    if event in _OF_A_BROKEN_STORE:
        return not felt_between(felt, at, at, OF_THE_DISK)
    return event not in _OF_ANY_FAULT or not felt_between(felt, at, at)
