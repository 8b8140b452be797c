"""Who a request belongs to: the authorization context that tasks, sessions and parked calls are bound to.

Here: a keyed hash of the `Authorization` value, else the anonymous owner, whose tasks are guarded by
their unguessable ids alone. Contract section 8.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from proxy.clock import Pulse

_PURPOSE: Final = b"mcp-taskproxy owner 1"
_TOKEN: Final = "token-"


@dataclass(frozen=True, slots=True)
class Owner:
    """`key` is what records are filed under; it shows nothing of the credential."""

    key: str

    @property
    def is_anonymous(self) -> bool:
        return self == ANONYMOUS

    @property
    def has_token(self) -> bool:
        """Whether what is sent upstream in its name carries a credential, which is in memory alone."""
        return self.key.startswith(_TOKEN)


ANONYMOUS: Final = Owner("anonymous")


class Credentials:
    """The latest `Authorization` value of each owner, for what is sent upstream in the owner's name.

    In memory only, and only of the owners seen last: an owner who comes back brings it along.
    """

    MAX_OWNERS: Final = 10_000

    def __init__(self) -> None:
        self._latest: dict[Owner, str] = {}
        self._noted = Pulse()

    async def wait_for(self, owner: Owner) -> None:
        """Until there is one of this owner, who brings it along with a request."""
        while owner not in self._latest:
            await self._noted.event.wait()

    def note(self, owner: Owner, authorization: str | None) -> None:
        if authorization is None or owner.is_anonymous:
            return
        self._latest.pop(owner, None)
        self._latest[owner] = authorization
        self._noted.beat()
        if len(self._latest) > self.MAX_OWNERS:
            del self._latest[next(iter(self._latest))]

    def headers(self, owner: Owner) -> dict[str, str]:
        """The headers that carry this owner's credential; none for the anonymous owner."""
        value = self._latest.get(owner)
        return {} if value is None else {"Authorization": value}


def owner_of(authorization: str | None, secret: bytes) -> Owner:
    """The owner of a request with this `Authorization` value. `secret` is the store's, so that a copy of
    the records alone does not let anybody try tokens."""
    if authorization is None or not authorization.strip():
        return ANONYMOUS
    digest = hmac.digest(
        secret, _PURPOSE + authorization.strip().encode("utf-8", "surrogateescape"), hashlib.sha256
    )
    return Owner(_TOKEN + digest.hex())
