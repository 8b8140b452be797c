"""A client of the official Python SDK 1.x that has its tool calls run as 2025 tasks.

    tasks_sdk1.py TARGET

Runs in the environment of tests/venvs/sdk1.txt. TARGET is JSON: {"url", "headers"}, or {"command"}. What it
is to do, and what it says, is a line of JSON each; tests/real/task_client.py has the words. The SDK's own
`session.experimental` does the work. While a question is open the SDK reads no other message of the session.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client
from mcp import types as t
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

warnings.simplefilter("ignore", DeprecationWarning)  # the SDK's own, about `session.experimental`

TOKEN: Final = "sdk1-progress"


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def plain(model: Any) -> Any:
    return model.model_dump(by_alias=True, exclude_none=True, mode="json")


class Asking:
    """Questions of the server, put to whoever reads our stdout."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, anyio.Event] = {}
        self._answers: dict[int, Any] = {}

    async def ask(self, method: str, params: Any) -> Any:
        number = next(self._numbers)
        self._waiting[number] = anyio.Event()
        say(asked=number, method=method, params=plain(params) if params is not None else {})
        await self._waiting[number].wait()
        return self._answers.pop(number)

    def answer(self, number: int, result: Any) -> None:
        self._answers[number] = result
        self._waiting.pop(number).set()

    async def elicit(self, _context: object, params: t.ElicitRequestParams) -> t.ElicitResult:
        return t.ElicitResult(**await self.ask("elicitation/create", params))

    async def sample(self, _context: object, params: t.CreateMessageRequestParams) -> t.CreateMessageResult:
        return t.CreateMessageResult(**await self.ask("sampling/createMessage", params))

    async def roots(self, _context: object) -> t.ListRootsResult:
        return t.ListRootsResult(**await self.ask("roots/list", None))


async def noticed(message: Any) -> None:
    """What the SDK hands to its message handler: here the notifications are of interest."""
    if not isinstance(message, t.ServerNotification):
        return
    said = plain(message.root)
    params = said.get("params", {})
    match said["method"]:
        case "notifications/progress":
            say(event="progress", **params)
        case "notifications/tasks/status":
            say(event="notified", task=params)
        case "notifications/message":
            say(event="logged", **params)


@asynccontextmanager
async def streams(target: dict[str, Any]) -> AsyncIterator[Any]:
    if "url" in target:
        async with (
            create_mcp_http_client(headers=target.get("headers")) as http,
            streamable_http_client(target["url"], http_client=http) as (read, write, _session_id),
        ):
            yield read, write
        return
    command, *arguments = target["command"]
    server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ), cwd=os.getcwd())
    async with stdio_client(server) as (read, write):
        yield read, write


class Program:
    """Does what it is told, several things at once."""

    def __init__(self, target: dict[str, Any]) -> None:
        self._target = target
        self._asking = Asking()
        self._leave = anyio.Event()
        self._left = anyio.Event()
        self._session: ClientSession

    async def obey(self) -> None:
        async with anyio.create_task_group() as doing:
            async for line in anyio.wrap_file(sys.stdin):
                told = json.loads(line)
                if "answer" in told:
                    self._asking.answer(told["answer"], told["result"])
                elif told["do"] == "connect":
                    await doing.start(self._connect, told["n"])
                else:
                    doing.start_soon(self._do, told)
            doing.cancel_scope.cancel()

    async def _connect(self, n: int, *, task_status: Any) -> None:
        """Hold a session until it is to be left; the SDK wants it opened and closed by one task."""
        self._leave, self._left = anyio.Event(), anyio.Event()
        try:
            async with self._connected() as said:
                say(n=n, done={"version": said.protocolVersion, "capabilities": plain(said.capabilities)})
                task_status.started()
                await self._leave.wait()
        except Exception as exc:  # the SDK's way to say that the connection broke
            say(event="complained", message=repr(exc))
            if not self._leave.is_set():
                raise
        finally:
            self._left.set()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[t.InitializeResult]:
        asking = self._asking
        async with (
            streams(self._target) as (read, write),
            ClientSession(
                read,
                write,
                elicitation_callback=asking.elicit,
                sampling_callback=asking.sample,
                list_roots_callback=asking.roots,
                message_handler=noticed,
            ) as self._session,
        ):
            yield await self._session.initialize()

    async def _do(self, told: dict[str, Any]) -> None:
        n, what = told.pop("n"), told.pop("do")
        try:
            done = await getattr(self, what)(**told)
        except McpError as exc:
            say(n=n, error={"code": exc.error.code, "message": exc.error.message, "data": exc.error.data})
        except Exception as exc:  # noqa: BLE001 - whatever the SDK makes of what it got, the test is to judge it
            say(n=n, error={"code": None, "message": f"{type(exc).__name__}: {exc}"})
        else:
            say(n=n, done=done)

    # -- what it can be told ------------------------------------------------------------------------

    async def close(self) -> None:
        self._leave.set()
        await self._left.wait()

    async def tools(self) -> Any:
        return [plain(tool) for tool in (await self._session.list_tools()).tools]

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        return plain(await self._session.call_tool(name, arguments))

    async def start(self, name: str, arguments: dict[str, Any], ttl: int) -> Any:
        made = await self._session.experimental.call_tool_as_task(
            name, arguments, ttl=ttl, meta={"progressToken": TOKEN}
        )
        return plain(made)

    async def run(self, name: str, arguments: dict[str, Any], ttl: int) -> Any:
        made = await self.start(name, arguments, ttl)
        say(event="created", task=made["task"])
        return await self.finish(made["task"]["taskId"])

    async def finish(self, task: str) -> Any:
        """As the SDK's examples have it: poll, and fetch the result when there is one or it asks."""
        async for status in self._session.experimental.poll_task(task):
            say(event="polled", task=plain(status))
            if status.status == "input_required":
                break
        return plain(await self._session.experimental.get_task_result(task, t.CallToolResult))

    async def result(self, task: str) -> Any:
        return plain(await self._session.experimental.get_task_result(task, t.CallToolResult))

    async def get(self, task: str) -> Any:
        return plain(await self._session.experimental.get_task(task))

    async def cancel(self, task: str) -> Any:
        return plain(await self._session.experimental.cancel_task(task))

    async def list(self) -> Any:
        found, cursor = [], None
        while True:
            page = await self._session.experimental.list_tasks(cursor)
            found += [plain(task) for task in page.tasks]
            if (cursor := page.nextCursor) is None:
                return found


if __name__ == "__main__":
    anyio.run(Program(json.loads(sys.argv[1])).obey)
