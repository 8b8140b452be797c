"""The part of a legacy client's session that carries our tasks: their calls among the client's own.

Above: a `LegacySession` that adopts the session, for which this is the transport. Below: `own_server`, whose
connection both use, and which says here what concerns the tasks. Implements `upstream.base.Transport`.
"""

from __future__ import annotations

import anyio
from anyio.abc import TaskStatus as StartStatus

from proxy.errors import ProxyError, UpstreamClosed, UpstreamError
from proxy.protocol import jsonrpc
from proxy.protocol.jsonrpc import Request
from proxy.routing.in_flight import InFlight, text_of
from proxy.upstream.base import NO_HEADERS, Headers, Position, Receiver, Transport


class TaskLine:
    """See the module. `received` and `lost` are called by the server that it is a part of."""

    def __init__(self, transport: Transport, in_flight: InFlight) -> None:
        self._transport = transport
        self._in_flight = in_flight
        self._receiver: Receiver | None = None
        self._closed = anyio.Event()

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        self._receiver = receiver
        task_status.started()
        await self._closed.wait()
        self.lost(None, UpstreamClosed("the session of the client was ended"))

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        parsed = jsonrpc.parse_checked(message)
        if isinstance(parsed, Request):
            assert call is not None  # a request has an answer
            name = None if parsed.params is None else text_of(parsed.params, "name")
            self._in_flight.add_of_task(call, parsed.method, name)
        elif isinstance(parsed, jsonrpc.ResultResponse | jsonrpc.ErrorResponse) and parsed.id is not None:
            self._in_flight.take_answered(parsed.id.value, by_task=True)
        try:
            await self._transport.send(message, call=call)
        except UpstreamError:
            self._in_flight.pop(call)
            raise

    def abandon(self, call: int) -> None:
        self._in_flight.pop(call)
        self._transport.abandon(call)

    def established(self, version: str) -> None:
        """The client's own handshake has said it."""

    def leave(self) -> None:
        """The session is the client's, and not ended by us."""

    def close(self) -> None:
        self._closed.set()

    def describe(self) -> str:
        return self._transport.describe()

    # -- what the server says --------------------------------------------------------------------------

    def received(self, message: bytes, call: int | None) -> None:
        if self._receiver is not None:
            self._receiver.received(message, call)

    def lost(self, call: int | None, error: ProxyError) -> None:
        """Of one call, or, once, of all."""
        receiver = self._receiver
        if receiver is None:
            return
        if call is None:
            self._receiver = None
            self._closed.set()
        receiver.lost(call, error if isinstance(error, UpstreamError) else UpstreamClosed(error.message))

    def moved(self, call: int, position: Position) -> None:
        if self._receiver is not None:
            self._receiver.moved(call, position)

    def __repr__(self) -> str:
        return f"<TaskLine {self._transport.describe()}>"
