"""A client of the official Python SDK 2.x that starts the proxy before the legacy fixture.

    stdio_sdk2.py MODE COMMAND ARGUMENT...

Runs in the environment of tests/venvs/sdk2.txt; prints one JSON line a step. MODE is the SDK's own: `auto`
asks `server/discover` on the process that it then works with, `legacy` opens with `initialize`. The SDK
itself knows no tasks, so slow calls block.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.types import ElicitResult


def say(step: str, **facts: Any) -> None:
    print(json.dumps({"step": step, **facts}), flush=True)


def text(result: Any) -> str:
    return "".join(block.text for block in result.content)


async def answer(_context: object, params: Any) -> ElicitResult:
    say("asked", message=params.message)
    return ElicitResult(action="accept", content={"confirm": True})


async def main(mode: str, command: list[str]) -> None:
    server = StdioServerParameters(
        command=command[0], args=command[1:], env=dict(os.environ), cwd=os.getcwd()
    )
    async with Client(server, mode=mode, elicitation_callback=answer) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        say("listed", version=client.protocol_version, tools=tools)
        say("called", text=text(await client.call_tool("greet", {"name": "Ada"})))

        progress: list[float] = []

        async def on_progress(done: float, _total: float | None, _message: str | None) -> None:
            progress.append(done)

        steps = {"steps": 3, "delay": 0.1}
        await client.call_tool("progress_job", steps, progress_callback=on_progress)
        say("progress", seen=progress)
        slow = await client.call_tool("slow_compute", {"seconds": 1, "label": "watched"})
        say("slow", text=text(slow))

        say("answered", text=text(await client.call_tool("confirm_delete", {"filename": "f"})))

        with anyio.move_on_after(1) as waiting:
            await client.call_tool("cancellable_job", {"seconds": 60, "label": "job"})
        say("cancelled", gave_up=waiting.cancelled_caught)
        say("still there", text=text(await client.call_tool("greet", {"name": "Ada"})))
    say("ended")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2:])
