"""What a server sends, of its own accord or broken: who gets it, and that nothing of it does harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy.errors import UpstreamProtocolError
from proxy.upstream.base import Failure, Result
from proxy.upstream.inbox import Inbox
from proxy.upstream.pending import AskingTools, PendingTable
from proxy.upstream.questions import Questions
from tests.manual_clock import ManualClock
from tests.upstream.fake_transport import (
    FORM,
    MAX_DEPTH,
    Listener,
    capabilities,
    conversation,
    ended,
    settle,
)

pytestmark = pytest.mark.anyio

LOG = "notifications/message"
PROGRESS = "notifications/progress"
LINE = {"level": "info", "data": "x"}


# ------------------------------------------------------------------------------------------------ pings


@pytest.mark.parametrize("rid", [0, 1, "0", "p", -7, 9007199254740993])
async def test_a_ping_is_answered_at_once_with_its_own_id(rid: Any) -> None:
    """PING-001: also with no call in flight and no client there."""
    async with conversation(declared={}) as talk:
        talk.server.ask(rid, "ping")
        assert await talk.server.told(rid) == {"jsonrpc": "2.0", "id": rid, "result": {}}


async def test_pings_are_nobodys_questions() -> None:
    """PING-001, F16: thirty of them during a call that waits."""
    async with conversation() as talk:
        call = await talk.call("train")
        for n in range(30):
            talk.server.ask(n, "ping", {"_meta": {}}, on=call.id)
        await talk.server.told(29)
        assert call.questions == []
        assert call.notes == []


# --------------------------------------------------------------------------------------------- progress


async def test_progress_goes_to_the_call_of_its_token() -> None:
    """PROG-002."""
    async with conversation() as talk:
        first = await talk.call("first", want_progress=True)
        second = await talk.call("second", want_progress=True)
        talk.server.notify(PROGRESS, {"progressToken": second.id, "progress": 1, "message": "b"})
        talk.server.notify(PROGRESS, {"progressToken": str(first.id), "progress": 1, "total": 3})
        assert [params["progress"] for _, params in first.notes] == [1]
        assert [params["message"] for _, params in second.notes] == ["b"]


async def test_falling_and_late_progress_is_dropped() -> None:
    """PROG-003: also what comes in one read with the answer."""
    async with conversation() as talk:
        call = await talk.call("train", want_progress=True)
        for value in (1, 3, 2, 3, 3.5):
            talk.server.notify(PROGRESS, {"progressToken": call.id, "progress": value})
        assert call.sent is not None
        talk.server.answer(call.sent)
        talk.server.notify(PROGRESS, {"progressToken": call.id, "progress": 9})
        await ended(call)
        assert [params["progress"] for _, params in call.notes] == [1, 3, 3.5]


@pytest.mark.parametrize(
    "params",
    [
        None,
        [],
        {},
        {"progressToken": 99, "progress": 1},
        {"progressToken": None, "progress": 1},
        {"progressToken": 2},
        {"progressToken": 2, "progress": "1"},
        {"progressToken": 2, "progress": None},
        {"progressToken": {"a": 2}, "progress": 1},
    ],
)
async def test_progress_of_nothing_is_ignored(params: Any) -> None:
    async with conversation() as talk:
        call = await talk.call("train", want_progress=True)
        assert call.id == 2
        talk.server.notify(PROGRESS, params)
        assert call.notes == []


# ----------------------------------------------------------------------------------- logs and the others


async def test_a_log_line_goes_to_the_call_that_is_alone_in_flight() -> None:
    """LOG-002; so does a notification that nobody knows (F18)."""
    async with conversation() as talk:
        call = await talk.call("train")
        talk.server.notify(LOG, LINE)
        talk.server.notify("notifications/invented", {"a": 1})
        assert call.notes == [(LOG, LINE), ("notifications/invented", {"a": 1})]


async def test_a_log_line_with_several_in_flight_goes_to_nobody() -> None:
    """LOG-002."""
    async with conversation() as talk:
        calls = [await talk.call("train"), await talk.call("", method="completion/complete")]
        talk.server.notify(LOG, LINE)
        assert [c.notes for c in calls] == [[], []]


async def test_a_log_line_on_the_stream_of_a_call_is_that_calls() -> None:
    """LOG-002."""
    async with conversation() as talk:
        first, second = await talk.call("first"), await talk.call("second")
        talk.server.notify(LOG, LINE, on=first.id)
        assert first.notes == [(LOG, LINE)]
        assert second.notes == []


async def test_a_log_line_on_the_stream_of_a_call_that_has_ended_goes_to_nobody() -> None:
    """LOG-002: the other call is alone, but the line is not its own."""
    async with conversation() as talk:
        first, second = await talk.call("first"), await talk.call("second")
        await talk.answer(first)
        talk.server.notify(LOG, LINE, on=first.id)
        assert (first.notes, second.notes) == ([], [])


async def test_a_call_that_was_answered_no_longer_counts_as_in_flight() -> None:
    async with conversation() as talk:
        first, second = await talk.call("first"), await talk.call("second")
        assert first.sent is not None
        talk.server.answer(first.sent)
        talk.server.notify(LOG, LINE)
        assert (first.notes, second.notes) == ([], [(LOG, LINE)])


async def test_completed_elicitations_are_ours_alone_to_know() -> None:
    """ELIC-004."""
    async with conversation() as talk:
        call = await talk.call("train")
        talk.server.notify("notifications/elicitation/complete", {"elicitationId": "e"}, on=call.id)
        assert call.notes == []


@pytest.mark.parametrize("params", [None, {"a": 1}])
@pytest.mark.parametrize("kind", ["tools/list_changed", "prompts/list_changed", "resources/list_changed"])
async def test_list_changes_are_told_to_whoever_listens_and_to_no_call(kind: str, params: Any) -> None:
    """F38; on whatever stream they come."""
    async with conversation() as talk:
        call = await talk.call("train")
        talk.server.notify(f"notifications/{kind}", params)
        talk.server.notify(f"notifications/{kind}", params, on=call.id)
        told = None if params is None else json.dumps(params, separators=(",", ":")).encode()
        assert talk.changes == [(f"notifications/{kind}", told)] * 2
        assert call.notes == []


async def test_params_that_are_no_object_are_none() -> None:
    """F19: what is told on is well-formed."""
    async with conversation() as talk:
        for raw in (b"null", b"[1]", b'"x"'):
            talk.server.deliver(
                b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":' + raw + b"}"
            )
        assert [params for _, params in talk.changes] == [None, None, None]


# --------------------------------------------------------------------------------------- odd responses


async def test_digits_are_taken_for_our_id() -> None:
    """F17."""
    async with conversation() as talk:
        call = await talk.call("train")
        talk.server.deliver({"jsonrpc": "2.0", "id": str(call.id), "result": {"n": 1}})
        await ended(call)
        assert call.outcome == Result(b'{"n":1}')


async def test_an_error_without_id_is_the_answer_where_the_stream_says_whose() -> None:
    async with conversation() as talk:
        call, other = await talk.call("train"), await talk.call("other")
        error = {"code": -32700, "message": "Parse error"}
        talk.server.deliver({"jsonrpc": "2.0", "id": None, "error": error})
        talk.server.deliver({"jsonrpc": "2.0", "error": error}, on=call.id)
        await ended(call)
        assert isinstance(call.outcome, Failure)
        assert json.loads(call.outcome.error) == error
        assert not other.done.is_set()


@pytest.mark.parametrize("rid", [77, "server-error", "", "02"])
async def test_answers_to_nothing_are_dropped(rid: Any) -> None:
    """Also on the stream of a call: it is not the answer to that one."""
    async with conversation() as talk:
        call = await talk.call("train")
        talk.server.deliver({"jsonrpc": "2.0", "id": rid, "result": {}}, on=call.id)
        talk.server.deliver({"jsonrpc": "2.0", "id": rid, "error": {"code": 1, "message": ""}})
        await settle()
        assert not call.done.is_set()


@pytest.mark.parametrize(
    "members",
    [
        {"result": {}, "error": {"code": 1, "message": ""}},
        {"error": "broken"},
        {},
        {"jsonrpc": "1.0", "result": {}},
    ],
)
async def test_a_broken_response_ends_its_call(members: dict[str, Any]) -> None:
    """It would otherwise hang until its limit (I6)."""
    async with conversation() as talk:
        call, other = await talk.call("train"), await talk.call("other")
        talk.server.deliver({"jsonrpc": "2.0", "id": call.id, **members})
        await ended(call)
        assert isinstance(call.error, UpstreamProtocolError)
        assert not other.done.is_set()


async def test_a_broken_request_of_the_server_ends_no_call_of_ours() -> None:
    """Its ids are its own, and as small as ours."""
    async with conversation() as talk:
        call = await talk.call("train")
        talk.server.deliver({"jsonrpc": "1.0", "id": call.id, "method": "ping"})
        talk.server.deliver({"id": call.id, "method": "ping", "result": {}}, on=call.id)
        await settle()
        assert not call.done.is_set()


# ------------------------------------------------------------------------------------ batches and noise


async def test_an_array_is_taken_apart() -> None:
    """F20."""
    async with conversation() as talk:
        first, second = await talk.call("first"), await talk.call("second")
        talk.server.deliver(
            [
                {"jsonrpc": "2.0", "id": first.id, "result": {"n": 1}},
                "junk",
                {"jsonrpc": "2.0", "id": "p", "method": "ping"},
                {"jsonrpc": "2.0", "id": second.id, "result": {"n": 2}},
            ]
        )
        await ended(first)
        await ended(second)
        assert (first.outcome, second.outcome) == (Result(b'{"n":1}'), Result(b'{"n":2}'))
        assert (await talk.server.told("p"))["result"] == {}


async def test_an_array_in_an_array_is_noise() -> None:
    """However deep: it costs no stack."""
    async with conversation() as talk:
        call = await talk.call("train")
        answer = b'{"jsonrpc":"2.0","id":%d,"result":{}}' % call.id
        depth = MAX_DEPTH - 2
        with capture_logs() as logs:
            talk.server.deliver(b"[" * depth + answer + b"]" * depth)
        assert [entry["event"] for entry in logs] == ["upstream_noise_skipped"]
        await settle()
        assert not call.done.is_set()


@pytest.mark.parametrize(
    "noise",
    [
        *(b"123", b'"str"', b"null", b"[]", b"{}", b'{"jsonrpc":"2.0"}', b"[[]]", b""),
        *(b"Content-Length: 50", b"{", b'{"a":', b"\xff\xfe", b"{}{}"),
        b'{"level":"info","message":"listening"}',
        b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
        b"[" * 200 + b"]" * 200,
    ],
)
async def test_noise_is_logged_and_skipped(noise: bytes) -> None:
    """F34."""
    async with conversation() as talk:
        call = await talk.call("train")
        with capture_logs() as logs:
            talk.server.deliver(noise)
        assert [(e["event"], e["upstream"], e["count"]) for e in logs] == [
            ("upstream_noise_skipped", "fake", 1)
        ]
        assert await talk.answer(call) == Result(b"{}")


async def test_a_noisy_server_does_not_fill_the_log() -> None:
    """F34: bounded."""
    async with conversation() as talk:
        with capture_logs() as logs:
            for _ in range(10_000):
                talk.server.deliver(b"{}")
        assert [e["count"] for e in logs] == [1, 2, 3, 4, 5, 10, 100, 1_000, 10_000]


IDS = st.sampled_from([b"1", b"2", b'"1"', b'"q"', b"0", b"-1", b"1.5", b"null", b"[]", b'"\\ud800"'])
METHODS = st.sampled_from(
    [
        b'"ping"',
        b'"elicitation/create"',
        b'"roots/list"',
        b'"sampling/createMessage"',
        b'"notifications/cancelled"',
        b'"notifications/progress"',
        b'"notifications/message"',
        b'"notifications/tools/list_changed"',
        b'"\\u0000"',
        b"7",
    ]
)
VALUES = st.sampled_from(
    [
        b"null",
        b"{}",
        b"[]",
        b"1e999",
        b"9" * 5_000,
        b'{"code":"x"}',
        b'{"requestId":"q","requestId":"q"}',
        b'{"requestId":"q"}',
        b'{"progressToken":1,"progress":1,"progress":2}',
        b'{"progressToken":1,"progress":' + b"9" * 5_000 + b"}",
        b'{"progressToken":"1","progress":"1"}',
        b'{"elicitationId":1,"mode":"url","mode":"form"}',
        json.dumps(FORM).encode(),
    ]
)
MEMBERS = st.one_of(
    st.tuples(st.just(b"jsonrpc"), st.sampled_from([b'"2.0"', b"2", b'"1.0"'])),
    st.tuples(st.just(b"id"), IDS),
    st.tuples(st.just(b"method"), METHODS),
    st.tuples(st.sampled_from([b"params", b"result", b"error"]), VALUES),
)


class Deaf(Listener):
    """Numbers that Python will not read are nothing to it."""

    def on_notification(self, method: str, params: bytes | None) -> None:
        pass


ORDINARY = st.just((b"jsonrpc", b'"2.0"'))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(ORDINARY, st.lists(MEMBERS, max_size=5)), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from([None, 1, 2, 99]),
)
def test_nothing_that_a_server_sends_makes_the_reader_raise(
    messages: list[tuple[tuple[bytes, bytes], list[tuple[bytes, bytes]]]], batch: bool, on: int | None
) -> None:
    """A reader loop that raises takes the session with it, and every call on it."""
    table, posted = PendingTable(), list[bytes]()

    async def never_sent(message: bytes) -> None:
        raise AssertionError("nobody answers here")

    questions = Questions(
        table,
        AskingTools(lambda tool: False),
        capabilities({"elicitation": {}}),
        ManualClock(),
        send=never_sent,
        post=posted.append,
    )
    inbox = Inbox(
        table,
        questions,
        name="fake",
        max_depth=MAX_DEPTH,
        post=posted.append,
        on_change=lambda method, params: None,
    )
    call = table.add("tools/call", "train", Deaf("train"))
    texts = [b"{" + b",".join(b'"%s":%s' % m for m in (first, *rest)) + b"}" for first, rest in messages]
    with capture_logs():
        for text in [b"[" + b",".join(texts) + b"]"] if batch else texts:
            inbox.take(text, on)
    table.remove(call)
    questions.end(call)
    for answer in posted:
        json.loads(answer)
