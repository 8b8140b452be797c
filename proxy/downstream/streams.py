"""Responses that are written piece by piece: kept alive while they are quiet.

Above: `reply_writer`. One watcher looks after all of them, so that a stream costs neither a task nor a timer
of its own. A client that reads nothing is cut by its `Connection`. Contract section 3; field report F03.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from aiohttp import web

from proxy.clock import Clock
from proxy.downstream.responses import PIECE_BYTES
from proxy.protocol import sse
from proxy.protocol.envelope import LARGE
from proxy.room import Place

TICK_S: Final = 1.0
QUIET_S: Final = 14.0  # with a tick on top: a byte at least every 15 s (F03)

_TAIL_BYTES: Final = 4  # of what was written: enough to see the end of a block


class WrittenStream:
    """One response, from its head to its end. `is_events`: comments may stand between its blocks."""

    __slots__ = (
        "_began",
        "_clock",
        "_http",
        "_is_writing",
        "_last",
        "_place",
        "_response",
        "_tail",
        "is_events",
    )

    def __init__(
        self,
        http: web.Request,
        response: web.StreamResponse,
        clock: Clock,
        is_events: bool,
        place: Place | None = None,
    ) -> None:
        self._place = place
        self._http = http
        self._response = response
        self._clock = clock
        self.is_events = is_events
        self._began = False
        self._last = clock.monotonic()
        self._tail = b""
        self._is_writing = False

    async def write(self, data: bytes) -> None:
        """In pieces, so that a reader who is slow can be told from one who has stopped. Raises
        ConnectionError if the client is gone, or was cut."""
        if not self._began:
            self._began = True
            if self._tail:  # a comment of ours was first, and a byte order mark is one at the beginning alone
                data = data.removeprefix(sse.BOM)
        self._is_writing = True
        if self._place is not None and len(data) > LARGE:
            self._place.count(len(data))
        for start in range(0, len(data), PIECE_BYTES):
            await self._response.write(data[start : start + PIECE_BYTES])
        self._is_writing = False
        if self._place is not None:
            self._place.leave()
        self._last = self._clock.monotonic()
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]

    async def look_after(self, now: float) -> None:
        """A comment, if it has been quiet and a block has ended."""
        transport = self._http.transport
        if transport is None or self._is_writing or not self.is_events:
            return
        if self._is_quiet(now) and not transport.get_write_buffer_size():
            with suppress(ConnectionError):  # then the handler is told, too
                await self._response.write(sse.comment())
            self._last = now
            self._tail = self._tail or b"\n\n"

    def _is_quiet(self, now: float) -> bool:
        """Some hold back even the status until a byte of body has come: that one is not waited for long."""
        if not self._tail:
            return True
        return now - self._last >= QUIET_S and sse.ends_block(self._tail)


class WrittenStreams:
    """All that are open. `watch` must be running."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: set[WrittenStream] = set()

    async def watch(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            now = self._clock.monotonic()
            for stream in list(self._open):
                await stream.look_after(now)

    async def write(
        self,
        http: web.Request,
        response: web.StreamResponse,
        chunks: AsyncIterator[bytes],
        *,
        is_events: bool,
        place: Place | None = None,
    ) -> None:
        """The head, the chunks as they come, and the end. `place`: where large ones are counted.

        Raises ConnectionError if the client is gone, and what `chunks` raises.
        """
        await response.prepare(http)
        stream = WrittenStream(http, response, self._clock, is_events, place)
        self._open.add(stream)
        try:
            async for chunk in chunks:
                await stream.write(chunk)
        finally:
            self._open.discard(stream)
            if place is not None:
                place.leave()
        await response.write_eof()

    def __repr__(self) -> str:
        return f"<WrittenStreams {len(self._open)} open>"
