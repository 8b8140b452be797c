"""How a POST with requests is answered: plain JSON or an event stream, and when that is known.

Holds HTTP-062, HTTP-064, F03, F22 and the first half of F24.
"""

from __future__ import annotations

import pytest

from proxy.errors import UpstreamClosed
from proxy.protocol import names
from proxy.routing.http_posts import QUIET_S
from proxy.sessions.stream import RETRY_MS
from tests.routing.session_bench import session_bench, settle
from tests.upstream.fake_transport import until

pytestmark = pytest.mark.anyio

OLDER = pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
CARRY = pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read"])


@OLDER
@CARRY
async def test_an_answer_that_comes_soon_and_alone_is_plain_json(version: str, method: str) -> None:
    """HTTP-062."""
    async with session_bench() as it:
        client = await it.client().initialize(version)
        response = client.request(method)
        it.server.answer(await it.server.asked(method), {"n": 1})
        await response.ended()
        assert (response.status, response.headers["content-type"]) == (200, "application/json")
        assert response.headers["mcp-session-id"] == client.session_id
        assert response.messages == [{"jsonrpc": "2.0", "id": client.next_id, "result": {"n": 1}}]


@CARRY
async def test_at_2025_11_25_what_may_take_long_is_a_primed_stream_at_once(method: str) -> None:
    """F22, F24: a client that loses it before anything came can come back to it."""
    async with session_bench() as it:
        client = await it.client().initialize()
        response = client.request(method)
        await until(lambda: response.body)
        assert response.is_stream
        assert [(e.data, e.retry_ms) for e in response.events] == [(b"", RETRY_MS)]
        assert response.events[0].id
        it.server.answer(await it.server.asked(method), {"n": 1})
        await response.ended()
        assert response.messages == [{"jsonrpc": "2.0", "id": client.next_id, "result": {"n": 1}}]


@pytest.mark.parametrize("method", ["tools/list", "ping", "logging/setLevel", "x/y"])
async def test_at_2025_11_25_other_answers_are_plain_json(method: str) -> None:
    async with session_bench() as it:
        client = await it.client().initialize()
        response = client.request(method)
        it.server.answer(await it.server.asked(method))
        assert (await response.ended()).headers["content-type"] == "application/json"


@OLDER
async def test_older_clients_get_neither_priming_events_nor_retry(version: str) -> None:
    """F22."""
    async with session_bench() as it:
        client = await it.client().initialize(version)
        call = await client.call()
        it.server.notify(names.LOG_MESSAGE, {"level": "info", "data": 1})
        await call.answer()
        listening = client.get()
        await settle()
        for response in (call.response, listening):
            assert response.is_stream
            assert response.body.startswith(b":")
            assert all(event.data and event.retry_ms is None and event.id for event in response.events)


async def test_the_first_other_message_begins_a_stream_and_the_answer_ends_it() -> None:
    """HTTP-064."""
    async with session_bench() as it:
        client = await it.client().initialize("2025-06-18")
        call = await client.call()
        assert call.response.status is None
        it.server.notify(names.LOG_MESSAGE, {"level": "info", "data": 1})
        await until(lambda: call.response.body)
        assert call.response.headers["x-accel-buffering"] == "no"
        assert not call.response.done
        await call.answer()
        assert [m.get("method", m.get("id")) for m in call.response.messages] == [
            names.LOG_MESSAGE,
            client.next_id,
        ]


@OLDER
async def test_a_quiet_call_becomes_a_stream_with_a_first_byte(version: str) -> None:
    """F03."""
    async with session_bench() as it:
        client = await it.client().initialize(version)
        call = await client.call()
        await it.pass_time(QUIET_S - 0.1)
        assert call.response.status is None
        await it.pass_time(0.1)
        assert call.response.is_stream
        assert call.response.body.startswith(b":")
        await it.pass_time(1_000)
        assert (await call.answer({"n": 1})).messages[0]["result"] == {"n": 1}


async def test_a_client_whose_accept_leaves_out_streams_gets_json_however_long_it_takes() -> None:
    async with session_bench() as it:
        client = (await it.client().initialize()).but(accept="application/json")
        call = await client.call(_meta={"progressToken": "t"})
        it.server.notify(names.PROGRESS, {"progressToken": "t", "progress": 1})
        await it.pass_time(10 * QUIET_S)
        await call.answer()
        assert call.response.headers["content-type"] == "application/json"
        assert [m.get("id") for m in call.response.messages] == [client.next_id]


@pytest.mark.parametrize("accept", [None, "*/*", "application/json;q=1, text/event-stream;q=0.5", "text/*"])
async def test_a_client_that_takes_streams_in_any_spelling_gets_one(accept: str | None) -> None:
    async with session_bench() as it:
        client = (await it.client().initialize()).but(accept=accept)
        call = await client.call()
        await call.answer()
        assert call.response.is_stream


async def test_an_error_of_the_server_is_an_answer_like_any_other() -> None:
    async with session_bench() as it:
        client = await it.client().initialize("2025-06-18")
        call = await client.call()
        it.server.answer(call.sent, error={"code": -32000, "message": "no", "data": [1.10]})
        await call.response.ended()
        assert call.response.status == 200
        assert call.response.messages[0]["error"] == {"code": -32000, "message": "no", "data": [1.1]}


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_when_the_server_dies_what_is_pending_is_answered_at_once_and_the_session_goes_on(
    version: str,
) -> None:
    """Contract section 9; F38."""
    async with session_bench() as it:
        client = await it.client().initialize(version)
        calls = [await client.call() for _ in range(3)]
        dead = it.server
        dead.die(UpstreamClosed("upstream 'fake' exited with code 3"))
        for call in calls:
            await call.response.ended()
            [answer] = call.response.messages
            assert answer["error"]["code"] == -32603
            assert "exited with code 3" in answer["error"]["message"]
        listed = client.request("tools/list")
        await until(lambda: it.server is not dead)
        it.server.answer(
            await it.server.asked(names.INITIALIZE), {"protocolVersion": version, "capabilities": {}}
        )
        it.server.answer(await it.server.asked("tools/list"), {"tools": []})
        assert (await listed.ended()).messages[0]["result"] == {"tools": []}
