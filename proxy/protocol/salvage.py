"""Whose answer a text is that cannot be read: too large, nested too deeply, not UTF-8, not JSON.

Above: the stdio transport, which skips lines over the limit, and whoever takes apart what an upstream sent.
Without this the call would wait for its own limit. Every known server writes a response's id as its first
or last member, but for the version; only there it is looked for, and only in what begins as a response does,
since the id of a request is the server's own.
"""

from __future__ import annotations

import re
from typing import Final

EDGE_BYTES: Final = 200
"""How much of the beginning, and of the end, is looked at."""

_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID: Final = rb'"id"\s*:\s*"?(\d{1,18})"?'
_ANSWER: Final = rb'"(?:result|error)"\s*:'
_OPENS: Final = rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?"
_ID_FIRST: Final = re.compile(_OPENS + _ID + rb"\s*,\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ANSWER)
_ANSWER_FIRST: Final = re.compile(_OPENS + _ANSWER)
_ID_LAST: Final = re.compile(_ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*\Z")


def answered_at_beginning(head: bytes) -> int | None:
    """The id of the request that this text answers, if it stands at its beginning."""
    found = _ID_FIRST.match(head)
    return int(found.group(1)) if found is not None else None


def may_answer_at_end(head: bytes) -> bool:
    """Whether this begins as a response whose id has not come yet."""
    return _ANSWER_FIRST.match(head) is not None


def answered_at_end(tail: bytes) -> int | None:
    """The id that stands at the end of a response; only for one of which `may_answer_at_end` was true."""
    found = _ID_LAST.search(tail)
    return int(found.group(1)) if found is not None else None


def answered_by(text: bytes) -> int | None:
    """The id of the request that a whole text answers, if either edge tells."""
    head = text[:EDGE_BYTES]
    first = answered_at_beginning(head)
    if first is not None or not may_answer_at_end(head):
        return first
    return answered_at_end(text[-EDGE_BYTES:])
