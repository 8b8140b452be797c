"""One legacy client's own session with the upstream, message by message and unchanged.

Above: `downstream.stdio` (later also the HTTP session layer). Below: a transport of the client's own.
Only request ids change on the way, since an HTTP transport and a restarted server need ours; bodies
keep their bytes. If the server dies, whatever was pending is answered with an error at once, and the
next request gets a new server that is told what the old one knew: handshake, log level, subscriptions.
Contract sections 6 and 9; field report F38.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock
from proxy.errors import ErrorCode, ProxyError, UpstreamClosed, UpstreamError, UpstreamTimeout, only_fault
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, splice
from proxy.protocol.jsonrpc import (
    ErrorResponse,
    Message,
    MessageError,
    Notification,
    Request,
    RequestId,
    ResultResponse,
)
from proxy.upstream.base import Transport

BACK_OFF_S: Final = (0.0, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # before the n-th start in a row
INBOX_SIZE: Final = 100
STABLE_S: Final = 60.0  # a server that lived this long starts a new count

log = get_logger()


class Client(Protocol):
    """Where messages for the client go. Must not block."""

    def send(self, message: bytes) -> None: ...


@dataclass(eq=False)
class _Pending:
    """A request that was sent on. `rid` is the client's id, None if the request is our own."""

    rid: RequestId | None
    request: Request | None = None
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: ResultResponse | ErrorResponse | None = None


@dataclass(slots=True)
class _Memory:
    """What a new server must be told to stand where the old one stood; raw params."""

    initialize: bytes | None = None
    log_level: bytes | None = None
    subscriptions: dict[str, bytes] = field(default_factory=dict)

    def note(self, request: Request) -> None:
        """Called when the server has accepted the request."""
        params = request.params
        if request.method == names.INITIALIZE:
            self.initialize, self.log_level = params, None
            self.subscriptions.clear()
        elif request.method == names.LOGGING_SET_LEVEL:
            self.log_level = params
        elif params is not None and (uri := _text(params, "uri")) is not None:
            if request.method == names.RESOURCES_SUBSCRIBE:
                self.subscriptions[uri] = params
            elif request.method == names.RESOURCES_UNSUBSCRIBE:
                self.subscriptions.pop(uri, None)


