"""Sessions of legacy HTTP clients: opened, owned, bounded, ended; and what each HTTP request is answered.

The servers are fakes, one for each session. Holds HTTP-060 to HTTP-071, HTTP-078, VER-006, VER-019, F39 and
F40.
"""

from __future__ import annotations

from http import HTTPStatus

import anyio
import pytest

from proxy.errors import NoCredential, UpstreamClosed, UpstreamError, UpstreamRefused, UpstreamUnavailable
from proxy.owners import Owner
from proxy.protocol import names
from proxy.routing import http_session
from proxy.routing.http_posts import QUIET_S
from proxy.routing.session_layer import SWEEP_S
from proxy.sessions.table import MAKES_ROOM_AFTER_S, UNREAD_MAKES_ROOM_AFTER_S
from tests.routing.session_bench import BOTH, IDLE_S, STREAM, session_bench, settle
from tests.upstream.fake_transport import initialize_result, until

pytestmark = pytest.mark.anyio

ADA, BOB = Owner("ada"), Owner("bob")
INVALID = -32600


# --------------------------------------------------------------------------------------- a session


async def test_initialize_opens_a_session_with_a_server_of_its_own() -> None:
    """HTTP-069, VER-006."""
    async with session_bench() as it:
        first = await it.client(owner=ADA).initialize()
        second = await it.client(owner=BOB).initialize("2025-06-18")
        assert first.session_id != second.session_id
        assert len(it.servers) == 2
        assert it.owners == [ADA, BOB]
        listed = second.request("tools/list")
        it.server.answer(await it.server.asked("tools/list"), {"tools": []})
        assert (await listed.ended()).messages == [
            {"jsonrpc": "2.0", "id": second.next_id, "result": {"tools": []}}
        ]
        assert it.servers[0].of("tools/list") == []


async def test_the_answer_to_initialize_is_plain_json_whatever_the_server_says_before_it() -> None:
    """VER-023: what it says too early waits for the stream that GET opens."""
    async with session_bench() as it:
        client = it.client()
        server, response = await client.begin()
        server.notify(names.LOG_MESSAGE, {"level": "info", "data": "starting"})
        server.answer(await server.asked(names.INITIALIZE), initialize_result())
        await response.ended()
        assert (response.status, response.headers["content-type"]) == (200, "application/json")
        client.session_id = response.headers["mcp-session-id"]
        listening = client.get()
        await until(lambda: listening.body and listening.messages)
        assert listening.messages[0]["params"]["data"] == "starting"


async def test_a_server_that_refuses_the_handshake_leaves_no_session() -> None:
    async with session_bench() as it:
        server, response = await it.client().begin()
        server.answer(await server.asked(names.INITIALIZE), error={"code": -32602, "message": "no"})
        await response.ended()
        assert response.messages[0]["error"]["code"] == -32602
        assert "mcp-session-id" not in response.headers
        await until(lambda: not len(it.layer._sessions))
        assert server.ended


@pytest.mark.parametrize("dies", [True, False])
async def test_a_server_that_cannot_be_started_or_dies_in_the_handshake_leaves_no_session(dies: bool) -> None:
    unavailable = UpstreamUnavailable("upstream 'fake' could not be started")
    async with session_bench(unavailable=None if dies else unavailable) as it:
        response = it.client().request(names.INITIALIZE, {})
        if dies:
            await until(lambda: it.servers and it.server.of(names.INITIALIZE))
            it.server.die(UpstreamClosed("upstream 'fake' exited with code 3"))
        await response.ended()
        assert response.messages[0]["error"]["code"] == -32603
        assert "mcp-session-id" not in response.headers
        await until(lambda: not len(it.layer._sessions))
        for server in it.servers:
            server.ended = True


async def test_a_client_that_hangs_up_before_it_was_answered_leaves_no_session() -> None:
    """F39: nobody knows its id."""
    async with session_bench() as it:
        server, response = await it.client().begin()
        response.hang_up()
        await until(lambda: not len(it.layer._sessions))
        assert server.ended


