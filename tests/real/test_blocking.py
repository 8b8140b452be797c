"""A client that declares no tasks gets what upstream gave, slow or not.

Holds I1 of the contract, TX-CAP-003 and the results half of section 3. The raw text of a direct session is
the measure: content, structuredContent and isError byte for byte, `_meta` but for the serverInfo we add.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from proxy.protocol import names
from tests.real.bench import Bench
from tests.real.legacy import Transport
from tests.real.legacy_session import answers
from tests.real.modern_client import Answer, raw_members
from tests.real.plain_calls import ASKING
from tests.real.waiting import together

pytestmark = pytest.mark.anyio

SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "250ms"}}
SLOW_S: Final = 0.6
REGION: Final = {f"{names.H_PARAM_PREFIX}Region": "eu"}

QUIET: Final[dict[str, dict[str, Any]]] = {
    "greet": {"name": "Zoë"},
    "slow_compute": {"seconds": SLOW_S, "label": "slow"},
    "failing_job": {},
    "progress_job": {"steps": 3, "delay": 0.2},
    "log_messages": {"count": 3, "delay": 0.2},
    "return_image": {"delay": SLOW_S},
    "return_audio": {"delay": SLOW_S},
    "return_structured": {"delay": SLOW_S},
    "return_large_text": {"kib": 256, "delay": SLOW_S},
    "cancellable_job": {"seconds": SLOW_S, "label": "not cancelled"},
    "cancel_log": {},
    "count_call": {"key": "once", "delay": SLOW_S},
    "raise_exception": {"delay": SLOW_S},
    "test_simple_text": {},
    "test_image_content": {},
    "test_audio_content": {},
    "test_embedded_resource": {},
    "test_multiple_content_types": {},
    "test_tool_with_logging": {},
    "test_logging_tool": {},
    "test_tool_with_progress": {},
    "test_error_handling": {},
    "test_reconnection": {},
    "json_schema_2020_12_tool": {"name": "Ada", "phone": "1", "address": {"street": "s", "city": "c"}},
    "test_x_mcp_header": {"region": "eu"},
    "test_input_required_result_capabilities": {},
    "test_trigger_tool_change": {},
    "test_trigger_prompt_change": {},
    "touch_resource": {},
}
"""Tools that need no input, with the arguments they are called with."""

BROKEN: Final[list[tuple[str, dict[str, Any]]]] = [
    ("protocol_error_job", {}),  # a JSON-RPC error after a second
    ("no_such_tool", {}),
    ("greet", {}),  # a tool error: the argument is missing
]

NOT_COMPARED: Final = {
    "crash",
    "call_counts",  # says which process it is
    "echo_request",  # likewise, and what the session is
    "protocol_error_job",  # among BROKEN
    *(ASKING.keys() - QUIET.keys()),
}
"""Tools that ask their client, and a few that do not say the same thing twice."""


def assert_same_result(direct: bytes, proxied: Answer) -> None:
    """Equal but for what modern requires: `resultType`, and serverInfo in `_meta`."""
    theirs = raw_members(raw_members(direct)["result"])
    ours = raw_members(raw_members(proxied.raw)["result"])
    assert proxied.status == 200
    assert ours.pop("resultType") == b'"complete"'
    meta = json.loads(ours.pop(names.META))
    assert meta.pop(names.META_SERVER_INFO)["name"] == "legacy-fixture"
    assert meta == json.loads(theirs.pop(names.META, b"{}"))
    assert ours == theirs


async def test_results_are_those_of_a_direct_session(bench: Bench, transport: Transport) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy, tasks=False)

    tools = {tool["name"] for tool in (await client.request(names.TOOLS_LIST)).result["tools"]}
    assert tools == QUIET.keys() | NOT_COMPARED

    asked = [(names.TOOLS_CALL, {"name": name, "arguments": given}) for name, given in QUIET.items()]
    direct = await answers(legacy.command("stdio"), asked)
    proxied = await together(client.call_tool(name, given, headers=REGION) for name, given in QUIET.items())

    for said, answer in zip(direct, proxied, strict=True):
        assert_same_result(said, answer)


async def test_errors_are_those_of_a_direct_session(bench: Bench, transport: Transport) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy, tasks=False)

    asked = [(names.TOOLS_CALL, {"name": name, "arguments": given}) for name, given in BROKEN]
    direct = await answers(legacy.command("stdio"), asked)
    proxied = await together(client.call_tool(name, given) for name, given in BROKEN)

    for said, answer in zip(direct, proxied, strict=True):
        if "error" in raw_members(said):
            assert raw_members(answer.raw)["error"] == raw_members(said)["error"]
        else:
            assert_same_result(said, answer)


async def test_a_task_ends_with_what_the_blocking_call_says(bench: Bench, transport: Transport) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy)
    blocking = await bench.client(proxy, tasks=False)

    arguments = {"delay": SLOW_S}
    task = await client.call_tool("return_structured", arguments)
    ended = await client.wait_task(task.task_id)
    direct = await blocking.call_tool("return_structured", arguments)

    inlined = raw_members(raw_members(ended.raw)["result"])["result"]
    assert inlined == raw_members(direct.raw)["result"]
