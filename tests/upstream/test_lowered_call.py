"""One call of a legacy client at a modern server: rounds without questions, headers, errors, tasks.

Contract section 7; MRTR 2026-07-28, "Client Requirements"; Streamable HTTP 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import anyio
import pytest

from proxy.errors import UpstreamClosed, UpstreamError, UpstreamUnavailable
from proxy.protocol import names
from proxy.upstream.endpoint import UnexpectedStatus
from tests.upstream.fake_transport import Sent, settle, until
from tests.upstream.lowered_bench import ANSWER, FORM, TASKS, Lowered, asks, greeted, text

pytestmark = pytest.mark.anyio

TASK: Final = {"resultType": "task", "taskId": "theirs", "status": "working", "pollIntervalMs": 2_000}


# -- rounds -------------------------------------------------------------------------------------------


async def test_a_result_without_a_type_is_complete() -> None:
    """BASE-007."""
    async with greeted() as at:
        call, sent = await at.call()
        at.server.answer(sent, {"content": []})
        assert await at.result(call) == {"content": []}


async def test_an_unknown_type_of_result_is_the_servers_fault() -> None:
    """BASE-008."""
    async with greeted() as at:
        call, sent = await at.call()
        at.server.answer(sent, {"resultType": "vendor/x", "content": []})
        assert "'vendor/x'" in await at.lost(call)


async def test_a_state_alone_is_sent_again_after_a_growing_pause() -> None:
    """MRTR-019."""
    async with greeted() as at:
        call, sent = await at.call(arguments={"n": 1})
        for attempt, pause_s in enumerate((0.5, 1.0, 2.0), start=2):
            at.server.answer(sent, {"resultType": "input_required", "requestState": f"s{attempt}"})
            await settle()
            await at.clock.advance(pause_s - 0.01)
            assert len(at.server.of(names.TOOLS_CALL)) == attempt - 1
            await at.clock.advance(0.02)
            sent = await at.server.asked(names.TOOLS_CALL, attempt)
            assert sent.body["params"]["requestState"] == f"s{attempt}"
            assert "inputResponses" not in sent.body["params"]
        at.server.answer(sent, text("done"))
        await at.result(call)


async def test_rounds_are_bounded() -> None:
    async with greeted() as at:
        call, sent = await at.call()
        for nth in range(2, 51):
            at.server.answer(sent, asks(a="roots/list"))
            await at.reply((await at.questions(call, nth - 1))[-1], result={"roots": []})
            sent = await at.server.asked(names.TOOLS_CALL, nth)
        at.server.answer(sent, asks(a="roots/list"))
        await at.reply((await at.questions(call, 50))[-1], result={"roots": []})
        assert "asked for input 50 times" in await at.lost(call)


@pytest.mark.parametrize("method", [names.PROMPTS_GET, names.RESOURCES_READ])
async def test_prompts_and_resources_may_ask_too(method: str) -> None:
    async with greeted(prompts={}, resources={}) as at:
        call = await at.send(method, {"name": "p", "uri": "u"})
        at.server.answer(await at.server.asked(method), asks("s", who="elicitation/create"))
        [question] = await at.questions(call)
        await at.reply(question, result=ANSWER)
        second = await at.server.asked(method, 2)
        assert second.body["params"]["inputResponses"] == {"who": ANSWER}
        at.server.answer(second, {"messages": []})
        assert await at.result(call) == {"messages": []}


# -- what legacy clients cannot read --------------------------------------------------------------------


@pytest.mark.parametrize("structured, kept", [({"a": 1}, True), ([1], False), ("x", False), (None, False)])
async def test_structured_content_of_a_legacy_result_is_an_object(structured: Any, kept: bool) -> None:
    """2025-11-25, "Structured Content"; modern servers may send any JSON, and legacy SDKs throw on it."""
    async with greeted() as at:
        call, sent = await at.call()
        at.server.answer(sent, text("said", structuredContent=structured))
        assert ("structuredContent" in await at.result(call)) is kept


async def test_output_schemas_of_other_than_objects_are_left_out() -> None:
    """For npm's SDK 1.x, one would make the whole list unusable."""
    async with greeted() as at:
        call = await at.send(names.TOOLS_LIST)
        schemas: list[Any] = [None, {"type": "object"}, {"type": "array"}, {"oneOf": []}]
        tools = [{"name": str(i), "inputSchema": {"type": "object"}} for i in range(4)]
        listed = [t if s is None else {**t, "outputSchema": s} for t, s in zip(tools, schemas, strict=True)]
        at.server.answer(await at.server.asked(names.TOOLS_LIST), {"tools": listed})
        shown = (await at.result(call))["tools"]
        assert [t.get("outputSchema") for t in shown] == [None, {"type": "object"}, None, None]
        assert [t["name"] for t in shown] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "method, error, told",
    [
        (names.TOOLS_CALL, {"code": -32602, "message": "no", "data": {"uri": 1}}, -32602),
        (names.TOOLS_CALL, {"code": 7, "message": "own"}, 7),
        (names.RESOURCES_READ, {"code": -32602, "message": "no", "data": {"uri": "u"}}, -32002),
        (names.RESOURCES_READ, {"code": -32602, "message": "no"}, -32602),
        (
            names.TOOLS_CALL,
            {"code": -32021, "message": "lacks", "data": {"requiredCapabilities": {}}},
            -32603,
        ),
        (names.TOOLS_CALL, {"code": -32022, "message": "version", "data": {"supported": ["2099"]}}, -32603),
    ],
)
async def test_errors_have_the_codes_that_legacy_clients_know(
    method: str, error: dict[str, Any], told: int
) -> None:
    """VER-008: no other version fits, and that is said. Contract section 7."""
    async with greeted() as at:
        call = await at.send(method, {"name": "t", "uri": "u"})
        at.server.answer(await at.server.asked(method), error=error)
        got = await at.error(call)
        assert (got["code"], got["message"]) == (told, error["message"])
        if told == -32603:
            assert got["data"] == {"upstreamError": error}


