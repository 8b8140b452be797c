"""A 2025 task of the upstream's own, for a modern client that sees an ordinary call, or a task of ours.

MCP 2025-11-25, "Tasks", as requestor; contract section 2, "Tasks that upstream offers itself".
"""

from __future__ import annotations

from typing import Any, Final

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.errors import SessionUnknown, UpstreamUnavailable
from proxy.logs import task_hash
from proxy.protocol import names
from tests.routing.bench import Bench, Exchanged, bench
from tests.routing.fake_server import EVERYTHING, Call, FakeServer

pytestmark = pytest.mark.anyio

OWN: Final[dict[str, Any]] = {"requests": {"tools": {"call": {}}}, "cancel": {}, "list": {}}
TASK: Final = {"taskId": "theirs", "status": "working", "ttl": None, "pollInterval": 400}
DONE: Final[dict[str, Any]] = {"content": [{"type": "text", "text": "theirs is done"}]}
RELATED: Final = {names.META_RELATED_TASK: {"taskId": "theirs"}}
PLAIN: Final[dict[str, Any]] = {}
FORGOTTEN: Final = SessionUnknown("upstream 'fake' no longer knows the session (404)")


def server(*, declares: bool = True, version: str = "2025-11-25", **supports: str) -> FakeServer:
    """One with tools that are marked like that."""
    made = FakeServer()
    made.version = version
    made.capabilities = {**EVERYTHING, **({"tasks": OWN} if declares else {})}
    tools = [{"name": name, "execution": {"taskSupport": mark}} for name, mark in supports.items()]
    made.answers["tools/list"] = {"tools": [*tools, {"name": "unmarked"}]}
    return made


async def made(at: Bench, tool: str = "must", **how: Any) -> tuple[Exchanged, Call, Call]:
    """A call that the server has made a task of: the client's request, `tools/call` and `tasks/result`."""
    sent = at.client(**how).call(tool)
    call = await at.server.next_call()
    call.answer({"task": TASK})
    held = await at.server.next_call()
    assert held.method == names.TASKS_RESULT
    return sent, call, held


async def poll(at: Bench, after_s: float = 0.4, **status: Any) -> Call:
    await at.pass_time(after_s)
    asked = await at.server.next_call()
    assert asked.method == names.TASKS_GET
    asked.answer({**TASK, **status})
    await at.settle()
    return asked


# -- whether ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tool, client, wished",
    [
        ("must", {}, True),
        ("must", {"capabilities": PLAIN}, True),
        ("may", {}, True),
        ("may", {"capabilities": PLAIN}, False),
        ("forbids", {}, False),
        ("unmarked", {}, False),
    ],
)
async def test_a_call_is_augmented_as_its_tool_is_marked(
    tool: str, client: dict[str, Any], wished: bool
) -> None:
    """T25-TOOL-005, T25-TOOL-006: `required` always, `optional` where the client could have a task."""
    async with bench(server(must="required", may="optional", forbids="forbidden")) as at:
        sent = at.client(**client).call(tool)
        call = await at.server.next_call()
        assert ("task" in call.params) is wished
        call.answer(DONE)
        assert (await sent.result())["content"] == DONE["content"]


@pytest.mark.parametrize("how", [{"declares": False}, {"version": "2025-06-18"}])
async def test_where_the_upstream_declares_nothing_no_call_is_augmented(how: dict[str, Any]) -> None:
    """T25-CAP-006."""
    async with bench(server(must="required", **how)) as at:
        sent = at.client().call("must")
        call = await at.server.next_call()
        assert "task" not in call.params
        call.answer(DONE)
        await sent.result()


async def test_where_its_tools_cannot_be_listed_the_call_is_an_ordinary_one() -> None:
    """It says nothing of the tool, and answers the call as it sees fit."""
    at_server = server(must="required")
    at_server.answers["tools/list"] = (-32603, "no")
    async with bench(at_server) as at:
        sent = at.client().call("must")
        call = await at.server.next_call()
        assert "task" not in call.params
        call.answer(DONE)
        assert (await sent.result())["content"] == DONE["content"]


