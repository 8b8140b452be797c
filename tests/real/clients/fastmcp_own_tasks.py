"""A FastMCP 4 client of a server that has tasks of its own; `fastmcp_own_tasks.py URL`, a JSON line a step.

Runs in the environment of tests/venvs/fastmcp4.txt.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
import fastmcp_tasks
from fastmcp import Client
from fastmcp.exceptions import ToolError


def say(step: str, **facts: Any) -> None:
    print(json.dumps({"step": step, **facts}), flush=True)


async def answer(message: str, _type: object, _params: object, _context: object) -> dict[str, Any]:
    say("asked", message=message)
    return {"name": "Ada"}


def text(result: Any) -> str:
    return "".join(block.text for block in result.content)


async def main(url: str) -> None:
    async with Client(url, elicitation_handler=answer) as client:
        extensions = getattr(client.server_capabilities, "extensions", None)
        say("connected", version=client.protocol_version, extensions=sorted(extensions or {}))
        say("plain", text=text(await client.call_tool("plain", {"text": "x"})))
        task = await fastmcp_tasks.call_tool_task(client, "slow", {"seconds": 0.5})
        say("made", form="ours" if task.task_id.startswith("tpx-") else "theirs")
        statuses = {(await task.status()).status}
        say("slow", text=text(await task.result()), statuses=sorted(statuses))
        say("ended", status=(await task.status()).status)
        say("answered", text=text(await client.call_tool("ask", {})))
        task = await fastmcp_tasks.call_tool_task(client, "ask", {})
        parked = await task.wait(state="input_required", timeout=20)
        say("parked", form=task.task_id.startswith("tpx-"), questions=len(parked.input_requests or {}))
        say("task answered", text=text(await task.result()), status=(await task.status()).status)
        try:
            await client.call_tool("failing", {})
        except ToolError as exc:
            say("failed", message=str(exc))
        task = await fastmcp_tasks.call_tool_task(client, "failing", {})
        say("task failed", status=(await task.wait(timeout=20)).status)
        task = await fastmcp_tasks.call_tool_task(client, "slow", {"seconds": 60})
        await task.cancel()
        say("cancelled", status=(await task.wait(timeout=10)).status)
        say("still there", text=text(await client.call_tool("plain", {"text": "y"})))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
