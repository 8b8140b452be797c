"""A server over HTTP of the one era or the other, with a tool for each way that a call can go; plain JSON.

either_era.py legacy|modern PORT JOURNAL: the journal has a line for each `hang` that began or was cancelled.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from typing import Any, Final

from aiohttp import web

VERSION: Final = "2026-07-28"
SERVER: Final = {"name": "either", "version": "1"}
TOOLS: Final = [
    {"name": name, "inputSchema": {"type": "object"}} for name in ("fast", "slow", "fail", "hang", "die")
]
PREFIX: Final = "io.modelcontextprotocol/"

sessions: set[str] = set()
running: dict[tuple[str | None, Any], asyncio.Future[Any]] = {}


async def result(era: str, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize" if era == "legacy":
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": SERVER}
        case "server/discover" if era == "modern":
            return {"supportedVersions": [VERSION], "capabilities": {"tools": {}}}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            said = [{"type": "text", "text": f"{params['name']} of {era}"}]
            return {"content": said, **(await worked(params["name"], params.get("arguments", {})))}
    return None


def note(event: str, label: str) -> None:
    with open(sys.argv[3], "a", encoding="utf-8") as journal:
        journal.write(f"{event} {label}\n")


async def worked(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the tool does, and what is in its result beside the text."""
    match tool:
        case "slow":
            await asyncio.sleep(0.8)
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


def error(rid: Any, code: int, message: str, status: int = 200, **data: Any) -> web.Response:
    said: dict[str, Any] = {"code": code, "message": message, **({"data": data} if data else {})}
    return web.json_response({"jsonrpc": "2.0", "id": rid, "error": said}, status=status)


def refusal(era: str, request: web.Request, message: dict[str, Any]) -> web.Response | None:
    """What is not of this era, or of no session that this process knows."""
    rid, session = message.get("id"), request.headers.get("Mcp-Session-Id")
    if era == "modern":
        meta = message.get("params", {}).get("_meta", {})
        if meta.get(PREFIX + "protocolVersion") != VERSION:
            return error(rid, -32022, "Unsupported protocol version", 400, supported=[VERSION], requested="?")
    elif message["method"] != "initialize":
        if session is None:
            return error(rid, -32600, "Bad Request: no session", 400)
        if session not in sessions:
            return error(rid, -32600, "Session not found", 404)
    return None


def application(era: str) -> web.Application:
    async def post(request: web.Request) -> web.Response:
        message = await request.json()
        if (refused := refusal(era, request, message)) is not None:
            return refused
        session = request.headers.get("Mcp-Session-Id")
        if "id" not in message:
            named = (session, message.get("params", {}).get("requestId"))
            if message["method"] == "notifications/cancelled" and named in running:
                running[named].set_result(None)
            return web.Response(status=202)
        stopped = running[session, message["id"]] = asyncio.get_running_loop().create_future()
        work = asyncio.ensure_future(result(era, message["method"], message.get("params", {})))  # noqa: TID251
        try:
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return error(message["id"], 0, "cancelled")
            found = work.result()
        finally:
            del running[session, message["id"]]
            work.cancel()
        if found is None:
            return error(message["id"], -32601, "Method not found", 404 if era == "modern" else 200)
        headers = {}
        if message["method"] == "initialize":
            headers["Mcp-Session-Id"] = uuid.uuid4().hex
            sessions.add(headers["Mcp-Session-Id"])
        if era == "modern":
            found |= {"resultType": "complete", "_meta": {PREFIX + "serverInfo": SERVER}}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": found}, headers=headers)

    made = web.Application()
    made.router.add_post("/mcp", post)
    return made


if __name__ == "__main__":
    web.run_app(
        application(sys.argv[1]),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        print=None,
        handler_cancellation=True,
    )
