"""Who is let in, and whose a request is, where clients are authenticated here.

Above: `downstream.http`, before it reads a body. Below: `tokens`, or the word of a gateway that is trusted.
Authorization 2026-07-28; contract section 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, Protocol

from multidict import MultiMapping

from proxy.auth.challenges import Challenger
from proxy.auth.tokens import TokenRefused, TokenVerifier
from proxy.errors import Unauthorized
from proxy.logs import get_logger
from proxy.owners import Owner, owner_by_name

MAX_NAME_CHARS: Final = 1_024

log = get_logger()


class Gate(Protocol):
    """Asked for every HTTP request (AUTH-003)."""

    async def admit(self, headers: MultiMapping[str], peer: str | None) -> Owner:
        """Whose request it is. `peer` is the address of whoever holds the other end of the connection.

        Raises Unauthorized, or LimitReached (503) while that cannot be found out.
        """
        ...


class TokenGate:
    """Bearer tokens that are verified here."""

    def __init__(self, verifier: TokenVerifier, challenger: Challenger) -> None:
        self._verifier = verifier
        self._challenger = challenger

    async def admit(self, headers: MultiMapping[str], peer: str | None) -> Owner:
        """See `Gate`."""
        given = headers.getall("Authorization", ())
        scheme, _, token = given[0].strip().partition(" ") if given else ("", "", "")
        if scheme.lower() != "bearer":
            raise self._unauthorized("missing", "a Bearer token is needed", None)
        if len(given) > 1:
            raise self._unauthorized("malformed", "there is more than one", "invalid_token")
        try:
            return await self._verifier.owner_of(token.strip())
        except TokenRefused as exc:
            raise self._unauthorized(exc.reason, exc.message, "invalid_token") from exc

    def _unauthorized(self, reason: str, words: str, error: str | None) -> Unauthorized:
        log.info("token_denied", reason=reason)
        message = words if error is None else f"the access token is not good: {words}"
        challenge = self._challenger.challenge(error, f"The access token is not good: {words}")
        return Unauthorized(message, reason=reason, challenges=(challenge,))


class GatewayGate:
    """A gateway names the user in a header. Nobody else is listened to, with the header or without. Two lines
    are two users, and so is a comma, which is how some write two lines as one: one of them is then a client's
    own word."""

    def __init__(self, header: str, trusted: Sequence[str], secret: bytes) -> None:
        self._header = header
        self._trusted = tuple(ip_network(network) for network in trusted)
        self._secret = secret

    async def admit(self, headers: MultiMapping[str], peer: str | None) -> Owner:
        """See `Gate`."""
        if not self._is_trusted(peer):
            raise _forbidden("untrusted_peer", "requests are taken from the gateway alone (auth.gateway)")
        names = headers.getall(self._header, ())
        if len(names) != 1 or not 0 < len(names[0].strip()) <= MAX_NAME_CHARS or "," in names[0]:
            raise _forbidden("no_user", "the gateway has named no user, or several (auth.gateway)")
        return owner_by_name(self._secret, f"header {self._header.lower()}", names[0].strip())

    def _is_trusted(self, peer: str | None) -> bool:
        try:
            address = ip_address((peer or "").partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._trusted)


def _forbidden(reason: str, words: str) -> Unauthorized:
    log.info("gateway_denied", reason=reason)
    return Unauthorized(words, reason=reason, status=HTTPStatus.FORBIDDEN)
