"""JSON texts cut by hand, so that what a test compares is what was written; shares no code with the proxy."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final

Members = list[tuple[bytes, bytes]]
"""Of an object, in order: each key and each value as it was written."""

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TOKEN: Final = re.compile(_STRING.pattern + rb"|[\[\]{},]", re.DOTALL)


def flat(text: bytes) -> bytes:
    """`text` as it may stand on one line: line ends between its tokens are spaces."""
    return text.replace(b"\r", b" ").replace(b"\n", b" ")


def elements(text: bytes) -> list[bytes]:
    """What stands between the commas of the outermost array (or object), without the space around."""
    found: list[bytes] = []
    depth = start = 0
    for token in _TOKEN.finditer(text):
        match token.group():
            case b"[" | b"{":
                depth += 1
                start = token.end() if depth == 1 else start
            case b"]" | b"}":
                depth -= 1
                if depth == 0:
                    found.append(text[start : token.start()].strip())
            case b"," if depth == 1:
                found.append(text[start : token.start()].strip())
                start = token.end()
    return found if found != [b""] else []


def members(text: bytes) -> Members:
    """The members of an object."""
    found = []
    for part in elements(text):
        key = _STRING.match(part)
        assert key is not None, f"no object: {text[:200]!r}"
        found.append((key.group(), part[key.end() :].lstrip().removeprefix(b":").lstrip()))
    return found


def meaning(key: bytes) -> str:
    """The string that a key stands for, escapes or not."""
    text = json.loads(key)
    assert isinstance(text, str)
    return text


def value(text: bytes, *path: str) -> bytes | None:
    """The raw value at the end of a path of keys; None if it is not there."""
    for step in path:
        found = [raw for key, raw in members(text) if meaning(key) == step] if text[:1] == b"{" else []
        if not found:
            return None
        text = found[0]
    return text


def without(found: Members, names: Collection[str]) -> Members:
    """All members but those of these names."""
    return [(key, raw) for key, raw in found if meaning(key) not in names]


def joined(found: Members) -> bytes:
    """An object of these members."""
    return b"{" + b",".join(key + b":" + raw for key, raw in found) + b"}"
