"""2025 tasks over sessions that are the HTTP server's own: ours are taken out, the rest passes.

Contract sections 5 and 6; MCP 2025-11-25, "Tasks"; Transports 2025-11-25, "Streamable HTTP".
"""

from __future__ import annotations

import json
from typing import Any, Final

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.eras.tasks_2025 import VERSION
from proxy.errors import SessionLost, UpstreamUnavailable
from proxy.owners import ANONYMOUS
from proxy.protocol import names, sse
from proxy.routing.http_tasks import GIVE_WAY_S, GIVE_WAY_TRIES
from proxy.routing.passed_session import MAX_OWNERS
from proxy.tasks.task import is_task_id
from tests.routing.bench import ADA, BOB
from tests.routing.bench_2025 import RELATED, YES
from tests.routing.fake_forwarder import EVENTS, JSON
from tests.routing.fake_server import TEXT
from tests.routing.http_bench_2025 import SESSION, HttpBench2025, HttpClient2025, http_bench_2025
from tests.routing.session_bench import Response
from tests.upstream.fake_transport import until

pytestmark = pytest.mark.anyio

FULL: Final[dict[str, Any]] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
OLD: Final = "2025-06-18"
CALL: Final = {"id": 7, "method": "tools/call", "params": {"name": "fast"}}
RESULT: Final = b'{"jsonrpc":"2.0","id":7,"result":{}}'
QUESTION: Final[dict[str, Any]] = {
    "jsonrpc": "2.0",
    "id": "q",
    "method": "elicitation/create",
    "params": {"message": "Go on?", "requestedSchema": {}},
}


def event(message: Any) -> bytes:
    return sse.encode(json.dumps(message).encode())


def asked_in(response: Response) -> list[Any]:
    """The ids of the questions on it."""
    return [message["id"] for message in response.messages if "id" in message]


async def told(response: Response) -> dict[str, Any]:
    """The one message of a response that has ended."""
    [message] = (await response.ended()).messages
    return message


# -- initialize and tools/list ------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_initialize_gains_the_capability_and_nothing_else(stream: bool) -> None:
    """T25-CAP-001, T25-CAP-002, I1: as JSON and on an event stream; the session id is the server's."""
    async with http_bench_2025() as bench:
        client = bench.client(session_id=None, version=None)
        raw = b'{"protocolVersion" : "2025-11-25","capabilities":{"tools":{}},"serverInfo":{"n":1.10}}'
        answer = b'{ "jsonrpc":"2.0", "id":"i","result":' + raw + b', "x":1}'
        kind, body = (EVENTS, b": hi\n\n" + sse.encode(answer, event_id="e1")) if stream else (JSON, answer)
        headers = [*kind, ("Mcp-Session-Id", SESSION), ("X-Other", "1"), ("content-length", str(len(body)))]
        bench.upstream.will(200, headers, body)
        response = await client.request(names.INITIALIZE, {"protocolVersion": VERSION}, id="i").ended()
        assert (response.status, response.headers["mcp-session-id"]) == (200, SESSION)
        assert response.headers["x-other"] == "1"
        told = answer.replace(b"{}", b'{},"tasks":' + json.dumps(FULL, separators=(",", ":")).encode(), 1)
        if stream:
            assert response.body == b": hi\n\n" + sse.encode(told, event_id="e1")
            assert "content-length" not in response.headers
        else:
            assert response.body == told
            assert response.headers["content-length"] == str(len(told))


async def test_an_anonymous_client_is_offered_no_list() -> None:
    """T25-LST-006: also on loopback."""
    async with http_bench_2025() as bench:
        client = bench.client(ANONYMOUS)
        capabilities = (await client.initialize())["capabilities"]
        assert "list" not in capabilities["tasks"]
        assert (await told(client.request(names.TASKS_LIST)))["error"]["code"] == -32601


