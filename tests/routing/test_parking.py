"""How much is held for clients that are to come back: bounded, the oldest of what is over goes first."""

from __future__ import annotations

from typing import Any, Final

import pytest

from proxy.routing import parking as parking_module
from tests.routing.bench import ASKABLE, Bench, Client, bench
from tests.routing.fake_server import Asked, Call

pytestmark = pytest.mark.anyio

YES: Final = {"action": "accept", "content": {}}
GATHER_S: Final = 0.05


async def parked(rig: Bench, client: Client) -> tuple[dict[str, Any], Call, Asked]:
    sent = client.call("slow")
    call = await rig.server.next_call()
    question = call.elicit()
    await rig.pass_time(GATHER_S)
    return await sent.result(), call, question


async def answered(rig: Bench, client: Client, size: int = 0) -> dict[str, Any]:
    """A call that was parked, and its retry has its answer; the state of the first round."""
    asked, call, _ = await parked(rig, client)
    [key] = asked["inputRequests"]
    again = client.retry(asked, "slow", {key: YES})
    await rig.settle()
    call.answer({"content": "x" * size})
    await again.result()
    return asked


async def is_remembered(client: Client, asked: dict[str, Any]) -> bool:
    again = client.retry(asked, "slow", dict.fromkeys(asked["inputRequests"], YES))
    await again._done.wait()
    return again.answered


async def test_too_many_parked_calls_are_refused_and_the_others_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-003, MRTR-012."""
    monkeypatch.setattr(parking_module, "MAX_PARKED", 2)
    async with bench() as rig:
        client = rig.client(capabilities=ASKABLE)
        kept = [await parked(rig, client) for _ in range(2)]
        sent = client.call("slow")
        call = await rig.server.next_call()
        call.elicit()
        await rig.pass_time(GATHER_S)
        _, error = await sent.error()
        assert (error["code"], "try again later" in error["message"]) == (-32603, True)
        await call.cancelled.wait()
        for asked, _, question in kept:
            client.retry(asked, "slow", dict.fromkeys(asked["inputRequests"], YES))
            assert await question.answer() == YES


async def test_remembered_retries_make_room_for_parked_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking_module, "MAX_PARKED", 2)
    async with bench() as rig:
        client = rig.client(capabilities=ASKABLE)
        first, second = [await answered(rig, client) for _ in range(2)]
        _, call, _ = await parked(rig, client)
        assert not call.cancelled.is_set()
        assert not await is_remembered(client, first)
        assert await is_remembered(client, second)


async def test_what_is_remembered_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-003: counted are answers, outcomes and requests."""
    monkeypatch.setattr(parking_module, "MAX_BYTES", 50_000)
    async with bench() as rig:
        client = rig.client(capabilities=ASKABLE)
        states = [await answered(rig, client, size=10_000) for _ in range(4)]
        assert [await is_remembered(client, state) for state in states] == [False, False, True, True]


async def test_after_their_time_nothing_is_held() -> None:
    """MRTR-012."""
    async with bench() as rig:
        client = rig.client(capabilities=ASKABLE)
        await answered(rig, client)
        await parked(rig, client)
        assert repr(rig.conversion._parking) == "<Parking 2 states>"
        await rig.pass_time(600)
        assert repr(rig.conversion._parking) == "<Parking 0 states>"
        assert rig.calls.held == 0


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
async def test_a_jump_of_the_wall_clock_does_not_end_the_wait(jump_s: int) -> None:
    """MRTR-012: the wait is a duration."""
    async with bench() as rig:
        client = rig.client(capabilities=ASKABLE)
        asked, call, _ = await parked(rig, client)
        rig.clock.set_wall_ms(rig.clock.wall_ms() + jump_s * 1000)
        again = client.retry(asked, "slow", dict.fromkeys(asked["inputRequests"], YES))
        await rig.settle()
        call.answer()
        assert (await again.result())["resultType"] == "complete"
