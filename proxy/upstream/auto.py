"""Streamable HTTP, or HTTP+SSE where the server is so old that it knows no other.

Above: `session`, through `base.Transport`; below: `http` and `sse`. The handshake of a session,
`initialize`, goes out by Streamable HTTP. If the server refuses it as old ones do, the event stream of
2024-11-05 is tried, and the same request goes there: it has not run, so this is no second run. The session
notices nothing. A refused probe of the era shows nothing. Streamable HTTP 2026-07-28, "HTTP+SSE Transport".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final

import aiohttp
import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock
from proxy.errors import UpstreamError, UpstreamRefused, only_fault
from proxy.logs import get_logger
from proxy.protocol.envelope import RawObject
from proxy.protocol.names import INITIALIZE
from proxy.upstream import replies
from proxy.upstream.base import (
    NO_HEADERS,
    Headers,
    Position,
    Receiver,
    Transport,
    TransportChoice,
    Verdicts,
)
from proxy.upstream.http import HttpTransport
from proxy.upstream.sse import SseTransport

OLD_SERVERS_SAY: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)

log = get_logger()


@dataclass(slots=True)
class KnownServer:
    """What is known of one upstream; shared by all its sessions, and as old as the process."""

    is_old: bool = False
    """It was last met by HTTP+SSE; a new session begins there."""


@dataclass(frozen=True, slots=True)
class _Relay:
    """Passes on what one of the two transports tells; losses only while it is the one in use."""

    receiver: Receiver
    in_use: Callable[[], bool]

    def received(self, message: bytes, call: int | None) -> None:
        self.receiver.received(message, call)

    def lost(self, call: int | None, error: UpstreamError) -> None:
        if self.in_use():
            self.receiver.lost(call, error)

    def moved(self, call: int, position: Position) -> None:
        self.receiver.moved(call, position)


class AutoHttpTransport(TransportChoice):
    """`base.Transport` over the HTTP transport that the server turns out to speak.

    If both fail, the session is told what Streamable HTTP was answered; but a 401 or 403 to the GET is
    passed on, for an old server may ask for credentials there alone.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        max_bytes: int,
        client: aiohttp.ClientSession,
        headers: Callable[[], Mapping[str, str]],
        verdicts: Verdicts | None = None,
        clock: Clock,
        known: KnownServer,
        max_depth: int = 512,
        endpoint_prefix: str | None = None,
    ) -> None:
        self._name = name
        self._max_depth = max_depth
        self._known = known
        self._make_sse = partial(
            SseTransport,
            url,
            name=name,
            max_bytes=max_bytes,
            client=client,
            headers=headers,
            verdicts=verdicts,
            clock=clock,
            max_depth=max_depth,
            endpoint_prefix=endpoint_prefix,
        )
        super().__init__(
            self._make_sse()
            if known.is_old
            else HttpTransport(
                url,
                name=name,
                max_bytes=max_bytes,
                client=client,
                headers=headers,
                verdicts=verdicts,
                clock=clock,
                max_depth=max_depth,
                elsewhere=self._try_sse,
            )
        )
        self._first: tuple[int, bytes] | None = None
        self._receiver: Receiver
        self._group: TaskGroup

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        """See `Transport`. For a server that is known to be old, raises what `SseTransport.run` raises."""
        self._receiver = receiver
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                await self._start(self._in_use)
                task_status.started()
        except BaseExceptionGroup as failures:
            error = only_fault(failures)
            if not isinstance(error, UpstreamRefused):
                self._known.is_old = False  # the next session finds out anew
            raise error from None

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        if not self._is_established and self._first is None and call is not None and _is_initialize(message):
            self._first = call, message
        await super().send(message, call=call, headers=headers)

    def __repr__(self) -> str:
        return f"<AutoHttpTransport {self._in_use!r}>"

    async def _start(self, transport: Transport) -> None:
        relay = _Relay(self._receiver, lambda: self._in_use is transport)
        await self._group.start(partial(transport.run, relay))

    async def _try_sse(self, call: int, status: int, body: bytes) -> bool:
        """`http.Elsewhere`. Runs inside the call that was refused, and ends with it."""
        reply = replies.error_in(body, self._max_depth)
        is_modern = reply is not None and replies.is_modern(reply)
        if self._first is None or call != self._first[0] or status not in OLD_SERVERS_SAY or is_modern:
            return False
        sse = self._make_sse()
        try:
            await self._start(sse)
        except UpstreamRefused:
            raise
        except UpstreamError as exc:
            log.info("upstream_sse_not_offered", upstream=self._name, reason=exc.message)
            return False
        http, self._in_use = self._in_use, sse
        self._known.is_old = True
        if self._closing:  # while the stream came up
            sse.close()
        with suppress(UpstreamError):  # ended already: then all is lost, and was told
            await sse.send(self._first[1], call=call)
        http.close()
        return True


def _is_initialize(message: bytes) -> bool:
    """Only a refused handshake shows an old server; a refused probe shows nothing (VER-014)."""
    return RawObject.parse(message).text("method") == INITIALIZE
