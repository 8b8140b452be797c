"""A session layer over fake servers, and legacy HTTP clients that talk to it without HTTP.

Time stands still unless the test moves it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPMethod
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from proxy.eras.attribution import AskingTools
from proxy.errors import ProxyError
from proxy.limits import Gauge
from proxy.owners import ANONYMOUS, Owner
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import elements
from proxy.protocol.sse import Event, EventDecoder
from proxy.routing.legacy import HttpMessage, Reply
from proxy.routing.own_server import Client as OwnClient
from proxy.routing.passthrough import Passthrough
from proxy.routing.session_layer import SessionLayer
from proxy.upstream.health import Health
from tests.manual_clock import ManualClock
from tests.upstream.fake_transport import FakeTransport, Sent, initialize_result, settle, until

STREAM: Final = "text/event-stream"
BOTH: Final = f"application/json, {STREAM}"
IDLE_S: Final = 100.0
MAX_DEPTH: Final = 64
MAX_BYTES: Final = 1 << 24


@dataclass(eq=False)
class Response:
    """An HTTP response as far as it has come. `raised` instead, if the request was refused by an error."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    raised: ProxyError | None = None
    body: bytes = b""
    done: bool = False
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type") == STREAM

    @property
    def events(self) -> list[Event]:
        """Of a stream, primings too."""
        assert self.is_stream
        return EventDecoder(MAX_BYTES).feed(self.body)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """In a stream, or of the JSON body."""
        if self.is_stream:
            return [json.loads(event.data) for event in self.events if event.data]
        if not self.body:
            return []
        made = json.loads(self.body)
        return made if isinstance(made, list) else [made]

    @property
    def last_id(self) -> str:
        """Of the last event that has one."""
        return [event.id for event in self.events if event.id is not None][-1]

    async def receive(self, serving: AbstractAsyncContextManager[Reply]) -> None:
        """What the HTTP entrance does with a request."""
        with self._scope:
            try:
                async with serving as reply:
                    self.status = int(reply.status)
                    self.headers = {key.lower(): value for key, value in reply.headers}
                    if isinstance(reply.body, bytes):
                        self.body = reply.body
                    else:
                        async for chunk in reply.body:
                            self.body += chunk
            except ProxyError as exc:
                self.raised = exc
        self.done = True

    def hang_up(self) -> None:
        self._scope.cancel()

    async def ended(self) -> Response:
        await until(lambda: self.done)
        return self

    async def refused(self) -> tuple[int, int, str]:
        """HTTP status, code and words of the error."""
        await self.ended()
        assert self.raised is not None, self
        return int(self.raised.http_status), int(self.raised.code), self.raised.message


