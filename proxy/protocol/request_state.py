"""`requestState`: which parked call a retry belongs to, signed, so that nobody else can make or move it.

A state names a parked call by a random nonce and says when it ends; the signature covers, beside both,
the owner and a digest of method and arguments, which are not in the text. So a state shows nothing,
and fits only the retry of the very call it was made for. MRTR 2026-07-28, "Server Requirements".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Final

NONCE_BYTES: Final = 16
_SIGNATURE_BYTES: Final = 32
_PURPOSE: Final = b"mcp-taskproxy requestState 1"  # keeps signatures apart from other uses of the key
_NOT_VALID: Final = "requestState is not valid for this request"


class InvalidState(ValueError):
    """The state is not ours, not whole, over, or not for this owner and call. One message for all but
    the end of its time."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a state is bound to: its owner and the digest of its call (`eras.to_legacy.call_digest`)."""

    owner: str
    call_digest: bytes


def seal(key: bytes, nonce: bytes, expires_ms: int, claim: Claim) -> str:
    """The text of a new state. `nonce` is NONCE_BYTES random bytes, `expires_ms` wall time."""
    body = nonce + struct.pack(">Q", expires_ms)
    return _text(body + _sign(key, body, claim))


def unseal(key: bytes, text: str, now_ms: int, claim: Claim) -> bytes:
    """The nonce of a state that is whole, in time and for this claim. Raises InvalidState otherwise."""
    data = _data(text)
    body, signature = data[:-_SIGNATURE_BYTES], data[-_SIGNATURE_BYTES:]
    if len(body) != NONCE_BYTES + 8 or not hmac.compare_digest(signature, _sign(key, body, claim)):
        raise InvalidState(_NOT_VALID)
    (expires_ms,) = struct.unpack(">Q", body[NONCE_BYTES:])
    if now_ms >= expires_ms:
        raise InvalidState("requestState has expired")
    return body[:NONCE_BYTES]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _data(text: str) -> bytes:
    """Only of the one spelling that `_text` gives: base64 has others, in its last bits and its alphabet."""
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except ValueError:  # not ASCII, or not base64
        raise InvalidState(_NOT_VALID) from None
    if _text(data) != text:
        raise InvalidState(_NOT_VALID)
    return data


def _sign(key: bytes, body: bytes, claim: Claim) -> bytes:
    owner = hashlib.sha256(claim.owner.encode()).digest()
    return hmac.digest(key, _PURPOSE + body + owner + claim.call_digest, hashlib.sha256)
