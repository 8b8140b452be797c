"""2025 tasks of a client with a server of its own, on a pipe: ours among what passes.

Contract sections 2, 5 and 9; MCP 2025-11-25, "Tasks".
"""

from __future__ import annotations

import json
from typing import Any, Final

import anyio
import pytest
from anyio.lowlevel import checkpoint

from proxy.eras.tasks_2025 import VERSION
from proxy.errors import UpstreamClosed, UpstreamUnavailable
from proxy.protocol import names
from proxy.routing.in_flight import FIRST_TASK_ID
from proxy.routing.tasks_2025 import Tasks2025
from proxy.tasks.task import is_task_id
from tests.routing.bench_2025 import RELATED, YES
from tests.routing.fake_server import TEXT
from tests.routing.piped_2025 import PipedClient, initialize_result, piped
from tests.routing.test_passthrough import HANDSHAKE, Server
from tests.upstream.fake_transport import settle, until

pytestmark = pytest.mark.anyio

DIED: Final = UpstreamClosed("upstream 'fake' exited with code 3")
OLD: Final = "2025-06-18"
FORM: Final = {"message": "Go on?", "requestedSchema": {}}


async def begin(it: PipedClient, result: dict[str, Any]) -> bytes:
    """The handshake; the line that the client is told."""
    await it.write(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":' + HANDSHAKE + b"}")
    await until(lambda: it.servers)
    it.server.answer(await it.server.asked(names.INITIALIZE), result)
    await it.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    told = it.lines[-1]
    it.lines.clear()
    return told


# -- what is offered ----------------------------------------------------------------------------------


async def test_initialize_and_tools_gain_what_tasks_add_and_nothing_else() -> None:
    """T25-CAP-001, T25-CAP-002, T25-TOOL-001, I1."""
    async with piped() as it:
        await it.write(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":' + HANDSHAKE + b"}")
        await until(lambda: it.servers)
        rid = (await it.server.asked(names.INITIALIZE)).id
        result = b'{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}'
        said = b'{ "jsonrpc":"2.0","id":%d ,"result":' + result + b"}"
        it.server.deliver(said % rid)
        tasks = b',"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}'
        assert it.lines == [(said % 0).replace(b'"tools":{}', b'"tools":{}' + tasks)]
        it.lines.clear()
        await it.request(names.TOOLS_LIST, id=1)
        rid = (await it.server.asked(names.TOOLS_LIST)).id
        it.server.deliver(b'{"jsonrpc":"2.0","id":%d,"result":{"tools":[{"name": "a"}]},"x":1.0}' % rid)
        mark = b',"execution":{"taskSupport":"optional"}'
        told = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name": "a"' + mark + b'}]},"x":1.0}'
        assert it.lines == [told]


async def test_switched_off_there_is_nothing_of_them() -> None:
    """`tasks.legacy_2025: false`: byte by byte as the server says it, and `task` is the server's business."""
    async with piped(has_tasks=False) as it:
        result = b'{"protocolVersion":"2025-11-25", "capabilities":{"tools":{"x":1.0}}}'
        await it.write(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":' + HANDSHAKE + b"}")
        await until(lambda: it.servers)
        for method, said in ((names.INITIALIZE, result), (names.TOOLS_LIST, b'{"tools":[ {"name":"a"}]}')):
            if method == names.TOOLS_LIST:
                await it.request(method, id=0)
            rid = (await it.server.asked(method)).id
            it.server.deliver(b'{"jsonrpc":"2.0", "id":%d,"result":%s}' % (rid, said))
            assert it.lines.pop() == b'{"jsonrpc":"2.0", "id":0,"result":%s}' % said
        for message in (
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a", "task":{}}}',
            b'{"jsonrpc":"2.0","id":1,"method":"tasks/list"}',
            b'{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"tpx-%s"}}' % (b"a" * 32),
        ):
            await it.write(message)
            ours = it.server.sent[-1].id
            assert it.server.raw[-1] == message.replace(b'"id":1', b'"id":%d' % ours)


async def test_a_version_that_is_held_is_the_clients_and_the_server_hears_its_own() -> None:
    """VER-004."""
    async with piped() as it:
        told = json.loads(await begin(it, initialize_result(OLD, tools={})))
        assert told["result"]["protocolVersion"] == VERSION
        assert it.server.version == OLD
        task, call = await it.task()
        it.server.answer(call, TEXT)
        await it.it.rig.settle()
        assert (await it.get(task))["status"] == "completed"


