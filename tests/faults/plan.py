"""What can happen in a round: the calls that are made, what is broken, and when.

PURE. `dice` draws a plan from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

THRESHOLD_S: Final = 0.25
RUNTIME_LIMIT_S: Final = 6.0
INPUT_LIMIT_S: Final = 4.0
DRAIN_S: Final = 1.0
LOAD_S: Final = 2.0  # calls begin within this time
OWNERS: Final = 3  # the first one is the anonymous one
ROUNDS_PER_ERA: Final = 12  # on one store; what was answered in one is asked for in all that follow
ENDLESS_S: Final = 600.0


class Ending(StrEnum):
    """How the server ends a call."""

    RESULT = "result"
    TOOL_ERROR = "tool_error"
    ERROR = "error"


class Kind(StrEnum):
    """What is tried with a call."""

    FAST = "fast"
    BRIEF = "brief"  # about as long as the threshold
    SLOW = "slow"
    TALKATIVE = "talkative"
    ASKS_EARLY = "asks_early"
    ASKS_LATE = "asks_late"
    ASKS_AS_TASK = "asks_as_task"
    MUTE = "mute"  # asks, and its client never answers
    FAILS = "fails"
    HUGE = "huge"
    CANCELLED = "cancelled"
    HANGS_UP = "hangs_up"
    ENDLESS = "endless"
    REQUIRED = "required"
    AT_ONCE = "at_once"
    REPEATABLE = "repeatable"


TOOLS: Final[Mapping[Kind, str]] = {
    Kind.ASKS_AS_TASK: "ask_work",
    Kind.REQUIRED: "must_work",
    Kind.AT_ONCE: "now_work",
    Kind.REPEATABLE: "again_work",
}
"""All tools do the same; by their names the proxy is told to treat them differently. Else it is WORK."""

WORK: Final = "work"


class FaultKind(StrEnum):
    """What is broken."""

    KILL = "kill"
    KILL_STARTING = "kill_starting"  # killed, and killed again while it starts
    TERM = "term"
    TERM_KILL = "term_kill"  # killed while it drains
    STOP = "stop"  # SIGSTOP for seconds
    UPSTREAM_KILL = "upstream_kill"
    UPSTREAM_STOP = "upstream_stop"
    RESET = "reset"  # the connections between proxy and server
    DISK_FULL = "disk_full"  # needs a small file system
    DISK_ERROR = "disk_error"  # no file may grow: RLIMIT_FSIZE


class Moment(StrEnum):
    """What a fault waits for."""

    BEGIN = "begin"  # of the round
    SENT = "sent"  # a call was sent
    HANDLE = "handle"  # a task's handle was answered
    ASKED = "asked"  # a question was seen
    ANSWERED = "answered"  # tasks/update was acknowledged
    CANCELLED = "cancelled"  # tasks/cancel was acknowledged
    ENDED = "ended"  # a task was seen at its end


class Transport(StrEnum):
    HTTP = "http"
    STDIO = "stdio"


@dataclass(frozen=True, slots=True)
class EraPlan:
    """What some rounds have in common: one store, one kind of server.

    `relayed`: its connections can be reset. `resumable`: its streams have event ids.
    """

    transport: Transport
    relayed: bool
    resumable: bool
    retention_s: float
    durability: str
    small_disk: bool


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One call. Times in seconds: `at_s` from the begin of the round, the others from the call's own."""

    label: str
    kind: Kind
    at_s: float
    owner: int
    seconds: float
    poll_s: float
    size: int = 200
    steps: int = 0
    questions: int = 0
    ending: Ending = Ending.RESULT
    cancel_after_s: float | None = None
    hang_up_after_s: float | None = None
    watch: bool = False

    @property
    def tool(self) -> str:
        return TOOLS.get(self.kind, WORK)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Comes `delay_s` after the `count`th `moment`, and lasts `seconds`. `part`: of what there is, 0 to 1."""

    kind: FaultKind
    moment: Moment
    count: int
    delay_s: float
    seconds: float
    part: float

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.2f}s" if self.seconds else ""
        return f"{self.kind}@{self.moment}#{self.count}+{self.delay_s * 1000:.0f}ms{lasts}"


@dataclass(frozen=True, slots=True)
class RoundPlan:
    number: int
    calls: tuple[CallPlan, ...]
    faults: tuple[FaultPlan, ...]


def era_of(number: int) -> int:
    """The era of a round, by number."""
    return number // ROUNDS_PER_ERA
