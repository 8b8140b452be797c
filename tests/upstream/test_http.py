"""Streamable HTTP towards a legacy upstream that behaves, and towards many that do not.

A real server on loopback, a clock that only the test moves.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest
from aiohttp import web
from anyio.abc import SocketAttribute

from proxy.errors import (
    SessionLost,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.protocol import jsonrpc
from proxy.upstream import acceptance, http
from proxy.upstream.endpoint import OUTCOME_UNKNOWN, UnexpectedStatus
from proxy.upstream.http import HttpTransport, make_client
from tests.manual_clock import ManualClock
from tests.upstream.fake_http import (
    EVENT_STREAM,
    FakeHttp,
    Handler,
    Seen,
    answer,
    event,
    for_requests,
    hang,
    one_by_one,
    replies,
    result_for,
    serve_raw,
    short_of_its_length,
    start_stream,
    status,
    stream,
    vanish,
)
from tests.upstream.told import Told, until

pytestmark = pytest.mark.anyio

MIB = 1 << 20
NOTE = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{}}'


class Rig:
    """A transport that runs against a fake upstream."""

    def __init__(self, upstream: FakeHttp, client: aiohttp.ClientSession, **settings: object) -> None:
        self.upstream = upstream
        self.client = client
        self.told = Told()
        self.clock = ManualClock()
        self.credentials: dict[str, str] = {"Authorization": "Bearer secret-token"}
        self.transport = HttpTransport(
            upstream.url,
            name="search",
            max_bytes=int(str(settings.get("max_bytes", MIB))),
            client=client,
            headers=self.headers,
            clock=self.clock,
        )

    @property
    def connections_in_use(self) -> int:
        assert isinstance(self.client.connector, aiohttp.BaseConnector)
        return len(self.client.connector._acquired)

    def headers(self) -> Mapping[str, str]:
        return dict(self.credentials)

    async def request(self, call: int, method: str = "tools/call") -> None:
        await self.transport.send(jsonrpc.request(call, method, b"{}"), call=call)

    async def settled(self, call: int) -> UpstreamError | None:
        """The loss of the call, None if it was answered."""
        await until(lambda: self.told.loss_of(call) or self.told.of(call))
        return self.told.loss_of(call)

    async def lost(self, call: int) -> UpstreamError:
        await until(lambda: self.told.loss_of(call))
        error = self.told.loss_of(call)
        assert error is not None
        return error

    async def initialize(self) -> None:
        await self.request(0, "initialize")
        await until(lambda: self.told.of(0))

    async def retry(self, seconds: float) -> None:
        """Wait until something sleeps before another attempt, then let the time pass."""
        await until(lambda: self.clock.sleeping)
        await self.clock.advance(seconds)


@asynccontextmanager
async def running(upstream: FakeHttp, **settings: object) -> AsyncIterator[Rig]:
    """A rig; at its end the session was closed, everything told, and no connection is left."""
    async with make_client() as client:
        rig = Rig(upstream, client, **settings)
        async with anyio.create_task_group() as tasks:
            await tasks.start(rig.transport.run, rig.told)
            try:
                yield rig
            finally:
                rig.transport.close()
        assert rig.told.losses[-1][0] is None
        assert rig.connections_in_use == 0


@pytest.fixture
async def upstream() -> AsyncIterator[FakeHttp]:
    async with FakeHttp().serving() as fake:
        yield fake


# -- requests and their answers -----------------------------------------------------------------------


async def test_a_request_is_posted_as_it_is_and_its_json_answer_comes_back_as_it_was(
    upstream: FakeHttp,
) -> None:
    body = b'{"jsonrpc": "2.0",\n "result":{"n":1.10},"id":7}'
    upstream.handlers["POST"] = status(200, body, Content_Type="application/json; charset=utf-8")
    message = b'{"id":7, "jsonrpc":"2.0","method":"tools/call","params":{"x":1e2}}'
    async with running(upstream) as rig:
        await rig.transport.send(message, call=7)
        await rig.settled(7)
        assert rig.told.received_ == [(body, 7)]
    (seen,) = upstream.by("POST")
    assert seen.body == message
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.headers["Accept"] == "application/json, text/event-stream"
    assert seen.headers["Accept-Encoding"] == "identity"
    assert seen.headers["Host"] == upstream.url.removeprefix("http://").removesuffix("/mcp")


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
async def test_every_message_of_the_answer_stream_is_told_with_its_call(
    upstream: FakeHttp, ending: bytes
) -> None:
    """F21, HTTP-064."""
    upstream.handlers["POST"] = replies(
        lambda seen: [
            (event(NOTE) + event(result_for(seen))).replace(b"\n", ending),
        ]
    )
    async with running(upstream) as rig:
        await rig.request(1)
        await until(lambda: len(rig.told.of(1)) == 2)
        assert rig.told.of(1)[0] == NOTE
    assert rig.told.loss_of(1) is None


async def test_priming_events_pings_and_heartbeats_are_harmless(upstream: FakeHttp) -> None:
    """F22: junk that claims to be a message is the session's to judge; the call goes on."""
    upstream.handlers["POST"] = replies(
        lambda seen: [
            b": hello\n\n",
            event(b"", id="0", retry=50),
            event(b'{"type":"heartbeat"}'),
            b"event: ping\ndata: x\n\n",
            event(result_for(seen)),
        ]
    )
    async with running(upstream) as rig:
        await rig.request(1)
        await until(lambda: len(rig.told.of(1)) == 2)
        assert rig.told.of(1)[0] == b'{"type":"heartbeat"}'
    assert rig.told.loss_of(1) is None
    assert not upstream.by("GET")


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_array_is_split_into_its_messages(upstream: FakeHttp, streamed: bool) -> None:
    """F20."""

    async def play(seen: Seen) -> web.StreamResponse:
        batch = b"[" + NOTE + b", " + result_for(seen) + b"]"
        if streamed:
            return await stream(event(batch))(seen)
        return web.Response(body=batch, content_type="application/json")

    upstream.handlers["POST"] = play
    async with running(upstream) as rig:
        await rig.request(3)
        await until(lambda: len(rig.told.of(3)) == 2)
        assert rig.told.of(3) == [NOTE, result_for(upstream.seen[0])]
    assert rig.told.loss_of(3) is None


