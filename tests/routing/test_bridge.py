"""Discovery, and every method that is neither a task's nor special: as the server serves it.

Contract section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import anyio
import pytest

from proxy.protocol import names
from tests.routing.bench import ADA, ASKABLE, BOB, TASKS, bench
from tests.routing.fake_server import EVERYTHING, SERVER_INFO, FakeServer

pytestmark = pytest.mark.anyio

EXTENSION: Final = "io.modelcontextprotocol/tasks"
META_INFO: Final = "io.modelcontextprotocol/serverInfo"


def server(**capabilities: Any) -> FakeServer:
    made = FakeServer()
    made.capabilities = capabilities
    return made


# ------------------------------------------------------------------------------ discovery


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_discovery_is_made_of_what_the_server_said(version: str) -> None:
    """DISC-001, DISC-002, DISC-003, DISC-004, TX-CAP-001, VER-002, CACHE-001."""
    async with bench() as rig:
        rig.server.version, rig.server.instructions = version, "Mind the gap."
        found = await rig.client().start("server/discover").result()
        assert found == {
            "resultType": "complete",
            "supportedVersions": list(names.MODERN_VERSIONS),
            "capabilities": {**EVERYTHING, "extensions": {EXTENSION: {}}},
            "instructions": "Mind the gap.",
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {META_INFO: SERVER_INFO},
        }


async def test_the_2025_slot_is_not_announced_and_other_extensions_are_kept() -> None:
    """TX-CAP-011, DISC-007; nor are task marks on single tools."""
    async with bench(server(tools={}, tasks={"list": {}}, extensions={"com.example/x": {"a": 1}})) as rig:
        found = await rig.client().start("server/discover").result()
        assert found["capabilities"] == {
            "tools": {},
            "extensions": {"com.example/x": {"a": 1}, EXTENSION: {}},
        }
        tools = [{"name": "a", "inputSchema": {}, "execution": {"taskSupport": "required"}, "x-vendor": 1}]
        rig.server.answers["tools/list"] = {"tools": tools}
        listed = await rig.client().start("tools/list").result()
        assert listed["tools"] == [{"name": "a", "inputSchema": {}, "x-vendor": 1}]


async def test_discovery_before_a_server_that_cannot_be_started_is_an_error() -> None:
    async with bench() as rig:
        rig.server.start_fault = "no such file"
        _, error = await rig.client().start("server/discover").error()
        assert error == {"code": -32603, "message": "no such file"}


async def test_any_request_may_be_the_first() -> None:
    """DISC-006."""
    async with bench() as rig:
        rig.server.answers["fast"] = {"content": []}
        assert (await rig.client().call("fast").result())["content"] == []


async def test_who_hangs_up_during_discovery_leaves_nothing() -> None:
    async with bench() as rig:
        rig.server.may_start = anyio.Event()
        sent = rig.client().start("server/discover")
        await rig.settle()
        sent.hang_up()
        await rig.settle()
        rig.server.may_start.set()
        await rig.settle()
        assert (await rig.client().start("server/discover").result())["resultType"] == "complete"


# ------------------------------------------------------------------------------ methods


@pytest.mark.parametrize(
    "method, group",
    [
        ("tools/list", "tools"),
        ("tools/call", "tools"),
        ("prompts/list", "prompts"),
        ("prompts/get", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resources"),
        ("resources/read", "resources"),
        ("completion/complete", "completions"),
    ],
)
async def test_a_method_of_a_group_that_is_not_declared_is_unknown(method: str, group: str) -> None:
    """DISC-005: as it is not announced either; the server is not asked."""
    named = {"name": "a", "uri": "a"}
    async with bench(server(**{k: v for k, v in EVERYTHING.items() if k != group})) as rig:
        assert group not in (await rig.client().start("server/discover").result())["capabilities"]
        status, error = await rig.client().start(method, named).error()
        assert (status, error["code"]) == (404, -32601)
        assert rig.server.heard(method) == []


async def test_servers_of_2024_complete_without_saying_so() -> None:
    async with bench(server(prompts={})) as rig:
        rig.server.version = "2024-11-05"
        rig.server.answers["completion/complete"] = {"completion": {"values": []}}
        assert await rig.client().start("completion/complete").result()


@pytest.mark.parametrize("code", [-32601, -32602, -32600])
async def test_a_method_that_the_server_does_not_know_either_is_unknown(code: int) -> None:
    """HTTP-018: whatever code it refuses it with."""
    async with bench() as rig:
        rig.server.answers["foo/bar"] = (code, "what?")
        status, error = await rig.client().start("foo/bar").error()
        assert (status, error) == (404, {"code": -32601, "message": "Method not found: foo/bar"})


async def test_a_method_that_the_server_alone_knows_passes() -> None:
    """BASE-006, F18: params, result and other errors."""
    async with bench() as rig:
        sent = rig.client().start("foo/bar", {"a": [1], "task": {}, "requestState": "x"})
        call = await rig.server.next_call()
        assert call.params == {"a": [1], "task": {}, "requestState": "x"}
        call.answer({"b": 2})
        assert await sent.result() == {"b": 2, "resultType": "complete", "_meta": {META_INFO: SERVER_INFO}}
        sent = rig.client().start("foo/bar")
        (await rig.server.next_call()).fail(-32000, "busy")
        assert await sent.error() == (200, {"code": -32000, "message": "busy"})


@pytest.mark.parametrize(
    "method",
    ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"],
)
async def test_results_that_may_be_cached_say_for_how_long(method: str) -> None:
    """CACHE-001, CACHE-002, BASE-006, BASE-022, PAGE-001, TOOL-002: pages pass as they are."""
    async with bench() as rig:
        rig.server.answers.pop(method, None)
        for cursor, more in (("a/b==", ""), ("", None)):
            sent = rig.client().start(method, {"cursor": cursor, "uri": "file:///a"})
            call = await rig.server.next_call()
            assert call.params["cursor"] == cursor
            call.answer({"items": [2, 1], **({} if more is None else {"nextCursor": more})})
            page = await sent.result()
            assert (page["ttlMs"], page["cacheScope"], page["items"]) == (0, "private", [2, 1])
            assert page.get("nextCursor") == more
            assert page["_meta"] == {META_INFO: SERVER_INFO}


async def test_a_list_is_the_same_for_each_connection_of_an_owner_whatever_it_did_before() -> None:
    """TOOL-001."""
    async with bench() as rig:
        tools = [{"name": "b", "inputSchema": SCHEMA}, {"name": "a", "inputSchema": SCHEMA}]
        rig.server.answers |= {"tools/list": {"tools": tools}, "b": {"content": []}}
        old, fresh = rig.client(), rig.client()
        await old.start("tools/list").result()
        await old.call("b").result()
        assert await old.start("tools/list").result() == await fresh.start("tools/list").result()


async def test_a_missing_resource_is_invalid_params() -> None:
    """BASE-012, PAGE-002."""
    async with bench() as rig:
        rig.server.answers["resources/read"] = (-32002, "Resource not found")
        _, error = await rig.client().start("resources/read", {"uri": "file:///a"}).error()
        assert error == {"code": -32602, "message": "Resource not found"}


async def test_vendor_meta_passes_and_ours_does_not() -> None:
    """BASE-023, VER-018: the server's `initialize` has what the client can be asked, and no tasks."""
    async with bench() as rig:
        client = rig.client(
            capabilities={**TASKS, "elicitation": {"form": {}}},
            meta={"traceparent": "00-1", "com.example/x": 1},
        )
        client.call("never_this")
        call = await rig.server.next_call()
        assert call.params["_meta"] == {"traceparent": "00-1", "com.example/x": 1}
        assert call.wire.capabilities == {"elicitation": {"form": {}}}


