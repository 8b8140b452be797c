"""What a connection may cost before a request is there: heads that never end, too many that nobody uses.

Contract section 8, "Bounds".
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from aiohttp import web
from anyio.abc import SocketStream
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from proxy.downstream.connection import MAX_HEADERS, WHOLE_HEAD, Connection, Server
from tests.downstream.http_rig import BOUNDS, MAX_HEADER, OK, Rig, http_rig, message, raw_post, read_all

pytestmark = pytest.mark.anyio

GRACE_S = 0.1
HASTY = replace(BOUNDS, head_s=GRACE_S)


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


def fault_in(answer: bytes) -> str:
    said: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    return said


async def answered(stream: SocketStream) -> int:
    await stream.send(raw_post(message()))
    return status_of(await stream.receive())


@asynccontextmanager
async def connections(rig: Rig, count: int) -> AsyncIterator[list[SocketStream]]:
    """Several, each of which has had an answer."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(await stack.enter_async_context(await rig.connect()))
            assert await answered(made[-1]) == 200
        yield made


async def test_a_head_that_never_ends_is_given_up() -> None:
    """SEC-003, I6: 408, however steadily it drips."""
    async with http_rig(bounds=HASTY) as rig, await rig.connect() as stream:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_drip, stream)
                answer = await read_all(stream)
                tasks.cancel_scope.cancel()
        assert status_of(answer) == 408
        assert "limits.request_head" in fault_in(answer)


async def _drip(stream: SocketStream) -> None:
    await stream.send(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
    try:
        while True:
            await stream.send(b"x")
            await anyio.sleep(GRACE_S / 20)  # what is tested is slow; the timer is the loop's own
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass


async def test_a_later_head_has_the_same_time() -> None:
    """SEC-003: not that of an idle connection."""
    async with http_rig(bounds=HASTY) as rig, await rig.connect() as stream:
        rig.router.always = OK
        with anyio.fail_after(5):
            assert await answered(stream) == 200
            await stream.send(b"POST /mcp HT")
            assert status_of(await read_all(stream)) == 408


async def test_a_head_in_pieces_is_served_if_it_comes_in_time() -> None:
    async with http_rig() as rig, await rig.connect() as stream:
        rig.router.always = OK
        for _ in range(3):
            whole = raw_post(message())
            for start in range(0, 120, 10):
                await stream.send(whole[start : start + 10])
                await checkpoint()
            await stream.send(whole[120:])
            assert status_of(await stream.receive()) == 200


async def test_a_connection_without_a_request_is_closed_without_a_word() -> None:
    """SEC-003: browsers open some that they may never use."""
    async with http_rig(bounds=HASTY) as rig, await rig.connect() as stream:
        with anyio.fail_after(5):
            assert await read_all(stream) == b""


async def test_a_request_that_is_being_served_is_not_measured_by_its_head() -> None:
    async with http_rig(bounds=replace(HASTY, head_s=0.02)) as rig, await rig.connect() as stream:
        await stream.send(raw_post(message()))
        served = await rig.router.next()
        await anyio.sleep(0.06)  # three times head_s: the timer is the loop's own, and nothing is to be seen
        served.end()
        assert status_of(await stream.receive()) == 200


async def test_a_connection_that_nobody_uses_is_closed() -> None:
    """SEC-003: the limit counts from the last answer."""
    async with http_rig(bounds=replace(BOUNDS, idle_s=0.1)) as rig, await rig.connect() as stream:
        rig.router.always = OK
        with anyio.fail_after(5):
            assert await answered(stream) == 200
            assert await read_all(stream) == b""


async def test_headers_that_are_too_many_are_refused_clearly() -> None:
    """SEC-003: 431."""
    flood = "".join(f"X-{n}: y\r\n" for n in range(MAX_HEADERS + 1))
    async with http_rig() as rig, await rig.connect() as stream:
        await stream.send(raw_post(message(), more=flood))
        answer = await read_all(stream)
        assert (status_of(answer), str(MAX_HEADERS) in fault_in(answer)) == (431, True)


async def test_headers_that_are_too_large_together_are_refused_while_they_come() -> None:
    """SEC-003: each of them is within its limit."""
    line = b"X-Large: " + b"x" * (MAX_HEADER // 2) + b"\r\n"
    async with http_rig() as rig, await rig.connect() as stream:
        with anyio.fail_after(5):
            await stream.send(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            with pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
                for _ in range(MAX_HEADERS):
                    await stream.send(line)
            answer = await read_all(stream)
        if answer:  # the reset may have overtaken it
            assert status_of(answer) == 431
            assert str(WHOLE_HEAD * MAX_HEADER) in fault_in(answer)


async def test_at_the_bound_the_connection_that_is_idle_for_longest_makes_room() -> None:
    """SEC-003."""
    async with http_rig(bounds=replace(BOUNDS, connections=3)) as rig:
        rig.router.always = OK
        async with connections(rig, 3) as (oldest, *others), await rig.connect() as newest:
            assert await answered(newest) == 200
            with anyio.fail_after(5):
                assert await read_all(oldest) == b""
            assert [await answered(other) for other in others] == [200, 200]


async def test_where_all_are_in_use_a_further_connection_is_refused() -> None:
    """SEC-003: 503 and a time to come back; those in use are served on, and a place that is free is given."""
    async with http_rig(bounds=replace(BOUNDS, connections=2)) as rig, AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(await rig.connect()) for _ in range(2)]
        for stream in busy:
            await stream.send(raw_post(message()))
        served = [await rig.router.next() for _ in busy]
        with capture_logs() as logs, anyio.fail_after(5):
            answer = await read_all(await stack.enter_async_context(await rig.connect()))
        assert (status_of(answer), b"Retry-After: 5" in answer) == (503, True)
        assert "limits.connections" in fault_in(answer)
        assert [log["event"] for log in logs] == ["connection_refused"]
        for one, stream in zip(served, busy, strict=True):
            one.end()
            assert status_of(await stream.receive()) == 200
        rig.router.always = OK
        assert await answered(await stack.enter_async_context(await rig.connect())) == 200


async def test_a_compressed_body_is_never_unpacked() -> None:
    """SEC-003: a bomb costs what it weighs."""
    bomb = gzip.compress(b" " * (1 << 24), 9)
    async with http_rig() as rig, await rig.connect() as stream:
        with anyio.fail_after(5):
            await stream.send(raw_post(bomb, more="Content-Encoding: gzip\r\n"))
            answer = await stream.receive()
        assert status_of(answer) == 415


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "chunked, gzip", "deflate, chunked"])
async def test_nor_is_one_that_was_compressed_for_the_way(coding: str) -> None:
    """SEC-003: it is no JSON, and not seen as anything else. RFC 9112, section 6.1."""
    bomb = gzip.compress(b" " * (1 << 20), 9)
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: {coding}\r\n\r\n".encode()
    async with http_rig() as rig, await rig.connect() as stream:
        with anyio.fail_after(5):
            await stream.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(bomb), bomb))
            answer = await stream.receive()
        assert status_of(answer) == 400
        assert rig.router.seen == []


