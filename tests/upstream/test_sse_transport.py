"""HTTP+SSE of 2024-11-05 towards servers that keep to it, and towards many that do not.

A real server on loopback, a clock that only the test moves.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest
from aiohttp import web
from anyio.abc import SocketAttribute

from proxy.errors import (
    SessionUnknown,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.protocol import jsonrpc
from proxy.upstream import acceptance, sse
from proxy.upstream.endpoint import OUTCOME_UNKNOWN, UnexpectedStatus
from proxy.upstream.http import make_client
from proxy.upstream.sse import ENDPOINT_TIMEOUT_S, SseTransport
from tests.manual_clock import ManualClock
from tests.upstream.fake_http import (
    EVENT_STREAM,
    FakeHttp,
    Handler,
    Seen,
    event,
    hang,
    result_for,
    serve_raw,
    status,
    stream,
    vanish,
)
from tests.upstream.fake_sse import FakeSse, announce
from tests.upstream.told import Told, until

pytestmark = pytest.mark.anyio

MIB = 1 << 20
NOTE = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}'
QUESTION = b'{"jsonrpc":"2.0","id":"q-1","method":"elicitation/create","params":{}}'


class Rig:
    """A transport before a fake server. `url` is its stream; `started` is set once `run` said so."""

    def __init__(
        self,
        url: str,
        client: aiohttp.ClientSession,
        *,
        max_bytes: int = MIB,
        endpoint_prefix: str | None = None,
    ) -> None:
        self.client = client
        self.told = Told()
        self.clock = ManualClock()
        self.credentials: dict[str, str] = {"Authorization": "Bearer secret-token"}
        self.started = anyio.Event()
        self.transport = SseTransport(
            url,
            name="search",
            max_bytes=max_bytes,
            client=client,
            headers=self.headers,
            clock=self.clock,
            endpoint_prefix=endpoint_prefix,
        )

    @property
    def connections_in_use(self) -> int:
        assert isinstance(self.client.connector, aiohttp.BaseConnector)
        return len(self.client.connector._acquired)

    def headers(self) -> Mapping[str, str]:
        return dict(self.credentials)

    async def request(self, call: int, method: str = "tools/call") -> None:
        await self.transport.send(jsonrpc.request(call, method, b"{}"), call=call)

    async def answers(self, number: int) -> None:
        """Wait until so many messages have come."""
        await until(lambda: len(self.told.received_) >= number)

    async def lost(self, call: int | None) -> UpstreamError:
        await until(lambda: self.told.loss_of(call))
        error = self.told.loss_of(call)
        assert error is not None
        return error


@asynccontextmanager
async def running(url: str, *, max_bytes: int = MIB, prefix: str | None = None) -> AsyncIterator[Rig]:
    """A rig that was started; at its end the session was closed, everything told, no connection is left."""
    async with make_client() as client:
        rig = Rig(url, client, max_bytes=max_bytes, endpoint_prefix=prefix)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                await tasks.start(rig.transport.run, rig.told)
                try:
                    yield rig
                finally:
                    rig.transport.close()
        assert rig.told.losses[-1][0] is None
        assert rig.connections_in_use == 0


async def failure_to_start(url: str) -> UpstreamError:
    """What `run` raises; it tells the receiver nothing then, and leaves no connection."""
    async with make_client() as client:
        rig = Rig(url, client)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                with pytest.raises(UpstreamError) as caught:
                    await tasks.start(rig.transport.run, rig.told)
        assert rig.told.losses == []
        assert rig.connections_in_use == 0
        with pytest.raises(UpstreamClosed, match="nothing was sent"):
            await rig.request(1)
    return caught.value


@asynccontextmanager
async def starting(url: str) -> AsyncIterator[Rig]:
    """A rig that is still waiting for its endpoint event."""
    async with make_client() as client:
        rig = Rig(url, client)

        async def start() -> None:
            await tasks.start(rig.transport.run, rig.told)
            rig.started.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(start)
            yield rig
            rig.transport.close()


@pytest.fixture
async def http() -> AsyncIterator[FakeHttp]:
    async with FakeHttp().serving() as fake:
        yield fake


@pytest.fixture
def old(http: FakeHttp) -> FakeSse:
    return FakeSse(http)


# -- the address of the messages ----------------------------------------------------------------------


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("announced", "path"),
    [
        ("/messages?sid=1", "/messages?sid=1"),
        ("messages/?sid=1", "/team/messages/?sid=1"),
        ("./messages", "/team/messages"),
        ("../messages?a=b%26c", "/messages?a=b%26c"),
        ("?sid=1", "/team/sse?sid=1"),
        ("{origin}/m?sid=1", "/m?sid=1"),
        ("{origin}/m/a%2Fb?sid=1#part", "/m/a%2Fb?sid=1"),
        ("//{host}/m", "/m"),
        ("http://who:ever@{host}/m", "/m"),
        (" /m ", "/m"),
    ],
)
async def test_messages_go_to_the_announced_address_as_it_reads_from_the_stream_s_own(
    http: FakeHttp, announced: str, path: str, line_end: bytes
) -> None:
    """F27, HTTP-077, F21."""
    host = http.url.split("/")[2]
    old = FakeSse(http, announced.format(origin=f"http://{host}", host=host), line_end=line_end)
    message = b'{"id":7, "jsonrpc":"2.0","method":"tools/call","params":{"x":1e2}}'
    async with running(f"{old.origin}/team/sse?key=1") as rig:
        await rig.transport.send(message, call=7)
        await until(lambda: rig.told.received_)
        assert rig.told.received_ == [(result_for(http.by("POST")[0]), None)]
    get, post = http.seen
    assert (get.method, get.path, get.headers["Accept"]) == ("GET", "/team/sse?key=1", EVENT_STREAM)
    assert (post.method, post.path, post.body) == ("POST", path, message)
    assert post.headers["Content-Type"] == "application/json"
    assert {seen.headers["Authorization"] for seen in http.seen} == {"Bearer secret-token"}


async def test_after_a_redirect_the_address_is_read_from_where_it_led(http: FakeHttp) -> None:
    """F26, F27: RFC 3986 section 5.1.3."""
    old = FakeSse(http, "messages")

    async def moved_once(seen: Seen) -> web.StreamResponse:
        if seen.path == "/sse":
            return web.Response(status=307, headers={"Location": "/sse/"})
        return await old.play_stream(seen)

    http.handlers["GET"] = moved_once
    async with running(f"{old.origin}/sse") as rig:
        await rig.transport.send(NOTE)
    assert http.by("POST")[0].path == "/sse/messages"


@pytest.mark.parametrize(
    "announced", ["{other}/m?sid=1", "//{other_host}/m", "http://localhost:{port}/m", "https://{host}/m"]
)
async def test_an_address_of_another_origin_is_refused_and_nothing_arrives_there(
    http: FakeHttp, announced: str
) -> None:
    """F27, SEC-002, HTTP-077: scheme, host and port make the origin."""
    host = http.url.split("/")[2]
    async with FakeHttp().serving() as elsewhere:
        other = elsewhere.url.removesuffix("/mcp")
        named = announced.format(
            other=other, other_host=other.split("//")[1], host=host, port=host.split(":")[1]
        )
        FakeSse(http, named)
        error = await failure_to_start(http.url + "?key=hidden")
        assert not elsewhere.seen
    assert isinstance(error, UpstreamProtocolError)
    shown = named.split("?")[0]
    assert (shown if "://" in shown else f"http:{shown}") in error.message
    assert http.url in error.message
    assert "hidden" not in error.message
    assert not http.by("POST")


@pytest.mark.parametrize("announced", ["http://[", "http://127.0.0.1:99999/m", "javascript:alert(1)"])
async def test_an_address_that_is_none_is_said_to_be_so(http: FakeHttp, announced: str) -> None:
    FakeSse(http, announced)
    error = await failure_to_start(http.url)
    assert type(error) is UpstreamProtocolError
    assert error.message == "upstream 'search' announced an address for messages that is no URL"


async def test_a_second_endpoint_event_replaces_the_address(http: FakeHttp, old: FakeSse) -> None:
    """F27."""
    async with running(http.url) as rig:
        await rig.request(1)
        await until(lambda: len(rig.told.received_) == 1)
        await old.say(announce("/other?sid=2"), event(NOTE))
        await until(lambda: len(rig.told.received_) == 2)
        await rig.request(2)
        await until(lambda: len(rig.told.received_) == 3)
    assert [seen.path for seen in http.by("POST")] == ["/messages?sid=1", "/other?sid=2"]


async def test_a_second_endpoint_event_of_another_origin_ends_the_session(
    http: FakeHttp, old: FakeSse
) -> None:
    """F27, SEC-002."""
    async with FakeHttp().serving() as elsewhere:
        async with running(http.url) as rig:
            await old.say(announce(elsewhere.url))
            error = await rig.lost(None)
            with pytest.raises(UpstreamClosed):
                await rig.request(1)
        assert not elsewhere.seen
    assert isinstance(error, UpstreamProtocolError)
    assert elsewhere.url in error.message
    assert http.url in error.message


@pytest.mark.parametrize(
    ("announced", "path"),
    [
        ("/messages?sid=1", "/team/a/messages?sid=1"),
        ("/team/a/messages?sid=1", "/team/a/messages?sid=1"),
        ("messages?sid=1", "/team/a/messages?sid=1"),
        ("http://internal.invalid:9/m/a%2Fb", "/team/a/m/a%2Fb"),
    ],
)
@pytest.mark.parametrize("prefix", ["/team/a", "/team/a/"])
async def test_the_operator_can_say_what_a_server_behind_a_reverse_proxy_does_not_know(
    http: FakeHttp, announced: str, path: str, prefix: str
) -> None:
    """F27: the override; messages go to the stream's own origin all the same (SEC-002)."""
    old = FakeSse(http, announced)
    async with running(f"{old.origin}/team/a/sse", prefix=prefix) as rig:
        await rig.transport.send(NOTE)
    assert http.by("POST")[0].path == path