@pytest.mark.parametrize("asked", ["2025-06-18", "2025-03-26", None])
async def test_clients_of_other_versions_are_passed_through(asked: str | None) -> None:
    """T25-CAP-004, VER-022: byte by byte, and so is all that comes after it, a `task` and methods of tasks
    included: the server knows best that it does not know them."""
    async with http_bench_2025() as bench:
        client = bench.client(session_id=None, version=None)
        result = b'{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}'
        said = b'{"jsonrpc":"2.0","id":"i","result":' + result + b"}"
        bench.upstream.will(200, [*JSON, ("Mcp-Session-Id", SESSION)], said)
        params = {} if asked is None else {"protocolVersion": asked}
        assert (await client.request(names.INITIALIZE, params, id="i").ended()).body == said
        client.session_id, client.version = SESSION, OLD
        bench.upstream.will(200, JSON, RESULT)
        call = {**CALL, "params": {"name": "fast", "task": {}}}
        assert (await client.post(call).ended()).body == RESULT
        assert bench.passed[-1][1]["params"] == {"name": "fast", "task": {}}
        for method in (names.TOOLS_LIST, names.TASKS_GET, names.TASKS_LIST):
            bench.upstream.will(200, JSON, RESULT)
            assert (await client.request(method, {"taskId": "t"}).ended()).body == RESULT
            assert bench.passed[-1][1]["method"] == method


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, JSON, b'{"jsonrpc":"2.0","id":"i","error":{"code":-32602,"message":"no"}}'),
        (200, JSON, b'{"jsonrpc":"2.0","id":"other","result":{"protocolVersion":"2025-11-25"}}'),
        (200, JSON, b"no json"),
        (200, [("Content-Type", "text/html")], b"<h1>"),
        (200, [*JSON, ("Content-Encoding", "br")], b"\x01"),
        (401, [*JSON, ("WWW-Authenticate", "Bearer")], b"{}"),
        (400, JSON, b"{}"),
        (202, [], b""),
    ],
)
async def test_what_is_no_result_of_initialize_passes_as_it_is(
    status: int, headers: Any, body: bytes
) -> None:
    async with http_bench_2025() as bench:
        client = bench.client(session_id=None, version=None)
        bench.upstream.will(status, headers, body)
        response = await client.request(names.INITIALIZE, {"protocolVersion": VERSION}, id="i").ended()
        assert (response.status, response.body) == (status, body)
        assert set(response.headers) >= {key.lower() for key, _ in headers}


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_session_that_was_granted_no_tasks_has_none(restarted: bool) -> None:
    """T25-CAP-002, T25-CAP-004: before a server without tools, though the client's version knows of tasks."""
    async with http_bench_2025() as bench:
        client = bench.client(session_id=None)
        said = b'{"jsonrpc":"2.0","id":"i","result":{"protocolVersion":"2025-11-25","capabilities":{}}}'
        bench.upstream.will(200, [*JSON, ("Mcp-Session-Id", SESSION)], said)
        assert (
            await client.request(names.INITIALIZE, {"protocolVersion": VERSION}, id="i").ended()
        ).body == said
        client.session_id = SESSION
        if restarted:
            bench.start_over()
        refusal = b'{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"Method not found"}}'
        for method in (names.TASKS_LIST, *sorted(names.TASK_METHODS_2025), names.TOOLS_CALL):
            bench.upstream.will(200, JSON, refusal)
            response = client.request(method, {"taskId": "tpx-" + "a" * 32, "name": "a", "task": {}}, id=7)
            assert (await response.ended()).body == refusal
            assert bench.methods[-1] == method
        bench.upstream.will(204, [])
        assert (await client.delete().ended()).status == 204
        assert await bench.memory.remembered("") == []


async def test_a_header_that_names_another_tool_means_nothing_in_a_session_of_2025() -> None:
    """HTTP-029: the versions before 2026-07-28 have no such header; which tool it is, the body says."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        client.mirrored_name = "slow"
        answer = await told(client.request(names.TOOLS_CALL, {"name": "never_b", "task": {}}))
        assert answer["error"]["code"] == -32601
        client.mirrored_name = "never_b"
        await client.call("slow")


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_show_that_they_run_as_tasks(stream: bool) -> None:
    """T25-TOOL-001: what we cannot read for its compression is not asked for compressed."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        bench.will_answer({"tools": [{"name": "a"}, {"name": "never_b"}]}, id=9, stream=stream)
        message = await told(client.request(names.TOOLS_LIST, id=9))
        marks = [tool["execution"]["taskSupport"] for tool in message["result"]["tools"]]
        assert marks == ["optional", "forbidden"]


# -- a task -------------------------------------------------------------------------------------------


async def test_a_task_runs_on_the_clients_own_session_with_its_credentials() -> None:
    """T25-NEW-001, T25-NEW-008, T25-RES-004: nothing of it is passed on."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        task, call = await client.call()
        assert is_task_id(task)
        assert call.params.keys() == {"name", "_meta"}
        [(session, headers)] = bench.adoptions
        assert session == SESSION
        assert headers()["authorization"] == "Bearer t"
        call.answer()
        await bench.settle()
        assert (await client.read(task))["status"] == "completed"
        message = await told(client.result(task))
        assert message["result"] == {**TEXT, "_meta": {RELATED: {"taskId": task}}}
        assert bench.methods == [names.INITIALIZE]


async def test_a_plain_call_of_the_same_tool_passes_beside_it() -> None:
    """T25-TOOL-003."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        await client.call("fast")
        bench.upstream.will(200, JSON, RESULT)
        assert (await client.post(CALL).ended()).body == RESULT