@pytest.mark.parametrize("result", [initialize_result(), initialize_result(OLD), {"protocolVersion": 5}])
async def test_a_server_without_tools_has_no_tasks(result: dict[str, Any]) -> None:
    """T25-CAP-004: then `task` passes, and the server ignores it."""
    async with piped() as it:
        assert json.loads(await begin(it, result))["result"] == result
        await it.request(names.TOOLS_CALL, {"name": "a", "task": {}})
        assert it.server.sent[-1].body["params"]["task"] == {}


async def test_the_extension_declared_in_a_legacy_session_means_nothing_there() -> None:
    """TX-CAP-008: the slow call stays a plain call, and its answer is its result."""
    async with piped() as it:
        declared: dict[str, Any] = {"extensions": {names.TASKS_EXTENSION: {}}}
        params = {"protocolVersion": VERSION, "capabilities": declared, "clientInfo": {}}
        await it.request(names.INITIALIZE, params, id=0)
        await until(lambda: it.servers)
        it.server.answer(await it.server.asked(names.INITIALIZE), initialize_result(tools={}))
        assert "extensions" not in it.said[0]["result"]["capabilities"]
        rid = await it.request(names.TOOLS_CALL, {"name": "slow"})
        await it.it.rig.pass_time(60)
        assert it.answers_to(rid) == []
        it.server.answer(await it.server.asked(names.TOOLS_CALL), TEXT)
        assert it.answers_to(rid)[0]["result"] == TEXT
        assert it.it.rig.store.writes["create"] == 0


# -- among what passes --------------------------------------------------------------------------------


async def ready(it: PipedClient, **capabilities: Any) -> PipedClient:
    await begin(it, initialize_result(tools={}, **capabilities))
    return it


async def test_ids_of_ours_and_the_clients_are_kept_apart() -> None:
    """I1, T25-NEW-008, F17: whatever the client calls its requests."""
    async with piped() as it:
        await ready(it)
        task, call = await it.task()
        assert call.id == call.body["params"]["_meta"]["progressToken"] >= FIRST_TASK_ID
        assert "task" not in call.body["params"]
        plain = await it.request(names.TOOLS_CALL, {"name": "fast"}, id=call.id)
        second = it.server.of(names.TOOLS_CALL)[1]
        assert second.id < FIRST_TASK_ID
        it.server.answer(second, {"content": []})
        it.server.answer(call, TEXT)
        await it.it.rig.settle()
        assert it.answers_to(plain)[0]["result"] == {"content": []}
        assert (await it.result(names.TASKS_RESULT, {"taskId": task}))["content"] == TEXT["content"]


async def test_progress_and_logs_of_a_task_say_whose_they_are_and_others_pass() -> None:
    """T25-PRG-001, T25-REL-001: a token of the client's that looks like ours is its own."""
    async with piped() as it:
        await ready(it)
        task, call = await it.task(_meta={"progressToken": "p"})
        it.server.notify(names.PROGRESS, {"progressToken": call.id, "progress": 1})
        it.server.notify(names.LOG_MESSAGE, {"level": "info", "data": "x"})
        await it.request(names.TOOLS_CALL, {"name": "fast", "_meta": {"progressToken": "p"}})
        it.server.notify(names.PROGRESS, {"progressToken": "p", "progress": 5})
        it.server.notify(names.LOG_MESSAGE, {"level": "info", "data": "whose?"})
        related = {"_meta": {RELATED: {"taskId": task}}}
        assert it.told(names.PROGRESS) == [
            {"progressToken": "p", "progress": 1, **related},
            {"progressToken": "p", "progress": 5},
        ]
        assert it.told(names.LOG_MESSAGE) == [
            {"level": "info", "data": "x", **related},
            {"level": "info", "data": "whose?"},
        ]


