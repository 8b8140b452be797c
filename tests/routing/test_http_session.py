"""What goes where in one HTTP session: the server's messages to streams, the client's to the server.

Holds F02, F04, F05, F16, F24, F38, HTTP-061 to HTTP-067, PING-001, PING-002, CANC-001, CANC-006, PROG-001,
ELIC-005 and the contract's rule on which call a question belongs to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import pytest

from proxy.clock import Pulse
from proxy.limits import Gauge
from proxy.owners import ANONYMOUS
from proxy.protocol import names
from proxy.protocol.jsonrpc import Message, Request, RequestId
from proxy.routing.http_session import HttpSession
from tests.manual_clock import ManualClock
from tests.routing.session_bench import HttpClient, Response, SessionBench, session_bench, settle
from tests.upstream.fake_transport import FORM, until

pytestmark = pytest.mark.anyio

ASK: Final = names.ELICITATION_CREATE


def methods(response: Response) -> list[Any]:
    """What came on it: methods of requests and notifications, ids of answers."""
    return [message.get("method", message.get("id")) for message in response.messages]


async def heard(response: Response) -> list[Any]:
    """`methods`, once everything that is on its way has come."""
    await settle()
    return methods(response)


async def with_get(it: SessionBench, version: str = "2025-11-25", **how: Any) -> tuple[HttpClient, Response]:
    client = await it.client(**how).initialize(version)
    return client, await client.listen()


# -------------------------------------------------------------------------- what the server says


async def test_what_belongs_to_no_call_goes_to_the_get_stream() -> None:
    """F38, HTTP-065, HTTP-066."""
    async with session_bench() as it:
        client, get = await with_get(it)
        for method in (
            names.TOOLS_LIST_CHANGED,
            names.RESOURCES_UPDATED,
            names.LOG_MESSAGE,
            "notifications/x",
        ):
            it.server.notify(method, {"uri": "r:1", "level": "info", "data": 1})
        call = await client.call()
        it.server.notify(names.PROMPTS_LIST_CHANGED)
        await call.answer()
        assert await heard(get) == [
            names.TOOLS_LIST_CHANGED,
            names.RESOURCES_UPDATED,
            names.LOG_MESSAGE,
            "notifications/x",
            names.PROMPTS_LIST_CHANGED,
        ]
        assert methods(call.response) == [client.next_id]


async def test_messages_reach_the_client_as_the_very_bytes_that_the_server_sent() -> None:
    """I1."""
    async with session_bench() as it:
        client, get = await with_get(it)
        call = await client.call()
        note = b'{ "method" : "notifications/x","params":{"n":1E400, "n":-0,"u":"\\ud800"} , "jsonrpc":"2.0"}'
        it.server.deliver(note)
        await settle()
        assert note in get.body
        it.server.deliver(b'{"result": {"n":1.10 },  "id":%d ,"jsonrpc":"2.0"}' % call.sent.id)
        await call.response.ended()
        answer = b'{"result": {"n":1.10 },  "id":%d ,"jsonrpc":"2.0"}' % client.next_id
        assert answer in call.response.body


async def test_what_is_said_while_nobody_listens_waits_for_who_does() -> None:
    """F38: in its order, once."""
    async with session_bench() as it:
        client = await it.client().initialize()
        it.server.notify(names.TOOLS_LIST_CHANGED)
        it.server.notify(names.RESOURCES_LIST_CHANGED)
        first = await client.listen()
        assert methods(first) == [names.TOOLS_LIST_CHANGED, names.RESOURCES_LIST_CHANGED]
        first.hang_up()
        await settle()
        it.server.notify(names.PROMPTS_LIST_CHANGED)
        assert methods(await client.listen()) == [names.PROMPTS_LIST_CHANGED]


async def test_progress_goes_with_the_call_of_its_token_and_to_no_other() -> None:
    """F02, PROG-001: the token is the client's own, with its type."""
    async with session_bench() as it:
        client, get = await with_get(it, "2025-06-18")
        first = await client.call(_meta={"progressToken": "1"})
        second = await client.call(_meta={"progressToken": 1})
        for n, token in enumerate(["1", 1, "1"]):
            it.server.notify(names.PROGRESS, {"progressToken": token, "progress": n})
        await first.answer()
        await second.answer()
        told = [
            [m["params"]["progress"] for m in r.messages if "params" in m]
            for r in (first.response, second.response)
        ]
        assert told == [[0, 2], [1]]
        assert [type(m["params"]["progressToken"]) for m in second.response.messages[:-1]] == [int]
        assert await heard(get) == []