async def test_an_answer_with_the_id_as_a_string_is_an_answer(upstream: FakeHttp) -> None:
    """F17."""
    upstream.handlers["POST"] = stream(event(b'{"jsonrpc":"2.0","id":"5","result":{}}'))
    async with running(upstream) as rig:
        await rig.request(5)
        await rig.settled(5)
    assert rig.told.loss_of(5) is None


async def test_many_calls_run_side_by_side_and_none_waits_for_another(upstream: FakeHttp) -> None:
    """F40."""
    release = anyio.Event()

    async def play(seen: Seen) -> web.StreamResponse:
        response = await start_stream(seen)
        await release.wait()
        await response.write(event(result_for(seen)))
        return response

    upstream.handlers["POST"] = play
    async with running(upstream) as rig:
        for call in range(1, 121):
            await rig.request(call)
        await until(lambda: len(upstream.seen) == 120)
        release.set()
        await until(lambda: len(rig.told.received_) == 120)


async def test_a_connection_is_used_again_after_a_stream_although_the_call_was_dropped(
    upstream: FakeHttp,
) -> None:
    upstream.handlers["POST"] = replies(lambda seen: [event(result_for(seen))])
    async with running(upstream) as rig:
        rig.told.on_received = lambda _, call: rig.transport.abandon(call or 0)  # as the session does
        for call in (1, 2, 3):
            await rig.request(call)
            await rig.settled(call)
            await until(lambda: rig.connections_in_use == 0)
    assert len({seen.peer_port for seen in upstream.seen}) == 1


async def test_a_stream_left_open_after_the_answer_is_dropped(
    upstream: FakeHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "DRAIN_TIMEOUT_S", 0.05)
    upstream.handlers["POST"] = replies(lambda seen: [event(result_for(seen))], hold=True)
    async with running(upstream) as rig:
        await rig.request(1)
        await until(lambda: upstream.dropped)
    assert rig.told.loss_of(1) is None


# -- session and headers ------------------------------------------------------------------------------


async def test_session_id_and_version_go_on_everything_that_follows_the_handshake(upstream: FakeHttp) -> None:
    """HTTP-072, HTTP-075, VER-021."""
    upstream.handlers["GET"] = stream(hold=True)
    async with running(upstream) as rig:
        await rig.initialize()
        await rig.transport.send(jsonrpc.notification("notifications/initialized"))
        rig.transport.established("2025-06-18")
        await until(lambda: upstream.by("GET"))
        await rig.request(1)
        await rig.settled(1)
    first, before, *after = upstream.seen
    assert "Mcp-Session-Id" not in first.headers
    assert "MCP-Protocol-Version" not in first.headers
    assert before.headers["Mcp-Session-Id"] == "session-1"
    assert "MCP-Protocol-Version" not in before.headers
    assert [seen.method for seen in after] == ["GET", "POST", "DELETE"]
    for seen in after:
        assert seen.headers["Mcp-Session-Id"] == "session-1"
        assert seen.headers["MCP-Protocol-Version"] == "2025-06-18"
        assert seen.headers["Authorization"] == "Bearer secret-token"
    assert after[0].headers["Accept"] == "text/event-stream"


async def test_credentials_are_asked_for_anew_for_each_request(upstream: FakeHttp) -> None:
    async with running(upstream) as rig:
        await rig.initialize()
        rig.credentials["Authorization"] = "Bearer next"
        await rig.request(1)
        await rig.settled(1)
        rig.credentials = {"X-Api-Key": "k"}
    assert [seen.headers.get("Authorization") for seen in upstream.seen] == [
        "Bearer secret-token",
        "Bearer next",
        None,
    ]
    assert upstream.seen[-1].headers["X-Api-Key"] == "k"


