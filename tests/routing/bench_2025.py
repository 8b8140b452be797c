"""Legacy clients with 2025 tasks over the parts of `bench`: what they send, and what reaches them.

Nothing of their connections is real: a `FakeChannel` is a stream or a pipe, and the session with the server
is adopted, as it is in front of a real one. Time stands still unless the test moves it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from proxy.eras.tasks_2025 import NO_TASKS, UpstreamTasks, declared_by
from proxy.errors import ProxyError, UpstreamError
from proxy.limits import PollLimit
from proxy.owners import Owner
from proxy.protocol import jsonrpc, names
from proxy.protocol.jsonrpc import ErrorResponse, Request, ResultResponse
from proxy.routing.base import Answer, ErrorAnswer, ResultAnswer
from proxy.routing.companion import Companion
from proxy.routing.in_flight import FIRST_TASK_ID
from proxy.routing.task_changes import TaskChanges
from proxy.routing.task_session import TaskSession, TaskTerms
from proxy.routing.tasks_2025 import Tasks2025
from proxy.tasks.policy import Policy
from proxy.upstream.session import LegacySession
from tests.routing.bench import ADA, POLICY, Bench, Calls, bench
from tests.routing.fake_server import Call, FakeServer, Wire
from tests.upstream.fake_transport import adopted_session

RELATED: Final = names.META_RELATED_TASK
LEAST_TTL_MS: Final = 10_000
MOST_TTL_MS: Final = 600_000
CURSOR_KEY: Final = b"c" * 32
MAX_CALLS: Final = 20
SHORT: Final = replace(POLICY, retention_ms=60_000, runtime_limit_s=10_000.0)
"""The policy of `bench`, but so that the end of a task's time is seen soon."""

UNKNOWN: Final = "tpx-" + "A" * 32
YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {"ok": True}}


@dataclass(eq=False)
class FakeChannel:
    """What was said on one way to a client; `is_open` until the test says otherwise, and takes all until it
    `is_full`."""

    is_open: bool = True
    is_full: bool = False
    said: list[dict[str, Any]] = field(default_factory=list)

    def send(self, message: bytes) -> bool:
        if not self.is_full:
            self.said.append(json.loads(message))
        return not self.is_full

    @property
    def questions(self) -> list[dict[str, Any]]:
        """Requests, oldest first."""
        return [message for message in self.said if "id" in message]

    def told(self, method: str) -> list[dict[str, Any]]:
        """The params of notifications of this method."""
        return [message["params"] for message in self.said if message["method"] == method]

    @property
    def open_questions(self) -> list[dict[str, Any]]:
        """Those that were not taken back."""
        taken_back = [params["requestId"] for params in self.told(names.CANCELLED)]
        return [question for question in self.questions if question["id"] not in taken_back]


