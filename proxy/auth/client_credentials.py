"""A token of our own from an authorization server, by client credentials: fetched, renewed, never stored.

Above: `own_credential`. Below: `sources`. RFC 6749, section 4.4; RFC 8707; contract section 8.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import aiohttp
import anyio

from proxy.auth.sources import SourceError, post_form
from proxy.clock import Clock, Pauses, Pulse
from proxy.errors import UpstreamUnavailable
from proxy.logs import get_logger
from proxy.protocol.envelope import JsonError, check, loads

LIFETIME_S: Final = 300.0  # of a token of which nobody said how long it lives
RENEWED_AT: Final = 0.8  # of its life
PAUSE_S: Final = 2.0  # between two tokens, whatever the server says to them
RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 60.0
_MAX_DEPTH: Final = 16
_TOKEN: Final = re.compile(r"[\x21-\x7e]+\Z")

log = get_logger()


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """`in_form`: the client authenticates in the form, not by a header."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scopes: Sequence[str]
    resource: str
    in_form: bool


class ClientCredentials:
    """`run` must be running."""

    def __init__(self, settings: ClientSettings, client: aiohttp.ClientSession, clock: Clock) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._value: str | None = None
        self._ends = 0.0
        self._fault = "it was not fetched yet"
        self._wanted = anyio.Event()
        self._tried = Pulse()

    def __repr__(self) -> str:
        return f"<ClientCredentials {'READY' if self.is_ready else 'NONE'}>"

    @property
    def is_ready(self) -> bool:
        return self._value is not None and self._clock.monotonic() < self._ends

    def authorization(self) -> str:
        """The header's value. Raises UpstreamUnavailable while there is none."""
        if self._value is None or not self.is_ready:
            raise UpstreamUnavailable(
                f"the proxy has no credential for the server (auth.upstream.token_url): {self._fault}"
            )
        return self._value

    async def wait_ready(self) -> None:
        """Until there is a token."""
        while not self.is_ready:
            await self._tried.event.wait()

    async def wait_tried(self) -> None:
        """Until one was asked for, in vain or not. To be called before anything ran."""
        await self._tried.event.wait()

    def refused(self, authorization: str) -> None:
        """The server does not take it: another one is fetched, soon."""
        if authorization == self._value:
            self._wanted.set()

    async def run(self) -> None:
        """Have a token at hand until cancelled."""
        pauses = Pauses(RETRY_FIRST_S, RETRY_LAST_S)
        while True:
            self._wanted = anyio.Event()
            lifetime_s = await self._renew()
            self._tried.beat()
            if lifetime_s is None:
                await pauses.one(self._clock)
                continue
            pauses.over()
            await self._clock.sleep(min(PAUSE_S, lifetime_s * RENEWED_AT))
            await self._clock.wait(self._wanted, max(0.0, lifetime_s * RENEWED_AT - PAUSE_S))

    async def _renew(self) -> float | None:
        """How long the new one lives; None if there is no new one."""
        asked = self._clock.monotonic()
        try:
            value, lifetime_s = _token_in(await self._ask())
        except (SourceError, JsonError) as exc:
            self._fault = str(exc)
            log.warning("own_token_not_fetched", reason=self._fault)
            return None
        self._value, self._ends = value, asked + lifetime_s
        log.info("own_token_fetched", lifetime_s=round(lifetime_s))
        return lifetime_s

    async def _ask(self) -> bytes:
        settings = self._settings
        form = {"grant_type": "client_credentials", "resource": settings.resource}
        if settings.scopes:
            form["scope"] = " ".join(settings.scopes)
        if settings.in_form:
            form |= {"client_id": settings.client_id, "client_secret": settings.client_secret}
            return await post_form(self._client, settings.token_url, form, {})
        pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
        basic = base64.b64encode(pair.encode()).decode("ascii")
        return await post_form(self._client, settings.token_url, form, {"Authorization": f"Basic {basic}"})


def _token_in(answer: bytes) -> tuple[str, float]:
    """The header's value, and how long it is good for. Raises JsonError."""
    check(answer, _MAX_DEPTH)
    said = loads(answer)
    if not isinstance(said, dict):
        raise JsonError("the answer is no JSON object")
    token, kind, lifetime = said.get("access_token"), said.get("token_type"), said.get("expires_in")
    if not isinstance(token, str) or not _TOKEN.match(token):
        raise JsonError("the answer has no access_token that a header can carry")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise JsonError("the token is no Bearer token")
    if isinstance(lifetime, int | float) and not isinstance(lifetime, bool) and lifetime > 0:
        return f"Bearer {token}", float(min(lifetime, 86_400))
    return f"Bearer {token}", LIFETIME_S
