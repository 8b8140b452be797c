"""Tokens that are worth nothing any more, though nobody asks the server: expired, or refused by it.

Above: `downstream`, before what is answered from the store alone; `upstream` tells what the server says.
In memory only; the owners of tokens that were refused last are the ones that are known. Contract section 8,
"A token whose own `exp` has passed, or that upstream last answered 401".
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from proxy.auth.challenges import Challenger
from proxy.auth.tokens import claimed_expiry
from proxy.clock import Clock
from proxy.errors import Unauthorized
from proxy.logs import get_logger

MAX_REFUSED: Final = 10_000
MAX_CHALLENGE_CHARS: Final = 2_048  # of all that came with one refusal; else ours stands for them

log = get_logger()


class SpentTokens:
    """Implements `upstream.base.Verdicts`."""

    is_ours: Final = False

    def __init__(self, challenger: Challenger, clock: Clock, *, leeway_s: float = 0.0) -> None:
        self._challenger = challenger
        self._clock = clock
        self._leeway_s = leeway_s
        self._refused: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SpentTokens {len(self._refused)} refused>"

    @property
    def wants_all(self) -> bool:
        """Whether an acceptance changes anything; refusals always do."""
        return bool(self._refused)

    def knows(self, authorization: str | None) -> bool:
        """Whether the server has refused it last."""
        return bool(self._refused) and authorization is not None and _key(authorization) in self._refused

    def answered(self, authorization: str | None, status: int, challenges: Sequence[str]) -> None:
        """The server has answered a request with this `Authorization`."""
        if authorization is None:
            return
        if status == HTTPStatus.UNAUTHORIZED:
            told = tuple(challenges) if sum(map(len, challenges)) <= MAX_CHALLENGE_CHARS else ()
            key = _key(authorization)
            if key not in self._refused:
                log.info("token_refused_upstream")
            self._refused.pop(key, None)
            self._refused[key] = told
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
        elif self._refused and HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            self._refused.pop(_key(authorization), None)

    def check(self, authorization: str | None) -> None:
        """Raises Unauthorized if this is worth nothing any more."""
        if authorization is None:
            return
        challenges = self._refused.get(_key(authorization)) if self._refused else None
        if challenges is not None:
            raise self._unauthorized("refused_upstream", "the server has refused it", challenges)
        scheme, _, token = authorization.strip().partition(" ")
        expiry = claimed_expiry(token.strip()) if scheme.lower() == "bearer" else None
        if expiry is not None and expiry + self._leeway_s <= self._clock.wall_ms() / 1000:
            raise self._unauthorized("expired", "it has expired", ())

    def _unauthorized(self, reason: str, words: str, challenges: tuple[str, ...]) -> Unauthorized:
        log.info("token_denied", reason=reason)
        own = self._challenger.challenge("invalid_token", f"The access token is not good: {words}")
        return Unauthorized(
            f"the access token is not good: {words}", reason=reason, challenges=challenges or (own,)
        )


def _key(authorization: str) -> bytes:
    return hashlib.sha256(authorization.strip().encode("utf-8", "surrogateescape")).digest()
