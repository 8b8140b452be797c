"""The bytes of a pipe cut into lines: the framing of stdio, in both directions.

PURE. Above: the two `stdio` modules. The house style's map has one module `framing`; it is two nouns
here, `lines` for pipes and `sse` for event streams. MCP 2026-07-28 "stdio".

Nothing but 0x0A ends a line. Line-reading calls of libraries also cut at U+2028 or a form feed, which
may stand in a JSON string, or stop at 64 KiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD_BYTES: Final = 200  # enough to recognise in a log what an oversized line was


@dataclass(frozen=True, slots=True)
class Line:
    """A whole line, without its end."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line over the limit, told once, when it went over; the rest of it is skipped.

    `head` is how it begins. `size` is how many bytes of it had come by then: at least one more than
    the limit, and what follows is not counted.
    """

    head: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Tail:
    """How a line that was told as Oversized ends; only told where `tail_bytes` were asked for."""

    text: bytes


class LineSplitter:
    """Cuts chunks into lines of at most `max_bytes`, wherever the chunks are cut.

    The line end and one carriage return before it are not counted and not kept. Holds one unfinished
    line, never more than `max_bytes` and a chunk; takes time in proportion to what is fed.
    """

    def __init__(self, max_bytes: int, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = 0) -> None:
        self._max_bytes = max_bytes
        self._head_bytes = min(head_bytes, max_bytes)  # so the same however the chunks are cut
        self._tail_bytes = tail_bytes
        self._held = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes) -> list[Line | Oversized | Tail]:
        """The lines that `chunk` ends or makes too long, in order."""
        found: list[Line | Oversized | Tail] = []
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._hold(piece, found)
            self._end_line(found)
        if rest:
            self._hold(rest, found)
        return found

    def end(self) -> list[Line | Oversized | Tail]:
        """What a stream held that ended without a line end: one line, or nothing."""
        found: list[Line | Oversized | Tail] = []
        if self._held or self._skipping:
            self._end_line(found)
        return found

    def _hold(self, piece: bytes, found: list[Line | Oversized | Tail]) -> None:
        if self._skipping:
            self._keep_tail(piece)
            return
        self._held += piece
        # One byte over may still be the carriage return of the line end.
        over = len(self._held) - self._max_bytes
        if over > 1 or (over == 1 and self._held[-1:] != b"\r"):
            found.append(Oversized(bytes(self._held[: self._head_bytes]), len(self._held)))
            rest, self._held = self._held, bytearray()
            self._skipping = True
            self._keep_tail(rest)

    def _keep_tail(self, piece: bytes | bytearray) -> None:
        if self._tail_bytes:
            self._held = (self._held + piece[-self._tail_bytes :])[-self._tail_bytes :]

    def _end_line(self, found: list[Line | Oversized | Tail]) -> None:
        text = bytes(self._held).removesuffix(b"\r")
        if not self._skipping:
            found.append(Line(text))
        elif self._tail_bytes:
            found.append(Tail(text))
        self._held = bytearray()
        self._skipping = False

    def __repr__(self) -> str:
        state = "skipping" if self._skipping else f"{len(self._held)} held"
        return f"<LineSplitter of {self._max_bytes} bytes, {state}>"
