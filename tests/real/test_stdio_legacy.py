"""A legacy client that starts the proxy as its server, and must not notice it.

Holds the rows F16, F17, F38 of the field reports on a real wire, and "upstream process dies" of the
contract's section 9.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from proxy.protocol import names
from proxy.tasks.task import ID_PREFIX
from tests.real.legacy import Legacy
from tests.real.modern_client import tool_text
from tests.real.processes import Program, accepts
from tests.real.stdio_process import SMALL_SERVER, StdioProcess, proxied
from tests.real.waiting import asked_until, until

pytestmark = pytest.mark.anyio

CAN: Final[dict[str, Any]] = {"elicitation": {}, "sampling": {}, "roots": {"listChanged": True}}
ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "elicitation/create": {"action": "accept", "content": {"confirm": True, "name": "Ada"}},
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "42"}, "model": "m"},
    "roots/list": {"roots": [{"uri": "file:///home"}]},
}
OF_NO_TASK: Final = f"{ID_PREFIX}{'x' * 32}"  # of our form, so that no server is asked for it
AT_ONCE_S: Final = 8.0
START_BOUND_S: Final = 40.0


async def answered(it: StdioProcess, rid: int | str) -> dict[str, Any]:
    """The answer to this request; whatever the server asks meanwhile is answered."""
    while True:
        message = await it.message_where(lambda m: "id" in m)
        if "method" not in message:
            assert message["id"] == rid
            return message
        await it.send({"id": message["id"], "result": ANSWERS[message["method"]]})


async def long_conversation(it: StdioProcess, legacy: Legacy, version: str) -> None:
    """Everything a client may do in a session, one after the other, so that the order is the server's."""
    await it.initialize(version, **CAN)
    plain: list[tuple[str, dict[str, Any] | None]] = [
        ("ping", None),
        ("tools/list", {}),
        ("prompts/list", {"cursor": ""}),
        ("prompts/get", {"name": "no such prompt"}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "test://no-such-thing"}),
        ("no/such/method", {"a": [1.10]}),
        ("tools/call", None),
        ("tools/call", {"name": "no such tool"}),
        ("logging/setLevel", {"level": "debug"}),
        ("resources/subscribe", {"uri": "test://watched-resource"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "pa"}},
        ),
        ("server/discover", {}),
    ]
    for method, params in plain:
        await it.ask(method, params)
    calls: list[tuple[int | str, str, dict[str, Any], dict[str, Any]]] = [
        ("a string", "greet", {"name": "\u2028 ünï"}, {}),
        (9007199254740993, "progress_job", {"steps": 3, "delay": 0.01}, {"progressToken": "mine"}),
        (-1, "progress_job", {"steps": 2, "delay": 0.01}, {"progressToken": 0}),
        ("", "log_messages", {"count": 3, "delay": 0.01}, {}),
        ("ask", "confirm_delete", {"filename": "a"}, {}),
        ("sample", "sample_llm", {"prompt": "x"}, {}),
        ("roots", "list_roots", {}, {}),
        ("touch", "touch_resource", {}, {}),
        ("change", "test_trigger_tool_change", {}, {}),
        ("large", "return_large_text", {"kib": 300}, {}),
        ("error", "protocol_error_job", {}, {}),
    ]
    for rid, tool, arguments, call_meta in calls:
        call = {"name": tool, "arguments": arguments, **({"_meta": call_meta} if call_meta else {})}
        await it.request(names.TOOLS_CALL, call, rid=rid)
        await answered(it, rid)
    job = {"name": "cancellable_job", "arguments": {"seconds": 60, "label": version}}
    await it.request(names.TOOLS_CALL, job, rid="job")
    await legacy.happened("start", version)
    await it.send({"method": names.CANCELLED, "params": {"requestId": "unknown"}})
    await it.send({"method": names.CANCELLED, "params": {"requestId": "job", "reason": "enough"}})
    await it.answer("job")
    await it.send({"method": "notifications/roots/list_changed"})
    await it.ask("ping")
    it.close_stdin()
    await it.read_to_end()


