"""The proxy's own credential towards the server, the same for every client.

Above: whatever sends in the name of an owner, which knows it as `owners.Credentials`. Below:
`client_credentials`, where it is a token. Authorization 2026-07-28, "Access Token Privilege Restriction".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from proxy.auth.client_credentials import ClientCredentials
from proxy.owners import Credentials, Owner

_SERVER_ERROR: Final = 500  # from here on a status says nothing of a credential


class OwnCredential(Credentials):
    """Fixed headers, and a token if there are `tokens`. Implements `upstream.base.Verdicts`, too."""

    is_ours: Final = True
    wants_all: Final = False

    def __init__(self, headers: Mapping[str, str], tokens: ClientCredentials | None) -> None:
        super().__init__()
        self._headers = dict(headers)
        self._tokens = tokens

    def __repr__(self) -> str:
        return f"<OwnCredential {len(self._headers)} headers, {self._tokens}>"

    def may_lack(self, owner: Owner) -> bool:
        """Whether there is none at the moment."""
        return self._tokens is not None and not self._tokens.is_ready

    async def wait_for(self, owner: Owner) -> None:
        """Until there is one, whoever it is for."""
        if self._tokens is not None:
            await self._tokens.wait_ready()

    def note(self, owner: Owner, authorization: str | None, *, is_doubtful: bool = False) -> None:
        """What clients send is for us alone (AUTH-004)."""

    def headers(self, owner: Owner) -> dict[str, str]:
        """The headers that carry it. Raises NoCredential while there is no token."""
        if self._tokens is None:
            return dict(self._headers)
        return {**self._headers, "Authorization": self._tokens.authorization()}

    def answered(self, authorization: str | None, status: int, challenges: Sequence[str]) -> None:
        """See `upstream.base.Verdicts`."""
        is_refused = status == HTTPStatus.UNAUTHORIZED
        if authorization is not None and self._tokens is not None and (is_refused or status < _SERVER_ERROR):
            self._tokens.answered(authorization, is_refused=is_refused)

    async def another(self, refused: str | None) -> bool:
        """See `upstream.base.Verdicts`. Fixed headers cannot be renewed."""
        return self._tokens is not None and await self._tokens.another(refused)

    def held_up_within(self, seconds: float) -> bool:
        """See `upstream.base.Verdicts`."""
        return self._tokens is not None and self._tokens.held_up_within(seconds)
