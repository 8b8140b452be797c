"""One HTTP upstream that is another server for each owner, so that tests can share the proxy before it."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

from proxy.protocol import names
from tests.upstream.fake_http import FakeHttp, Handler, Seen, event, is_request, status
from tests.upstream.fake_sse import FakeSse

DONE: Final[dict[str, Any]] = {"content": [{"type": "text", "text": "done"}]}
INITIALIZED: Final[dict[str, Any]] = {
    "protocolVersion": names.LATEST_LEGACY,
    "capabilities": {"tools": {}, "logging": {}},
    "serverInfo": {"name": "http upstream", "version": "1"},
}
RESULTS: Final[dict[str, dict[str, Any]]] = {
    names.INITIALIZE: INITIALIZED,
    names.TOOLS_LIST: {"tools": []},
    names.TOOLS_CALL: DONE,
}


def answer_to(seen: Seen) -> bytes:
    """What a legacy server that does its work says."""
    message = seen.message
    result = RESULTS.get(message["method"])
    outcome = {"error": {"code": -32601, "message": "unknown"}} if result is None else {"result": result}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}).encode()


async def well(seen: Seen) -> web.StreamResponse:
    """The usual behaviour; the handshake brings a session id."""
    if not is_request(seen):
        return web.Response(status=202)
    is_first = seen.message["method"] == names.INITIALIZE
    headers = {names.H_SESSION_ID: uuid.uuid4().hex} if is_first else {}
    return web.Response(body=answer_to(seen), content_type="application/json", headers=headers)


def in_calls(*handlers: Handler) -> Handler:
    """One of these for each tool call, in turn; all else, and the calls after them, are played well."""
    left = list(handlers)

    async def play(seen: Seen) -> web.StreamResponse:
        is_call = is_request(seen) and seen.message["method"] == names.TOOLS_CALL
        return await (left.pop(0) if is_call and left else well)(seen)

    return play


def calls(server: FakeHttp) -> list[Seen]:
    """The tool calls that came, oldest first."""
    return [s for s in server.by("POST") if is_request(s) and s.message["method"] == names.TOOLS_CALL]


class OwnedHttp:
    """Serves each owner (`Authorization`) by the server that `owned_by` gave it, others well."""

    def __init__(self, http: FakeHttp) -> None:
        self.url = http.url
        self._owned: dict[str, FakeHttp] = {}
        for method in ("POST", "GET", "DELETE"):
            http.handlers[method] = self._play

    def owned_by(self, authorization: str) -> FakeHttp:
        """A server to be told how to behave; it only serves through this one."""
        server = FakeHttp()
        server.handlers["POST"] = well
        self._owned[authorization] = server
        return server

    async def _play(self, seen: Seen) -> web.StreamResponse:
        server = self._owned.get(seen.headers.get("Authorization", ""))
        if server is None:
            return await (well if seen.method == "POST" else status(405))(seen)
        server.seen.append(seen)
        return await server.handlers[seen.method](seen)


@asynccontextmanager
async def owned_http() -> AsyncIterator[OwnedHttp]:
    async with FakeHttp().serving() as http:
        yield OwnedHttp(http)


class OldServer(FakeSse):
    """An HTTP+SSE server that knows no Streamable HTTP; `in_call` plays its tool calls."""

    def __init__(self, http: FakeHttp) -> None:
        super().__init__(http)
        self.in_call: Handler = self.work

    async def answer(self, seen: Seen) -> web.StreamResponse:
        if seen.path == "/mcp":
            return web.Response(status=405)
        is_call = is_request(seen) and seen.message["method"] == names.TOOLS_CALL
        return await (self.in_call if is_call else self.work)(seen)

    async def work(self, seen: Seen) -> web.StreamResponse:
        if is_request(seen):
            await self.say(event(answer_to(seen)))
        return web.Response(status=202)
