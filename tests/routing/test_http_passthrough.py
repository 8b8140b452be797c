"""Legacy clients passed through to an HTTP upstream: what goes up, what comes down, and what stands between.

Contract section 6; Transports 2025-11-25, "Streamable HTTP".
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPMethod
from typing import Any

import anyio
import pytest

from proxy.errors import UpstreamClosed, UpstreamProtocolError, UpstreamUnavailable
from proxy.owners import ANONYMOUS, Owner
from proxy.protocol import jsonrpc, sse
from proxy.routing.get_streams import HELD_BYTES
from proxy.routing.http_passthrough import AT_ONCE_BYTES, HttpPassthrough
from proxy.routing.legacy import HttpMessage, Reply
from tests.routing.fake_forwarder import EVENTS, JSON, Body, FakeForwarder, body_of
from tests.upstream.told import until

pytestmark = pytest.mark.anyio

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}'
RESULT = b'{"jsonrpc":"2.0","id":1,"result":{}}'
SESSION = [("Mcp-Session-Id", "s-1")]
OURS = sse.encode(b'{"jsonrpc":"2.0","method":"ours"}')
MAX_BYTES = 4 * HELD_BYTES


@pytest.fixture
def upstream() -> FakeForwarder:
    return FakeForwarder()


@pytest.fixture
def passthrough(upstream: FakeForwarder) -> HttpPassthrough:
    return HttpPassthrough(upstream, max_bytes=MAX_BYTES)


def post(body: bytes = CALL, headers: Sequence[tuple[str, str]] = SESSION, **more: Any) -> HttpMessage:
    return HttpMessage(HTTPMethod.POST, headers, ANONYMOUS, body, (jsonrpc.parse(body, 64),), **more)


def get(headers: Sequence[tuple[str, str]] = SESSION, owner: Owner = ANONYMOUS) -> HttpMessage:
    return HttpMessage(HTTPMethod.GET, headers, owner)


@asynccontextmanager
async def served(by: HttpPassthrough, message: HttpMessage) -> AsyncIterator[Reply]:
    with anyio.fail_after(5):
        async with by.serve(message) as reply:
            yield reply


async def answer_to(by: HttpPassthrough, message: HttpMessage) -> tuple[int, bytes]:
    async with served(by, message) as reply:
        return reply.status, await body_of(reply)


# -- POST and DELETE ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status, headers, body",
    [
        (200, [*JSON, *SESSION], RESULT),
        (202, [("X-Vendor", "1")], b""),
        (401, [("WWW-Authenticate", "Bearer a"), ("WWW-Authenticate", "Basic b")], b"no"),
        (403, [], b""),
        (404, JSON, b'{"error": "no such session"}'),
        (405, [("Allow", "GET")], b""),
        (307, [("Location", "/mcp/")], b""),
        (500, [("Content-Type", "text/html")], b"<h1>"),
    ],
)
async def test_an_answer_comes_back_as_it_was_given(
    upstream: FakeForwarder,
    passthrough: HttpPassthrough,
    status: int,
    headers: Sequence[tuple[str, str]],
    body: bytes,
) -> None:
    """HTTP-061, HTTP-074, AUTH-005, F26, F28: whatever its status; the message goes up as it came."""
    upstream.will(status, headers, body)
    message = post(query="a=1")
    async with served(passthrough, message) as reply:
        assert (reply.status, reply.headers, await body_of(reply)) == (status, headers, body)
    [asked] = upstream.asked
    assert (asked.method, asked.headers, asked.body) == ("POST", SESSION, CALL)
    assert (asked.query, asked.path, asked.plain, asked.left) == ("a=1", None, False, True)


@pytest.mark.parametrize("method", [HTTPMethod.DELETE, HTTPMethod.HEAD])
async def test_other_methods_go_up_without_a_body(
    upstream: FakeForwarder, passthrough: HttpPassthrough, method: HTTPMethod
) -> None:
    upstream.will(405, [("Allow", "POST")])
    async with served(passthrough, HttpMessage(method, SESSION, ANONYMOUS)) as reply:
        assert reply.status == 405
    [asked] = upstream.asked
    assert (asked.method, asked.headers, asked.body) == (method, SESSION, None)


async def test_a_batch_goes_up_as_it_came_also_where_it_begins_with_initialize(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    """HTTP-078, F20."""
    first = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}'
    body = b"[" + first + b" ,\n" + CALL + b"]"
    messages = (jsonrpc.parse(first, 64), jsonrpc.parse(CALL, 64))
    upstream.will(200, JSON, b"[]")
    batch = HttpMessage(HTTPMethod.POST, SESSION, ANONYMOUS, body, messages, is_batch=True)
    assert await answer_to(passthrough, batch) == (200, b"[]")
    assert (upstream.asked[0].body, upstream.asked[0].plain) == (body, False)


async def test_a_small_body_is_read_before_it_is_written(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    upstream.will(200, [*JSON, ("content-length", str(len(RESULT)))], RESULT)
    async with served(passthrough, post()) as reply:
        assert reply.body == RESULT


@pytest.mark.parametrize(
    "headers", [EVENTS, [*JSON, ("Content-Length", str(AT_ONCE_BYTES + 1))], [("Content-Length", "x")]]
)
async def test_any_other_body_streams(
    upstream: FakeForwarder, passthrough: HttpPassthrough, headers: Sequence[tuple[str, str]]
) -> None:
    body = Body(b"data: 1\n", ended=False)
    upstream.will(200, headers, body)
    async with served(passthrough, post()) as reply:
        assert not isinstance(reply.body, bytes)
        chunks = aiter(reply.body)
        assert await anext(chunks) == b"data: 1\n"
        body.say(b"\n")
        assert await anext(chunks) == b"\n"
        body.end(UpstreamClosed("gone"))
        with pytest.raises(UpstreamClosed):
            await anext(chunks)


async def test_a_small_body_that_breaks_off_is_a_fault_before_anything_is_written(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    body = Body(b"{", ended=False)
    body.end(UpstreamClosed("gone"))
    upstream.will(200, [("Content-Length", "30")], body)
    with pytest.raises(UpstreamClosed):
        await answer_to(passthrough, post())


async def test_an_upstream_that_is_not_there_is_asked_once(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    """I2."""
    upstream.answers.append(UpstreamUnavailable("not there"))
    with pytest.raises(UpstreamUnavailable):
        await answer_to(passthrough, post())
    assert len(upstream.asked) == 1


# -- GET ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
async def test_a_get_stream_comes_down_byte_by_byte_as_it_was_sent(
    upstream: FakeForwarder, passthrough: HttpPassthrough, ending: bytes
) -> None:
    """HTTP-060, HTTP-068: ids, retry, priming events, comments, and what is unfinished at its end."""
    lines = [b"id: 0", b"retry: 50", b"data:", b"", b": ping", b"", b"data: {}", b"", b"data: cut"]
    stream = ending.join(lines)
    upstream.will(200, EVENTS, Body(*(stream[at : at + 3] for at in range(0, len(stream), 3))))
    headers = [*SESSION, ("Last-Event-ID", "7")]
    assert await answer_to(passthrough, get(headers)) == (200, stream)
    [asked] = upstream.asked
    assert (asked.method, asked.headers, asked.body, asked.plain) == ("GET", headers, None, True)


@pytest.mark.parametrize(
    "status, headers, body",
    [
        (405, [("Allow", "POST")], b""),
        (404, JSON, b"{}"),
        (400, JSON, b"{}"),
        (401, [("WWW-Authenticate", "Bearer x")], b""),
        (200, JSON, b'{"error": "no"}'),
        (200, EVENTS, b""),
        (200, [*EVENTS, ("Content-Encoding", "gzip")], b"\x1f\x8b any\n\nbytes"),
    ],
)
async def test_whatever_a_get_is_answered_comes_back(
    upstream: FakeForwarder,
    passthrough: HttpPassthrough,
    status: int,
    headers: Sequence[tuple[str, str]],
    body: bytes,
) -> None:
    """F25; one that is compressed all the same passes as it is, F31."""
    upstream.will(status, headers, body)
    async with served(passthrough, get()) as reply:
        assert (reply.status, reply.headers, await body_of(reply)) == (status, headers, body)


async def test_a_block_of_ours_stands_between_two_of_the_upstreams(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    body = Body(b"data: 1\n\nid: 2\nda", ended=False)
    upstream.will(200, EVENTS, body)
    async with served(passthrough, get()) as reply:
        assert not isinstance(reply.body, bytes)
        chunks = aiter(reply.body)
        assert await anext(chunks) == b"data: 1\n\n"
        stream = passthrough.streams.find("s-1", ANONYMOUS)
        assert stream is not None
        assert stream.send(OURS)
        assert await anext(chunks) == OURS
        body.say(b"ta: 2\n\n")
        assert await anext(chunks) == b"id: 2\ndata: 2\n\n"
        assert not stream.ended.is_set()
    assert stream.ended.is_set()
    assert not stream.send(OURS)
    assert passthrough.streams.find("s-1", ANONYMOUS) is None


async def test_a_stream_is_found_by_its_session_and_owner_alone_and_the_newest_first(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    """I5: a session id may have got into other hands."""
    somebody, find = Owner("somebody"), passthrough.streams.find
    for _ in range(3):
        upstream.will(200, EVENTS, Body(ended=False))
    async with served(passthrough, get()), served(passthrough, get(owner=somebody)):
        first = find("s-1", ANONYMOUS)
        assert first is not None
        assert find("s-1", somebody) not in (None, first)
        assert find("s-1", Owner("other")) is None
        assert find("s-2", ANONYMOUS) is None
        async with served(passthrough, get()):
            assert find("s-1", ANONYMOUS) not in (None, first)
        assert find("s-1", ANONYMOUS) is first


async def test_who_leaves_a_get_stream_leaves_the_upstreams_too(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    """F39: nothing of it is left."""
    upstream.will(200, EVENTS, Body(ended=False))
    async with served(passthrough, get()):
        assert not upstream.asked[0].left
    assert upstream.asked[0].left
    assert repr(passthrough.streams) == "<GetStreams of 0 sessions>"


async def test_a_get_stream_that_breaks_off_breaks_off_after_what_came(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    body = Body(b"data: 1\n\n", ended=False)
    body.end(UpstreamClosed("gone"))
    upstream.will(200, EVENTS, body)
    async with served(passthrough, get()) as reply:
        assert not isinstance(reply.body, bytes)
        chunks = aiter(reply.body)
        assert await anext(chunks) == b"data: 1\n\n"
        with pytest.raises(UpstreamClosed):
            await anext(chunks)


async def test_an_event_over_the_limit_ends_the_stream_with_a_clear_fault(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    """F23."""
    upstream.will(200, EVENTS, Body(b"data: ", *[b"x" * HELD_BYTES] * 5, ended=False))
    async with served(passthrough, get()) as reply:
        with pytest.raises(UpstreamProtocolError, match=r"limits\.message"):
            await body_of(reply)


async def test_a_client_that_does_not_read_makes_the_upstream_wait(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    """F40: what is held for it is bounded."""
    block = b"data: " + b"x" * (HELD_BYTES // 2) + b"\n\n"
    body = Body(*[block] * 10)
    upstream.will(200, EVENTS, body)
    async with served(passthrough, get()) as reply:
        await until(lambda: body.reads >= 3)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert body.reads == 3
        assert await body_of(reply) == block * 10


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_drain_ends_get_streams_in_good_order(
    upstream: FakeForwarder, passthrough: HttpPassthrough, is_behind: bool
) -> None:
    """F41: also of a client that is behind; calls go on."""
    block = b"data: " + b"x" * HELD_BYTES + b"\n\n"
    upstream.will(200, EVENTS, Body(*[block] * (3 if is_behind else 1), ended=False))
    call = Body(b"data: 1\n\n", ended=False)
    upstream.will(200, EVENTS, call)
    async with served(passthrough, get()) as stream, served(passthrough, post()) as calling:
        await until(lambda: "0 bytes" not in repr(passthrough.streams.find("s-1", ANONYMOUS)))
        passthrough.drain()
        assert (await body_of(stream)).startswith(block)
        call.end()
        assert await body_of(calling) == b"data: 1\n\n"


async def test_initialize_is_asked_for_in_plain_so_that_it_can_be_read(
    upstream: FakeForwarder, passthrough: HttpPassthrough
) -> None:
    for status in (200, 400):
        upstream.will(status, JSON, RESULT)
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}).encode()
        assert await answer_to(passthrough, post(body)) == (status, RESULT)
    assert [asked.plain for asked in upstream.asked] == [True, True]
