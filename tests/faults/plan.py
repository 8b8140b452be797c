"""What happens in a round, from the seed alone: which calls are made, what is broken, and when.

PURE. The same seed and number give the same plan, so a violation can be looked for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

THRESHOLD_S: Final = 0.25
RUNTIME_LIMIT_S: Final = 6.0
INPUT_LIMIT_S: Final = 4.0
DRAIN_S: Final = 1.0
LOAD_S: Final = 2.0  # calls begin within this time
CALLS: Final = range(20, 36)
OWNERS: Final = 3  # the first one is the anonymous one
ROUNDS_PER_ERA: Final = 12  # on one store; what was answered in one is asked for in all that follow
ENDLESS_S: Final = 600.0

_SMALL: Final = 200  # bytes of a result
_IN_A_FILE: Final = 50_000  # more than a row holds
_HUGE: Final = range(300_000, 3_000_000)


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


_KINDS: Final[Mapping[Kind, int]] = {
    Kind.FAST: 10,
    Kind.BRIEF: 14,
    Kind.SLOW: 20,
    Kind.TALKATIVE: 6,
    Kind.ASKS_EARLY: 6,
    Kind.ASKS_LATE: 8,
    Kind.ASKS_AS_TASK: 4,
    Kind.MUTE: 1,
    Kind.FAILS: 6,
    Kind.HUGE: 6,
    Kind.CANCELLED: 8,
    Kind.HANGS_UP: 4,
    Kind.ENDLESS: 1,
    Kind.REQUIRED: 4,
    Kind.AT_ONCE: 6,
    Kind.REPEATABLE: 3,
}
"""How often each is made, among all."""

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


_FAULTS: Final[Mapping[FaultKind, int]] = {
    FaultKind.KILL: 50,
    FaultKind.KILL_STARTING: 8,
    FaultKind.TERM: 5,
    FaultKind.TERM_KILL: 5,
    FaultKind.STOP: 5,
    FaultKind.UPSTREAM_KILL: 8,
    FaultKind.UPSTREAM_STOP: 4,
    FaultKind.RESET: 7,
    FaultKind.DISK_FULL: 5,
    FaultKind.DISK_ERROR: 5,
}

_FAULTS_IN_ROUND: Final = (0, *[1] * 9, *[2] * 6, *[3] * 4)
_SECONDS: Final[Mapping[FaultKind, tuple[float, float]]] = {
    FaultKind.KILL_STARTING: (0.05, 1.2),
    FaultKind.TERM_KILL: (0.0, 1.2),
    FaultKind.STOP: (0.3, 3.0),
    FaultKind.UPSTREAM_KILL: (0.0, 1.0),
    FaultKind.UPSTREAM_STOP: (0.3, 2.0),
    FaultKind.DISK_FULL: (0.2, 3.0),
    FaultKind.DISK_ERROR: (0.2, 3.0),
}


class Moment(StrEnum):
    """What a fault waits for."""

    BEGIN = "begin"  # of the round
    SENT = "sent"  # a call was sent
    HANDLE = "handle"  # a task's handle was answered
    ASKED = "asked"  # a question was seen
    ANSWERED = "answered"  # tasks/update was acknowledged
    CANCELLED = "cancelled"  # tasks/cancel was acknowledged
    ENDED = "ended"  # a task was seen at its end


_MOMENTS: Final[Mapping[Moment, tuple[int, range, float]]] = {
    Moment.BEGIN: (8, range(1, 2), LOAD_S + 1.0),
    Moment.SENT: (4, range(1, 20), THRESHOLD_S * 1.5),
    Moment.HANDLE: (6, range(1, 14), 0.02),
    Moment.ASKED: (2, range(1, 5), 0.05),
    Moment.ANSWERED: (2, range(1, 4), 0.01),
    Moment.CANCELLED: (2, range(1, 3), 0.01),
    Moment.ENDED: (4, range(1, 10), 0.02),
}
"""How often each is waited for, for the how-manieth one, and how long after it at most."""


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
    size: int = _SMALL
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


def plan_era(seed: int, era: int, transports: tuple[Transport, ...] = tuple(Transport)) -> EraPlan:
    """Of all rounds with this `era_of`."""
    rng = Random(f"{seed} era {era}")
    transport = transports[era % len(transports)]
    return EraPlan(
        transport,
        relayed=transport is Transport.HTTP and rng.random() < 0.7,
        resumable=rng.random() < 0.7,
        retention_s=4.0 if rng.random() < 0.2 else 3600.0,
        durability="power" if rng.random() < 0.8 else "process",
        small_disk=rng.random() < 0.5,
    )


def plan_round(seed: int, number: int, era: EraPlan) -> RoundPlan:
    rng = Random(f"{seed} round {number}")
    calls = tuple(_call(rng, f"{number}.{n}") for n in range(rng.choice(CALLS)))
    possible = {kind: weight for kind, weight in _FAULTS.items() if _possible(kind, era)}
    faults = tuple(_fault(rng, possible) for _ in range(rng.choice(_FAULTS_IN_ROUND)))
    return RoundPlan(number, calls, faults)


def _possible(kind: FaultKind, era: EraPlan) -> bool:
    match kind:
        case FaultKind.RESET:
            return era.relayed
        case FaultKind.DISK_FULL:
            return era.small_disk
        case _:
            return True


def _fault(rng: Random, possible: Mapping[FaultKind, int]) -> FaultPlan:
    [kind] = rng.choices(list(possible), list(possible.values()))
    [moment] = rng.choices(list(_MOMENTS), [weight for weight, _, _ in _MOMENTS.values()])
    _, counts, delay_s = _MOMENTS[moment]
    seconds = rng.uniform(*_SECONDS.get(kind, (0.0, 0.0)))
    return FaultPlan(kind, moment, rng.choice(counts), rng.uniform(0, delay_s), seconds, rng.random())


def _call(rng: Random, label: str) -> CallPlan:
    [kind] = rng.choices(list(_KINDS), list(_KINDS.values()))
    at_s, owner = rng.uniform(0, LOAD_S), rng.randrange(OWNERS)
    poll_s, watch = rng.uniform(0.03, 0.3), rng.random() < 0.15
    seconds, brief_s = rng.uniform(0.3, 2.5), rng.uniform(THRESHOLD_S - 0.05, THRESHOLD_S + 0.05)
    size = rng.choice((_SMALL, _SMALL, _SMALL, _IN_A_FILE))
    plan: dict[str, object] = {}
    match kind:
        case Kind.FAST:
            seconds = 0.0
        case Kind.BRIEF:
            seconds = brief_s
        case Kind.TALKATIVE:
            plan |= {"steps": rng.randrange(5, 60)}
        case Kind.ASKS_EARLY:
            seconds = rng.uniform(0.0, 0.4)
            plan |= {"questions": rng.randrange(1, 4)}
        case Kind.ASKS_LATE | Kind.ASKS_AS_TASK:
            plan |= {"questions": rng.randrange(1, 4)}
        case Kind.MUTE:
            plan |= {"questions": 1}
        case Kind.FAILS:
            seconds = rng.choice((0.0, brief_s, seconds))
            plan |= {"ending": rng.choice((Ending.TOOL_ERROR, Ending.ERROR))}
        case Kind.HUGE:
            size = rng.choice(_HUGE)
        case Kind.CANCELLED:
            plan |= {
                "cancel_after_s": rng.choice((rng.uniform(0.0, 1.5), seconds + rng.uniform(-0.05, 0.05)))
            }
        case Kind.HANGS_UP:
            plan |= {"hang_up_after_s": rng.choice((rng.uniform(0.0, 0.25), brief_s))}
        case Kind.ENDLESS:
            seconds = ENDLESS_S
        case Kind.SLOW | Kind.REQUIRED | Kind.AT_ONCE | Kind.REPEATABLE:
            pass
    return CallPlan(label, kind, at_s, owner, seconds, poll_s, size, watch=watch, **plan)  # type: ignore[arg-type]