async def test_what_belongs_to_one_hop_or_to_a_browser_is_not_sent_on(upstream: FakeHttp) -> None:
    """F29."""
    async with running(upstream) as rig:
        rig.credentials |= {"Origin": "https://evil.example", "host": "evil.example", "Accept-Encoding": "br"}
        rig.credentials |= {"content-type": "text/plain", "Mcp-Session-Id": "another"}
        await rig.initialize()
        await rig.request(1)
        await rig.settled(1)
    headers = upstream.seen[1].headers
    assert "Origin" not in headers
    assert headers["Host"].startswith("127.0.0.1:")
    assert headers.getall("Accept-Encoding") == ["identity"]
    assert headers.getall("Content-Type") == ["application/json"]
    assert headers.getall("Mcp-Session-Id") == ["session-1"]


async def test_a_credential_that_no_header_can_carry_is_an_error_of_that_call(upstream: FakeHttp) -> None:
    async with running(upstream) as rig:
        rig.credentials["Authorization"] = "Bearer a\r\nX-Forged: 1"
        await rig.request(1)
        error = await rig.lost(1)
        assert isinstance(error, UpstreamUnavailable)
        rig.credentials.clear()
        await rig.request(2)
        assert await rig.settled(2) is None
    assert len(upstream.seen) == 1


# -- answers that are none ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "play",
    [
        status(202),
        status(204),
        status(200),
        status(200, b"", Content_Type="application/json"),
        status(200, b" \n", Content_Type="application/json"),
        status(200, b"<h1>Log in\n first</h1>", Content_Type="text/html"),
        status(200, b"[]", Content_Type="application/json"),
        status(200, b"not json", Content_Type="application/json"),
        status(200, b'{"jsonrpc":"2.0","id":99,"result":{}}', Content_Type="application/json"),
        status(304),
    ],
)
async def test_an_answer_without_the_response_loses_the_call_and_says_why(
    upstream: FakeHttp, play: Handler
) -> None:
    upstream.handlers["POST"] = play
    async with running(upstream) as rig:
        await rig.request(1)
        error = await rig.lost(1)
    assert isinstance(error, UnexpectedStatus)
    assert str(error.upstream_status) in error.message
    assert "upstream 'search'" in error.message
    assert len(upstream.by("POST")) == 1


async def test_the_error_shows_the_first_words_and_no_credentials(upstream: FakeHttp) -> None:
    page = b"<p>502\x1b[31m Bad   Gateway</p> you sent secret-token for session-1" + b"x" * 9_000
    upstream.handlers["POST"] = for_requests(status(502, page, Content_Type="text/html"))
    async with running(upstream) as rig:
        await rig.initialize()
        await rig.request(1)
        error = await rig.lost(1)
    assert isinstance(error, UnexpectedStatus)
    assert "status 502: <p>502 [31m Bad Gateway</p> you sent [redacted] for [redacted]x" in error.message
    assert "outcome unknown" in error.message
    assert len(error.message) < 400


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refusal_keeps_its_status_and_every_challenge(upstream: FakeHttp, code: int) -> None:
    """F28, AUTH-005."""
    challenges = ('Bearer realm="r", error="invalid_token", scope="a b"', "Basic realm=x")

    async def play(seen: Seen) -> web.StreamResponse:
        response = web.Response(status=code, body=b"no")
        for challenge in challenges:
            response.headers.add("WWW-Authenticate", challenge)
        return response

    upstream.handlers["POST"] = play
    async with running(upstream) as rig:
        await rig.request(1)
        error = await rig.lost(1)
        with pytest.raises(UpstreamRefused):
            await rig.transport.send(NOTE)
    assert isinstance(error, UpstreamRefused)
    assert (error.status, error.challenges) == (code, challenges)


async def test_a_404_for_a_session_is_its_loss_and_the_session_can_be_told(upstream: FakeHttp) -> None:
    """HTTP-073: also where the server puts the id of the request on its error."""
    gone = b'{"jsonrpc":"2.0","id":2,"error":{"code":-32001,"message":"Session not found"}}'
    upstream.handlers["POST"] = for_requests(
        one_by_one(status(404, b"gone"), status(404, gone, Content_Type="application/json"))
    )
    async with running(upstream) as rig:
        await rig.initialize()
        await rig.request(1)
        assert isinstance(await rig.lost(1), SessionLost)
        await rig.request(2)
        error = await rig.lost(2)
        assert isinstance(error, SessionLost)
        assert "Session not found" in error.message
        assert rig.told.loss_of(None) is None


@pytest.mark.parametrize("code", [400, 404, 405, 413, 429, 500, 503])
async def test_other_statuses_are_told_with_their_number(upstream: FakeHttp, code: int) -> None:
    upstream.handlers["POST"] = status(code, b"nope")
    async with running(upstream) as rig:
        await rig.request(1, "initialize")
        error = await rig.lost(1)
        with pytest.raises(UnexpectedStatus):
            await rig.transport.send(NOTE)
    assert isinstance(error, UnexpectedStatus)
    assert error.upstream_status == code
    assert f"status {code}: nope" in error.message
    assert ("outcome unknown" in error.message) == (code >= 500)


