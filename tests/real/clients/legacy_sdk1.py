"""A client of the official Python SDK 1.x before a server that speaks the modern era alone.

    legacy_sdk1.py TARGET MARK

Runs in the environment of tests/venvs/sdk1.txt; prints one JSON line a step. TARGET is JSON: {"url"} or
{"command"}. MARK is a file in which the server's tool `wait` notes what happens to it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client
from mcp import types as t
from mcp.client.streamable_http import streamable_http_client

updated = anyio.Event()


def say(step: str, **facts: Any) -> None:
    print(json.dumps({"step": step, **facts}), flush=True)


@asynccontextmanager
async def streams(target: dict[str, Any]) -> AsyncIterator[Any]:
    if "url" in target:
        async with streamable_http_client(target["url"]) as (read, write, _session_id):
            yield read, write
    else:
        command, *arguments = target["command"]
        server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ), cwd=os.getcwd())
        async with stdio_client(server) as pair:
            yield pair


async def elicit(_context: object, params: t.ElicitRequestParams) -> t.ElicitResult:
    say("elicited", message=params.message)
    return t.ElicitResult(action="accept", content={"name": "Ada"})


async def sample(_context: object, _params: t.CreateMessageRequestParams) -> t.CreateMessageResult:
    return t.CreateMessageResult(role="assistant", content=t.TextContent(type="text", text="42"), model="m")


async def noticed(message: Any) -> None:
    if isinstance(message, t.ServerNotification) and message.root.method == "notifications/resources/updated":
        updated.set()


def text(result: t.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, t.TextContent))


async def main(target: dict[str, Any], mark: str) -> None:
    async with (
        streams(target) as (read, write),
        ClientSession(
            read, write, elicitation_callback=elicit, sampling_callback=sample, message_handler=noticed
        ) as session,
    ):
        said = await session.initialize()
        say("greeted", version=said.protocolVersion, server=said.serverInfo.name)
        say("tools", names=[tool.name for tool in (await session.list_tools()).tools])
        say("called", text=text(await session.call_tool("greet", {"name": "Ada"})))
        say("numbers", text=text(await session.call_tool("numbers", {})))
        progress: list[float] = []

        async def on_progress(done: float, _total: float | None, _message: str | None) -> None:
            progress.append(done)

        await session.call_tool("count", {"steps": 3}, progress_callback=on_progress)
        say("progress", seen=progress)
        say("asked", text=text(await session.call_tool("ask", {})))
        say("failed", is_error=(await session.call_tool("fail", {})).isError)
        prompt = (await session.get_prompt("hello", {"name": "Ada"})).messages[0].content
        say("prompted", names=[p.name for p in (await session.list_prompts()).prompts], text=prompt.text)
        uri = (await session.list_resources()).resources[0].uri
        say("read", text=(await session.read_resource(uri)).contents[0].text)
        try:
            await session.read_resource(t.AnyUrl("note://none"))
        except McpError as exc:
            say("missing", code=exc.error.code)
        await session.subscribe_resource(uri)
        await session.call_tool("touch", {})
        with anyio.fail_after(10):
            await updated.wait()
        await session.unsubscribe_resource(uri)
        say("updated")
        await session.send_ping()
        try:
            await session.call_tool("wait", {"mark": mark}, read_timeout_seconds=timedelta(seconds=1))
        except McpError:
            request = t.CancelledNotification(
                params=t.CancelledNotificationParams(requestId=session._request_id - 1)
            )
            await session.send_notification(t.ClientNotification(request))
        say("still there", text=text(await session.call_tool("greet", {"name": "Ada"})))
    say("ended")


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.argv[1]), sys.argv[2])
