"""A FastMCP 4 client before server-everything, step by step; prints one JSON line a step.

    fastmcp_walkthrough.py URL SECONDS

Runs in the environment of tests/venvs/fastmcp4.txt. `import fastmcp_tasks` is all it takes to make a
FastMCP client declare the Tasks extension. Its `call_tool` then polls by itself: at once, after 20 ms,
40 ms and so on, doubling up to the `pollIntervalMs` of the last answer, and from 20 ms again after each
answered question.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
import fastmcp_tasks
from fastmcp import Client

STEPS = 6
LOOK_EVERY_S = 0.25


def say(step: str, **facts: Any) -> None:
    print(json.dumps({"step": step, **facts}), flush=True)


async def answer(message: str, _type: object, _params: object, _context: object) -> dict[str, Any]:
    say("asked", message=message)
    return {"name": "Ada Lovelace"}


async def watched(client: Client[Any], seconds: float) -> None:
    """The slow tool with the handle in hand: its status messages, then its result."""
    arguments = {"duration": seconds, "steps": STEPS}
    task = await fastmcp_tasks.call_tool_task(client, "trigger-long-running-operation", arguments)
    messages: list[str | None] = []
    while (now := await task.status()).status == "working":
        if now.status_message not in messages:
            messages.append(now.status_message)
        await anyio.sleep(LOOK_EVERY_S)
    result = await task.result()
    say("watched", status=now.status, messages=messages, text=result.content[0].text)


async def unaware(client: Client[Any], seconds: float) -> None:
    """The slow tool called by a program that has never heard of tasks."""
    arguments = {"duration": seconds, "steps": STEPS}
    result = await client.call_tool("trigger-long-running-operation", arguments)
    say("unaware", text=result.content[0].text)


async def asked(client: Client[Any]) -> None:
    result = await client.call_tool("trigger-elicitation-request")
    say("answered", text="".join(block.text for block in result.content))


async def cancelled(client: Client[Any]) -> None:
    arguments = {"duration": 60, "steps": 60}
    task = await fastmcp_tasks.call_tool_task(client, "trigger-long-running-operation", arguments)
    await task.cancel()
    say("cancelled", status=(await task.wait(timeout=10)).status)
    echoed = await client.call_tool("echo", {"message": "still here"})
    say("echoed", text=echoed.content[0].text)


async def main(url: str, seconds: float) -> None:
    async with Client(url, elicitation_handler=answer) as client:
        extensions = getattr(client.server_capabilities, "extensions", None)
        tools = [tool.name for tool in await client.list_tools()]
        say("connected", version=client.protocol_version, extensions=extensions, tools=tools)
        async with anyio.create_task_group() as both:
            both.start_soon(watched, client, seconds)
            both.start_soon(unaware, client, seconds)
        await asked(client)
        await cancelled(client)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], float(sys.argv[2]))
