"""A legacy server in memory, played by the test: it sees each call and says what the server says.

Stands in for a process or an HTTP server below the real `LegacySession`. Fast tools answer by themselves
(`answers`); for every other call the test takes `next_call()` and goes on from there.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Pulse
from proxy.eras.to_modern import ServerInfo
from proxy.errors import ServerGone, UpstreamClosed, UpstreamError, UpstreamUnavailable
from proxy.upstream.base import NO_HEADERS, Headers, Receiver, StreamPosition

SESSION: Final = "session-1"
SERVER_INFO: Final = {"name": "fake", "version": "1.2.3"}
EVERYTHING: Final[Mapping[str, Any]] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}
TEXT: Final = {"content": [{"type": "text", "text": "done"}]}


class Refused(Exception):
    """The client side answered a question with a JSON-RPC error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]


@dataclass(eq=False)
class Asked:
    """A question of the server on its way."""

    id: int | str
    method: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    answered: anyio.Event = field(default_factory=anyio.Event)
    answers: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self) -> Any:
        """Raises Refused if it is an error."""
        await self.answered.wait()
        first = self.answers[0]
        if "error" in first:
            raise Refused(first["error"])
        return first["result"]


@dataclass(eq=False)
class Call:
    """One request at the server. The test says what becomes of it."""

    wire: Wire
    id: int
    method: str
    params: dict[str, Any]
    raw: bytes
    cancelled: anyio.Event = field(default_factory=anyio.Event)
    from_event: str | None = None

    @property
    def name(self) -> str:
        return str(self.params.get("name"))

    @property
    def token(self) -> Any:
        return self.params.get("_meta", {}).get("progressToken")

    def progress(self, progress: float, **more: Any) -> None:
        self.say("notifications/progress", progressToken=self.token, progress=progress, **more)

    def log(self, level: str, data: str = "words") -> None:
        self.say("notifications/message", level=level, data=data)

    def say(self, method: str, **params: Any) -> None:
        self.wire.tell({"method": method, "params": params}, self.id)

    def ask(self, method: str, **params: Any) -> Asked:
        return self.wire.ask(method, params, self.id)

    def elicit(self, message: str = "Go on?", **more: Any) -> Asked:
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
        return self.ask("elicitation/create", message=message, requestedSchema=schema, **more)

    def at(self, event_id: str) -> None:
        """What is said next comes behind this event of the call's stream."""
        self.wire.move(self.id, event_id)

    def repeat(self, asked: Asked) -> None:
        """What was said before on this stream, once more."""
        self.wire.tell({"id": asked.id, "method": asked.method, "params": asked.params}, self.id)

    def withdraw(self, asked: Asked) -> None:
        self.say("notifications/cancelled", requestId=asked.id)

    def answer(self, result: Mapping[str, Any] | None = None) -> None:
        self.answer_raw(json.dumps(TEXT if result is None else result).encode())

    def answer_raw(self, result: bytes) -> None:
        self.wire.tell_raw(b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (self.id, result), self.id)

    def fail(self, code: int, message: str, **more: Any) -> None:
        error = {"code": code, "message": message, **more}
        self.wire.tell({"id": self.id, "error": error}, self.id)


class Wire:
    """One connection with the server. Implements `proxy.upstream.base.Transport`."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._receiver: Receiver | None = None
        self._ending = anyio.Event()
        self._error: UpstreamError = UpstreamClosed("upstream 'fake': the session was closed")
        self._asked: dict[int | str, Asked] = {}
        self._calls: dict[int, Call] = {}
        self.left = False
        self._is_cut = False
        self.heard: list[dict[str, Any]] = []
        self.headers: dict[int, Headers] = {}  # of the requests, by their ids
        self.capabilities: dict[str, Any] = {}

    @property
    def is_open(self) -> bool:
        return not self._ending.is_set()

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        await self._server.may_start.wait()
        if self._server.start_fault is not None:
            raise UpstreamUnavailable(self._server.start_fault)
        self._receiver = receiver
        self._server.wires.append(self)
        task_status.started()
        try:
            await self._ending.wait()
        finally:
            self._ending.set()
            receiver.lost(None, self._error)

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        await self._server.reads.wait()
        if self._is_cut:
            return
        if not self.is_open:
            raise self._error
        if call is not None and self._server.dies_unseen:
            self._server.dies_unseen = False
            self.break_off()
            raise ServerGone("upstream 'fake' is not running")
        if (fault := self._server.send_fault) is not None and call is None:
            raise fault
        if (fault := self._server.call_fault) is not None and call is not None:
            self._server.calls_refused += 1
            assert self._receiver is not None
            self._receiver.lost(call, fault)
            return
        parsed = json.loads(message, parse_int=lambda text: int(text) if len(text) < 1_000 else text)
        is_answer = "result" in parsed or parsed.get("error") == self._server.refusal
        if is_answer and (fault := self._server.answer_fault) is not None:
            self._server.answers_refused += 1
            raise fault
        self.heard.append(parsed)
        if "method" not in parsed:
            self._take_answer(parsed)
        elif "id" in parsed:
            self.headers[parsed["id"]] = headers
            self._server.take(self, parsed, message)
        elif parsed["method"] == "notifications/cancelled":
            stopped = self._calls.get(parsed["params"]["requestId"])
            if stopped is not None:
                stopped.cancelled.set()

    def abandon(self, call: int) -> None:
        """Nothing is held for it."""

    def established(self, version: str) -> None:
        self.version = version

    def leave(self) -> None:
        self.left = True

    def take_up(self, call: int, event_id: str) -> None:
        """As `upstream.http.HttpTransport`: the rest of a stream is asked for."""
        params = {"_meta": {"progressToken": call}}
        resumed = Call(self, call, "tools/call", params, b"", from_event=event_id)
        self.keep(resumed)
        self._server.take_resumed(resumed)

    def close(self) -> None:
        self._ending.set()

    def describe(self) -> str:
        return "fake"

    # -- what the test does -------------------------------------------------------------------------

    def cut(self) -> None:
        """Whoever is at the other end neither hears nor tells any more; and does not notice."""
        self._is_cut = True

    def break_off(self, reason: str = "upstream 'fake' died; outcome unknown") -> None:
        """The server dies."""
        self._error = UpstreamClosed(reason)
        self._ending.set()

    def tell(self, message: dict[str, Any], call: int | None = None) -> None:
        self.tell_raw(json.dumps({"jsonrpc": "2.0", **message}).encode(), call)

    def tell_raw(self, message: bytes, call: int | None = None) -> None:
        if self._receiver is not None and self.is_open and not self._is_cut:
            self._receiver.received(message, call if self._server.tells_calls else None)

    def move(self, call: int, event_id: str) -> None:
        """The call's stream has brought an event of this id."""
        if self._receiver is not None:
            self._receiver.moved(call, StreamPosition(SESSION, self._server.version, call, event_id))

    def ask(self, method: str, params: dict[str, Any], call: int | None) -> Asked:
        asked = Asked(f"q{len(self._asked)}" if len(self._asked) % 2 else len(self._asked), method, params)
        self._asked[asked.id] = asked
        self.tell({"id": asked.id, "method": method, "params": params}, call)
        return asked

    def _take_answer(self, message: dict[str, Any]) -> None:
        asked = self._asked[message["id"]]
        asked.answers.append(message)
        asked.answered.set()

    def goes_on(self) -> Wire:
        """In the session of all wires before: what was asked there can be answered here."""
        for wire in self._server.wires:
            self._asked.update(wire._asked)
        return self

    def keep(self, call: Call) -> None:
        self._calls[call.id] = call

    def lose(self, call: int, error: UpstreamError) -> None:
        """No answer will come to this call."""
        assert self._receiver is not None
        self._receiver.lost(call, error)


