"""The transport for one legacy client's own session with the server, whatever era that is of.

Above: `routing.passthrough`. Below: the plain transport, which passes legacy messages as they are, or
`lowered`, before a modern server. Where the era is not known, the client's `initialize` goes out plainly
first, so that nothing changes before legacy servers; if it is refused, discovery decides, and a modern
server gets the same `initialize` by the other way: it has not run. Contract section 2, "Upstream's era".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.eras.era import Era
from proxy.eras.to_modern import is_discover_result, is_modern_error
from proxy.errors import UpstreamError, UpstreamRefused, only_fault
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import JsonError, RawObject, check
from proxy.upstream import replies
from proxy.upstream.base import NO_HEADERS, Headers, Position, Receiver, Transport, TransportChoice
from proxy.upstream.probe import UpstreamEra

PROBE_ID: Final = 999_999_999  # no request of a client's session has it
PROBE_TIMEOUT_S: Final = 5.0

log = get_logger()


class MatchingTransport(TransportChoice):
    """`base.Transport`. `make_plain` and `make_lowered` make what it chooses from; `probe_params` are
    those of `server/discover`."""

    def __init__(
        self,
        make_plain: Callable[[], Transport],
        make_lowered: Callable[[], Transport],
        era: UpstreamEra,
        probe_params: bytes,
        max_depth: int,
    ) -> None:
        self._make_lowered = make_lowered
        self._era = era
        self._probe_params = probe_params
        self._max_depth = max_depth
        super().__init__(make_plain() if era.serves_legacy else make_lowered())
        self._initialize: tuple[int, bytes] | None = None
        self._receiver: Receiver
        self._group: TaskGroup
        self._probe_answer: bytes | None = None
        self._is_probing = False
        self._probed = anyio.Event()

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        self._receiver = receiver
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                await self._start(self._in_use)
                task_status.started()
        except BaseExceptionGroup as failures:
            raise only_fault(failures) from None

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        may_choose = not self._is_established and not self._era.is_configured
        if may_choose and call is not None and self._initialize is None and _is_initialize(message):
            self._initialize = call, message
        await super().send(message, call=call, headers=headers)

    async def _start(self, transport: Transport) -> None:
        await self._group.start(partial(transport.run, _Relay(self, transport)))

    # -- what the transports tell ---------------------------------------------------------------------

    def told(self, transport: Transport, message: bytes, call: int | None) -> None:
        if transport is not self._in_use:
            return
        if self._is_probe(message):
            self._probe_answer = message
            self._probed.set()
        elif self._refuses_initialize(message, call):
            self._group.start_soon(self._reconsider, message, None)
        else:
            self._receiver.received(message, call)

    def lost(self, transport: Transport, call: int | None, error: UpstreamError) -> None:
        if transport is not self._in_use:
            return
        if call == PROBE_ID:
            self._probed.set()
        elif call is not None and self._initialize is not None and call == self._initialize[0]:
            if isinstance(error, UpstreamRefused) or not self._is_open_question:  # 401, 403 decide nothing
                self._initialize = None
                self._receiver.lost(call, error)
            else:
                self._group.start_soon(self._reconsider, None, error)
        else:
            if call is None:
                self._probed.set()
            self._receiver.lost(call, error)

    def moved(self, transport: Transport, call: int, position: Position) -> None:
        if transport is self._in_use:
            self._receiver.moved(call, position)

    def _is_probe(self, message: bytes) -> bool:
        reply = replies.response_in(message, self._max_depth) if self._is_probing else None
        return reply is not None and replies.is_for(reply, PROBE_ID)

    def _refuses_initialize(self, message: bytes, call: int | None) -> bool:
        if self._initialize is None:
            return False
        reply = replies.response_in(message, self._max_depth)
        if reply is None or not (replies.is_for(reply, self._initialize[0]) or call == self._initialize[0]):
            return False
        if isinstance(reply, jsonrpc.ErrorResponse) and (self._is_open_question or is_modern_error(message)):
            return True
        self._initialize = None  # it was accepted, or refused by a server that is known
        return False

    @property
    def _is_open_question(self) -> bool:
        return self._era.known is None

    # -- the other way ------------------------------------------------------------------------------

    async def _reconsider(self, refusal: bytes | None, error: UpstreamError | None) -> None:
        """`initialize` was refused: by a modern server?"""
        assert self._initialize is not None
        call, message = self._initialize
        self._initialize = None
        if not await self._is_modern(refusal):
            if refusal is not None:
                self._receiver.received(refusal, call)
            elif error is not None:
                self._receiver.lost(call, error)
            return
        self._era.corrected(Era.MODERN)
        plain, lowered = self._in_use, self._make_lowered()
        self._in_use = lowered
        plain.close()
        try:
            await self._start(lowered)
            if self._closing:
                lowered.close()
            await lowered.send(message, call=call)
        except UpstreamError as exc:
            self._receiver.lost(call, exc)

    async def _is_modern(self, refusal: bytes | None) -> bool:
        if refusal is not None and is_modern_error(refusal):
            return True
        self._is_probing = True
        try:
            with anyio.move_on_after(PROBE_TIMEOUT_S):
                await self._in_use.send(
                    jsonrpc.request(PROBE_ID, names.DISCOVER, self._probe_params), call=PROBE_ID
                )
                await self._probed.wait()
        except UpstreamError:
            return False
        finally:
            self._is_probing = False
        self._in_use.abandon(PROBE_ID)
        answer = self._probe_answer
        return answer is not None and (is_discover_result(answer) or is_modern_error(answer))

    def __repr__(self) -> str:
        return f"<MatchingTransport {self._in_use!r} {self._era!r}>"


class _Relay:
    """Says which of the transports it was that told something."""

    def __init__(self, choice: MatchingTransport, transport: Transport) -> None:
        self._choice = choice
        self._transport = transport

    def received(self, message: bytes, call: int | None) -> None:
        self._choice.told(self._transport, message, call)

    def lost(self, call: int | None, error: UpstreamError) -> None:
        self._choice.lost(self._transport, call, error)

    def moved(self, call: int, position: Position) -> None:
        self._choice.moved(self._transport, call, position)


def _is_initialize(message: bytes) -> bool:
    try:
        check(message, 512)
        return RawObject.parse(message).text("method") == names.INITIALIZE
    except JsonError:
        return False
