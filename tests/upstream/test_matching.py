"""The transport for one legacy client: which way it goes, and what a changed server does to it.

The client's `initialize` goes out plainly where nothing is known. Contract section 2, "Upstream's era".
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import anyio
import pytest

from proxy.eras.era import Era
from proxy.errors import UpstreamClosed, UpstreamRefused
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import dumps
from proxy.upstream import matching as matching_module
from proxy.upstream.matching import PROBE_ID, MatchingTransport
from proxy.upstream.probe import UpstreamEra
from tests.upstream.fake_transport import MAX_DEPTH, FakeTransport, initialize_result, settle, until
from tests.upstream.told import Told

pytestmark = pytest.mark.anyio

REFUSAL: Final = {"code": -32601, "message": "Method not found"}
MODERN_REFUSAL: Final = {"code": -32022, "message": "version", "data": {"supported": ["2026-07-28"]}}
DISCOVERED: Final = {"supportedVersions": ["2026-07-28"], "capabilities": {}}


@dataclass
class Matching:
    era: UpstreamEra
    plain: FakeTransport = field(default_factory=FakeTransport)
    lowered: FakeTransport = field(default_factory=FakeTransport)
    told: Told = field(default_factory=Told)
    made: list[str] = field(default_factory=list)
    transport: MatchingTransport = field(init=False)

    def __post_init__(self) -> None:
        self.transport = MatchingTransport(self._plain, self._lowered, self.era, b"{}", MAX_DEPTH)

    def _plain(self) -> FakeTransport:
        self.made.append("plain")
        return self.plain

    def _lowered(self) -> FakeTransport:
        self.made.append("lowered")
        return self.lowered

    async def initialize(self) -> None:
        await self.transport.send(jsonrpc.request(1, names.INITIALIZE, dumps({"capabilities": {}})), call=1)

    def got(self) -> list[dict[str, Any]]:
        return [json.loads(m) for m, _ in self.told.received_]


@asynccontextmanager
async def matching(known: Era | None = None, *, configured: bool = False) -> AsyncIterator[Matching]:
    """Closed at the end; all was told once, and nothing is left."""
    era = UpstreamEra(known if configured else None)
    if known is not None:
        era.found(known)
    at = Matching(era)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            await tasks.start(at.transport.run, at.told)
            yield at
            at.transport.close()
    assert [call for call, _ in at.told.losses].count(None) == 1
    assert at.plain.ended or "plain" not in at.made
    assert at.lowered.ended or "lowered" not in at.made


async def test_before_a_legacy_server_nothing_is_different() -> None:
    """VER-014: no probe, the same bytes."""
    async with matching() as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), initialize_result())
        await at.transport.send(jsonrpc.request(2, names.TOOLS_LIST, None), call=2)
        at.plain.answer(await at.plain.asked(names.TOOLS_LIST), error=REFUSAL)
        assert [m.method for m in at.plain.sent] == [names.INITIALIZE, names.TOOLS_LIST]
        assert [m["id"] for m in at.got()] == [1, 2]
        assert at.made == ["plain"]


async def test_once_the_handshake_is_done_nothing_is_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes is long, and read by others already."""
    async with matching() as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), initialize_result())
        at.transport.established("2025-11-25")

        def read(*_: Any) -> None:
            raise AssertionError("a message was read")

        for name in ("check", "is_modern_error", "replies"):
            monkeypatch.setattr(matching_module, name, read)
        await at.transport.send(jsonrpc.request(2, names.TOOLS_LIST, None), call=2)
        at.plain.answer(await at.plain.asked(names.TOOLS_LIST), {"tools": []})
        assert [m["id"] for m in at.got()] == [1, 2]


async def test_a_refusal_that_only_modern_servers_send_decides_at_once() -> None:
    """VER-011, VER-013: refused, it has not run; so it goes the other way, once."""
    async with matching() as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), error=MODERN_REFUSAL)
        again = await at.lowered.asked(names.INITIALIZE)
        assert (again.id, again.call) == (1, 1)
        at.lowered.answer(again, initialize_result())
        await until(at.got)
        assert at.era.known is Era.MODERN
        assert at.plain.closed
        assert len(at.plain.sent) == 1
        assert [m.get("error") for m in at.got()] == [None]


async def test_an_ordinary_refusal_is_looked_into() -> None:
    async with matching() as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), error=REFUSAL)
        probe = await at.plain.asked(names.DISCOVER)
        assert probe.id == PROBE_ID
        at.plain.answer(probe, DISCOVERED)
        at.lowered.answer(await at.lowered.asked(names.INITIALIZE), initialize_result())
        await until(at.got)
        assert at.got()[0]["result"]["serverInfo"]


