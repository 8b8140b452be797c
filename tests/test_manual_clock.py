"""The test clock itself: order of waking, sleeping again, cancellation; pauses that are taken on it."""

from __future__ import annotations

import anyio
import pytest

from proxy.clock import Clock, Pauses
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_sleepers_wake_in_the_order_of_their_time() -> None:
    clock: Clock = ManualClock()
    assert isinstance(clock, ManualClock)
    woken: list[tuple[float, float]] = []

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    async with anyio.create_task_group() as group:
        for seconds in (3.0, 1.0, 2.0):
            group.start_soon(sleep, seconds)
        await clock.advance(2.5)
        assert woken == [(1.0, 1.0), (2.0, 2.0)]
        await clock.advance(0.5)
    assert woken[-1] == (3.0, 3.0)


async def test_a_loop_that_sleeps_again_is_woken_again_within_one_advance() -> None:
    clock = ManualClock()
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            await clock.sleep(0.1)
            ticks.append(clock.wall_ms())

    start = clock.wall_ms()
    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await clock.advance(1.0)
        group.cancel_scope.cancel()
    assert ticks == [start + 100 * n for n in range(1, 11)]
    assert clock.sleeping == 0


async def test_infinite_sleep_ends_by_cancellation_alone() -> None:
    clock = ManualClock()
    async with anyio.create_task_group() as group:
        group.start_soon(clock.sleep, float("inf"))
        await clock.advance(1e6)
        assert clock.sleeping == 1
        group.cancel_scope.cancel()
    assert clock.sleeping == 0


async def test_the_wall_clock_can_be_set_without_the_other() -> None:
    clock = ManualClock()
    await clock.advance(5)
    clock.set_wall_ms(1_000)
    assert (clock.wall_ms(), clock.monotonic()) == (1_000, 5.0)
    clock.jump(2)
    assert (clock.wall_ms(), clock.monotonic()) == (3_000, 7.0)


async def test_waiting_for_an_event_ends_with_it_or_with_the_time() -> None:
    clock = ManualClock()
    event = anyio.Event()
    outcomes: list[bool] = []

    async def wait(seconds: float) -> None:
        outcomes.append(await clock.wait(event, seconds))

    async with anyio.create_task_group() as group:
        group.start_soon(wait, 1.0)
        group.start_soon(wait, 60.0)
        await clock.advance(1.0)
        assert outcomes == [False]
        event.set()
    assert outcomes == [False, True]
    assert clock.sleeping == 0


async def test_pauses_double_up_to_a_bound_begin_anew_and_may_end_early() -> None:
    clock, pauses, taken = ManualClock(), Pauses(1.0, 5.0), list[float]()

    async def pause() -> None:
        for _ in range(5):
            before = clock.monotonic()
            await pauses.one(clock)
            taken.append(clock.monotonic() - before)
        pauses.over()
        before = clock.monotonic()
        await pauses.one(clock, until=wanted)
        taken.append(clock.monotonic() - before)

    wanted = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(pause)
        await clock.advance(17.5)
        assert taken == [1.0, 2.0, 4.0, 5.0, 5.0]
        wanted.set()
    assert taken[5:] == [0.5]
    assert pauses.next_s == 2.0
