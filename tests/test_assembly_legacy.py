"""What legacy clients are served from, by the configuration. Contract sections 5, 9 and 11."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from proxy.assembly import Parts, assemble, policy_of
from proxy.config import Config
from proxy.eras.to_modern import ServerInfo
from proxy.errors import UpstreamUnavailable
from proxy.metrics import Metrics
from proxy.owners import ANONYMOUS, Owner
from proxy.protocol import names
from proxy.routing.http_passthrough import HttpPassthrough
from proxy.routing.http_tasks import HttpTasks
from proxy.routing.passed_session import PassedSession, SessionFacts
from proxy.routing.session_layer import SessionLayer
from proxy.stores.memory import MemoryStore
from proxy.tasks import lifecycle
from proxy.tasks.lost_call import CallTrace
from proxy.tasks.policy import Polling
from proxy.tasks.task import Task
from proxy.upstream.http import make_client
from tests.manual_clock import ManualClock
from tests.routing.bench_2025 import FakeChannel
from tests.tasks.examples import CREATED_MS
from tests.upstream.fake_transport import settle

pytestmark = pytest.mark.anyio

URL: dict[str, Any] = {"url": "http://127.0.0.1:9/mcp"}
COMMAND: dict[str, Any] = {"command": ["true"]}
ADA = Owner("token-ada")


@asynccontextmanager
async def assembled(upstream: dict[str, Any], **tasks: Any) -> AsyncIterator[tuple[Parts, MemoryStore]]:
    config = Config.model_validate({"upstream": upstream, "tasks": tasks})
    clock = ManualClock()
    store = MemoryStore(clock)
    async with make_client() as client:
        yield await assemble(config, policy_of(config), store, client, clock, Metrics()), store


async def test_switched_off_nothing_stands_before_what_passes() -> None:
    """`tasks.legacy_2025: false`: `initialize` and `tools/list` are the server's own, byte by byte."""
    async with assembled(URL, legacy_2025=False) as (parts, _):
        handler = parts.legacy.handler(parts.legacy.session_layer())
        assert isinstance(handler, HttpPassthrough)
        assert parts.legacy.task_grant(ADA, lists=True) is None


async def test_they_are_there_unless_they_are_switched_off() -> None:
    async with assembled(URL) as (parts, _):
        assert isinstance(parts.legacy.handler(parts.legacy.session_layer()), HttpTasks)
    async with assembled(COMMAND) as (parts, _):
        layer = parts.legacy.session_layer()
        assert isinstance(layer, SessionLayer)
        assert parts.legacy.handler(layer) is layer
        assert parts.legacy.task_grant(ADA, lists=True) is not None


@pytest.mark.parametrize(("owner", "has_list"), [(ADA, True), (ANONYMOUS, False)])
async def test_an_initialize_is_answered_by_these_terms(owner: Owner, has_list: bool) -> None:
    """T25-LST-006, T25-SEC-006: the bounds of `ttl` are those of the configuration."""
    async with assembled(COMMAND, ttl={"least": "1s", "most": "2s"}) as (parts, _):
        grant = parts.legacy.task_grant(owner, lists=not owner.is_anonymous)
        assert grant is not None

        def nowhere() -> Any:
            raise AssertionError("no call is made")

        asked = b'{"protocolVersion":"2025-11-25","capabilities":{}}'
        said = b'{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}'
        told, session = grant.grant(asked, said, nowhere)
        assert (b'"list"' in told) is has_list
        assert session is not None
        assert (session._terms.least_ttl_ms, session._terms.most_ttl_ms) == (1_000, 2_000)
        assert not session.can_answer("roots/list", None)


def interrupted(store_id: str, owner: Owner = ADA) -> Task:
    return lifecycle.created(
        id="tpx-" + store_id * 32,
        owner=owner.key,
        method="tools/call",
        name="slow",
        now_ms=CREATED_MS,
        retention_ms=1_000,
    )


async def test_a_session_whose_end_was_put_off_waits_for_tasks_that_use_it_again_only_later() -> None:
    """Contract sections 5 and 9: their calls wait for the owner's token, and hold no session meanwhile."""
    async with assembled(URL) as (parts, store):
        trace = CallTrace("s", "2025-11-25", 1, "e", is_ours=False)
        tasks = [interrupted("a"), interrupted("b")]
        for task in tasks:
            await store.create(task)
            await parts.legacy._place_of(ADA, task, trace)
        ended = anyio.Event()

        async def wait() -> None:
            await parts.legacy._tasks_ended("s")
            ended.set()

        with anyio.fail_after(5):
            await parts.legacy._tasks_ended("another")
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                for task in tasks:
                    await settle()
                    assert not ended.is_set()
                    await store.compare_and_set(task, lifecycle.cancelled(task, Polling(), CREATED_MS))
        assert ended.is_set()


async def test_calls_of_tasks_use_the_clients_session_and_what_comes_of_the_session_is_told_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Contract section 5: its id, its version, its credentials of whatever name; list changes that come to
    a call of ours are the client's matter."""
    async with assembled(URL) as (parts, _):
        made: list[tuple[Any, ...]] = []

        def adoption(*args: Any) -> Any:
            made.append(args)
            raise UpstreamUnavailable("this is as far as it goes")

        monkeypatch.setattr(parts.upstream, "adoption", adoption)
        info = ServerInfo("2025-06-18", b"{}", None, None)
        session = PassedSession("s", SessionFacts("2025-06-18"), info)
        part = parts.legacy.passed.part(session, ADA, [("X-Api-Key", "k"), ("Mcp-Session-Id", "s")])
        with pytest.raises(UpstreamUnavailable):
            async with part.adopted.lease():
                raise AssertionError("there is none")
        [(known, said, headers, tell)] = made
        assert (known.id, known.version, known.is_ours) == ("s", "2025-06-18", False)
        assert said is info
        assert headers() == {"x-api-key": "k"}
        tell(names.TOOLS_LIST_CHANGED, None)
        channel = FakeChannel()
        part.tasks.set_channel(channel)
        tell(names.RESOURCES_UPDATED, b'{"uri":"x"}')
        assert channel.told(names.RESOURCES_UPDATED) == [{"uri": "x"}]
        assert len(channel.said) == 1


async def test_after_a_restart_the_owners_token_is_used_until_it_is_heard_of_again() -> None:
    """Contract section 8: in stand-in mode a task uses its owner's latest token."""
    async with assembled(URL) as (parts, _):
        info = ServerInfo("2025-11-25", b"{}", None, None)
        part = parts.legacy.passed.part(PassedSession("s", SessionFacts(), info), ADA)
        assert parts.legacy._headers(part, ADA) == {}
        parts.upstream.credentials.note(ADA, "Bearer t")
        assert parts.legacy._headers(part, ADA) == {"authorization": "Bearer t"}


async def test_a_task_uses_its_owners_latest_token_whatever_session_that_came_in() -> None:
    """Contract section 8. A message with one that the server has refused does not bring that back."""
    async with assembled(URL) as (parts, _):
        info = ServerInfo("2025-11-25", b"{}", None, None)
        part = parts.legacy.passed.part(PassedSession("s", SessionFacts(), info), ADA)
        parts.upstream.credentials.note(ADA, "Bearer new")
        part.headers = [("AUTHORIZATION", "Bearer old"), ("Cookie", "c=1")]
        assert parts.legacy._headers(part, ADA) == {"authorization": "Bearer new", "cookie": "c=1"}
