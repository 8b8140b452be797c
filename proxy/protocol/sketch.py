"""Large JSON texts: checked piece by piece, and made small enough to be taken apart.

Above: `jsonrpc`, for texts over LARGE. Below: `envelope`. Whatever reads 60 MB in one step holds Python's
lock for a tenth of a second, so that even from a thread of its own it stops everybody. So the text is cut
behind commas, and each piece is put between brackets that stand for what it is inside of, and judged alone:
a text is JSON if each piece leads from what is open before it to what is open behind it. What lies deeper
than somebody asks for is left out of the sketch, in which everything else stands as in the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proxy.protocol.envelope import (
    JsonError,
    Member,
    check_json,
    check_text,
    exceeds,
    members,
    skeleton_of,
)

_WINDOW: Final = 256 * 1024
_OBJECT: Final = ord("{")
_OPEN: Final = {ord("["): ord("]"), ord("{"): ord("}")}
_ALIKE: Final = re.compile(rb"[ \t\r\n]++|[0-9]++")
_TO_COMMA: Final = re.compile(rb'(?:[^",]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^",]*+)*+,)++', re.DOTALL)
_TO_STRING: Final = re.compile(rb'[^"]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"]*+)*+', re.DOTALL)
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_IN_STRING: Final = re.compile(rb'[^"\\]*+(?:\\(?:u....|[^u])[^"\\]*+)*+', re.DOTALL)  # and no half escape


@dataclass(frozen=True, slots=True)
class Sketch:
    """`text` is the small text. `_at` and `_stands_at`: places in it from which on it is as the large one
    is from the other place."""

    text: bytes
    _at: list[int]
    _stands_at: list[int]

    def members(self, start: int = 0, end: int | None = None) -> list[tuple[Member, Member]]:
        """Those of the object that stands there in the sketch: each as it stands in the sketch, and in the
        large text. Raises JsonError if it is none, or they are too many."""
        found = members(self.text[start:end])
        here = [Member(m.key, m.start + start, m.value_start + start, m.end + start) for m in found]
        return [(m, Member(m.key, *map(self._place, (m.start, m.value_start, m.end)))) for m in here]

    def _place(self, at: int) -> int:
        known = bisect_right(self._at, at) - 1
        return self._stands_at[known] + at - self._at[known]


def sketch(raw: bytes, max_depth: int, depth: int) -> Sketch:
    """`raw` without most of what is more than `depth` deep in it.

    Raises JsonError unless `raw` is JSON in UTF-8, nested at most `max_depth` deep: it need not be checked.
    """
    drawn = _Drawing()
    stack = b""
    for piece in _pieces(raw):
        check_text(piece.text, len(piece.text))  # UTF-8; how deep it is depends on what is before it
        skeleton = skeleton_of(piece.text)
        if exceeds(skeleton, max_depth, len(stack)):
            raise JsonError(f"nested more than {max_depth} levels deep")
        after, lowest = _behind(stack, skeleton)
        closed = _left(after, 0) if not piece.is_last else b""
        try:
            check_json((_entered(stack, 0) if piece.start else b"") + piece.text + closed)
        except JsonError as exc:
            raise JsonError(f"{exc}, of the piece from byte {piece.start} on") from exc
        if piece.start and not piece.is_last and lowest > depth:
            drawn.leave_out(stack, after, lowest)
        else:
            drawn.draw(piece)
        stack = after
    return drawn.done()


@dataclass(frozen=True, slots=True)
class _Piece:
    """What stands between two commas outside strings, behind the first, up to and with the second.

    Long strings, whose inside was judged, are empty in it, and most is left out of long white space and
    numbers. `parts` are where its parts begin, in it and in the large text.
    """

    start: int
    text: bytes
    parts: list[tuple[int, int]]
    is_last: bool


class _Drawing:
    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._at: list[int] = []
        self._stands_at: list[int] = []
        self._left_out: tuple[bytes, bytes, int] | None = (
            None  # open before it, and behind it; its lowest depth
        )

    def leave_out(self, before: bytes, after: bytes, lowest: int) -> None:
        if self._left_out is not None:
            before, lowest = self._left_out[0], min(lowest, self._left_out[2])
        self._left_out = (before, after, lowest)

    def draw(self, piece: _Piece) -> None:
        if self._left_out is not None:
            before, after, lowest = self._left_out
            self._add(_left(before, lowest) + b"," + _entered(after, lowest))
            self._left_out = None
        for at, stands_at in piece.parts:
            self._at.append(self._size + at)
            self._stands_at.append(stands_at)
        self._add(piece.text)

    def _add(self, text: bytes) -> None:
        self._parts.append(text)
        self._size += len(text)

    def done(self) -> Sketch:
        return Sketch(b"".join(self._parts), self._at, self._stands_at)


def _pieces(raw: bytes) -> Iterator[_Piece]:
    """One after the other, also the empty one that is behind a comma at the end."""
    start, is_last = 0, False
    while not is_last:
        piece, start = _piece(raw, start)
        is_last = piece.is_last
        yield piece


def _piece(raw: bytes, start: int) -> tuple[_Piece, int]:
    """What stands from `start` on, which is outside strings, and where the next one begins."""
    texts: list[bytes] = []
    parts: list[tuple[int, int]] = []
    size, begin, at = 0, start, start

    def take(end: int) -> None:
        nonlocal size
        parts.append((size, begin))
        texts.append(raw[begin:end])
        size += end - begin

    while True:
        window_end = min(at + _WINDOW, len(raw))
        if (alike := _ALIKE.match(raw, at, window_end)) is not None and alike.end() == at + _WINDOW:
            take(at + 2)  # two zeros at the beginning of a number are no more JSON than any more
            begin = at = window_end
            continue
        if (found := _TO_COMMA.match(raw, at, window_end)) is not None:
            take(found.end())
            return _Piece(start, b"".join(texts), parts, is_last=False), found.end()
        outside = _TO_STRING.match(raw, at, window_end)
        assert outside is not None  # it matches nothing, too
        at = outside.end()
        if at == len(raw):
            take(at)
            return _Piece(start, b"".join(texts), parts, is_last=True), at
        if at < window_end:  # a string begins here that does not end in this window
            if (string := _STRING.match(raw, at, min(at + _WINDOW, len(raw)))) is not None:
                at = string.end()
                continue
            take(at + 1)
            begin = _checked_string(raw, at + 1)
            at = begin + 1


def _checked_string(raw: bytes, at: int) -> int:
    """Where the string ends whose inside begins at `at`. Raises JsonError if it is none."""
    while True:
        inside = _IN_STRING.match(raw, at, min(at + _WINDOW, len(raw)))
        assert inside is not None  # it matches nothing, too
        end = inside.end()
        is_over = raw[end : end + 1] == b'"'
        while not is_over and at < end < len(raw) and raw[end] & 0xC0 == 0x80:  # not within a character
            end -= 1
        if end == at and not is_over:
            raise JsonError(f"string without end at byte {at}")
        text = b'"' + raw[at:end] + b'"'
        check_text(text, len(text))
        check_json(text)
        if is_over:
            return end
        at = end


def _behind(stack: bytes, skeleton: bytes) -> tuple[bytes, int]:
    """What is open behind brackets, if they go with what is open before them, and the fewest that were."""
    for _ in range(3):  # nearly all are closed soon
        skeleton = skeleton.replace(b"[]", b"").replace(b"{}", b"")
    opened, lowest = bytearray(stack), len(stack)
    for bracket in skeleton:
        if bracket in _OPEN:
            opened.append(bracket)
        elif opened and _OPEN[opened.pop()] == bracket:
            lowest = min(lowest, len(opened))
        else:
            raise JsonError("brackets do not go together")
    return bytes(opened), lowest


def _entered(stack: bytes, outside: int) -> bytes:
    """How `stack` comes to be open, a comma behind a value in it; `outside` of it are open before."""
    if len(stack) == outside:
        return b""
    named = b'"":' if outside and stack[outside - 1] == _OBJECT else b""
    opened = (b'{"":' if bracket == _OBJECT else b"[" for bracket in stack[outside:])
    return named + b"".join(opened) + b"0,"


def _left(stack: bytes, outside: int) -> bytes:
    """How what is open is closed behind a comma, but for the first `outside`."""
    last = b'"":0' if stack[-1:] == b"{" else b"0"
    return last + bytes(_OPEN[bracket] for bracket in reversed(stack[outside:]))
