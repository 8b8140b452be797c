"""Which calls become tasks, when, and how long everything may take.

Above: `conversion` and the runner ask it; `app` builds it from the configuration. Contract sections 4
and 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from proxy.protocol import names

CONVERTIBLE: Final[Mapping[str, str]] = {names.TOOLS_CALL: "name"}
"""Requests that may be answered by a task handle, and the member of params that names what is called.

The extension leaves room for more of them; a row here is all that a further one needs.
"""


class ToolMode(StrEnum):
    AUTO = "auto"
    NEVER = "never"
    REQUIRED = "required"


_REQUIRED: Final = ToolMode.REQUIRED  # to name a member of an enum takes a microsecond each time


class InputMode(StrEnum):
    AUTO = "auto"  # questions before the threshold go out by MRTR
    TASK = "task"  # the first question makes the call a task


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """What holds for one tool. `threshold_s` is how long its call may take before it becomes a task."""

    threshold_s: float = 2.0
    mode: ToolMode = ToolMode.AUTO
    input: InputMode = InputMode.AUTO
    repeatable: bool = False

    @property
    def at_once(self) -> bool:
        """Whether the task is made before anything is sent upstream."""
        return self.mode is ToolMode.REQUIRED or (self.mode is ToolMode.AUTO and self.threshold_s <= 0)


@dataclass(frozen=True, slots=True)
class Polling:
    """The advice on polling: `first_ms` for a young task, growing with its age to `last_ms`."""

    first_ms: int = 300
    last_ms: int = 5_000
    AGE_SHARE: int = field(default=20, init=False)  # a twentieth of the age adds little to any wait

    def interval_ms(self, age_ms: int) -> int:
        return max(self.first_ms, min(self.last_ms, age_ms // self.AGE_SHARE))


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules about tasks. Durations in seconds, `retention_ms` in milliseconds."""

    default: ToolPolicy = ToolPolicy()
    rules: tuple[tuple[str, ToolPolicy], ...] = ()
    retention_ms: int = 3_600_000
    runtime_limit_s: float = 86_400.0
    input_limit_s: float = 86_400.0
    mrtr_wait_s: float = 600.0
    polling: Polling = Polling()
    max_result_bytes: int = 64 * 1024 * 1024

    @property
    def requires_any(self) -> bool:
        """Whether there is a tool that is called as a task only; that is seldom so."""
        return self.default.mode is _REQUIRED or any(policy.mode is _REQUIRED for _, policy in self.rules)

    def for_tool(self, name: str) -> ToolPolicy:
        """The first rule whose glob matches the whole name, with case; else the default."""
        return next((p for glob, p in self.rules if fnmatchcase(name, glob)), self.default)


def running_ttl_ms(age_ms: int, retention_ms: int) -> int:
    """The ttl to announce for a task that still runs, from its creation.

    Time elapsed plus the retention, raised each time half of that retention is used up; in between it
    stands, so that two polls in a row read the same.
    """
    step = max(1, retention_ms // 2)
    return max(0, age_ms) // step * step + retention_ms
