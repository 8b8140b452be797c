"""One session with a server that is a script: the handshake, calls and their ends, what a lost session means.

What comes from the server by itself: `test_inbox`, `test_attribution`. Settings: `test_settings`.
"""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Any

import anyio
import pytest

from proxy.errors import (
    ServerGone,
    SessionLost,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
    only_fault,
)
from proxy.protocol.envelope import dumps
from proxy.protocol.names import LEGACY_VERSIONS
from proxy.upstream import session as session_module
from proxy.upstream.base import Failure, Result
from proxy.upstream.session import LegacySession
from tests.manual_clock import ManualClock
from tests.upstream.fake_transport import (
    ALL,
    FORM,
    Client,
    FakeTransport,
    Listener,
    conversation,
    ended,
    initialize_result,
    session_over,
    settle,
    shake_hands,
    until,
)

pytestmark = pytest.mark.anyio

CANCELLED = "notifications/cancelled"
DIED = UpstreamClosed("upstream 'fake' exited")


async def start(session: LegacySession) -> UpstreamError | None:
    """Run the session until it is started or failed; None if it was started, and then ended."""
    try:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                await tasks.start(session.run)
                session.close()
    except BaseExceptionGroup as group:
        error = only_fault(group)
        assert isinstance(error, UpstreamError)
        return error
    return None


# --------------------------------------------------------------------------------------- the handshake


async def test_initialize_comes_first_and_initialized_before_any_call() -> None:
    """VER-015."""
    async with conversation() as talk:
        await talk.call("train")
        assert [m.method for m in talk.server.sent] == [
            "initialize",
            "notifications/initialized",
            "tools/call",
        ]


@pytest.mark.parametrize(
    ("declared", "offered"),
    [
        ({}, {}),
        ({"elicitation": {"form": {}}}, {"elicitation": {"form": {}}}),
        (ALL, ALL),
        ({"roots": {"listChanged": True}}, {"roots": {}}),
        ({"sampling": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}, {"sampling": {}}),
    ],
)
async def test_initialize_offers_the_newest_version_and_what_the_client_declared(
    declared: dict[str, Any], offered: dict[str, Any]
) -> None:
    """VER-016, VER-018, F15."""
    async with conversation(declared=declared) as talk:
        params = (await talk.server.asked("initialize")).body["params"]
        assert params["protocolVersion"] == "2025-11-25"
        assert params["capabilities"] == offered
        assert params["clientInfo"] == {"name": "mcp-taskproxy", "version": "0"}


@pytest.mark.parametrize("version", LEGACY_VERSIONS)
async def test_every_legacy_version_is_taken(version: str) -> None:
    """VER-016. The transport learns it before anything else is sent."""
    async with conversation(version=version) as talk:
        assert talk.session.info.version == version
        assert talk.server.version == version
        assert talk.session.is_alive


@pytest.mark.parametrize(
    "result",
    [
        initialize_result("1.0"),
        initialize_result("2026-07-28"),
        {},
        {"protocolVersion": 3},
        [],
        "yes",
        1,
        {"protocolVersion": None, "capabilities": {}},
    ],
)
async def test_an_answer_to_initialize_that_cannot_be_used_ends_the_attempt(result: Any) -> None:
    """VER-016."""
    server = FakeTransport()
    session = session_over(server, ManualClock())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer_initialize, server, {"result": result})
        error = await start(session)
    assert isinstance(error, UpstreamProtocolError)
    assert_failed(session, server)


async def test_an_error_to_initialize_ends_the_attempt_and_is_named() -> None:
    server = FakeTransport()
    session = session_over(server, ManualClock())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer_initialize, server, {"error": {"code": -32602, "message": "too new"}})
        error = await start(session)
    assert isinstance(error, UpstreamProtocolError)
    assert "too new" in error.message
    assert_failed(session, server)


async def test_a_broken_answer_to_initialize_ends_the_attempt() -> None:
    server = FakeTransport()
    session = session_over(server, ManualClock())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer_initialize, server, {})
        assert isinstance(await start(session), UpstreamProtocolError)
    assert_failed(session, server)


async def answer_initialize(server: FakeTransport, members: dict[str, Any]) -> None:
    request = await server.asked("initialize")
    server.deliver({"jsonrpc": "2.0", "id": request.id, **members})


def assert_failed(session: LegacySession, server: FakeTransport) -> None:
    """Closed in order, nothing left; nothing but initialize was ever sent (VER-017)."""
    assert [m.method for m in server.sent] == ["initialize"]
    assert server.closed
    assert server.ended
    assert not session.is_alive


