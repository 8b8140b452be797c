"""A server of the official Python SDK 2.x, to be spoken to in the modern way; a port, or none for stdio.

    modern_sdk2.py [PORT]

Runs in the environment of tests/venvs/sdk2.txt. It asks by its results, as modern servers do, and tells of
changes on listen streams alone.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CreateMessageRequest, ElicitRequest, InputRequiredResult

server = MCPServer("modern-sdk2", version="2")
NOTE = "note://one"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


@server.tool()
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@server.tool()
async def numbers() -> list[int]:
    """Structured content that is no object in the modern era."""
    return [1, 2]


@server.tool()
async def count(steps: int, ctx: Context[Any, Any]) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
        await anyio.sleep(0.02)
    return "counted"


@server.tool()
async def ask(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Two rounds: a form for the user, then a question for the model."""
    answers = ctx.input_responses or {}
    if "model" in answers:
        return f"{ctx.request_state}: {answers['model'].content.text}"
    if "who" in answers:
        name = answers["who"].content["name"]
        message = {"role": "user", "content": {"type": "text", "text": "?"}}
        model = CreateMessageRequest(params={"messages": [message], "maxTokens": 5})
        return InputRequiredResult(input_requests={"model": model}, request_state=name)
    who = ElicitRequest(params={"message": "Name?", "requestedSchema": FORM})
    return InputRequiredResult(input_requests={"who": who}, request_state="first")


@server.tool()
async def wait(mark: str) -> str:
    """Until it is cancelled, which it notes in the file."""
    file = anyio.Path(mark)
    await file.write_text("started")
    try:
        await anyio.sleep(60)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await file.write_text("cancelled")
        raise
    return "waited"


@server.tool()
async def touch(ctx: Context[Any, Any]) -> str:
    await ctx.notify_resource_updated(NOTE)
    return "touched"


@server.tool()
async def fail() -> str:
    raise RuntimeError("no luck")


@server.prompt()
def hello(name: str) -> str:
    return f"Say hello to {name}"


@server.resource(NOTE)
def note() -> str:
    return "the note"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