@pytest.mark.parametrize("code", [400, 404, 500])
async def test_an_error_response_to_the_call_is_its_answer_whatever_the_status(
    upstream: FakeHttp, code: int
) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"unknown"}}'
    upstream.handlers["POST"] = for_requests(status(code, body, Content_Type="application/json"))
    async with running(upstream) as rig:
        await rig.initialize()
        await rig.request(1)
        assert await rig.settled(1) is None
        assert rig.told.of(1) == [body]


async def test_an_error_with_a_made_up_id_loses_the_call_with_its_message(upstream: FakeHttp) -> None:
    body = b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Missing session ID"}}'
    upstream.handlers["POST"] = status(400, body, Content_Type="application/json")
    async with running(upstream) as rig:
        await rig.request(1)
        error = await rig.lost(1)
    assert isinstance(error, UnexpectedStatus)
    assert error.message == "upstream 'search' answered with status 400: Missing session ID"
    assert not rig.told.received_


async def test_nobody_there_means_that_nothing_was_sent(upstream: FakeHttp) -> None:
    async with FakeHttp().serving() as gone:
        upstream.url = gone.url
    async with running(upstream) as rig:
        await rig.request(1)
        error = await rig.lost(1)
        assert isinstance(error, UpstreamUnavailable)
        with pytest.raises(UpstreamUnavailable):
            await rig.transport.send(NOTE)


@pytest.mark.parametrize(
    "play",
    [
        vanish,
        stream(cut=True),
        stream(event(NOTE), cut=True),
        stream(event(NOTE)),
        stream(b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n', cut=True),
        short_of_its_length,
    ],
)
async def test_a_break_before_the_answer_leaves_the_outcome_unknown_and_nothing_is_sent_again(
    upstream: FakeHttp, play: Handler
) -> None:
    """I2, F31."""
    upstream.handlers["POST"] = play
    async with running(upstream) as rig:
        await rig.request(1)
        error = await rig.lost(1)
    assert type(error) is UpstreamClosed
    assert "outcome unknown" in error.message
    assert [seen.method for seen in upstream.seen] == ["POST"]


async def test_what_is_not_http_is_said_to_be_so(upstream: FakeHttp) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    upstream.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/mcp?key=secret"
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(serve_raw, listener, b"SSH-2.0-OpenSSH_9.6\r\n")
        async with running(upstream) as rig:
            await rig.request(1)
            error = await rig.lost(1)
        tasks.cancel_scope.cancel()
    assert isinstance(error, UpstreamProtocolError)
    assert error.message == f"upstream 'search' sent what is not HTTP; {OUTCOME_UNKNOWN}"


# -- encodings and sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "br", "GZIP, identity"])
@pytest.mark.parametrize("media_type", ["application/json", EVENT_STREAM])
@pytest.mark.parametrize("honest", [True, False])
async def test_an_encoding_that_was_not_asked_for_is_a_clear_error(
    upstream: FakeHttp, encoding: str, media_type: str, honest: bool
) -> None:
    """F31: packed or not, what the header says cannot be relied on."""

    async def play(seen: Seen) -> web.StreamResponse:
        body = result_for(seen) if media_type == "application/json" else event(result_for(seen))
        return web.Response(
            body=gzip.compress(body) if honest else body,
            headers={"Content-Type": media_type, "Content-Encoding": encoding},
        )

    upstream.handlers["POST"] = play
    async with running(upstream) as rig:
        await rig.request(1)
        error = await rig.lost(1)
    assert isinstance(error, UpstreamProtocolError)
    assert f"Content-Encoding {encoding!r}" in error.message


async def test_an_encoded_answer_of_a_wrong_length_that_never_ends_is_an_error_at_once(
    upstream: FakeHttp,
) -> None:
    """F31."""

    async def play(seen: Seen) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Content-Encoding": "gzip", "Content-Length": "9999"}
        )
        await response.prepare(seen.request)
        await response.write(gzip.compress(result_for(seen)))
        return await hang(seen)

    upstream.handlers["POST"] = play
    async with running(upstream) as rig:
        await rig.request(1)
        assert isinstance(await rig.lost(1), UpstreamProtocolError)
        await until(lambda: upstream.dropped)


@pytest.mark.parametrize("size", [100_000, 1_000_000, 20_000_000])
@pytest.mark.parametrize("streamed", [False, True])
async def test_large_answers_arrive_whole(upstream: FakeHttp, size: int, streamed: bool) -> None:
    """F23."""

    async def play(seen: Seen) -> web.StreamResponse:
        body = result_for(seen, {"text": "x" * size})
        if not streamed:
            return web.Response(body=body, content_type="application/json")
        return await stream(event(body))(seen)

    upstream.handlers["POST"] = play
    async with running(upstream, max_bytes=32 * MIB) as rig:
        await rig.request(1)
        assert await rig.settled(1) is None
        assert json.loads(rig.told.of(1)[0])["result"]["text"] == "x" * size


async def test_large_requests_and_long_headers_go_out_whole(upstream: FakeHttp) -> None:
    """F23."""
    message = jsonrpc.request(1, "tools/call", b'{"x":"' + b"y" * 5_000_000 + b'"}')
    async with running(upstream) as rig:
        rig.credentials["Authorization"] = "Bearer " + "t" * 12_000
        await rig.transport.send(message, call=1)
        assert await rig.settled(1) is None
    assert upstream.seen[0].body == message
    assert len(upstream.seen[0].headers["Authorization"]) == 12_007