async def test_progress_of_nothing_in_flight_reaches_nobody() -> None:
    """F02, PROG-001: not of a call without a token, nor after the answer."""
    async with session_bench() as it:
        client, get = await with_get(it)
        call = await client.call(_meta={"progressToken": "t"})
        await call.answer()
        without = await client.call()
        for token in ("t", "other", 1, None, without.sent.id):
            it.server.notify(names.PROGRESS, {"progressToken": token, "progress": 1})
        await without.answer()
        assert methods(without.response) == [client.next_id]
        assert await heard(get) == []


async def test_progress_of_a_task_of_the_servers_own_goes_on_after_the_answer() -> None:
    """T25-PRG-001: its token lives as long as the task."""
    async with session_bench() as it:
        client, get = await with_get(it)
        call = await client.call(_meta={"progressToken": "t"})
        await call.answer({"task": {"taskId": "x"}})
        related = {names.META_RELATED_TASK: {"taskId": "x"}}
        it.server.notify(names.PROGRESS, {"progressToken": "t", "progress": 1, "_meta": related})
        assert await heard(get) == [names.PROGRESS]


async def test_a_log_line_belongs_to_the_call_that_is_alone() -> None:
    """Contract section 2."""
    async with session_bench() as it:
        client, get = await with_get(it)
        first = await client.call()
        it.server.notify(names.LOG_MESSAGE, {"level": "info", "data": "alone"})
        second = await client.call()
        it.server.notify(names.LOG_MESSAGE, {"level": "info", "data": "not alone"})
        await first.answer()
        await second.answer()
        assert [m["params"]["data"] for m in first.response.messages[:-1]] == ["alone"]
        assert methods(second.response) == [client.next_id]
        assert [m["params"]["data"] for m in get.messages] == ["not alone"]


# ------------------------------------------------------------------------------------ questions


async def test_a_question_goes_with_the_call_that_can_carry_it_and_its_answer_back_to_the_asker() -> None:
    """HTTP-061, HTTP-064, F16: by the id and type that the server gave."""
    async with session_bench() as it:
        client, get = await with_get(it, "2025-06-18")
        other = client.request("tools/list")
        call = await client.call()
        it.server.ask("0", ASK, FORM)
        it.server.ask(0, ASK, FORM)
        await until(lambda: call.response.body)
        assert methods(call.response) == [ASK, ASK]
        answered = [await client.post({"id": rid, "result": {"n": rid}}).ended() for rid in (0, "0")]
        assert [(r.status, r.body) for r in answered] == [(202, b""), (202, b"")]
        assert await it.server.told("0") == {"jsonrpc": "2.0", "id": "0", "result": {"n": "0"}}
        assert await it.server.told(0) == {"jsonrpc": "2.0", "id": 0, "result": {"n": 0}}
        assert await heard(get) == []
        assert other.status is None


@pytest.mark.parametrize("answer", [{"id": "u:zz"}, {"id": 1}, {"id": "q"}, {"id": "-1"}])
async def test_answers_to_what_was_never_asked_and_second_answers_are_accepted_and_ignored(
    answer: dict[str, Any],
) -> None:
    """F16."""
    async with session_bench() as it:
        client = await it.client().initialize()
        await client.call()
        it.server.ask("q", ASK, FORM)
        await client.post({"id": "q", "result": {}}).ended()
        await it.server.told("q")
        assert (await client.post({**answer, "result": {}}).ended()).status == 202
        assert (await client.post({**answer, "error": {"code": 1, "message": ""}}).ended()).status == 202
        await settle()
        assert len(it.server.answers_to("q")) == 1
        assert it.server.answers_to(answer["id"]) == it.server.answers_to(
            "q" if answer["id"] == "q" else None
        )


@pytest.mark.parametrize(("known", "asked"), [("confirm", "confirm"), ("other", "newest")])
async def test_with_several_calls_the_contracts_rule_decides(known: str, asked: str) -> None:
    """Contract section 2: a tool known to ask, else the newest that does not wait."""
    async with session_bench() as it:
        client = await it.client().initialize()
        calls = {tool: await client.call(tool) for tool in (known, "b", "newest")}
        it.server.ask("q", ASK, FORM)
        await settle()
        assert [tool for tool, call in calls.items() if methods(call.response)] == [asked]


async def test_a_question_never_goes_with_a_cancelled_call() -> None:
    """Contract section 2."""
    async with session_bench() as it:
        client = await it.client().initialize()
        stays, goes = await client.call(), await client.call()
        await client.post({"method": names.CANCELLED, "params": {"requestId": client.next_id}}).ended()
        await it.server.asked(names.CANCELLED)
        it.server.ask("q", ASK, FORM)
        await settle()
        assert ASK in methods(stays.response)
        assert ASK not in methods(goes.response)


