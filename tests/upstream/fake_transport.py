"""A transport without a wire, the server behind it as a script, and a listener that writes down.

`FakeTransport` stands in for `proxy.upstream.base.Transport`: it keeps what the session sent, and the test
says what the upstream sends and how the connection ends. The helpers below it let a test read as a
conversation.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus as StartStatus
from anyio.lowlevel import checkpoint

from proxy.clock import Clock
from proxy.eras.capabilities import ANY_CAPABILITIES, ClientCapabilities
from proxy.eras.to_modern import ServerInfo
from proxy.errors import UpstreamClosed, UpstreamError
from proxy.protocol.envelope import dumps
from proxy.upstream.base import NO_HEADERS, Headers, Outcome, Position, Question, Receiver, Transport
from proxy.upstream.inbox import ChangeListener
from proxy.upstream.pending import AskingTools
from proxy.upstream.session import LegacySession
from tests.manual_clock import ManualClock

TURNS: Final = 20  # of the event loop, after which everybody has done what there was to do
MAX_DEPTH: Final = 64

FORM: Final[dict[str, Any]] = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(5):
        while not condition():
            await checkpoint()


async def settle() -> None:
    """Let everybody do what there is to do."""
    for _ in range(TURNS):
        await checkpoint()


def capabilities(declared: Mapping[str, Any] | None = None) -> ClientCapabilities:
    return ClientCapabilities.parse(dumps(dict(declared or {})))


@dataclass(frozen=True)
class Sent:
    """One message of ours, as the upstream got it; `call` is what the transport was told with it."""

    body: dict[str, Any]
    call: int | None

    @property
    def method(self) -> str | None:
        return self.body.get("method")

    @property
    def id(self) -> Any:
        return self.body.get("id")


@dataclass(eq=False)
class FakeTransport:
    """What the session did to it, and how it behaves.

    `starts`: connecting takes until then, and ends in `unavailable` if that is set. `reads`: every send takes
    until then. `refusal`: what every send raises. `tells`: answers say on which stream they came, as over
    HTTP. `ends_when_closed`: else there is something to clean up until `end`. `headers` are those that went
    beside a message, by its id.
    """

    sent: list[Sent] = field(default_factory=list)
    headers: dict[Any, dict[str, str]] = field(default_factory=dict)
    abandoned: list[int] = field(default_factory=list)
    version: str | None = None
    left: bool = False
    closed: int = 0
    ended: bool = False
    starts: anyio.Event | None = None
    unavailable: UpstreamError | None = None
    reads: anyio.Event | None = None
    refusal: UpstreamError | None = None
    tells: bool = False
    ends_when_closed: bool = True
    _receiver: Receiver | None = None
    _bug: Exception | None = None
    _over: anyio.Event = field(default_factory=anyio.Event)

    # -- the session's side --------------------------------------------------------------------------

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        if self.starts is not None:
            await self.starts.wait()
        if self.unavailable is not None:
            raise self.unavailable
        self._receiver = receiver
        task_status.started()
        try:
            await self._over.wait()
            if self._bug is not None:
                self._receiver = None
                raise self._bug
        finally:
            self.lose_all(UpstreamClosed("upstream 'fake' was closed"))
            self.ended = True

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.sent.append(Sent(_read(message), call))
        if headers:
            self.headers[self.sent[-1].id] = dict(headers)
        if self.reads is not None:
            await self.reads.wait()

    def abandon(self, call: int) -> None:
        self.abandoned.append(call)

    def established(self, version: str) -> None:
        self.version = version

    def leave(self) -> None:
        self.left = True

    def close(self) -> None:
        self.closed += 1
        if self.ends_when_closed:
            self._over.set()

    def describe(self) -> str:
        return "fake"

    # -- the upstream's side --------------------------------------------------------------------------

    def deliver(self, message: Any, *, on: int | None = None) -> None:
        """The upstream sends this (raw if it is bytes), on the stream of the call `on` if it says so."""
        assert self._receiver is not None
        self._receiver.received(message if isinstance(message, bytes) else dumps(message), on)

    def answer(self, request: Sent, result: Any = None, *, error: Any = None) -> None:
        tail = {"result": {} if result is None else result} if error is None else {"error": error}
        self.deliver({"jsonrpc": "2.0", "id": request.id, **tail}, on=request.call if self.tells else None)

    def ask(self, id: Any, method: str, params: Any = None, *, on: int | None = None) -> None:
        body = {"jsonrpc": "2.0", "id": id, "method": method}
        self.deliver(body if params is None else {**body, "params": params}, on=on)

    def notify(self, method: str, params: Any = None, *, on: int | None = None) -> None:
        body = {"jsonrpc": "2.0", "method": method}
        self.deliver(body if params is None else {**body, "params": params}, on=on)

    def lose(self, call: int, error: UpstreamError) -> None:
        """No answer to this one."""
        assert self._receiver is not None
        self._receiver.lost(call, error)

    def lose_all(self, error: UpstreamError) -> None:
        """The connection is dead; `run` may still have to clean up."""
        if self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            receiver.lost(None, error)

    def die(self, error: UpstreamError) -> None:
        """Dead, and nothing left to clean up."""
        self.lose_all(error)
        self._over.set()

    def crash(self, bug: Exception) -> None:
        """A fault of the transport: it breaks its promise to say that all is lost."""
        self._bug = bug
        self._over.set()

    def end(self) -> None:
        """The clean-up after `lose_all` is done."""
        self._over.set()

    async def asked(self, method: str, nth: int = 1) -> Sent:
        """The `nth` message of ours with this method, once it is there."""
        await until(lambda: len(self.of(method)) >= nth)
        return self.of(method)[nth - 1]

    def of(self, method: str) -> list[Sent]:
        return [m for m in self.sent if m.method == method]

    async def told(self, id: Any) -> dict[str, Any]:
        """Our answer to the upstream's request with this id, once it is there."""
        await until(lambda: self.answers_to(id))
        return self.answers_to(id)[0]

    def answers_to(self, id: Any) -> list[dict[str, Any]]:
        """Equal, and of one type: 0 is not "0"."""
        return [m.body for m in self.sent if m.method is None and m.id == id and type(m.id) is type(id)]