async def test_a_question_belongs_to_the_task_that_is_alone_in_flight() -> None:
    """Contract section 2; T25-INP-002."""
    async with piped() as it:
        await ready(it)
        task, call = await it.task()
        it.server.ask(0, names.ELICITATION_CREATE, FORM)
        await it.it.rig.settle()
        [asked] = it.questions
        assert asked["params"]["_meta"] == {RELATED: {"taskId": task}}
        await it.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": YES}).encode())
        assert (await it.server.told(0))["result"] == YES
        it.server.answer(call, TEXT)
        await it.it.rig.settle()
        assert (await it.get(task))["status"] == "completed"


async def test_a_question_during_a_newer_plain_call_passes_and_so_does_its_answer() -> None:
    """Contract section 2: of several the newest that does not wait already."""
    async with piped() as it:
        await ready(it)
        await it.task()
        await it.request(names.TOOLS_CALL, {"name": "fast"})
        it.server.ask("q", names.ELICITATION_CREATE, FORM)
        it.server.ask("r", names.ELICITATION_CREATE, FORM)
        await it.it.rig.settle()
        first, second = it.questions
        assert (first["id"], first["params"]) == ("q", FORM)
        assert second["id"] != "r"
        for asked in (first, second):
            await it.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": YES}).encode())
        assert (await it.server.told("q"))["result"] == (await it.server.told("r"))["result"] == YES


async def test_an_answer_that_names_a_question_of_ours_never_reaches_the_server() -> None:
    """F16: neither twice, nor made up."""
    async with piped() as it:
        await ready(it)
        await it.task()
        it.server.ask(0, names.ELICITATION_CREATE, FORM)
        await it.it.rig.settle()
        [asked] = it.questions
        for rid in (asked["id"], asked["id"], "tpx-ask-" + "a" * 16, 0, "0"):
            await it.write(json.dumps({"jsonrpc": "2.0", "id": rid, "result": YES}).encode())
        await it.it.rig.settle()
        answers = [sent.body for sent in it.server.sent if sent.method is None]
        assert answers == [{"jsonrpc": "2.0", "id": 0, "result": YES}]


async def test_tasks_that_the_client_hosts_are_between_it_and_the_server() -> None:
    """T25-CAP-008: augmented sampling, and what the server asks of its task; ids are the server's own."""
    async with piped() as it:
        await ready(it)
        await it.request(names.TOOLS_CALL, {"name": "fast"})
        messages: list[dict[str, Any]] = [
            {
                "id": 1,
                "method": names.SAMPLING_CREATE_MESSAGE,
                "params": {"messages": [], "task": {"ttl": 5}},
            },
            {"id": 2, "method": names.TASKS_GET, "params": {"taskId": "c"}},
            {"id": 3, "method": names.TASKS_RESULT, "params": {"taskId": "c"}},
            {"id": 4, "method": names.TASKS_CANCEL, "params": {"taskId": "c"}},
            {"id": 5, "method": names.TASKS_LIST},
        ]
        for message in messages:
            it.server.deliver({"jsonrpc": "2.0", **message})
            assert it.said[-1] == {"jsonrpc": "2.0", **message}
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"task": message["id"]}}
            await it.write(json.dumps(answer).encode())
            assert it.server.sent[-1].body == answer


async def test_they_are_also_while_a_task_of_ours_runs() -> None:
    """T25-CAP-008: its call may have asked for what the client runs as a task."""
    async with piped() as it:
        await ready(it)
        task, _ = await it.task()
        params = {"messages": [], "task": {"ttl": 5}}
        it.server.ask("s", names.SAMPLING_CREATE_MESSAGE, params)
        await it.it.rig.settle()
        [asked] = it.questions
        assert asked["params"] == {**params, "_meta": {RELATED: {"taskId": task}}}
        created = {"task": {"taskId": "c", "status": "working"}}
        await it.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": created}).encode())
        assert (await it.server.told("s"))["result"] == created
        for method in (names.TASKS_GET, names.TASKS_RESULT, names.TASKS_CANCEL, "x/unknown"):
            question = {"jsonrpc": "2.0", "id": method, "method": method, "params": {"taskId": "c"}}
            it.server.deliver(question)
            assert it.said[-1] == question
            answer = {"jsonrpc": "2.0", "id": method, "result": {"n": 1}}
            await it.write(json.dumps(answer).encode())
            assert it.server.sent[-1].body == answer