# -- the start ----------------------------------------------------------------------------------------


async def test_it_has_not_started_before_the_endpoint_event_which_may_take_its_time(http: FakeHttp) -> None:
    """F27: three seconds, in which the server shows that it lives."""
    old = FakeSse(http)
    old.greeting = b": hello\n\nevent: ping\ndata: x\n\nevent: endpoint\ndata:\n\nid: 0\nretry: 50\ndata:\n\n"
    async with starting(http.url) as rig:
        await until(lambda: old.opened)
        await rig.clock.advance(3)
        assert not rig.started.is_set()
        with pytest.raises(UpstreamClosed):
            await rig.transport.send(NOTE)
        await old.say(announce("/late"))
        await until(rig.started.is_set)
        await rig.transport.send(NOTE)
        assert rig.told.received_ == []
    assert http.by("POST")[0].path == "/late"


@pytest.mark.parametrize("play", [hang, stream(b": hello\n\n", hold=True)])
async def test_a_server_that_sends_no_endpoint_event_is_given_up(http: FakeHttp, play: Handler) -> None:
    """I6."""
    http.handlers["GET"] = play
    async with make_client() as client:
        rig = Rig(http.url, client)

        async def let_time_pass() -> None:
            await until(lambda: http.seen)
            await rig.clock.advance(ENDPOINT_TIMEOUT_S - 0.1)
            assert not http.dropped
            await rig.clock.advance(0.1)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(let_time_pass)
                with pytest.raises(UpstreamUnavailable) as caught:
                    await tasks.start(rig.transport.run, rig.told)
            assert caught.value.message == "upstream 'search' sent no endpoint event within 10 s"
            await until(lambda: http.dropped)
        assert rig.told.losses == []


