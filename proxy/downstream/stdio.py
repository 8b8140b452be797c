"""stdio towards a client: both eras on one process, each message judged for itself.

Above: `app`. Below: `pipes` (bytes), `validation` (is it a request), the router for modern messages, a
`Passthrough` for legacy ones. A message with modern `_meta` is modern; the others follow the process's
`initialize`, and are refused before one; `notifications/cancelled` and responses follow the request that
they name. Contract section 2, "Client's era, per message"; stdio 2026-07-28.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from proxy.clock import Clock, Pulse
from proxy.downstream.base import message_of, message_of_fault
from proxy.downstream.exchange import Exchange, handle
from proxy.downstream.pipes import LineWriter
from proxy.downstream.validation import Rejection, read_modern, said_version
from proxy.errors import (
    ClientProtocolError,
    ErrorCode,
    LimitReached,
    ProxyError,
    ShuttingDown,
)
from proxy.logs import get_logger
from proxy.metrics import UNSERVED, Metrics, Outcome, outcome_of
from proxy.owners import Owner
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, check, dumps, elements
from proxy.protocol.jsonrpc import MessageError, Notification, Request, RequestId
from proxy.protocol.lines import HEAD_BYTES, Line, LineSplitter, Oversized, Tail
from proxy.routing.base import ClientRequest
from proxy.routing.counted import Outstanding
from proxy.routing.offers import Channel
from proxy.routing.own_server import Client
from proxy.routing.passthrough import Passthrough
from proxy.routing.router import Router

LOCAL_USER: Final = Owner("local-user")
"""On stdio the owner is the user who started us (AUTH-008)."""

FLUSH_S: Final = 1.0  # a client that does not read its last lines is not waited for
LAST_ANSWERS_S: Final = 5.0  # for a client that piped its requests in; a server may have to start first

_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID: Final = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,100}")'
_METHOD: Final = rb'"method"\s*:'
_BEGIN: Final = rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?"
_ID_FIRST: Final = re.compile(_BEGIN + _ID + rb"\s*,\s*" + _METHOD)
_METHOD_FIRST: Final = re.compile(_BEGIN + _METHOD)
_ID_LAST: Final = re.compile(_ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*\Z")

log = get_logger()


@dataclass(frozen=True, slots=True)
class StdioSettings:
    """`supported`: the versions that -32022 lists."""

    max_message_bytes: int
    max_depth: int
    supported: Callable[[], Sequence[str]]
    max_in_flight: int


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A modern request that is being answered."""

    request: ClientRequest
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def is_listen(self) -> bool:
        return self.request.method == names.SUBSCRIPTIONS_LISTEN


class _Lines:
    """A legacy client: one pipe for everything, so it does not matter what a message belongs to.

    An answer of the server's counts as a result: what is in it is not read here. Once the client has closed
    its end it is told answers alone: some take anything else for a fault.
    """

    def __init__(self, writer: LineWriter, outstanding: Outstanding) -> None:
        self._writer = writer
        self._outstanding = outstanding
        self.listens = True

    def answer(self, rid: RequestId | None, message: bytes) -> None:
        self._outstanding.end(rid, Outcome.RESULT)
        self._writer.send(message)

    def fail(self, rid: RequestId, fault: ProxyError) -> None:
        self._outstanding.end(rid, outcome_of(fault))
        self._writer.send(message_of_fault(rid, fault))

    def sends_on(self, rid: RequestId) -> None:
        """It is one of the requests that are in progress, as before."""

    def ask(self, request: Request, message: bytes, call: RequestId | None) -> None:
        self.send(message)

    def tell(self, notification: Notification, message: bytes, call: RequestId | None) -> None:
        self.send(message)

    def channel(self, call: RequestId | None) -> Channel:
        return self

    @property
    def is_open(self) -> bool:
        return self.listens and not self._writer.broken.is_set()

    def send(self, message: bytes) -> bool:
        if self.listens:
            self._writer.send(message)
        return self.is_open


