"""Legacy HTTP clients of 2025-11-25 before an HTTP server, without HTTP: what passes and what is ours.

The server has two faces here. What is passed on meets a `FakeForwarder`, which answers in the test's order;
the calls of tasks meet the `FakeServer` of `bench_2025`, as they come on a session that was adopted.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPMethod
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from proxy.eras.tasks_2025 import VERSION
from proxy.errors import StoreError
from proxy.owners import Owner
from proxy.protocol import jsonrpc, names, sse
from proxy.routing.adopted import Adopted, Adoption
from proxy.routing.http_passthrough import HttpPassthrough
from proxy.routing.http_tasks import HttpTasks
from proxy.routing.legacy import HttpMessage
from proxy.routing.passed_session import OwnersPart, PassedSession, PassedSessions, credentials_in
from proxy.routing.task_session import TaskSession, TaskTerms
from proxy.stores.base import SessionMemory
from proxy.upstream.pending import AskingTools
from tests.routing.bench import ADA
from tests.routing.bench_2025 import CURSOR_KEY, LEAST_TTL_MS, MOST_TTL_MS, Bench2025, bench_2025
from tests.routing.fake_forwarder import EVENTS, JSON, Body, FakeForwarder
from tests.routing.fake_server import Call, FakeServer
from tests.routing.session_bench import BOTH, Response
from tests.upstream.fake_transport import until

SESSION: Final = "s-1"
MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64


class TroubledMemory:
    """A `SessionMemory` over another one. `broken`: nothing of it works. Writes wait for `gate`."""

    def __init__(self, memory: SessionMemory) -> None:
        self._memory = memory
        self.broken = False
        self.gate = anyio.Event()
        self.gate.set()

    def _use(self) -> None:
        if self.broken:
            raise StoreError("the task store cannot be written: disk full")

    async def remember(self, key: str, value: bytes, *, keep_s: float) -> None:
        await self.gate.wait()
        self._use()
        await self._memory.remember(key, value, keep_s=keep_s)

    async def recall(self, key: str) -> bytes | None:
        self._use()
        return await self._memory.recall(key)

    async def forget(self, key: str) -> None:
        self._use()
        await self._memory.forget(key)

    async def remembered(self, prefix: str) -> list[tuple[str, bytes]]:
        self._use()
        return await self._memory.remembered(prefix)


@dataclass(eq=False)
class HttpClient2025:
    """`session_id` and `version` go with every request; `token` and `key` are its credentials."""

    bench: HttpBench2025
    owner: Owner = ADA
    session_id: str | None = SESSION
    version: str | None = VERSION
    accept: str = BOTH
    token: str = "t"
    key: str | None = None
    mirrored_name: str | None = None
    check_token: Callable[[], None] = lambda: None
    next_id: int = 0

    def post(self, message: Mapping[str, Any] | bytes) -> Response:
        raw = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode()
        return self._send(HTTPMethod.POST, body=raw, messages=(jsonrpc.parse(raw, MAX_DEPTH),))

    def request(self, method: str, params: Any = None, *, id: int | str | None = None) -> Response:
        self.next_id += 1
        body = {"id": self.next_id if id is None else id, "method": method}
        return self.post(body if params is None else {**body, "params": params})

    def get(self) -> Response:
        return self._send(HTTPMethod.GET)

    def delete(self) -> Response:
        return self._send(HTTPMethod.DELETE)

    def _send(self, method: HTTPMethod, **posted: Any) -> Response:
        said = {
            "Accept": self.accept,
            "Authorization": f"Bearer {self.token}",
            "X-Api-Key": self.key,
            "mcp-session-id": self.session_id,
            names.H_PROTOCOL_VERSION: self.version,
            names.H_NAME: self.mirrored_name,
        }
        headers = [(key, value) for key, value in said.items() if value is not None]
        response = Response()
        message = HttpMessage(method, headers, self.owner, check_token=self.check_token, **posted)
        self.bench.group.start_soon(response.receive, self.bench.handler.serve(message))
        return response

    async def initialize(
        self,
        *,
        upstream_version: str = VERSION,
        session_id: str | None = SESSION,
        **capabilities: Any,
    ) -> dict[str, Any]:
        """What the client is told."""
        result = {"protocolVersion": upstream_version, "capabilities": {"tools": {}, **capabilities}}
        result["serverInfo"] = {"name": "fake", "version": "1"}
        header = [] if session_id is None else [("Mcp-Session-Id", session_id)]
        self.bench.will_answer(result, id="i", headers=header)
        response = self.request(
            names.INITIALIZE, {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {}}, id="i"
        )
        await response.ended()
        self.session_id, self.version = session_id, VERSION
        [told] = response.messages
        return dict(told["result"])

    async def call(self, tool: str = "slow", **more: Any) -> tuple[str, Call]:
        """A task: its id, and its call at the server."""
        response = await self.request(names.TOOLS_CALL, {"name": tool, "task": {}, **more}).ended()
        [told] = response.messages
        return told["result"]["task"]["taskId"], await self.bench.it.rig.server.next_call()

    async def read(self, task: str) -> dict[str, Any]:
        [told] = (await self.request(names.TASKS_GET, {"taskId": task}).ended()).messages
        return dict(told["result"])

    def result(self, task: str, *, id: int | str | None = None) -> Response:
        return self.request(names.TASKS_RESULT, {"taskId": task}, id=id)

    async def listen(self) -> tuple[Response, Body]:
        """The session's GET stream, open: what the client reads, and what the server writes."""
        body = self.bench.will_stream()
        response = self.get()
        await until(lambda: response.status)
        return response, body

    def answer(self, question: Mapping[str, Any], result: Mapping[str, Any]) -> Response:
        return self.post({"id": question["id"], "result": result})


