"""The echo server over HTTP: Streamable HTTP, or HTTP+SSE of 2024-11-05.

What is said goes out as it is: as a JSON body, or with its line ends made those of an event's data lines.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio
from aiohttp import web
from anyio.streams.stapled import StapledObjectStream

from tests.real.upstreams.echo import Echo, Said
from tests.real.upstreams.raw_json import value

MakeEcho: TypeAlias = Callable[[], Echo]
Queue: TypeAlias = StapledObjectStream[Said]

SESSION_ID = "Mcp-Session-Id"


def serve(make_echo: MakeEcho, transport: str, port: int) -> None:
    """Serve on a loopback port until the process is ended."""
    app = web.Application(client_max_size=1 << 30)
    if transport in ("http", "modern http"):
        streamable = Streamable(make_echo)
        app.router.add_post("/mcp", streamable.post)
        app.router.add_delete("/mcp", streamable.delete)
    else:
        old = OldSse(make_echo)
        app.router.add_get("/mcp", old.listen)
        app.router.add_post("/messages", old.post)
    web.run_app(app, host="127.0.0.1", port=port, print=None, shutdown_timeout=0.1)


def new_queue() -> Queue:
    sender, receiver = anyio.create_memory_object_stream[Said](math.inf)
    return StapledObjectStream(sender, receiver)


async def open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def event(text: bytes) -> bytes:
    """Each line end, of whatever kind, begins another data line, so that the length stays."""
    lines = text.replace(b"\r", b"\n").split(b"\n")
    return b"".join(b"data: " + line + b"\r\n" for line in lines) + b"\r\n"


@dataclass(slots=True)
class _Session:
    echo: Echo
    calls: dict[bytes, Queue] = field(default_factory=dict)

    def queue(self, call: bytes) -> Queue:
        return self.calls.setdefault(call, new_queue())


class Streamable:
    """A call is answered with JSON, or with a stream if more than the answer is said."""

    def __init__(self, make_echo: MakeEcho) -> None:
        self._make_echo = make_echo
        self._sessions: dict[str, _Session] = {}

    async def post(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        sid = request.headers.get(SESSION_ID) or uuid.uuid4().hex
        if sid not in self._sessions:
            self._sessions[sid] = _Session(self._make_echo())
        session = self._sessions[sid]
        for said in session.echo.take(raw):
            await session.queue(said.call).send(said)
        call = value(raw, "id")
        if call is None or value(raw, "method") is None:
            return web.Response(status=202)
        queue = session.queue(call)
        first = await queue.receive()
        if first.last:
            return web.Response(body=first.text, content_type="application/json", headers={SESSION_ID: sid})
        response = await open_stream(request)
        await response.write(event(first.text))
        while not (said := await queue.receive()).last:
            await response.write(event(said.text))
        await response.write(event(said.text))
        return response

    async def delete(self, request: web.Request) -> web.Response:
        self._sessions.pop(request.headers.get(SESSION_ID, ""), None)
        return web.Response()


class OldSse:
    """Whatever is said goes on the session's one stream."""

    def __init__(self, make_echo: MakeEcho) -> None:
        self._make_echo = make_echo
        self._sessions: dict[str, tuple[Echo, Queue]] = {}

    async def listen(self, request: web.Request) -> web.StreamResponse:
        sid = uuid.uuid4().hex
        _, queue = self._sessions[sid] = self._make_echo(), new_queue()
        response = await open_stream(request)
        await response.write(b"event: endpoint\r\ndata: /messages?sid=%s\r\n\r\n" % sid.encode())
        async for said in queue:
            await response.write(event(said.text))
        return response

    async def post(self, request: web.Request) -> web.Response:
        echo, queue = self._sessions[request.query["sid"]]
        for said in echo.take(await request.read()):
            await queue.send(said)
        return web.Response(status=202, text="Accepted")
