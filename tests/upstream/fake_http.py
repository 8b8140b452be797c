"""An HTTP server on loopback that plays an upstream, well or badly, as a test tells it.

Every request is recorded, then played by the handler that the test has set for its method. Handlers are
cancelled when the client goes away, which is how a test sees that a connection was dropped.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio
from aiohttp import web
from multidict import CIMultiDictProxy

from tests.upstream.told import until

EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    method: str
    path: str
    headers: CIMultiDictProxy[str]
    body: bytes
    peer_port: int
    request: web.Request

    @property
    def message(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<{self.method} {self.path} {self.body[:80]!r}>"


Handler: TypeAlias = Callable[[Seen], Awaitable[web.StreamResponse]]


class FakeHttp:
    """The server; `handlers` says how each method is played, `seen` what came."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.dropped: list[Seen] = []  # the client went away while these were being played
        self.handlers: dict[str, Handler] = {"POST": answer, "GET": status(405), "DELETE": status(200)}
        self.url = ""

    def by(self, method: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == method]

    async def gets(self, number: int) -> None:
        """Wait until so many GETs have come."""
        await until(lambda: len(self.by("GET")) >= number)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeHttp]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{tail:.*}", self._play)
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=0.1,
            max_line_size=65_536,
            max_field_size=65_536,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            self.url = f"http://127.0.0.1:{port}/mcp"
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    async def _play(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peer_port = request.transport.get_extra_info("peername")[1]
        body = await request.read()
        seen = Seen(request.method, request.path_qs, request.headers, body, peer_port, request)
        self.seen.append(seen)
        try:
            return await self.handlers[request.method](seen)
        except anyio.get_cancelled_exc_class():
            self.dropped.append(seen)
            raise
        except ConnectionResetError:
            self.dropped.append(seen)
            return web.Response()


# -- what to play -------------------------------------------------------------------------------------


def result_for(seen: Seen, result: object = None) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": seen.message["id"], "result": result or {}}).encode()


def event(data: bytes, *, id: str | None = None, retry: int | None = None) -> bytes:
    head = (f"id: {id}\n" if id is not None else "") + (f"retry: {retry}\n" if retry is not None else "")
    return head.encode() + b"data: " + data + b"\n\n"


def is_request(seen: Seen) -> bool:
    message = seen.message
    return "id" in message and "method" in message


async def answer(seen: Seen) -> web.StreamResponse:
    """Requests are answered with JSON, the rest is accepted; `initialize` brings a session id."""
    if not is_request(seen):
        return web.Response(status=202)
    headers = {"Mcp-Session-Id": "session-1"} if seen.message["method"] == "initialize" else {}
    return web.Response(body=result_for(seen), content_type="application/json", headers=headers)


def status(code: int, body: bytes = b"", **headers: str) -> Handler:
    async def play(seen: Seen) -> web.StreamResponse:
        return web.Response(
            status=code, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    return play


def one_by_one(*handlers: Handler) -> Handler:
    """The first request gets the first handler, and so on; the last one stays."""
    left = list(handlers)

    async def play(seen: Seen) -> web.StreamResponse:
        handler = left.pop(0) if len(left) > 1 else left[0]
        return await handler(seen)

    return play


def for_requests(handler: Handler) -> Handler:
    """`handler` for requests other than `initialize`, the usual answer for all else."""

    async def play(seen: Seen) -> web.StreamResponse:
        if is_request(seen) and seen.message["method"] != "initialize":
            return await handler(seen)
        return await answer(seen)

    return play


async def start_stream(seen: Seen) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM})
    await response.prepare(seen.request)
    return response


def stream(*parts: bytes, cut: bool = False, hold: bool = False) -> Handler:
    """A stream of `parts`, which then ends in good order, is cut, or is held open."""

    async def play(seen: Seen) -> web.StreamResponse:
        response = await start_stream(seen)
        for part in parts:
            await response.write(part)
        if hold:
            await anyio.sleep_forever()
        if cut:
            cut_off(seen)
        return response

    return play


def replies(make: Callable[[Seen], Sequence[bytes]], *, cut: bool = False, hold: bool = False) -> Handler:
    """A stream of parts that are made from the request."""

    async def play(seen: Seen) -> web.StreamResponse:
        return await stream(*make(seen), cut=cut, hold=hold)(seen)

    return play


def cut_off(seen: Seen) -> None:
    """Break the connection without a word."""
    assert seen.request.transport is not None
    seen.request.transport.abort()


async def hang(seen: Seen) -> web.StreamResponse:
    """Never answer."""
    await anyio.sleep_forever()
    raise AssertionError


async def vanish(seen: Seen) -> web.StreamResponse:
    """Break the connection instead of answering."""
    cut_off(seen)
    return web.Response()


async def short_of_its_length(seen: Seen) -> web.StreamResponse:
    """Announce more bytes than come before the connection is closed."""
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "99"})
    await response.prepare(seen.request)
    await response.write(b'{"jsonrpc"')
    cut_off(seen)
    return response


async def serve_raw(listener: anyio.abc.Listener[anyio.abc.SocketStream], answer: bytes) -> None:
    """A server that answers each connection with these very bytes, and closes it."""

    async def play(client: anyio.abc.SocketStream) -> None:
        async with client:
            await client.receive()
            await client.send(answer)

    await listener.serve(play)