async def test_a_handshake_that_takes_long_is_kept_alive_as_a_stream() -> None:
    """F03."""
    async with session_bench() as it:
        client = it.client()
        server, response = await client.begin()
        await it.pass_time(QUIET_S)
        assert response.is_stream
        assert response.body.startswith(b":")
        server.answer(await server.asked(names.INITIALIZE), initialize_result())
        await response.ended()
        assert response.messages[0]["result"]["protocolVersion"] == "2025-11-25"
        client.session_id = response.headers["mcp-session-id"]
        assert (await client.post({"method": names.INITIALIZED}).ended()).status == 202


@pytest.mark.parametrize(
    "refused",
    [
        UpstreamRefused("it wants a token", status=HTTPStatus.UNAUTHORIZED, challenges=("Bearer x",)),
        UpstreamRefused("it wants another of ours", status=None, challenges=()),
        NoCredential("the authorization server is away"),
    ],
)
async def test_what_is_said_of_a_credential_reaches_the_client_as_such(refused: UpstreamError) -> None:
    """F28, before HTTP+SSE servers; and where the credential is ours, refused or not there at all."""
    async with session_bench(unavailable=refused) as it:
        response = await it.client().request(names.INITIALIZE, {}).ended()
        assert response.raised is refused
        for server in it.servers:
            server.ended = True


# ---------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("method", ["post", "get", "delete"])
async def test_without_a_session_id_a_request_is_400(method: str) -> None:
    """HTTP-071."""
    async with session_bench() as it:
        client = it.client()
        response = client.request("tools/list") if method == "post" else getattr(client, method)()
        assert (await response.refused())[:2] == (400, INVALID)
        assert it.servers == []


@pytest.mark.parametrize("method", ["post", "get", "delete"])
async def test_a_session_is_its_owners_and_404_to_everybody_else(method: str) -> None:
    """I5, HTTP-070."""
    async with session_bench() as it:
        session_id = (await it.client(owner=ADA).initialize()).session_id
        said = set()
        for client in (it.client(owner=BOB, session_id=session_id), it.client(owner=ADA, session_id="none")):
            response = client.request("tools/list") if method == "post" else getattr(client, method)()
            said.add(await response.refused())
        assert {status for status, _, _ in said} == {404}
        assert len(said) == 1
        assert it.server.of("tools/list") == []
        assert (await it.client(owner=ADA, session_id=session_id).delete().ended()).status == 200


@pytest.mark.parametrize("version", ["1900-01-01", "", "latest", "2025-11-25, 2025-06-18"])
async def test_a_version_header_that_names_no_version_is_400(version: str) -> None:
    """VER-019."""
    async with session_bench() as it:
        client = (await it.client().initialize()).but(version=version)
        for response in (client.request("tools/list"), client.get(), client.delete()):
            assert (await response.refused())[:2] == (400, INVALID)
        assert (
            await client.but(version="2025-06-18").post({"method": "notifications/x"}).ended()
        ).status == 202
        assert (await client.but(version=None).post({"method": "notifications/x"}).ended()).status == 202


async def test_an_initialize_with_a_wrong_version_header_opens_nothing() -> None:
    async with session_bench() as it:
        assert (await it.client(version="x").request(names.INITIALIZE, {}).refused())[0] == 400
        assert it.servers == []


@pytest.mark.parametrize(
    ("accept", "status"),
    [("application/json", 406), (None, 406), ("text/html", 406), (STREAM, 200), ("*/*", 200), (BOTH, 200)],
)
async def test_a_get_whose_accept_leaves_out_event_streams_is_406(accept: str | None, status: int) -> None:
    async with session_bench() as it:
        client = (await it.client().initialize()).but(accept=accept)
        response = client.get()
        await settle()
        got = int(response.raised.http_status) if response.raised is not None else response.status
        assert got == status


async def test_other_methods_are_405_and_say_which_are_not() -> None:
    async with session_bench() as it:
        client = await it.client().initialize()
        response = await client._send("HEAD").ended()  # type: ignore[arg-type]
        assert response.status == 405
        assert set(response.headers["allow"].split(", ")) >= {"GET", "POST", "DELETE"}


