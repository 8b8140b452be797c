"""What a legacy client is told unasked by a modern server, and its subscriptions.

Subscriptions 2026-07-28; contract section 7.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from proxy.errors import UpstreamClosed
from proxy.protocol import names
from tests.upstream.fake_transport import Sent, settle, until
from tests.upstream.lowered_bench import Lowered, greeted

pytestmark = pytest.mark.anyio

LISTS: Final[dict[str, Any]] = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}


def acknowledge(at: Lowered, stream: Sent, *uris: str) -> None:
    granted: dict[str, Any] = {"resourceSubscriptions": list(uris)} if uris else {}
    tell(at, stream, names.SUBSCRIPTIONS_ACKNOWLEDGED, notifications=granted)


def tell(at: Lowered, stream: Sent, method: str, **params: Any) -> None:
    meta = {names.META_SUBSCRIPTION_ID: stream.id}
    at.server.notify(method, {**params, "_meta": meta}, on=stream.id)


async def stream(at: Lowered, nth: int = 1) -> Sent:
    return await at.server.asked(names.SUBSCRIPTIONS_LISTEN, nth)


async def subscribe(at: Lowered, uri: str, method: str = names.RESOURCES_SUBSCRIBE) -> int:
    call = await at.send(method, {"uri": uri})
    await settle()
    return call


def wanted(sent: Sent) -> dict[str, Any]:
    return dict(sent.body["params"]["notifications"])


async def test_list_changes_are_asked_for_as_the_server_announces_them() -> None:
    """SUB-001: and told without the id that is between the server and us."""
    async with greeted(**LISTS) as at:
        listen = await stream(at)
        assert wanted(listen) == {"toolsListChanged": True}
        acknowledge(at, listen)
        tell(at, listen, names.TOOLS_LIST_CHANGED)
        await until(lambda: at.got())
        assert at.got() == [{"jsonrpc": "2.0", "method": names.TOOLS_LIST_CHANGED, "params": {}}]


async def test_where_nothing_is_announced_nothing_is_asked() -> None:
    async with greeted() as at:
        await settle()
        assert at.server.of(names.SUBSCRIPTIONS_LISTEN) == []


async def test_a_subscription_is_answered_when_the_server_has_acknowledged_it() -> None:
    async with greeted(**LISTS) as at:
        acknowledge(at, await stream(at))
        call = await subscribe(at, "a://x")
        assert at.got(call) == []
        second = await stream(at, 2)
        assert wanted(second) == {"toolsListChanged": True, "resourceSubscriptions": ["a://x"]}
        assert (await stream(at)).id in at.server.abandoned
        acknowledge(at, second, "a://x")
        assert await at.result(call) == {}
        tell(at, second, names.RESOURCES_UPDATED, uri="a://x")
        await until(lambda: at.got())
        assert at.got()[0]["params"] == {"uri": "a://x"}
        assert await at.result(await subscribe(at, "a://x")) == {}
        assert len(at.server.of(names.SUBSCRIPTIONS_LISTEN)) == 2


async def test_two_subscriptions_at_once_are_both_answered() -> None:
    async with greeted(**LISTS) as at:
        first = await at.send(names.RESOURCES_SUBSCRIBE, {"uri": "a"})
        second = await at.send(names.RESOURCES_SUBSCRIBE, {"uri": "b"})
        await settle()
        assert wanted(at.server.of(names.SUBSCRIPTIONS_LISTEN)[-1])["resourceSubscriptions"] == ["a", "b"]
        acknowledge(at, at.server.of(names.SUBSCRIPTIONS_LISTEN)[-1], "a", "b")
        assert (await at.result(first), await at.result(second)) == ({}, {})


async def test_one_that_goes_while_another_comes_keeps_nobody_waiting() -> None:
    async with greeted(**LISTS) as at:
        first = await subscribe(at, "a")
        acknowledge(at, at.server.of(names.SUBSCRIPTIONS_LISTEN)[-1], "a")
        await at.result(first)
        second = await subscribe(at, "b")
        gone = await subscribe(at, "a", names.RESOURCES_UNSUBSCRIBE)
        assert await at.result(gone) == {}
        await settle()
        newest = at.server.of(names.SUBSCRIPTIONS_LISTEN)[-1]
        assert wanted(newest)["resourceSubscriptions"] == ["b"]
        acknowledge(at, newest, "b")
        assert await at.result(second) == {}


async def test_what_the_server_does_not_grant_is_refused() -> None:
    async with greeted(**LISTS) as at:
        call = await subscribe(at, "a")
        acknowledge(at, at.server.of(names.SUBSCRIPTIONS_LISTEN)[-1])
        assert "does not tell of changes" in await at.lost(call)


@pytest.mark.parametrize("dies", [True, False])
async def test_a_server_that_refuses_or_breaks_the_stream_refuses_the_subscription_at_once(
    dies: bool,
) -> None:
    async with greeted(**LISTS) as at:
        call = await subscribe(at, "a")
        listen = at.server.of(names.SUBSCRIPTIONS_LISTEN)[-1]
        if dies:
            at.server.lose(listen.id, UpstreamClosed("broken"))
        else:
            at.server.answer(listen, error={"code": -32601, "message": "Method not found"})
        assert "does not tell of changes" in await at.lost(call)
        assert await at.result(await at.send(names.PING)) == {}


@pytest.mark.parametrize("params", [{}, {"uri": 1}, []])
async def test_a_subscription_to_nothing_is_refused(params: Any) -> None:
    async with greeted(**LISTS) as at:
        call = await at.send(names.RESOURCES_SUBSCRIBE, params)
        assert (await at.error(call))["code"] == -32602


async def test_a_lost_stream_is_opened_anew_and_what_may_have_changed_is_told_once() -> None:
    """STDIO-011, HTTP-047, F38: with growing pauses."""
    async with greeted(**LISTS) as at:
        acknowledge(at, await stream(at))
        at.server.lose((await stream(at)).id, UpstreamClosed("broken"))
        await settle()
        await at.clock.advance(0.5)
        at.server.lose((await stream(at, 2)).id, UpstreamClosed("broken"))
        await settle()
        await at.clock.advance(0.9)
        assert len(at.server.of(names.SUBSCRIPTIONS_LISTEN)) == 2
        await at.clock.advance(0.1)
        third = await stream(at, 3)
        assert at.got() == []
        acknowledge(at, third)
        await until(lambda: at.got())
        assert [m["method"] for m in at.got()] == [names.TOOLS_LIST_CHANGED]
        assert len({s.id for s in at.server.of(names.SUBSCRIPTIONS_LISTEN)}) == 3


async def test_a_changed_list_of_tools_makes_what_we_know_of_them_stale() -> None:
    """CACHE-005."""
    async with greeted(has_headers=True, **LISTS) as at:
        listen = await stream(at)
        for nth in (1, 2):
            await at.send(names.TOOLS_CALL, {"name": "t", "arguments": {}})
            at.server.answer(await at.server.asked(names.TOOLS_LIST, nth), {"tools": []})
            await at.server.asked(names.TOOLS_CALL, nth)
            tell(at, listen, names.TOOLS_LIST_CHANGED)


async def test_nonsense_on_the_stream_ends_nothing() -> None:
    async with greeted(declared={}, **LISTS) as at:
        listen = await stream(at)
        nonsense: list[dict[str, Any]] = [
            {"notifications": 1},
            {"notifications": {"resourceSubscriptions": {}}},
            {},
        ]
        for params in nonsense:
            tell(at, listen, names.SUBSCRIPTIONS_ACKNOWLEDGED, **params)
        at.server.ask(1, "roots/list", on=listen.id)
        assert "error" in await at.server.told(1)
        assert await at.result(await at.send(names.PING)) == {}
