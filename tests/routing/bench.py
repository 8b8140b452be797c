"""The real router, runner, pool and sessions over a fake server, and clients that talk to it.

Time stands still unless the test moves it (`pass_time`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from proxy.audit import Audit
from proxy.downstream.validation import Headers, read_modern
from proxy.eras.capabilities import ClientCapabilities
from proxy.eras.era import Era
from proxy.errors import LimitReached, ProxyError
from proxy.limits import Gauge, PollLimit
from proxy.metrics import Metrics
from proxy.owners import ANONYMOUS, Credentials, Owner
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import RawObject
from proxy.protocol.jsonrpc import Request
from proxy.routing.base import Answer, ErrorAnswer, ResultAnswer
from proxy.routing.bridge import Bridge
from proxy.routing.conversion import Conversion
from proxy.routing.listen import Listen
from proxy.routing.router import Router
from proxy.routing.runner import Runner
from proxy.routing.task_changes import TaskChanges
from proxy.routing.task_methods import TaskMethods
from proxy.routing.task_quota import TaskQuota
from proxy.stores.memory import MemoryStore
from proxy.tasks.policy import InputMode, Policy, ToolMode, ToolPolicy
from proxy.tasks.task import Task
from proxy.upstream.pending import AskingTools
from proxy.upstream.pool import Pool, PoolSettings
from proxy.upstream.probe import UpstreamEra
from proxy.upstream.session import ChangeListener, LegacySession
from tests.manual_clock import ManualClock
from tests.routing.fake_server import Call, FakeServer, Wire
from tests.routing.troubled_store import TroubledStore

TASKS: Final[dict[str, Any]] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
ASKABLE: Final[dict[str, Any]] = {"elicitation": {}, "sampling": {}, "roots": {}}
Calls = tuple[int, int | None]
"""How many may be in progress: in all, and of one owner."""

VERSION: Final = "2026-07-28"
THRESHOLD_S: Final = 2.0
HANG_S: Final = 20.0  # no time passes in here, so what is not there by then never comes
ADA, BOB = Owner("ada"), Owner("bob")

POLICY: Final = Policy(
    rules=(
        ("at_once", ToolPolicy(threshold_s=0.0)),
        ("never_*", ToolPolicy(mode=ToolMode.NEVER)),
        ("required_*", ToolPolicy(mode=ToolMode.REQUIRED)),
        ("ask_*", ToolPolicy(input=InputMode.TASK)),
    )
)
"""Everything else has the default threshold, THRESHOLD_S."""


@dataclass(eq=False)
class Exchanged:
    """A request of a client and what came back. `told` has the notifications, oldest first."""

    id: int | str
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    slow: bool = False
    has_room: bool = True
    failed_lookups: int = 0
    raw: bytes = b""
    _answer: Answer | ProxyError | None = None
    _done: anyio.Event = field(default_factory=anyio.Event)
    _read: anyio.Event = field(default_factory=anyio.Event)

    # -- routing.base.Sink

    def notify(self, method: str, params: bytes | None) -> None:
        assert not self.done, "nothing follows the answer"
        self.told.append((method, json.loads(params or b"{}")))

    def lookup_failed(self) -> None:
        self.failed_lookups += 1

    def make_room(self, size: int) -> None:
        if size and not self.has_room:
            raise LimitReached("full (limits.result)", retry_after_s=1)

    async def ready(self) -> None:
        if self.slow:
            await self._read.wait()
        await checkpoint()

    # -- the client

    def read_on(self) -> None:
        self.slow = False
        self._read.set()

    def hang_up(self) -> None:
        self.scope.cancel()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def answered(self) -> bool:
        """Whether a result came; False after a hang-up or an error, too."""
        return isinstance(self._answer, ResultAnswer)

    def end(self, answer: Answer | ProxyError | None) -> None:
        self._answer = answer
        self._done.set()

    async def answer(self) -> Answer | ProxyError | None:
        """As the router gave it; None after a hang-up."""
        await self._done.wait()
        return self._answer

    async def result(self) -> dict[str, Any]:
        await self._done.wait()
        assert isinstance(self._answer, ResultAnswer), self._answer
        self.raw = self._answer.result
        return dict(json.loads(self._answer.result))

    async def error(self) -> tuple[HTTPStatus, dict[str, Any]]:
        """HTTP status and error object."""
        await self._done.wait()
        match self._answer:
            case ErrorAnswer(error, status):
                return status, json.loads(error)
            case ProxyError() as fault:
                raw = jsonrpc.error_object(fault.code, fault.message, fault.data)
                return fault.http_status, json.loads(raw)
            case other:
                raise AssertionError(f"no error: {other}")


@dataclass(eq=False)
class Client:
    """`capabilities`: what each request declares. `meta`: what more is in its `_meta`. `good_for_s`: how long
    its token is good."""

    bench: Bench
    owner: Owner = ANONYMOUS
    capabilities: Mapping[str, Any] = field(default_factory=lambda: {**TASKS, **ASKABLE})
    meta: Mapping[str, Any] = field(default_factory=dict)
    good_for_s: float | None = None

    def but(self, **changes: Any) -> Client:
        """The same client, otherwise."""
        return Client(**{**self.__dict__, **changes})

    def start(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: int | str = 1,
        headers: Mapping[str, str] | None = None,
        slow: bool = False,
    ) -> Exchanged:
        """Send a request; its answer comes when it comes."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            **self.meta,
        }
        raw = json.dumps(
            {"jsonrpc": "2.0", "id": id, "method": method, "params": {**(params or {}), "_meta": meta}}
        )
        return self.send_raw(raw.encode(), headers=headers, slow=slow)

    def send_raw(
        self, raw: bytes, *, headers: Mapping[str, str] | None = None, slow: bool = False
    ) -> Exchanged:
        message = jsonrpc.parse(raw, 512)
        assert isinstance(message, Request)
        given = None if headers is None else _http_headers(message, headers)
        request = read_modern(message, given, self.owner, names.MODERN_VERSIONS)
        request = replace(request, good_for_s=self.good_for_s)
        exchanged = Exchanged(message.id.value, slow=slow)

        async def serve() -> None:
            answer: Answer | ProxyError | None = None
            with exchanged.scope:
                try:
                    answer = await self.bench.router.handle(request, exchanged)
                except ProxyError as exc:
                    answer = exc
            exchanged.end(answer)

        self.bench.tasks.start_soon(serve)
        return exchanged

    def call(self, tool: str, more: Mapping[str, Any] | None = None, **arguments: Any) -> Exchanged:
        return self.start("tools/call", {"name": tool, "arguments": arguments, **(more or {})})

    def retry(
        self, asked: Mapping[str, Any], tool: str, answers: Mapping[str, Any], **arguments: Any
    ) -> Exchanged:
        """Go on with a call that asked: `asked` is its InputRequiredResult."""
        more = {"requestState": asked["requestState"], "inputResponses": answers}
        return self.call(tool, more, **arguments)

    async def get(self, task_id: str) -> dict[str, Any]:
        return await self.start("tasks/get", {"taskId": task_id}).result()

    async def update(self, task_id: str, answers: Mapping[str, Any]) -> dict[str, Any]:
        return await self.start("tasks/update", {"taskId": task_id, "inputResponses": answers}).result()

    async def cancel(self, task_id: str) -> dict[str, Any]:
        return await self.start("tasks/cancel", {"taskId": task_id}).result()

    def listen(self, *, id: int | str = "listen", slow: bool = False, **filter: Any) -> Exchanged:
        return self.start("subscriptions/listen", {"notifications": filter}, id=id, slow=slow)


