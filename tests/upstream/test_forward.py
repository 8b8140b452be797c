"""Requests passed on to an HTTP upstream: what it gets, what comes back, and what its failures are.

A real server on loopback. Contract section 6; RFC 9110, "Message Forwarding".
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from anyio.abc import SocketAttribute

from proxy.errors import UpstreamClosed, UpstreamProtocolError, UpstreamUnavailable
from proxy.upstream.base import Forwarded
from proxy.upstream.endpoint import OUTCOME_UNKNOWN
from proxy.upstream.forward import HttpForwarder
from proxy.upstream.health import OK, Health
from proxy.upstream.http import make_client
from tests.manual_clock import ManualClock
from tests.upstream.fake_http import (
    FakeHttp,
    Seen,
    event,
    hang,
    serve_raw,
    short_of_its_length,
    start_stream,
    status,
    stream,
    vanish,
)
from tests.upstream.told import until

pytestmark = pytest.mark.anyio

Headers = Sequence[tuple[str, str]]


@pytest.fixture
async def upstream() -> AsyncIterator[FakeHttp]:
    async with FakeHttp().serving() as fake:
        yield fake


@asynccontextmanager
async def forwarder(url: str, health: Health | None = None) -> AsyncIterator[HttpForwarder]:
    """Five seconds are the bound of any test; no connection is left open."""
    with anyio.fail_after(5):
        async with make_client() as client:
            yield HttpForwarder(url, name="search", client=client, health=health or Health(ManualClock()))
            assert isinstance(client.connector, aiohttp.BaseConnector)
            assert not client.connector._acquired


async def ask(to: HttpForwarder, method: str = "POST", headers: Headers = (), **more: Any) -> Forwarded:
    """The head; the body is read and thrown away."""
    async with to.forward(method, headers, **more) as answer:
        async for _ in answer.chunks:
            pass
        return answer


async def body_of(to: HttpForwarder, **more: Any) -> bytes:
    async with to.forward("POST", [], **more) as answer:
        return b"".join([chunk async for chunk in answer.chunks])


def values(headers: Headers, name: str) -> list[str]:
    return [value for key, value in headers if key.lower() == name.lower()]


# -- what the upstream gets ---------------------------------------------------------------------------


async def test_headers_reach_the_upstream_as_the_client_wrote_them(upstream: FakeHttp) -> None:
    """AUTH-005, HTTP-025: credentials, what nobody knows, and what stands several times."""
    sent = [
        ("Authorization", "Bearer token-1"),
        ("Accept", "application/json, text/event-stream"),
        ("Content-Type", "application/json; charset=utf-8"),
        ("Mcp-Session-Id", "s-1"),
        ("MCP-Protocol-Version", "2025-06-18"),
        ("Last-Event-ID", "7"),
        ("Mcp-Param-Region", "eu"),
        ("User-Agent", "client/1"),
        ("Cookie", "a=b"),
        ("X-Vendor", "1"),
        ("x-vendor", "2"),
        ("X-Name", "ünï"),
    ]
    async with forwarder(upstream.url) as to:
        await ask(to, headers=sent, body=b'{"id": 1}')
    [seen] = upstream.seen
    for key, _ in sent:
        assert seen.headers.getall(key) == values(sent, key)
    assert seen.body == b'{"id": 1}'


async def test_nothing_is_added_that_the_client_did_not_send(upstream: FakeHttp) -> None:
    """But what the hop itself needs."""
    async with forwarder(upstream.url) as to:
        await ask(to, "GET")
        await ask(to, "POST", body=b"{}")
    get, post = (set(map(str.lower, seen.headers)) for seen in upstream.seen)
    assert get == {"host", "accept-encoding"}
    assert post == {"host", "accept-encoding", "content-length"}


async def test_what_belongs_to_one_hop_or_to_a_browser_ends_here(upstream: FakeHttp) -> None:
    """F29: the upstream gets its own Host, and no Origin."""
    async with forwarder(upstream.url) as to:
        await ask(
            to,
            headers=[
                ("Host", "proxy.example"),
                ("Origin", "https://app.example"),
                ("Referer", "https://app.example/page"),
                ("Sec-Fetch-Site", "cross-site"),
                ("Connection", "keep-alive, X-Hop"),
                ("Keep-Alive", "timeout=5"),
                ("X-Hop", "1"),
                ("TE", "trailers"),
                ("Trailer", "X-Sum"),
                ("Upgrade", "h2c"),
                ("Transfer-Encoding", "chunked"),
                ("Content-Length", "999"),
                ("Expect", "100-continue"),
                ("Proxy-Authorization", "Basic x"),
            ],
            body=b"{}",
        )
    [seen] = upstream.seen
    assert seen.headers["Host"] in upstream.url
    assert set(map(str.lower, seen.headers)) == {"host", "accept-encoding", "content-length"}
    assert seen.body == b"{}"


async def test_no_client_can_have_us_keep_back_who_it_is(upstream: FakeHttp) -> None:
    """AUTH-005: by calling that a matter of one hop."""
    kept = {"Authorization": "Bearer t", "Mcp-Session-Id": "s", "Mcp-Name": "n", "Content-Type": "a/b"}
    async with forwarder(upstream.url) as to:
        await ask(
            to, headers=[*kept.items(), ("Connection", ", ".join(["X-Hop", *kept]).lower())], body=b"{}"
        )
    [seen] = upstream.seen
    assert {name: seen.headers.get(name) for name in kept} == kept


@pytest.mark.parametrize(
    "asked, plain, sent",
    [
        (["gzip, br"], False, "gzip, br"),
        (["gzip", "br"], False, "gzip, br"),
        (["gzip, br"], True, "identity"),
        ([], False, "identity"),
    ],
)
async def test_the_client_chooses_the_encoding_where_nothing_is_read_here(
    upstream: FakeHttp, asked: list[str], plain: bool, sent: str
) -> None:
    """F31."""
    async with forwarder(upstream.url) as to:
        await ask(to, headers=[("accept-encoding", value) for value in asked], body=b"{}", plain=plain)
    assert upstream.seen[0].headers.getall("Accept-Encoding") == [sent]


@pytest.mark.parametrize(
    "configured, asked, reached",
    [
        ("", "profile=a&x=%2F", "/mcp?profile=a&x=%2F"),
        ("?tenant=1", "tenant=2", "/mcp?tenant=1"),
        ("?tenant=1", "", "/mcp?tenant=1"),
    ],
)
async def test_the_query_of_a_client_is_passed_on_but_never_overrules_the_operator(
    upstream: FakeHttp, configured: str, asked: str, reached: str
) -> None:
    async with forwarder(upstream.url + configured) as to:
        await ask(to, "GET", query=asked)
    assert upstream.seen[0].path == reached


async def test_another_path_of_the_same_origin(upstream: FakeHttp) -> None:
    async with forwarder(upstream.url + "?key=secret") as to:
        await ask(to, "GET", path="/.well-known/a%2Fb", query="x=1")
    assert upstream.seen[0].path == "/.well-known/a%2Fb?x=1"


@pytest.mark.parametrize("size", [0, 1, 64 << 10, (64 << 10) + 1, 5 << 20])
async def test_a_body_of_any_size_arrives_whole(upstream: FakeHttp, size: int) -> None:
    """F23."""
    async with forwarder(upstream.url) as to:
        upstream.handlers["POST"] = status(202)
        await ask(to, body=b"x" * size)
    [seen] = upstream.seen
    assert (seen.body, seen.headers["Content-Length"]) == (b"x" * size, str(size))


# -- what comes back ----------------------------------------------------------------------------------


async def test_statuses_and_headers_come_back_as_the_upstream_sent_them(upstream: FakeHttp) -> None:
    """HTTP-068, AUTH-005: its session id, all challenges; neither hop nor CORS, which are ours (F30)."""

    async def play(seen: Seen) -> web.StreamResponse:
        response = web.Response(status=401, body=b"no")
        for key, value in (
            ("WWW-Authenticate", 'Bearer realm="r", scope="a b", Basic realm="x"'),
            ("WWW-Authenticate", "Negotiate"),
            ("Mcp-Session-Id", "s-1"),
            ("X-Vendor", "1"),
            ("Vary", "Accept"),
            ("Access-Control-Allow-Origin", "*"),
            ("Access-Control-Expose-Headers", "X"),
            ("Connection", "X-Hop"),
            ("X-Hop", "1"),
            ("Keep-Alive", "timeout=5"),
        ):
            response.headers.add(key, value)
        return response

    upstream.handlers["POST"] = play
    async with forwarder(upstream.url) as to:
        answer = await ask(to, body=b"{}")
    assert answer.status == 401
    assert values(answer.headers, "WWW-Authenticate") == [
        'Bearer realm="r", scope="a b", Basic realm="x"',
        "Negotiate",
    ]
    assert values(answer.headers, "Content-Length") == ["2"]
    assert {key.lower() for key, _ in answer.headers} == {
        *("www-authenticate", "mcp-session-id", "x-vendor", "vary"),
        *("content-length", "content-type", "date", "server"),
    }


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_a_redirect_is_passed_on_and_not_followed(upstream: FakeHttp, code: int) -> None:
    """F26."""
    upstream.handlers["POST"] = status(code, Location="http://elsewhere.example/mcp/")
    async with forwarder(upstream.url) as to:
        answer = await ask(to, body=b"{}")
    assert (answer.status, answer.header("location")) == (code, "http://elsewhere.example/mcp/")
    assert len(upstream.seen) == 1


async def test_a_body_stays_encoded_as_it_came(upstream: FakeHttp) -> None:
    """F31: right or wrong."""
    for body in (gzip.compress(b"{}"), b"not gzip at all"):
        upstream.handlers["POST"] = status(200, body, Content_Encoding="gzip")
        async with forwarder(upstream.url) as to, to.forward("POST", []) as answer:
            assert answer.is_encoded
            assert b"".join([chunk async for chunk in answer.chunks]) == body


async def test_a_stream_comes_as_it_is_sent(upstream: FakeHttp) -> None:
    go_on = anyio.Event()

    async def play(seen: Seen) -> web.StreamResponse:
        response = await start_stream(seen)
        await response.write(event(b"1"))
        await go_on.wait()
        await response.write(event(b"2"))
        return response

    upstream.handlers["GET"] = play
    async with forwarder(upstream.url) as to, to.forward("GET", []) as answer:
        assert answer.is_event_stream
        chunks = aiter(answer.chunks)
        assert await anext(chunks) == event(b"1")
        go_on.set()
        assert await anext(chunks) == event(b"2")
        assert [chunk async for chunk in chunks] == []


async def test_a_head_comes_before_any_body(upstream: FakeHttp) -> None:
    upstream.handlers["GET"] = stream(hold=True)
    async with forwarder(upstream.url) as to, to.forward("GET", []) as answer:
        assert answer.status == 200


# -- who goes away, and what breaks -------------------------------------------------------------------


@pytest.mark.parametrize("handler", [hang, stream(event(b"1"), hold=True)])
async def test_who_leaves_breaks_the_connection_with_the_upstream(upstream: FakeHttp, handler: Any) -> None:
    """As the client would without us; before the head, and in the middle of the body."""
    upstream.handlers["POST"] = handler
    async with forwarder(upstream.url) as to:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, to)
            await until(lambda: upstream.seen)
            tasks.cancel_scope.cancel()
        await until(lambda: upstream.dropped)
    assert len(upstream.seen) == 1


async def test_what_goes_wrong_while_the_answer_is_used_is_not_the_upstreams_fault(
    upstream: FakeHttp,
) -> None:
    async with forwarder(upstream.url) as to:
        with pytest.raises(ConnectionResetError):
            async with to.forward("POST", [], b"{}"):
                raise ConnectionResetError


async def test_nobody_there_means_that_nothing_was_sent() -> None:
    async with forwarder("http://127.0.0.1:9/mcp") as to:
        with pytest.raises(UpstreamUnavailable, match="'search' could not be reached") as caught:
            await ask(to, body=b"{}")
    assert OUTCOME_UNKNOWN not in caught.value.message


async def test_a_header_that_cannot_be_written_means_that_nothing_was_sent(upstream: FakeHttp) -> None:
    async with forwarder(upstream.url) as to:
        with pytest.raises(UpstreamUnavailable, match="characters"):
            await ask(to, headers=[("X-Broken", "a\r\nb")], body=b"{}")
    assert upstream.seen == []


async def test_a_connection_that_breaks_leaves_the_outcome_unknown_and_is_not_tried_again(
    upstream: FakeHttp,
) -> None:
    """I2."""
    upstream.handlers["POST"] = vanish
    async with forwarder(upstream.url) as to:
        with pytest.raises(UpstreamClosed, match=OUTCOME_UNKNOWN):
            await ask(to, body=b"{}")
    assert len(upstream.seen) == 1


async def test_a_body_that_breaks_off_is_an_error_after_what_came(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = stream(event(b"1"), cut=True)
    got: list[bytes] = []
    async with forwarder(upstream.url) as to, to.forward("POST", [], b"{}") as answer:
        with pytest.raises(UpstreamClosed, match="broke off"):
            async for chunk in answer.chunks:
                got.append(chunk)
    assert b"".join(got) == event(b"1")


async def test_a_body_that_is_short_of_its_length_is_an_error(upstream: FakeHttp) -> None:
    """F31."""
    upstream.handlers["POST"] = short_of_its_length
    async with forwarder(upstream.url) as to:
        with pytest.raises(UpstreamClosed):
            await body_of(to, body=b"{}")


async def test_what_is_not_http_is_an_error() -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(serve_raw, listener, b"SSH-2.0-what\r\n\r\n")
        port = listener.extra(SocketAttribute.local_port)
        async with forwarder(f"http://127.0.0.1:{port}/mcp") as to:
            with pytest.raises(UpstreamProtocolError, match="not HTTP"):
                await ask(to, body=b"{}")
        tasks.cancel_scope.cancel()


async def test_whether_the_server_can_be_reached_is_seen(upstream: FakeHttp) -> None:
    """F41: for `/readyz`. Whatever a server answers, it is there."""
    health = Health(ManualClock())
    async with forwarder("http://127.0.0.1:9/mcp", health) as to:
        with pytest.raises(UpstreamUnavailable):
            await ask(to)
    assert health.words() == "could not be started or reached"
    upstream.handlers["POST"] = status(500)
    async with forwarder(upstream.url, health) as to:
        await ask(to)
    assert health.words() == OK
