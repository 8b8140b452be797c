"""JSON as others may write it: generated texts with odd spelling, and a plain judge of what is JSON.

The judge follows RFC 8259 word by word and shares no code with `envelope`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from hypothesis import strategies as st

_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING: Final = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')


Reader: TypeAlias = Callable[[bytes, int], tuple[int, int]]
"""From where something begins in a text to where it ends, and how deep it is nested."""


class NotJson(Exception):
    pass


def depth_of(raw: bytes) -> int:
    """How deep `raw` is nested. Raises NotJson if it is not one JSON text in UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError as exc:
        raise NotJson from exc
    at, depth = _value(raw, _space(raw, 0))
    if _space(raw, at) != len(raw):
        raise NotJson
    return depth


def _value(raw: bytes, at: int) -> tuple[int, int]:
    match raw[at : at + 1]:
        case b"[":
            return _container(raw, at + 1, b"]", _value)
        case b"{":
            return _container(raw, at + 1, b"}", _member)
        case b'"':
            return _token(_STRING, raw, at), 0
    for word in (b"true", b"false", b"null"):
        if raw.startswith(word, at):
            return at + len(word), 0
    return _token(_NUMBER, raw, at), 0


def _member(raw: bytes, at: int) -> tuple[int, int]:
    at = _space(raw, _token(_STRING, raw, at))
    return _value(raw, _space(raw, _expect(b":", raw, at)))


def _container(raw: bytes, at: int, end: bytes, item: Reader) -> tuple[int, int]:
    at = _space(raw, at)
    if raw.startswith(end, at):
        return at + 1, 1
    deepest = 0
    while True:
        at, depth = item(raw, at)
        deepest = max(deepest, depth)
        at = _space(raw, at)
        if raw.startswith(end, at):
            return at + 1, deepest + 1
        at = _space(raw, _expect(b",", raw, at))


def _expect(sign: bytes, raw: bytes, at: int) -> int:
    if not raw.startswith(sign, at):
        raise NotJson
    return at + 1


def _token(pattern: re.Pattern[bytes], raw: bytes, at: int) -> int:
    token = pattern.match(raw, at)
    if token is None:
        raise NotJson
    return token.end()


def _space(raw: bytes, at: int) -> int:
    return _token(_SPACE, raw, at)


# -- generated texts ------------------------------------------------------------------------------------

spaces = st.sampled_from([b"", b"", b"", b" ", b"\n", b"\r\n", b"\t ", b"  \n "])

numbers = st.one_of(
    st.sampled_from([b"0", b"-0", b"1.10", b"1E400", b"-1e-400", b"0.1e+1", b"9007199254740993", b"1e2"]),
    st.integers().map(lambda n: b"%d" % n),
    st.integers(4_301, 5_000).map(lambda digits: b"9" * digits),
)

_characters = st.one_of(
    st.sampled_from([b"a", b"[", b"]", b"{", b"}", b",", b":", b"\x7f", "\u2028".encode(), "ü🚀".encode()]),
    st.sampled_from([b'\\"', b"\\\\", b"\\/", b"\\b", b"\\n", b"\\u0000", b"\\u2028", b"\\u00fc"]),
    st.sampled_from([b"\\ud800", b"\\udc00", b"\\ud83d\\ude80", b"\\uD83D"]),  # alone and in pairs
)
strings = st.lists(_characters, max_size=6).map(lambda parts: b'"' + b"".join(parts) + b'"')
keys = st.sampled_from([b'"a"', b'"\\u0061"', b'"b"', b'""', b'"{"', b'"_meta"']) | strings

scalars = st.one_of(st.sampled_from([b"null", b"true", b"false"]), numbers, strings)


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[bytes]) -> tuple[bytes, list[bytes]]:
    """An array, and its elements."""
    items = draw(st.lists(values, max_size=4))
    padded = [draw(spaces) + item + draw(spaces) for item in items] or [draw(spaces)]
    return b"[" + b",".join(padded) + b"]", items


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[bytes]) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """An object, and its members: raw key and raw value."""
    pairs = draw(st.lists(st.tuples(keys, values), max_size=5))
    padded = [
        draw(spaces) + key + draw(spaces) + b":" + draw(spaces) + value + draw(spaces) for key, value in pairs
    ] or [draw(spaces)]
    return b"{" + b",".join(padded) + b"}", pairs


values = st.recursive(
    scalars, lambda inner: st.one_of(arrays(inner), objects(inner)).map(lambda made: made[0]), max_leaves=12
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """One JSON text, with white space around it."""
    return draw(spaces) + draw(values) + draw(spaces)


_fragments = st.one_of(
    st.sampled_from(
        rb"""{ } [ ] , : " \ \u12 \x - +1 .5 1. 01 e 0 "a" NaN Infinity nul True ' /**/""".split()
    ),
    st.sampled_from([b"", b" ", b"\n", b"\x0b", b"\x0c", b"\x00", b"\x1f", b"\xc2\xa0"]),
    st.sampled_from([b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xed\xa0\x80"]),
)


@st.composite
def near_texts(draw: st.DrawFn) -> bytes:
    """What may be JSON or not: a text with a few bytes put in or taken out, or mere fragments."""
    raw = draw(st.lists(_fragments, max_size=6).map(b"".join) | texts())
    for _ in range(draw(st.integers(0, 2))):
        at, gone = draw(st.integers(0, len(raw))), draw(st.integers(0, 3))
        raw = raw[:at] + draw(_fragments) + raw[at + gone :]
    return raw