async def test_owners_and_sets_of_capabilities_have_sessions_of_their_own() -> None:
    """SEC-004, ELIC-008, BASE-016, CACHE-003: tasks are no such capability."""
    async with bench() as rig:
        rig.server.answers["fast"] = {"content": []}
        for owner in (ADA, BOB):
            for capabilities in (ASKABLE, {**ASKABLE, **TASKS}, {}):
                await rig.client(owner=owner, capabilities=capabilities).call("fast").result()
        assert len(rig.server.wires) == 4


# ------------------------------------------------------------------------------ Mcp-Param-*


SCHEMA: Final = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
    },
}


@pytest.mark.parametrize(
    "headers, arguments, served",
    [
        ({"mcp-param-region": "eu"}, {"region": "eu"}, True),
        ({"mcp-param-region": "us"}, {"region": "eu"}, False),
        ({}, {"region": "eu"}, False),
        ({}, {"region": None}, True),
        ({}, {}, True),
        ({"mcp-param-count": "42.0"}, {"count": 42}, True),
        ({"mcp-param-count": "43"}, {"count": 42}, False),
        ({"mcp-param-region": "é"}, {"region": "é"}, False),
        ({"mcp-param-other": "x"}, {}, True),
        ({"mcp-param-region": "eu"}, {"region": "eu", "n": 10**400}, True),
    ],
)
async def test_mirrored_arguments_are_compared_with_their_headers(
    headers: Mapping[str, str], arguments: Any, served: bool
) -> None:
    """HTTP-022, HTTP-023, HTTP-024: before the call is sent; its tool's annotations are looked up."""
    async with bench() as rig:
        rig.server.answers["tools/list"] = {"tools": [{"name": "fast", "inputSchema": SCHEMA}]}
        rig.server.answers["fast"] = {"content": []}
        call = {"name": "fast", "arguments": arguments}
        sent = rig.client().start("tools/call", call, headers=headers)
        if served:
            assert (await sent.result())["content"] == []
        else:
            status, error = await sent.error()
            assert (status, error["code"]) == (400, -32020)
        assert rig.server.calls_seen == served