async def test_we_host_no_tasks_for_the_server() -> None:
    """T25-CAP-007."""
    async with bench(server(must="required")) as at:
        await made(at)
        assert "tasks" not in at.server.wire.capabilities


# -- to its end ---------------------------------------------------------------------------------------


async def test_the_client_gets_what_the_call_would_have_returned() -> None:
    """T25-INP-006, T25-REL-004: `tasks/result` is held, by the bare id; related-task stays between us."""
    async with bench(server(must="required")) as at:
        sent, _, held = await made(at)
        assert held.params == {"taskId": "theirs"}
        held.answer({**DONE, "_meta": {**RELATED, "own": 1}})
        result = await sent.result()
        assert result["content"] == DONE["content"]
        assert names.META_RELATED_TASK not in result["_meta"]
        assert result["_meta"]["own"] == 1


async def test_a_slow_one_becomes_a_task_of_ours_with_its_words() -> None:
    """T25-GET-008, T25-GET-009: polled no faster than the server wants; no notification is needed."""
    async with bench(server(may="optional")) as at:
        client = at.client()
        sent, _, held = await made(at, "may")
        await at.pass_time(0.39)
        assert at.server.heard(names.TASKS_GET) == []
        asked = await poll(at, 0.01, statusMessage="at 3 of 10", pollInterval=5_000)
        assert asked.params == {"taskId": "theirs"}
        await at.pass_time(1.6)
        handle = await sent.result()
        assert handle["resultType"] == names.TASK
        assert handle["taskId"] != "theirs"
        await at.pass_time(1.0)
        assert (await client.get(handle["taskId"]))["statusMessage"] == "at 3 of 10"
        await at.pass_time(2.3)
        assert len(at.server.heard(names.TASKS_GET)) == 1
        held.answer({**DONE, "_meta": RELATED})
        await at.settle()
        task = await client.get(handle["taskId"])
        assert (task["status"], task["result"]["content"]) == ("completed", DONE["content"])
        assert at.server.calls_seen == 1


async def test_its_error_is_the_calls() -> None:
    async with bench(server(must="required")) as at:
        sent, _, held = await made(at)
        await poll(at, status="failed")
        held.fail(7, "own error")
        assert (await sent.error())[1]["message"] == "own error"


async def test_a_wait_that_ends_too_early_is_begun_again() -> None:
    async with bench(server(must="required")) as at:
        sent, _, held = await made(at)
        held.fail(-32602, "not yet")
        (await at.server.next_call()).answer(TASK)
        await at.settle()
        await at.pass_time(0.4)
        again = [await at.server.next_call() for _ in range(2)]
        [wait] = [call for call in again if call.method == names.TASKS_RESULT]
        wait.answer(DONE)
        assert (await sent.result())["content"] == DONE["content"]


async def test_its_life_is_logged_under_a_hash_with_its_tool() -> None:
    """T25-SEC-011."""
    async with bench(server(must="required")) as at:
        with capture_logs() as logs:
            sent, _, held = await made(at)
            held.answer(DONE)
            await sent.result()
        own = [(entry["event"], entry["task"], entry["tool"]) for entry in logs if "tool" in entry]
        named = task_hash("theirs")
        assert own == [("upstream_task_created", named, "must"), ("upstream_task_ended", named, "must")]


# -- questions ----------------------------------------------------------------------------------------


async def test_its_questions_are_the_calls_and_are_answered_in_its_name() -> None:
    """T25-INP-007, T25-REL-005: on whatever stream it came."""
    async with bench(server(must="required")) as at:
        client = at.client()
        sent, _, held = await made(at)
        asked = held.elicit("Go on?", _meta=RELATED)
        await at.pass_time(0.1)
        wanted = await sent.result()
        [key] = wanted["inputRequests"]
        retry = client.retry(wanted, "must", {key: {"action": "accept", "content": {"ok": True}}})
        answer = await asked.answer()
        assert answer["action"] == "accept"
        assert answer["_meta"][names.META_RELATED_TASK] == {"taskId": "theirs"}
        held.answer(DONE)
        assert (await retry.result())["content"] == DONE["content"]