async def recorded(
    command: Sequence[str], home: Path, version: str
) -> tuple[list[bytes], list[dict[str, Any]]]:
    """What the client got, line by line, and what happened in the server. Without 2025 tasks, which add to
    what a server says of itself."""
    legacy = Legacy("stdio", home, "--pre-delay", "0")
    upstream = [*command, *legacy.command("stdio")]
    async with StdioProcess(upstream, home, MCP_TASKPROXY_TASKS__LEGACY_2025="false") as it:
        with anyio.fail_after(60):
            await long_conversation(it, legacy, version)
            assert await it.exit_code(within_s=10) == 0
        return it.lines, legacy.journal()


@pytest.mark.parametrize("version", ["2025-11-25", "2024-11-05"])
async def test_a_session_is_the_same_line_by_line(tmp_path: Path, version: str) -> None:
    """VER-006, CANC-006."""
    homes = [tmp_path / name for name in ("direct", "proxied")]
    for home in homes:
        home.mkdir()
    direct, there = await recorded([], homes[0], version)
    through, here = await recorded(proxied([]), homes[1], version)

    assert len(direct) > 40
    assert through == direct
    assert [event["event"] for event in here] == [event["event"] for event in there]


async def test_when_the_server_crashes_the_call_fails_at_once_and_the_next_finds_all_as_it_was(
    tmp_path: Path,
) -> None:
    """F38, STDIO-010."""
    legacy = Legacy("stdio", tmp_path)
    async with StdioProcess(proxied(legacy.command("stdio")), tmp_path) as it:
        await it.initialize()
        await it.ask("logging/setLevel", {"level": "error"})
        await it.ask("resources/subscribe", {"uri": "test://watched-resource"})
        slow = await it.request(names.TOOLS_CALL, {"name": "slow_compute", "arguments": {"seconds": 60}})
        crash = await it.request(names.TOOLS_CALL, {"name": "crash", "arguments": {"delay": 0.2}})
        with anyio.fail_after(AT_ONCE_S):
            lost = [await it.answer(slow), await it.answer(crash)]
        for answer in lost:
            assert answer["error"]["code"] == -32603
            assert "exited with code 3" in answer["error"]["message"]

        seen = len(it.lines)
        assert tool_text((await it.call("greet", name="again"))["result"]) == "Hello, again!"
        changes = [json.loads(line).get("method") for line in it.lines[seen:-1]]
        assert sorted(changes) == sorted(
            [names.TOOLS_LIST_CHANGED, names.PROMPTS_LIST_CHANGED, names.RESOURCES_LIST_CHANGED]
        )
        touched = await it.call("touch_resource", uri="test://watched-resource")
        assert "(subscribers: 1)" in tool_text(touched["result"])
        seen = len(it.lines)
        await it.call("log_messages", count=3, level="warning")
        assert len(it.lines) == seen + 1, "the level is as it was: no warnings"

        it.close_stdin()
        assert await it.exit_code(within_s=10) == 0
        assert it.left() == []
    assert [row["level"] for row in legacy.journal() if row["event"] == "setLevel"] == ["error", "error"]


async def test_both_eras_are_served_on_one_process(tmp_path: Path) -> None:
    """VER-004, TX-CAN-005, STDIO-005: a modern task goes on beside a legacy call, and after its request is
    cancelled; a modern client is never sent a request."""
    legacy = Legacy("stdio", tmp_path)
    async with StdioProcess(proxied(legacy.command("stdio"), "--threshold", "200ms"), tmp_path) as it:
        await it.initialize()
        await it.ask_modern("tools/list")  # has a server of its own, which runs from now on
        old = await it.request(
            names.TOOLS_CALL, {"name": "slow_compute", "arguments": {"seconds": 1.5, "label": "l"}}
        )
        handle = await it.call_modern("slow_compute", seconds=1, label="m")
        task = handle["result"]["taskId"]
        await it.send({"method": names.CANCELLED, "params": {"requestId": handle["id"]}})
        assert tool_text((await it.answer(old))["result"]) == "computed l in 1.5 s"
        await asked_until(
            lambda: it.ask_modern(names.TASKS_GET, {"taskId": task}),
            lambda answer: answer["result"]["status"] == "completed",
            "the task goes on to its end",
        )
        asking = {"name": "confirm_delete", "arguments": {"filename": "f"}}
        asked = await it.ask_modern(names.TOOLS_CALL, asking, tasks=False, elicitation={})
        assert asked["result"]["resultType"] == "input_required"
        assert "resultType" not in (await it.ask("tools/list"))["result"]
        assert (await it.ask_modern("tools/list"))["result"]["resultType"] == "complete"
        assert not [line for line in it.lines if {"id", "method"} <= json.loads(line).keys()]