async def test_tasks_get_is_plain_json_also_while_input_is_awaited() -> None:
    """T25-INP-005."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        task, call = await client.call()
        call.elicit()
        await bench.settle()
        response = await client.request(names.TASKS_GET, {"taskId": task}).ended()
        assert response.headers["content-type"] == "application/json"
        assert (await told(response))["result"]["status"] == "input_required"


async def test_a_result_that_is_waited_for_comes_on_a_stream_and_the_questions_too() -> None:
    """T25-RES-002, T25-INP-002, T25-INP-003."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        task, call = await client.call()
        waiting = client.result(task, id="r")
        await until(lambda: waiting.status)
        assert waiting.is_stream
        question = call.elicit()
        await until(lambda: waiting.messages)
        [asked] = waiting.messages
        assert asked["params"]["_meta"][RELATED] == {"taskId": task}
        assert (await client.answer(asked, YES).ended()).status == 202
        assert await question.answer() == YES
        call.answer()
        assert (await waiting.ended()).messages[-1]["id"] == "r"
        assert waiting.messages[-1]["result"]["content"] == TEXT["content"]
        assert bench.methods == [names.INITIALIZE]


@pytest.mark.usefixtures("nothing_is_soon")
async def test_a_client_that_takes_no_stream_waits_without_one() -> None:
    async with http_bench_2025() as bench:
        client = await bench.opened()
        client.accept = "application/json"
        task, call = await client.call()
        waiting = client.result(task)
        await bench.settle()
        assert waiting.status is None
        call.answer()
        assert (await told(waiting))["result"]["content"] == TEXT["content"]
        assert waiting.headers["content-type"] == "application/json"


async def test_a_stream_that_is_dropped_costs_the_task_nothing_and_its_question_is_asked_again() -> None:
    """T25-GET-007, T25-INP-004, F08: on the session's own stream, or on the next `tasks/result`."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        task, call = await client.call()
        first = client.result(task)
        await until(lambda: first.status)
        question = call.elicit()
        await until(lambda: first.messages)
        first.hang_up()
        await first.ended()
        listening, _ = await client.listen()
        await until(lambda: listening.messages)
        [asked] = [message for message in listening.messages if "id" in message]
        listening.hang_up()
        await listening.ended()
        second = client.result(task)
        await until(lambda: second.is_stream and second.messages)
        assert second.messages[0]["params"] == asked["params"] == first.messages[0]["params"]
        assert len({first.messages[0]["id"], asked["id"], second.messages[0]["id"]}) == 3
        await client.answer(asked, YES).ended()
        assert (await client.answer(second.messages[0], {"action": "decline"}).ended()).status == 202
        assert await question.answer() == YES
        call.answer()
        assert "result" in (await second.ended()).messages[-1]
        assert len(question.answers) == 1


async def test_a_wait_that_is_cancelled_ends_and_the_task_goes_on() -> None:
    """Cancellation 2025-11-25: the request, not the task. What its stream was asked moves on."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        task, call = await client.call()
        listening, _ = await client.listen()
        waiting = client.result(task, id="r")
        await until(lambda: waiting.status)
        call.elicit()
        await until(lambda: waiting.messages)
        notice = {"method": names.CANCELLED, "params": {"requestId": "r"}}
        assert (await client.post(notice).ended()).status == 202
        assert [message["id"] for message in (await waiting.ended()).messages if "id" in message] != ["r"]
        await until(lambda: [message for message in listening.messages if "id" in message])
        assert (await client.read(task))["status"] == "input_required"
        assert names.CANCELLED not in bench.methods
        assert not call.cancelled.is_set()


async def test_a_cancellation_of_what_is_not_ours_passes() -> None:
    async with http_bench_2025() as bench:
        client = await bench.opened()
        bench.upstream.will(202, [])
        notice = {"method": names.CANCELLED, "params": {"requestId": 7}}
        assert (await client.post(notice).ended()).status == 202
        assert bench.methods[-1] == names.CANCELLED