@pytest.mark.parametrize(
    ("play", "kind", "words"),
    [
        (status(404, b"Not Found"), UnexpectedStatus, "answered with status 404: Not Found"),
        (status(405), UnexpectedStatus, "answered with status 405"),
        (status(503, b"later"), UnexpectedStatus, "answered with status 503: later"),
        (
            status(200, b"<h1>Log in</h1>", Content_Type="text/html"),
            UnexpectedStatus,
            "answered with status 200 and text/html: <h1>Log in</h1>",
        ),
        (status(200, b"{}"), UnexpectedStatus, "answered with status 200 and application/octet-stream: {}"),
        (status(204), UnexpectedStatus, "answered with status 204"),
        (vanish, UpstreamUnavailable, "sent no endpoint event and broke the connection"),
        (stream(), UpstreamUnavailable, "sent no endpoint event and ended the stream"),
        (
            stream(event(NOTE), cut=True),
            UpstreamUnavailable,
            "sent no endpoint event and broke the connection",
        ),
        (stream(announce("x" * (MIB + 1)), hold=True), UpstreamProtocolError, "limit of 1048576 bytes"),
        (status(302, Location="/login"), UpstreamProtocolError, "redirected (302) to http"),
    ],
)
async def test_what_is_no_event_stream_with_an_endpoint_is_a_clear_error(
    http: FakeHttp, play: Handler, kind: type[UpstreamError], words: str
) -> None:
    http.handlers["GET"] = play
    error = await failure_to_start(http.url)
    assert type(error) is kind
    assert error.message.startswith("upstream 'search' ")
    assert words in error.message
    assert OUTCOME_UNKNOWN not in error.message  # nothing was sent that could have run
    assert not http.by("POST")


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refused_stream_keeps_its_status_and_challenge(http: FakeHttp, code: int) -> None:
    """F28."""
    http.handlers["GET"] = status(code, b"no", WWW_Authenticate='Bearer realm="r", scope="a b"')
    error = await failure_to_start(http.url)
    assert isinstance(error, UpstreamRefused)
    assert (error.status, error.challenges) == (code, ('Bearer realm="r", scope="a b"',))


