"""An issuer of tokens, played by the test: its keys, its key set, its tokens."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

from joserfc import jwt
from joserfc.jwk import ECKey, Key, KeyParameters, OKPKey, RSAKey

from tests.manual_clock import ManualClock

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "https://p.example/mcp"
NOW_S: Final = ManualClock().wall_ms() // 1000


def rsa(kid: str, alg: str | None = None) -> RSAKey:
    parameters: KeyParameters = {"kid": kid}
    if alg is not None:
        parameters["alg"] = alg
    return RSAKey.generate_key(2048, parameters)


def ec(kid: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid})


def okp(kid: str) -> OKPKey:
    return OKPKey.generate_key("Ed25519", {"kid": kid})


ONE: Final = ec("one")
"""Made once: what is of no interest in a test is signed with it."""


def key_set(*keys: Key, more: Any = ()) -> bytes:
    return json.dumps({"keys": [*(key.as_dict(private=False) for key in keys), *more]}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    """Good ones; a change to None takes one away."""
    good = {"iss": ISSUER, "sub": "alice", "aud": AUDIENCE, "exp": NOW_S + 300, "iat": NOW_S}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def token(
    key: Key = ONE,
    said: Mapping[str, Any] | None = None,
    *,
    alg: str = "ES256",
    header: Mapping[str, Any] | None = None,
) -> str:
    names = {"alg": alg, "kid": key.kid, **(header or {})}
    given = {name: value for name, value in names.items() if value is not None}
    return jwt.encode(given, dict(said if said is not None else claims()), key, algorithms=[alg])


def by_secret(secret: bytes, said: Mapping[str, Any], kid: str) -> str:
    """As whoever hopes that a public key is taken for a shared secret; libraries refuse to make this."""
    header = {"alg": "HS256", "typ": "JWT", "kid": kid}
    signed = b".".join(_coded(json.dumps(part).encode()) for part in (header, said))
    return (signed + b"." + _coded(hmac.digest(secret, signed, "sha256"))).decode()


def _coded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")
