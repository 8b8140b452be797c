"""Event streams: bytes to events and back.

PURE. Above: the HTTP transports of both sides, which feed chunks as the socket gives them; below:
`envelope`. The house style's map has one module `framing`; it is two nouns here, `lines` for pipes and
`sse` for event streams. WHATWG HTML "Server-sent events"; Streamable HTTP 2025-03-26 ... 2026-07-28.

Bytes throughout: whether the data is UTF-8 and JSON is for the JSON layer to say, and a character
split between chunks needs no care here. Blocks without data come out as well, for an `id` or a `retry`
in them counts (2025-11-25 primes a stream with an id and empty data).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proxy.protocol.envelope import one_line

MESSAGE: Final = "message"
"""The event type of a JSON-RPC message, and of an event that names none."""

BOM: Final = b"\xef\xbb\xbf"
"""A stream may begin with it; anywhere else it is part of a name."""

_BLOCK_END: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_AT_BLOCK_END: Final = re.compile(_BLOCK_END.pattern + rb"\Z")
_BLOCK_END_BYTES: Final = 4  # the longest: two times CR LF
_DATA_PREFIX: Final = len(b"data: ")
_MAX_RETRY_DIGITS: Final = 12  # 30 years in milliseconds; more is no wish, and int() has a limit of its own


@dataclass(frozen=True, slots=True)
class Event:
    """One block of a stream. `data` has its lines joined with LF, and is empty where there was none.

    `id` is None if the block has no id, and `""` if it takes the last one back. `retry_ms` is the
    reconnection time where the block sets one.
    """

    data: bytes = b""
    event: str = MESSAGE
    id: str | None = None
    retry_ms: int | None = None


class EventTooLarge(ValueError):
    """An event is over the limit; the stream cannot be read on. `events` came whole before it."""

    def __init__(self, max_bytes: int, events: tuple[Event, ...]) -> None:
        super().__init__(f"an event is over the limit of {max_bytes} bytes")
        self.events = events


class EventDecoder:
    """Takes the chunks of one stream, gives its events. At its end, what is unfinished is dropped.

    `max_bytes` bounds the data of one event, and any one line; a small multiple of it bounds what is held.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._head: bytes | None = b""  # the first bytes, until it is known whether they are a BOM
        self._after_cr = False
        self._line = bytearray()
        self._start_block()

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes. Raises EventTooLarge, which carries those before it.

        How the stream is cut into chunks makes no difference.
        """
        if self._head is not None:
            chunk = self._head + chunk
            if len(chunk) < len(BOM) and BOM.startswith(chunk):
                self._head = chunk
                return []
            self._head = None
            chunk = chunk.removeprefix(BOM)
        if not chunk:
            return []
        chunk, self._after_cr = chunk.removeprefix(b"\n" if self._after_cr else b""), chunk.endswith(b"\r")
        events: list[Event] = []
        for piece in chunk.splitlines(keepends=True):  # of bytes: at CR, LF and CRLF alone
            line = piece.rstrip(b"\r\n")
            self._line += line
            if len(self._line) > self._max_bytes + _DATA_PREFIX:
                raise EventTooLarge(self._max_bytes, tuple(events))
            if len(line) == len(piece):
                break  # unfinished; only the last piece can be
            event = self._end_line(events)
            if event is not None:
                events.append(event)
        return events

    def _start_block(self) -> None:
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""
        self._id: str | None = None
        self._retry_ms: int | None = None
        self._empty = True

    def _end_line(self, before: list[Event]) -> Event | None:
        line = bytes(self._line)
        self._line.clear()
        if not line:
            return self._end_block()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                self._size += len(value) + bool(self._data)
                if self._size > self._max_bytes:
                    raise EventTooLarge(self._max_bytes, tuple(before))
                self._data.append(value)
            case b"event":
                self._event = value.decode("utf-8", "replace")
            case b"id" if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            case b"retry" if value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                self._retry_ms = int(value)
            case _:
                return None  # a comment, a field that nobody knows, or a value that is to be ignored
        self._empty = False
        return None

    def _end_block(self) -> Event | None:
        event = Event(b"\n".join(self._data), self._event or MESSAGE, self._id, self._retry_ms)
        empty = self._empty
        self._start_block()
        return None if empty else event


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a stream, as it came, with the blank line that ends it. `event` is None if nothing in it
    counts."""

    raw: bytes
    event: Event | None


class BlockSplitter:
    """Cuts a stream into its blocks; put together again they are the stream. `max_bytes` bounds one block."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._decoder = EventDecoder(max_bytes)
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Block]:
        """The blocks that `chunk` completes. Raises EventTooLarge, after those before it.

        A block that ends with CR ends there: if LF is still to come, it is the next block's first byte, and
        means nothing.
        """
        searched = max(0, len(self._pending) - _BLOCK_END_BYTES + 1)
        self._pending += chunk
        start = 0
        for end in [match.end() for match in _BLOCK_END.finditer(self._pending, searched)]:
            yield self._block(bytes(self._pending[start:end]))
            start = end
        del self._pending[:start]
        if len(self._pending) > self._max_bytes:
            raise EventTooLarge(self._max_bytes, ())

    def rest(self) -> bytes:
        """What has come of a block that has not ended."""
        return bytes(self._pending)

    def _block(self, raw: bytes) -> Block:
        if len(raw) > self._max_bytes:
            raise EventTooLarge(self._max_bytes, ())
        events = self._decoder.feed(raw)
        return Block(raw, events[0] if events else None)


def ends_block(tail: bytes) -> bool:
    """Whether a stream that ends with `tail`, its last bytes, stands between two blocks."""
    return _AT_BLOCK_END.search(tail[-_BLOCK_END_BYTES:]) is not None


def encode(message: bytes, *, event_id: str | None = None, retry_ms: int | None = None) -> bytes:
    """One event of type `message`, its data on one line. An empty `message` with an id primes a stream."""
    lines = [b"event: " + MESSAGE.encode()]
    if event_id is not None:
        assert not set(event_id) & set("\0\r\n"), "an id is one line without NULL"
        lines.append(b"id: " + event_id.encode())
    if retry_ms is not None:
        lines.append(b"retry: %d" % retry_ms)
    lines.append(b"data: " + one_line(message))
    return b"\n".join(lines) + b"\n\n"


def comment(text: bytes = b"") -> bytes:
    """A comment, which every client ignores: the first byte of a stream, and its heartbeat."""
    return b": " + one_line(text) + b"\n\n"