async def test_a_ping_of_the_server_passes_while_a_task_runs() -> None:
    """PING-001: the client answers it, as without us."""
    async with piped() as it:
        await ready(it)
        await it.task()
        it.server.ask("p", names.PING)
        assert it.said[-1] == {"jsonrpc": "2.0", "id": "p", "method": "ping"}


async def test_a_tool_of_the_servers_own_runs_there_and_its_message_is_as_it_was() -> None:
    """Contract section 2, tool by tool."""
    async with piped() as it:
        await ready(it, tasks={"requests": {"tools": {"call": {}}}})
        params = b'{"name":"own", "task":{"ttl": 1.0}}'
        raw = b'{"jsonrpc":"2.0", "id":"own","method":"tools/call","params":' + params + b"}"
        await it.write(raw)
        listing = await it.server.asked(names.TOOLS_LIST)
        it.server.answer(listing, {"tools": [{"name": "own", "execution": {"taskSupport": "required"}}]})
        call = await it.server.asked(names.TOOLS_CALL)
        assert it.server.raw[-1] == raw.replace(b'"own","method"', b'%d,"method"' % call.id)
        it.server.answer(call, {"task": {"taskId": "theirs"}})
        await settle()
        assert it.answers_to("own")[0]["result"] == {"task": {"taskId": "theirs"}}
        await it.request(names.TASKS_CANCEL, {"taskId": "theirs"})
        assert it.server.sent[-1].method == names.TASKS_CANCEL
        task, call = await it.task("plain")
        assert is_task_id(task)


async def test_a_change_of_the_tools_is_told_the_client_and_seen_by_us() -> None:
    """Which of them the server runs as tasks of its own may be new."""
    async with piped() as it:
        await ready(it, tasks={"requests": {"tools": {"call": {}}}})
        await it.request(names.TOOLS_CALL, {"name": "a", "task": {}}, id="first")
        it.server.answer(await it.server.asked(names.TOOLS_LIST), {"tools": [{"name": "a"}]})
        await it.server.asked(names.TOOLS_CALL)
        assert "task" in it.answers_to("first")[0]["result"]
        it.server.notify(names.TOOLS_LIST_CHANGED)
        assert it.said[-1] == {"jsonrpc": "2.0", "method": names.TOOLS_LIST_CHANGED}
        await it.request(names.TOOLS_CALL, {"name": "a", "task": {}}, id="second")
        tool = {"name": "a", "execution": {"taskSupport": "optional"}}
        it.server.answer(await it.server.asked(names.TOOLS_LIST, 2), {"tools": [tool]})
        call = await it.server.asked(names.TOOLS_CALL, 2)
        assert call.body["params"]["task"] == {}


# -- cancelled ----------------------------------------------------------------------------------------


async def test_a_cancelled_task_is_cancelled_at_the_server_by_our_id() -> None:
    """T25-CAN-002, T25-CAN-003, T25-CAN-004."""
    async with piped() as it:
        await ready(it)
        task, call = await it.task()
        assert (await it.result(names.TASKS_CANCEL, {"taskId": task}))["status"] == "cancelled"
        notice = await it.server.asked(names.CANCELLED)
        assert notice.body["params"]["requestId"] == call.id
        it.server.answer(call, error={"code": 0, "message": "Request cancelled"})
        await it.it.rig.settle()
        assert (await it.get(task))["status"] == "cancelled"


async def test_a_wait_that_is_cancelled_gets_no_answer_and_the_server_no_notice() -> None:
    """CANC-003: the request is ours, the task goes on."""
    async with piped() as it:
        await ready(it)
        task, call = await it.task()
        rid = await it.request(names.TASKS_RESULT, {"taskId": task})
        notice = {"jsonrpc": "2.0", "method": names.CANCELLED, "params": {"requestId": rid}}
        await it.write(json.dumps(notice).encode())
        it.server.answer(call, TEXT)
        await it.it.rig.settle()
        assert it.answers_to(rid) == []
        assert it.server.of(names.CANCELLED) == []
        await it.passthrough.wait_answered()
        assert (await it.result(names.TASKS_RESULT, {"taskId": task}))["content"] == TEXT["content"]


