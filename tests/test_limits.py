"""Bounds on what clients hold at a time, and how fast they poll."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import pytest
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from proxy import limits
from proxy.errors import LimitReached
from proxy.limits import Gauge, LookupLimit, PollLimit, TokenBuckets
from proxy.owners import ANONYMOUS, Owner
from tests.manual_clock import ManualClock

ADA, BOB = Owner("token-ada"), Owner("token-bob")


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


def test_an_owner_has_a_share_and_leaves_the_rest_to_others() -> None:
    """SEC-003: contract section 8, "per owner"."""
    gauge = Gauge("calls", 3, "limits.calls", per_owner=2)
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(gauge.hold(ADA))
        with pytest.raises(LimitReached, match=r"2 calls of yours .*limits\.calls_per_owner") as fault:
            held.enter_context(gauge.hold(ADA))
        assert (fault.value.http_status, fault.value.retry_after_s) == (429, 1)
        held.enter_context(gauge.hold(ANONYMOUS))
        with pytest.raises(LimitReached, match=r"3 calls are .*limits\.calls\)"):
            held.enter_context(gauge.hold(BOB))
        assert gauge.held == 3
    assert gauge.held == 0
    with gauge.hold(ADA), gauge.hold(ADA):
        assert gauge.held == 2


def test_a_share_is_given_back_where_all_is_taken() -> None:
    gauge = Gauge("calls", 2, "limits.calls", per_owner=1)
    with gauge.hold(ADA), gauge.hold(), pytest.raises(LimitReached), gauge.hold(BOB):
        raise AssertionError("there was no room")
    for _ in range(3):
        with gauge.hold(BOB):
            assert gauge.held == 1


def failed_lookups(limit: LookupLimit, peer: str, owner: Owner, times: int) -> int:
    """How many of `times` failed look-ups were let look."""
    count = 0
    for _ in range(times):
        try:
            limit.begin(peer, owner)()
            count += 1
        except LimitReached:
            pass
    return count


def test_a_peer_that_guesses_is_let_guess_only_so_fast() -> None:
    """T25-SEC-004: ten seconds' worth at once, then the rate; the answer says when to come back."""
    clock = ManualClock()
    limit = LookupLimit(2, clock)
    assert failed_lookups(limit, "192.0.2.1", ANONYMOUS, 100) == 20
    with pytest.raises(LimitReached, match=r"limits\.failed_lookups") as fault:
        limit.begin("192.0.2.1", ANONYMOUS)
    assert (fault.value.http_status, fault.value.retry_after_s) == (429, 1)
    clock.jump(5)
    assert failed_lookups(limit, "192.0.2.1", ANONYMOUS, 100) == 10


def test_one_request_that_names_many_is_waited_for_as_long() -> None:
    """T25-SEC-004: a listen stream names up to a thousand."""
    clock = ManualClock()
    limit = LookupLimit(2, clock)
    failed = limit.begin("192.0.2.1", ADA)
    for _ in range(1_000):
        failed()
    for waited in range(0, 490, 70):
        with pytest.raises(LimitReached) as fault:
            limit.begin("192.0.2.1", ADA)
        assert fault.value.retry_after_s == 491 - waited
        clock.jump(70)
    clock.jump(1)
    limit.begin("192.0.2.1", ADA)


def test_look_ups_that_succeed_cost_nothing_and_others_are_not_hindered() -> None:
    """T25-SEC-004: those at another address, and those with a token at the same one."""
    limit = LookupLimit(2, ManualClock())
    for _ in range(100):
        limit.begin("192.0.2.1", ANONYMOUS)
    assert failed_lookups(limit, "192.0.2.1", ANONYMOUS, 100) == 20
    assert failed_lookups(limit, "192.0.2.2", ANONYMOUS, 1) == 1
    assert failed_lookups(limit, "192.0.2.1", ADA, 1) == 1


def test_who_guesses_too_much_is_seen_in_the_log() -> None:
    """T25-SEC-010."""
    limit = LookupLimit(2, ManualClock())
    with capture_logs() as logs:
        failed_lookups(limit, "192.0.2.1", ANONYMOUS, 100)
    assert [(log["event"], log["peer"]) for log in logs] == [("task_lookups_limited", "192.0.2.1")]


def test_to_look_at_a_bucket_takes_nothing() -> None:
    buckets = TokenBuckets(1, ManualClock(), burst=2)
    assert [buckets.wait_s("a") for _ in range(5)] == [0] * 5
    assert [buckets.take("a"), buckets.take("a"), buckets.take("a")] == [0, 0, 1]


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


def test_what_was_taken_is_held_until_it_is_given_back() -> None:
    gauge = Gauge("calls", 3, "limits.calls", per_owner=1)
    give_back = gauge.take(ADA)
    assert gauge.has_all_of_one(ADA)
    assert not gauge.has_all_of_one(BOB)
    with pytest.raises(LimitReached, match="of yours"):
        gauge.take(ADA)
    give_back()
    assert gauge.held == 0
    assert not gauge.has_all_of_one(ADA)


def test_what_is_there_already_is_counted_and_never_refused() -> None:
    gauge = Gauge("calls", 2, "limits.calls", per_owner=1)
    give_back = [gauge.count(ADA) for _ in range(3)]
    assert gauge.held == 3
    for owner, words in ((ADA, "of yours"), (BOB, r"limits\.calls\)")):
        with pytest.raises(LimitReached, match=words):
            gauge.take(owner)
    for one in give_back[:2]:
        one()
    gauge.take(BOB)()
    give_back[2]()
    assert gauge.held == 0
    assert not gauge.has_all_of_one(ADA)


def test_where_there_is_no_room_some_may_be_made() -> None:
    gauge, asked = Gauge("calls", 1, "limits.calls", per_owner=1), []
    given = [gauge.take(ADA)]

    def make_room(owner: Owner) -> bool:
        asked.append(owner)
        if owner == BOB:
            given.pop()()
        return owner == BOB

    gauge.make_room = make_room
    with pytest.raises(LimitReached):
        gauge.take(ADA)
    given.append(gauge.take(BOB))
    assert (asked, gauge.held) == ([ADA, BOB], 1)