async def test_a_long_challenge_comes_through(upstream: FakeHttp) -> None:
    challenge = 'Bearer scope="' + "s" * 60_000 + '"'
    upstream.handlers["POST"] = status(401, WWW_Authenticate=challenge)
    async with running(upstream) as rig:
        await rig.request(1)
        error = await rig.lost(1)
    assert isinstance(error, UpstreamRefused)
    assert error.challenges == (challenge,)


@pytest.mark.parametrize(
    ("headers", "start", "line"),
    [
        ({"Content-Type": "application/json", "Content-Length": str(10 * MIB)}, b"[", b" "),
        ({"Content-Type": "application/json"}, b"[", b" "),
        ({"Content-Type": EVENT_STREAM}, event(NOTE) + b"data: ", b"x"),
        ({"Content-Type": EVENT_STREAM}, event(NOTE), b"data: x\n"),
        ({"Content-Type": EVENT_STREAM}, event(NOTE) + b": ", b"x"),
    ],
)
@pytest.mark.parametrize("code", [200, 500])
async def test_an_answer_over_the_limit_is_dropped_with_its_connection(
    upstream: FakeHttp, headers: dict[str, str], start: bytes, line: bytes, code: int
) -> None:
    """F23."""

    async def play(seen: Seen) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers, status=code)
        await response.prepare(seen.request)
        await response.write(start)
        while True:
            await response.write(line * 10_000)

    upstream.handlers["POST"] = one_by_one(play, answer)
    async with running(upstream) as rig:
        await rig.request(1)
        error = await rig.lost(1)
        assert isinstance(error, UpstreamProtocolError)
        assert f"over the limit of {MIB} bytes" in error.message
        await until(lambda: upstream.dropped)
        await rig.request(2)
        assert await rig.settled(2) is None
    streamed = code == 200 and headers["Content-Type"] == EVENT_STREAM
    assert rig.told.of(1) == ([NOTE] if streamed else [])


# -- resuming -----------------------------------------------------------------------------------------


async def test_a_broken_stream_is_resumed_by_get_and_the_call_is_answered_once(upstream: FakeHttp) -> None:
    """F24, HTTP-076: `retry` is respected, and nothing is posted twice."""
    upstream.handlers["POST"] = for_requests(
        stream(event(NOTE, id="a-1", retry=3_000), b"id: a-2\ndata: half", cut=True)
    )
    upstream.handlers["GET"] = stream(event(b'{"jsonrpc":"2.0","id":1,"result":{}}', id="a-2"))
    async with running(upstream) as rig:
        await rig.initialize()
        await rig.request(1)
        await rig.retry(2.9)
        assert not upstream.by("GET")
        await rig.clock.advance(0.2)
        await until(lambda: len(rig.told.of(1)) == 2)
    assert rig.told.loss_of(1) is None
    (get,) = upstream.by("GET")
    assert get.headers["Last-Event-ID"] == "a-1"
    assert get.headers["Mcp-Session-Id"] == "session-1"
    assert len(upstream.by("POST")) == 2


async def test_a_stream_closed_after_its_priming_event_is_fetched_when_it_says(upstream: FakeHttp) -> None:
    """F22: 50 ms."""
    upstream.handlers["POST"] = stream(event(b"", id="0", retry=50))
    upstream.handlers["GET"] = stream(event(b'{"jsonrpc":"2.0","id":1,"result":{}}'))
    async with running(upstream) as rig:
        await rig.request(1)
        await rig.retry(0.05)
        assert await rig.settled(1) is None
    assert upstream.by("GET")[0].headers["Last-Event-ID"] == "0"


