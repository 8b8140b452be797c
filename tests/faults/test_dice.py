"""Plans come from the seed alone, and over some rounds there is everything in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.faults.dice import plan_era, plan_round
from tests.faults.plan import FaultKind, Kind, Moment, Transport

ROUNDS: Final = range(200)


def test_the_same_seed_replays_and_another_one_does_not() -> None:
    era = plan_era(1, 0)
    assert plan_era(1, 0) == era
    assert plan_round(1, 7, era) == plan_round(1, 7, era)
    assert plan_round(1, 7, era) != plan_round(2, 7, era)
    assert plan_round(1, 7, era).calls != plan_round(1, 8, era).calls


def test_each_kind_of_call_and_fault_has_its_turn() -> None:
    era = replace(plan_era(1, 0), relayed=True, small_disk=True)
    rounds = [plan_round(1, number, era) for number in ROUNDS]
    assert {call.kind for plan in rounds for call in plan.calls} == set(Kind)
    assert {fault.kind for plan in rounds for fault in plan.faults} == set(FaultKind)
    assert {fault.moment for plan in rounds for fault in plan.faults} == set(Moment)
    assert any(not plan.faults for plan in rounds), "rounds without a fault show what a fault is blamed for"


def test_what_the_scene_does_not_have_is_not_broken() -> None:
    era = replace(plan_era(1, 0), relayed=False, small_disk=False)
    kinds = {fault.kind for number in ROUNDS for fault in plan_round(1, number, era).faults}
    assert kinds == set(FaultKind) - {FaultKind.RESET, FaultKind.DISK_FULL}


def test_transports_take_turns() -> None:
    assert [plan_era(1, number).transport for number in range(4)] == [*Transport, *Transport]
    assert plan_era(1, 1, (Transport.HTTP,)).transport is Transport.HTTP


def test_labels_are_used_once() -> None:
    era = plan_era(1, 0)
    labels = [call.label for number in ROUNDS for call in plan_round(1, number, era).calls]
    assert len(labels) == len(set(labels))