async def test_a_server_that_never_answers_initialize_is_given_up() -> None:
    """VER-017: it is not told."""
    server = FakeTransport()
    session = session_over(server, ManualClock(), start_timeout_s=0.02)
    error = await start(session)
    assert isinstance(error, UpstreamTimeout)
    assert "initialize" in error.message
    assert_failed(session, server)


async def test_noise_is_no_answer_to_initialize() -> None:
    server = FakeTransport()
    session = session_over(server, ManualClock(), start_timeout_s=0.05)
    async with anyio.create_task_group() as tasks:

        async def chatter() -> None:
            await server.asked("initialize")
            for noise in (b"Listening on stdio", b"{}", b'{"level":"info","message":"up"}', b"[]", b"\xff"):
                server.deliver(noise)

        tasks.start_soon(chatter)
        assert isinstance(await start(session), UpstreamTimeout)
    assert_failed(session, server)


async def test_a_server_that_stops_reading_after_initialize_is_given_up() -> None:
    server = FakeTransport()
    session = session_over(server, ManualClock(), start_timeout_s=0.05)
    async with anyio.create_task_group() as tasks:

        async def answer_and_stall() -> None:
            request = await server.asked("initialize")
            server.reads = anyio.Event()
            server.answer(request, initialize_result())

        tasks.start_soon(answer_and_stall)
        assert isinstance(await start(session), UpstreamTimeout)
    assert not session.is_alive
    assert server.ended


async def test_a_server_that_cannot_be_reached_says_so() -> None:
    server = FakeTransport(unavailable=UpstreamUnavailable("no such file"))
    assert await start(session_over(server, ManualClock())) is server.unavailable


async def test_a_connection_that_never_comes_is_given_up() -> None:
    server = FakeTransport(starts=anyio.Event())
    error = await start(session_over(server, ManualClock(), start_timeout_s=0.02))
    assert isinstance(error, UpstreamTimeout)


@pytest.mark.parametrize(
    "loss",
    [
        DIED,
        UpstreamUnavailable("could not be reached"),
        UpstreamRefused("401", status=HTTPStatus.UNAUTHORIZED, challenges=("Bearer",)),
    ],
)
@pytest.mark.parametrize("of_all", [True, False])
async def test_what_the_transport_says_of_initialize_is_what_the_callers_get(
    loss: UpstreamError, of_all: bool
) -> None:
    server = FakeTransport()
    session = session_over(server, ManualClock())
    async with anyio.create_task_group() as tasks:

        async def break_off() -> None:
            request = await server.asked("initialize")
            server.lose_all(loss) if of_all else server.lose(request.id, loss)

        tasks.start_soon(break_off)
        assert await start(session) is loss
    assert_failed(session, server)


async def test_a_failed_start_is_told_when_everything_is_cleaned_up() -> None:
    server = FakeTransport(ends_when_closed=False)
    session = session_over(server, ManualClock())
    failed = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            assert isinstance(await start(session), UpstreamProtocolError)
            failed.set()

        tasks.start_soon(run)
        await answer_initialize(server, {"result": {}})
        await until(lambda: server.closed)
        await settle()
        assert not failed.is_set()
        server.end()
        with anyio.fail_after(5):
            await failed.wait()


async def test_a_start_that_is_cancelled_ends_everything_and_cancels_nothing_upstream() -> None:
    """VER-017."""
    server = FakeTransport()
    session = session_over(server, ManualClock())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start, session)
        await server.asked("initialize")
        tasks.cancel_scope.cancel()
    assert [m.method for m in server.sent] == ["initialize"]
    assert server.ended


async def test_a_ping_during_the_handshake_is_answered() -> None:
    """PING-001."""
    server = FakeTransport()
    session = session_over(server, ManualClock())
    async with anyio.create_task_group() as tasks:

        async def ping_first() -> None:
            await server.asked("initialize")
            server.ask("p", "ping")
            assert (await server.told("p"))["result"] == {}
            await shake_hands(server)

        tasks.start_soon(ping_first)
        assert await start(session) is None


# ------------------------------------------------------------------------------------------------ calls