def _http_headers(message: Request, more: Mapping[str, str]) -> Headers:
    name = RawObject.parse(message.params or b"{}").text("name") or ""
    values = {"mcp-protocol-version": VERSION, "mcp-method": message.method, "mcp-name": name, **more}
    return Headers(list(values.items()))


class Bench:
    """All parts, wired as `assembly` does. Enter `bench()`."""

    def __init__(
        self,
        server: FakeServer,
        policy: Policy,
        settings: PoolSettings,
        polls: float,
        calls: Calls,
        quota: Mapping[str, Any],
    ) -> None:
        self.server = server
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)
        self.store = TroubledStore(self.memory)
        self.policy = policy
        self.credentials = Credentials()
        self.era: UpstreamEra | None = None
        self.has_headers = False  # as over HTTP
        self._settings = settings
        self._polls = polls
        self._at_most = calls
        self._quota = quota
        self.tasks: TaskGroup
        self.start_over()

    def start_over(self) -> None:
        """New parts before the same store: what a restart leaves."""
        self.metrics = Metrics()
        audit = self.audit = Audit(b"k" * 32)
        self.memory.observe(audit.changed)
        self.pool = Pool(self._session, self._settings, self.clock, self.metrics)
        total, of_one = self._at_most
        self.calls = Gauge("calls", total, "limits.calls", per_owner=of_one)
        self.runner = Runner(
            self.pool, self.store, self.policy, self.clock, self.metrics, self.calls, self.credentials
        )
        self.quota = TaskQuota(self.store, self.clock, **self._quota)
        self.conversion = Conversion(
            self.runner,
            self.store,
            self.policy,
            self.clock,
            b"k" * 32,
            self._known_era,
            self.quota,
        )
        self.listen = Listen(self.pool, self.store, self.policy, self.clock, audit, self.metrics)
        polls = PollLimit(self._polls, self.clock)
        changes = TaskChanges(self.store, self.runner, self.policy, self.clock, audit, self.metrics)
        methods = TaskMethods(changes, self.policy, polls, self.clock)
        bridge = Bridge(self.pool, self.conversion, self._known_era)
        self.router = Router(bridge, methods, self.listen, self.metrics, self.clock)

    def _known_era(self) -> Era | None:
        return Era.LEGACY if self.era is None else self.era.known

    def _session(
        self, owner: Owner, capabilities: ClientCapabilities, on_change: ChangeListener
    ) -> LegacySession:
        return LegacySession(
            Wire(self.server),
            name="fake",
            capabilities=capabilities,
            client_version="0",
            asking=AskingTools(lambda tool: self.policy.for_tool(tool).input is InputMode.TASK),
            clock=self.clock,
            max_depth=512,
            start_timeout_s=30.0,
            on_change=on_change,
            era=self.era,
            has_headers=self.has_headers,
        )

    def client(self, **how: Any) -> Client:
        return Client(self, **how)

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def settle(self) -> None:
        """Let everything that can happen without time happen."""
        await self.clock.advance(0)

    async def task(self, client: Client, tool: str = "slow") -> tuple[str, Call]:
        """A task that works: its id, and the call at the server."""
        sent = client.call(tool)
        call = await self.server.next_call()
        await self.pass_time(THRESHOLD_S)
        return str((await sent.result())["taskId"]), call

    async def stored(self, task_id: str) -> Task:
        return await self.memory.get(task_id)


@asynccontextmanager
async def bench(
    server: FakeServer | None = None,
    *,
    policy: Policy = POLICY,
    settings: PoolSettings = PoolSettings(idle_timeout_s=None),  # noqa: B008 - a frozen value
    polls: float = 100.0,
    calls: Calls = (1_000, None),
    quota: Mapping[str, Any] | None = None,
    bound_s: float = HANG_S,
) -> AsyncIterator[Bench]:
    """Everything runs inside, within `bound_s` of real time."""
    made = Bench(server or FakeServer(), policy, settings, polls, calls, quota or {})
    with anyio.fail_after(bound_s):
        async with anyio.create_task_group() as tasks:
            made.tasks = tasks
            await tasks.start(made.pool.run)
            await tasks.start(made.runner.run)
            yield made
            tasks.cancel_scope.cancel()
