"""A FastMCP 4 client that starts the proxy before a server; prints one JSON line a step.

    stdio_fastmcp.py fixture|everything COMMAND ARGUMENT...

Runs in the environment of tests/venvs/fastmcp4.txt. `import fastmcp_tasks` makes it declare the Tasks
extension, and its `call_tool` wait for tasks by itself.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import anyio
import fastmcp_tasks
from fastmcp import Client
from fastmcp.client.transports import StdioTransport

SLOW = "trigger-long-running-operation"
CALLS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "fixture": {
        "quick": ("greet", {"name": "Ada"}),
        "slow": ("slow_compute", {"seconds": 1, "label": "watched"}),
        "unaware": ("slow_compute", {"seconds": 1, "label": "unaware"}),
        "asks": ("confirm_delete", {"filename": "f"}),
        "long": ("cancellable_job", {"seconds": 60, "label": "job"}),
    },
    "everything": {
        "quick": ("echo", {"message": "Ada"}),
        "slow": (SLOW, {"duration": 2, "steps": 2}),
        "unaware": (SLOW, {"duration": 2, "steps": 1}),
        "asks": ("trigger-elicitation-request", {}),
        "long": (SLOW, {"duration": 60, "steps": 60}),
    },
}


def say(step: str, **facts: Any) -> None:
    print(json.dumps({"step": step, **facts}), flush=True)


def text(result: Any) -> str:
    return "".join(block.text for block in result.content)


async def answer(message: str, _type: object, _params: object, _context: object) -> dict[str, Any]:
    say("asked", message=message)
    return {"confirm": True, "name": "Ada Lovelace"}


async def main(server: str, command: list[str]) -> None:
    calls = CALLS[server]
    proxy = StdioTransport(command[0], command[1:], env=dict(os.environ), cwd=os.getcwd(), keep_alive=False)
    async with Client(proxy, elicitation_handler=answer) as client:
        tools = [tool.name for tool in await client.list_tools()]
        say("listed", version=client.protocol_version, tools=tools)
        say("called", text=text(await client.call_tool(*calls["quick"])))

        task = await fastmcp_tasks.call_tool_task(client, *calls["slow"])
        status = (await task.status()).status
        say("slow", text=text(await task.result()), as_task=status)
        say("unaware", text=text(await client.call_tool(*calls["unaware"])))
        say("answered", text=text(await client.call_tool(*calls["asks"])))

        task = await fastmcp_tasks.call_tool_task(client, *calls["long"])
        await task.cancel()
        say("cancelled", status=(await task.wait(timeout=10)).status)
        say("still there", text=text(await client.call_tool(*calls["quick"])))
    say("ended")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2:])