async def test_a_call_gets_the_upstreams_answer_as_it_came() -> None:
    """I1."""
    async with conversation() as talk:
        ok, bad = await talk.call("ok"), await talk.call("bad")
        result, error = b'{"content":[],"n":1.10, "x":1E400}', b'{"code":7,"message":"\\u00e9","data":null}'
        talk.server.deliver(b'{"jsonrpc":"2.0","id":%d,"error":%s}' % (bad.id, error))
        talk.server.deliver(b'{"result":%s,"jsonrpc":"2.0","id":%d}' % (result, ok.id))
        await ended(ok)
        await ended(bad)
        assert (ok.outcome, bad.outcome) == (Result(result), Failure(error))
        assert sorted(talk.server.abandoned) == [ok.id, bad.id]


async def test_ids_are_ours_and_distinct() -> None:
    """BASE-004."""
    async with conversation() as talk:
        calls = [await talk.call("train") for _ in range(20)]
        ids = [m.id for m in talk.server.sent if m.id is not None]
        assert len(set(ids)) == len(ids) == 21
        assert all(type(i) is int for i in ids)
        for number, call in enumerate(reversed(calls)):
            assert await talk.answer(call, {"n": number}) == Result(dumps({"n": number}))


async def test_a_progress_token_is_sent_only_where_progress_is_wanted() -> None:
    """PROG-002: the client's own token stays here."""
    async with conversation() as talk:
        quiet, curious = await talk.call("quiet"), await talk.call("curious", want_progress=True)
        assert quiet.sent is not None
        assert curious.sent is not None
        assert "_meta" not in quiet.sent.body["params"]
        assert curious.sent.body["params"]["_meta"] == {"progressToken": curious.id}


async def test_an_abandoned_call_is_cancelled_upstream_with_our_id() -> None:
    """STDIO-007, CANC-006."""
    async with conversation() as talk:
        call, other = await talk.call("call"), await talk.call("other")
        call.hang_up()
        notice = await talk.server.asked(CANCELLED)
        assert notice.body["params"]["requestId"] == call.id
        assert talk.server.abandoned == [call.id]
        await talk.answer(other)
        assert len(talk.server.of(CANCELLED)) == 1


async def test_the_late_answer_of_an_abandoned_call_is_dropped() -> None:
    """CANC-003: also the error that Python servers send."""
    async with conversation() as talk:
        call, other = await talk.call("call"), await talk.call("other")
        call.hang_up()
        await ended(call)
        assert call.sent is not None
        talk.server.answer(call.sent, error={"code": 0, "message": "Request cancelled"})
        talk.server.answer(call.sent, {"late": True})
        assert call.outcome is None
        assert await talk.answer(other, {"n": 1}) == Result(b'{"n":1}')


@pytest.mark.parametrize("answered_first", [True, False])
async def test_an_answered_call_is_not_cancelled(answered_first: bool) -> None:
    """CANC-004: the client hung up before it could read the answer, or the answer came before we spoke."""
    async with conversation() as talk:
        call = await talk.call("call")
        assert call.sent is not None
        if answered_first:
            talk.server.answer(call.sent)
            call.hang_up()
        else:
            call.hang_up()
            talk.server.answer(call.sent)
        await ended(call)
        await settle()
        assert talk.server.of(CANCELLED) == []


async def test_a_lost_call_is_not_cancelled() -> None:
    """CANC-004."""
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.lose(call.id, UpstreamTimeout("no"))
        call.hang_up()
        await ended(call)
        await settle()
        assert talk.server.of(CANCELLED) == []


async def test_who_is_cancelled_already_sends_nothing() -> None:
    """CANC-004."""
    async with conversation() as talk:
        before = len(talk.server.sent)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await talk.session.call("tools/call", b'{"name":"x"}', Listener("x"), want_progress=False)
        await settle()
        assert len(talk.server.sent) == before
        assert talk.server.abandoned == []


async def test_a_call_abandoned_while_the_server_does_not_read_is_cancelled_all_the_same() -> None:
    """A part of it may be in the pipe, and then the rest follows."""
    async with conversation() as talk:
        talk.server.reads = anyio.Event()
        call = await talk.call("call")
        call.hang_up()
        talk.server.reads.set()
        assert (await talk.server.asked(CANCELLED)).body["params"]["requestId"] == call.id