def _read(message: bytes) -> dict[str, Any]:
    """Integers past Python's limit stay text."""
    return dict(json.loads(message, parse_int=lambda text: int(text) if len(text) < 1_000 else text))


def initialize_result(version: str = "2025-11-25", **capabilities: Any) -> dict[str, Any]:
    return {
        "protocolVersion": version,
        "capabilities": capabilities,
        "serverInfo": {"name": "fake", "version": "1"},
    }


async def shake_hands(server: FakeTransport, nth: int = 1, **capabilities: Any) -> None:
    """The upstream's part of the handshake."""
    server.answer(await server.asked("initialize", nth), initialize_result(**capabilities))
    await server.asked("notifications/initialized", nth)


@dataclass(eq=False)
class Listener:
    """A `base.CallListener` that writes down what it is told."""

    name: str
    notes: list[tuple[str, Any]] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    withdrawn: list[Question] = field(default_factory=list)

    def on_notification(self, method: str, params: bytes | None) -> None:
        self.notes.append((method, None if params is None else json.loads(params)))

    def on_question(self, question: Question) -> None:
        self.questions.append(question)

    def on_withdrawn(self, question: Question) -> None:
        self.withdrawn.append(question)

    def on_position(self, position: Position) -> None:
        """Fakes tell none."""

    @property
    def open(self) -> list[Any]:
        """The ids of the questions that were asked and not withdrawn."""
        return [q.id.value for q in self.questions if q not in self.withdrawn]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} asked {self.open}>"