async def test_a_cancellation_of_a_plain_request_passes_beside_them() -> None:
    """CANC-006."""
    async with piped() as it:
        await ready(it)
        await it.task()
        rid = await it.request(names.TOOLS_CALL, {"name": "fast"})
        plain = it.server.of(names.TOOLS_CALL)[-1]
        notice = {"jsonrpc": "2.0", "method": names.CANCELLED, "params": {"requestId": rid}}
        await it.write(json.dumps(notice).encode())
        assert it.server.of(names.CANCELLED)[0].body["params"] == {"requestId": plain.id}


# -- the server ends ----------------------------------------------------------------------------------


async def test_a_server_that_dies_fails_its_tasks_at_once_and_the_next_one_takes_the_next() -> None:
    """I6; contract section 9, "upstream process dies"."""
    async with piped() as it:
        first = (await ready(it)).server
        task, _ = await it.task()
        plain = await it.request(names.TOOLS_CALL, {"name": "fast"})
        waiting = await it.request(names.TASKS_RESULT, {"taskId": task})
        first.die(DIED)
        await it.it.rig.settle()
        assert it.answers_to(plain)[0]["error"]["code"] == -32603
        assert "exited with code 3" in it.answers_to(waiting)[0]["error"]["message"]
        told = await it.get(task)
        assert (told["status"], "exited with code 3" in told["statusMessage"]) == ("failed", True)
        made = await it.request(names.TOOLS_CALL, {"name": "slow", "task": {}})
        await it.new_server(after=first)
        call = await it.server.asked(names.TOOLS_CALL)
        again = it.answers_to(made)[0]["result"]["task"]["taskId"]
        it.server.answer(call, TEXT)
        await it.it.rig.settle()
        assert (await it.get(again))["status"] == "completed"


@pytest.mark.parametrize("steps", range(10))
async def test_a_call_that_is_cancelled_at_any_step_of_its_way_leaves_it_to_the_next(steps: int) -> None:
    """The session that carries task calls is made for the first of them, and is for all."""
    async with piped() as it:
        await ready(it)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stay, it)
            for _ in range(steps):
                await checkpoint()
            tasks.cancel_scope.cancel()
        task, call = await it.task()
        it.server.answer(call, TEXT)
        await it.it.rig.settle()
        assert (await it.get(task))["status"] == "completed"


async def stay(it: PipedClient) -> None:
    async with it.passthrough._task_place():
        await anyio.sleep_forever()


@pytest.mark.parametrize("while_it", ["starts", "is greeted"])
async def test_a_server_whose_only_call_is_cancelled_meanwhile_is_ended(while_it: str) -> None:
    """Nobody else knows of it, so nobody else would end it; the next call gets another."""
    starts = anyio.Event()
    first, second = Server(), Server(starts=starts if while_it == "starts" else None)
    async with piped(first, second) as it:
        await ready(it)
        first.die(DIED)
        made = await it.result(names.TOOLS_CALL, {"name": "slow", "task": {}})
        await until(lambda: len(it.servers) == 2)
        if while_it == "is greeted":
            await second.asked(names.INITIALIZE)
        await it.result(names.TASKS_CANCEL, {"taskId": made["task"]["taskId"]})
        await it.it.rig.settle()
        starts.set()
        await settle()
        assert second.ended is (while_it == "is greeted")
        assert second._receiver is None
        rid = await it.request(names.TOOLS_CALL, {"name": "slow", "task": {}})
        await it.it.rig.pass_time(1)
        await it.new_server(after=second)
        call = await it.server.asked(names.TOOLS_CALL)
        it.server.answer(call, TEXT)
        await it.it.rig.settle()
        task = it.answers_to(rid)[0]["result"]["task"]["taskId"]
        assert (await it.get(task))["status"] == "completed"


async def test_a_question_that_was_open_when_the_server_died_is_taken_back() -> None:
    async with piped() as it:
        first = (await ready(it)).server
        await it.task()
        first.ask(0, names.ELICITATION_CREATE, FORM)
        await it.it.rig.settle()
        first.die(DIED)
        await it.it.rig.settle()
        [asked] = it.questions
        assert [params["requestId"] for params in it.told(names.CANCELLED)] == [asked["id"]]


