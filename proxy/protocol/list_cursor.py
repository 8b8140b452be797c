"""Cursors of `tasks/list`: opaque, signed, bound to one owner.

A cursor names where the next page begins: behind a task of ours, or, once all of ours were listed, at a
cursor of the upstream's own list. Nobody can make one, or move it to another owner: what is not signed for
this owner is no cursor. MCP 2025-11-25, "Pagination", "Listing Tasks"; contract section 5.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Final

_SIGNATURE_BYTES: Final = 16
_PURPOSE: Final = b"mcp-taskproxy tasks/list cursor 1"  # keeps signatures apart from other uses of the key


class InvalidCursor(ValueError):
    """Not ours, not whole, or another owner's; one message for all."""


@dataclass(frozen=True, slots=True)
class ListPosition:
    """Where a page begins: behind our task `after`; or, if that is None, in the upstream's list at
    `upstream`, its own cursor (None: at its beginning)."""

    after: str | None = None
    upstream: str | None = None


def seal(key: bytes, owner: str, position: ListPosition) -> str:
    """The text of a cursor."""
    body = json.dumps([position.after, position.upstream]).encode("ascii")
    return base64.urlsafe_b64encode(_sign(key, owner, body) + body).decode("ascii").rstrip("=")


def unseal(key: bytes, owner: str, text: str) -> ListPosition:
    """Raises InvalidCursor."""
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except ValueError:  # not ASCII, or not base64
        raise InvalidCursor("the cursor is not valid") from None
    signature, body = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _sign(key, owner, body)):
        raise InvalidCursor("the cursor is not valid")
    after, upstream = json.loads(body)
    return ListPosition(after, upstream)


def _sign(key: bytes, owner: str, body: bytes) -> bytes:
    text = _PURPOSE + hashlib.sha256(owner.encode()).digest() + body
    return hmac.digest(key, text, hashlib.sha256)[:_SIGNATURE_BYTES]
