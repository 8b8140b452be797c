"""The log level and the watched resources of one session, whose server may refuse, ignore or die."""

from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.errors import UpstreamClosed, UpstreamError, UpstreamProtocolError, UpstreamTimeout
from proxy.upstream import settings
from proxy.upstream.settings import LogLevel, WatchedResources
from tests.upstream.fake_ask import FakeUpstream
from tests.upstream.fake_transport import settle

pytestmark = pytest.mark.anyio

SET = "logging/setLevel"
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"
URI = "file:///a"


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "TURN_TIMEOUT_S", 0.02)


# -------------------------------------------------------------------------------------------- log level


async def test_a_level_is_told_once_and_before_the_caller_goes_on() -> None:
    """LOG-004."""
    upstream = FakeUpstream()
    level = LogLevel(upstream.ask, "fake")
    done: list[int] = []

    async def ensure(n: int) -> None:
        await level.ensure("debug")
        done.append(n)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for n in range(3):
                tasks.start_soon(ensure, n)
            request = await upstream.nth(1)
            await settle()
            assert done == []
            request.answer()
    assert done == [0, 1, 2]
    assert upstream.said == [(SET, {"level": "debug"})]


async def test_levels_are_told_in_the_order_in_which_they_were_wished() -> None:
    """The last word stays: each caller wishes the lowest level of all calls that are in flight then."""
    upstream = FakeUpstream()
    level = LogLevel(upstream.ask, "fake")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for name in ("error", "debug", "error", "info"):
                tasks.start_soon(level.ensure, name)
            for n in (1, 2, 3, 4):
                (await upstream.nth(n)).answer()
    assert [params["level"] for _, params in upstream.said] == ["error", "debug", "error", "info"]


@pytest.mark.parametrize("how", ["refused", "ignored", "died"])
async def test_a_level_that_does_not_come_to_pass_is_no_matter_of_the_caller(how: str) -> None:
    """And is not told again: a server that ignores it would hold up every call."""
    upstream = FakeUpstream()
    level = LogLevel(upstream.ask, "fake")
    with anyio.fail_after(5), capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(level.ensure, "debug")
            request = await upstream.nth(1)
            if how == "refused":
                request.refuse()
            else:
                request.fail(UpstreamTimeout("in time") if how == "ignored" else UpstreamClosed("died"))
        await level.ensure("debug")
    assert len(upstream.asked) == 1
    assert [e["event"] for e in logs] == ["upstream_setting_failed"]


async def test_a_level_whose_caller_went_away_is_told_again() -> None:
    """Nobody knows whether the server took it; so the one before is not known either."""
    upstream = FakeUpstream()
    level = LogLevel(upstream.ask, "fake")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(level.ensure, "debug")
            (await upstream.nth(1)).answer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(level.ensure, "error")
            await upstream.nth(2)
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(level.ensure, "debug")
            (await upstream.nth(3)).answer()


async def test_nobody_waits_long_behind_others(short_turns: None) -> None:
    """I6: the server has answered the first request of all not yet."""
    upstream = FakeUpstream()
    level = LogLevel(upstream.ask, "fake")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(level.ensure, "debug")
            await upstream.nth(1)
            await level.ensure("error")
            assert len(upstream.asked) == 1
            upstream.asked[0].answer()


# --------------------------------------------------------------------------------------------- resources


async def test_one_subscription_however_many_listen() -> None:
    """SUB-010, SUB-008."""
    upstream = FakeUpstream()
    resources = WatchedResources(upstream.ask, "fake")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(resources.watch, URI)
            (await upstream.nth(1)).answer()
        await resources.unwatch(URI)
        await resources.unwatch(URI)
        assert upstream.said == [(SUBSCRIBE, {"uri": URI})]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resources.unwatch, URI)
            (await upstream.nth(2)).answer()
    assert upstream.said[1:] == [(UNSUBSCRIBE, {"uri": URI})]


@pytest.mark.parametrize(
    ("how", "error"),
    [("refused", UpstreamProtocolError), ("ignored", UpstreamTimeout), ("died", UpstreamClosed)],
)
async def test_who_could_not_subscribe_does_not_count(how: str, error: type[UpstreamError]) -> None:
    upstream = FakeUpstream()
    resources = WatchedResources(upstream.ask, "fake")

    async def watch_in_vain() -> None:
        with pytest.raises(error):
            await resources.watch(URI)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch_in_vain)
            request = await upstream.nth(1)
            request.refuse() if how == "refused" else request.fail(error(how))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resources.watch, URI)
            (await upstream.nth(2)).answer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resources.unwatch, URI)
            (await upstream.nth(3)).answer()
    assert [method for method, _ in upstream.said] == [SUBSCRIBE, SUBSCRIBE, UNSUBSCRIBE]


async def test_a_listener_that_goes_away_while_subscribing_leaves_the_others_theirs() -> None:
    upstream = FakeUpstream()
    resources = WatchedResources(upstream.ask, "fake")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as others:
            async with anyio.create_task_group() as first:
                first.start_soon(resources.watch, URI)
                await upstream.nth(1)
                others.start_soon(resources.watch, URI)
                await settle()
                first.cancel_scope.cancel()
            (await upstream.nth(2)).answer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resources.unwatch, URI)
            (await upstream.nth(3)).answer()
    assert [method for method, _ in upstream.said] == [SUBSCRIBE, SUBSCRIBE, UNSUBSCRIBE]


async def test_who_comes_while_the_last_one_leaves_is_subscribed_again() -> None:
    upstream = FakeUpstream()
    resources = WatchedResources(upstream.ask, "fake")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resources.watch, URI)
            (await upstream.nth(1)).answer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resources.unwatch, URI)
            leaving = await upstream.nth(2)
            tasks.start_soon(resources.watch, URI)
            await settle()
            leaving.answer()
            (await upstream.nth(3)).answer()
    assert [method for method, _ in upstream.said] == [SUBSCRIBE, UNSUBSCRIBE, SUBSCRIBE]


async def test_an_unsubscribe_that_fails_is_over_all_the_same() -> None:
    """The next listener subscribes anew, for nobody knows what the server made of it."""
    upstream = FakeUpstream()
    resources = WatchedResources(upstream.ask, "fake")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resources.watch, URI)
            (await upstream.nth(1)).answer()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resources.unwatch, URI)
            (await upstream.nth(2)).fail(UpstreamTimeout("in time"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resources.watch, URI)
            (await upstream.nth(3)).answer()
    assert [method for method, _ in upstream.said] == [SUBSCRIBE, UNSUBSCRIBE, SUBSCRIBE]


async def test_nobody_waits_long_for_a_turn(short_turns: None) -> None:
    """I6: a server that leaves one subscription unanswered holds up no other listener, nor one who leaves."""
    upstream = FakeUpstream()
    resources = WatchedResources(upstream.ask, "fake")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resources.watch, "file:///ignored")
            await upstream.nth(1)
            with pytest.raises(UpstreamTimeout):
                await resources.watch(URI)
            upstream.asked[0].answer()
            await settle()
            tasks.start_soon(resources.watch, URI)
            (await upstream.nth(2)).answer()
            await settle()
            tasks.start_soon(resources.watch, "file:///ignored/too")
            await upstream.nth(3)
            await resources.unwatch(URI)
            upstream.asked[2].answer()
