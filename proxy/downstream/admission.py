"""What is asked about the credential of a request: who it is of, and whether it is good for anything still.

Above: `http`. Below: `auth`. Contract section 8.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from math import inf
from typing import Final

from aiohttp import web

from proxy.auth.challenges import UrlMap
from proxy.auth.gate import Gate, TokenGate
from proxy.auth.spent import SpentTokens
from proxy.downstream.expiring import while_good
from proxy.downstream.single import authorization_of
from proxy.owners import Owner
from proxy.routing.legacy import Reply

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
            self.spent.check(authorization_of(http))

    def good_for_s(self, http: web.Request) -> float | None:
        """How long its token is good for what is answered here; None if nothing says so."""
        authorization = authorization_of(http)
        left = inf if self.spent is None or authorization is None else self.spent.good_for_s(authorization)
        return left if left < inf else None

    def while_good(
        self, http: web.Request, serving: AbstractAsyncContextManager[Reply]
    ) -> AbstractAsyncContextManager[Reply]:
        """The reply, for as long. It raises Unauthorized if there is none before that."""
        left = self.good_for_s(http)
        if left is None or self.spent is None:
            return serving
        return while_good(serving, left, self.spent.expired)

    @property
    def verifies_tokens(self) -> bool:
        """Whether it is known here until when a token is good, whatever the server thinks of it."""
        return isinstance(self.gate, TokenGate)

    def put_right(self, response: web.StreamResponse) -> None:
        """The addresses in the challenges of a response whose head is about to go."""
        if self.urls is None or response.status not in _CHALLENGED:
            return
        given = response.headers.popall(_H_CHALLENGE, ())
        response.headers.extend([(_H_CHALLENGE, self.urls.challenge(value)) for value in given])


OPEN: Final = Admission()
