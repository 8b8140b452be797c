"""Streams of an earlier process, fetched from where it left them; and streams that fall silent.

Transports 2025-11-25, "Resumability and Redelivery"; contract section 9; F24.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web

from proxy.errors import SessionLost, UpstreamClosed, UpstreamError
from proxy.upstream import http
from proxy.upstream.base import StreamPosition
from proxy.upstream.http import AdoptedSession, HttpTransport, make_client
from tests.manual_clock import ManualClock
from tests.upstream.fake_http import (
    FakeHttp,
    Handler,
    Seen,
    event,
    for_requests,
    hang,
    one_by_one,
    replies,
    result_for,
    start_stream,
    status,
    stream,
)
from tests.upstream.fake_transport import settle
from tests.upstream.told import Told, until

pytestmark = pytest.mark.anyio

VERSION = "2025-11-25"
NOTE = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}'
ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{}}'
LEFT = AdoptedSession("left", VERSION, is_ours=True)


class Rig:
    def __init__(
        self, transport: HttpTransport, told: Told, clock: ManualClock, token: dict[str, str]
    ) -> None:
        self.transport = transport
        self.told = told
        self.clock = clock
        self.token = token

    async def retry(self, seconds: float = 1.0) -> None:
        await until(lambda: self.clock.sleeping)
        await self.clock.advance(seconds)

    async def heard(self, count: int) -> None:
        await until(lambda: len(self.told.of(7)) >= count)

    async def lost(self, call: int) -> UpstreamError:
        """Once it is, however often it is tried again."""
        while (error := self.told.loss_of(call)) is None:
            await until(lambda: self.clock.sleeping or self.told.loss_of(call))
            await self.clock.advance(1)
        return error


@asynccontextmanager
async def adopted(upstream: FakeHttp, session: AdoptedSession = LEFT) -> AsyncIterator[Rig]:
    token = {"Authorization": "Bearer old"}
    async with make_client() as client:
        told, clock = Told(), ManualClock()
        transport = HttpTransport(
            upstream.url,
            name="search",
            max_bytes=1 << 20,
            client=client,
            headers=lambda: dict(token),
            clock=clock,
            adopted=session,
        )
        async with anyio.create_task_group() as tasks:
            await tasks.start(transport.run, told)
            try:
                yield Rig(transport, told, clock, token)
            finally:
                transport.close()


@pytest.fixture
async def upstream() -> AsyncIterator[FakeHttp]:
    async with FakeHttp().serving() as fake:
        yield fake


@pytest.fixture
async def ahead(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Awaitable[None]]:
    """`await ahead(seconds)`: the event loop's clock jumps, and who waited until then is woken."""
    loop = asyncio.get_running_loop()
    real, jumped = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + sum(jumped))

    async def jump(seconds: float) -> None:
        jumped.append(seconds)
        await settle()

    return jump


async def test_the_rest_of_a_stream_is_fetched_and_nothing_is_posted(upstream: FakeHttp) -> None:
    """HTTP-076: in the session, at the version and from the event that the earlier process had."""
    upstream.handlers["GET"] = stream(event(NOTE, id="e8"), event(ANSWER, id="e9"))
    async with adopted(upstream) as rig:
        rig.transport.take_up(7, "e7")
        await rig.retry()
        await until(lambda: len(rig.told.of(7)) == 2)
    assert rig.told.of(7) == [NOTE, ANSWER]
    assert rig.told.loss_of(7) is None
    (get,) = upstream.by("GET")
    assert get.headers["Last-Event-ID"] == "e7"
    assert get.headers["Mcp-Session-Id"] == "left"
    assert get.headers["MCP-Protocol-Version"] == VERSION
    assert not upstream.by("POST")


async def test_the_position_is_told_with_each_event_but_never_that_of_the_answer(upstream: FakeHttp) -> None:
    """Whoever comes later must find the answer behind it."""
    upstream.handlers["GET"] = stream(event(NOTE, id="e8"), event(b"", id="e9"), event(ANSWER, id="e10"))
    async with adopted(upstream) as rig:
        rig.transport.take_up(7, "e7")
        await rig.retry()
        await until(lambda: len(rig.told.of(7)) == 2)
    assert rig.told.positions == [StreamPosition("left", VERSION, 7, e) for e in ("e8", "e9")]