@dataclass(eq=False)
class Sent:
    """A request of a client, and what came back. `passed`: it is the upstream's after all."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    passed: bool = False
    _answer: Answer | ProxyError | None = None
    _done: anyio.Event = field(default_factory=anyio.Event)

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def hang_up(self) -> None:
        self.scope.cancel()

    async def raw(self) -> bytes:
        await self._done.wait()
        assert isinstance(self._answer, ResultAnswer), self._answer
        return self._answer.result

    async def result(self) -> dict[str, Any]:
        return dict(json.loads(await self.raw()))

    async def error(self) -> dict[str, Any]:
        await self._done.wait()
        match self._answer:
            case ErrorAnswer(error):
                return dict(json.loads(error))
            case ProxyError() as fault:
                return dict(json.loads(jsonrpc.error_object(fault.code, fault.message, fault.data)))
            case other:
                raise AssertionError(f"no error: {other}")

    async def refused(self) -> tuple[int, str]:
        """Code and words of the error."""
        error = await self.error()
        return error["code"], error["message"]


@dataclass(eq=False)
class Client2025:
    """One session of a legacy client. `channel` is what reaches it besides its answers."""

    bench: Bench2025
    session: TaskSession
    owner: Owner
    channel: FakeChannel

    def claims(self, method: str, params: Mapping[str, Any] | None = None) -> bool:
        return self.session.claims(_request(method, params, 1))

    def start(
        self,
        method: str,
        params: Mapping[str, Any] | bytes | None = None,
        *,
        id: int | str = 1,
        stream: FakeChannel | None = None,
    ) -> Sent:
        """Send a request that is ours to answer; its answer comes when it comes."""
        request, sent = _request(method, params, id), Sent()
        assert self.session.claims(request)

        async def serve() -> None:
            with sent.scope:
                try:
                    sent._answer = await self.session.serve(request, stream)
                    sent.passed = sent._answer is None
                except ProxyError as exc:
                    sent._answer = exc
            sent._done.set()

        self.bench.group.start_soon(serve)
        return sent

    def call(
        self, tool: str = "slow", task: Any = None, *, id: int | str = 1, meta: Any = None, **arguments: Any
    ) -> Sent:
        """A call as a task."""
        more = {} if meta is None else {"_meta": meta}
        params = {"name": tool, "arguments": arguments, "task": {} if task is None else task, **more}
        return self.start(names.TOOLS_CALL, params, id=id)

    async def task(self, tool: str = "slow", **more: Any) -> tuple[str, Call]:
        """A task that the client knows: its id, and its call at the server."""
        made = await self.call(tool, **more).result()
        task_id: str = made["task"]["taskId"]
        call = await self.bench.rig.server.next_call()
        await self.get(task_id)
        return task_id, call

    def read(self, task: Any) -> Sent:
        return self.start(names.TASKS_GET, {"taskId": task})

    async def get(self, task: str) -> dict[str, Any]:
        return await self.read(task).result()

    def result(self, task: Any, stream: FakeChannel | None = None, *, id: int | str = 1) -> Sent:
        return self.start(names.TASKS_RESULT, {"taskId": task}, id=id, stream=stream)

    def cancel(self, task: Any) -> Sent:
        return self.start(names.TASKS_CANCEL, {"taskId": task})

    async def pages(self) -> list[dict[str, Any]]:
        """`tasks/list`, page by page."""
        found = [await self.start(names.TASKS_LIST).result()]
        while "nextCursor" in found[-1]:
            found.append(await self.start(names.TASKS_LIST, {"cursor": found[-1]["nextCursor"]}).result())
        return found

    async def listed(self) -> list[str]:
        """The ids of all pages."""
        return [task["taskId"] for page in await self.pages() for task in page["tasks"]]

    def answer(self, question: Mapping[str, Any], result: Mapping[str, Any] = YES) -> bool:
        """Whether it was taken."""
        return self._respond(ResultResponse, question["id"], result)

    def refuse(self, question: Mapping[str, Any], code: int = -1, message: str = "no") -> bool:
        return self._respond(ErrorResponse, question["id"], {"code": code, "message": message})

    def _respond(self, kind: type[ResultResponse | ErrorResponse], id: Any, body: Mapping[str, Any]) -> bool:
        rid = jsonrpc.RequestId.parse(json.dumps(id).encode())
        assert rid is not None
        return self.session.take_answer(kind(rid, json.dumps(body).encode()))

    def listen(self) -> FakeChannel:
        """A new stream; the one before is closed."""
        self.channel.is_open = False
        self.channel = FakeChannel()
        self.session.set_channel(self.channel)
        return self.channel

    def stop_listening(self) -> None:
        self.channel.is_open = False
        self.session.set_channel(None)


class Bench2025:
    """`rig` has the parts that modern clients use, too."""

    def __init__(self, rig: Bench, group: TaskGroup) -> None:
        self.rig = rig
        self.group = group
        self.start_fault: UpstreamError | None = None
        self._session: LegacySession | None = None
        self._next_id = FIRST_TASK_ID
        self.start_over()

    def start_over(self) -> None:
        """New parts before the same store; `rig` has been started over."""
        rig = self.rig
        changes = TaskChanges(rig.store, rig.runner, rig.policy, rig.clock, rig.audit, rig.metrics)
        polls = PollLimit(rig._polls, rig.clock)
        self.tasks = Tasks2025(rig.store, rig.runner, changes, rig.policy, polls, rig.clock, rig.quota)

    def client(
        self,
        owner: Owner = ADA,
        *,
        upstream: UpstreamTasks = NO_TASKS,
        lists: bool = True,
        listens: bool = True,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Client2025:
        """`capabilities` None: nothing is known of them."""
        terms = TaskTerms(lists, LEAST_TTL_MS, MOST_TTL_MS, CURSOR_KEY)
        declared = {} if capabilities is None else {"capabilities": capabilities}
        asked = declared_by(json.dumps(declared).encode())
        session = TaskSession(self.tasks, owner, upstream, self.place, terms, asked)
        client = Client2025(self, session, owner, FakeChannel(is_open=listens))
        session.set_channel(client.channel if listens else None)
        return client

    @asynccontextmanager
    async def place(self) -> AsyncIterator[LegacySession]:
        """A session with the server whose handshake the client has made."""
        if self.start_fault is not None:
            raise self.start_fault
        if self._session is None or not self._session.is_alive:
            made = self.adopted()
            await self.group.start(made.run)
            self._session = made
        yield self._session

    def adopted(self) -> LegacySession:
        """A further one, not started."""
        server = self.rig.server
        self._next_id += 1_000
        return adopted_session(Wire(server), server.info, self.rig.clock, first_id=self._next_id)

    @property
    def companions(self) -> Mapping[str, Companion]:
        return self.tasks._companions


@asynccontextmanager
async def bench_2025(
    server: FakeServer | None = None,
    *,
    policy: Policy = SHORT,
    polls: float = 100.0,
    calls: Calls = (MAX_CALLS, None),
    quota: Mapping[str, Any] | None = None,
) -> AsyncIterator[Bench2025]:
    """Everything runs inside."""
    async with bench(server, policy=policy, polls=polls, calls=calls, quota=quota) as rig:
        yield Bench2025(rig, rig.tasks)


def _request(method: str, params: Mapping[str, Any] | bytes | None, id: int | str) -> Request:
    rid = jsonrpc.RequestId.parse(json.dumps(id).encode())
    assert rid is not None
    raw = params if isinstance(params, bytes | None) else json.dumps(params).encode()
    return Request(rid, method, raw)
