"""What is written of a handler's reply: its head as given, its body as it comes, kept alive, cut where due.

On a real socket. Contract section 6; field reports F03, F23 and F40.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import anyio
import pytest
from anyio.abc import SocketStream
from structlog.testing import capture_logs

from proxy.downstream.reply_writer import AT_ONCE_BYTES
from proxy.downstream.streams import QUIET_S, TICK_S
from proxy.errors import UpstreamClosed
from proxy.routing.legacy import Reply
from tests.downstream.http_rig import BOUNDS, ORIGIN, Rig, http_rig, read_all
from tests.downstream.played_legacy import EVENTS, JSON, PlayedLegacy, Told, legacy_call
from tests.upstream.told import until

pytestmark = pytest.mark.anyio

CALL = json.dumps(legacy_call()).encode()
COMMENT = b": \n\n"
Headers = Sequence[tuple[str, str]]


def http_post(more: str = "") -> bytes:
    return (
        f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(CALL)}\r\n{more}\r\n".encode() + CALL
    )


async def answer(rig: Rig, more: str = "Connection: close\r\n") -> tuple[list[bytes], bytes]:
    """The lines of the head, and the body with its framing."""
    async with await rig.connect() as stream:
        await stream.send(http_post(more))
        head, _, body = (await read_all(stream)).partition(b"\r\n\r\n")
        return head.split(b"\r\n"), body


class Reader:
    """A client that reads an event stream, chunk by chunk of HTTP."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self.got = b""

    async def until(self, text: bytes) -> None:
        while text not in self.got:
            self.got += await self._stream.receive()

    @property
    def events(self) -> bytes:
        """The body so far, its framing taken off."""
        rest, body = self.got.partition(b"\r\n\r\n")[2], b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return body


# -- the head -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, length", [(b"", b"0"), (b"{}", b"2"), (b"x" * (AT_ONCE_BYTES + 1), b"%d" % (AT_ONCE_BYTES + 1))]
)
async def test_the_head_is_as_given_and_nothing_is_added_but_date_and_length(
    body: bytes, length: bytes
) -> None:
    async with http_rig(legacy=PlayedLegacy(Reply(200, [("X-Vendor", "1"), ("X-Vendor", "2")], body))) as rig:
        head, got = await answer(rig)
    names = sorted(line.partition(b":")[0].lower() for line in head[1:])
    assert names == [b"connection", b"content-length", b"date", b"x-vendor", b"x-vendor"]
    assert b"Content-Length: " + length in head
    assert got == body


async def test_date_server_and_type_stay_what_the_upstream_said() -> None:
    headers = [("Date", "Thu, 01 Jan 1970 00:00:00 GMT"), ("Server", "upstream/1"), ("Content-Type", "x/y")]
    async with http_rig(legacy=PlayedLegacy(Reply(200, headers, b"{}"))) as rig:
        head, _ = await answer(rig)
    for key, value in headers:
        assert [line for line in head if line.lower().startswith(key.lower().encode())] == [
            f"{key}: {value}".encode()
        ]


@pytest.mark.parametrize("status", [200, 202, 204, 307, 401, 404, 405, 500])
@pytest.mark.parametrize("streams", [False, True])
async def test_every_status_passes_and_the_connection_lives_on(status: int, streams: bool) -> None:
    body = Told()
    body.end()
    async with http_rig(legacy=PlayedLegacy(Reply(status, [], body if streams else b""))) as rig:
        for _ in range(2):
            async with rig.session.post(rig.url, data=CALL) as response:
                assert response.status == status
                assert await response.read() == b""


async def test_a_head_request_gets_the_length_and_no_body() -> None:
    async with http_rig(legacy=PlayedLegacy(Reply(200, [*JSON, ("Content-Length", "30")], b""))) as rig:
        for _ in range(2):
            async with rig.session.head(rig.url) as response:
                assert (response.status, response.headers["Content-Length"]) == (200, "30")


async def test_a_streamed_body_of_known_length_keeps_it() -> None:
    body = Told()
    for piece in (b"{", b"}"):
        body.tell(piece)
    body.end()
    async with http_rig(legacy=PlayedLegacy(Reply(200, [*JSON, ("Content-Length", "2")], body))) as rig:
        head, got = await answer(rig)
    assert b"Content-Length: 2" in head
    assert not [line for line in head if line.lower().startswith(b"transfer-encoding")]
    assert got == b"{}"


