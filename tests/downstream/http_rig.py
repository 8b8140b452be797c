"""The real HTTP server and endpoint on a loopback socket, with a router that the test plays."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import anyio
from aiohttp import web
from anyio.abc import SocketStream, TaskGroup

from proxy.clock import Pulse
from proxy.downstream.admission import OPEN, Admission
from proxy.downstream.connection import ConnectionBounds
from proxy.downstream.guard import Guard
from proxy.downstream.http import HttpEndpoint, HttpSettings
from proxy.downstream.operations import Operations
from proxy.downstream.peers import Peers
from proxy.downstream.server import HttpRunner
from proxy.errors import ProxyError
from proxy.limits import Gauge, LookupLimit
from proxy.metrics import Metrics
from proxy.owners import Credentials
from proxy.protocol import names
from proxy.routing.base import Answer, ClientRequest, ResultAnswer, Sink
from proxy.routing.legacy import LegacyHandler
from proxy.routing.router import Router
from proxy.routing.well_known import Documents
from tests.manual_clock import ManualClock

VERSION: Final = names.LATEST_MODERN
ORIGIN: Final = "https://app.example"
MAX_BODY: Final = 1 << 18
MAX_HEADER: Final = 64 << 10
BOUNDS: Final = ConnectionBounds(MAX_HEADER)
META: Final[dict[str, Any]] = {
    names.META_PROTOCOL_VERSION: VERSION,
    names.META_CLIENT_CAPABILITIES: {},
}
OK: Final = ResultAnswer(b'{"resultType":"complete"}')


@dataclass(eq=False)
class Served:
    """A request at the router. The test says what comes of it."""

    request: ClientRequest
    sink: Sink
    cancelled: anyio.Event = field(default_factory=anyio.Event)
    _end: Answer | Exception | None = None
    _ended: anyio.Event = field(default_factory=anyio.Event)

    def tell(self, method: str = names.PROGRESS, **params: Any) -> None:
        self.sink.notify(method, json.dumps(params).encode())

    def end(self, end: Answer | Exception = OK) -> None:
        self._end = end
        self._ended.set()

    async def answer(self) -> Answer:
        try:
            await self._ended.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        if isinstance(self._end, Exception):
            raise self._end
        assert self._end is not None
        return self._end


class ScriptedRouter(Router):
    """Answers with `always`, or, where that is None, as the test says: `await next()`."""

    def __init__(self) -> None:
        self.always: Answer | ProxyError | None = None
        self.seen: list[ClientRequest] = []
        self._waiting: deque[Served] = deque()
        self._came = Pulse()

    async def handle(self, request: ClientRequest, sink: Sink) -> Answer:
        self.seen.append(request)
        served = Served(request, sink)
        if self.always is not None:
            served.end(self.always)
        else:
            self._waiting.append(served)
            self._came.beat()
        return await served.answer()

    async def next(self) -> Served:
        while not self._waiting:
            await self._came.event.wait()
        return self._waiting.popleft()


@dataclass(eq=False)
class Sent:
    """A POST on its way, and what has come back of it so far."""

    data: bytearray = field(default_factory=bytearray)
    response: aiohttp.ClientResponse | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: bool = False
    changed: Pulse = field(default_factory=Pulse)

    async def run(self, posting: aiohttp.client._RequestContextManager) -> None:
        with self.scope:
            async with posting as self.response:
                self.changed.beat()
                async for chunk in self.response.content.iter_any():
                    self.data += chunk
                    self.changed.beat()
        self.ended = True
        self.changed.beat()

    async def head(self) -> aiohttp.ClientResponse:
        while self.response is None:
            await self.changed.event.wait()
        return self.response

    async def until(self, text: bytes) -> None:
        """Until this has come in."""
        while text not in self.data:
            assert not self.ended, bytes(self.data)
            await self.changed.event.wait()

    async def body(self) -> bytes:
        """All of it, once it has ended."""
        while not self.ended:
            await self.changed.event.wait()
        return bytes(self.data)

    def hang_up(self) -> None:
        self.scope.cancel()


@dataclass(eq=False)
class Rig:
    """What runs, and clients for it: `post` to have an answer, `send` to see it come, `connect` for bytes."""

    endpoint: HttpEndpoint
    operations: Operations
    router: ScriptedRouter
    clock: ManualClock
    port: int
    session: aiohttp.ClientSession
    credentials: Credentials
    report: dict[str, str]
    tasks: TaskGroup
    metrics: Metrics

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def post(
        self,
        method: str = "tools/list",
        *,
        id: Any = 1,
        headers: Mapping[str, str] | None = None,
        **params: Any,
    ) -> aiohttp.client._RequestContextManager:
        body = message(method, id=id, **params)
        return self.session.post(
            self.url, data=body, headers={**headers_of(method, params), **(headers or {})}
        )

    def send(self, *args: Any, **kwargs: Any) -> Sent:
        """As `post`, without waiting for an answer."""
        sent = Sent()
        self.tasks.start_soon(sent.run, self.post(*args, **kwargs))
        return sent

    async def connect(self) -> SocketStream:
        return await anyio.connect_tcp("127.0.0.1", self.port)


def message(method: str = "tools/list", *, id: Any = 1, **params: Any) -> bytes:
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": META}}
    return json.dumps(body).encode()


def headers_of(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    member = names.NAME_MEMBER.get(method)
    named = {} if member is None else {names.H_NAME: params[member]}
    return {names.H_PROTOCOL_VERSION: VERSION, names.H_METHOD: method, **named}


def raw_post(body: bytes, method: str = "tools/list", *, more: str = "", path: str = "/mcp") -> bytes:
    """A whole HTTP request as bytes."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        f"{names.H_PROTOCOL_VERSION}: {VERSION}\r\n{names.H_METHOD}: {method}\r\n{more}\r\n"
    )
    return head.encode() + body


