"""Tokens that are verified here: signature, issuer, audience, times. What is proved is whose they are.

Above: `gate`. Below: `keys`, joserfc. Authorization 2026-07-28, "Token Handling"; RFC 7519; RFC 9068.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from joserfc import jws
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwk import Key
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry
from joserfc.util import urlsafe_b64decode

from proxy.auth.keys import Keys
from proxy.clock import Clock
from proxy.owners import Owner, owner_by_name
from proxy.protocol.envelope import JsonError, check, loads

MAX_KEPT: Final = 10_000  # tokens that were verified; the rest is verified anew
MAX_TOKEN_BYTES: Final = 64 * 1024
MAX_HEADER_BYTES: Final = 8 * 1024
MAX_TRIED: Final = 8  # keys, for a token that names none
_MAX_DEPTH: Final = 32

_FOREIGN: Final = (JoseError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What joserfc raises for what is no token."""


class TokenRefused(Exception):
    """The token proves nothing. `reason` is a word for the log, the message is for the client."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say to count. `leeway_s` is for clocks that differ."""

    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    leeway_s: float


class _Registry(JWSRegistry):
    """Headers may be longer than joserfc's bound, and have parameters that it does not know. A certificate
    chain, or a URL, in them is never looked at."""

    max_header_length = MAX_HEADER_BYTES
    max_payload_length = MAX_TOKEN_BYTES

    def get_alg(self, name: str) -> Any:
        """Without its warning for `EdDSA`, whose newer name is `Ed25519`."""
        if self.allowed is None or name not in self.allowed:
            raise ValueError("algorithm not allowed")
        return self.algorithms[name]


