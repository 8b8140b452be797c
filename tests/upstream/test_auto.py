"""The choice between Streamable HTTP and HTTP+SSE, as a session and as a server see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest

from proxy.errors import SessionLost, UpstreamClosed, UpstreamError, UpstreamRefused, UpstreamUnavailable
from proxy.protocol import jsonrpc
from proxy.upstream.auto import AutoHttpTransport, KnownServer
from proxy.upstream.base import Transport
from proxy.upstream.endpoint import UnexpectedStatus
from proxy.upstream.http import make_client
from tests.manual_clock import ManualClock
from tests.upstream.fake_http import (
    FakeHttp,
    Handler,
    event,
    for_requests,
    hang,
    result_for,
    status,
    stream,
)
from tests.upstream.fake_sse import FakeSse, announce, only_old
from tests.upstream.told import Told, until

pytestmark = pytest.mark.anyio

NOTE = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}'
INITIALIZE = b'{"id":0, "jsonrpc":"2.0","method":"initialize","params":{"x":1e2}}'


def error_with(code: int, id: str = "null") -> bytes:
    return b'{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"no"}}' % (id.encode(), code)


def json(code: int, body: bytes) -> Handler:
    return status(code, body, Content_Type="application/json")


class Rig:
    def __init__(self, http: FakeHttp, client: aiohttp.ClientSession, known: KnownServer) -> None:
        self.client = client
        self.told = Told()
        self.clock = ManualClock()
        self.transport = AutoHttpTransport(
            http.url,
            name="search",
            max_bytes=1 << 20,
            client=client,
            headers=lambda: {"Authorization": "Bearer secret-token"},
            clock=self.clock,
            known=known,
        )

    async def initialize(self) -> None:
        await self.transport.send(INITIALIZE, call=0)

    async def initialized(self) -> None:
        await self.initialize()
        await until(lambda: self.told.received_)

    async def lost(self, call: int | None) -> UpstreamError:
        await until(lambda: self.told.loss_of(call))
        error = self.told.loss_of(call)
        assert error is not None
        return error


@asynccontextmanager
async def running(http: FakeHttp, known: KnownServer | None = None) -> AsyncIterator[Rig]:
    """A started rig; at its end it was closed, all was told once, and no connection is left."""
    async with make_client() as client:
        rig = Rig(http, client, known or KnownServer())
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                await tasks.start(rig.transport.run, rig.told)
                try:
                    yield rig
                finally:
                    rig.transport.close()
        assert [call for call, _ in rig.told.losses].count(None) == 1
        assert isinstance(client.connector, aiohttp.BaseConnector)
        assert not client.connector._acquired


@pytest.fixture
async def http() -> AsyncIterator[FakeHttp]:
    async with FakeHttp().serving() as fake:
        yield fake


@pytest.fixture
def old(http: FakeHttp) -> FakeSse:
    """A server that answers 405 to a POST at the address of its stream."""
    old = FakeSse(http)
    old.on_post = only_old(old, status(405))
    return old


def posts(http: FakeHttp) -> list[tuple[str, bytes]]:
    return [(seen.path, seen.body) for seen in http.by("POST")]


# -- which one is chosen ------------------------------------------------------------------------------


async def test_a_server_of_streamable_http_notices_no_difference(http: FakeHttp) -> None:
    """VER-014."""
    known = KnownServer()
    async with running(http, known) as rig:
        await rig.initialized()
        await rig.transport.send(NOTE)
        assert not http.by("GET")
        rig.transport.established("2025-11-25")
        await until(lambda: http.by("GET"))
        assert rig.transport.describe().startswith("http http://")
    assert rig.told.received_ == [(result_for(http.by("POST")[0]), 0)]
    assert http.seen[-1].method == "DELETE"
    assert not known.is_old


@pytest.mark.parametrize(
    "refusal",
    [
        status(405),
        status(404, b"<pre>Cannot POST /mcp</pre>", Content_Type="text/html"),
        status(400, b"Bad Request"),
        json(400, error_with(-32600)),
        json(404, error_with(-32601, "0")),
        json(400, b'{"jsonrpc":"2.0","id":0,"error":{"code":-32600,"code":-32022}}'),
    ],
)
async def test_an_old_server_gets_the_same_request_by_its_own_transport(
    http: FakeHttp, old: FakeSse, refusal: Handler
) -> None:
    """VER-014, HTTP-077, I2: refused, it has not run."""
    old.on_post = only_old(old, refusal)
    known = KnownServer()
    async with running(http, known) as rig:
        await rig.initialized()
        rig.transport.established("2024-11-05")
        await rig.transport.send(NOTE)
        await rig.transport.send(jsonrpc.request(1, "tools/call", b"{}"), call=1)
        await until(lambda: len(rig.told.received_) == 2)
        assert rig.told.losses == []
        assert rig.transport.describe() == "sse " + http.url
    _, *here = http.by("POST")
    assert posts(http)[:3] == [
        ("/mcp", INITIALIZE),
        ("/messages?sid=1", INITIALIZE),
        ("/messages?sid=1", NOTE),
    ]
    assert rig.told.received_ == [(result_for(here[0]), None), (result_for(here[2]), None)]
    assert [seen.method for seen in http.seen].count("GET") == 1
    assert not http.by("DELETE")
    assert known.is_old


async def test_later_sessions_begin_where_the_first_one_ended_up(http: FakeHttp, old: FakeSse) -> None:
    known = KnownServer()
    for _ in range(3):
        async with running(http, known) as rig:
            await rig.initialized()
    assert [path for path, _ in posts(http)] == ["/mcp", *["/messages?sid=1"] * 3]


@pytest.mark.parametrize(
    "refusal",
    [
        *(json(400, error_with(code)) for code in (-32020, -32021, -32022)),
        json(404, error_with(-32022, "0")),
        status(401, WWW_Authenticate="Bearer"),
        status(403),
        status(409),
        status(500),
        status(200, b"<h1>Hello</h1>", Content_Type="text/html"),
        json(200, error_with(-32602, "0")),
        status(302, Location="/login"),
    ],
)
async def test_any_other_answer_is_told_as_it_is_and_nothing_else_is_tried(
    http: FakeHttp, old: FakeSse, refusal: Handler
) -> None:
    """VER-013, VER-014."""
    old.on_post = refusal
    async with running(http) as rig:
        await rig.initialize()
        await until(lambda: rig.told.received_ or rig.told.losses)
    assert len(http.seen) == 1
    told = [call for call, _ in rig.told.losses] + [call for _, call in rig.told.received_]
    assert told.count(0) == 1


async def test_a_server_that_is_down_is_not_tried_twice() -> None:
    async with FakeHttp().serving() as gone:
        pass
    async with running(gone) as rig:
        await rig.initialize()
        assert isinstance(await rig.lost(0), UpstreamUnavailable)


async def test_only_the_first_request_of_a_session_leads_to_the_other_transport(http: FakeHttp) -> None:
    http.handlers["POST"] = for_requests(status(404))
    async with running(http) as rig:
        await rig.initialized()
        await rig.transport.send(jsonrpc.request(1, "tools/call", b"{}"), call=1)
        assert isinstance(await rig.lost(1), SessionLost)
    assert not http.by("GET")


# -- when neither is spoken ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "get",
    [
        status(405),
        status(404),
        status(500),
        status(200, b"<h1>Hello</h1>", Content_Type="text/html"),
        stream(event(NOTE)),
        stream(announce("http://localhost:1/m")),
    ],
)
async def test_the_session_is_told_what_streamable_http_was_answered(http: FakeHttp, get: Handler) -> None:
    http.handlers |= {"POST": status(404, b"Nothing here"), "GET": get}
    known = KnownServer()
    async with running(http, known) as rig:
        await rig.initialize()
        error = await rig.lost(0)
        assert isinstance(error, UnexpectedStatus)
        assert error.message == "upstream 'search' answered with status 404: Nothing here"
        with pytest.raises(UnexpectedStatus):  # it is still the transport of the session
            await rig.transport.send(NOTE)
    assert [call for call, _ in rig.told.losses] == [0, None]
    assert not known.is_old


async def test_an_error_response_is_told_as_it_came(http: FakeHttp) -> None:
    body = error_with(-32602, "0")
    http.handlers |= {"POST": json(400, body), "GET": status(405)}
    async with running(http) as rig:
        await rig.initialized()
    assert rig.told.received_ == [(body, 0)]
    assert [call for call, _ in rig.told.losses] == [None]


async def test_a_stream_without_an_endpoint_is_not_waited_for_longer_than_its_bound(http: FakeHttp) -> None:
    """I6: a newer server may well open a stream for a stranger."""
    http.handlers |= {"POST": status(400, b"no"), "GET": stream(b": hello\n\n", hold=True)}
    async with running(http) as rig:
        await rig.initialize()
        await until(lambda: rig.clock.sleeping)
        await rig.clock.advance(10)
        error = await rig.lost(0)
    assert "status 400: no" in error.message


@pytest.mark.parametrize("code", [401, 403])
async def test_an_old_server_s_wish_for_credentials_reaches_the_session(http: FakeHttp, code: int) -> None:
    """F28: a router may answer 405 before anybody looks at a token."""
    http.handlers |= {"POST": status(405), "GET": status(code, WWW_Authenticate='Bearer scope="a"')}
    async with running(http) as rig:
        await rig.initialize()
        error = await rig.lost(0)
    assert isinstance(error, UpstreamRefused)
    assert (error.status, error.challenges) == (code, ('Bearer scope="a"',))


# -- what is known is forgotten again -----------------------------------------------------------------


async def fails_to_start(http: FakeHttp, known: KnownServer) -> UpstreamError:
    async with make_client() as client:
        rig = Rig(http, client, known)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                with pytest.raises(UpstreamError) as caught:
                    await tasks.start(rig.transport.run, rig.told)
        assert rig.told.losses == []
    return caught.value


async def test_a_server_that_has_become_new_is_found_out_by_the_next_session(http: FakeHttp) -> None:
    known = KnownServer(is_old=True)
    http.handlers["GET"] = status(405)
    error = await fails_to_start(http, known)
    assert isinstance(error, UnexpectedStatus)
    assert not known.is_old
    async with running(http, known) as rig:
        await rig.initialized()
    assert posts(http) == [("/mcp", INITIALIZE)]


async def test_a_refusal_says_nothing_about_the_transport(http: FakeHttp) -> None:
    known = KnownServer(is_old=True)
    http.handlers["GET"] = status(401, WWW_Authenticate="Bearer")
    assert isinstance(await fails_to_start(http, known), UpstreamRefused)
    assert known.is_old


@pytest.mark.parametrize("leave", [FakeSse.cut, FakeSse.end])
async def test_a_stream_that_ends_later_is_the_end_of_its_session_only(
    http: FakeHttp, old: FakeSse, leave: Callable[[FakeSse], None]
) -> None:
    """F27: what was pending is lost at once, and the next session shakes hands anew."""
    known = KnownServer()
    async with running(http, known) as rig:
        await rig.initialized()
        old.on_post = status(202)
        await rig.transport.send(jsonrpc.request(1, "tools/call", b"{}"), call=1)
        leave(old)
        assert isinstance(await rig.lost(None), UpstreamClosed)
        with pytest.raises(UpstreamClosed):
            await rig.transport.send(NOTE)
    assert known.is_old
    old.on_post = old.answer
    async with running(http, known) as rig:
        await rig.initialized()
    assert posts(http)[-1] == ("/messages?sid=1", INITIALIZE)


# -- the change-over itself ---------------------------------------------------------------------------


async def test_closed_during_the_attempt_it_ends_at_once(http: FakeHttp) -> None:
    """I6."""
    http.handlers |= {"POST": status(405), "GET": hang}
    async with running(http) as rig:
        await rig.initialize()
        await until(lambda: http.by("GET"))
        rig.transport.close()
        await rig.lost(None)
    assert [(call, type(error)) for call, error in rig.told.losses] == [
        (0, UpstreamClosed),
        (None, UpstreamClosed),
    ]
    await until(lambda: http.dropped)


async def test_closed_while_the_stream_comes_up_it_ends_all_the_same(
    http: FakeHttp, old: FakeSse, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(http) as rig:
        start = rig.transport._start

        async def start_and_close(transport: Transport) -> None:
            await start(transport)
            rig.transport.close()

        monkeypatch.setattr(rig.transport, "_start", start_and_close)
        await rig.initialize()
        await rig.lost(None)
    assert posts(http) == [("/mcp", INITIALIZE)]


async def test_an_abandoned_request_is_not_sent_to_the_old_server(http: FakeHttp, old: FakeSse) -> None:
    old.greeting = b": not yet\n\n"
    async with running(http) as rig:
        await rig.initialize()
        await until(lambda: old.opened)
        rig.transport.abandon(0)
        await until(lambda: http.dropped)
    assert posts(http) == [("/mcp", INITIALIZE)]
    assert [call for call, _ in rig.told.losses] == [None]


async def test_what_an_old_server_says_at_once_is_told(http: FakeHttp, old: FakeSse) -> None:
    old.greeting = announce("/m") + event(NOTE)
    async with running(http) as rig:
        await rig.initialize()
        await until(lambda: len(rig.told.received_) == 2)
    assert rig.told.received_[0] == (NOTE, None)


async def test_a_session_id_of_the_refusal_stays_with_streamable_http(http: FakeHttp, old: FakeSse) -> None:
    old.on_post = only_old(old, status(404, Mcp_Session_Id="s"))
    async with running(http) as rig:
        await rig.initialized()
        await until(lambda: http.by("DELETE"))
    assert "Mcp-Session-Id" not in http.by("POST")[-1].headers


async def test_cancelling_ends_everything_at_once_and_says_so(http: FakeHttp, old: FakeSse) -> None:
    async with make_client() as client:
        rig = Rig(http, client, KnownServer())
        async with anyio.create_task_group() as tasks:
            await tasks.start(rig.transport.run, rig.told)
            await rig.initialized()
            tasks.cancel_scope.cancel()
        assert [(call, type(error)) for call, error in rig.told.losses] == [(None, UpstreamClosed)]
        assert isinstance(client.connector, aiohttp.BaseConnector)
        assert not client.connector._acquired
