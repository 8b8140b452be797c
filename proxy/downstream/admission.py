"""What is asked about the credential of a request: who it is of, and whether it is good for anything still.

Above: `http`. Below: `auth`. Contract section 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from aiohttp import web

from proxy.auth.challenges import UrlMap
from proxy.auth.gate import Gate
from proxy.auth.spent import SpentTokens
from proxy.owners import Owner

_CHALLENGED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_H_CHALLENGE: Final = "WWW-Authenticate"


@dataclass(frozen=True, slots=True)
class Admission:
    """Without a `gate` everybody is let in, and the server may say no. `urls` put challenges of the server
    right, where there is anything to be put right."""

    gate: Gate | None = None
    spent: SpentTokens | None = None
    urls: UrlMap | None = None

    async def admit(self, http: web.Request) -> Owner | None:
        """Whose request it is, if a gate knows. Raises Unauthorized, or LimitReached."""
        return None if self.gate is None else await self.gate.admit(http.headers, http.remote)

    def doubts(self, authorization: str | None) -> bool:
        """Whether the server has refused it last, so that another one of the same owner may be better."""
        return self.spent is not None and self.spent.knows(authorization)

    def refuse_spent(self, http: web.Request) -> None:
        """For what is answered here alone. Raises Unauthorized."""
        if self.spent is not None:
            self.spent.check(http.headers.get("Authorization"))

    def put_right(self, response: web.StreamResponse) -> None:
        """The addresses in the challenges of a response whose head is about to go."""
        if self.urls is None or response.status not in _CHALLENGED:
            return
        given = response.headers.popall(_H_CHALLENGE, ())
        response.headers.extend([(_H_CHALLENGE, self.urls.challenge(value)) for value in given])


OPEN: Final = Admission()
