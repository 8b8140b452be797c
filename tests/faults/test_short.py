"""Some rounds of the fault bench, short enough for every check: the invariants I1 to I6, and section 9.

`make faults` plays many more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
import pytest

from tests.faults.dice import plan_round
from tests.faults.plan import EraPlan, FaultKind, FaultPlan, Kind, Moment, RoundPlan, Transport
from tests.faults.rounds import era

pytestmark = [pytest.mark.anyio, pytest.mark.real]

SEED: Final = 5
BOUND_S: Final = 150.0
LONG: Final = frozenset({Kind.MUTE, Kind.ENDLESS})  # they last until a limit; `make faults` has them

KILL: Final = FaultPlan(FaultKind.KILL, Moment.HANDLE, 6, 0.002, 0.0, 0.0)
KILL_LATE: Final = FaultPlan(FaultKind.KILL, Moment.ENDED, 5, 0.001, 0.0, 0.0)
KILL_STARTING: Final = FaultPlan(FaultKind.KILL_STARTING, Moment.ANSWERED, 1, 0.0, 0.5, 0.0)
TERM: Final = FaultPlan(FaultKind.TERM, Moment.BEGIN, 1, 1.5, 0.0, 0.0)
RESET: Final = FaultPlan(FaultKind.RESET, Moment.HANDLE, 4, 0.0, 0.0, 0.5)
SERVER_KILL: Final = FaultPlan(FaultKind.UPSTREAM_KILL, Moment.HANDLE, 8, 0.0, 0.2, 0.5)
DISK_ERROR: Final = FaultPlan(FaultKind.DISK_ERROR, Moment.HANDLE, 3, 0.0, 0.6, 0.0)
DISK_FULL: Final = FaultPlan(FaultKind.DISK_FULL, Moment.HANDLE, 3, 0.0, 0.6, 0.0)
ROUNDS: Final = {
    Transport.HTTP: ((RESET, KILL, DISK_FULL), (SERVER_KILL, TERM)),
    Transport.STDIO: ((KILL, KILL_STARTING), (DISK_ERROR, SERVER_KILL, KILL_LATE)),
}


@pytest.mark.parametrize("transport", Transport)
async def test_nothing_is_lost_changed_or_run_twice_whatever_breaks(
    tmp_path: Path, transport: Transport
) -> None:
    relayed = transport is Transport.HTTP
    plan = EraPlan(
        transport, relayed=relayed, resumable=True, retention_s=3600.0, durability="power", small_disk=relayed
    )
    violations = []
    tasks = 0
    with anyio.fail_after(BOUND_S):
        async with era(tmp_path / "scene", plan) as playing:
            for number, faults in enumerate(ROUNDS[transport]):
                seen = await playing.play(short(number, plan, faults))
                violations += seen.violations
                tasks += seen.tasks
            violations += await playing.end()

    assert [str(violation) for violation in violations] == []
    assert tasks > 10


def short(number: int, era: EraPlan, faults: Sequence[FaultPlan]) -> RoundPlan:
    drawn = plan_round(SEED, number, era)
    calls = tuple(call for call in drawn.calls if call.kind not in LONG)
    return replace(drawn, calls=calls, faults=tuple(faults))
