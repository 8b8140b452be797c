#!/usr/bin/env python3
"""The README's walk: a FastMCP 4 client before server-everything behind mcp-taskproxy.

    pip install fastmcp==4.1.4 fastmcp-tasks==4.1.4
    python walkthrough.py http://127.0.0.1:8080/mcp [SECONDS]

Importing `fastmcp_tasks` makes the client declare the Tasks extension; nothing else is special about it.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio
import fastmcp_tasks
from fastmcp import Client

SLOW_TOOL = "trigger-long-running-operation"


async def answer(message: str, *_: object) -> dict[str, Any]:
    """Stands for the user, whom the server asks something in the middle of a call."""
    print(f"  the server asks: {message}")
    return {"name": "Ada Lovelace"}


async def main(url: str, seconds: float) -> None:
    async with Client(url, elicitation_handler=answer) as client:
        print(f"calling {SLOW_TOOL} for {seconds:g} s")
        task = await fastmcp_tasks.call_tool_task(client, SLOW_TOOL, {"duration": seconds, "steps": 5})
        seen = None
        while (now := await task.status()).status == "working":
            if now.status_message != seen:
                print(f"  {now.status}: {now.status_message}")
                seen = now.status_message
            await anyio.sleep(0.5)
        print(f"  {now.status}: {(await task.result()).content[0].text}")

        print("calling a tool that asks its user")
        result = await client.call_tool("trigger-elicitation-request")
        print(f"  {result.content[0].text}")

        print(f"calling {SLOW_TOOL} for 60 s, and cancelling it")
        task = await fastmcp_tasks.call_tool_task(client, SLOW_TOOL, {"duration": 60, "steps": 60})
        await task.cancel()
        print(f"  {(await task.wait(timeout=10)).status}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 15.0)