@pytest.mark.parametrize(
    "headers, added",
    [
        (EVENTS, ["no"]),
        ([("content-type", "Text/Event-Stream; charset=utf-8")], ["no"]),
        ([*EVENTS, ("X-Accel-Buffering", "yes")], ["yes"]),
        (JSON, []),
    ],
)
async def test_an_event_stream_is_not_to_be_held_back(headers: Headers, added: list[str]) -> None:
    """F03, HTTP-011."""
    body = Told()
    body.end()
    async with (
        http_rig(legacy=PlayedLegacy(Reply(200, headers, body))) as rig,
        rig.session.post(rig.url, data=CALL) as response,
    ):
        assert response.headers.getall("X-Accel-Buffering", []) == added


async def test_our_cors_headers_join_the_upstreams_vary() -> None:
    """F30."""
    async with (
        http_rig(legacy=PlayedLegacy(Reply(200, [("Vary", "Accept")], b""))) as rig,
        rig.session.post(rig.url, data=CALL, headers={"Origin": ORIGIN}) as response,
    ):
        assert response.headers.getall("Vary") == ["Accept", "Origin"]


# -- kept alive ---------------------------------------------------------------------------------------


@pytest.fixture
def body() -> Told:
    return Told()


async def test_the_head_of_a_stream_does_not_wait_for_its_body(body: Told) -> None:
    async with http_rig(legacy=PlayedLegacy(Reply(200, EVENTS, body))) as rig, await rig.connect() as stream:
        await stream.send(http_post())
        reader = Reader(stream)
        await reader.until(b"\r\n\r\n")
        assert reader.events == b""


async def test_a_stream_that_begins_in_silence_gets_a_comment_within_a_second_or_so(body: Told) -> None:
    """F03: some hold back even the status until a byte of body has come. A byte order mark after it would be
    part of a name."""
    async with http_rig(legacy=PlayedLegacy(Reply(200, EVENTS, body))) as rig, await rig.connect() as stream:
        await stream.send(http_post())
        reader = Reader(stream)
        await reader.until(b"\r\n\r\n")
        await rig.clock.advance(TICK_S)
        await reader.until(COMMENT)
        body.tell(b"\xef\xbb\xbfdata: 1\n\n")
        await reader.until(b"data: 1")
        assert reader.events == COMMENT + b"data: 1\n\n"


@pytest.mark.parametrize("end", [b"\n\n", b"\r\r", b"\r\n\r\n"])
@pytest.mark.parametrize("cut", [False, True])
async def test_a_quiet_stream_gets_comments_where_a_block_has_ended(
    body: Told, end: bytes, cut: bool
) -> None:
    """F03: at least every 15 s; what the upstream sends is not touched."""
    async with http_rig(legacy=PlayedLegacy(Reply(200, EVENTS, body))) as rig, await rig.connect() as stream:
        await stream.send(http_post())
        reader = Reader(stream)
        for piece in [b"data: 1" + end[:1], end[1:]] if cut else [b"data: 1" + end]:
            body.tell(piece)
        await reader.until(b"data: 1")
        await until_taken(body)
        await rig.clock.advance(QUIET_S - TICK_S)
        body.tell(b"data: 2" + end)
        await reader.until(b"data: 2")
        await until_taken(body)
        await rig.clock.advance(QUIET_S - TICK_S)
        body.tell(b"x")
        await reader.until(b"x")
        await rig.clock.advance(100)  # in the middle of a block: nothing
        body.tell(end)
        await until_taken(body)
        await rig.clock.advance(15)
        await reader.until(COMMENT)
        body.tell(b"data: 3" + end)
        body.end()
        await reader.until(b"\r\n0\r\n\r\n")
        assert reader.events == b"data: 1" + end + b"data: 2" + end + b"x" + end + COMMENT + b"data: 3" + end


async def until_written_to(stream: SocketStream) -> None:
    """The head has come."""
    assert b"HTTP/1.1 200" in await stream.receive(16)


