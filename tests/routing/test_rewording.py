"""One answer changed on its way to the client, and all around it left as it came. Contract section 5."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from proxy.errors import UpstreamClosed, UpstreamProtocolError
from proxy.protocol import sse
from proxy.protocol.jsonrpc import RequestId
from proxy.protocol.sse import EventDecoder
from proxy.routing.legacy import Reply
from proxy.routing.rewording import Rewording, header_in, whole, without_header
from tests.routing.fake_forwarder import body_of

pytestmark = pytest.mark.anyio

JSON = [("Content-Type", "application/json")]
EVENTS = [("content-type", "text/event-stream; charset=utf-8")]
ANSWER = b'{"jsonrpc":"2.0", "id":1,"result":{"a": 1.10}}'
REWORDED = b'{"jsonrpc":"2.0", "id":1,"result":{"b":2}}'


async def reword(result: bytes) -> bytes:
    return b'{"b":2}'


async def leave(result: bytes) -> bytes:
    return result


async def pieces(*chunks: bytes | Exception) -> AsyncIterator[bytes]:
    for chunk in chunks:
        if isinstance(chunk, Exception):
            raise chunk
        yield chunk


def rewording(how: Any = reword, *, max_bytes: int = 1_000, id: Any = 1) -> Rewording:
    raw = b"1" if id == 1 else b'"1"'
    return Rewording(RequestId(raw, id), how, max_bytes=max_bytes, max_depth=16)


async def reworded(headers: Sequence[tuple[str, str]], *chunks: bytes, **how: Any) -> bytes:
    return await body_of(await rewording(**how).of(Reply(200, headers, pieces(*chunks))))


@pytest.mark.parametrize("headers", [JSON, [("content-TYPE", "application/json;charset=utf-8"), *JSON]])
async def test_json_is_reworded_and_its_length_is_told(headers: Any) -> None:
    reply = await rewording().of(Reply(200, [*headers, ("content-length", "5"), ("X", "1")], ANSWER))
    assert reply.body == REWORDED
    assert [*headers, ("X", "1"), ("Content-Length", str(len(REWORDED)))] == list(reply.headers)


async def test_json_in_pieces_is_put_together() -> None:
    assert await reworded(JSON, ANSWER[:10], ANSWER[10:]) == REWORDED


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
async def test_of_a_stream_the_event_with_the_answer_is_reworded_and_no_other(end: bytes) -> None:
    """F21, F22: comments, primings, other messages and their order stay, however it is cut."""
    other = b"id: 0\nretry: 5\ndata:\n\n: hi\n\n" + b'data: {"jsonrpc":"2.0","method":"x"}' + end
    after = b": bye" + end + b"data: {}" + end
    stream = other + b"id: 7\nretry: 9\ndata: " + ANSWER + end + after
    told = other + sse.encode(REWORDED, event_id="7", retry_ms=9) + after
    assert await reworded(EVENTS, stream) == told
    for size in (1, 7):  # a line end that was cut in two may lose its second half, which means nothing
        chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
        found = await reworded(EVENTS, *chunks)
        assert EventDecoder(1_000).feed(found) == EventDecoder(1_000).feed(told)
        assert found.startswith(other[:-1])


async def test_a_stream_that_ends_in_the_middle_of_a_block_keeps_that_too() -> None:
    assert await reworded(EVENTS, b"data: x") == b"data: x"


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":2,"result":{}}',
        b'{"jsonrpc":"2.0","id":"1","result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}',
        b'{"jsonrpc":"2.0","method":"x"}',
        b"[]",
        b"no json",
        b"\xff",
        b"",
    ],
)
async def test_what_is_not_the_answer_stays(body: bytes) -> None:
    assert await reworded(JSON, body) == body
    assert await reworded(EVENTS, b"data: " + body + b"\n\n") == b"data: " + body + b"\n\n"


async def test_where_there_is_nothing_to_reword_no_byte_changes() -> None:
    stream = b"event: message\r\nid:5\r\ndata:" + ANSWER + b"\r\n\r\n"
    assert await reworded(EVENTS, stream, how=leave) == stream
    assert await reworded(JSON, ANSWER, how=leave) == ANSWER


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, [("Content-Type", "text/html")]),
        (200, []),
        (200, [*JSON, ("Content-Encoding", "gzip")]),
        (202, JSON),
        (404, JSON),
    ],
)
async def test_a_reply_that_is_none_of_these_is_not_looked_at(status: int, headers: Any) -> None:
    reply = Reply(status, headers, ANSWER)
    assert await rewording().of(reply) is reply


async def test_identity_is_no_encoding() -> None:
    assert await reworded([*JSON, ("content-encoding", "identity")], ANSWER) == REWORDED


async def test_what_is_over_the_limit_is_an_error() -> None:
    """F23: bounded, and said."""
    with pytest.raises(UpstreamProtocolError, match=r"limits\.message"):
        await reworded(JSON, ANSWER, max_bytes=len(ANSWER) - 1)
    with pytest.raises(UpstreamProtocolError, match=r"limits\.message"):
        await reworded(EVENTS, b"data: " + b"x" * 2_000, max_bytes=1_000)


async def test_a_body_that_breaks_off_is_told() -> None:
    broken = UpstreamClosed("it broke off")
    with pytest.raises(UpstreamClosed):
        await rewording().of(Reply(200, JSON, pieces(ANSWER[:5], broken)))
    reply = await rewording().of(Reply(200, EVENTS, pieces(b": hi\n\n", broken)))
    assert not isinstance(reply.body, bytes)
    assert await anext(reply.body) == b": hi\n\n"
    with pytest.raises(UpstreamClosed):
        await anext(reply.body)


async def test_a_whole_body_is_its_pieces() -> None:
    assert await whole(b"ab", 2) == await whole(pieces(b"a", b"b"), 2) == b"ab"
    with pytest.raises(UpstreamProtocolError):
        await whole(pieces(b"a", b"b"), 1)


def test_headers_are_found_whatever_their_spelling() -> None:
    headers = [("X-A", " 1 "), ("x-a", "2"), ("B", "")]
    assert header_in(headers, "x-a") == "1"
    assert header_in(headers, "c") == ""
    assert without_header(headers, "X-a") == [("B", "")]