async def test_an_id_that_is_in_flight_is_refused_and_nothing_is_sent() -> None:
    async with session_bench() as it:
        client = await it.client().initialize()
        call = await client.call(id=7)
        assert (await client.request("tools/list", id=7).refused())[:2] == (400, INVALID)
        twice = await client.but(version="2025-03-26").call(id="7")
        await call.answer()
        await twice.answer()
        assert it.server.of("tools/list") == []


# -------------------------------------------------------------------------------------- batches


async def test_a_batch_of_2025_03_26_is_served_and_answered_as_one() -> None:
    """HTTP-078, F20."""
    async with session_bench() as it:
        client = await it.client().initialize("2025-03-26")
        response = client.post(
            {"id": 1, "method": "a"},
            {"method": "notifications/x"},
            {"id": "1", "method": "b"},
            {"id": "q", "result": {}},
            batch=True,
        )
        a, b = await it.server.asked("a"), await it.server.asked("b")
        assert it.server.of("notifications/x")
        it.server.answer(b, {"n": 2})
        await settle()
        assert not response.done
        it.server.answer(a, {"n": 1})
        await response.ended()
        assert response.headers["content-type"] == "application/json"
        assert response.body.startswith(b"[")
        assert [(m["id"], m["result"]["n"]) for m in response.messages] == [("1", 2), (1, 1)]


async def test_a_batch_is_streamed_once_something_else_is_said() -> None:
    async with session_bench() as it:
        client = await it.client().initialize("2025-03-26")
        response = client.post(
            {"id": 1, "method": "tools/call", "params": {"name": "a", "_meta": {"progressToken": "t"}}},
            {"id": 2, "method": "b"},
            batch=True,
        )
        it.server.answer(await it.server.asked("b"))
        it.server.notify(names.PROGRESS, {"progressToken": "t", "progress": 1})
        it.server.answer(await it.server.asked("tools/call"))
        await response.ended()
        assert response.is_stream
        assert [m.get("id") for m in response.messages] == [2, None, 1]


async def test_a_batch_of_one_is_answered_by_a_batch_and_one_without_requests_by_202() -> None:
    async with session_bench() as it:
        client = await it.client().initialize("2025-03-26")
        response = client.post({"id": 1, "method": "a"}, batch=True)
        it.server.answer(await it.server.asked("a"))
        assert (await response.ended()).body.startswith(b"[")
        assert (await client.post({"method": "notifications/x"}, batch=True).ended()).status == 202


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_a_batch_in_a_session_of_another_version_is_refused(version: str) -> None:
    """F20."""
    async with session_bench() as it:
        client = await it.client().initialize(version)
        assert (await client.post({"id": 1, "method": "a"}, batch=True).refused())[:2] == (400, INVALID)
        assert it.server.of("a") == []


async def test_initialize_in_a_batch_opens_no_session() -> None:
    async with session_bench() as it:
        response = it.client().post({"id": 1, "method": names.INITIALIZE}, batch=True)
        assert (await response.refused())[:2] == (400, INVALID)
        assert it.servers == []


async def test_two_equal_ids_in_one_batch_are_refused() -> None:
    async with session_bench() as it:
        client = await it.client().initialize("2025-03-26")
        response = client.post({"id": 1, "method": "a"}, {"id": 1, "method": "b"}, batch=True)
        assert (await response.refused())[:2] == (400, INVALID)
        await settle()
        assert it.server.of("a") == []


# ------------------------------------------------------------------------------------------- the end


async def test_delete_ends_session_server_streams_and_calls() -> None:
    """HTTP-070."""
    async with session_bench() as it:
        client = await it.client().initialize()
        listening, call = client.get(), await client.call()
        assert (await client.delete().ended()).status == 200
        await listening.ended()
        await call.response.ended()
        error = call.response.messages[-1]["error"]
        assert error["code"] == -32603
        assert "outcome unknown" in error["message"], "it was sent (I2)"
        for response in (client.request("tools/list"), client.get(), client.delete()):
            assert (await response.refused())[0] == 404
        await until(lambda: not len(it.layer._sessions))
        assert it.server.ended


