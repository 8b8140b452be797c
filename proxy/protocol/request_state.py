"""`requestState`: which parked call a retry belongs to, signed, so that nobody else can make or move it.

A state names a parked call by a random nonce and says when it ends; the signature covers, beside both,
the owner and a digest of method and arguments, which are not in the text. So a state shows nothing,
and fits only the retry of the very call it was made for. MRTR 2026-07-28, "Server Requirements".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Final

NONCE_BYTES: Final = 16
_SIGNATURE_BYTES: Final = 32
_PURPOSE: Final = b"mcp-taskproxy requestState 1"  # keeps signatures apart from other uses of the key


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
    return base64.urlsafe_b64encode(body + _sign(key, body, claim)).decode("ascii").rstrip("=")


def unseal(key: bytes, text: str, now_ms: int, claim: Claim) -> bytes:
    """The nonce of a state that is whole, in time and for this claim. Raises InvalidState otherwise."""
    try:
        data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise InvalidState("requestState is not valid for this request") from None
    body, signature = data[:-_SIGNATURE_BYTES], data[-_SIGNATURE_BYTES:]
    if len(body) != NONCE_BYTES + 8 or not hmac.compare_digest(signature, _sign(key, body, claim)):
        raise InvalidState("requestState is not valid for this request")
    (expires_ms,) = struct.unpack(">Q", body[NONCE_BYTES:])
    if now_ms >= expires_ms:
        raise InvalidState("requestState has expired")
    return body[:NONCE_BYTES]


def _sign(key: bytes, body: bytes, claim: Claim) -> bytes:
    owner = hashlib.sha256(claim.owner.encode()).digest()
    return hmac.digest(key, _PURPOSE + body + owner + claim.call_digest, hashlib.sha256)