async def test_a_server_that_starts_slowly_holds_up_no_modern_request(tmp_path: Path) -> None:
    """The legacy client waits for its server; an unknown task is answered meanwhile."""
    command = proxied([*SMALL_SERVER, "--slow-start", "3"])
    async with StdioProcess(command, tmp_path) as it:
        waiting = await it.request(
            names.INITIALIZE, {"protocolVersion": "2025-11-25", "capabilities": {}}, rid="i"
        )
        unknown = await it.ask_modern(names.TASKS_GET, {"taskId": OF_NO_TASK})
        assert unknown["error"]["code"] == -32602
        assert "result" in await it.answer(waiting)
        assert [json.loads(line).get("id") for line in it.lines] == [unknown["id"], waiting]


@asynccontextmanager
async def served(legacy: Legacy, transport: str) -> AsyncIterator[Program]:
    """The fixture over HTTP, Streamable or with SSE."""
    program = Program(
        [*legacy.command(transport), "--port", str(legacy.port)], log=legacy.home / f"{transport}.log"
    )
    try:
        await until(lambda: accepts(legacy.port), "the legacy server listens", within_s=START_BOUND_S)
        yield program
    finally:
        await program.stop()


@pytest.mark.parametrize("transport, path", [("streamable-http", "mcp"), ("sse", "sse")])
async def test_a_server_behind_http_is_served_the_same(tmp_path: Path, transport: str, path: str) -> None:
    """Contract section 2: calls, questions, notifications, cancellation, and a new session after its loss."""
    legacy = Legacy("stdio", tmp_path, "--pre-delay", "0")
    command = proxied(f"http://127.0.0.1:{legacy.port}/{path}")
    async with StdioProcess(command, tmp_path) as it:
        async with served(legacy, transport) as server:
            assert (await it.initialize(**CAN))["result"]["serverInfo"]["name"] == "legacy-fixture"
            assert tool_text((await it.call("greet", name="you"))["result"]) == "Hello, you!"
            rid = await it.request(
                names.TOOLS_CALL, {"name": "confirm_delete", "arguments": {"filename": "a"}}
            )
            assert tool_text((await answered(it, rid))["result"]) == "deleted a"
            rid = await it.request(
                names.TOOLS_CALL,
                {
                    "name": "progress_job",
                    "arguments": {"steps": 2, "delay": 0.01},
                    "_meta": {"progressToken": "p"},
                },
            )
            progress = await it.message_where(lambda m: m.get("method") == names.PROGRESS)
            assert progress["params"]["progressToken"] == "p"
            await it.answer(rid)
            await it.call("test_trigger_tool_change")
            job = {"name": "cancellable_job", "arguments": {"seconds": 60, "label": "job"}}
            rid = await it.request(names.TOOLS_CALL, job)
            await legacy.happened("start", "job")
            await it.send({"method": names.CANCELLED, "params": {"requestId": rid}})
            await legacy.happened("cancelled", "job")
            await server.kill()
        async with served(legacy, transport):
            await until_called(it)
        it.close_stdin()
        assert await it.exit_code(within_s=10) == 0
    methods = [json.loads(line).get("method") for line in it.lines]
    assert methods.count(names.TOOLS_LIST_CHANGED) == 2, "its own, and one after the loss"


async def until_called(it: StdioProcess) -> None:
    """A session that was lost is found out by a call that fails, at most one."""
    for _ in range(2):
        answer = await it.call("greet", name="again")
        if "result" in answer:
            assert tool_text(answer["result"]) == "Hello, again!"
            return
    raise AssertionError(answer)