async def test_limits_and_faults_of_ours_say_so() -> None:
    """T25-ERR-002, T25-SEC-004, T25-SEC-005: a limit is HTTP's 429, anything else an error in a 200."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        bench.it.rig.store.broken = True
        message = await told(client.request(names.TOOLS_CALL, {"name": "slow", "task": {}}))
        assert message["error"]["code"] == -32603
        bench.it.rig.store.broken = False
        task, _ = await client.call()
        responses = [client.request(names.TASKS_GET, {"taskId": task}) for _ in range(120)]
        refusals = [(await response.ended()).raised for response in responses]
        statuses = {int(fault.http_status) for fault in refusals if fault is not None}
        assert statuses == {429}


async def test_unknown_and_foreign_ids_are_one_error() -> None:
    """T25-ERR-001, T25-RES-007, T25-CAN-005, T25-SEC-001, I5: also in the very same session."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        task, call = await client.call()
        stranger = bench.client(BOB)
        for method in sorted(names.TASK_METHODS_2025):
            foreign = await told(stranger.request(method, {"taskId": task}, id=1))
            unknown = await told(client.request(method, {"taskId": "tpx-" + "x" * 32}, id=1))
            assert foreign == unknown
            assert foreign["error"]["code"] == -32602
        assert not call.cancelled.is_set()


async def test_a_bug_of_ours_is_an_error_and_no_broken_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """T25-ERR-002, T25-ERR-004: without internals."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        bench.it.rig.store.buggy = True
        message = await told(client.request(names.TOOLS_CALL, {"name": "slow", "task": {}}))
        assert message["error"] == {"code": -32603, "message": "internal error of the proxy"}


# -- what the server's own tasks are ------------------------------------------------------------------


async def test_a_task_of_the_servers_own_is_passed_on_and_so_is_what_is_asked_of_it() -> None:
    """Contract section 2, tool by tool."""
    async with http_bench_2025() as bench:
        server = bench.it.rig.server
        server.answers["tools/list"] = {"tools": [{"name": "own", "execution": {"taskSupport": "required"}}]}
        client = await bench.opened(tasks={"requests": {"tools": {"call": {}}}})
        bench.will_answer({"task": {"taskId": "theirs"}}, id=5)
        message = await told(client.request(names.TOOLS_CALL, {"name": "own", "task": {"ttl": 1}}, id=5))
        assert message["result"] == {"task": {"taskId": "theirs"}}
        bench.will_answer({"taskId": "theirs"}, id=6)
        await told(client.request(names.TASKS_GET, {"taskId": "theirs"}, id=6))
        assert bench.methods[1:] == [names.TOOLS_CALL, names.TASKS_GET]
        task, _ = await client.call("slow")
        assert is_task_id(task)


# -- the session's own stream -------------------------------------------------------------------------


async def test_news_of_tasks_stand_between_what_the_server_says() -> None:
    """T25-NOT-001, T25-PRG-001, T25-REL-001, HTTP-065."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        listening, body = await client.listen()
        task, call = await client.call(_meta={"progressToken": "p"})
        body.say(b": theirs\n\n")
        call.progress(1)
        call.answer()
        await until(lambda: len(listening.messages) == 2)
        progress, status = listening.messages
        assert progress["params"] == {
            "progressToken": "p",
            "progress": 1,
            "_meta": {RELATED: {"taskId": task}},
        }
        assert status["params"] == await client.read(task)
        assert b": theirs\n\n" in listening.body


async def test_a_question_on_the_stream_is_put_to_the_task_that_is_alone_in_flight() -> None:
    """Contract section 2; T25-INP-002. `npm` servers ask there."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        listening, body = await client.listen()
        task, call = await client.call()
        await client.read(task)
        body.say(event(QUESTION))
        await until(lambda: any("id" in message for message in listening.messages))
        [asked] = [message for message in listening.messages if "id" in message]
        assert asked["id"] != "q"
        assert asked["params"]["_meta"][RELATED] == {"taskId": task}
        await client.answer(asked, YES).ended()
        await until(lambda: [m for m in call.wire.heard if m.get("id") == "q"])
        assert [m["result"] for m in call.wire.heard if m.get("id") == "q"] == [YES]


async def test_a_question_that_is_withdrawn_on_the_stream_is_taken_back() -> None:
    async with http_bench_2025() as bench:
        client = await bench.opened()
        listening, body = await client.listen()
        task, _ = await client.call()
        await client.read(task)
        body.say(event(QUESTION))
        await until(lambda: any("id" in message for message in listening.messages))
        withdrawn = {"jsonrpc": "2.0", "method": names.CANCELLED, "params": {"requestId": "q"}}
        body.say(event(withdrawn))
        await until(lambda: [m for m in listening.messages if m["method"] == names.CANCELLED])
        [asked] = [message for message in listening.messages if "id" in message]
        [notice] = [m for m in listening.messages if m["method"] == names.CANCELLED]
        assert notice["params"]["requestId"] == asked["id"]
        assert (await client.read(task))["status"] == "working"


@pytest.mark.parametrize(
    "said",
    [
        {**QUESTION, "params": {**QUESTION["params"], "_meta": {RELATED: {"taskId": "theirs"}}}},
        {"jsonrpc": "2.0", "id": "q", "method": "ping"},
        {"jsonrpc": "2.0", "id": "q", "method": "tasks/get", "params": {"taskId": "the-clients"}},
        {"jsonrpc": "2.0", "id": "q", "method": "x/unknown", "params": {}},
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}},
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
        {"jsonrpc": "2.0", "method": names.CANCELLED, "params": {"requestId": "unknown"}},
        {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
    ],
)
async def test_what_belongs_to_no_task_of_ours_passes_as_it_is(said: dict[str, Any]) -> None:
    """I1, T25-CAP-008, contract section 6: while one runs."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        listening, body = await client.listen()
        await client.call()
        raw = b"id: 5\r\nevent: message\r\ndata: " + json.dumps(said).encode() + b"\r\n\r\n"
        body.say(raw)
        await until(lambda: listening.messages)
        assert listening.body == raw


