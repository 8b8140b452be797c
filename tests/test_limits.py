"""Bounds on what clients hold at a time, and how fast they poll."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import pytest
from anyio.lowlevel import checkpoint

from proxy import limits
from proxy.errors import LimitReached
from proxy.limits import Gauge, PollLimit
from tests.manual_clock import ManualClock


def served(polls: PollLimit, clock: ManualClock, task_id: str, times: int, every_s: float) -> int:
    """How many of `times` polls are served, one each `every_s`."""
    count = 0
    for _ in range(times):
        try:
            polls.take(task_id)
            count += 1
        except LimitReached:
            pass
        clock.jump(every_s)
    return count


@pytest.mark.anyio
async def test_a_gauge_can_be_waited_for_until_none_is_held() -> None:
    gauge, order = Gauge("calls", 2, "limits.calls"), []

    async def wait() -> None:
        await gauge.wait_empty()
        order.append("empty")

    with anyio.fail_after(5):
        await gauge.wait_empty()
        async with anyio.create_task_group() as tasks:
            with gauge.hold():
                tasks.start_soon(wait)
                with gauge.hold():
                    await checkpoint()
                await checkpoint()
                order.append("left")
    assert order == ["left", "empty"]


def test_a_gauge_holds_up_to_its_limit_and_names_the_setting() -> None:
    """SEC-003: 429 and a time to come back."""
    gauge = Gauge("calls", 2, "limits.calls")
    with ExitStack() as held:
        held.enter_context(gauge.hold())
        held.enter_context(gauge.hold())
        with pytest.raises(LimitReached, match=r"2 calls are in progress.*limits\.calls") as fault:
            held.enter_context(gauge.hold())
        assert (fault.value.http_status, fault.value.retry_after_s) == (429, 1)
        assert gauge.held == 2
    assert gauge.held == 0


def test_a_gauge_is_freed_by_whatever_ends_the_work() -> None:
    gauge = Gauge("calls", 1, "limits.calls")
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), gauge.hold():
            raise ZeroDivisionError
    assert gauge.held == 0


def test_an_ordinary_client_is_always_served() -> None:
    """TX-GET-008: every 20 ms for a second, with the default of 100/s."""
    clock = ManualClock()
    polls = PollLimit(100, clock)
    assert served(polls, clock, "a", times=50, every_s=0.02) == 50
    assert served(polls, clock, "a", times=500, every_s=0.01) == 500


def test_a_client_that_polls_far_too_fast_is_told_when_to_come_back() -> None:
    """TX-GET-008: 429 with Retry-After."""
    polls = PollLimit(100, ManualClock())
    for _ in range(100):
        polls.take("a")
    with pytest.raises(LimitReached, match="polls_per_task") as fault:
        polls.take("a")
    assert (fault.value.http_status, fault.value.retry_after_s) == (429, 1)


def test_a_client_that_polls_a_little_too_fast_is_served_at_the_limit() -> None:
    """TX-GET-008 (F10): refusals cost nothing, else it would never see its task again."""
    clock = ManualClock()
    polls = PollLimit(100, clock)
    assert served(polls, clock, "a", times=2_000, every_s=0.005) in range(1_050, 1_110)


def test_a_slow_limit_says_how_long_to_wait_and_keeps_its_word() -> None:
    """TX-GET-008: 6/m is one poll in ten seconds."""
    clock = ManualClock()
    polls = PollLimit(0.1, clock)
    polls.take("a")
    with pytest.raises(LimitReached) as fault:
        polls.take("a")
    assert fault.value.retry_after_s == 10
    clock.jump(fault.value.retry_after_s)
    polls.take("a")


def test_a_pause_saves_up_one_second_of_polls_and_no_more() -> None:
    clock = ManualClock()
    polls = PollLimit(5, clock)
    clock.jump(3_600)
    assert served(polls, clock, "a", times=20, every_s=0) == 5
    clock.jump(3_600)
    assert served(polls, clock, "a", times=20, every_s=0) == 5


def test_each_task_has_a_limit_of_its_own() -> None:
    """F10: one fast poller does not slow the others down."""
    clock = ManualClock()
    polls = PollLimit(5, clock)
    assert served(polls, clock, "a", times=20, every_s=0) == 5
    assert served(polls, clock, "b", times=5, every_s=0) == 5


def test_the_memory_of_tasks_is_bounded_and_forgets_the_idle_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-003."""
    monkeypatch.setattr(limits, "MAX_BUCKETS", 2)
    clock = ManualClock()
    polls = PollLimit(1, clock)
    assert [served(polls, clock, task_id, times=1, every_s=0) for task_id in "abac"] == [1, 1, 0, 1]
    assert served(polls, clock, "c", times=1, every_s=0) == 0
    assert served(polls, clock, "b", times=1, every_s=0) == 1  # was idle longest when c came
