"""Our own answers over HTTP: JSON where they come soon, an event stream where a result is waited for.

Contract section 5; Transports 2025-11-25, "Sending Messages to the Server".
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPMethod, HTTPStatus
from typing import Any, Final

import anyio
import pytest

from proxy.errors import ClientProtocolError, ErrorCode, LimitReached
from proxy.protocol import jsonrpc, names
from proxy.protocol.jsonrpc import Request, RequestId
from proxy.protocol.sse import EventDecoder
from proxy.routing.base import Answer, ErrorAnswer, ResultAnswer
from proxy.routing.get_streams import MAX_HELD_BYTES, GetStream
from proxy.routing.legacy import HttpMessage, Reply
from proxy.routing.offers import Channel
from proxy.routing.passed_session import OwnersPart
from proxy.routing.served import Served, StreamChannel
from tests.routing.bench import ADA
from tests.routing.session_bench import BOTH
from tests.upstream.fake_transport import settle

pytestmark = pytest.mark.anyio

RESULT: Final = ResultAnswer(b'{"n":1.0}')

Play = Callable[[Channel | None], Awaitable[Answer | None]]


class Tasks:
    """In the place of a `TaskSession`; serves as the test plays it. `left`: somebody gave up waiting."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.channel: Channel | None = None
        self.left = False

    async def serve(self, request: Request, channel: Channel | None) -> Answer | None:
        self.channel = channel
        try:
            return await self._play(channel)
        except anyio.get_cancelled_exc_class():
            self.left = True
            raise


class Scene:
    def __init__(self, play: Play) -> None:
        self.tasks = Tasks(play)
        tasks: Any = self.tasks
        self.part = OwnersPart(tasks, Any)  # type: ignore[arg-type]
        self.served = Served()

    @asynccontextmanager
    async def reply(
        self, method: str = names.TASKS_RESULT, *, accept: str | None = BOTH, id: int | str = 1
    ) -> AsyncIterator[Reply | None]:
        headers = [] if accept is None else [("Accept", line) for line in accept.split("\n")]
        message = HttpMessage(HTTPMethod.POST, headers, ADA)
        rid = RequestId(json.dumps(id).encode(), id)
        with anyio.fail_after(5):
            async with self.served.serve(message, self.part, Request(rid, method, None)) as reply:
                yield reply


def kind(reply: Reply | None) -> str:
    assert reply is not None
    return dict(reply.headers)["Content-Type"]


async def messages(reply: Reply | None) -> list[dict[str, Any]]:
    assert reply is not None
    assert not isinstance(reply.body, bytes)
    body = b"".join([chunk async for chunk in reply.body])
    return [json.loads(event.data) for event in EventDecoder(1_000_000).feed(body)]


def answers(answer: Answer | None) -> Play:
    async def play(channel: Channel | None) -> Answer | None:
        return answer

    return play


def waits(event: anyio.Event, answer: Answer | None = RESULT) -> Play:
    async def play(channel: Channel | None) -> Answer | None:
        await event.wait()
        return answer

    return play


def fails(exc: Exception) -> Play:
    async def play(channel: Channel | None) -> Answer | None:
        raise exc

    return play


@pytest.mark.parametrize(
    "method", [names.TOOLS_CALL, names.TASKS_GET, names.TASKS_CANCEL, names.TASKS_RESULT]
)
async def test_what_is_answered_soon_is_json(method: str) -> None:
    """T25-INP-005: `tasks/get` always."""
    scene = Scene(answers(RESULT))
    async with scene.reply(method, id="x") as reply:
        assert reply is not None
        assert reply.body == b'{"jsonrpc":"2.0","id":"x","result":{"n":1.0}}'
        assert dict(reply.headers) == {
            "Content-Type": "application/json",
            "Content-Length": str(len(reply.body)),
        }
    assert (scene.tasks.channel is None) is (method != names.TASKS_RESULT)


@pytest.mark.usefixtures("nothing_is_soon")
async def test_tasks_get_never_becomes_a_stream_however_long_it_takes() -> None:
    """T25-INP-005."""
    event = anyio.Event()
    scene = Scene(waits(event))
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            async with scene.reply(names.TASKS_GET) as reply:
                assert kind(reply) == "application/json"

        tasks.start_soon(ask)
        await settle()
        event.set()


async def test_a_result_that_takes_longer_comes_on_a_stream_that_ends_with_it() -> None:
    event = anyio.Event()
    scene = Scene(waits(event))
    async with scene.reply() as reply:
        assert kind(reply) == "text/event-stream"
        assert scene.tasks.channel is not None
        scene.tasks.channel.send(jsonrpc.notification("notifications/x"))
        event.set()
        told, answer = await messages(reply)
        assert told["method"] == "notifications/x"
        assert answer == {"jsonrpc": "2.0", "id": 1, "result": {"n": 1.0}}
        assert not scene.tasks.channel.is_open