@pytest.mark.parametrize(
    "data", [b"data:\nid: 3\n\n", b"data: no json\n\n", b": comment\n\n", b"data: [1]\n\n"]
)
async def test_what_is_no_message_passes_as_it_is(data: bytes) -> None:
    """F22."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        listening, body = await client.listen()
        await client.call()
        body.say(data)
        await until(lambda: listening.body)
        assert listening.body == data


async def test_a_change_of_the_tools_is_told_the_client_and_seen_by_us() -> None:
    """Which of them the server runs as tasks of its own may be new."""
    async with http_bench_2025() as bench:
        server = bench.it.rig.server
        server.answers["tools/list"] = {"tools": [{"name": "a"}]}
        client = await bench.opened(tasks={"requests": {"tools": {"call": {}}}})
        listening, body = await client.listen()
        await client.call("a")
        server.answers["tools/list"] = {"tools": [{"name": "a", "execution": {"taskSupport": "optional"}}]}
        body.say(event({"jsonrpc": "2.0", "method": names.TOOLS_LIST_CHANGED}))
        await until(lambda: listening.messages)
        bench.will_answer({"task": {"taskId": "theirs"}}, id=5)
        message = await told(client.request(names.TOOLS_CALL, {"name": "a", "task": {}}, id=5))
        assert message["result"] == {"task": {"taskId": "theirs"}}


async def test_a_question_with_a_plain_call_in_flight_goes_by_the_rule() -> None:
    """Contract section 2: of several the one that is known to ask, else the newest."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        listening, body = await client.listen()
        task, _ = await client.call()
        await client.read(task)
        await bench.it.rig.pass_time(1)
        plain = bench.will_stream()
        calling = client.post({**CALL, "id": 70})
        await until(lambda: calling.status)
        body.say(event(QUESTION))
        await until(lambda: listening.messages)
        assert listening.messages == [QUESTION]  # of the newer, plain call
        body.say(event({**QUESTION, "id": "q2"}))
        await until(lambda: len(asked_in(listening)) == 2)
        assert asked_in(listening)[1].startswith("tpx-ask-")  # that one waits already
        bench.upstream.will(202, [])
        await client.post({"id": "q", "result": YES}).ended()
        assert bench.passed[-1] == ("POST", {"jsonrpc": "2.0", "id": "q", "result": YES})
        body.say(event({**QUESTION, "id": "q3"}))
        await until(lambda: len(asked_in(listening)) == 3)
        body.say(event({"jsonrpc": "2.0", "method": names.CANCELLED, "params": {"requestId": "q3"}}))
        body.say(event({**QUESTION, "id": "q4"}))
        await until(lambda: len(asked_in(listening)) == 4)
        assert asked_in(listening)[2:] == ["q3", "q4"]
        plain.end()
        await calling.ended()


async def test_ours_gives_way_to_the_clients_own_stream() -> None:
    """A server has one GET stream a session: while ours ends, the client's is asked for again."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        _, call = await client.call()
        assert bench.listens == [[True]]
        for _ in range(2):
            bench.upstream.will(409, JSON, b"{}")
        body = bench.will_stream()
        listening = client.get()
        await bench.it.rig.pass_time(3 * GIVE_WAY_S)
        await until(lambda: listening.status)
        assert listening.status == 200
        assert bench.listens == [[True, False]]
        body.end()
        await listening.ended()
        await bench.settle()
        assert bench.listens == [[True, False, True]]
        call.answer()


async def test_a_conflict_that_is_not_ours_is_the_clients_to_see() -> None:
    """Nothing of ours is in the way: the server's word passes at once; else after a second."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        bench.upstream.will(409, JSON, b"{}")
        assert (await client.get().ended()).status == 409
        await client.call()
        for _ in range(GIVE_WAY_TRIES + 1):
            bench.upstream.will(409, JSON, b"{}")
        refused = client.get()
        await bench.it.rig.pass_time((GIVE_WAY_TRIES + 1) * GIVE_WAY_S)
        assert (await refused.ended()).status == 409
        assert not bench.upstream.answers
        await bench.settle()
        assert bench.listens[-1] == [True, False, True]


