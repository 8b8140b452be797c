"""A server of the one era or the other, with a tool for each way that a call can go.

    either_era.py legacy|modern PORT|stdio [JOURNAL]

The journal has a line for each `hang` that began or was cancelled.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # over stdio there are many of these, which should start quickly
    from aiohttp import web

Json = dict[str, Any]
Ask = Callable[[str, Json], Awaitable[Json]]
"""Asks the client in the middle of a call: the result of its answer."""
Say = Callable[[Json], Awaitable[None]]

VERSION: Final = "2026-07-28"
SERVER: Final = {"name": "either", "version": "1"}
TOOLS: Final = [
    {"name": name, "inputSchema": {"type": "object"}}
    for name in ("fast", "slow", "ask", "fail", "hang", "die")
]
PREFIX: Final = "io.modelcontextprotocol/"
SLOW_S: Final = 0.8
FORM: Final[Json] = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}
STATE: Final = "asked-once"


async def result(era: str, method: str, params: Json, ask: Ask) -> Json | None:
    match method:
        case "initialize" if era == "legacy":
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": SERVER}
        case "server/discover" if era == "modern":
            return {"supportedVersions": [VERSION], "capabilities": {"tools": {}}}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            said = [{"type": "text", "text": f"{params['name']} of {era}"}]
            return {"content": said, **(await worked(era, params, ask))}
    return None


def note(event: str, label: str) -> None:
    with open(sys.argv[3], "a", encoding="utf-8") as journal:
        journal.write(f"{event} {label}\n")


async def worked(era: str, params: Json, ask: Ask) -> Json:
    """What the tool does, and what is in its result beside the usual text."""
    arguments = params.get("arguments", {})
    match params["name"]:
        case "slow":
            await asyncio.sleep(arguments.get("seconds", SLOW_S))
        case "ask" if era == "legacy":
            return greeting(await ask("elicitation/create", FORM))
        case "ask" if params.get("requestState") == STATE:
            return greeting(params["inputResponses"]["who"])
        case "ask":
            who = {"method": "elicitation/create", "params": FORM}
            return {"resultType": "input_required", "inputRequests": {"who": who}, "requestState": STATE}
        case "fail":
            return {"isError": True}
        case "hang":
            note("began", arguments["label"])
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                note("cancelled", arguments["label"])
                raise
        case "die":
            os._exit(1)
    return {}


def greeting(answer: Json) -> Json:
    return {"content": [{"type": "text", "text": f"Hello, {answer['content']['name']}"}]}


def error(rid: Any, code: int, message: str, **data: Any) -> Json:
    said: Json = {"code": code, "message": message, **({"data": data} if data else {})}
    return {"jsonrpc": "2.0", "id": rid, "error": said}


class Server:
    """Whatever carries its messages. Requests are told apart by the session, if there are some, and their
    id."""

    def __init__(self, era: str) -> None:
        self.era = era
        self._running: dict[tuple[str | None, Any], asyncio.Task[Json]] = {}
        self._asked: dict[str, asyncio.Future[Json]] = {}

    async def answer(self, message: Json, session: str | None, say: Say) -> Json:
        """To a request. `say` brings the client something on the way."""

        async def ask(method: str, params: Json) -> Json:
            rid = uuid.uuid4().hex
            reply: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
            self._asked[rid] = reply
            await say({"jsonrpc": "2.0", "id": rid, "method": method, "params": params})
            return await reply

        named = (session, message["id"])
        work = self._running[named] = asyncio.ensure_future(self._work(message, ask))  # noqa: TID251
        try:
            await asyncio.wait([work])
            answered: Json = error(message["id"], 0, "cancelled") if work.cancelled() else work.result()
            return answered
        finally:
            del self._running[named]
            work.cancel()

    def heard(self, message: Json, session: str | None) -> None:
        """A notification, or an answer to a question."""
        if "method" not in message:
            self._asked.pop(message["id"]).set_result(message["result"])
        elif message["method"] == "notifications/cancelled":
            named = (session, message["params"]["requestId"])
            if named in self._running:
                self._running[named].cancel()

    async def _work(self, message: Json, ask: Ask) -> Json:
        method, params = message["method"], message.get("params", {})
        if self.era == "modern" and params.get("_meta", {}).get(PREFIX + "protocolVersion") != VERSION:
            more = {"supported": [VERSION], "requested": "?"}
            return error(message["id"], -32022, "Unsupported protocol version", **more)
        found = await result(self.era, method, params, ask)
        if found is None:
            return error(message["id"], -32601, "Method not found")
        if self.era == "modern":
            found = {"resultType": "complete", "_meta": {PREFIX + "serverInfo": SERVER}, **found}
        return {"jsonrpc": "2.0", "id": message["id"], "result": found}


# ------------------------------------------------------------------------------ over stdio


async def on_stdio(server: Server) -> None:
    async def say(message: Json) -> None:
        print(json.dumps(message), flush=True)

    async def serve(message: Json) -> None:
        await say(await server.answer(message, None, say))

    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with asyncio.TaskGroup() as requests:
        while line := await reader.readline():
            message = json.loads(line)
            if "method" in message and "id" in message:
                requests.create_task(serve(message))
            else:
                server.heard(message, None)
        raise SystemExit


# ------------------------------------------------------------------------------ over HTTP

HTTP_STATUS: Final = {-32022: 400, -32601: 404}
"""Of errors of the modern era; where they are not named it is 200."""


def application(server: Server) -> web.Application:
    """Answers are plain JSON; those of legacy calls that ask become an event stream."""
    from aiohttp import web

    sessions: set[str] = set()

    def refused(message: Json, session: str | None) -> web.Response | None:
        """What is of no session that this process knows."""
        if server.era == "modern" or message.get("method") == "initialize" or session in sessions:
            return None
        status, words = (400, "Bad Request: no session") if session is None else (404, "Session not found")
        return web.json_response(error(message.get("id"), -32600, words), status=status)

    async def post(request: web.Request) -> web.StreamResponse:
        message, session = await request.json(), request.headers.get("Mcp-Session-Id")
        if (refusal := refused(message, session)) is not None:
            return refusal
        if "id" not in message or "method" not in message:
            server.heard(message, session)
            return web.Response(status=202)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

        async def say(event: Json) -> None:
            if not stream.prepared:
                await stream.prepare(request)
            await stream.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        answer = await server.answer(message, session, say)
        if stream.prepared:
            await say(answer)
            return stream
        code = answer.get("error", {}).get("code")
        status = HTTP_STATUS.get(code, 200) if server.era == "modern" else 200
        headers = {}
        if message["method"] == "initialize" and "result" in answer:
            headers["Mcp-Session-Id"] = uuid.uuid4().hex
            sessions.add(headers["Mcp-Session-Id"])
        return web.json_response(answer, status=status, headers=headers)

    made = web.Application()
    made.router.add_post("/mcp", post)
    return made


def main(era: str, where: str) -> None:
    if where == "stdio":
        asyncio.run(on_stdio(Server(era)))
        return
    from aiohttp import web

    app = application(Server(era))
    web.run_app(app, host="127.0.0.1", port=int(where), print=None, handler_cancellation=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