async def test_an_answer_before_the_break_needs_no_resuming(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = replies(lambda seen: [event(result_for(seen), id="1")], cut=True)
    async with running(upstream) as rig:
        await rig.request(1)
        assert await rig.settled(1) is None
        await until(lambda: not rig.transport._calls)
    assert rig.told.loss_of(1) is None
    assert not upstream.by("GET")


async def test_attempts_that_bring_nothing_are_bounded_and_spaced_out(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = stream(event(NOTE, id="1"), cut=True)
    upstream.handlers["GET"] = one_by_one(
        status(503), stream(cut=True), stream(), stream(event(b"", id="1")), status(502)
    )
    async with running(upstream) as rig:
        await rig.request(1)
        for attempt, delay in enumerate((1, 1, 2, 4, 8), 1):
            await rig.retry(delay - 0.1)
            assert len(upstream.by("GET")) < attempt
            await rig.clock.advance(0.1)
            await upstream.gets(attempt)
        error = await rig.lost(1)
    assert type(error) is UpstreamClosed
    assert "outcome unknown" in error.message
    assert len(upstream.by("POST")) == 1


async def test_attempts_that_bring_something_are_not_counted(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = stream(event(NOTE, id="0"), cut=True)
    rounds = 3 * http.RESUME_ATTEMPTS
    upstream.handlers["GET"] = one_by_one(
        *(stream(event(b"", id=f"{n}", retry=1_000), cut=True) for n in range(1, rounds + 1)),
        stream(event(b'{"jsonrpc":"2.0","id":1,"result":{}}')),
    )
    async with running(upstream) as rig:
        await rig.request(1)
        for _ in range(rounds + 1):
            await rig.retry(1)
        await until(lambda: len(rig.told.of(1)) == 2)
    assert [seen.headers["Last-Event-ID"] for seen in upstream.by("GET")] == [
        str(n) for n in range(rounds + 1)
    ]
    assert rig.told.loss_of(1) is None


@pytest.mark.parametrize(
    ("play", "kind"),
    [
        (status(405), UpstreamClosed),
        (status(400), UpstreamClosed),
        (status(200, b"{}", Content_Type="application/json"), UpstreamClosed),
        (status(404), SessionLost),
        (status(307, Location="http://other.example/"), UpstreamProtocolError),
    ],
)
async def test_a_server_that_does_not_resume_leaves_the_outcome_unknown(
    upstream: FakeHttp, play: Handler, kind: type[UpstreamError]
) -> None:
    upstream.handlers["POST"] = for_requests(stream(event(NOTE, id="1"), cut=True))
    upstream.handlers["GET"] = play
    async with running(upstream) as rig:
        await rig.initialize()
        await rig.request(1)
        await rig.retry(1)
        error = await rig.lost(1)
        assert type(error) is kind
    assert len(upstream.by("GET")) == 1


# -- the GET stream -----------------------------------------------------------------------------------


async def test_what_the_server_says_of_its_own_accord_is_told_without_a_call(upstream: FakeHttp) -> None:
    upstream.handlers["GET"] = stream(event(NOTE), b"event: ping\ndata: x\n\n", event(NOTE), hold=True)
    async with running(upstream) as rig:
        await rig.initialize()
        assert not upstream.by("GET")
        rig.transport.established("2025-11-25")
        await until(lambda: rig.told.of(None) == [NOTE, NOTE])
    await until(lambda: upstream.dropped)


@pytest.mark.parametrize(
    "play",
    [
        status(405),
        status(404),
        status(400),
        status(401),
        status(403),
        status(501),
        status(302, Location="/login"),
        status(200, b'{"jsonrpc":"2.0","id":"server-error","error":{}}', Content_Type="application/json"),
        status(200, b"", Content_Type=EVENT_STREAM, Content_Encoding="gzip"),
    ],
)
@pytest.mark.parametrize("with_session", [True, False])
async def test_a_get_stream_that_is_not_offered_is_asked_for_once_and_calls_work(
    upstream: FakeHttp, play: Handler, with_session: bool
) -> None:
    """F25."""
    upstream.handlers["GET"] = play
    async with running(upstream) as rig:
        if with_session:
            await rig.initialize()
        rig.transport.established("2025-11-25")
        await until(lambda: upstream.by("GET"))
        await rig.request(1)
        assert await rig.settled(1) is None
        await rig.clock.advance(120)
        await rig.request(2)
        assert await rig.settled(2) is None
        assert rig.clock.sleeping == 0
    assert len(upstream.by("GET")) == 1


@pytest.mark.parametrize("play", [stream(), stream(cut=True), vanish, status(503), status(429)])
async def test_a_get_stream_that_ends_at_once_is_asked_for_less_and_less_often(
    upstream: FakeHttp, play: Handler
) -> None:
    """F25."""
    upstream.handlers["GET"] = play
    async with running(upstream) as rig:
        rig.transport.established("2025-11-25")
        for delay in (1, 1, 2, 4, 8, 16, 30, 30):
            await until(lambda: rig.clock.sleeping)
            asked = len(upstream.by("GET"))
            await rig.clock.advance(delay - 0.1)
            assert len(upstream.by("GET")) == asked
            await rig.clock.advance(0.1)
            await upstream.gets(asked + 1)


async def test_a_get_stream_that_breaks_is_opened_again_after_the_last_event(upstream: FakeHttp) -> None:
    """HTTP-076."""
    upstream.handlers["GET"] = one_by_one(
        stream(event(NOTE, id="g-1", retry=3_000), cut=True),
        stream(event(NOTE, id="g-2"), cut=True),
        stream(hold=True),
    )
    async with running(upstream) as rig:
        rig.transport.established("2025-11-25")
        for _ in range(2):
            await until(lambda: rig.clock.sleeping)
            asked = len(upstream.by("GET"))
            await rig.clock.advance(2.9)
            assert len(upstream.by("GET")) == asked
            await rig.clock.advance(0.1)
        await upstream.gets(3)
        assert rig.told.of(None) == [NOTE, NOTE]
    assert [seen.headers.get("Last-Event-ID") for seen in upstream.by("GET")] == [None, "g-1", "g-2"]


async def test_a_quiet_get_stream_that_something_cuts_is_opened_again_without_delay(
    upstream: FakeHttp,
) -> None:
    ends = [anyio.Event() for _ in range(6)]

    async def play(seen: Seen) -> web.StreamResponse:
        response = await start_stream(seen)
        await ends[len(upstream.by("GET")) - 1].wait()
        return response

    upstream.handlers["GET"] = play
    async with running(upstream) as rig:
        rig.transport.established("2025-11-25")
        for n, end in enumerate(ends[:-1], 1):
            await upstream.gets(n)
            await rig.clock.advance(60)
            end.set()
            await rig.retry(1)
        await upstream.gets(6)
        assert len(upstream.by("GET")) == 6


async def test_an_event_over_the_limit_on_the_get_stream_is_not_asked_for_again(upstream: FakeHttp) -> None:
    upstream.handlers["GET"] = one_by_one(
        stream(event(NOTE, id="1"), event(b"x" * (MIB + 1), id="2"), hold=True),
        stream(event(NOTE), hold=True),
    )
    async with running(upstream) as rig:
        rig.transport.established("2025-11-25")
        await rig.retry(1)
        await until(lambda: rig.told.of(None) == [NOTE, NOTE])
    assert "Last-Event-ID" not in upstream.by("GET")[1].headers


async def test_a_session_that_the_get_stream_no_longer_finds_is_at_its_end(upstream: FakeHttp) -> None:
    upstream.handlers["GET"] = one_by_one(stream(event(NOTE)), status(404))
    upstream.handlers["POST"] = for_requests(hang)
    async with running(upstream) as rig:
        await rig.initialize()
        rig.transport.established("2025-11-25")
        await rig.request(1)
        await rig.retry(1)
        await until(lambda: rig.told.loss_of(None))
        with pytest.raises(UpstreamClosed):
            await rig.request(2)
    assert [(call, type(error)) for call, error in rig.told.losses] == [(1, SessionLost), (None, SessionLost)]
    assert "outcome unknown" in rig.told.losses[0][1].message  # I2
    assert not upstream.by("DELETE")


async def test_a_token_that_ran_out_ends_the_get_stream_only_until_there_is_a_new_one(
    upstream: FakeHttp,
) -> None:
    upstream.handlers["GET"] = one_by_one(stream(event(NOTE)), status(401), stream(event(NOTE), hold=True))
    async with running(upstream) as rig:
        rig.transport.established("2025-11-25")
        await rig.retry(1)
        await rig.retry(1)
        await until(lambda: rig.told.of(None) == [NOTE, NOTE])
        assert len(upstream.by("GET")) == 3


# -- what is not a request ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "play", [status(202), status(200, b"null", Content_Type="application/json"), status(204)]
)
async def test_a_notification_is_sent_once_the_server_has_accepted_it(
    upstream: FakeHttp, play: Handler
) -> None:
    upstream.handlers["POST"] = play
    async with running(upstream) as rig:
        await rig.transport.send(NOTE)
        assert [seen.body for seen in upstream.seen] == [NOTE]
    assert not rig.told.received_


async def test_a_notification_that_is_not_accepted_in_time_is_an_error(
    upstream: FakeHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "ACCEPT_TIMEOUT_S", 0.05)
    upstream.handlers["POST"] = hang
    async with running(upstream) as rig:
        with pytest.raises(UpstreamTimeout):
            await rig.transport.send(NOTE)
        await until(lambda: upstream.dropped)


async def test_a_notification_is_not_sent_twice_when_the_connection_breaks(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = vanish
    async with running(upstream) as rig:
        with pytest.raises(UpstreamClosed):
            await rig.transport.send(NOTE)
    assert len(upstream.seen) == 1


# -- ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("play", [hang, stream(event(NOTE), hold=True)])
async def test_an_abandoned_call_is_dropped_at_once_and_no_more_is_told_of_it(
    upstream: FakeHttp, play: Handler
) -> None:
    upstream.handlers["POST"] = for_requests(play)
    async with running(upstream) as rig:
        await rig.request(1)
        await until(lambda: upstream.seen)
        rig.transport.abandon(1)
        rig.transport.abandon(1)
        rig.transport.abandon(99)
        await until(lambda: upstream.dropped)
    assert rig.told.loss_of(1) is None


async def test_a_call_abandoned_by_its_first_event_hears_nothing_of_the_second(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = stream(event(NOTE) + event(NOTE), hold=True)
    async with running(upstream) as rig:
        rig.told.on_received = lambda _, call: rig.transport.abandon(call or 0)
        await rig.request(1)
        await until(lambda: upstream.dropped)
    assert rig.told.of(1) == [NOTE]


async def test_a_call_abandoned_while_it_waits_to_resume_is_not_resumed(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = stream(event(NOTE, id="1"), cut=True)
    async with running(upstream) as rig:
        await rig.request(1)
        await until(lambda: rig.clock.sleeping)
        rig.transport.abandon(1)
        await until(lambda: not rig.clock.sleeping)
    assert not upstream.by("GET")


@pytest.mark.parametrize("play", [status(200), status(405), status(500), vanish])
async def test_close_loses_what_is_pending_then_deletes_the_session(
    upstream: FakeHttp, play: Handler
) -> None:
    """HTTP-075: 405 is accepted, as is everything else."""
    upstream.handlers |= {"GET": stream(hold=True), "POST": for_requests(hang), "DELETE": play}
    async with running(upstream) as rig:
        await rig.initialize()
        rig.transport.established("2025-11-25")
        await rig.request(1)
        await until(lambda: len(upstream.seen) == 3)
        rig.transport.close()
        rig.transport.close()
        with pytest.raises(UpstreamClosed):
            await rig.transport.send(NOTE)
        with pytest.raises(UpstreamClosed):
            await rig.request(2)
    assert [(call, type(error)) for call, error in rig.told.losses] == [
        (1, UpstreamClosed),
        (None, UpstreamClosed),
    ]
    assert "outcome unknown" in rig.told.losses[0][1].message
    assert upstream.by("DELETE")[0].headers["Mcp-Session-Id"] == "session-1"
    assert {seen.method for seen in upstream.dropped} == {"GET", "POST"}


async def test_a_session_that_is_left_to_a_later_process_is_not_deleted(upstream: FakeHttp) -> None:
    """Contract section 9, SIGTERM: servers end the calls of a session with it, and these are resumed."""
    upstream.handlers["POST"] = for_requests(hang)
    async with running(upstream) as rig:
        await rig.initialize()
        await rig.request(1)
        rig.transport.leave()
    assert not upstream.by("DELETE")


async def test_a_delete_that_is_not_answered_does_not_hold_up_the_end(
    upstream: FakeHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "DELETE_TIMEOUT_S", 0.05)
    upstream.handlers["DELETE"] = hang
    async with running(upstream) as rig:
        await rig.initialize()
    assert upstream.by("DELETE")


async def test_without_a_session_there_is_nothing_to_delete(upstream: FakeHttp) -> None:
    async with running(upstream) as rig:
        await rig.request(1)
        await rig.settled(1)
    assert not upstream.by("DELETE")


async def test_a_send_that_is_still_out_when_all_is_gone_ends_too(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = hang
    ended: list[UpstreamError] = []
    async with anyio.create_task_group() as tasks, running(upstream) as rig:

        async def notify() -> None:
            try:
                await rig.transport.send(NOTE)
            except UpstreamError as exc:
                ended.append(exc)

        tasks.start_soon(notify)
        await until(lambda: upstream.seen)
        rig.transport.close()
        await until(lambda: ended)
    assert isinstance(ended[0], UpstreamClosed)


async def test_cancelling_ends_everything_at_once_and_says_so(upstream: FakeHttp) -> None:
    upstream.handlers |= {"GET": stream(hold=True), "POST": for_requests(hang)}
    async with make_client() as client:
        rig = Rig(upstream, client)
        async with anyio.create_task_group() as tasks:
            await tasks.start(rig.transport.run, rig.told)
            await rig.initialize()
            rig.transport.established("2025-11-25")
            await rig.request(1)
            await until(lambda: len(upstream.seen) == 3)
            tasks.cancel_scope.cancel()
        assert [(call, type(error)) for call, error in rig.told.losses] == [
            (1, UpstreamClosed),
            (None, UpstreamClosed),
        ]
        with pytest.raises(UpstreamClosed):
            await rig.transport.send(NOTE)
        await until(lambda: len(upstream.dropped) == 2)
    assert not upstream.by("DELETE")


async def test_closed_before_it_ran_it_connects_to_nothing(upstream: FakeHttp) -> None:
    async with make_client() as client:
        rig = Rig(upstream, client)
        with pytest.raises(UpstreamClosed):
            await rig.transport.send(NOTE)
        rig.transport.close()
        async with anyio.create_task_group() as tasks:
            await tasks.start(rig.transport.run, rig.told)
    assert [call for call, _ in rig.told.losses] == [None]
    assert not upstream.seen


# -- the client ---------------------------------------------------------------------------------------


async def test_the_defaults_that_bite_are_off() -> None:
    """I2, F40: 3 s, before servers that close idle connections at 5 s make an outcome unknowable."""
    async with make_client() as client:
        assert client.connector is not None
        assert client.connector._keepalive_timeout == http.IDLE_CONNECTION_S == 3.0
        assert client.connector.limit == 0
        assert client.timeout.total is None
        assert client.timeout.sock_read is None
        assert client.timeout.sock_connect == http.CONNECT_TIMEOUT_S
        assert not client.auto_decompress
        assert not client.trust_env
        assert isinstance(client.cookie_jar, aiohttp.DummyCookieJar)


async def test_cookies_are_not_kept(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = status(202, Set_Cookie="who=me")
    async with running(upstream) as rig:
        await rig.transport.send(NOTE)
        await rig.transport.send(NOTE)
    assert "Cookie" not in upstream.seen[1].headers


async def test_a_transport_says_where_it_leads_without_what_is_secret(upstream: FakeHttp) -> None:
    upstream.url += "?key=secret"
    async with running(upstream) as rig:
        await rig.request(1)
        await rig.settled(1)
        assert rig.transport.describe() == "http " + upstream.url.removesuffix("?key=secret")
        assert "secret" not in repr(rig.transport)
    assert upstream.seen[0].path == "/mcp?key=secret"
