"""Plain calls of every tool of the legacy fixture, by a real client: what to call, and what comes back."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import anyio

from tests.real.task_client import Refused, TaskClient

ASKING: Final[dict[str, dict[str, Any]]] = {
    "confirm_delete": {"filename": "f"},
    "multi_input": {},
    "test_tool_with_task": {},
    "sample_llm": {"prompt": "x"},
    "list_roots": {},
    "wizard": {"pause": 0},
    "elicit_unrelated": {},
    "elicit_url": {},
    "elicit_with_timeout": {"timeout": 10},
    "test_sampling": {"prompt": "x"},
    "test_elicitation": {"message": "x"},
    "test_elicitation_sep1034_defaults": {},
    "test_elicitation_sep1330_enums": {},
    "test_input_required_result_elicitation": {},
    "test_streaming_elicitation": {},
    "test_input_required_result_sampling": {},
    "test_missing_capability": {},
    "test_input_required_result_list_roots": {},
    "test_input_required_result_request_state": {},
    "test_input_required_result_tampered_state": {},
    "test_input_required_result_multiple_inputs": {},
    "test_input_required_result_multi_round": {},
    "test_input_required_result_capabilities": {},
}
QUIET: Final[dict[str, dict[str, Any]]] = {
    "greet": {"name": "Ada"},
    "slow_compute": {"seconds": 0.1, "label": "plain"},
    "failing_job": {},
    "protocol_error_job": {},
    "progress_job": {"steps": 3, "delay": 0.01},
    "log_messages": {"count": 2, "delay": 0},
    "return_image": {},
    "return_audio": {},
    "return_structured": {"n": 3},
    "return_large_text": {"kib": 100},
    "cancellable_job": {"seconds": 0.1, "label": "plain"},
    "echo_request": {"any": [1, None, "ü"]},
    "raise_exception": {},
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
    "json_schema_2020_12_tool": {"name": "Ada", "contactMethod": "phone", "phone": "1"},
    "test_x_mcp_header": {"region": "eu"},
    "touch_resource": {},
}
OF_THE_PROCESS: Final = {"cancel_log", "call_counts", "count_call"}
"""They tell what was called before in the server's process; called, but not compared."""
LAST: Final = ("test_trigger_tool_change", "test_trigger_prompt_change")
LEFT_OUT: Final = {"crash"}
"""It ends the server, which other clients of the test use; tests/real/test_stdio_legacy.py has it."""
COUNTED: Final = re.compile(r"dynamic_(tool|prompt)_\d+")


TOOLS: Final = {*QUIET, *ASKING, *OF_THE_PROCESS, *LAST, *LEFT_OUT}
"""All that the fixture has before its tools are changed."""


async def plain_calls(client: TaskClient) -> dict[str, Any]:
    """What plain calls of all tools bring. Those that ask, one after the other: ext-tasks wants it so."""
    brought: dict[str, Any] = {}

    async def call(tool: str, arguments: dict[str, Any]) -> None:
        try:
            brought[tool] = await client.call(tool, **arguments)
        except Refused as exc:
            brought[tool] = [exc.code, str(exc)]

    async with anyio.create_task_group() as calls:
        for tool, arguments in QUIET.items():
            calls.start_soon(call, tool, arguments)
    for tool, arguments in ASKING.items():
        await call(tool, arguments)
    for tool in OF_THE_PROCESS:
        assert not (await client.call(tool, key="plain")).get("isError")
    for tool in LAST:
        await call(tool, {})
    seen = brought["echo_request"].pop("structuredContent")
    brought["echo_request"] = {"arguments": seen["arguments"], "client": seen["client"]}
    return {tool: json.loads(COUNTED.sub("dynamic", json.dumps(result))) for tool, result in brought.items()}