async def test_delete_is_answered_at_once_however_long_the_server_takes_to_end() -> None:
    async with session_bench(ends_when_closed=False) as it:
        client = await it.client().initialize()
        assert (await client.delete().ended()).status == 200
        assert not it.server.ended


async def test_a_session_that_nobody_uses_ends() -> None:
    """F39."""
    async with session_bench() as it:
        client = await it.client().initialize()
        await it.pass_time(IDLE_S - SWEEP_S)
        assert (await client.post({"method": "notifications/x"}).ended()).status == 202
        await it.pass_time(IDLE_S - SWEEP_S)
        assert len(it.layer._sessions) == 1
        await it.pass_time(2 * SWEEP_S)
        assert (await client.request("tools/list").refused())[0] == 404
        assert it.server.ended


@pytest.mark.parametrize("busy", ["a call", "a stream", "a call that nobody listens to"])
async def test_a_session_in_use_does_not_end(busy: str) -> None:
    """F39: kept by a call of twice the idle time, or by an open stream."""
    async with session_bench() as it:
        client = await it.client().initialize()
        if busy == "a stream":
            client.get()
            await settle()
        else:
            call = await client.call()
            if busy != "a call":
                call.response.hang_up()
        await it.pass_time(3 * IDLE_S)
        assert (await client.post({"method": "notifications/x"}).ended()).status == 202