# -- headers --------------------------------------------------------------------------------------------


def tool(name: str, **annotated: str) -> dict[str, Any]:
    """A tool, some of whose string arguments are mirrored to headers."""
    properties = {arg: {"type": "string", "x-mcp-header": header} for arg, header in annotated.items()}
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


async def listed(at: Lowered, nth: int, *tools: dict[str, Any]) -> None:
    at.server.answer(await at.server.asked(names.TOOLS_LIST, nth), {"tools": list(tools)})


async def test_annotated_arguments_go_as_headers_too_and_again_after_32020() -> None:
    """HTTP-042, HTTP-044, F32, CACHE-005, I2: refused before it ran, so it is sent once more."""
    async with greeted(has_headers=True) as at:
        arguments = {"city": "Zürich", "none": None}
        call = await at.send(names.TOOLS_CALL, {"name": "tool", "arguments": arguments})
        await listed(at, 1, tool("tool", city="City", none="None", absent="Absent"))
        first = await at.server.asked(names.TOOLS_CALL)
        assert at.server.headers[first.id] == {"Mcp-Param-City": "=?base64?WsO8cmljaA==?="}
        at.server.answer(first, error={"code": -32020, "message": "Header mismatch"})
        await listed(at, 2, tool("tool", city="Town"))
        second = await at.server.asked(names.TOOLS_CALL, 2)
        assert at.server.headers[second.id].keys() == {"Mcp-Param-Town"}
        at.server.answer(second, error={"code": -32020, "message": "Header mismatch"})
        assert (await at.error(call))["code"] == -32603
        assert len(at.server.of(names.TOOLS_CALL)) == 2


async def test_an_integer_that_python_does_not_take_is_no_fault() -> None:
    async with greeted(has_headers=True) as at:
        huge = b"9" * 5_000
        call = await at.send(names.TOOLS_CALL, b'{"name":"tool","arguments":{"city":"x","n":' + huge + b"}}")
        await listed(at, 1, tool("tool", city="City"))
        await until(lambda: at.server.headers)
        assert list(at.server.headers.values()) == [{"Mcp-Param-City": "x"}]
        assert at.told.loss_of(call) is None


async def test_tools_that_nobody_can_call_over_http_are_left_out() -> None:
    """HTTP-043."""
    async with greeted(has_headers=True) as at:
        call = await at.send(names.TOOLS_LIST)
        await listed(
            at, 1, tool("good", a="A"), tool("bad", a="A B"), tool("twice", a="A", b="a"), tool("none")
        )
        assert [t["name"] for t in (await at.result(call))["tools"]] == ["good", "none"]