async def test_answers_and_cancels_may_cross() -> None:
    """CANC-001, F05: nothing is left behind, whichever comes first."""
    async with conversation() as talk:
        for turn in range(100):
            call, bystander = await talk.call("call"), await talk.call("bystander")
            assert call.sent is not None
            steps = [lambda c=call: talk.server.answer(c.sent), call.hang_up]  # type: ignore[misc]
            for step in steps if turn % 2 else reversed(steps):
                step()
                for _ in range(turn // 2 % 5):
                    await anyio.lowlevel.checkpoint()
            await ended(call)
            await talk.answer(bystander)
        assert "0 pending" in repr(talk.session)


async def test_a_call_that_was_not_accepted_fails_with_the_reason() -> None:
    async with conversation() as talk:
        talk.server.refusal = UpstreamUnavailable("not a byte was written")
        with pytest.raises(UpstreamUnavailable, match="not a byte"):
            await talk.session.call("tools/call", b'{"name":"x"}', Listener("x"), want_progress=False)
        talk.server.refusal = None
        assert len(talk.server.abandoned) == 1
        assert talk.session.is_alive


async def test_params_that_cannot_be_translated_leave_nothing_behind() -> None:
    async with conversation() as talk:
        with pytest.raises(ValueError):
            params = b'{"name":"x","_meta":{},"_meta":{}}'
            await talk.session.call("tools/call", params, Listener("x"), want_progress=True)
        talk.server.ask("q", "elicitation/create", FORM)
        call = await talk.call("next")
        assert call.open == ["q"]


# ------------------------------------------------------------------------------------- requests of ours


async def test_our_own_requests_are_bounded_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """CANC-005."""
    monkeypatch.setattr(session_module, "ASK_TIMEOUT_S", 0.02)
    async with conversation() as talk:
        with pytest.raises(UpstreamTimeout, match="tools/list"):
            await talk.session.ask("tools/list", None)
        request, notice = await talk.server.asked("tools/list"), await talk.server.asked(CANCELLED)
        assert "params" not in request.body
        assert notice.body["params"]["requestId"] == request.id


async def test_our_own_requests_are_asked_nothing() -> None:
    async with conversation() as talk, anyio.create_task_group() as tasks:
        tasks.start_soon(talk.session.ask, "tools/list", None)
        listing = await talk.server.asked("tools/list")
        talk.server.notify("notifications/message", {"level": "info", "data": "x"})
        talk.server.ask("q", "elicitation/create", FORM)
        call = await talk.call("train")
        assert call.open == ["q"]
        talk.server.answer(listing, {"tools": []})


async def test_the_level_is_set_only_where_logging_was_declared() -> None:
    """BASE-026, LOG-004."""
    async with conversation() as talk:
        await talk.session.ensure_log_level("debug")
        assert talk.server.of("logging/setLevel") == []
    async with conversation(logging={}) as talk, anyio.create_task_group() as tasks:
        tasks.start_soon(talk.session.ensure_log_level, "debug")
        request = await talk.server.asked("logging/setLevel")
        assert request.body["params"] == {"level": "debug"}
        talk.server.answer(request)


async def test_a_resource_is_unsubscribed_when_its_last_listener_leaves() -> None:
    """SUB-008; nothing is sent to a session that has ended."""
    async with conversation() as talk, anyio.create_task_group() as tasks:
        for uri in ("file:///a", "file:///b"):
            tasks.start_soon(talk.session.watch_resource, uri)
        for nth in (1, 2):
            talk.server.answer(await talk.server.asked("resources/subscribe", nth))
        await settle()
        tasks.start_soon(talk.session.unwatch_resource, "file:///a")
        talk.server.answer(await talk.server.asked("resources/unsubscribe"))
        await settle()
        talk.server.lose((await talk.call("train")).id, SessionLost("404"))
        await talk.session.unwatch_resource("file:///b")
        assert len(talk.server.of("resources/unsubscribe")) == 1


async def test_the_catalogue_is_asked_for_again_when_the_list_has_changed() -> None:
    """F38."""
    async with conversation() as talk, anyio.create_task_group() as tasks:
        for nth in (1, 2):
            tasks.start_soon(talk.session.catalogue.mirrored, "train")
            talk.server.answer(await talk.server.asked("tools/list", nth), {"tools": []})
            await settle()
            assert await talk.session.catalogue.mirrored("train") == ()
            talk.server.notify("notifications/tools/list_changed")
        assert len(talk.server.of("tools/list")) == 2


# ---------------------------------------------------------------------------------------- lost sessions


async def test_one_lost_call_harms_no_other() -> None:
    async with conversation() as talk:
        lost, other = await talk.call("lost"), await talk.call("other")
        error = UpstreamClosed("the stream broke; the outcome is unknown")
        talk.server.lose(lost.id, error)
        await ended(lost)
        assert lost.error is error
        assert talk.session.is_alive
        assert await talk.answer(other) == Result(b"{}")


async def test_a_lost_connection_settles_every_call_at_once_with_the_cause() -> None:
    """F05, contract section 9; the clean-up of the process is not waited for."""
    async with conversation() as talk:
        talk.server.ends_when_closed = False
        calls = [await talk.call("train") for _ in range(50)]
        talk.server.lose_all(DIED)
        for call in calls:
            await ended(call)
            assert call.error is DIED
        assert not talk.server.ended
        assert talk.server.of(CANCELLED) == []


async def test_a_session_that_is_being_cleaned_up_takes_nothing_more() -> None:
    async with conversation(logging={}) as talk:
        talk.server.ends_when_closed = False
        talk.server.lose_all(DIED)
        await talk.session.wait_ended()
        before = len(talk.server.sent)
        assert not talk.session.is_alive
        assert talk.session.loss is DIED
        with pytest.raises(ServerGone, match=r"'fake' exited; the message was not sent$"):
            await talk.session.call("tools/call", b'{"name":"x"}', Listener("x"), want_progress=False)
        with pytest.raises(ServerGone):
            await talk.session.watch_resource("file:///a")
        await talk.session.ensure_log_level("debug")
        assert len(talk.server.sent) == before


async def test_what_comes_to_a_dead_server_waits_until_nobody_else_is_sent_there() -> None:
    """Its transport knows that it has died before it knows how, and says so a little later."""
    async with conversation() as talk:
        talk.server.refusal = ServerGone("upstream 'fake' is not running")
        fault: list[UpstreamError] = []

        async def call() -> None:
            try:
                await talk.session.call("tools/call", b'{"name":"x"}', Listener("x"), want_progress=False)
            except UpstreamError as exc:
                fault.append(exc)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await settle()
            assert fault == []
            talk.server.lose_all(DIED)
        assert not talk.session.is_alive
        assert [(type(one), one.message) for one in fault] == [
            (ServerGone, "upstream 'fake' exited; the message was not sent")
        ]


async def test_a_lost_session_takes_no_new_calls_but_those_in_flight_may_end_well() -> None:
    """HTTP-073: one POST was answered 404."""
    async with conversation() as talk:
        lost, other = await talk.call("lost"), await talk.call("other")
        talk.server.lose(lost.id, SessionLost("404"))
        await ended(lost)
        await talk.session.wait_ended()
        assert isinstance(lost.error, SessionLost)
        assert not talk.session.is_alive
        assert talk.session.loss is None
        assert await talk.answer(other, {"n": 1}) == Result(b'{"n":1}')


async def test_a_session_found_lost_by_a_courtesy_takes_no_new_calls() -> None:
    async with conversation() as talk:
        talk.server.refusal = SessionLost("404")
        talk.server.ask("p", "ping")
        with anyio.fail_after(5):
            await talk.session.wait_ended()
        talk.server.refusal = None


async def test_closing_ends_a_session_in_order() -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ends_when_closed = False
        talk.session.close()
        assert not talk.session.is_alive
        assert await talk.answer(call) == Result(b"{}")
        talk.session.close()
        assert talk.server.closed == 2


@pytest.mark.parametrize("how", ["cancelled", "crashed"])
async def test_a_session_always_settles_its_calls(how: str) -> None:
    """I6: also if a fault of ours is why it ends."""
    server = FakeTransport()
    session = session_over(server, ManualClock())
    client = Client("train")

    async def call() -> None:
        with pytest.raises(UpstreamClosed):
            await session.call("tools/call", b'{"name":"train"}', client, want_progress=False)
        client.done.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as callers:
            with suppress(ExceptionGroup):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(shake_hands, server)
                    await tasks.start(session.run)
                    callers.start_soon(call)
                    await server.asked("tools/call")
                    if how == "cancelled":
                        tasks.cancel_scope.cancel()
                    else:
                        server.crash(RuntimeError("ours"))
            await client.done.wait()
    assert server.ended


async def test_repr_tells_the_state() -> None:
    async with conversation() as talk:
        await talk.call("train")
        assert repr(talk.session) == "<Upstream 'fake' fake legacy READY, 1 pending>"
        talk.server.lose_all(DIED)
        await settle()
        assert repr(talk.session) == "<Upstream 'fake' fake legacy ENDED, 0 pending>"