class TokenVerifier:
    """Verifies each token once, and remembers what it proved until its times, or the keys, say otherwise."""

    def __init__(self, rules: TokenRules, keys: Keys, secret: bytes, clock: Clock) -> None:
        self._rules = rules
        self._keys = keys
        self._secret = secret
        self._clock = clock
        self._registry = _Registry(algorithms=rules.algorithms, strict_check_header=False)
        self._proved: OrderedDict[bytes, tuple[int, Owner, dict[str, Any]]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<TokenVerifier of {self._rules.issuer}, {len(self._proved)} proved>"

    async def owner_of(self, token: str) -> Owner:
        """Whose it is: the same for all tokens of one subject. Raises TokenRefused, or LimitReached (503)
        while there are no keys."""
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        proved = self._proved.get(key)
        if proved is None or proved[0] != self._keys.generation:
            self._proved.pop(key, None)
            proved = await self._prove(token)
            self._proved[key] = proved
            if len(self._proved) > MAX_KEPT:
                self._proved.popitem(last=False)
        _, owner, claims = proved
        try:
            self._check_times(claims)
        except TokenRefused:
            self._proved.pop(key, None)
            raise
        return owner

    async def _prove(self, token: str) -> tuple[int, Owner, dict[str, Any]]:
        if len(token) > MAX_TOKEN_BYTES or token.count(".") != 2:
            raise TokenRefused("malformed", "it is no signed JWT")
        kid, algorithm = self._named(token)
        keys = await self._keys.find(kid, algorithm)
        generation = self._keys.generation
        if not keys:
            raise TokenRefused("unknown_key", "it is signed with a key that its issuer does not have")
        claims = self._claims(token, keys[:MAX_TRIED])
        self._check(claims)
        owner = owner_by_name(self._secret, claims["iss"], claims["sub"])
        return generation, owner, {name: claims[name] for name in _TIMES if name in claims}

    def _named(self, token: str) -> tuple[str | None, str]:
        """Key and algorithm, as far as the token may choose them."""
        header = _part(token, 0, MAX_HEADER_BYTES)
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._rules.algorithms:
            raise TokenRefused("algorithm", "its algorithm is not allowed here")
        if "crit" in header or not (kid is None or isinstance(kid, str)):
            raise TokenRefused("malformed", "it is no signed JWT")
        return kid, algorithm

    def _claims(self, token: str, keys: Sequence[Key]) -> dict[str, Any]:
        """What is said under a signature that is good."""
        for key in keys:
            try:
                jws.deserialize_compact(token, key, self._rules.algorithms, self._registry)
            except _FOREIGN:
                continue
            return _part(token, 1, MAX_TOKEN_BYTES)
        raise TokenRefused("signature", "its signature is not good")

    def _check(self, claims: dict[str, Any]) -> None:
        if not all(_is_time(claims[name]) for name in _TIMES if name in claims):
            raise TokenRefused(*_INVALID)
        rules = JWTClaimsRegistry(
            now=self._now,
            leeway=math.ceil(self._rules.leeway_s),
            iss={"essential": True, "value": self._rules.issuer},
            aud={"essential": True, "values": [*self._rules.audiences]},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            rules.validate(claims)
        except MissingClaimError as exc:
            raise TokenRefused("claims", "it lacks one of iss, aud, exp and sub") from exc
        except ExpiredTokenError as exc:
            raise TokenRefused("expired", "it has expired") from exc
        except InvalidClaimError as exc:
            raise TokenRefused(*_SAID_OF.get(exc.claim, _INVALID)) from exc

    def _check_times(self, claims: dict[str, Any]) -> None:
        """Of one that was proved before: it may have expired since, or the clock may have been set."""
        now, leeway = self._clock.wall_ms() / 1000, self._rules.leeway_s
        if claims["exp"] <= now - leeway:
            raise TokenRefused("expired", "it has expired")
        if claims.get("nbf", 0) > now + leeway:
            raise TokenRefused("not_yet_valid", "it is not valid yet")

    def _now(self) -> int:
        return self._clock.wall_ms() // 1000


_TIMES: Final = ("exp", "nbf", "iat")
_INVALID: Final = ("claims", "one of its claims is not valid")
_SAID_OF: Final = {
    "iss": ("issuer", "it is of another issuer"),
    "aud": ("audience", "it is not for this resource"),
    "nbf": ("not_yet_valid", "it is not valid yet"),
    "iat": ("not_yet_valid", "it is not valid yet"),
}


def claimed_expiry(token: str) -> float | None:
    """When a token says that it expires, in seconds since the epoch; None if it says nothing that can be
    read. Nothing of it is proved: good for refusing, never for letting in."""
    try:
        exp = _part(token, 1, MAX_TOKEN_BYTES).get("exp")
    except TokenRefused:
        return None
    return float(exp) if _is_number(exp) else None


def claimed_owner(token: str, secret: bytes) -> Owner | None:
    """Whose a token says that it is; None if it says nothing that can be read. Nothing of it is proved, but
    for one that was verified before it is what `TokenVerifier.owner_of` says."""
    try:
        claims = _part(token, 1, MAX_TOKEN_BYTES)
    except TokenRefused:
        return None
    issuer, subject = claims.get("iss"), claims.get("sub")
    if not isinstance(issuer, str) or not isinstance(subject, str):
        return None
    return owner_by_name(secret, issuer, subject)


_FAR_S: Final = 1e12  # some tens of thousands of years: beyond it is no time that anybody means


def _is_time(value: Any) -> bool:
    """Whether it is a NumericDate (RFC 7519, section 2) that somebody may mean."""
    return _is_number(value) and value >= 0


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _FAR_S


def _part(token: str, index: int, max_bytes: int) -> dict[str, Any]:
    """Header or claims. Raises TokenRefused if that is no JSON object."""
    parts = token.split(".", 3)
    fault = TokenRefused("malformed", "it is no signed JWT")
    if len(parts) != 3 or len(parts[index]) > max_bytes:
        raise fault
    try:
        raw = urlsafe_b64decode(parts[index].encode("ascii"))
        check(raw, _MAX_DEPTH)
        found = loads(raw)
    except (JsonError, ValueError, TypeError, RecursionError):
        raise fault from None
    if not isinstance(found, dict):
        raise fault
    return found