@dataclass(eq=False)
class HttpClient:
    """`session_id` goes with every request once there is one."""

    bench: SessionBench
    owner: Owner = ANONYMOUS
    accept: str | None = BOTH
    session_id: str | None = None
    version: str | None = None
    check_token: Callable[[], None] = lambda: None
    next_id: int = 0

    def but(self, **changes: Any) -> HttpClient:
        """The same client, otherwise."""
        return replace(self, **changes)

    # -- HTTP

    def post(self, *messages: Mapping[str, Any] | bytes, batch: bool = False) -> Response:
        raws = [m if isinstance(m, bytes) else json.dumps({"jsonrpc": "2.0", **m}).encode() for m in messages]
        body = b"[" + b" ,".join(raws) + b"]" if batch else raws[0]
        parsed = [jsonrpc.parse(raw, MAX_DEPTH) for raw in (elements(body) if batch else raws)]
        return self._send(HTTPMethod.POST, body=body, messages=parsed, is_batch=batch)

    def get(self, last_event_id: str | None = None) -> Response:
        more = [] if last_event_id is None else [(names.H_LAST_EVENT_ID, last_event_id)]
        return self._send(HTTPMethod.GET, more)

    async def listen(self) -> Response:
        """A GET stream, once it is open."""
        response = self.get()
        await until(lambda: response.status)
        return response

    def delete(self) -> Response:
        return self._send(HTTPMethod.DELETE)

    def _send(self, method: HTTPMethod, more: list[tuple[str, str]] | None = None, **posted: Any) -> Response:
        said = {
            "Accept": self.accept,
            "mcp-session-id": self.session_id,
            names.H_PROTOCOL_VERSION: self.version,
        }
        headers = [(key, value) for key, value in said.items() if value is not None]
        message = HttpMessage(
            method, [*headers, *(more or [])], self.owner, check_token=self.check_token, **posted
        )
        response = Response()
        self.bench.tasks.start_soon(response.receive, self.bench.layer.serve(message))
        return response

    # -- MCP

    async def initialize(self, version: str = "2025-11-25", **capabilities: Any) -> HttpClient:
        """Returns when the handshake is done; the server of the session is `bench.server`."""
        server, response = await self.begin()
        server.answer(await server.asked(names.INITIALIZE), initialize_result(version, **capabilities))
        await response.ended()
        self.session_id, self.version = response.headers["mcp-session-id"], version
        await self.post({"method": names.INITIALIZED}).ended()
        await server.asked(names.INITIALIZED)
        return self

    async def begin(self) -> tuple[FakeTransport, Response]:
        """The handshake has reached the server of the session."""
        before = len(self.bench.servers)
        response = self.request(names.INITIALIZE, {"protocolVersion": "2025-11-25", "capabilities": {}})
        await until(lambda: len(self.bench.servers) > before)
        await self.bench.server.asked(names.INITIALIZE)
        return self.bench.server, response

    def request(self, method: str, params: Any = None, *, id: int | str | None = None) -> Response:
        self.next_id += 1
        body = {"id": self.next_id if id is None else id, "method": method}
        return self.post(body if params is None else {**body, "params": params})

    async def call(self, tool: str = "slow", *, id: int | str | None = None, **params: Any) -> Called:
        """A tool call that has reached the server."""
        server, before = self.bench.server, len(self.bench.server.of(names.TOOLS_CALL))
        response = self.request(names.TOOLS_CALL, {"name": tool, **params}, id=id)
        return Called(response, await server.asked(names.TOOLS_CALL, before + 1), server)


@dataclass(eq=False)
class Called:
    """A tool call in flight: what the client reads, and what the server has."""

    response: Response
    sent: Sent
    server: FakeTransport

    async def answer(self, result: Any = None) -> Response:
        """The server answers; returns when the client has the end."""
        self.server.answer(self.sent, result)
        return await self.response.ended()


@dataclass(eq=False)
class SessionBench:
    layer: SessionLayer
    clock: ManualClock
    servers: list[FakeTransport]
    owners: list[Owner]
    tasks: TaskGroup

    @property
    def server(self) -> FakeTransport:
        """The one that was started last."""
        return self.servers[-1]

    def client(self, **how: Any) -> HttpClient:
        return HttpClient(self, **how)

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)


@asynccontextmanager
async def session_bench(
    *, max_sessions: int = 10, max_calls: int = 100, calls_per_owner: int | None = None, **server: Any
) -> AsyncIterator[SessionBench]:
    """`server`: how the fake servers behave."""
    clock, servers, owners = ManualClock(), list[FakeTransport](), list[Owner]()

    def make_transport() -> FakeTransport:
        servers.append(FakeTransport(**server))
        return servers[-1]

    def make_server(owner: Owner, client: OwnClient) -> Passthrough:
        owners.append(owner)
        return Passthrough(
            make_transport,
            client,
            name="fake",
            clock=clock,
            max_depth=MAX_DEPTH,
            start_timeout_s=5,
            asking=AskingTools(lambda tool: tool == "confirm"),
            health=Health(ManualClock()),
        )

    calls = Gauge("calls", max_calls, "limits.calls", per_owner=calls_per_owner)
    requests = Gauge("requests", 100, "limits.requests")
    layer = SessionLayer(
        make_server, clock, max_sessions=max_sessions, calls=calls, requests=requests, idle_s=IDLE_S
    )
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            await tasks.start(layer.run)
            yield SessionBench(layer, clock, servers, owners, tasks)
            for one in servers:
                one.end()
            await layer.close()
            tasks.cancel_scope.cancel()
    assert calls.held == requests.held == 0  # whatever happened to them
    assert all(one.ended for one in servers)


__all__ = [
    "BOTH",
    "IDLE_S",
    "STREAM",
    "Called",
    "HttpClient",
    "Response",
    "SessionBench",
    "session_bench",
    "settle",
]