async def test_a_posted_calls_position_is_told_from_its_first_event_on(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = replies(
        lambda seen: [event(b"", id="p0"), event(NOTE, id="p1"), event(result_for(seen), id="p2")]
    )
    async with adopted(upstream) as rig:
        await rig.transport.send(b'{"jsonrpc":"2.0","id":7,"method":"tools/call"}', call=7)
        await until(lambda: len(rig.told.of(7)) == 2)
    assert [position.event_id for position in rig.told.positions] == ["", "p0", "p1"]


@pytest.mark.parametrize(("is_ours", "deleted"), [(True, 1), (False, 0)])
async def test_only_a_session_of_ours_is_ended(upstream: FakeHttp, is_ours: bool, deleted: int) -> None:
    """One of a client's stays the client's."""
    async with adopted(upstream, AdoptedSession("left", VERSION, is_ours=is_ours)):
        pass
    assert len(upstream.by("DELETE")) == deleted


@pytest.mark.parametrize(
    ("play", "kind", "attempts"),
    [
        (status(404), SessionLost, 1),
        (status(400), UpstreamClosed, 1),
        (status(405), UpstreamClosed, 1),
        (status(503), UpstreamClosed, http.RESUME_ATTEMPTS),
        (status(401), UpstreamClosed, http.RESUME_ATTEMPTS),
        (stream(), UpstreamClosed, http.RESUME_ATTEMPTS),
    ],
    ids=["session gone", "bad request", "not offered", "busy", "refused", "ends at once"],
)
async def test_what_cannot_be_had_leaves_the_outcome_unknown(
    upstream: FakeHttp, play: Handler, kind: type[UpstreamError], attempts: int
) -> None:
    upstream.handlers["GET"] = play
    async with adopted(upstream) as rig:
        rig.transport.take_up(7, "e7")
        error = await rig.lost(7)
    assert type(error) is kind
    assert "outcome unknown" in error.message
    assert len(upstream.by("GET")) == attempts


async def test_a_token_that_was_renewed_meanwhile_is_used(upstream: FakeHttp) -> None:
    """Contract section 8: a task uses its owner's latest token."""
    upstream.handlers["GET"] = one_by_one(status(401), stream(event(ANSWER)))
    async with adopted(upstream) as rig:
        rig.transport.take_up(7, "e7")
        await rig.retry()
        await until(lambda: upstream.by("GET"))
        rig.token["Authorization"] = "Bearer new"
        await rig.retry()
        await until(lambda: rig.told.of(7))
    assert [get.headers["Authorization"] for get in upstream.by("GET")] == ["Bearer old", "Bearer new"]


async def test_a_resumed_stream_that_falls_silent_is_asked_for_again(
    upstream: FakeHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """npm server-everything replays what was missed and then says no more on that stream. However often."""
    monkeypatch.setattr(http, "QUIET_FIRST_S", 0.02)
    monkeypatch.setattr(http, "QUIET_LAST_S", 0.04)
    silences = 2 * http.RESUME_ATTEMPTS
    upstream.handlers["GET"] = one_by_one(
        stream(event(NOTE, id="e8"), hold=True),
        *[stream(b": still here\n\n", hold=True)] * silences,
        stream(event(ANSWER, id="e9")),
    )
    async with adopted(upstream) as rig:
        rig.transport.take_up(7, "e7")
        for number in range(silences + 2):
            await rig.retry()
            await upstream.gets(number + 1)
        await until(lambda: rig.told.of(7)[-1:] == [ANSWER])
    asked_from = [get.headers["Last-Event-ID"] for get in upstream.by("GET")]
    assert asked_from == ["e7", *["e8"] * (silences + 1)]
    assert rig.told.of(7) == [NOTE, ANSWER]


async def test_a_resumed_stream_that_speaks_is_not_asked_for_again(
    upstream: FakeHttp, ahead: Callable[[float], Awaitable[None]]
) -> None:
    """However long it takes in all."""
    goes_on = anyio.Event()
    upstream.handlers["GET"] = _stops_for(goes_on, event(NOTE, id="e8"), event(NOTE, id="e9"))
    async with adopted(upstream) as rig:
        rig.transport.take_up(7, "e7")
        await rig.retry()
        await rig.heard(1)
        await ahead(0.75 * http.QUIET_FIRST_S)
        goes_on.set()
        await rig.heard(2)
        await ahead(0.75 * http.QUIET_FIRST_S)
        assert not rig.clock.sleeping
        await ahead(0.5 * http.QUIET_FIRST_S)
        await until(lambda: rig.clock.sleeping)


async def test_a_resumed_stream_may_be_silent_for_longer_each_time(
    upstream: FakeHttp, ahead: Callable[[float], Awaitable[None]]
) -> None:
    """One that has nothing to say is not asked for all the time."""
    notes = [event(NOTE, id=f"e{8 + n}") for n in range(7)]
    upstream.handlers["GET"] = one_by_one(*(stream(note, hold=True) for note in notes))
    silences = [http.QUIET_FIRST_S * 2**n for n in range(4)] + [http.QUIET_LAST_S] * 2
    assert silences[3] < http.QUIET_LAST_S < 2 * silences[3]
    async with adopted(upstream) as rig:
        rig.transport.take_up(7, "e7")
        for number, silence_s in enumerate(silences):
            await rig.retry()
            await rig.heard(number + 1)
            await ahead(0.75 * silence_s)
            assert not rig.clock.sleeping
            await ahead(0.5 * silence_s)
            await until(lambda: rig.clock.sleeping)


def _stops_for(goes_on: anyio.Event, first: bytes, second: bytes) -> Handler:
    """A stream with a pause."""

    async def play(seen: Seen) -> web.StreamResponse:
        response = await start_stream(seen)
        await response.write(first)
        await goes_on.wait()
        await response.write(second)
        await anyio.sleep_forever()
        raise AssertionError

    return play


async def test_a_first_stream_may_be_as_silent_as_it_likes(
    upstream: FakeHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that were resumed are in doubt."""
    monkeypatch.setattr(http, "QUIET_FIRST_S", 0.0)
    upstream.handlers["POST"] = for_requests(stream(event(NOTE, id="p0"), hold=True))
    async with adopted(upstream) as rig:
        await rig.transport.send(b'{"jsonrpc":"2.0","id":7,"method":"tools/call"}', call=7)
        await until(lambda: rig.told.of(7))
        await rig.clock.advance(600)
    assert not upstream.by("GET")


async def test_a_call_that_is_abandoned_while_it_is_fetched_is_dropped(upstream: FakeHttp) -> None:
    upstream.handlers["GET"] = hang
    async with adopted(upstream) as rig:
        rig.transport.take_up(7, "e7")
        await rig.retry()
        await until(lambda: upstream.by("GET"))
        rig.transport.abandon(7)
        await until(lambda: upstream.dropped)
    assert rig.told.loss_of(7) is None