async def test_an_encoded_stream_is_refused(http: FakeHttp) -> None:
    """F31."""
    http.handlers["GET"] = status(
        200, gzip.compress(announce("/m")), Content_Type=EVENT_STREAM, Content_Encoding="gzip"
    )
    error = await failure_to_start(http.url)
    assert isinstance(error, UpstreamProtocolError)
    assert "Content-Encoding 'gzip'" in error.message


async def test_nobody_there_is_an_upstream_that_cannot_be_reached() -> None:
    async with FakeHttp().serving() as gone:
        url = gone.url
    error = await failure_to_start(url)
    assert isinstance(error, UpstreamUnavailable)
    assert "could not be reached" in error.message


async def test_what_is_not_http_is_said_to_be_so() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(serve_raw, listener, b"SSH-2.0-OpenSSH_9.6\r\n")
        error = await failure_to_start(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/sse")
        tasks.cancel_scope.cancel()
    assert isinstance(error, UpstreamProtocolError)
    assert "sent what is not HTTP" in error.message


# -- what comes on the stream -------------------------------------------------------------------------


async def test_all_that_the_server_says_is_told_in_order_and_without_a_call(
    http: FakeHttp, old: FakeSse
) -> None:
    """F20, F22: pings, comments and other events are not told; an array is taken apart."""
    async with running(http.url) as rig:
        old.on_post = status(202)
        await rig.request(1)
        await until(lambda: http.by("POST"))
        reply = result_for(http.by("POST")[0])
        await old.say(
            b": ping - 2026-01-01\n\n",
            b"event: ping\ndata: x\n\n",
            event(QUESTION, id="5"),
            b"event: message\ndata:" + NOTE + b"\n\n",
            event(b"not json"),
            event(b"[" + NOTE + b", " + reply + b"]"),
        )
        await until(lambda: len(rig.told.received_) == 5)
        await rig.transport.send(b'{"jsonrpc":"2.0","id":"q-1","result":{}}')
    assert rig.told.received_ == [(text, None) for text in (QUESTION, NOTE, b"not json", NOTE, reply)]
    assert http.by("POST")[1].message == {"jsonrpc": "2.0", "id": "q-1", "result": {}}


async def test_many_calls_run_side_by_side_and_none_waits_for_another(http: FakeHttp, old: FakeSse) -> None:
    """F40: their POSTs do not wait for each other either."""
    release = anyio.Event()

    async def play(seen: Seen) -> web.StreamResponse:
        await release.wait()
        return await old.answer(seen)

    old.on_post = play
    async with running(http.url) as rig:
        for call in range(1, 81):
            await rig.request(call)
        await until(lambda: len(http.by("POST")) == 80)
        release.set()
        await until(lambda: len(rig.told.received_) == 80)
        await until(lambda: rig.connections_in_use == 1)


@pytest.mark.parametrize("size", [100_000, 20_000_000])
async def test_large_messages_arrive_whole(http: FakeHttp, old: FakeSse, size: int) -> None:
    """F23: both ways."""

    async def play(seen: Seen) -> web.StreamResponse:
        await old.say(event(result_for(seen, {"text": seen.message["params"]["text"]})))
        return web.Response(status=202)

    old.on_post = play
    message = jsonrpc.request(1, "tools/call", json.dumps({"text": "x" * size}).encode())
    async with running(http.url, max_bytes=32 * MIB) as rig:
        await rig.transport.send(message, call=1)
        await until(lambda: rig.told.received_)
    assert json.loads(rig.told.of(None)[0])["result"]["text"] == "x" * size


@pytest.mark.parametrize("line_end", [b"\n\n", b""])
async def test_an_event_over_the_limit_ends_the_session_after_what_came_before(
    http: FakeHttp, old: FakeSse, line_end: bytes
) -> None:
    """F23: also while it is still growing."""
    async with running(http.url) as rig:
        await old.say(event(NOTE) + b"data: " + b"x" * (MIB + 1) + line_end)
        error = await rig.lost(None)
    assert isinstance(error, UpstreamProtocolError)
    assert "limit of 1048576 bytes" in error.message
    assert rig.told.of(None) == [NOTE]
    assert len(http.by("GET")) == 1


# -- what goes out ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "play",
    [
        status(200),
        status(202, b"Accepted"),
        status(204),
        status(200, b'{"jsonrpc":"2.0","id":1,"result":{"not":"this"}}', Content_Type="application/json"),
        status(200, b"<p>ok</p>", Content_Type="text/html"),
    ],
)
async def test_any_2xx_is_an_acceptance_and_its_body_is_of_no_interest(
    http: FakeHttp, old: FakeSse, play: Handler
) -> None:
    old.on_post = play
    async with running(http.url) as rig:
        await rig.request(1)
        await rig.transport.send(NOTE)
        await until(lambda: rig.connections_in_use == 1)
        await old.say(event(b'{"jsonrpc":"2.0","id":1,"result":{}}'))
        await until(lambda: rig.told.received_)
    assert rig.told.received_ == [(b'{"jsonrpc":"2.0","id":1,"result":{}}', None)]
    assert rig.told.loss_of(1) is None