async def read_all(stream: SocketStream) -> bytes:
    """What comes until the end of the connection, an orderly one or not."""
    parts = []
    try:
        while True:
            parts.append(await stream.receive())
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return b"".join(parts)


def events(body: bytes) -> list[dict[str, Any]]:
    """The data of an event stream, event by event."""
    blocks = [block.split(b"\n") for block in body.split(b"\n\n")]
    data = [line.removeprefix(b"data: ") for block in blocks for line in block if line.startswith(b"data: ")]
    return [json.loads(text) for text in data]


@asynccontextmanager
async def http_rig(
    *,
    requests: int = 100,
    listens: int = 100,
    requests_per_owner: int | None = None,
    lookups_per_s: float = 100.0,
    trusted: Sequence[str] = (),
    legacy: LegacyHandler | None = None,
    well_known: Documents | None = None,
    admission: Admission = OPEN,
    bounds: ConnectionBounds = BOUNDS,
    body_s: float = 60.0,
) -> AsyncIterator[Rig]:
    """On a loopback bind that allows ORIGIN; ten seconds are the bound of any test. With `legacy`, clients of
    both eras are served."""
    supported = names.MODERN_VERSIONS if legacy is None else names.LEGACY_VERSIONS + names.MODERN_VERSIONS
    router, clock, credentials, report = ScriptedRouter(), ManualClock(), Credentials(), {"store": "ok"}
    metrics = Metrics()
    endpoint = HttpEndpoint(
        router,
        Guard(is_loopback=True, allowed_hosts=frozenset(), allowed_origins=frozenset({ORIGIN})),
        credentials,
        b"s" * 32,
        requests=Gauge("requests", requests, "limits.requests", per_owner=requests_per_owner),
        listens=Gauge("listen streams", listens, "limits.listens"),
        lookups=LookupLimit(lookups_per_s, clock),
        peers=Peers(trusted),
        settings=HttpSettings("/mcp", MAX_BODY, 64, supported, body_s),
        clock=clock,
        legacy=legacy,
        well_known=well_known,
        admission=admission,
        metrics=metrics,
    )

    async def reported() -> dict[str, str]:
        return report

    async def scraped() -> bytes:
        return metrics.text()

    app = web.Application(client_max_size=0)
    endpoint.add_to(app)
    operations = Operations(reported, scraped)
    operations.add_to(app)
    runner = HttpRunner(app, bounds, endpoint.guard)
    await runner.setup()
    try:
        with anyio.fail_after(10):
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            async with aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
                port = int(runner.addresses[0][1])
                tasks.start_soon(endpoint.watch)
                yield Rig(
                    endpoint, operations, router, clock, port, session, credentials, report, tasks, metrics
                )
                tasks.cancel_scope.cancel()
    finally:
        await runner.cleanup()
