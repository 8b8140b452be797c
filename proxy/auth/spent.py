"""Tokens that are worth nothing any more, though nobody asks the server: expired, or refused by it.

Above: `downstream`, before what is answered from the store alone; `upstream` tells what the server says.
Below: `refusals`, which says whose are kept in mind; `kept_refusals`, so that a restart lets none in again.
Contract section 8, "A token whose own `exp` has passed, or that upstream last answered 401".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from http import HTTPStatus
from math import ceil, inf
from typing import Final

import anyio
from anyio.abc import TaskStatus as StartStatus

from proxy.auth.challenges import Challenger
from proxy.auth.kept_refusals import KEEP_S, KEY_BYTES, KeptRefusals, Memory
from proxy.auth.refusals import Refusal, Refusals
from proxy.auth.tokens import claimed_expiry
from proxy.clock import Clock
from proxy.errors import Unauthorized
from proxy.logs import get_logger
from proxy.owners import Owner, owner_of

PAUSE_S: Final = 1.0  # between two writes: whoever makes up tokens must not keep the disk busy
MAX_CHALLENGE_CHARS: Final = 2_048  # of all that came with one refusal; else ours stands for them

_PURPOSE: Final = b"mcp-taskproxy refused token 1"

log = get_logger()


class SpentTokens:
    """Implements `upstream.base.Verdicts`. `run` has refusals outlive us; `secret` is the store's. `whose`
    says whose an `Authorization` is where tokens are verified here, else each is an owner of its own; `owns`,
    whether an owner has tasks now.
    """

    is_ours: Final = False

    def __init__(
        self,
        challenger: Challenger,
        clock: Clock,
        secret: bytes,
        memory: Memory,
        *,
        leeway_s: float = 0.0,
        whose: Callable[[str], Owner] | None = None,
        owns: Callable[[str], bool] = lambda owner: True,
    ) -> None:
        self._challenger = challenger
        self._clock = clock
        self._secret = secret
        self._leeway_s = leeway_s
        self._are_verified = whose is not None
        self._whose = whose or (lambda authorization: owner_of(authorization, secret))
        self._refused = Refusals(owns, self._now_s)
        self._kept = KeptRefusals(memory)
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        return f"<SpentTokens {self._refused}>"

    def _now_s(self) -> float:
        return self._clock.wall_ms() / 1000

    async def run(self, *, task_status: StartStatus[None]) -> None:
        """Started once the refusals of before are known. Keeps them until cancelled."""
        for key, refusal in await self._kept.recall():
            if refusal.until_s > self._now_s():
                self._refused.put(key, refusal)
        task_status.started()
        try:
            while True:
                await self._changed.wait()
                self._changed = anyio.Event()
                await self._kept.keep(self._refused)
                await self._clock.sleep(PAUSE_S)
        finally:
            await self._kept.keep(self._refused)  # some owners have come to have tasks since

    @property
    def wants_all(self) -> bool:
        """Whether an acceptance changes anything; refusals always do."""
        return bool(self._refused)

    def knows(self, authorization: str | None) -> bool:
        """Whether the server has refused it last."""
        return bool(self._refused) and authorization is not None and self._key(authorization) in self._refused

    def answered(self, authorization: str | None, status: int, challenges: Sequence[str]) -> None:
        """The server has answered a request with this `Authorization`."""
        if authorization is None:
            return
        if status == HTTPStatus.UNAUTHORIZED:
            told = tuple(challenges) if sum(map(len, challenges)) <= MAX_CHALLENGE_CHARS else ()
            key = self._key(authorization)
            if key not in self._refused:
                log.info("token_refused_upstream")
                self._changed.set()
            until_s = ceil(self._now_s() + max(0.0, min(KEEP_S, self.good_for_s(authorization))))
            self._refused.put(key, Refusal(self._whose(authorization).key, until_s, told))
        elif self._refused and HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            self._take_back(self._key(authorization))

    async def another(self, refused: str | None) -> bool:
        """See `upstream.base.Verdicts`. Only the client can have another one."""
        return False

    def held_up_within(self, seconds: float) -> bool:
        """See `upstream.base.Verdicts`."""
        return False

    def _take_back(self, key: bytes) -> None:
        if self._refused.remove(key):
            self._changed.set()

    def check(self, authorization: str | None) -> None:
        """Raises Unauthorized if this is worth nothing any more."""
        if authorization is None:
            return
        refusal = self._refused.get(self._key(authorization)) if self._refused else None
        if refusal is not None:
            raise self._unauthorized("refused_upstream", "the server has refused it", refusal.challenges)
        if self.good_for_s(authorization) <= 0:
            raise self.expired()

    def good_for_s(self, authorization: str) -> float:
        """Until it has expired by its own word; `inf` for one that does not say when."""
        scheme, _, token = authorization.strip().partition(" ")
        expiry = claimed_expiry(token.strip()) if scheme.lower() == "bearer" else None
        return inf if expiry is None else expiry + self._leeway_s - self._now_s()

    def expired(self) -> Unauthorized:
        """What is said of one that has expired."""
        return self._unauthorized("expired", "it has expired", ())

    def _unauthorized(self, reason: str, words: str, challenges: tuple[str, ...]) -> Unauthorized:
        log.info("token_denied", reason=reason)
        own = self._challenger.challenge("invalid_token", f"The access token is not good: {words}")
        return Unauthorized(
            f"the access token is not good: {words}", reason=reason, challenges=challenges or (own,)
        )

    def _token(self, authorization: str) -> str:
        """However it is spelt. What is signed is one token with whatever signature: of a good one another can
        be made, by anybody who has it (ECDSA, base64)."""
        scheme, _, token = authorization.strip().partition(" ")
        if scheme.lower() != "bearer":
            return authorization.strip()
        signed = token.strip().rpartition(".")[0] if self._are_verified else ""
        return f"bearer {signed or token.strip()}"

    def _key(self, authorization: str) -> bytes:
        """Shows nothing of the token, and lets nobody try tokens who has a copy of the memory alone."""
        value = _PURPOSE + self._token(authorization).encode("utf-8", "surrogateescape")
        return hmac.digest(self._secret, value, hashlib.sha256)[:KEY_BYTES]