async def test_a_question_without_a_call_goes_to_the_get_stream() -> None:
    async with session_bench() as it:
        _, get = await with_get(it)
        it.server.ask(1, names.ROOTS_LIST)
        assert await heard(get) == [names.ROOTS_LIST]


async def test_a_question_of_a_call_whose_client_takes_no_stream_goes_to_the_get_stream() -> None:
    async with session_bench() as it:
        client, get = await with_get(it)
        call = await client.but(accept="application/json").call()
        it.server.ask(1, ASK, FORM)
        assert await heard(get) == [ASK]
        await client.post({"id": 1, "result": {}}).ended()
        await call.answer()


async def test_a_question_of_a_call_whose_client_cannot_come_back_goes_to_the_get_stream() -> None:
    async with session_bench() as it:
        client, get = await with_get(it, "2025-06-18")
        call = await client.call()
        call.response.hang_up()
        await settle()
        it.server.ask(1, ASK, FORM)
        assert await heard(get) == [ASK]


async def test_a_question_is_withdrawn_where_it_was_asked() -> None:
    async with session_bench() as it:
        client, get = await with_get(it)
        first = await client.call()
        it.server.ask("a", ASK, FORM)
        await client.call()
        it.server.notify(names.CANCELLED, {"requestId": "a"})
        it.server.notify(names.CANCELLED, {"requestId": "never asked"})
        await settle()
        assert methods(first.response) == [ASK, names.CANCELLED]
        assert await heard(get) == [names.CANCELLED]


async def test_an_elicitation_that_is_complete_is_told_the_client_whose_it_is() -> None:
    """ELIC-005: each session has a server of its own."""
    async with session_bench() as it:
        _, others = await with_get(it)
        _, get = await with_get(it)
        it.server.notify(names.ELICITATION_COMPLETE, {"elicitationId": "e"})
        await settle()
        assert [m["params"] for m in get.messages] == [{"elicitationId": "e"}]
        assert others.messages == []


# ----------------------------------------------------------------------------------------- pings


async def test_a_ping_of_the_server_is_answered_by_us_also_with_no_client_there() -> None:
    """PING-001, F16: thirty of them, none of which anybody else sees."""
    async with session_bench() as it:
        client, get = await with_get(it)
        get.hang_up()
        await settle()
        for n in range(30):
            it.server.ask(n, names.PING)
            assert (await it.server.told(n))["result"] == {}
        assert methods(await client.listen()) == []


async def test_a_ping_of_the_client_is_the_servers_to_answer() -> None:
    """PING-002."""
    async with session_bench() as it:
        client = await it.client().initialize()
        response = client.request(names.PING)
        it.server.answer(await it.server.asked(names.PING))
        assert (await response.ended()).messages[0]["result"] == {}


# ---------------------------------------------------------------------------------- cancellation


async def test_a_cancellation_reaches_the_server_of_its_session_with_its_id_there_and_ends_the_post() -> None:
    """F04, F05, CANC-006."""
    async with session_bench() as it:
        a = await it.client().initialize("2025-06-18")
        b = await it.client().initialize("2025-06-18")
        server_a, server_b = it.servers
        slow = a.request(names.TOOLS_CALL, {"name": "slow"}, id=101)
        sent = await server_a.asked(names.TOOLS_CALL)
        fast = await b.call("fast", id=101)
        response = await a.post(
            {"method": names.CANCELLED, "params": {"requestId": 101, "reason": "enough"}}
        ).ended()
        assert (response.status, response.body) == (202, b"")
        told = await server_a.asked(names.CANCELLED)
        assert told.body["params"] == {"requestId": sent.id, "reason": "enough"}
        assert server_b.of(names.CANCELLED) == []
        await slow.ended()
        assert slow.messages[0]["error"]["message"] == "Request cancelled"
        assert (await fast.answer({"n": 1})).messages[0]["result"] == {"n": 1}


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_late_answer_to_a_cancelled_call_is_dropped(version: str) -> None:
    """F04, CANC-001."""
    async with session_bench() as it:
        client, get = await with_get(it, version)
        call = await client.call()
        await client.post({"method": names.CANCELLED, "params": {"requestId": client.next_id}}).ended()
        await call.response.ended()
        it.server.answer(call.sent, {"late": True})
        await settle()
        assert [m.get("result") for m in call.response.messages] == [None]
        assert await heard(get) == []