async def test_of_two_streams_of_the_client_the_one_that_is_left_is_used() -> None:
    async with http_bench_2025() as bench:
        client = await bench.opened()
        first, _ = await client.listen()
        second, _ = await client.listen()
        task, call = await client.call()
        second.hang_up()
        await second.ended()
        call.answer()
        await until(lambda: first.messages)
        assert first.messages[0]["params"] == await client.read(task)


# -- which version ------------------------------------------------------------------------------------


async def test_a_version_that_is_held_is_spelled_as_the_server_knows_it() -> None:
    """VER-004: the client says 2025-11-25 with every message, the server hears what it agreed to."""
    async with http_bench_2025() as bench:
        client = bench.client()
        answer = await client.initialize(upstream_version=OLD)
        assert (answer["protocolVersion"], answer["capabilities"]["tasks"]) == (VERSION, FULL)
        bench.upstream.will(200, JSON, RESULT)
        await client.post(CALL).ended()
        headers = [(k.lower(), v) for k, v in bench.upstream.asked[-1].headers]
        assert [v for k, v in headers if k == "mcp-protocol-version"] == [OLD]
        task, _ = await client.call()
        assert is_task_id(task)


@pytest.mark.parametrize("held", [False, True])
async def test_after_a_restart_a_session_is_what_it_was(held: bool) -> None:
    """Contract section 5: what must be remembered of a session is stored. T25-SEC-001, F06."""
    async with http_bench_2025() as bench:
        client = bench.client()
        await client.initialize(upstream_version=OLD if held else VERSION)
        task, call = await client.call()
        call.answer()
        await bench.settle()
        before = await client.read(task)
        bench.start_over()
        assert await client.read(task) == before
        bench.upstream.will(200, JSON, RESULT)
        await client.post(CALL).ended()
        headers = [(k.lower(), v) for k, v in bench.upstream.asked[-1].headers]
        assert [v for k, v in headers if k == "mcp-protocol-version"] == [OLD if held else VERSION]
        bench.will_answer({}, id=20)  # our question whether the session still is
        response = client.request(names.TOOLS_CALL, {"name": "slow", "task": {}}, id=20)
        assert is_task_id((await told(response))["result"]["task"]["taskId"])
        assert bench.methods[-1] == names.PING


@pytest.mark.parametrize(
    ("status", "headers"),
    [(404, JSON), (401, [("WWW-Authenticate", "Bearer realm=x")]), (403, []), (503, [])],
)
async def test_in_a_session_we_have_not_seen_the_server_judges_first(status: int, headers: Any) -> None:
    """AUTH-005: a task made at once would hide that the session is lost, or the token refused."""
    async with http_bench_2025() as bench:
        client = bench.client()
        bench.upstream.will(status, headers, b"no")
        response = client.request(names.TOOLS_CALL, {"name": "slow", "task": {}}, id=20)
        await response.ended()
        assert (response.status, response.body) == (status, b"no")
        assert set(response.headers) == {key.lower() for key, _ in headers}
        assert bench.it.rig.store.writes["create"] == 0
        assert bench.it.rig.server.calls_seen == 0