@pytest.mark.parametrize(
    ("play", "kind", "words"),
    [
        (status(404, b"Could not find session"), SessionUnknown, "no longer knows the session (404: Could"),
        (status(400, b"Invalid session ID"), UnexpectedStatus, "status 400: Invalid session ID"),
        (
            status(400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"Missing sessionId"}}'),
            UnexpectedStatus,
            "status 400: Missing sessionId",
        ),
        (status(413), UnexpectedStatus, "status 413"),
        (status(500, b"oops"), UnexpectedStatus, f"status 500: oops; {OUTCOME_UNKNOWN}"),
        (status(302, Location="/login"), UpstreamProtocolError, "redirected (302)"),
        (vanish, UpstreamClosed, OUTCOME_UNKNOWN),
    ],
)
async def test_a_post_that_is_not_accepted_loses_that_call_alone(
    http: FakeHttp, old: FakeSse, play: Handler, kind: type[UpstreamError], words: str
) -> None:
    """I2: and is not sent again. I6: nobody waits for an answer on the stream."""
    async with running(http.url) as rig:
        old.on_post = play
        await rig.request(1)
        error = await rig.lost(1)
        with pytest.raises(kind):
            await rig.transport.send(NOTE)
        old.on_post = old.answer
        await rig.request(2)
        await until(lambda: rig.told.received_)
    assert type(error) is kind
    assert words in error.message
    assert len(http.by("POST")) == 3
    assert [call for call, _ in rig.told.losses] == [1, None]


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refused_post_keeps_its_status_and_challenge(http: FakeHttp, old: FakeSse, code: int) -> None:
    """F28."""
    old.on_post = status(code, b"no", WWW_Authenticate='Bearer error="invalid_token"')
    async with running(http.url) as rig:
        await rig.request(1)
        error = await rig.lost(1)
        with pytest.raises(UpstreamRefused):
            await rig.transport.send(NOTE)
    assert isinstance(error, UpstreamRefused)
    assert (error.status, error.challenges) == (code, ('Bearer error="invalid_token"',))