async def test_a_cancellation_that_comes_after_the_answer_changes_nothing() -> None:
    """CANC-001."""
    async with session_bench() as it:
        client = await it.client().initialize()
        call = await client.call()
        await call.answer({"n": 1})
        await client.post({"method": names.CANCELLED, "params": {"requestId": client.next_id}}).ended()
        await settle()
        assert it.server.of(names.CANCELLED) == []
        assert methods(call.response) == [client.next_id]


@pytest.mark.parametrize("params", [None, {}, {"requestId": None}, {"requestId": "7"}, [], "x"])
async def test_a_cancellation_of_nothing_is_accepted_and_ignored(params: Any) -> None:
    """F04, CANC-002."""
    async with session_bench() as it:
        client = await it.client().initialize()
        call = await client.call(id=7)
        body = {"method": names.CANCELLED, **({} if params is None else {"params": params})}
        assert (await client.post(body).ended()).status == 202
        assert methods(await call.answer()) == [7]
        assert it.server.of(names.CANCELLED) == []


async def test_initialize_is_never_cancelled() -> None:
    """F04, VER-017."""
    async with session_bench() as it:
        client = await it.client().initialize()
        again = client.request(names.INITIALIZE, {}, id="i")
        sent = await it.server.asked(names.INITIALIZE, 2)
        await client.post({"method": names.CANCELLED, "params": {"requestId": "i"}}).ended()
        it.server.answer(sent, {"protocolVersion": "2025-11-25", "capabilities": {}})
        assert "result" in (await again.ended()).messages[0]


# ----------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("seen", [0, 1, 2, 3, 4])
async def test_a_client_that_lost_its_stream_gets_the_rest_of_it_the_answer_included(seen: int) -> None:
    """F24: three progress messages and the result; before any of them, after some, after all were written."""
    async with session_bench() as it:
        client = await it.client().initialize()
        call = await client.call(_meta={"progressToken": "t"})
        for n in (1, 2, 3):
            it.server.notify(names.PROGRESS, {"progressToken": "t", "progress": n})
        await until(lambda: call.response.body and len(call.response.messages) == 3)
        if seen == 4:
            await call.answer()
        else:
            call.response.hang_up()
            await settle()
            it.server.answer(call.sent, {"n": 1})
        again = client.get(call.response.events[seen].id)
        await again.ended()
        got = [m["params"]["progress"] if "params" in m else "answer" for m in again.messages]
        assert got == [1, 2, 3, "answer"][seen:]


async def test_a_client_can_come_back_while_the_call_goes_on() -> None:
    """F24."""
    async with session_bench() as it:
        client = await it.client().initialize()
        call = await client.call(_meta={"progressToken": "t"})
        call.response.hang_up()
        await settle()
        assert it.server.of(names.CANCELLED) == []
        again = client.get(call.response.last_id)
        it.server.notify(names.PROGRESS, {"progressToken": "t", "progress": 1})
        it.server.ask("q", ASK, FORM)
        await until(lambda: again.body and len(again.messages) == 2)
        it.server.answer(call.sent)
        await again.ended()
        assert await heard(again) == [names.PROGRESS, ASK, client.next_id]


async def test_of_two_clients_that_come_back_at_once_the_newer_gets_it_all() -> None:
    """F24."""
    async with session_bench() as it:
        client = await it.client().initialize()
        call = await client.call()
        call.response.hang_up()
        older, newer = client.get(call.response.last_id), client.get(call.response.last_id)
        await older.ended()
        it.server.answer(call.sent)
        await newer.ended()
        assert [methods(older), methods(newer)] == [[], [client.next_id]]


async def test_an_older_get_stream_ends_when_a_newer_one_comes() -> None:
    async with session_bench() as it:
        client, older = await with_get(it)
        newer = await client.listen()
        await older.ended()
        it.server.notify(names.TOOLS_LIST_CHANGED)
        assert await heard(newer) == [names.TOOLS_LIST_CHANGED]


async def test_a_get_stream_is_resumed_where_it_was_lost() -> None:
    async with session_bench() as it:
        client, get = await with_get(it)
        it.server.notify(names.TOOLS_LIST_CHANGED)
        it.server.notify(names.PROMPTS_LIST_CHANGED)
        await settle()
        get.hang_up()
        again = client.get(get.events[1].id)
        await until(lambda: again.body and again.messages)
        assert await heard(again) == [names.PROMPTS_LIST_CHANGED]