@pytest.mark.parametrize("answer", [{"error": REFUSAL}, {"result": {"content": []}}])
async def test_a_legacy_server_that_refuses_is_heard(answer: dict[str, Any]) -> None:
    async with matching() as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), error=REFUSAL)
        at.plain.answer(await at.plain.asked(names.DISCOVER), **answer)
        await until(at.got)
        assert at.got() == [{"jsonrpc": "2.0", "id": 1, "error": REFUSAL}]
        assert at.made == ["plain"]
        assert at.era.known is None
        assert at.plain.abandoned == [PROBE_ID]


async def test_of_a_question_that_is_not_answered_in_time_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching_module, "PROBE_TIMEOUT_S", 0.0)
    async with matching() as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), error=REFUSAL)
        await until(at.got)
        assert at.got() == [{"jsonrpc": "2.0", "id": 1, "error": REFUSAL}]
        assert at.plain.abandoned == [PROBE_ID]


async def test_a_server_that_dies_of_the_question_after_refusing_has_refused() -> None:
    async with matching() as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), error=REFUSAL)
        await at.plain.asked(names.DISCOVER)
        at.plain.die(UpstreamClosed("it died"))
        await until(at.got)
        assert at.got() == [{"jsonrpc": "2.0", "id": 1, "error": REFUSAL}]


async def test_credentials_that_are_refused_decide_nothing() -> None:
    async with matching() as at:
        await at.initialize()
        await at.plain.asked(names.INITIALIZE)
        at.plain.lose(1, UpstreamRefused("401", status=HTTPStatus.UNAUTHORIZED, challenges=()))
        await until(lambda: at.told.loss_of(1))
        assert at.plain.of(names.DISCOVER) == []


async def test_a_handshake_that_is_lost_is_looked_into_too() -> None:
    """As over HTTP, where a modern server answers 400 without a word of JSON."""
    async with matching() as at:
        await at.initialize()
        await at.plain.asked(names.INITIALIZE)
        at.plain.lose(1, UpstreamClosed("400"))
        at.plain.answer(await at.plain.asked(names.DISCOVER), error=REFUSAL)
        await until(lambda: at.told.loss_of(1))
        assert str(at.told.loss_of(1)) == "400"


async def test_a_known_modern_server_is_never_greeted_plainly() -> None:
    async with matching(Era.MODERN) as at:
        await at.initialize()
        at.lowered.answer(await at.lowered.asked(names.INITIALIZE), error=REFUSAL)
        await until(at.got)
        assert at.made == ["lowered"]


async def test_a_server_that_was_legacy_and_is_modern_now_is_noticed_by_its_refusal() -> None:
    """VER-009, issue 7: a new version was deployed while we run."""
    async with matching(Era.LEGACY) as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), error=MODERN_REFUSAL)
        at.lowered.answer(await at.lowered.asked(names.INITIALIZE), initialize_result())
        await until(at.got)
        assert at.era.known is Era.MODERN


async def test_a_known_legacy_server_is_not_asked_for_an_ordinary_refusal() -> None:
    async with matching(Era.LEGACY) as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), error=REFUSAL)
        await until(at.got)
        assert at.plain.of(names.DISCOVER) == []


async def test_where_the_settings_say_legacy_a_refusal_is_passed_on() -> None:
    async with matching(Era.LEGACY, configured=True) as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), error=MODERN_REFUSAL)
        await until(at.got)
        assert at.got()[0]["error"] == MODERN_REFUSAL
        assert at.made == ["plain"]


async def test_closed_while_the_question_is_open_nothing_is_left() -> None:
    async with matching() as at:
        await at.initialize()
        at.plain.answer(await at.plain.asked(names.INITIALIZE), error=REFUSAL)
        await at.plain.asked(names.DISCOVER)
        at.transport.close()
        await settle()
    assert at.made == ["plain"]


async def test_what_the_left_server_still_says_is_nobodys() -> None:
    async with matching() as at:
        at.plain.ends_when_closed = False
        await at.initialize()
        refused = await at.plain.asked(names.INITIALIZE)
        at.plain.answer(refused, error=MODERN_REFUSAL)
        await at.lowered.asked(names.INITIALIZE)
        at.plain.notify("notifications/message", {"level": "info", "data": "bye"})
        at.plain.die(UpstreamClosed("ended"))
        await settle()
        assert at.got() == []
        assert at.told.losses == []