class StdioEndpoint:
    """Serves one client. `serve` returns when its stdin has ended, or it has stopped reading."""

    def __init__(
        self,
        router: Router,
        make_passthrough: Callable[[Client], Passthrough],
        writer: LineWriter,
        settings: StdioSettings,
        clock: Clock,
        metrics: Metrics = UNSERVED,
    ) -> None:
        self._metrics = metrics
        self._legacy_requests = Outstanding("legacy", metrics, clock)
        self._router = router
        self._make_passthrough = make_passthrough
        self._writer = writer
        self._settings = settings
        self._legacy: Passthrough | None = None
        self._lines: _Lines | None = None
        self._in_flight: dict[int | str, _InFlight] = {}
        self._oversized_head = b""
        self._draining = False
        self._is_gone = False
        self._last_answers = anyio.CancelScope()
        self._ends = Pulse()
        self._tasks: TaskGroup | None = None

    async def serve(
        self, chunks: AsyncIterable[bytes], drained: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
    ) -> None:
        """Until the client's end; what it still waits for is then cancelled, its tasks are not: its server
        is ended once `drained` returns."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._writer.run)
            async with anyio.create_task_group() as reading:
                reading.start_soon(self._end_when_broken, reading.cancel_scope)
                await self._read(chunks)
                reading.cancel_scope.cancel()
            self._is_gone = True
            self._cancel(self._in_flight.values())
            await drained()
            await self.end()
            tasks.cancel_scope.cancel()

    async def _read(self, chunks: AsyncIterable[bytes]) -> None:
        splitter = LineSplitter(self._settings.max_message_bytes, tail_bytes=HEAD_BYTES)
        async for chunk in chunks:
            self._take(splitter.feed(chunk))
        self._take(splitter.end())
        log.info("client_closed_stdin")
        await self._give_last_answers()

    async def _end_when_broken(self, scope: anyio.CancelScope) -> None:
        await self._writer.broken.wait()
        log.info("client_stopped_reading")
        scope.cancel()

    async def _give_last_answers(self) -> None:
        """Cancel what a client that has gone still waits for.

        One that closed its stdin before it was told anything has not gone: its messages were piped in, and
        it reads what comes. Its requests get some time; those of a person who tries a server in a shell do.
        What is answered then is written as long as it reads.
        """
        piped_in = not self._writer.wrote and self._writer.has_reader()
        if self._lines is not None:
            self._lines.listens = piped_in
        self._cancel(one for one in self._in_flight.values() if one.is_listen or not piped_in)
        with self._last_answers:
            self._last_answers.deadline = anyio.current_time() + (LAST_ANSWERS_S if piped_in else 0.0)
            await self.wait_idle()
            if piped_in:
                self._last_answers.deadline = inf
                await self._writer.written()
        self._cancel(self._in_flight.values())

    @staticmethod
    def _cancel(requests: Iterable[_InFlight]) -> None:
        for one in requests:
            one.scope.cancel()

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True
        self._last_answers.cancel()

    async def wait_idle(self) -> None:
        """Until the client waits for nothing, in either era. One that has gone does not."""
        while self._in_flight:
            await self._ends.event.wait()
        if self._legacy is not None and not self._is_gone:
            await self._legacy.wait_answered()

    async def end(self) -> None:
        """End the legacy client's server, and let what was said last be written."""
        if self._legacy is not None:
            await self._legacy.close()
        self._writer.close()
        with anyio.move_on_after(FLUSH_S):
            await self._writer.done.wait()

    # -- what comes in ------------------------------------------------------------------------------

    def _take(self, lines: Iterable[Line | Oversized | Tail]) -> None:
        for line in lines:
            match line:
                case Oversized(head):
                    self._oversized_head = head
                case Tail(tail):
                    limit = self._settings.max_message_bytes
                    fault = f"Invalid request: the message is over {limit} bytes (limits.message)"
                    rid = _id_between(self._oversized_head, tail)
                    self._refuse(rid, ClientProtocolError(ErrorCode.INVALID_REQUEST, fault))
                case Line(text) if text.strip():
                    for raw in self._messages_in(text):
                        self._take_message(raw)

    def _messages_in(self, text: bytes) -> Sequence[bytes]:
        """The text alone, but for the arrays that a session of 2025-03-26 may send (F20)."""
        if self._legacy is None or not self._legacy.has_batches or text.lstrip()[:1] != b"[":
            return [text]
        try:
            check(text, self._settings.max_depth)
            return elements(text) or [text]
        except JsonError:
            return [text]  # refused as it stands, like an empty array

    def _take_message(self, raw: bytes) -> None:
        try:
            message = jsonrpc.parse(raw, self._settings.max_depth)
        except MessageError as exc:
            self._refuse(exc.id, ClientProtocolError(exc.code, exc.message))
            return
        match message:
            case Request(rid) if self._draining and message.method not in names.TASK_METHODS:
                self._refuse(rid, ShuttingDown(retry_after_s=1))
            case Request() if said_version(message) is not None:
                self._start_modern(message)
            case Request():
                self._take_legacy_request(message, raw)
            case Notification(names.CANCELLED, params) if (one := self._named(params)) is not None:
                one.scope.cancel()
            case Notification() if said_version(message) is not None:
                pass  # of a modern client, which has none but cancellations
            case _:
                if isinstance(message, Notification) and message.method == names.CANCELLED:
                    self._legacy_requests.end(_named_in(message.params), Outcome.HUNG_UP)
                if self._legacy is not None:
                    self._legacy.from_client(message, raw)

    def _named(self, params: bytes | None) -> _InFlight | None:
        """The modern request in flight that a cancellation names. `initialize` never is one."""
        rid = _named_in(params)
        return self._in_flight.get(rid.value) if rid is not None else None

    def _take_legacy_request(self, request: Request, raw: bytes) -> None:
        if self._legacy is None:
            if request.method != names.INITIALIZE:
                fault = "Invalid params: neither per-request _meta (2026-07-28) nor an initialize before"
                self._refuse(request.id, ClientProtocolError(ErrorCode.INVALID_PARAMS, fault))
                return
            assert self._tasks is not None  # `serve` is running
            self._lines = _Lines(self._writer, self._legacy_requests)
            self._legacy = self._make_passthrough(self._lines)
            self._tasks.start_soon(self._legacy.run)
        try:
            self._refuse_too_many()
        except LimitReached as exc:
            self._refuse(request.id, exc)
            return
        self._legacy_requests.begin(request)
        self._legacy.from_client(request, raw)

    def _refuse(self, rid: RequestId | None, fault: ProxyError) -> None:
        self._metrics.refused(fault)
        self._writer.send(message_of_fault(rid, fault))

    # -- modern requests ----------------------------------------------------------------------------

    def _start_modern(self, message: Request) -> None:
        try:
            request = read_modern(message, None, LOCAL_USER, self._settings.supported())
            self._admit(request)
        except Rejection as exc:
            self._refuse(exc.rid, exc.fault)
            return
        except ProxyError as exc:
            self._refuse(message.id, exc)
            return
        one = self._in_flight[request.id.value] = _InFlight(request)
        assert self._tasks is not None  # `serve` is running
        self._tasks.start_soon(self._serve_modern, one)

    def _admit(self, request: ClientRequest) -> None:
        if request.id.value in self._in_flight:
            raise ClientProtocolError(
                ErrorCode.INVALID_REQUEST, "Invalid request: the id is that of a request in flight"
            )
        self._refuse_too_many()

    def _refuse_too_many(self) -> None:
        """Of both eras together."""
        if len(self._in_flight) + len(self._legacy_requests) >= self._settings.max_in_flight:
            raise LimitReached(
                f"{self._settings.max_in_flight} requests are in progress (limits.requests)", retry_after_s=1
            )

    async def _serve_modern(self, one: _InFlight) -> None:
        """Have the request handled; nothing more is sent for it once it is cancelled (STDIO-006)."""
        exchange = Exchange()
        try:
            with one.scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(handle, self._router, one.request, exchange)
                    await self._write_exchange(one.request, exchange)
                    tasks.cancel_scope.cancel()  # it may have been answered for a reader that is too slow
        finally:
            del self._in_flight[one.request.id.value]
            self._ends.beat()

    async def _write_exchange(self, request: ClientRequest, exchange: Exchange) -> None:
        while True:
            changed = exchange.changed.event
            for message in exchange.take():
                self._writer.send(message)
            if exchange.done:
                break
            await changed.wait()
            await self._writer.room()  # meanwhile the exchange leaves out what may be left out
        if exchange.answer is None:
            assert exchange.fault is not None  # an exchange that is done has one or the other
            self._writer.send(message_of_fault(request.id, exchange.fault))
            return
        if request.method == names.SUBSCRIPTIONS_LISTEN:  # ended by us: told in both ways (SUB-006, SUB-007)
            params = b'{"requestId":' + request.id.raw + b',"reason":' + dumps("shutting down") + b"}"
            self._writer.send(jsonrpc.notification(names.CANCELLED, params))
        self._writer.send(message_of(request.id, exchange.answer)[0])


def _named_in(params: bytes | None) -> RequestId | None:
    """The id in a cancellation; None if it is malformed."""
    try:
        raw = RawObject.parse(params or b"{}").get("requestId")
    except (JsonError, DuplicateMember):
        return None
    return RequestId.parse(raw) if raw is not None else None


def _id_between(head: bytes, tail: bytes) -> RequestId | None:
    """The id of a request of which only the ends are there, if it stands where clients write it."""
    found = _ID_FIRST.match(head) or (_METHOD_FIRST.match(head) and _ID_LAST.search(tail))
    return RequestId.parse(found.group(1)) if found else None
