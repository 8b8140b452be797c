"""What is written of one request: plain JSON or an event stream, kept alive, and cut where nobody reads.

Contract section 3; Streamable HTTP 2026-07-28, "Sending Messages to the Server".
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

import anyio
import pytest
from aiohttp import web
from anyio.lowlevel import checkpoint

from proxy.downstream.responses import PIECE_BYTES, Responder
from proxy.errors import ClientProtocolError, ErrorCode
from proxy.protocol import names
from proxy.routing.base import ResultAnswer
from tests.downstream.http_rig import BOUNDS, OK, events, http_rig, message, raw_post, read_all

pytestmark = pytest.mark.anyio

LISTEN: Final = names.SUBSCRIPTIONS_LISTEN
LOGS: Final = names.LOG_MESSAGE
HASTY: Final = replace(BOUNDS, write_s=0.2)


# ------------------------------------------------------------------------------ JSON or a stream


async def test_a_result_alone_is_one_json_object() -> None:
    """HTTP-007, HTTP-027: no session id, nothing of a stream."""
    async with http_rig() as rig:
        rig.router.always = ResultAnswer(b'{"a": 1.50}')
        async with rig.post(headers={"Mcp-Session-Id": "x"}) as response:
            assert (response.status, response.content_type) == (200, "application/json")
            assert await response.read() == b'{"jsonrpc":"2.0","id":1,"result":{"a": 1.50}}'
            assert {"Mcp-Session-Id", "X-Accel-Buffering"}.isdisjoint(response.headers)


@pytest.mark.parametrize("size", [10, 1_000_000])
async def test_a_result_in_pieces_is_one_json_object_too(size: int) -> None:
    """Whether small enough to be sent at once, or written piece by piece."""
    async with http_rig() as rig:
        text = b'{"a":"' + b"x" * size + b'"}'
        rig.router.always = ResultAnswer(memoryview(text)[:-1], b',"b":1', memoryview(text)[-1:])
        async with rig.post() as response:
            body = await response.read()
            assert response.headers["Content-Length"] == str(len(body))
            assert body == b'{"jsonrpc":"2.0","id":1,"result":' + text[:-1] + b',"b":1}}'


async def test_the_first_notification_makes_it_a_stream() -> None:
    """HTTP-007, HTTP-009, HTTP-010, HTTP-011, HTTP-013, F03: a first byte with the head, and no event ids."""
    async with http_rig() as rig:
        sent = rig.send(headers={"Mcp-Session-Id": "x", "Last-Event-ID": "7"})
        served = await rig.router.next()
        served.tell(progress=1)
        response = await sent.head()
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["Cache-Control"] == "no-cache"
        assert {"Mcp-Session-Id", "Content-Length"}.isdisjoint(response.headers)
        await sent.until(b'"progress": 1')
        served.tell(LOGS, level="error", data="a\nb")
        served.end(ResultAnswer(b'{"pretty":\r\n "json"}'))
        body = await sent.body()
        assert body.startswith(b":")
        assert [(e.get("method"), e.get("result")) for e in events(body)] == [
            ("notifications/progress", None),
            (LOGS, None),
            (None, {"pretty": "json"}),
        ]
        lines = [line for line in body.split(b"\n") if line]
        assert all(line.startswith((b":", b"data: ", b"event: ")) for line in lines)


async def test_what_was_told_before_the_answer_comes_before_it() -> None:
    """PROG-003: also what is told, with the answer, while the client is busy reading."""
    async with http_rig() as rig, await rig.connect() as stream:
        await stream.send(raw_post(message(), more="Connection: close\r\n"))
        served = await rig.router.next()
        served.tell(text="x" * 20_000_000)
        await stream.receive()
        for n in range(400):
            served.tell(progress=n)
        served.end()
        end = (await read_all(stream))[-100_000:]
        places = [end.index(b'{"progress": %d}' % n) for n in range(400)]
        assert places == sorted(places)
        assert places[-1] < end.index(b'"result":')


async def test_a_silent_call_becomes_a_stream_and_is_kept_alive_by_comments() -> None:
    """HTTP-012, F03."""
    async with http_rig() as rig:
        sent = rig.send("tools/call", name="slow")
        served = await rig.router.next()
        await rig.clock.advance(9.9)
        assert sent.response is None
        await rig.clock.advance(0.1)
        assert (await sent.head()).content_type == "text/event-stream"
        await sent.until(b":")
        before = len(sent.data)
        await rig.clock.advance(10)
        await sent.until(bytes(sent.data[:before]) + b":")
        served.end()
        assert [e["id"] for e in events(await sent.body())] == [1]


async def test_a_poll_is_never_a_stream() -> None:
    """Contract section 4: however long the store takes."""
    async with http_rig() as rig:
        sent = rig.send("tasks/get", taskId="t")
        served = await rig.router.next()
        await rig.clock.advance(100)
        served.end()
        assert (await sent.head()).content_type == "application/json"


@pytest.mark.parametrize("accept", ["application/json", "application/json;q=1, text/html"])
async def test_a_client_that_takes_no_stream_gets_json(accept: str) -> None:
    async with http_rig() as rig:
        sent = rig.send(headers={"Accept": accept})
        served = await rig.router.next()
        served.tell(progress=1)
        await rig.clock.advance(100)
        served.end()
        assert (await sent.head()).content_type == "application/json"
        assert json.loads(await sent.body())["result"] == {"resultType": "complete"}


@pytest.mark.parametrize("accept", ["*/*", "text/*", "application/json, TEXT/event-stream;q=0.5"])
async def test_every_way_to_accept_a_stream_is_known(accept: str) -> None:
    async with http_rig() as rig:
        sent = rig.send(headers={"Accept": accept})
        (await rig.router.next()).tell(progress=1)
        assert (await sent.head()).content_type == "text/event-stream"


async def test_two_streams_have_their_own_notifications_each() -> None:
    """HTTP-008."""
    async with http_rig() as rig:
        sent = [rig.send(id=1), rig.send(id=2)]
        for served in [await rig.router.next() for _ in sent]:
            served.tell(progressToken=served.request.id.value, progress=1)
            served.end()
        for number, exchanged in enumerate(sent, start=1):
            told, final = events(await exchanged.body())
            assert (told["params"]["progressToken"], final["id"]) == (number, number)


async def test_once_a_stream_has_begun_a_fault_is_its_last_event() -> None:
    """Contract section 4: the status stays 200."""
    async with http_rig() as rig:
        sent = rig.send()
        served = await rig.router.next()
        served.tell(progress=1)
        await sent.head()
        served.end(ClientProtocolError(ErrorCode.MISSING_CLIENT_CAPABILITY, "no"))
        assert events(await sent.body())[-1]["error"]["code"] == -32021
        assert (await sent.head()).status == 200


# ------------------------------------------------------------------------------ slow readers


async def test_a_reader_that_stops_is_cut_and_nothing_follows_what_was_half_written() -> None:
    """F40, I6: 50 MB to a client that stops; its request is over, others are served."""
    async with http_rig(bounds=HASTY) as rig:
        rig.router.always = ResultAnswer(b'{"a":"' + b"x" * 50_000_000 + b'"}')
        for more in ("", "Accept: application/json\r\n"):
            async with await rig.connect() as stream:
                await stream.send(raw_post(message(), more=more))
                head = await stream.receive()
                assert head.startswith(b"HTTP/1.1 200 ")
                await rig.endpoint.wait_idle()
                rest = await read_all(stream)
                assert len(rest) < 50_000_000
                assert b"HTTP/1.1" not in rest
        rig.router.always = OK
        async with rig.post() as response:
            assert response.status == 200


async def test_a_reader_that_takes_all_at_once_does_not_keep_the_others_waiting() -> None:
    """F40, the other way round: between two pieces of a large answer everybody has a turn."""

    class Greedy(web.StreamResponse):
        def __init__(self) -> None:
            super().__init__()
            self.taken: list[int] = []

        async def write(self, data: bytes | bytearray | memoryview) -> None:
            self.taken.append(len(data))

    greedy, turns = Greedy(), list[int]()

    async def take_turns() -> None:
        while True:
            await checkpoint()
            turns.append(len(greedy.taken))

    async with anyio.create_task_group() as group:
        group.start_soon(take_turns)
        await Responder._write(greedy, b"x" * (10 * PIECE_BYTES + 1))
        group.cancel_scope.cancel()
    assert greedy.taken == [*[PIECE_BYTES] * 10, 1]
    assert set(range(2, 10)) <= set(turns)  # it had to start first


async def test_a_stream_whose_reader_stops_is_cut_too() -> None:
    """F40."""
    async with http_rig(bounds=HASTY) as rig, await rig.connect() as stream:
        await stream.send(raw_post(message(LISTEN), LISTEN))
        served = await rig.router.next()
        served.tell(text="x" * 20_000_000)
        await served.cancelled.wait()
        await rig.endpoint.wait_idle()
        assert b"HTTP/1.1" not in (await read_all(stream))[20:]


async def test_a_stream_that_falls_behind_makes_those_wait_who_can() -> None:
    """F40: what is told meanwhile is told later, and less of it; the stream is not ended."""
    async with http_rig() as rig, await rig.connect() as stream:
        await stream.send(raw_post(message(LISTEN), LISTEN, more="Connection: close\r\n"))
        served = await rig.router.next()
        served.tell(n=0)
        told = 0
        with anyio.move_on_after(0.2):
            for told in range(1, 1_000):
                await served.sink.ready()
                served.tell(n=told, text="x" * 1_000_000)
        assert told < 100

        async def end() -> None:
            await served.sink.ready()
            served.end()

        rig.tasks.start_soon(end)
        body = await read_all(stream)
        assert b'"n": %d,' % (told - 1) in body
        assert b'"result":' in body
