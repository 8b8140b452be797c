"""Tokens that are worth nothing any more, though nobody asks the server: expired, or refused by it.

Above: `downstream`, before what is answered from the store alone; `upstream` tells what the server says.
Below: the memory of the store, so that a restart lets none in again. Those that were refused last are known.
Contract section 8, "A token whose own `exp` has passed, or that upstream last answered 401".
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections import OrderedDict
from collections.abc import Sequence
from http import HTTPStatus
from itertools import islice
from math import inf
from typing import Final, Protocol

import anyio
from anyio.abc import TaskStatus as StartStatus

from proxy.auth.challenges import Challenger
from proxy.auth.tokens import claimed_expiry
from proxy.clock import Clock
from proxy.errors import StoreError, Unauthorized
from proxy.logs import get_logger

MAX_REFUSED: Final = 10_000
MAX_KEPT: Final = 200  # of them over a restart: what fits into one value of the store's memory
KEEP_S: Final = 30 * 86_400.0  # as what is remembered of sessions; tasks seldom live so long
PAUSE_S: Final = 1.0  # between two writes: whoever makes up tokens must not keep the disk busy
WRITE_S: Final = 2.0  # for one of them, also when the proxy is about to end
MAX_CHALLENGE_CHARS: Final = 2_048  # of all that came with one refusal; else ours stands for them

_MEMO: Final = "refused-tokens"
_PURPOSE: Final = b"mcp-taskproxy refused token 1"
_KEY_BYTES: Final = 16
_KEPT: Final = struct.Struct(f">{_KEY_BYTES}sI")  # a token's key, and when it was refused

log = get_logger()


class Memory(Protocol):
    """The part of `stores.base.SessionMemory` that is needed here."""

    async def remember(self, key: str, value: bytes, *, keep_s: float) -> None: ...

    async def recall(self, key: str) -> bytes | None: ...


class SpentTokens:
    """Implements `upstream.base.Verdicts`. `run` has refusals outlive us; `secret` is the store's."""

    is_ours: Final = False

    def __init__(
        self, challenger: Challenger, clock: Clock, secret: bytes, memory: Memory, *, leeway_s: float = 0.0
    ) -> None:
        self._challenger = challenger
        self._clock = clock
        self._secret = secret
        self._memory = memory
        self._leeway_s = leeway_s
        self._refused: OrderedDict[bytes, tuple[int, tuple[str, ...]]] = OrderedDict()
        self._changed = anyio.Event()

    def __repr__(self) -> str:
        return f"<SpentTokens {len(self._refused)} refused>"

    async def run(self, *, task_status: StartStatus[None]) -> None:
        """Started once the refusals of before are known. Keeps them until cancelled."""
        await self._recall()
        task_status.started()
        try:
            while True:
                await self._changed.wait()
                await self._keep()
                await self._clock.sleep(PAUSE_S)
        finally:
            if self._changed.is_set():
                await self._keep()

    async def _recall(self) -> None:
        kept = await self._memory.recall(_MEMO) or b""
        oldest_s = self._clock.wall_ms() / 1000 - KEEP_S
        whole = kept[: len(kept) // _KEPT.size * _KEPT.size]
        self._refused.update({key: (at_s, ()) for key, at_s in _KEPT.iter_unpack(whole) if at_s > oldest_s})

    async def _keep(self) -> None:
        self._changed = anyio.Event()
        newest = [
            _KEPT.pack(key, at_s) for key, (at_s, _) in islice(reversed(self._refused.items()), MAX_KEPT)
        ]
        with anyio.move_on_after(WRITE_S, shield=True):
            try:
                await self._memory.remember(_MEMO, b"".join(reversed(newest)), keep_s=KEEP_S)
            except StoreError as exc:  # they are refused until we are restarted
                log.error("refused_tokens_not_kept", reason=exc.message)

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
            self._refused.pop(key, None)
            self._refused[key] = (self._clock.wall_ms() // 1000, told)
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
        elif self._refused and HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            self._take_back(self._key(authorization))

    async def another(self, refused: str | None) -> bool:
        """See `upstream.base.Verdicts`. Only the client can have another one."""
        return False

    def held_up_within(self, seconds: float) -> bool:
        """See `upstream.base.Verdicts`."""
        return False

    def _take_back(self, key: bytes) -> None:
        if self._refused.pop(key, None) is not None:
            self._changed.set()

    def check(self, authorization: str | None) -> None:
        """Raises Unauthorized if this is worth nothing any more."""
        if authorization is None:
            return
        refusal = self._refused.get(self._key(authorization)) if self._refused else None
        if refusal is not None:
            raise self._unauthorized("refused_upstream", "the server has refused it", refusal[1])
        if self.good_for_s(authorization) <= 0:
            raise self.expired()

    def good_for_s(self, authorization: str) -> float:
        """Until it has expired by its own word; `inf` for one that does not say when."""
        scheme, _, token = authorization.strip().partition(" ")
        expiry = claimed_expiry(token.strip()) if scheme.lower() == "bearer" else None
        return inf if expiry is None else expiry + self._leeway_s - self._clock.wall_ms() / 1000

    def expired(self) -> Unauthorized:
        """What is said of one that has expired."""
        return self._unauthorized("expired", "it has expired", ())

    def _unauthorized(self, reason: str, words: str, challenges: tuple[str, ...]) -> Unauthorized:
        log.info("token_denied", reason=reason)
        own = self._challenger.challenge("invalid_token", f"The access token is not good: {words}")
        return Unauthorized(
            f"the access token is not good: {words}", reason=reason, challenges=challenges or (own,)
        )

    def _key(self, authorization: str) -> bytes:
        """Shows nothing of the token, and lets nobody try tokens who has a copy of the memory alone."""
        value = _PURPOSE + authorization.strip().encode("utf-8", "surrogateescape")
        return hmac.digest(self._secret, value, hashlib.sha256)[:_KEY_BYTES]