class FakeServer:
    """What `wires` there are, and what came on them.

    `answers` maps methods, or names of tools, to results, or to (code, message) for an error; what has no
    row comes out of `next_call`. `tells_calls`: as over HTTP, what is said during a call comes on its
    stream; else as on stdio.
    """

    def __init__(self, *, tells_calls: bool = True) -> None:
        self.tells_calls = tells_calls
        self.version = "2025-11-25"
        self.capabilities: dict[str, Any] = dict(EVERYTHING)
        self.instructions: str | None = None
        self.answers: dict[str, Any] = {
            "logging/setLevel": {},
            "resources/subscribe": {},
            "resources/unsubscribe": {},
            "tools/list": {"tools": []},
        }
        self.wires: list[Wire] = []
        self.may_start = anyio.Event()
        self.may_start.set()
        self.start_fault: str | None = None
        self.send_fault: UpstreamError | None = None
        self.answer_fault: UpstreamError | None = None  # of answers to its questions alone
        self.answers_refused = 0
        self.call_fault: UpstreamError | None = None  # of requests to it
        self.calls_refused = 0
        self.refusal: dict[str, Any] = {"code": -1, "message": "no"}  # as a client answers
        self.dies_unseen = False  # and the next request is the first to learn of it
        self.reads = anyio.Event()
        self.reads.set()
        self._untaken: deque[Call] = deque()
        self._resumed: deque[Call] = deque()
        self._came = Pulse()

    @property
    def wire(self) -> Wire:
        """The newest."""
        return self.wires[-1]

    @property
    def info(self) -> ServerInfo:
        """What it says of itself in a handshake."""
        capabilities, itself = json.dumps(self.capabilities).encode(), json.dumps(SERVER_INFO).encode()
        return ServerInfo(self.version, capabilities, itself, None)

    def heard(self, method: str) -> list[dict[str, Any]]:
        """The params of every message of this method, on all wires."""
        return [m.get("params", {}) for w in self.wires for m in w.heard if m.get("method") == method]

    @property
    def calls_seen(self) -> int:
        return len(self.heard("tools/call"))

    async def next_call(self) -> Call:
        while not self._untaken:
            await self._came.event.wait()
        return self._untaken.popleft()

    async def next_resumed(self) -> Call:
        """The next call whose stream is asked for from an event on: `from_event`."""
        while not self._resumed:
            await self._came.event.wait()
        return self._resumed.popleft()

    def take_resumed(self, call: Call) -> None:
        self._resumed.append(call)
        self._came.beat()

    def take(self, wire: Wire, message: dict[str, Any], raw: bytes) -> None:
        """A request came in."""
        call = Call(wire, message["id"], message["method"], message.get("params", {}), raw)
        wire.keep(call)
        if call.method == "initialize":
            wire.capabilities = call.params["capabilities"]
            call.answer(self._initialize_result())
            return
        key = call.name if call.method == "tools/call" else call.method
        if key not in self.answers:
            self._untaken.append(call)
            self._came.beat()
        elif isinstance(answer := self.answers[key], tuple):
            call.fail(*answer)
        else:
            call.answer(answer)

    def _initialize_result(self) -> dict[str, Any]:
        more = {} if self.instructions is None else {"instructions": self.instructions}
        return {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "serverInfo": SERVER_INFO,
            **more,
        }