@dataclass(eq=False, repr=False)
class Client(Listener):
    """Who called, the request that went upstream for it, and how that ended."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: Outcome | None = None
    error: UpstreamError | None = None
    sent: Sent | None = None

    @property
    def id(self) -> int:
        """The id that its request has upstream."""
        assert self.sent is not None
        assert isinstance(self.sent.id, int)
        return self.sent.id

    def hang_up(self) -> None:
        self.scope.cancel()


@dataclass
class Conversation:
    """A session that has shaken hands, the server behind it, and its clients."""

    session: LegacySession
    server: FakeTransport
    clock: ManualClock
    changes: list[tuple[str, bytes | None]]
    _tasks: anyio.abc.TaskGroup

    async def call(
        self, tool: str, *, method: str = "tools/call", arguments: Any = None, want_progress: bool = False
    ) -> Client:
        """A client calls; returns when the upstream has the request."""
        client = Client(tool)
        member = "uri" if method == "resources/read" else "name"
        params = {member: tool, **({} if arguments is None else {"arguments": arguments})}
        before = len(self.server.of(method))

        async def run() -> None:
            with client.scope:
                try:
                    client.outcome = await self.session.call(
                        method, dumps(params), client, want_progress=want_progress
                    )
                except UpstreamError as exc:
                    client.error = exc
            client.done.set()

        self._tasks.start_soon(run)
        client.sent = await self.server.asked(method, before + 1)
        return client

    async def answer(self, client: Client, result: Any = None, *, error: Any = None) -> Outcome:
        """The upstream answers this client's call; returns when the client has it."""
        assert client.sent is not None
        self.server.answer(client.sent, result, error=error)
        await ended(client)
        assert client.outcome is not None
        return client.outcome


async def ended(client: Client) -> None:
    with anyio.fail_after(5):
        await client.done.wait()


def session_over(
    server: FakeTransport,
    clock: ManualClock,
    *,
    declared: Mapping[str, Any] | None = None,
    known_to_ask: Sequence[str] = (),
    asking: AskingTools | None = None,
    start_timeout_s: float = 5.0,
    on_change: ChangeListener = lambda method, params: None,
) -> LegacySession:
    return LegacySession(
        server,
        name="fake",
        capabilities=capabilities(declared),
        client_version="0",
        asking=asking or AskingTools(lambda tool: tool in known_to_ask),
        clock=clock,
        max_depth=MAX_DEPTH,
        start_timeout_s=start_timeout_s,
        on_change=on_change,
    )


def adopted_session(transport: Transport, info: ServerInfo, clock: Clock, **more: Any) -> LegacySession:
    """One that exists already, whoever opened it. `more` as of `LegacySession`."""
    return LegacySession(
        transport,
        name="fake",
        capabilities=ANY_CAPABILITIES,
        client_version="0",
        asking=AskingTools(lambda tool: False),
        clock=clock,
        max_depth=MAX_DEPTH,
        start_timeout_s=5.0,
        on_change=lambda method, params: None,
        adopted=info,
        **more,
    )


ALL: Final[dict[str, Any]] = {"elicitation": {}, "sampling": {}, "roots": {}}
"""The capabilities of a client that can be asked anything (but for the newest modes)."""


@asynccontextmanager
async def conversation(
    *,
    declared: Mapping[str, Any] | None = None,
    known_to_ask: Sequence[str] = (),
    asking: AskingTools | None = None,
    **server_capabilities: Any,
) -> AsyncIterator[Conversation]:
    """Handshake done; closed in order at the end."""
    server, clock = FakeTransport(), ManualClock()
    changes: list[tuple[str, bytes | None]] = []
    session = session_over(
        server,
        clock,
        declared=ALL if declared is None else declared,
        known_to_ask=known_to_ask,
        asking=asking,
        on_change=lambda method, params: changes.append((method, params)),
    )
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: shake_hands(server, **server_capabilities))
            await tasks.start(session.run)
            yield Conversation(session, server, clock, changes, tasks)
            session.close()
            server.end()
    assert server.ended
