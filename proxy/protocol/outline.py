"""Large JSON objects that are changed again and again: looked through once, then spliced without a copy.

Above: the record of a task, which keeps the outline of its result, and whoever renders it. Below: `envelope`.
To read 50 MB of JSON takes a second of the event loop, and to copy them some ten milliseconds; so what is
spliced here is told in pieces, those of the text itself being views of it, until it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from proxy.protocol import names
from proxy.protocol.envelope import Member, RawObject, dumps, splice

Pieces: TypeAlias = tuple[bytes | memoryview, ...]
"""One text, to be written one after the other."""

OUTLINED: Final = frozenset({names.META, "resultType"})
"""The members that some dialect changes. Outlines are stored: for one more the record needs a new field."""


def whole(pieces: Pieces) -> bytes:
    """The text, put together; one that is whole already is not copied."""
    match pieces:
        case (bytes() as text,):
            return text
        case _:
            return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Outline:
    """Where in the text of one object the members of `OUTLINED` stand, and where its last member ends.

    `end` is just behind the opening brace if the object has no member.
    """

    members: tuple[Member, ...]
    end: int

    @classmethod
    def of(cls, obj: RawObject) -> Outline:
        members = obj.members
        found = tuple(m for m in members if m.key in OUTLINED)
        return cls(found, members[-1].end if members else obj.raw.index(b"{") + 1)

    def part(self, raw: bytes) -> RawObject:
        """The object `raw`, of which this is the outline, as far as its members are known here."""
        return RawObject(raw, self.members)


def spliced(raw: bytes, outline: Outline, changes: Mapping[str, bytes]) -> Pieces:
    """As `envelope.splice`, where the outline is known; only keys of `OUTLINED` can be set.

    Everything else keeps its bytes, white space included.
    """
    assert changes.keys() <= OUTLINED
    places = [m for m in outline.members if m.key in changes]
    left = {key: value for key, value in changes.items() if all(m.key != key for m in places)}
    if len(places) + len(left) > len(changes):
        return (splice(raw, changes),)  # one stands twice, which no real server does
    text = memoryview(raw)
    pieces: list[bytes | memoryview] = []
    at = 0
    for member in places:
        pieces += (text[at : member.value_start], changes[member.key])
        at = member.end
    if left:
        is_empty = raw[outline.end - 1 : outline.end] == b"{"
        added = b",".join(dumps(key) + b":" + value for key, value in left.items())
        pieces += (text[at : outline.end], added if is_empty else b"," + added)
        at = outline.end
    return (*pieces, text[at:])
