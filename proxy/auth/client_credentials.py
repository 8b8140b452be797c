"""A token of our own from an authorization server, by client credentials: fetched, renewed, never stored.

Above: `own_credential`. Below: `sources`. RFC 6749, section 4.4; RFC 8707; contract section 8.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final
from urllib.parse import quote

import aiohttp
import anyio

from proxy.auth.sources import FETCH_TIMEOUT_S, SourceError, post_form
from proxy.clock import Clock, Pauses, Pulse
from proxy.errors import NoCredential
from proxy.logs import get_logger
from proxy.protocol.envelope import JsonError, check, loads

LIFETIME_S: Final = 300.0  # of a token of which nobody said how long it lives
RENEWED_AT: Final = 0.8  # of its life
PAUSE_S: Final = 2.0  # between two tokens, whatever the server says to them
REST_S: Final = 1.0  # after one was asked for in vain, whoever wants it
RETRY_FIRST_S: Final = 1.0  # after that, if nobody wants it
RETRY_LAST_S: Final = 60.0
RENEWAL_S: Final = PAUSE_S + FETCH_TIMEOUT_S + 1.0  # the longest that a request waits for another one
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
        self._is_refused = False
        self._is_resting = False
        self._waiting = 0
        self._waited_until = -inf
        self._fault = "it was not fetched yet"
        self._wanted = anyio.Event()
        self._tried = Pulse()

    def __repr__(self) -> str:
        return f"<ClientCredentials {'READY' if self.is_ready else 'NONE'}>"

    @property
    def is_ready(self) -> bool:
        """Whether there is one, and the server has not refused it last."""
        return self._has() and not self._is_refused

    def words(self) -> str:
        """For `/readyz`."""
        if self._has():
            return "refused by the server, and no other could be had" if self._is_refused else "ok"
        return "could not be had"

    def _has(self, *, other_than: str | None = None) -> bool:
        is_there = self._value is not None and self._clock.monotonic() < self._ends
        return is_there and self._value != other_than

    def authorization(self) -> str:
        """The header's value, be it that of one that was refused: the server may take it again. Raises
        NoCredential while there is none."""
        if self._value is None or not self._has():
            raise NoCredential(
                f"the proxy has no credential for the server (auth.upstream.token_url): {self._fault}"
            )
        return self._value

    async def another(self, refused: str | None) -> bool:
        """Whether there is another one than `refused`; than none at all, if that is None.

        One is asked for if need be, one at a time, and waited for, bounded; but not where that was in vain a
        moment ago.
        """
        if not self._has(other_than=refused) and not self._is_resting:
            tried = self._tried.event
            self._wanted.set()
            self._waiting += 1
            try:
                await self._clock.wait(tried, RENEWAL_S)
            finally:
                self._waiting -= 1
                self._waited_until = self._clock.monotonic()
        return self._has(other_than=refused)

    def held_up_within(self, seconds: float) -> bool:
        """Whether a request has waited for one in the last seconds."""
        return self._waiting > 0 or self._clock.monotonic() - self._waited_until < seconds

    async def wait_ready(self) -> None:
        """Until there is a token."""
        while not self.is_ready:
            await self._tried.event.wait()

    async def wait_tried(self) -> None:
        """Until one was asked for, in vain or not. To be called before anything ran."""
        await self._tried.event.wait()

    def answered(self, authorization: str, *, is_refused: bool) -> None:
        """The server does not take it: another one is fetched, soon. Or it does."""
        if authorization != self._value:
            return
        if is_refused:
            self._wanted.set()
            if not self._is_refused:
                log.warning("own_token_refused")
        self._is_refused = is_refused

    async def run(self) -> None:
        """Have a token at hand until cancelled."""
        pauses = Pauses(RETRY_FIRST_S, RETRY_LAST_S)
        while True:
            lifetime_s = await self._renew()
            self._wanted = anyio.Event()  # whoever wanted one has been served
            self._is_resting = lifetime_s is None
            self._tried.beat()
            if lifetime_s is None:
                await self._clock.sleep(REST_S)
                self._is_resting = False
                await pauses.one(self._clock, self._wanted)
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
        self._value, self._ends, self._is_refused = value, asked + lifetime_s, False
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