@pytest.mark.parametrize("rest", [status(202), status(500), vanish])
async def test_an_answer_that_comes_before_the_202_is_the_answer_whatever_follows(
    http: FakeHttp, old: FakeSse, rest: Handler
) -> None:
    """F27, and F17: the id may come back as a string."""
    release = anyio.Event()

    async def play(seen: Seen) -> web.StreamResponse:
        await old.say(event(b'{"jsonrpc":"2.0","id":"1","result":{}}'))
        await release.wait()
        return await rest(seen)

    old.on_post = play
    async with running(http.url) as rig:
        rig.told.on_received = lambda *_: rig.transport.abandon(1)  # as the session does
        await rig.request(1)
        await until(lambda: rig.told.received_)
        assert rig.connections_in_use == 2
        release.set()
        await until(lambda: rig.connections_in_use == 1)
        old.on_post = status(202)
        await rig.transport.send(NOTE)
    assert rig.told.loss_of(1) is None
    first, second = http.by("POST")
    assert rest is vanish or first.peer_port == second.peer_port  # the connection was kept


async def test_a_202_that_never_follows_the_answer_is_not_waited_for(
    http: FakeHttp, old: FakeSse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6."""
    monkeypatch.setattr(sse, "DRAIN_TIMEOUT_S", 0.05)

    async def play(seen: Seen) -> web.StreamResponse:
        await old.answer(seen)
        return await hang(seen)

    old.on_post = play
    async with running(http.url) as rig:
        await rig.request(1)
        await until(lambda: http.dropped)
    assert rig.told.loss_of(1) is None


async def test_connections_of_messages_are_used_again(http: FakeHttp, old: FakeSse) -> None:
    async with running(http.url) as rig:
        for call in (1, 2, 3):
            await rig.request(call)
            await rig.answers(call)
            await until(lambda: rig.connections_in_use == 1)
            await rig.transport.send(NOTE)
    assert len({seen.peer_port for seen in http.by("POST")}) == 1


@pytest.mark.parametrize(
    ("version", "header"), [("2024-11-05", None), ("2025-03-26", "2025-03-26"), ("2025-11-25", "2025-11-25")]
)
async def test_the_version_header_is_sent_where_the_negotiated_version_is_newer_than_the_transport(
    http: FakeHttp, old: FakeSse, version: str, header: str | None
) -> None:
    async with running(http.url) as rig:
        await rig.transport.send(NOTE)
        rig.transport.established(version)
        await rig.transport.send(NOTE)
    before, after = http.by("POST")
    assert "MCP-Protocol-Version" not in before.headers
    assert after.headers.get("MCP-Protocol-Version") == header
    assert len(http.by("GET")) == 1


async def test_credentials_are_asked_for_anew_for_each_message(http: FakeHttp, old: FakeSse) -> None:
    async with running(http.url) as rig:
        await rig.transport.send(NOTE)
        rig.credentials = {"Authorization": "Bearer next", "Content-Type": "text/plain", "Origin": "null"}
        await rig.transport.send(NOTE)
    assert [seen.headers["Authorization"] for seen in http.by("POST")] == [
        "Bearer secret-token",
        "Bearer next",
    ]
    assert http.seen[-1].headers["Content-Type"] == "application/json"
    assert "Origin" not in http.seen[-1].headers


async def test_a_notification_is_sent_once_the_server_has_accepted_it(http: FakeHttp, old: FakeSse) -> None:
    release = anyio.Event()
    accepted = anyio.Event()

    async def play(seen: Seen) -> web.StreamResponse:
        await release.wait()
        return web.Response(status=202)

    old.on_post = play
    async with running(http.url) as rig, anyio.create_task_group() as tasks:

        async def notify() -> None:
            await rig.transport.send(NOTE)
            accepted.set()

        tasks.start_soon(notify)
        await until(lambda: http.by("POST"))
        assert not accepted.is_set()
        release.set()
        await until(accepted.is_set)


async def test_a_notification_that_is_not_accepted_in_time_is_an_error(
    http: FakeHttp, old: FakeSse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6."""
    monkeypatch.setattr(acceptance, "ACCEPT_TIMEOUT_S", 0.05)
    old.on_post = hang
    async with running(http.url) as rig:
        with pytest.raises(UpstreamTimeout):
            await rig.transport.send(NOTE)
        await until(lambda: http.dropped)


# -- ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", [FakeSse.cut, FakeSse.end])
async def test_when_the_stream_ends_all_is_lost_at_once_and_nothing_is_resumed(
    http: FakeHttp, old: FakeSse, leave: Callable[[FakeSse], None]
) -> None:
    """F27, I2: a new session needs a new handshake, so an event id is of no use here."""
    async with make_client() as client:
        rig = Rig(http.url, client)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                await tasks.start(rig.transport.run, rig.told)
                old.on_post = status(202)
                await rig.request(1)
                await until(lambda: http.by("POST"))
                old.on_post = hang
                await rig.request(2)
                await until(lambda: len(http.by("POST")) == 2)
                await old.say(event(NOTE, id="8"))
                await until(lambda: rig.told.received_)
                leave(old)
        assert [call for call, _ in rig.told.losses] == [None]
        error = rig.told.losses[0][1]
        assert type(error) is UpstreamClosed
        assert OUTCOME_UNKNOWN in error.message
        assert rig.connections_in_use == 0
        with pytest.raises(UpstreamClosed, match="nothing was sent"):
            await rig.request(3)
        with pytest.raises(UpstreamClosed, match="nothing was sent"):
            await rig.transport.send(NOTE)
    assert len(http.by("GET")) == 1
    assert len(http.by("POST")) == 2


async def test_an_abandoned_request_is_dropped_on_its_way_and_no_more_is_told_of_it(
    http: FakeHttp, old: FakeSse
) -> None:
    old.on_post = hang
    async with running(http.url) as rig:
        await rig.request(1)
        await until(lambda: http.by("POST"))
        rig.transport.abandon(1)
        rig.transport.abandon(1)
        rig.transport.abandon(99)
        await until(lambda: http.dropped)
        await until(lambda: rig.connections_in_use == 1)
    assert rig.told.loss_of(1) is None


async def test_close_ends_the_stream_and_everything_on_its_way(http: FakeHttp, old: FakeSse) -> None:
    ended: list[UpstreamError] = []
    old.on_post = hang
    async with anyio.create_task_group() as tasks, running(http.url) as rig:

        async def notify() -> None:
            try:
                await rig.transport.send(NOTE)
            except UpstreamError as exc:
                ended.append(exc)

        await rig.request(1)
        tasks.start_soon(notify)
        await until(lambda: len(http.by("POST")) == 2)
        rig.transport.close()
        rig.transport.close()
        with pytest.raises(UpstreamClosed):
            await rig.request(2)
        await until(lambda: ended)
    assert isinstance(ended[0], UpstreamClosed)
    assert [(call, type(error)) for call, error in rig.told.losses] == [(None, UpstreamClosed)]
    assert not http.by("DELETE")
    await until(lambda: len(http.dropped) == 3)


async def test_closed_while_it_starts_it_says_so(http: FakeHttp) -> None:
    http.handlers["GET"] = hang
    async with make_client() as client:
        rig = Rig(http.url, client)

        async def close() -> None:
            await until(lambda: http.seen)
            rig.transport.close()

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(close)
                with pytest.raises(UpstreamClosed):
                    await tasks.start(rig.transport.run, rig.told)
        assert rig.told.losses == []


async def test_closed_before_it_ran_it_ends_at_once(http: FakeHttp) -> None:
    async with make_client() as client:
        rig = Rig(http.url, client)
        rig.transport.close()
        async with anyio.create_task_group() as tasks:
            with pytest.raises(UpstreamClosed):
                await tasks.start(rig.transport.run, rig.told)
    assert not http.seen


async def test_cancelling_ends_everything_at_once_and_says_so(http: FakeHttp, old: FakeSse) -> None:
    old.on_post = hang
    async with make_client() as client:
        rig = Rig(http.url, client)
        async with anyio.create_task_group() as tasks:
            await tasks.start(rig.transport.run, rig.told)
            await rig.request(1)
            await until(lambda: http.by("POST"))
            tasks.cancel_scope.cancel()
        assert [(call, type(error)) for call, error in rig.told.losses] == [(None, UpstreamClosed)]
        assert rig.connections_in_use == 0


async def test_a_transport_says_where_it_leads_without_what_is_secret(http: FakeHttp, old: FakeSse) -> None:
    async with running(http.url + "?key=secret") as rig:
        assert rig.transport.describe() == "sse " + http.url
        assert "secret" not in repr(rig.transport)