async def test_a_call_that_never_ends_and_nobody_listens_to_keeps_its_session_no_longer_than_a_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I6. The day is a short one here."""
    assert http_session.ABANDONED_S == 86_400
    monkeypatch.setattr(http_session, "ABANDONED_S", 2 * IDLE_S)
    async with session_bench() as it:
        client = await it.client().initialize()
        call = await client.call()
        call.response.hang_up()
        await settle()
        await it.pass_time(2 * IDLE_S - SWEEP_S)
        assert len(it.layer._sessions) == 1
        await it.pass_time(SWEEP_S)
        assert (await client.request("tools/list").refused())[0] == 404


async def test_the_session_that_is_idle_for_longest_makes_room() -> None:
    """F40."""
    async with session_bench(max_sessions=2) as it:
        first, second = await it.client().initialize(), await it.client().initialize()
        await it.pass_time(1)
        await first.post({"method": "notifications/x"}).ended()
        await it.pass_time(MAKES_ROOM_AFTER_S)
        await it.client().initialize()
        assert (await second.request("tools/list").refused())[0] == 404
        assert (await first.post({"method": "notifications/x"}).ended()).status == 202


async def test_where_all_sessions_are_in_use_a_new_one_is_refused_and_told_when_to_come_back() -> None:
    """F40."""
    async with session_bench(max_sessions=2) as it:
        first, second = await it.client().initialize(), await it.client().initialize()
        first.get()
        second.get()
        await it.pass_time(2 * MAKES_ROOM_AFTER_S)
        response = it.client().request(names.INITIALIZE, {})
        assert (await response.refused())[0] == 503
        assert len(it.servers) == 2


async def test_sessions_whose_clients_left_their_calls_make_room_after_minutes() -> None:
    """I6, F40: the calls would else keep them for a day."""
    async with session_bench(max_sessions=1) as it:
        client = await it.client().initialize()
        (await client.call()).response.hang_up()
        await settle()
        await it.pass_time(UNREAD_MAKES_ROOM_AFTER_S - 1)
        assert (await it.client().request(names.INITIALIZE, {}).refused())[0] == 503
        await it.pass_time(1)
        await it.client().initialize()
        assert (await client.request("tools/list").refused())[0] == 404


async def test_calls_count_until_they_are_answered_whether_their_client_still_waits_or_not() -> None:
    """I6: hanging up makes no room for more of them at the server."""
    async with session_bench(max_calls=2) as it:
        client = await it.client().initialize()
        first, second = await client.call(), await client.call()
        first.response.hang_up()
        second.response.hang_up()
        await settle()
        status, _, words = await client.request(names.TOOLS_CALL, {"name": "slow"}, id="late").refused()
        assert status == 429
        assert "limits.calls" in words
        assert len(it.server.of(names.TOOLS_CALL)) == 2
        assert (await client.post({"method": "notifications/x"}).ended()).status == 202
        it.server.answer(first.sent)
        await settle()
        assert (await (await client.call(id="late")).answer()).messages[-1]["id"] == "late"


async def test_a_cancelled_call_makes_room_and_a_batch_that_is_too_large_takes_none() -> None:
    async with session_bench(max_calls=2) as it:
        client = await it.client().initialize("2025-03-26")
        await client.call(id=1)
        calls = [{"id": n, "method": "tools/list"} for n in (2, 3)]
        assert (await client.post(*calls, batch=True).refused())[0] == 429
        await client.post({"method": names.CANCELLED, "params": {"requestId": 1}}).ended()
        client.post(*calls, batch=True)
        await it.server.asked("tools/list", 2)


async def test_where_calls_are_too_many_those_go_that_nobody_has_waited_for_for_minutes() -> None:
    """I6: not another owner's where one's own share is taken."""
    async with session_bench(max_calls=2, calls_per_owner=1) as it:
        ada, bob = await it.client(owner=ADA).initialize(), await it.client(owner=BOB).initialize()
        (await bob.call()).response.hang_up()
        await settle()
        ada_session = it.servers[0]
        held = ada.request(names.TOOLS_CALL, {"name": "slow"})
        await ada_session.asked(names.TOOLS_CALL)
        await it.pass_time(UNREAD_MAKES_ROOM_AFTER_S)
        assert (await ada.request("tools/list").refused())[0] == 429
        assert (await bob.post({"method": "notifications/x"}).ended()).status == 202
        eve = await it.client(owner=Owner("eve")).initialize()
        assert (await eve.request("tools/list").refused())[0] == 429  # bob has just been here
        await it.pass_time(UNREAD_MAKES_ROOM_AFTER_S)
        await (await it.client(owner=Owner("eve")).initialize()).call()
        assert (await bob.request("tools/list").refused())[0] == 404
        assert not held.done


async def test_a_call_outlives_its_client_and_its_answer_is_dropped() -> None:
    """HTTP-063, lesson 1."""
    async with session_bench() as it:
        client = await it.client().initialize("2025-06-18")
        call = await client.call()
        call.response.hang_up()
        await settle()
        assert it.server.of(names.CANCELLED) == []
        it.server.answer(call.sent)
        again = await client.call()
        assert (await again.answer()).messages[0]["id"] == client.next_id


# ------------------------------------------------------------------------------------------- drain


async def test_at_drain_get_streams_end_and_calls_go_on() -> None:
    """F41."""
    async with session_bench() as it:
        client = await it.client().initialize()
        listening, call = client.get(), await client.call()
        await settle()
        it.layer.drain()
        await listening.ended()
        with anyio.move_on_after(0.05):
            await it.layer.wait_idle()
            raise AssertionError("a call is in flight")
        assert (await call.answer({"n": 1})).messages[-1]["result"] == {"n": 1}
        await it.layer.wait_idle()


async def test_closing_answers_what_is_pending_and_leaves_nothing() -> None:
    async with session_bench() as it:
        client = await it.client().initialize("2025-06-18")
        call = await client.call()
        await it.layer.close()
        await call.response.ended()
        error = call.response.messages[0]["error"]
        assert error["code"] == -32603
        assert "shutting down" in error["message"]
        assert "outcome unknown" in error["message"], "it was sent (I2)"
        assert it.server.ended
        assert (await it.client().request(names.INITIALIZE, {}).refused())[0] == 503


async def test_a_fault_of_ours_in_one_session_leaves_the_others_alone() -> None:
    async with session_bench() as it:
        client = await it.client().initialize()
        broken = await it.client().initialize()
        it.server.crash(RuntimeError("a bug"))
        await settle()
        assert (await client.post({"method": "notifications/x"}).ended()).status == 202
        assert (await broken.post({"method": "notifications/x"}).ended()).status == 202