@pytest.mark.usefixtures("nothing_is_soon")
@pytest.mark.parametrize("accept", ["application/json", None])
async def test_who_takes_no_stream_gets_json_however_long_it_takes(accept: str | None) -> None:
    event = anyio.Event()
    scene = Scene(waits(event))
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            async with scene.reply(accept=accept) as reply:
                assert kind(reply) == "application/json"

        tasks.start_soon(ask)
        await settle()
        assert scene.tasks.channel is None
        event.set()


@pytest.mark.usefixtures("nothing_is_soon")
async def test_what_is_accepted_may_stand_in_several_lines() -> None:
    """RFC 9110, "Field Lines and Combined Field Value"."""
    async with Scene(waits(anyio.Event())).reply(accept="application/json\ntext/event-stream") as reply:
        assert kind(reply) == "text/event-stream"


async def test_errors_are_answers() -> None:
    """T25-ERR-002, T25-ERR-004: with status 200, and the server's own words as they came."""
    error = b'{"code":-7,"message":"m","data":1.0}'
    faults: list[tuple[Play, dict[str, Any]]] = [
        (answers(ErrorAnswer(error, HTTPStatus.OK)), {"code": -7, "message": "m", "data": 1.0}),
        (
            fails(ClientProtocolError(ErrorCode.INVALID_PARAMS, "no such task")),
            {"code": -32602, "message": "no such task"},
        ),
        (fails(RuntimeError("a bug")), {"code": -32603, "message": "internal error of the proxy"}),
    ]
    for play, told in faults:
        for method in (names.TASKS_GET, names.TASKS_RESULT):
            async with Scene(play).reply(method) as reply:
                assert reply is not None
                assert reply.status == 200
                assert isinstance(reply.body, bytes)
                assert json.loads(reply.body)["error"] == told


async def test_an_error_that_comes_late_is_the_last_event() -> None:
    event = anyio.Event()

    async def play(channel: Channel | None) -> Answer | None:
        await event.wait()
        raise ClientProtocolError(ErrorCode.INVALID_PARAMS, "no such task")

    async with Scene(play).reply() as reply:
        event.set()
        [answer] = await messages(reply)
        assert answer["error"]["code"] == -32602


async def test_limits_are_told_by_http() -> None:
    with pytest.raises(LimitReached):
        async with Scene(fails(LimitReached("later", retry_after_s=1))).reply(names.TASKS_GET):
            raise AssertionError("there is no reply")


async def test_what_is_the_upstreams_after_all_is_said_so() -> None:
    async with Scene(answers(None)).reply(names.TOOLS_CALL) as reply:
        assert reply is None


async def test_a_client_that_leaves_takes_nothing_but_its_wait() -> None:
    """T25-GET-007: and the stream it had is open for nobody."""
    scene = Scene(waits(anyio.Event()))
    with anyio.CancelScope() as scope:
        async with scene.reply() as reply:
            assert kind(reply) == "text/event-stream"
            scope.cancel()
            await anyio.sleep_forever()
    assert scene.tasks.left
    assert scene.tasks.channel is not None
    assert not scene.tasks.channel.is_open
    assert not scene.served.cancel(scene.part, RequestId(b"1", 1))


@pytest.mark.parametrize("early", [True, False])
async def test_a_wait_that_its_client_cancels_ends_without_an_answer(early: bool) -> None:
    """Cancellation 2025-11-25: before the stream has begun, and after."""
    scene = Scene(waits(anyio.Event()))
    if early:
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                async with scene.reply() as reply:
                    assert reply is not None
                    assert (reply.status, reply.body) == (202, b"")

            tasks.start_soon(ask)
            await settle()
            assert scene.served.cancel(scene.part, RequestId(b"1", 1))
    else:
        async with scene.reply() as reply:
            assert scene.served.cancel(scene.part, RequestId(b"1", 1))
            assert await messages(reply) == []
    assert scene.tasks.left


async def test_what_is_cancelled_is_the_request_of_that_id_and_owner() -> None:
    scene, other = Scene(waits(anyio.Event())), Scene(waits(anyio.Event()))
    async with scene.reply(id=1):
        for part, rid in [
            (scene.part, RequestId(b'"1"', "1")),
            (scene.part, RequestId(b"2", 2)),
            (scene.part, None),
            (other.part, RequestId(b"1", 1)),
        ]:
            assert not scene.served.cancel(part, rid)
        assert not scene.tasks.left


def test_a_stream_that_is_read_too_slowly_is_given_up() -> None:
    """Lesson 22: what it was asked is then asked elsewhere."""
    stream = GetStream()
    channel = StreamChannel(stream)
    channel.send(b"1")
    assert channel.is_open
    channel.send(b"x" * MAX_HELD_BYTES)
    assert not channel.is_open
    channel.send(b"2")
