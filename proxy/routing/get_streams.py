"""GET streams of legacy sessions that are passed through, and the way to put a word of ours into one.

Above: `http_passthrough`, which reads the upstream's blocks into them. Whoever has something to tell to a
session finds its stream here. Transports 2025-11-25, "Listening for Messages from the Server".
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from proxy.clock import Pulse
from proxy.errors import ProxyError
from proxy.owners import Owner

HELD_BYTES: Final = 1024 * 1024  # of the upstream's, for a client that reads slowly; then it is made to wait
MAX_HELD_BYTES: Final = 16 * 1024 * 1024  # with ours; who is so far behind is not told

Key = tuple[str, Owner]
"""A session id is nothing without its owner: others may have got hold of it."""


class GetStream:
    """What goes to one client, block by block. `ended` is set when nothing more will."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self._blocks: deque[bytes] = deque()
        self._bytes = 0
        self._changed = Pulse()
        self._taken = Pulse()
        self._error: ProxyError | None = None

    def send(self, block: bytes) -> bool:
        """Put in a whole block of ours. False where it will not be written: the stream has ended, or its
        client is too far behind."""
        if self.ended.is_set() or self._bytes + len(block) > MAX_HELD_BYTES:
            return False
        self._append(block)
        return True

    async def pass_on(self, raw: bytes) -> None:
        """A block of the upstream's. Waits while the client is behind."""
        while self._bytes >= HELD_BYTES and not self.ended.is_set():
            await self._taken.event.wait()
        self._append(raw)

    def end(self, error: ProxyError | None = None) -> None:
        """After what is there: in good order, or broken off."""
        if not self.ended.is_set():
            self._error = error
            self.ended.set()
            self._changed.beat()
            self._taken.beat()

    def __aiter__(self) -> AsyncIterator[bytes]:
        """What is there, as it comes, for whoever writes it. Raises the error that ended it."""
        return self

    async def __anext__(self) -> bytes:
        while not self._blocks and not self.ended.is_set():
            await self._changed.event.wait()
        if self._blocks:
            return self._take()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def _take(self) -> bytes:
        chunk = b"".join(self._blocks)
        self._blocks.clear()
        self._bytes = 0
        self._taken.beat()
        return chunk

    def _append(self, block: bytes) -> None:
        self._blocks.append(block)
        self._bytes += len(block)
        self._changed.beat()

    def __repr__(self) -> str:
        return f"<GetStream {'ENDED' if self.ended.is_set() else 'OPEN'}, {self._bytes} bytes held>"


class GetStreams:
    """All that are open, by session."""

    def __init__(self) -> None:
        self._open: dict[Key, list[GetStream]] = {}

    @contextmanager
    def open(self, session_id: str, owner: Owner) -> Iterator[GetStream]:
        """A new stream of this session, as long as the context lasts."""
        key, stream = (session_id, owner), GetStream()
        self._open.setdefault(key, []).append(stream)
        try:
            yield stream
        finally:
            stream.end()
            self._open[key].remove(stream)
            if not self._open[key]:
                del self._open[key]

    def find(self, session_id: str, owner: Owner) -> GetStream | None:
        """The one that was opened last, if any is open: a client that comes back has given up the others."""
        streams = self._open.get((session_id, owner), ())
        return next((stream for stream in reversed(streams) if not stream.ended.is_set()), None)

    def end_all(self) -> None:
        for streams in self._open.values():
            for stream in streams:
                stream.end()

    def __repr__(self) -> str:
        return f"<GetStreams of {len(self._open)} sessions>"
