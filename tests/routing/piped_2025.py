"""A legacy client with 2025 tasks and a server of its own, over the fakes of `test_passthrough`.

`piped` is the client on a pipe; `layered` are clients over HTTP before the session layer.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from proxy.eras import tasks_2025
from proxy.eras.attribution import AskingTools
from proxy.eras.to_modern import ServerInfo
from proxy.limits import Gauge
from proxy.owners import Owner
from proxy.protocol import names
from proxy.protocol.jsonrpc import RequestId
from proxy.routing.live import Place
from proxy.routing.own_server import Client as OwnClient
from proxy.routing.passthrough import Passthrough, TaskGrant
from proxy.routing.session_layer import SessionLayer
from proxy.routing.task_session import TaskSession, TaskTerms
from proxy.upstream.base import Transport
from proxy.upstream.health import Health
from proxy.upstream.session import LegacySession
from tests.routing.bench import ADA
from tests.routing.bench_2025 import CURSOR_KEY, LEAST_TTL_MS, MOST_TTL_MS, Bench2025, bench_2025
from tests.routing.session_bench import IDLE_S, MAX_DEPTH, SessionBench
from tests.routing.test_passthrough import Client, Lines, Server
from tests.upstream.fake_transport import FakeTransport, Sent, adopted_session, initialize_result, until


class Pipe(Lines):
    """A client on a pipe. Implements `offers.Channel`, too: one way for everything."""

    is_open = True

    def channel(self, call: RequestId | None) -> Pipe:
        return self

    def send(self, message: bytes) -> bool:
        if self.is_open:
            self.append(message)
            self.calls.append(None)
        return self.is_open


@dataclass(eq=False)
class PipedClient(Client):
    """`bench` has the store, the runner and the clock."""

    it: Bench2025
    pipe: Pipe
    next_id: int = 100

    async def request(self, method: str, params: Any = None, *, id: int | str | None = None) -> int | str:
        """Send it; its id."""
        self.next_id += 1
        rid: int | str = self.next_id if id is None else id
        body = {"jsonrpc": "2.0", "id": rid, "method": method}
        await self.write(json.dumps(body if params is None else {**body, "params": params}).encode())
        return rid

    async def reply(self, method: str, params: Any = None) -> dict[str, Any]:
        """The whole answer to a request."""
        rid = await self.request(method, params)
        await until(lambda: self.answers_to(rid))
        return self.answers_to(rid)[0]

    async def result(self, method: str, params: Any = None) -> dict[str, Any]:
        return dict((await self.reply(method, params))["result"])

    async def get(self, task: str) -> dict[str, Any]:
        return await self.result(names.TASKS_GET, {"taskId": task})

    async def task(self, tool: str = "slow", **more: Any) -> tuple[str, Sent]:
        """A task that the client knows: its id, and its call at the server."""
        before = len(self.server.of(names.TOOLS_CALL)) if not self.server.ended else 0
        made = await self.result(names.TOOLS_CALL, {"name": tool, "task": {}, **more})
        task: str = made["task"]["taskId"]
        await self.get(task)
        return task, await self.server.asked(names.TOOLS_CALL, before + 1)

    @property
    def questions(self) -> list[dict[str, Any]]:
        """What the client was asked, by the server or by us."""
        return [message for message in self.said if "id" in message and "method" in message]

    def told(self, method: str) -> list[dict[str, Any]]:
        return [m["params"] for m in self.said if m.get("method") == method and "id" not in m]


def granting(it: Bench2025, owner: Owner, *, lists: bool = True) -> TaskGrant:
    """As `assembly_legacy` makes it."""
    terms = TaskTerms(lists, LEAST_TTL_MS, MOST_TTL_MS, CURSOR_KEY)

    def grant(asked: bytes | None, result: bytes, place: Place) -> tuple[bytes, TaskSession | None]:
        granted = tasks_2025.grant(tasks_2025.asked_version(asked), result, lists=lists)
        if granted is None:
            return result, None
        capabilities = tasks_2025.declared_by(asked)
        return granted.result, TaskSession(it.tasks, owner, granted.upstream, place, terms, capabilities)

    def adopt(transport: Transport, info: ServerInfo, first_id: int) -> LegacySession:
        return adopted_session(transport, info, it.rig.clock, first_id=first_id)

    return TaskGrant(grant, adopt)


def _passthrough(
    it: Bench2025, make: Callable[[], Transport], client: OwnClient, grant: TaskGrant | None
) -> Passthrough:
    return Passthrough(
        make,
        client,
        name="fake",
        clock=it.rig.clock,
        max_depth=MAX_DEPTH,
        start_timeout_s=5,
        asking=AskingTools(lambda tool: tool == "confirm"),
        health=Health(it.rig.clock),
        tasks_2025=grant,
    )


@asynccontextmanager
async def piped(*servers: Server, owner: Owner = ADA, has_tasks: bool = True) -> AsyncIterator[PipedClient]:
    """Its servers are these, and further ones as needed."""
    planned, made, pipe = list(servers), list[Server](), Pipe()

    def make_transport() -> Server:
        made.append(planned.pop(0) if planned else Server())
        return made[-1]

    async with bench_2025() as it:
        passthrough = _passthrough(it, make_transport, pipe, granting(it, owner) if has_tasks else None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(passthrough.run)
            yield PipedClient(passthrough, it.rig.clock, made, pipe, Health(it.rig.clock), it, pipe)
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def layered(it: Bench2025, **server: Any) -> AsyncIterator[SessionBench]:
    """As `session_bench`, with tasks; `server`: how the fake servers behave."""
    servers, owners = list[FakeTransport](), list[Owner]()

    def make_transport() -> FakeTransport:
        servers.append(FakeTransport(**server))
        return servers[-1]

    def make_server(owner: Owner, client: OwnClient) -> Passthrough:
        owners.append(owner)
        grant = granting(it, owner, lists=not owner.is_anonymous)
        return _passthrough(it, make_transport, client, grant)

    requests = Gauge("requests", 100, "limits.requests")
    layer = SessionLayer(
        make_server, it.rig.clock, max_sessions=10, calls=it.rig.calls, requests=requests, idle_s=IDLE_S
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(layer.run)
        yield SessionBench(layer, it.rig.clock, servers, owners, tasks)
        for one in servers:
            one.end()
        await layer.close()
        tasks.cancel_scope.cancel()
    assert all(one.ended for one in servers)


__all__ = ["PipedClient", "granting", "initialize_result", "layered", "piped"]
