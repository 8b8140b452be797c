"""Draws the plan of a round from the seed alone.

PURE. The same seed and number give the same plan, so a violation can be looked for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Final, assert_never

from tests.faults.plan import (
    ENDLESS_S,
    LOAD_S,
    OWNERS,
    THRESHOLD_S,
    CallPlan,
    Ending,
    EraPlan,
    FaultKind,
    FaultPlan,
    Kind,
    Moment,
    RoundPlan,
    Transport,
)

CALLS: Final = range(20, 36)
_SMALL: Final = 200  # bytes of a result
_IN_A_FILE: Final = 50_000  # more than a row holds
_HUGE: Final = range(300_000, 3_000_000)


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
    plan = CallPlan(label, kind, at_s, owner, seconds, poll_s, size, watch=watch)
    match kind:
        case Kind.FAST:
            return replace(plan, seconds=0.0)
        case Kind.BRIEF:
            return replace(plan, seconds=brief_s)
        case Kind.TALKATIVE:
            return replace(plan, steps=rng.randrange(5, 60))
        case Kind.ASKS_EARLY:
            return replace(plan, seconds=rng.uniform(0.0, 0.4), questions=rng.randrange(1, 4))
        case Kind.ASKS_LATE | Kind.ASKS_AS_TASK:
            return replace(plan, questions=rng.randrange(1, 4))
        case Kind.MUTE:
            return replace(plan, questions=1)
        case Kind.FAILS:
            ending = rng.choice((Ending.TOOL_ERROR, Ending.ERROR))
            return replace(plan, seconds=rng.choice((0.0, brief_s, seconds)), ending=ending)
        case Kind.HUGE:
            return replace(plan, size=rng.choice(_HUGE))
        case Kind.CANCELLED:
            about_its_end_s = seconds + rng.uniform(-0.05, 0.05)
            return replace(plan, cancel_after_s=rng.choice((rng.uniform(0.0, 1.5), about_its_end_s)))
        case Kind.HANGS_UP:
            return replace(plan, hang_up_after_s=rng.choice((rng.uniform(0.0, 0.25), brief_s)))
        case Kind.ENDLESS:
            return replace(plan, seconds=ENDLESS_S)
        case Kind.SLOW | Kind.REQUIRED | Kind.AT_ONCE | Kind.REPEATABLE:
            return plan
        case _:
            assert_never(kind)