@pytest.mark.parametrize("event_id", ["garbage", "0", "../..", "a-0-1", "{other}", "{future}"])
async def test_unknown_and_foreign_event_ids_give_nothing_and_are_no_500(event_id: str) -> None:
    """F24, HTTP-067."""
    async with session_bench() as it:
        client, get = await with_get(it)
        await with_get(it)
        other = await it.client().initialize()
        call = await other.call()
        await call.answer({"secret": 1})
        future = get.last_id[:-1] + "99"
        refused = await client.get(event_id.format(other=call.response.last_id, future=future)).refused()
        assert refused[:2] == (400, -32600)


async def test_a_plain_answer_that_nobody_was_given_an_id_of_is_not_kept() -> None:
    async with session_bench() as it:
        client = await it.client().initialize("2025-06-18")
        for _ in range(50):
            await (await client.call()).answer()
        call = await client.call()
        call.response.hang_up()
        await settle()
        it.server.answer(call.sent)
        [session] = list(it.layer._sessions)
        assert repr(session._streams) == "<Streams 1, 0 open>"


# ------------------------------------------------------------------- tasks, whose server goes on


@dataclass(eq=False)
class Serving:
    """What stands between a session and its server, as a script. `runs_tasks`: until the test says else."""

    runs_tasks: bool = False
    changes: int = 0
    closed: list[bool] = field(default_factory=list)
    ended: anyio.Event = field(default_factory=anyio.Event)

    async def run(self) -> None:
        await self.ended.wait()

    async def close(self, *, after_tasks: bool = False) -> None:
        self.closed.append(after_tasks)
        if not (after_tasks and self.runs_tasks):
            self.ended.set()
        await self.ended.wait()

    def from_client(self, message: Message, raw: bytes) -> None:
        """Nothing is answered."""

    def keeps(self, request: Request) -> bool:
        return False

    def channels_changed(self) -> None:
        self.changes += 1


@asynccontextmanager
async def live(serving: Serving) -> AsyncIterator[HttpSession]:
    places = Gauge("calls", 10, "limits.calls")
    session = HttpSession(
        "id", ANONYMOUS, lambda owner, client: serving, ManualClock(), Pulse(), places, places
    )
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.run)
            yield session
            session.end("the test is over", at_once=True)


@pytest.mark.parametrize("hurried", [True, False])
async def test_the_server_outlives_its_session_until_the_tasks_have_ended_or_the_proxy_does(
    hurried: bool,
) -> None:
    """Contract section 5: a DELETE is answered at once; tasks go on."""
    serving = Serving(runs_tasks=True)
    async with live(serving) as session:
        assert session.idle_since is None
        session.end("deleted")
        await settle()
        assert serving.closed == [True]
        assert not serving.ended.is_set()
        if hurried:
            session.end("shutting down", at_once=True)
        else:
            serving.ended.set()
        await serving.ended.wait()


async def test_ways_to_the_client_open_and_close_with_their_readers() -> None:
    """Questions of tasks are offered on another stream when one breaks."""
    serving = Serving()
    async with live(serving) as session:
        listening = session.channel(None)
        assert listening is not None
        assert not listening.is_open
        reader = session.listening.attach()
        assert listening.is_open
        call = Request(RequestId(b"1", 1), names.TASKS_RESULT, None)
        before = serving.changes
        post = session.take([(call, b"{}")], takes_stream=True, is_batch=False)
        assert post is not None
        stream = session.channel(call.id)
        assert stream is not None
        assert stream.is_open
        assert serving.changes > before
        stream.send(b"{}")
        reader.leave()
        session.leave(post)
        assert (listening.is_open, stream.is_open) == (False, False)
        assert session.channel(call.id) is None
        assert serving.changes == before + 3


async def test_there_is_no_way_to_a_client_that_takes_no_stream_or_has_no_such_request() -> None:
    async with live(Serving()) as session:
        call = Request(RequestId(b"1", 1), names.TASKS_RESULT, None)
        assert session.channel(call.id) is None
        session.take([(call, b"{}")], takes_stream=False, is_batch=False)
        assert session.channel(call.id) is None


async def test_a_session_whose_server_breaks_in_our_hands_is_over_and_its_client_is_told() -> None:
    class Broken(Serving):
        async def run(self) -> None:
            await self.ended.wait()
            raise RuntimeError("a bug")

    serving = Broken()
    async with live(serving) as session:
        call = Request(RequestId(b"1", 1), names.TOOLS_CALL, None)
        post = session.take([(call, b"{}")], takes_stream=True, is_batch=False)
        serving.ended.set()
        await settle()
        assert session.is_over
        assert post is not None
        assert b"-32603" in post.stream.messages[-1]