async def test_on_stdio_nothing_is_mirrored_and_nothing_left_out() -> None:
    async with greeted() as at:
        call = await at.send(names.TOOLS_LIST)
        await listed(at, 1, tool("bad", a="A B"))
        assert len((await at.result(call))["tools"]) == 1
        await at.call(arguments={"a": "x"})
        assert len(at.server.of(names.TOOLS_LIST)) == 1


# -- a task of the server's own -------------------------------------------------------------------------


async def in_task(at: Lowered) -> int:
    call, sent = await at.call()
    at.server.answer(sent, TASK)
    await settle()
    return call


async def polled(
    at: Lowered, nth: int, *, after_s: float = 2.0, said: Mapping[str, Any] | None = None, **more: Any
) -> Sent:
    await at.clock.advance(after_s)
    sent = await at.server.asked(names.TASKS_GET, nth)
    at.server.answer(
        sent, {"resultType": "complete", "taskId": "theirs", "status": "working", **(said or {}), **more}
    )
    await settle()
    return sent


async def test_a_task_of_the_servers_own_is_polled_to_its_result() -> None:
    """TX-CAP-015, F10: no faster than it wants, and the client sees an ordinary result."""
    async with greeted(**TASKS) as at:
        call = await in_task(at)
        await at.clock.advance(1.9)
        assert at.server.of(names.TASKS_GET) == []
        sent = await polled(at, 1, after_s=0.1, pollIntervalMs=500)
        assert sent.body["params"]["taskId"] == "theirs"
        assert (
            sent.body["params"]["_meta"][names.META_CLIENT_CAPABILITIES]["extensions"] == TASKS["extensions"]
        )
        await polled(at, 2, after_s=0.5, status="completed", result=text("done"))
        assert await at.result(call) == {"content": [{"type": "text", "text": "done"}]}


@pytest.mark.parametrize(
    "ended, code",
    [
        ({"status": "failed", "error": {"code": -32021, "message": "m"}}, -32603),
        ({"status": "failed", "error": {"code": 5, "message": "m"}}, 5),
        ({"status": "failed"}, -32603),
        ({"status": "cancelled"}, -32603),
    ],
)
async def test_a_task_without_a_result_is_an_error(ended: dict[str, Any], code: int) -> None:
    async with greeted(**TASKS) as at:
        call = await in_task(at)
        await polled(at, 1, said=ended)
        assert (await at.error(call))["code"] == code


async def test_a_task_that_the_server_no_longer_knows_is_its_error() -> None:
    async with greeted(**TASKS) as at:
        call = await in_task(at)
        await at.clock.advance(2.0)
        at.server.answer(await at.server.asked(names.TASKS_GET), error={"code": -32602, "message": "unknown"})
        assert await at.error(call) == {"code": -32602, "message": "unknown"}


async def test_each_key_of_a_task_is_asked_once() -> None:
    async with greeted(**TASKS) as at:
        call = await in_task(at)
        asked: dict[str, Any] = {
            "status": "input_required",
            "inputRequests": {"k": {"method": "elicitation/create", "params": FORM}},
        }
        await polled(at, 1, said=asked)
        [question] = await at.questions(call)
        await at.reply(question, result=ANSWER)
        update = await at.server.asked(names.TASKS_UPDATE)
        assert update.body["params"]["inputResponses"] == {"k": ANSWER}
        at.server.answer(update, {"resultType": "complete"})
        await settle()
        await polled(at, 2, said=asked)
        assert len(await at.questions(call)) == 1
        await polled(at, 3, status="completed", result=text("done"))
        await at.result(call)


async def test_reading_a_task_is_tried_again_for_the_task_goes_on() -> None:
    """HTTP-047: a new request with a new id."""
    async with greeted(**TASKS) as at:
        call = await in_task(at)
        for nth in range(1, 5):
            await at.clock.advance(2.0)
            sent = await at.server.asked(names.TASKS_GET, nth)
            at.server.lose(sent.id, UpstreamUnavailable("refused"))
            await settle()
        assert at.told.losses == []
        await polled(at, 5, status="completed", result=text("done"))
        await at.result(call)
        assert len({m.id for m in at.server.of(names.TASKS_GET)}) == 5


