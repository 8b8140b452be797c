"""The server over Streamable HTTP. With event ids its streams can be resumed while its process lives."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import anyio
from aiohttp import web
from anyio.abc import TaskGroup

from tests.faults.journal import Journal
from tests.faults.server.tools import Session
from tests.real.upstreams.raw_json import flat, value

SESSION_ID: Final = "Mcp-Session-Id"
RETRY_MS: Final = 100
_IN_STREAM: Final = frozenset({b'"tools/call"'})
"""Requests that are answered by an event stream; the others by JSON."""


@dataclass(eq=False)
class Stream:
    """What is said in one call, kept for those who come back."""

    name: str
    texts: list[bytes] = field(default_factory=list)
    ended: bool = False
    changed: anyio.Event = field(default_factory=anyio.Event)

    def add(self, text: bytes, last: bool) -> None:
        self.texts.append(text)
        self.ended = last
        self.changed.set()
        self.changed = anyio.Event()


class _Session:
    def __init__(self, journal: Journal, group: TaskGroup) -> None:
        self.streams: dict[str, Stream] = {}
        self.gone = anyio.Event()
        self._inner = Session(journal, group, self._say)

    def open(self, rid: str) -> Stream:
        return self.streams.setdefault(rid, Stream(rid))

    def take(self, raw: bytes) -> None:
        self._inner.take(raw)

    def end(self) -> None:
        self._inner.end()
        self.gone.set()

    def _say(self, call: str, text: bytes, last: bool) -> None:
        self.open(call).add(text, last)


class Server:
    """The handlers of the endpoint."""

    def __init__(self, journal: Journal, group: TaskGroup, *, resumable: bool) -> None:
        self._journal = journal
        self._group = group
        self._resumable = resumable
        self._sessions: dict[str, _Session] = {}

    async def post(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        method, rid = value(raw, "method"), value(raw, "id")
        if method in (b'"initialize"', b'"server/discover"'):
            sid = uuid.uuid4().hex
            session = _Session(self._journal, self._group)
            if method == b'"initialize"':
                self._sessions[sid] = session
        else:
            sid = request.headers.get(SESSION_ID, "")
            found = self._sessions.get(sid)
            if found is None:
                return web.Response(status=HTTPStatus.NOT_FOUND)
            session = found
        if method is None or rid is None:
            session.take(raw)
            return web.Response(status=HTTPStatus.ACCEPTED)
        stream = session.open(rid.decode().strip('"'))
        session.take(raw)
        if method in _IN_STREAM:
            return await self._send(request, session, stream, 0)
        while not stream.ended:
            await stream.changed.wait()
        return web.Response(body=stream.texts[-1], content_type="application/json", headers={SESSION_ID: sid})

    async def get(self, request: web.Request) -> web.StreamResponse:
        session = self._sessions.get(request.headers.get(SESSION_ID, ""))
        if session is None:
            return web.Response(status=HTTPStatus.NOT_FOUND)
        name, _, number = request.headers.get("Last-Event-ID", "").rpartition("-")
        if name:
            return await self._send(request, session, session.open(name), int(number))
        response = await _opened(request)
        await session.gone.wait()
        return response

    async def delete(self, request: web.Request) -> web.StreamResponse:
        session = self._sessions.pop(request.headers.get(SESSION_ID, ""), None)
        if session is not None:
            session.end()
        return web.Response()

    async def _send(
        self, request: web.Request, session: _Session, stream: Stream, sent: int
    ) -> web.StreamResponse:
        """The stream from after its `sent`th event, to its end. Whoever is gone is gone: the call goes on."""
        response = await _opened(request)
        try:
            if self._resumable and sent == 0:
                await response.write(
                    b"id: %s-0\r\nretry: %d\r\ndata:\r\n\r\n" % (stream.name.encode(), RETRY_MS)
                )
            while True:
                changed = stream.changed
                while sent < len(stream.texts):
                    sent += 1
                    await response.write(self._event(stream, sent))
                if stream.ended or session.gone.is_set():
                    return response
                await changed.wait()
        except ConnectionError:
            return response

    def _event(self, stream: Stream, number: int) -> bytes:
        tag = b"id: %s-%d\r\n" % (stream.name.encode(), number) if self._resumable else b""
        return tag + b"data: " + flat(stream.texts[number - 1]) + b"\r\n\r\n"


async def _opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def serve(journal: Journal, port: int, *, resumable: bool) -> None:
    """Serve on a loopback port until the process is ended."""
    async with anyio.create_task_group() as group:
        server = Server(journal, group, resumable=resumable)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/mcp", server.post)
        app.router.add_get("/mcp", server.get)
        app.router.add_delete("/mcp", server.delete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await anyio.sleep_forever()
