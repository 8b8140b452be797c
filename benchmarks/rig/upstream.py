"""The server behind the proxies: legacy Streamable HTTP that answers at once and costs little itself.

Four tools. `answer_json` and `answer_events` give the argument `label` back, as a JSON body and as an event
stream; `big` gives a text of BIG_BYTES; `wait` answers after `seconds`.

    python -m benchmarks.rig.upstream PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

BIG_BYTES: Final = 50 * 1024 * 1024
_ROW: Final = r"2026-07-28T09:30:00Z,\"berlin, mitte\",17.25,ok\n"  # as JSON has it: escapes in every row

_TOOLS: Final = ("answer_json", "answer_events", "big", "wait")
_LISTED: Final = [{"name": name, "inputSchema": {"type": "object"}} for name in _TOOLS]


def session_id(version: str) -> str:
    """Of the one session that there is at a protocol version."""
    return f"3c1f0a52d8b64f0e9a7b-{version}"


def tool_result(text: str) -> str:
    """A tool result as raw JSON; `text` is the inside of a JSON string."""
    return '{"content":[{"type":"text","text":"' + text + '"}],"isError":false}'


BIG_RESULT: Final = tool_result(_ROW * (BIG_BYTES // len(_ROW)))


async def serve(http: web.BaseRequest) -> web.StreamResponse:
    if http.method != "POST":
        return web.Response(
            status=HTTPStatus.OK if http.method == "DELETE" else HTTPStatus.METHOD_NOT_ALLOWED
        )
    message = json.loads(await http.read())
    if "id" not in message:
        return web.Response(status=HTTPStatus.ACCEPTED)
    params = message.get("params", {})
    outcome = await _outcome(message["method"], params)
    body = f'{{"jsonrpc":"2.0","id":{json.dumps(message["id"])},{outcome}}}'.encode()
    session = http.headers.get("Mcp-Session-Id") or session_id(params.get("protocolVersion", "none"))
    headers = {"Mcp-Session-Id": session}
    if params.get("name") != "answer_events":
        return web.Response(body=body, headers=headers, content_type="application/json")
    stream = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
    await stream.prepare(http)
    await stream.write(b"event: message\ndata: " + body + b"\n\n")
    await stream.write_eof()
    return stream


async def _outcome(method: str, params: dict[str, Any]) -> str:
    """The member `result` or `error` of the answer."""
    match method:
        case "initialize":
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "benchmark", "version": "1"},
            }
            return f'"result":{json.dumps(result)}'
        case "tools/list":
            return f'"result":{json.dumps({"tools": _LISTED})}'
        case "tools/call":
            return f'"result":{await _call(params["name"], params["arguments"])}'
    return '"error":{"code":-32601,"message":"Method not found"}'


async def _call(name: str, arguments: dict[str, Any]) -> str:
    if name == "big":
        return BIG_RESULT
    if name == "wait":
        await asyncio.sleep(arguments["seconds"])
    return tool_result(arguments["label"])


async def main(port: int) -> None:
    runner = web.ServerRunner(web.Server(serve))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