@pytest.mark.parametrize("by", ["a plain call", "a list", "the call of a task"])
async def test_a_session_that_proved_lost_is_judged_by_the_server_again(by: str) -> None:
    """HTTP-070: else every further task of the client would fail, and none would say why."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        if by == "a plain call":
            bench.upstream.will(404, JSON, b"{}")
            await client.request(names.TOOLS_CALL, {"name": "slow"}, id=19).ended()
        elif by == "a list":
            bench.upstream.will(401, JSON, b"{}")
            await client.request(names.TOOLS_LIST, {}, id=19).ended()
        else:
            _, call = await client.call()
            call.wire.lose(call.id, SessionLost("the session is gone"))
            await bench.settle()
        calls = bench.it.rig.server.calls_seen
        bench.upstream.will(404, JSON, b"gone")
        response = client.request(names.TOOLS_CALL, {"name": "slow", "task": {}}, id=20)
        await response.ended()
        assert (response.status, response.body) == (404, b"gone")
        assert bench.methods[-1] == names.PING
        assert bench.it.rig.server.calls_seen == calls


async def test_a_server_that_cannot_be_reached_is_told_before_there_is_a_task() -> None:
    async with http_bench_2025() as bench:
        bench.upstream.answers.append(UpstreamUnavailable("upstream 'fake' could not be reached"))
        response = bench.client().request(names.TOOLS_CALL, {"name": "slow", "task": {}}, id=20)
        assert (await response.refused())[2] == "upstream 'fake' could not be reached"
        assert bench.it.rig.store.writes["create"] == 0


async def test_where_nothing_can_be_remembered_the_session_works_until_a_restart() -> None:
    """Contract section 9, a broken store."""
    async with http_bench_2025() as bench:
        bench.memory.broken = True
        client = bench.client()
        await client.initialize(upstream_version=OLD)
        await client.call()
        bench.start_over()
        bench.upstream.will(400, JSON, b"{}")
        assert (await client.post(CALL).ended()).status == 400


# -- its end ------------------------------------------------------------------------------------------


async def test_a_session_without_tasks_is_ended_at_once() -> None:
    async with http_bench_2025() as bench:
        client = await bench.opened()
        bench.upstream.will(204, [])
        assert (await client.delete().ended()).status == 204
        assert bench.methods[-1] == "DELETE"
        assert bench.sessions.known(SESSION) is None


async def test_a_server_that_does_not_end_sessions_keeps_this_one() -> None:
    """F25, HTTP-070: 405 means that it goes on."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        bench.upstream.will(405, [])
        assert (await client.delete().ended()).status == 405
        await client.call()


async def test_with_running_tasks_the_server_hears_of_the_end_after_the_last_of_them() -> None:
    """Contract section 5: answered at once; tasks go on, their owner finds them."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        first, call = await client.call()
        _, other = await client.call()
        assert (await client.delete().ended()).status == 200
        assert bench.methods == [names.INITIALIZE]
        call.answer()
        await bench.settle()
        assert bench.methods == [names.INITIALIZE]
        bench.upstream.will(204, [])
        other.answer()
        await bench.settle()
        assert bench.methods == [names.INITIALIZE, "DELETE"]
        again = bench.client(session_id="s-2")
        assert (await again.read(first))["status"] == "completed"
        assert await bench.memory.remembered("session-end ") == []


async def test_an_ended_session_is_gone_for_its_client_though_tasks_run_in_it() -> None:
    """HTTP-070: 404, for requests of every kind; the server is not asked."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        task, _ = await client.call()
        await client.delete().ended()
        for response in (client.post(CALL), client.request(names.TASKS_GET, {"taskId": task}), client.get()):
            assert (await response.ended()).status == 404
        assert bench.methods == [names.INITIALIZE]