async def test_a_server_that_takes_no_message_fails_the_task_and_says_so() -> None:
    async with piped() as it:
        await ready(it)
        it.server.refusal = UpstreamUnavailable("upstream 'fake' could not be reached")
        made = await it.result(names.TOOLS_CALL, {"name": "slow", "task": {}})
        await it.it.rig.settle()
        told = await it.get(made["task"]["taskId"])
        assert (told["status"], told["statusMessage"]) == (
            "failed",
            "upstream 'fake' could not be reached",
        )


# -- the client ends ----------------------------------------------------------------------------------


async def test_a_client_that_ends_takes_its_server_and_so_the_calls_of_its_tasks() -> None:
    """Contract section 9: a process of its own. What is stored says what is known."""
    async with piped() as it:
        await ready(it)
        task, _ = await it.task()
        await it.passthrough.close()
        await it.it.rig.settle()
        assert it.server.ended
        assert (await it.it.client().get(task))["status"] == "failed"


async def test_with_running_tasks_the_server_is_ended_after_the_last_of_them() -> None:
    """Contract section 5: a DELETE, which is answered at once."""
    async with piped() as it:
        await ready(it)
        task, call = await it.task()
        async with anyio.create_task_group() as ending:
            ending.start_soon(lambda: it.passthrough.close(after_tasks=True))
            await it.it.rig.settle()
            assert not it.server.ended
            assert it.passthrough.runs_tasks
            it.server.answer(call, TEXT)
            await it.it.rig.settle()
        assert it.server.ended
        assert (await it.it.client().get(task))["status"] == "completed"


async def test_closed_again_it_does_not_wait_for_tasks_any_more() -> None:
    """Our own end, while tasks still run in a session that has ended."""
    async with piped() as it:
        await ready(it)
        await it.task()
        async with anyio.create_task_group() as ending:
            ending.start_soon(lambda: it.passthrough.close(after_tasks=True))
            await it.it.rig.settle()
            assert not it.server.ended
            ending.start_soon(it.passthrough.close)
            await it.it.rig.settle()
        assert it.server.ended


async def test_a_new_handshake_is_a_new_session_with_the_same_tasks() -> None:
    """F38: the tasks are the owner's; the old session is told nothing more."""
    async with piped() as it:
        await ready(it)
        task, call = await it.task()
        await it.request(names.INITIALIZE, {"protocolVersion": VERSION, "capabilities": {}}, id="again")
        it.server.answer(it.server.of(names.INITIALIZE)[-1], initialize_result(tools={}))
        await settle()
        assert "tasks" in it.answers_to("again")[0]["result"]["capabilities"]
        assert (await it.get(task))["status"] == "working"
        it.lines.clear()
        it.server.answer(call, TEXT)
        await it.it.rig.settle()
        assert len(it.told(names.TASK_STATUS_NOTIFICATION)) == 1


async def test_a_pipe_that_is_closed_is_told_nothing_more() -> None:
    async with piped() as it:
        await ready(it)
        _, call = await it.task()
        it.pipe.is_open = False
        it.lines.clear()
        it.server.ask(0, names.ELICITATION_CREATE, FORM)
        it.server.answer(call, TEXT)
        await it.it.rig.settle()
        assert it.lines == []


# -- faults -------------------------------------------------------------------------------------------


async def test_a_bug_of_ours_is_an_error_and_not_the_end_of_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T25-ERR-002, T25-ERR-004, I6."""

    async def stumble(*args: object) -> None:
        raise RuntimeError("a bug")

    async with piped() as it:
        await ready(it)
        task, _ = await it.task()
        monkeypatch.setattr(Tasks2025, "get", stumble)
        error = (await it.reply(names.TASKS_GET, {"taskId": task}))["error"]
        assert error == {"code": -32603, "message": "internal error of the proxy"}
        monkeypatch.undo()
        assert (await it.get(task))["status"] == "working"


async def test_other_requests_are_answered_while_many_wait_for_results() -> None:
    """F08."""
    async with piped() as it:
        await ready(it)
        task, _ = await it.task()
        for _ in range(300):
            await it.write(
                b'{"jsonrpc":"2.0","id":"w%d","method":"tasks/result","params":{"taskId":"%s"}}'
                % (it.next_id, task.encode())
            )
            it.next_id += 1
        rid = await it.request(names.TOOLS_LIST)
        it.server.answer(await it.server.asked(names.TOOLS_LIST), {"tools": []})
        assert it.answers_to(rid)[0]["result"] == {"tools": []}