async def until_taken(body: Told) -> None:
    """What was told is written."""
    await until(lambda: not body.is_behind)
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "headers", [JSON, [*EVENTS, ("Content-Encoding", "gzip")], [*EVENTS, ("Content-Length", "9")]]
)
async def test_what_is_no_plain_event_stream_gets_no_comments(body: Told, headers: Headers) -> None:
    """F31."""
    async with http_rig(legacy=PlayedLegacy(Reply(200, headers, body))) as rig, await rig.connect() as stream:
        await stream.send(http_post("Connection: close\r\n"))
        await until_written_to(stream)
        await rig.clock.advance(100)
        body.tell(b"data: 1\n\n")
        body.end()
        got = (await read_all(stream)).partition(b"\r\n\r\n")[2]
        assert b"data: 1" in got
        assert COMMENT not in got


# -- cut ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [UpstreamClosed("gone"), RuntimeError("a bug")])
async def test_a_body_that_breaks_off_breaks_the_connection_as_it_would_without_us(
    body: Told, error: Exception
) -> None:
    async with http_rig(legacy=PlayedLegacy(Reply(200, EVENTS, body))) as rig:
        body.tell(b"data: 1\n\n")
        body.end(error)
        with capture_logs() as logs:
            _, got = await answer(rig, "")
        assert got.endswith(b"data: 1\n\n\r\n")  # and no last chunk
        assert [entry["event"] for entry in logs] in (["upstream_failed"], ["request_failed"])


async def test_who_does_not_read_is_cut_and_nobody_else(body: Told) -> None:
    """F40."""
    legacy = PlayedLegacy(Reply(200, EVENTS, body))
    bounds = replace(BOUNDS, write_s=0.2)
    async with http_rig(legacy=legacy, bounds=bounds) as rig, await rig.connect() as stream:
        await stream.send(http_post())
        for _ in range(50):
            body.tell(b"data: " + b"x" * 1_000_000 + b"\n\n")
        await until(lambda: legacy.seen)
        for _ in range(1_000):
            await anyio.lowlevel.checkpoint()
        assert body.is_behind
        await until(lambda: legacy.left)
        await rig.endpoint.wait_idle()
        legacy.reply = Reply(200, JSON, b"{}")
        async with rig.session.post(rig.url, data=CALL) as response:
            assert await response.read() == b"{}"


@pytest.mark.parametrize("kind", ["whole", "stream"])
async def test_who_does_not_read_the_ends_of_replies_is_cut(kind: str) -> None:
    """F40, I6: small ones, which the buffers take until they are full; the handler ends, and its share of
    limits.requests is free. Nobody is given time here."""

    async def body() -> AsyncIterator[bytes]:
        yield b"data: " + b"x" * 60_000 + b"\n\n"

    legacy = PlayedLegacy()
    legacy.make = lambda: Reply(200, JSON, b"x" * 60_000) if kind == "whole" else Reply(200, EVENTS, body())
    bounds = replace(BOUNDS, write_s=0.0)
    async with http_rig(legacy=legacy, bounds=bounds) as rig, await rig.connect() as stream:
        with capture_logs() as logs:
            await stream.send(http_post() * 400)
            await until(lambda: [log for log in logs if log["event"] == "client_not_reading"])
            await rig.endpoint.wait_idle()
        assert legacy.left == len(legacy.seen)


async def test_a_slow_reader_is_not_cut_while_it_reads(body: Told) -> None:
    """F40: it takes longer for all than may be taken for nothing. The timer is the loop's own."""
    big, bounds, legacy = (
        b"x" * 30_000_000,
        replace(BOUNDS, write_s=0.5),
        PlayedLegacy(Reply(200, JSON, body)),
    )
    async with http_rig(legacy=legacy, bounds=bounds) as rig, await rig.connect() as stream:
        await stream.send(http_post("Connection: close\r\n"))
        body.tell(big)
        body.end()
        got = 0
        for _ in range(8):
            await anyio.sleep(0.08)
            for _ in range(40):
                got += len(await stream.receive())
        got += len(await read_all(stream))
        assert got > len(big)


@pytest.mark.parametrize("size", [AT_ONCE_BYTES, 20_000_000])
async def test_a_body_of_any_size_arrives_whole(size: int) -> None:
    """F23."""
    async with (
        http_rig(legacy=PlayedLegacy(Reply(200, JSON, b"x" * size))) as rig,
        rig.session.post(rig.url, data=CALL) as response,
    ):
        assert await response.read() == b"x" * size
