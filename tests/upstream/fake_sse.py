"""An HTTP+SSE server of 2024-11-05, well or badly played on a `FakeHttp`.

Its stream is opened by any GET; what it says on it is the test's to tell.
"""

from __future__ import annotations

import anyio
from aiohttp import web

from tests.upstream.fake_http import (
    FakeHttp,
    Handler,
    Seen,
    cut_off,
    event,
    is_request,
    result_for,
    start_stream,
)


class FakeSse:
    """Announces `endpoint`, accepts every POST with 202, and answers requests on the stream before that.

    `greeting` is what a stream begins with, `on_post` plays the POSTs.
    """

    def __init__(self, http: FakeHttp, endpoint: str = "/messages?sid=1", *, line_end: bytes = b"\n") -> None:
        self.http = http
        self.line_end = line_end
        self.greeting = announce(endpoint)
        self.on_post: Handler = self.answer
        self._streams: list[web.StreamResponse] = []
        self._ends: list[anyio.Event] = []
        http.handlers["GET"] = self.play_stream
        http.handlers["POST"] = self._play_post

    @property
    def origin(self) -> str:
        return self.http.url.removesuffix("/mcp")

    @property
    def opened(self) -> int:
        """How many streams have begun."""
        return len(self._streams)

    async def say(self, *parts: bytes) -> None:
        """On the newest stream."""
        for part in parts:
            await self._streams[-1].write(part.replace(b"\n", self.line_end))

    def end(self) -> None:
        """End the newest stream in good order."""
        self._ends[-1].set()

    def cut(self) -> None:
        """Break the newest stream."""
        cut_off(self.http.by("GET")[-1])

    async def answer(self, seen: Seen) -> web.StreamResponse:
        if is_request(seen):
            await self.say(event(result_for(seen)))
        return web.Response(status=202, text="Accepted")

    async def play_stream(self, seen: Seen) -> web.StreamResponse:
        response = await start_stream(seen)
        end = anyio.Event()
        self._ends.append(end)
        self._streams.append(response)
        await self.say(self.greeting)
        await end.wait()
        return response

    async def _play_post(self, seen: Seen) -> web.StreamResponse:
        return await self.on_post(seen)


def announce(endpoint: str) -> bytes:
    """The event that names the address for messages."""
    return b"event: endpoint\ndata: " + endpoint.encode() + b"\n\n"


def only_old(old: FakeSse, refusal: Handler) -> Handler:
    """POSTs to the stream's own address are refused, as by a server that knows no Streamable HTTP."""

    async def play(seen: Seen) -> web.StreamResponse:
        return await (refusal if seen.path == "/mcp" else old.answer)(seen)

    return play