async def test_with_a_new_token_the_session_still_ends_after_its_tasks() -> None:
    """A refreshed token is another owner (contract section 8), and the session the same."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        _, call = await client.call()
        refreshed = bench.client(BOB)
        assert (await refreshed.delete().ended()).status == 200
        assert bench.methods == [names.INITIALIZE]
        bench.upstream.will(204, [])
        call.answer()
        await bench.settle()
        assert bench.methods == [names.INITIALIZE, "DELETE"]


async def put_off(bench: HttpBench2025) -> int:
    """How many sessions have an end that the server is still to be told of."""
    return len(await bench.memory.remembered("session-end "))


async def put_one_off(bench: HttpBench2025) -> None:
    """A client leaves, and the server does not hear it."""
    client = await bench.opened()
    _, call = await client.call()
    await client.delete().ended()
    bench.upstream.answers.append(UpstreamUnavailable("away"))
    call.answer()
    await bench.settle()
    assert await put_off(bench) == 1


async def test_an_end_that_the_server_does_not_hear_is_tried_again_at_the_next_start() -> None:
    async with http_bench_2025() as bench:
        await put_one_off(bench)
        bench.start_over()
        bench.upstream.will(204, [])
        tasks_ended = anyio.Event()
        await bench.handler.end_deferred(lambda session_id: tasks_ended.wait())
        await bench.settle()
        assert len(bench.upstream.answers) == 1
        tasks_ended.set()
        await bench.settle()
        assert bench.methods[-2:] == ["DELETE", "DELETE"]
        headers = dict(bench.upstream.asked[-1].headers)
        assert headers["Mcp-Session-Id"] == SESSION
        assert await put_off(bench) == 0


async def test_a_client_that_leaves_while_its_end_is_put_off_has_it_carried_out() -> None:
    async with http_bench_2025() as bench:
        client = await bench.opened()
        _, call = await client.call()
        bench.memory.gate = anyio.Event()
        response = client.delete()
        await bench.settle()
        response.hang_up()
        bench.memory.gate.set()
        bench.upstream.will(204, [])
        call.answer()
        await bench.settle()
        assert bench.methods == [names.INITIALIZE, "DELETE"]


async def test_a_start_that_cannot_read_what_was_put_off_goes_on() -> None:
    """Contract section 9, a broken store: the next start does it."""
    async with http_bench_2025() as bench:
        await put_one_off(bench)
        bench.start_over()
        bench.memory.broken = True
        with capture_logs() as logs:
            await bench.handler.end_deferred(at_once)
        assert [entry["event"] for entry in logs] == ["sessions_not_ended"]
        bench.memory.broken = False
        assert await put_off(bench) == 1
        bench.start_over()
        bench.upstream.will(204, [])
        await bench.handler.end_deferred(at_once)
        await bench.settle()
        assert await put_off(bench) == 0


async def at_once(session_id: str) -> None:
    """No task of the session is left."""


# -- servers without sessions -------------------------------------------------------------------------


async def stateless(client: HttpClient2025) -> HttpClient2025:
    await client.initialize(session_id=None)
    return client


async def test_before_a_server_without_sessions_clients_have_tasks_too() -> None:
    async with http_bench_2025() as bench:
        client = await stateless(bench.client())
        task, call = await client.call()
        assert bench.adoptions[0][0] == ""
        call.answer()
        await bench.settle()
        assert (await client.read(task))["status"] == "completed"


async def test_there_a_client_of_another_version_is_still_passed_through() -> None:
    """T25-CAP-004: nothing but its version header tells them apart."""
    async with http_bench_2025() as bench:
        await stateless(bench.client())
        other = bench.client(BOB, session_id=None, version=OLD)
        tools = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a"}]}}'
        bench.upstream.will(200, JSON, tools)
        assert (await other.request(names.TOOLS_LIST).ended()).body == tools
        bench.upstream.will(200, JSON, RESULT)
        await other.post({**CALL, "params": {"name": "a", "task": {}}}).ended()
        assert bench.passed[-1][1]["params"] == {"name": "a", "task": {}}


async def test_there_a_delete_ends_nobodys_session() -> None:
    """There is none to end; whoever else is there goes on."""
    async with http_bench_2025() as bench:
        client = await stateless(bench.client())
        await client.call()
        bench.upstream.will(405, [])
        assert (await client.delete().ended()).status == 405
        other = await stateless(bench.client(BOB))
        await other.call()


async def test_there_the_call_of_one_client_is_not_sent_with_the_key_of_another() -> None:
    """Contract section 8: to us both are the anonymous owner, to the server they are not."""
    async with http_bench_2025() as bench:
        client = await stateless(bench.client(ANONYMOUS, key="ada's"))
        other = await stateless(bench.client(ANONYMOUS, key="bob's"))
        for one in (client, other, client):
            await told(one.request(names.TASKS_GET, {"taskId": "x"}))
            bench.will_answer({})  # our question whether the server knows the client
            if one is not client or not bench.adoptions:
                await one.call()
        assert [headers()["x-api-key"] for _, headers in bench.adoptions] == ["ada's", "bob's"]


async def test_in_a_session_a_new_key_is_the_same_clients() -> None:
    async with http_bench_2025() as bench:
        client = await bench.opened(ANONYMOUS)
        client.key = "old"
        await client.call()
        client.key = "new"
        await client.call()
        [(_, headers)] = bench.adoptions
        assert headers()["x-api-key"] == "new"


async def test_there_a_further_client_takes_nothing_from_the_others() -> None:
    async with http_bench_2025() as bench:
        client = await stateless(bench.client())
        task, call = await client.call()
        waiting = client.result(task, id="r")
        await until(lambda: waiting.status)
        await stateless(bench.client(BOB))
        await stateless(bench.client(ADA))
        notice = {"method": names.CANCELLED, "params": {"requestId": "r"}}
        assert (await client.post(notice).ended()).status == 202
        await waiting.ended()
        assert names.CANCELLED not in bench.methods
        call.answer()


# -- bounds -------------------------------------------------------------------------------------------


async def test_a_session_that_many_owners_use_stays_small() -> None:
    """Lesson 21: owners are free to invent."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        task, _ = await client.call()
        for number in range(3 * MAX_OWNERS):
            stranger = bench.client(type(ADA)(f"owner-{number}"))
            await told(stranger.request(names.TASKS_GET, {"taskId": task}))
        session = bench.sessions.known(SESSION)
        assert session is not None
        assert len(session.parts) <= MAX_OWNERS
        assert session.parts[ADA].adopted.in_use
        assert (await client.read(task))["status"] == "working"