# -- what the client does not read ---------------------------------------------------------------------


class Unread(asyncio.Transport):
    """A client that reads nothing, at the other end of buffers that have no end."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.is_over = self.was_cut = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.bytes

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.was_cut = True

    def pause_reading(self) -> None:
        """There is nothing to read."""

    def resume_reading(self) -> None:
        """As above."""


@asynccontextmanager
async def unread(write_s: float = 0.0) -> AsyncIterator[tuple[Connection, Unread]]:
    """A connection that has answered one request."""

    async def answer(http: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"x" * 1_000)

    made = Server(web.Server(answer), replace(BOUNDS, write_s=write_s))
    connection, wire = made(), Unread()
    connection.connection_made(wire)
    connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    try:
        await _some_turns()
        assert wire.bytes
        yield connection, wire
    finally:
        connection.connection_lost(None)
        await made.shutdown(1)


async def _some_turns() -> None:
    for _ in range(20):
        await checkpoint()


async def test_a_client_that_reads_nothing_of_what_fills_the_buffers_is_cut() -> None:
    """I6, F40: whatever kind of response it is of."""
    async with unread() as (connection, wire):
        await _some_turns()
        assert not wire.was_cut  # they take it all
        connection.pause_writing()
        await _some_turns()
        assert wire.was_cut


async def test_a_client_that_reads_in_time_is_not_cut() -> None:
    async with unread() as (connection, wire):
        connection.pause_writing()
        connection.resume_writing()
        await _some_turns()
        assert not wire.was_cut


@pytest.mark.parametrize("is_closed", [True, False])
async def test_some_bytes_that_are_read_give_time_only_to_a_connection_that_is_not_closed(
    is_closed: bool,
) -> None:
    async with unread(write_s=60.0) as (connection, _):
        connection.pause_writing()
        if is_closed:
            connection.force_close()
        await _some_turns()
        connection.resume_writing()
        assert (connection._write_timer is not None) == is_closed


@pytest.mark.parametrize("how", ["to make room", "by the client's wish"])
async def test_what_is_unread_when_a_connection_is_closed_does_not_keep_it_open(how: str) -> None:
    """SEC-003: a socket is closed once its buffers are empty, and with a client that reads nothing never."""
    async with unread() as (connection, wire):
        if how == "to make room":
            connection.force_close()
        else:
            connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await _some_turns()
        assert wire.is_over
        assert wire.was_cut