async def test_a_number_past_pythons_limits_does_not_hurt() -> None:
    """I1."""
    async with bench() as rig:
        rig.server.answers["tools/list"] = {"tools": [{"name": "fast", "inputSchema": SCHEMA}]}
        rig.server.answers["fast"] = {"content": []}
        raw = (
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fast","arguments":{"n":'
            + b"9" * 5_000
            + b'},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
            b'"io.modelcontextprotocol/clientCapabilities":{}}}}'
        )
        assert (await rig.client().send_raw(raw, headers={}).result())["content"] == []


async def test_the_headers_of_a_retry_are_judged_too_and_use_nothing_up() -> None:
    """HTTP-022."""
    async with bench() as rig:
        rig.server.answers["tools/list"] = {"tools": [{"name": "slow", "inputSchema": SCHEMA}]}
        client, call_params = rig.client(), {"name": "slow", "arguments": {"region": "eu"}}
        sent = client.start("tools/call", call_params, headers={"mcp-param-region": "eu"})
        call = await rig.server.next_call()
        question = call.elicit()
        await rig.pass_time(0.05)
        asked = await sent.result()
        [key] = asked["inputRequests"]
        retry = {
            **call_params,
            "requestState": asked["requestState"],
            "inputResponses": {key: {"action": "decline"}},
        }
        bad = client.start("tools/call", retry, headers={"mcp-param-region": "us"})
        status, error = await bad.error()
        assert (status, error["code"]) == (400, -32020)
        assert not question.answers
        client.start("tools/call", retry, headers={"mcp-param-region": "eu"})
        assert await question.answer() == {"action": "decline"}


async def test_a_task_at_once_is_judged_before_it_is_one_where_a_session_is_at_hand() -> None:
    """HTTP-022, DISC-005."""
    async with bench() as rig:
        rig.server.answers["tools/list"] = {"tools": [{"name": "at_once", "inputSchema": SCHEMA}]}
        await rig.client().start("server/discover").result()
        call = {"name": "at_once", "arguments": {"region": "eu"}}
        status, error = await rig.client().start("tools/call", call, headers={}).error()
        assert (status, error["code"]) == (400, -32020)
        assert not rig.store.writes


async def test_who_hangs_up_while_it_is_judged_leaves_no_task() -> None:
    """HTTP-014."""
    async with bench() as rig:
        rig.server.answers.pop("tools/list")
        await rig.client().start("server/discover").result()
        sent = rig.client().start("tools/call", {"name": "at_once"}, headers={})
        listing = await rig.server.next_call()
        sent.hang_up()
        await rig.settle()
        listing.answer({"tools": []})
        await rig.settle()
        assert rig.server.calls_seen == 0
        assert not rig.store.writes
