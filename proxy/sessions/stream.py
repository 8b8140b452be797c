"""One event stream of a session: what was said on it, who reads it, and what can be read again.

Above: `streams`, which has those of one session. A stream is the answer to a POST, or what a GET listens to.
Its reader may go and come back with the id of the last event that it saw; it then gets the rest of this
stream, each event once. Transports 2025-11-25, "Resumability and Redelivery"; field report F24.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from proxy.clock import Clock, Pulse
from proxy.protocol import sse

KEPT_EVENTS: Final = 1_000  # that were read, and may be read again
KEPT_BYTES: Final = 4 * 1024 * 1024
KEPT_S: Final = 300.0  # clients come back within seconds; a laptop that was closed, within minutes
UNREAD_EVENTS: Final = 1_000  # behind a reader that is slow or away; what answers nothing is then refused
UNREAD_BYTES: Final = 16 * 1024 * 1024
RETRY_MS: Final = 1_000  # how soon a reader that lost its stream should come back


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    message: bytes
    at: float


class Stream:
    """Messages in their order, numbered from 1. `name` is unique in the session, and the front of event ids.

    `readers_changed` is called when a reader comes or goes, or makes room in a stream that was full.
    Implements `routing.offers.Channel`.
    """

    def __init__(self, name: str, clock: Clock, readers_changed: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.changed = Pulse()
        self.ended_at: float | None = None
        self._clock = clock
        self._readers_changed = readers_changed
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._unread_bytes = 0
        self._last = 0
        self._read = 0  # up to this one, some reader got them
        self._reader: Reader | None = None
        self.left_at: float | None = None  # since when nobody reads it; None if somebody does
        self.has_ids = False  # a reader was told an event id, so it may come back
        self.has_news = False  # something was said that is no answer

    def __repr__(self) -> str:
        state = "ENDED" if self.has_ended else "READ" if self.is_open else "UNREAD"
        return f"<Stream {self.name} {state}, {self._last - self._read} unread, {len(self._kept)} kept>"

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it, as far as is known."""
        return self._reader is not None

    @property
    def is_open(self) -> bool:
        """Whether what is said now is read."""
        return self.is_read and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be said on it; it may still be read."""
        return self.ended_at is not None

    @property
    def is_full(self) -> bool:
        """Whether its reader is so far behind that only answers are taken."""
        return self._last - self._read >= UNREAD_EVENTS or self._unread_bytes >= UNREAD_BYTES

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    @property
    def messages(self) -> list[bytes]:
        """All that was said and is still known."""
        return [kept.message for kept in self._kept]

    # -- what is said -------------------------------------------------------------------------------

    def send(self, message: bytes) -> bool:
        """Say what is no answer. Whether it was taken: not if the stream has ended, or is full."""
        if self.is_full or self.has_ended:
            return False
        self.has_news = True
        self.answer(message)
        return True

    def answer(self, message: bytes) -> None:
        """Say what must not be lost, unless the stream has ended."""
        if self.has_ended:
            return
        self._last += 1
        self._kept.append(_Kept(self._last, message, self._clock.monotonic()))
        self._kept_bytes += len(message)
        self._unread_bytes += len(message)
        self.changed.beat()

    def end(self) -> None:
        """Nothing follows. What was said can still be read for a while."""
        if not self.has_ended:
            self.ended_at = self._clock.monotonic()
            self.changed.beat()
            self._readers_changed()

    # -- who reads ----------------------------------------------------------------------------------

    def attach(self, after: int | None = None) -> Reader:
        """A reader of what follows the event `after`, or of what nobody has read. One that is there already
        is at its end (F24)."""
        reader = Reader(self, self._read if after is None else after)
        self._reader, self.left_at = reader, None
        self.changed.beat()
        self._readers_changed()
        return reader

    def event_id(self, number: int) -> str:
        return f"{self.name}-{number}"

    def knows(self, number: int) -> bool:
        """Whether there is, or was, such an event; 0 is the one that primes the stream."""
        return 0 <= number <= self._last

    def _leave(self, reader: Reader) -> None:
        if self._reader is reader:
            self._reader, self.left_at = None, self._clock.monotonic()
            self.changed.beat()
            self._readers_changed()

    def _take(self, after: int) -> list[_Kept]:
        first = self._kept[0].number if self._kept else 0
        taken = list(islice(self._kept, max(0, after + 1 - first), None))
        if taken:
            was_full = self.is_full
            self.has_ids = True
            self._unread_bytes -= sum(len(kept.message) for kept in taken if kept.number > self._read)
            self._read = max(self._read, taken[-1].number)
            self.forget()
            if was_full and not self.is_full:
                self._readers_changed()
        return taken

    def forget(self) -> None:
        """Drop what was read and is too much, or too old, to be kept for another time; never the last event
        of a stream that has ended."""
        too_old = self._clock.monotonic() - KEPT_S
        while (
            self._kept and self._kept[0].number <= self._read and not (self.has_ended and len(self._kept) < 2)
        ):
            first = self._kept[0]
            is_too_much = len(self._kept) > KEPT_EVENTS or self._kept_bytes > KEPT_BYTES
            if first.at > too_old and not is_too_much:
                return
            self._kept.popleft()
            self._kept_bytes -= len(first.message)


class Reader:
    """Somebody who reads a stream, from a place on. `leave` must be called."""

    def __init__(self, stream: Stream, after: int) -> None:
        self._stream = stream
        self._after = after

    async def blocks(self) -> bytes | None:
        """The events that have come, at least one; None if there will be none, or another reads here now."""
        stream = self._stream
        while stream._reader is self:
            changed = stream.changed.event
            if taken := stream._take(self._after):
                self._after = taken[-1].number
                return b"".join(sse.encode(k.message, event_id=stream.event_id(k.number)) for k in taken)
            if stream.has_ended:
                return None
            await changed.wait()
        return None

    def priming(self) -> bytes:
        """An id and no data, so that one who loses the stream before anything came can come back."""
        self._stream.has_ids = True
        return sse.encode(b"", event_id=self._stream.event_id(self._after), retry_ms=RETRY_MS)

    def leave(self) -> None:
        """It reads no more; may be called twice."""
        self._stream._leave(self)
