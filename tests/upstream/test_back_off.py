"""Pauses between starts that fail; what the pool makes of them: `test_pool`."""

from __future__ import annotations

from proxy.upstream.back_off import STABLE_S, BackOff
from tests.manual_clock import ManualClock


def test_pauses_double_from_the_second_failure_on_up_to_a_bound() -> None:
    back_off = BackOff(ManualClock())
    pauses = [back_off.pause_s("a")]
    for _ in range(200):
        back_off.failed("a")
        pauses.append(back_off.pause_s("a"))
    assert pauses[:11] == [0, 0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert pauses[-1] == 30


def test_a_pause_runs_from_the_failure_on() -> None:
    clock = ManualClock()
    back_off = BackOff(clock)
    for _ in range(4):
        back_off.failed("a")
    clock.jump(1.5)
    assert back_off.pause_s("a") == 0.5
    clock.jump(10)
    assert back_off.pause_s("a") == 0


def test_each_key_has_its_own_count() -> None:
    back_off = BackOff(ManualClock())
    for _ in range(5):
        back_off.failed("a")
    assert back_off.pause_s("b") == 0


def test_a_session_that_lived_long_starts_a_new_count() -> None:
    back_off = BackOff(ManualClock())
    for _ in range(5):
        back_off.failed("a", lived_s=STABLE_S - 1)
    assert back_off.pause_s("a") > 0
    back_off.failed("a", lived_s=STABLE_S)
    assert back_off.pause_s("a") == 0


def test_old_failures_are_forgotten_and_take_no_memory() -> None:
    clock = ManualClock()
    back_off = BackOff(clock)
    for n in range(1_000):
        back_off.failed(n)
        back_off.failed(n)
    clock.jump(STABLE_S - 1)
    back_off.failed("young")
    clock.jump(1)
    back_off.forget_old()
    for n in range(1_000):
        back_off.failed(n)
        assert back_off.pause_s(n) == 0
    back_off.failed("young")
    assert back_off.pause_s("young") > 0
