"""Who a request belongs to: the authorization context that tasks, sessions and parked calls are bound to.

A name that was proved, by a token that was verified or by a gateway that is trusted; else a keyed hash of the
`Authorization` value, else the anonymous owner, whose tasks are guarded by their unguessable ids alone.
Contract section 8.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import anyio

from proxy.clock import Pulse

_PURPOSE: Final = b"mcp-taskproxy owner 1"
_PURPOSE_OF_NAMES: Final = b"mcp-taskproxy named owner 1"
_TOKEN: Final = "token-"
_NAMED: Final = "user-"
_NEVER_SEEN: Final = "\0"  # which no header can hold


@dataclass(frozen=True, slots=True)
class Owner:
    """`key` is what records are filed under; it shows nothing of the credential."""

    key: str

    def __hash__(self) -> int:
        """As of the key, which remembers its own."""
        return hash(self.key)

    @property
    def is_anonymous(self) -> bool:
        return self == ANONYMOUS

    @property
    def has_token(self) -> bool:
        """Whether what is sent upstream in its name may carry a credential, which is in memory alone."""
        return self.key.startswith((_TOKEN, _NAMED))


ANONYMOUS: Final = Owner("anonymous")


class Credentials:
    """The latest `Authorization` value of each owner, for what is sent upstream in the owner's name.

    In memory only, and only of the owners seen last: an owner who comes back brings it along. Anybody can
    make values up, and have each sent to the server once; so those that were not used twice go first, and
    those that it refused (`is_refused`). All together have a bound in bytes.
    """

    MAX_OWNERS: Final = 10_000
    MAX_BYTES: Final = 32 * 1024 * 1024  # more than most tokens need for so many; a header may have 64 KiB

    def __init__(self, is_refused: Callable[[str], bool] = lambda authorization: False) -> None:
        self._is_refused = is_refused
        self._used: dict[Owner, str | None] = {}  # both: those seen or used last are last
        self._unused: dict[Owner, str | None] = {}
        self._tried: set[Owner] = set()  # of the unused
        self._bytes = 0
        self._noted = Pulse()
        self._awaited: dict[Owner, list[anyio.Event]] = {}

    def may_lack(self, owner: Owner) -> bool:
        """Whether what is sent for this owner may have to wait for one, after a restart."""
        return owner.has_token

    async def wait_for(self, owner: Owner) -> None:
        """Until this owner has come, and brought along what there is."""
        while owner not in self._used and owner not in self._unused:
            await self._noted.event.wait()

    @contextmanager
    def next_of(self, owner: Owner) -> Iterator[anyio.Event]:
        """Inside, the event tells of the next request of this owner whose credential the server has not
        refused last."""
        came = anyio.Event()
        self._awaited.setdefault(owner, []).append(came)
        try:
            yield came
        finally:
            left = self._awaited[owner]
            left.remove(came)
            if not left:
                del self._awaited[owner]

    def note(self, owner: Owner, authorization: str | None, *, is_doubtful: bool = False) -> None:
        """A request of this owner has come with this `Authorization`; a gateway may have sent none along.
        One that is doubtful takes the place of no other."""
        if owner.is_anonymous or (authorization is None and not owner.key.startswith(_NAMED)):
            return
        if is_doubtful and (owner in self._used or owner in self._unused):
            return
        kept = self._used
        if (old := kept.pop(owner, _NEVER_SEEN)) == _NEVER_SEEN:
            kept = self._unused
            old = kept.pop(owner, None)
        kept[owner] = authorization
        self._bytes += len(authorization or "") - len(old or "")
        self._noted.beat()
        for came in self._awaited.get(owner, ()) if self._awaited and not is_doubtful else ():
            came.set()
        while self._bytes > self.MAX_BYTES or len(self._used) + len(self._unused) > self.MAX_OWNERS:
            self._forget_another_than(owner)

    def headers(self, owner: Owner) -> dict[str, str]:
        """The headers that carry this owner's credential; none for the anonymous owner."""
        value = self._used.pop(owner, _NEVER_SEEN)
        if value == _NEVER_SEEN:
            value = self._tried_value(owner)
        else:
            self._used[owner] = value
        return {} if value is None else {"Authorization": value}

    def _tried_value(self, owner: Owner) -> str | None:
        value = self._unused.get(owner)
        if value is not None and owner in self._tried and not self._is_refused(value):
            self._tried.remove(owner)
            self._used[owner] = self._unused.pop(owner)
        elif value is not None:
            self._tried.add(owner)
        return value

    def _forget_another_than(self, owner: Owner) -> None:
        """Than the one who has just come: what is sent in its name is about to ask for it."""
        among = self._unused if len(self._unused) > (owner in self._unused) else self._used
        gone = next(one for one in among if one != owner)
        self._tried.discard(gone)
        self._bytes -= len(among.pop(gone) or "")


def owner_of(authorization: str | None, secret: bytes) -> Owner:
    """The owner of a request with this `Authorization` value. `secret` is the store's, so that a copy of
    the records alone does not let anybody try tokens."""
    if authorization is None or not authorization.strip():
        return ANONYMOUS
    digest = hmac.digest(
        secret, _PURPOSE + authorization.strip().encode("utf-8", "surrogateescape"), hashlib.sha256
    )
    return Owner(_TOKEN + digest.hex())


def owner_by_name(secret: bytes, issuer: str, name: str) -> Owner:
    """The owner that `issuer` knows by this name, whatever token it comes with. `secret` as above."""
    named = json.dumps([issuer, name]).encode("ascii")
    return Owner(_NAMED + hmac.digest(secret, _PURPOSE_OF_NAMES + named, hashlib.sha256).hex())