async def test_a_task_that_cannot_be_read_for_long_is_lost() -> None:
    async with greeted(**TASKS) as at:
        call = await in_task(at)
        for nth in range(1, 6):
            await at.clock.advance(2.0)
            at.server.lose((await at.server.asked(names.TASKS_GET, nth)).id, UpstreamUnavailable("refused"))
            await settle()
        assert await at.lost(call) == "refused"


@pytest.mark.parametrize("how", ["cancelled", "gone"])
async def test_nobody_waits_for_a_task_any_more_so_it_is_cancelled(how: str) -> None:
    """As a request, which a modern server over HTTP takes, and with the client's `_meta`."""
    async with greeted(**TASKS) as at:
        call = await in_task(at)
        if how == "cancelled":
            await at.cancel(call)
        else:
            at.transport.close()
        cancel = await at.server.asked(names.TASKS_CANCEL)
        assert cancel.call == cancel.id
        assert cancel.body["params"]["taskId"] == "theirs"
        at.server.answer(cancel, {"resultType": "complete"})
        await settle()
        assert at.got(call) == []


async def test_the_server_dies_during_its_task() -> None:
    async with greeted(**TASKS) as at:
        call = await in_task(at)
        at.server.die(UpstreamClosed("it died"))
        assert await at.lost(call) == "it died"


@pytest.mark.parametrize("method, extension", [(names.PROMPTS_GET, TASKS), (names.TOOLS_CALL, {})])
async def test_a_task_where_there_can_be_none_is_invalid(method: str, extension: dict[str, Any]) -> None:
    """TX-CAP-016."""
    async with greeted(**extension) as at:
        call = await at.send(method, {"name": "x"})
        at.server.answer(await at.server.asked(method), TASK)
        assert "where there can be none" in await at.lost(call)
        assert at.server.of(names.TASKS_GET) == []


# -- the server changes its era ---------------------------------------------------------------------------


async def test_a_server_that_has_become_legacy_ends_the_session() -> None:
    """VER-009: the client's next session asks what it is. Issue 7."""
    async with greeted(has_headers=True) as at:
        call = await at.send(names.PROMPTS_LIST)
        refused = {"code": -32600, "message": "Bad Request: no session"}
        at.server.answer(await at.server.asked(names.PROMPTS_LIST), error=refused)
        assert (await at.error(call)) == refused
        at.server.answer(await at.server.asked(names.DISCOVER, 2), error=refused)
        assert "no longer what it was" in await at.lost(None)
        assert at.era.known is None


async def test_an_ordinary_error_costs_one_question_and_ends_nothing() -> None:
    async with greeted(has_headers=True) as at:
        for nth in (1, 2):
            call = await at.send(names.PROMPTS_LIST)
            sent = await at.server.asked(names.PROMPTS_LIST, nth)
            at.server.answer(sent, error={"code": -32601, "message": "Method not found"})
            await at.error(call)
            if nth == 1:
                discovered = {"resultType": "complete", "supportedVersions": [], "capabilities": {}}
                at.server.answer(await at.server.asked(names.DISCOVER, 2), discovered)
            await settle()
        assert len(at.server.of(names.DISCOVER)) == 2
        with anyio.fail_after(5):
            assert await at.result(await at.send(names.PING)) == {}


@pytest.mark.parametrize("fault", [UpstreamUnavailable("refused"), UnexpectedStatus("503", 503)])
async def test_a_server_that_is_away_for_a_moment_has_not_changed(fault: UpstreamError) -> None:
    """Contract section 2: 5xx decide nothing. The calls in flight live."""
    async with greeted(has_headers=True) as at:
        call = await at.send(names.PROMPTS_LIST)
        refused = {"code": -32601, "message": "Method not found"}
        at.server.answer(await at.server.asked(names.PROMPTS_LIST), error=refused)
        await at.error(call)
        at.server.lose((await at.server.asked(names.DISCOVER, 2)).id, fault)
        await settle()
        assert at.told.losses == []
        assert await at.result(await at.send(names.PING)) == {}