class Passthrough:
    """A session of one client. `run` must be running; `from_client` takes what the client says."""

    def __init__(
        self,
        make_transport: Callable[[], Transport],
        client: Client,
        *,
        name: str,
        clock: Clock,
        max_depth: int,
        start_timeout_s: float,
    ) -> None:
        self._make_transport = make_transport
        self._client = client
        self._name = name
        self._clock = clock
        self._max_depth = max_depth
        self._start_timeout_s = start_timeout_s
        self._transport: Transport | None = None
        self._pending: dict[int, _Pending] = {}
        self._ids = itertools.count(1)
        self._memory = _Memory()
        self._starting = anyio.Lock()
        self._starts = 0
        self._last_start = float("-inf")
        self._lost = anyio.Event()
        self._asked: set[int | str] = set()
        self._inbox, self._incoming = anyio.create_memory_object_stream[tuple[Message, bytes]](INBOX_SIZE)
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: StartStatus[None]) -> None:
        """Own the client's server, and send on what the client says, in its order; until closed."""
        async with anyio.create_task_group() as tasks, self._incoming:
            self._tasks = tasks
            task_status.started()
            async for message, raw in self._incoming:
                await self._forward(message, raw)

    async def close(self) -> None:
        """End the server in an orderly way."""
        if self._transport is not None:
            self._transport.close()
            await self._lost.wait()
        self._inbox.close()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def owns_request(self, rid: RequestId) -> bool:
        """Whether a request of the client with this id is in flight here."""
        return any(p.rid is not None and p.rid.value == rid.value for p in self._pending.values())

    def __repr__(self) -> str:
        where = self._transport.describe() if self._transport else "no server"
        return f"<Passthrough '{self._name}' {where}, {len(self._pending)} pending>"

    # -- from the client ----------------------------------------------------------------------------

    async def from_client(self, message: Message, raw: bytes) -> None:
        """Take one message; waits while the server does not read."""
        await self._inbox.send((message, raw))

    async def _forward(self, message: Message, raw: bytes) -> None:
        """Send one message on. A request that cannot be is answered with an error; the rest is logged."""
        match message:
            case Request():
                await self._send_request(message, raw)
            case Notification(names.CANCELLED, params):
                await self._send_cancel(params)
            case Notification():
                await self._send(raw)
            case ResultResponse() | ErrorResponse():
                if message.id is not None and message.id.value in self._asked:
                    self._asked.remove(message.id.value)
                    await self._send(raw)  # an answer to what this server never asked is ignored (F16)

    async def _send_request(self, request: Request, raw: bytes) -> None:
        ours = next(self._ids)
        try:
            transport = await self._server()
            self._pending[ours] = _Pending(request.id, request)
            await transport.send(splice(raw, {"id": b"%d" % ours}), call=ours)
        except UpstreamError as exc:
            if self._pending.pop(ours, None) is not None or self._transport is None:
                self._client.send(jsonrpc.error_response(request.id, _error(exc)))

    async def _send_cancel(self, params: bytes | None) -> None:
        """The id inside is translated with the request it names (CANC-006); unknown ones are ignored."""
        rid = _request_id(params)
        if rid is None or params is None:
            return
        for ours, pending in self._pending.items():
            if pending.rid is not None and pending.rid.value == rid.value:
                changed = splice(params, {"requestId": b"%d" % ours})
                await self._send(jsonrpc.notification(names.CANCELLED, changed))
                return

    async def _send(self, raw: bytes) -> None:
        try:
            if self._transport is not None:
                await self._transport.send(raw)
        except UpstreamError as exc:
            log.warning("message_not_delivered", upstream=self._name, reason=exc.message)

    # -- the server ---------------------------------------------------------------------------------

    async def _server(self) -> Transport:
        """The running server, or a new one that is told what the old one knew. Raises UpstreamError."""
        async with self._starting:
            if self._transport is None:
                now = self._clock.monotonic()
                self._starts = 1 if now - self._last_start >= STABLE_S else self._starts + 1
                await self._clock.sleep(BACK_OFF_S[min(self._starts, len(BACK_OFF_S)) - 1])
                self._last_start = self._clock.monotonic()
                await self._start()
                if self._memory.initialize is not None:
                    await self._tell_what_was()
            assert self._transport is not None
            return self._transport

    async def _start(self) -> None:
        assert self._tasks is not None  # `run` is running
        self._lost = anyio.Event()
        transport = self._make_transport()
        ready = anyio.Event()
        faults: list[ProxyError] = []

        async def live() -> None:
            try:
                async with anyio.create_task_group() as tasks:
                    await tasks.start(transport.run, self)
                    self._transport = transport
                    ready.set()
            except BaseExceptionGroup as group:
                faults.append(only_fault(group))
            except UpstreamError as exc:
                faults.append(exc)
            finally:
                self.lost(None, UpstreamClosed(f"upstream '{self._name}' could not be started"))
                ready.set()

        self._tasks.start_soon(live)
        await ready.wait()
        if faults:
            raise faults[0]

    async def _tell_what_was(self) -> None:
        """The handshake with the client's own words, its log level and subscriptions, answers not passed on.

        Then the client is told once that lists may have changed: what happened in between is not known.
        """
        answer = await self._ask(names.INITIALIZE, self._memory.initialize)
        if not isinstance(answer, ResultResponse):
            raise UpstreamClosed(f"upstream '{self._name}' was started again and refused initialize")
        assert self._transport is not None
        self._transport.established(_text(answer.result, "protocolVersion") or "")
        await self._transport.send(jsonrpc.notification(names.INITIALIZED))
        if self._memory.log_level is not None:
            await self._ask(names.LOGGING_SET_LEVEL, self._memory.log_level)
        for params in list(self._memory.subscriptions.values()):
            await self._ask(names.RESOURCES_SUBSCRIBE, params)
        capabilities = RawObject.parse(answer.result).object("capabilities")
        for group, method in _LIST_CHANGES.items():
            declared = capabilities.object(group) if capabilities is not None else None
            if declared is not None and declared.get("listChanged") == b"true":
                self._client.send(jsonrpc.notification(method))

    async def _ask(self, method: str, params: bytes | None) -> ResultResponse | ErrorResponse | None:
        ours, pending = next(self._ids), _Pending(None)
        self._pending[ours] = pending
        assert self._transport is not None
        try:
            with anyio.fail_after(self._start_timeout_s):
                await self._transport.send(jsonrpc.request(ours, method, params), call=ours)
                await pending.done.wait()
        except TimeoutError:
            raise UpstreamTimeout(f"upstream '{self._name}' did not answer {method} in time") from None
        finally:
            self._pending.pop(ours, None)
        return pending.answer

    # -- from the server (upstream.base.Receiver) ----------------------------------------------------

    def received(self, message: bytes, call: int | None) -> None:
        try:
            parsed = jsonrpc.parse(message, self._max_depth)
        except MessageError as exc:
            log.warning("upstream_noise_skipped", upstream=self._name, reason=exc.message, bytes=len(message))
            return
        if isinstance(parsed, Request | Notification):
            if isinstance(parsed, Request):
                self._asked.add(parsed.id.value)
            self._client.send(message)
            return
        ours = parsed.id.value if parsed.id is not None else call
        if isinstance(ours, str) and ours.isdigit() and len(ours) < 19:
            ours = int(ours)
        pending = self._pending.pop(ours, None) if isinstance(ours, int) else None
        if pending is None:
            log.debug("late_answer_dropped", upstream=self._name)
            return
        pending.answer = parsed
        if pending.request is not None and isinstance(parsed, ResultResponse):
            self._accepted(pending.request, parsed)
        if pending.rid is not None:
            self._client.send(splice(message, {"id": pending.rid.raw}))
        pending.done.set()

    def _accepted(self, request: Request, answer: ResultResponse) -> None:
        self._memory.note(request)
        if request.method == names.INITIALIZE and self._transport is not None:
            self._transport.established(_text(answer.result, "protocolVersion") or "")

    def lost(self, call: int | None, error: UpstreamError) -> None:
        """Every call on it is answered at once (contract section 9)."""
        gone = [call] if call is not None else list(self._pending)
        for ours in gone:
            pending = self._pending.pop(ours, None)
            if pending is None:
                continue
            if pending.rid is not None:
                self._client.send(jsonrpc.error_response(pending.rid, _error(error)))
            pending.done.set()
        if call is None:
            self._transport = None
            self._asked.clear()
            self._lost.set()


_LIST_CHANGES: Final = {
    "tools": names.TOOLS_LIST_CHANGED,
    "prompts": names.PROMPTS_LIST_CHANGED,
    "resources": names.RESOURCES_LIST_CHANGED,
}


def _error(fault: ProxyError) -> bytes:
    return jsonrpc.error_object(ErrorCode.INTERNAL_ERROR, fault.message, fault.data)


def _text(raw: bytes, member: str) -> str | None:
    try:
        return RawObject.parse(raw).text(member)
    except (JsonError, DuplicateMember):
        return None


def _request_id(params: bytes | None) -> RequestId | None:
    try:
        raw = RawObject.parse(params or b"{}").get("requestId")
    except (JsonError, DuplicateMember):
        return None
    return None if raw is None else RequestId.parse(raw)