@dataclass(eq=False)
class HttpBench2025:
    """`adoptions` are the sessions that were adopted: the id they have, and the headers that their calls
    would be sent with now; `listens` what each was told about a GET stream of its own."""

    it: Bench2025
    upstream: FakeForwarder
    memory: TroubledMemory
    asking: AskingTools
    group: TaskGroup
    adoptions: list[tuple[str, Callable[[], dict[str, str]]]] = field(default_factory=list)
    listens: list[list[bool]] = field(default_factory=list)
    sessions: PassedSessions = field(init=False)
    handler: HttpTasks = field(init=False)
    passthrough: HttpPassthrough = field(init=False)

    def __post_init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """New parts before the same store: what a restart leaves."""
        rig = self.it.rig
        self.sessions = PassedSessions(self.memory, self._part)
        self.passthrough = HttpPassthrough(self.upstream, max_bytes=MAX_BYTES)
        self.handler = HttpTasks(
            self.passthrough,
            self.sessions,
            rig.runner,
            self.asking,
            rig.clock,
            max_bytes=MAX_BYTES,
            max_depth=MAX_DEPTH,
        )

    def _part(self, session: PassedSession, owner: Owner) -> OwnersPart:
        def adopt() -> Adoption:
            listens: list[bool] = []
            self.adoptions.append((session.id, lambda: credentials_in(part.headers)))
            self.listens.append(listens)
            return Adoption(self.it.adopted(), listens.append)

        adopted = Adopted(adopt, self.it.rig.runner.spawn)
        terms = TaskTerms(not owner.is_anonymous, LEAST_TTL_MS, MOST_TTL_MS, CURSOR_KEY)
        upstream, capabilities = session.facts.upstream, session.capabilities
        tasks = TaskSession(self.it.tasks, owner, upstream, adopted.lease, terms, capabilities)
        part = OwnersPart(tasks, adopted)
        return part

    def client(self, owner: Owner = ADA, **how: Any) -> HttpClient2025:
        return HttpClient2025(self, owner, **how)

    async def opened(self, owner: Owner = ADA, **how: Any) -> HttpClient2025:
        """A client whose session is open."""
        client = self.client(owner)
        await client.initialize(**how)
        return client

    # -- the server

    def will_answer(
        self, result: Any, *, id: Any = 1, headers: Sequence[tuple[str, str]] = (), stream: bool = False
    ) -> None:
        raw = json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()
        kind, body = (EVENTS, sse.encode(raw)) if stream else (JSON, raw)
        self.upstream.will(200, [*kind, *headers], body)

    def will_stream(self) -> Body:
        body = Body(ended=False)
        self.upstream.will(200, EVENTS, body)
        return body

    @property
    def passed(self) -> list[tuple[str, Any]]:
        """What was passed on: HTTP method, and the message in it."""
        return [(asked.method, json.loads(asked.body or b"null")) for asked in self.upstream.asked]

    @property
    def methods(self) -> list[str]:
        """Of what was passed on: of a POST that of the message, else that of HTTP."""
        return [method if said is None else said.get("method", "answer") for method, said in self.passed]

    async def settle(self) -> None:
        await self.it.rig.settle()


@asynccontextmanager
async def http_bench_2025(server: FakeServer | None = None) -> AsyncIterator[HttpBench2025]:
    async with bench_2025(server) as it:
        asking = AskingTools(lambda tool: tool == "confirm")
        yield HttpBench2025(it, FakeForwarder(), TroubledMemory(it.rig.memory), asking, it.group)
