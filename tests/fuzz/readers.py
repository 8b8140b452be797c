"""What must be true of every text that is read, whoever wrote it: for mutants, and for a guided fuzzer.

`judge` raises AssertionError, or whatever a reader of ours raised that it does not promise. The standard
library is the judge of what is JSON. Contract section 3, "Validation"; issue 6.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from proxy.downstream.posted import read_posted
from proxy.downstream.validation import Headers, Rejection, read_message
from proxy.eras.era import Era
from proxy.owners import ANONYMOUS
from proxy.protocol import envelope, list_cursor, names, param_headers, request_state, sse
from proxy.protocol.lines import Line, LineSplitter, Oversized

DEPTH: Final = 16
MOST: Final = 64  # bytes of a line or an event, so that some are too long
CLAIM: Final = request_state.Claim("ada", b"digest")
KEY: Final = b"k" * 32


class _Pairs(list[tuple[str, Any]]):
    """An object, with duplicate members."""


def _understood(data: bytes) -> tuple[bool, Any]:
    """The standard library's verdict, numbers as their text."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        how: dict[str, Any] = {"parse_int": str, "parse_float": str, "parse_constant": refuse}
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_Pairs, **how)
    except (ValueError, RecursionError):
        return False, None
    return _depth(value) <= DEPTH, value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, list)]:
        depth += 1
        level = [b for one in level for b in ([v for _, v in one] if isinstance(one, _Pairs) else one)]
    return depth


def _is_taken(data: bytes) -> bool:
    try:
        envelope.check(data, DEPTH)
    except envelope.JsonError:
        return False
    return True


def judge_json(data: bytes) -> None:
    """What is JSON is taken, all else is refused; an object's members are those that the library finds."""
    is_json, value = _understood(data)
    assert _is_taken(data) == is_json
    if not is_json:
        return
    if isinstance(value, _Pairs):
        found = envelope.members(data)
        raws = [data[member.value_start : member.end] for member in found]
        assert [(m.key, _understood(raw)[1]) for m, raw in zip(found, raws, strict=True)] == value
        kept = [pair for pair in value if pair[0] != "id"]
        changed = _understood(envelope.splice(data, {"id": b"7", "new": None}))[1]
        assert [pair for pair in changed if pair[0] != "id"] == [pair for pair in kept if pair[0] != "new"]
        assert ("id", "7") in changed
    elif isinstance(value, list):
        assert [_understood(raw)[1] for raw in envelope.elements(data)] == value


def judge_message(data: bytes) -> None:
    """Refused for a reason that a client can be told, or understood; and then its id is in the text."""
    for versions in ((), (names.LATEST_MODERN,), ("2025-03-26",)):
        try:
            posted = read_posted(data, versions, DEPTH)
            if posted.era is Era.MODERN:
                headers = Headers([(names.H_PROTOCOL_VERSION, version) for version in versions])
                read_message(posted.messages[0], headers, ANONYMOUS, names.MODERN_VERSIONS)
        except Rejection as exc:
            rid = exc.rid
        else:
            rid = posted.rid
            assert _understood(data)[0]
        assert rid is None or rid.raw in data


def judge_chunks(data: bytes) -> None:
    """Lines and events are the same, wherever they are cut."""

    def lines(size: int) -> list[tuple[type, bytes]]:
        splitter, found = LineSplitter(MOST), []
        for at in range(0, len(data), size):
            found += splitter.feed(data[at : at + size])
        found += splitter.end()
        return [(type(one), one.text if isinstance(one, Line) else b"") for one in found]

    def events(size: int) -> list[sse.Event] | None:
        decoder, found = sse.EventDecoder(MOST), []
        try:
            for at in range(0, len(data), size):
                found += decoder.feed(data[at : at + size])
        except sse.EventTooLarge as exc:
            return [*found, *exc.events]
        return found

    for same in (lines, events):
        seen = [same(size) for size in (1, 3, len(data) + 1)]
        assert seen[0] == seen[1] == seen[2], same.__name__
    assert all(kind in (Line, Oversized) for kind, _ in lines(1))


def judge_text(data: bytes) -> None:
    """What is sealed by nobody is not opened; a header's value is read or refused, and what we write is read
    back."""
    text = data.decode("utf-8", "surrogateescape")
    _refused(list_cursor.InvalidCursor, lambda: list_cursor.unseal(KEY, "ada", text))
    _refused(request_state.InvalidState, lambda: request_state.unseal(KEY, text, 0, CLAIM))
    with suppress(param_headers.HeaderValueError):
        param_headers.decode_value(text)
    if text.isprintable():
        assert param_headers.decode_value(param_headers.encode_value(text)) == text


def _refused(fault: type[Exception], act: Callable[[], object]) -> None:
    try:
        act()
    except fault:
        return
    raise AssertionError("opened")


def judge(data: bytes) -> None:
    judge_json(data)
    judge_message(data)
    judge_chunks(data)
    judge_text(data)