# -- ends ---------------------------------------------------------------------------------------------


async def test_to_cancel_the_task_is_to_cancel_theirs() -> None:
    """T25-CAN-006: by `tasks/cancel`, and not by notifications/cancelled."""
    async with bench(server(may="optional")) as at:
        client = at.client()
        sent, call, held = await made(at, "may")
        await poll(at)
        await at.pass_time(2.0)
        task_id = (await sent.result())["taskId"]
        await client.cancel(task_id)
        await at.settle()
        assert at.server.heard(names.TASKS_CANCEL) == [{"taskId": "theirs"}]
        assert not call.cancelled.is_set()
        assert not held.cancelled.is_set()
        held.answer(DONE)
        await at.settle()
        assert (await client.get(task_id))["status"] == "cancelled"


async def test_a_client_that_hangs_up_before_the_answer_cancels_it() -> None:
    async with bench(server(must="required")) as at:
        sent, call, _ = await made(at)
        sent.hang_up()
        await at.settle()
        assert at.server.heard(names.TASKS_CANCEL) == [{"taskId": "theirs"}]
        assert not call.cancelled.is_set()


async def test_one_that_hangs_up_before_the_task_is_made_cancels_the_call() -> None:
    async with bench(server(must="required")) as at:
        sent = at.client().call("must")
        call = await at.server.next_call()
        sent.hang_up()
        with anyio.fail_after(5):
            await call.cancelled.wait()
        assert at.server.heard(names.TASKS_CANCEL) == []


async def test_the_death_of_the_server_is_told_at_once() -> None:
    async with bench(server(must="required")) as at:
        sent, call, _ = await made(at)
        call.wire.break_off()
        assert "died" in (await sent.error())[1]["message"]


async def test_a_task_that_the_server_forgets_is_lost_with_an_unknown_outcome() -> None:
    async with bench(server(must="required")) as at:
        sent, _, _ = await made(at, capabilities=PLAIN)
        for _ in range(5):  # it may have said so in a bad moment
            assert not sent.done
            await at.pass_time(0.4)
            (await at.server.next_call()).fail(-32602, "Task not found")
            await at.settle()
        assert "outcome unknown" in (await sent.error())[1]["message"]


async def test_polls_that_fail_for_a_while_lose_nothing() -> None:
    async with bench(server(must="required")) as at:
        sent, call, held = await made(at)
        for _ in range(4):
            await at.pass_time(0.4)
            asked = await at.server.next_call()
            call.wire.lose(asked.id, UpstreamUnavailable("refused"))
            await at.settle()
        held.answer(DONE)
        assert (await sent.result())["content"] == DONE["content"]


@pytest.mark.parametrize("answer", [{"task": {}}, {"task": 1}, {"task": {"taskId": 5}}])
async def test_a_task_without_an_id_is_an_ordinary_answer(answer: dict[str, Any]) -> None:
    async with bench(server(must="required")) as at:
        sent = at.client().call("must")
        (await at.server.next_call()).answer(answer)
        await at.settle()
        assert sent.done
        assert at.server.heard(names.TASKS_RESULT) == []


async def test_a_session_that_is_lost_under_it_does_not_make_the_call_run_again() -> None:
    """What an old session refuses then (404) is that we ask for the task."""
    async with bench(server(must="required")) as at:
        sent, _, held = await made(at)
        held.wire.lose(held.id, FORGOTTEN)
        _, error = await sent.error()
        assert "outcome unknown" in error["message"]
        await at.pass_time(60)
        assert len(at.server.heard(names.TOOLS_CALL)) == 1
