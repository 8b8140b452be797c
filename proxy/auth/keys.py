"""The public keys of an issuer: fetched, kept, fetched anew when a token names one that is not known.

Above: `tokens`. Below: joserfc, and whatever brings a key set (`sources`). Keys that were had stay in use
while the issuer is away. RFC 7517; contract section 8.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Final

import anyio
from joserfc.errors import SecurityWarning
from joserfc.jwk import JWKRegistry, Key

from proxy.auth.sources import SourceError
from proxy.clock import Clock, Pulse
from proxy.errors import LimitReached
from proxy.logs import get_logger
from proxy.protocol.envelope import JsonError, check, loads

MAX_AGE_S: Final = 600.0  # a key that the issuer has withdrawn is used no longer than this
PAUSE_S: Final = 2.0  # between two fetches: whoever makes up key ids must not have us ask for each
WAIT_S: Final = 10.0  # for the keys, while a client waits
MAX_WAITING: Final = 100
MAX_KEYS: Final = 64
MAX_DEPTH: Final = 16

_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""By the first letters of the algorithm."""

Load = Callable[[], Awaitable[bytes]]
"""Brings the key set. Raises SourceError."""

log = get_logger()


class Keys:
    """Those of one issuer. `run` must be running."""

    def __init__(self, load: Load, clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._text: bytes | None = None
        self._keys: Sequence[Key] = ()
        self._wanted = anyio.Event()
        self._tried = Pulse()
        self._waiting = 0
        self._fetching = False
        self.generation = 0
        """Counts the sets that there were: what an earlier one has proved may be proved no longer."""

    def __repr__(self) -> str:
        return f"<Keys {len(self._keys)}, generation {self.generation}>"

    @property
    def are_there(self) -> bool:
        """Whether they could ever be had."""
        return self._text is not None

    async def run(self) -> None:
        """Fetch the keys, now and then, and when one is wanted that is not there."""
        while True:
            self._wanted = anyio.Event()
            self._fetching = True
            await self._fetch()
            self._fetching = False
            self._tried.beat()
            await self._clock.sleep(PAUSE_S)
            await self._clock.wait(self._wanted, MAX_AGE_S - PAUSE_S)

    async def find(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """The keys that may have signed, none if the issuer has no such key.

        Raises LimitReached (503) while there are no keys at all.
        """
        found = self._fitting(kid, algorithm)
        if not found and self._waiting < MAX_WAITING:
            self._waiting += 1
            try:
                found = await self._wait_for(kid, algorithm)
            finally:
                self._waiting -= 1
        if self._text is None:
            raise LimitReached(
                "the keys that tokens are verified with could not be had",
                retry_after_s=int(PAUSE_S),
                status=HTTPStatus.SERVICE_UNAVAILABLE,
            )
        return found

    async def _wait_for(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """A fetch that is under way may have begun before the key was there; then one more is waited for."""
        self._wanted.set()
        until = self._clock.monotonic() + WAIT_S
        for _ in range(2 if self._fetching else 1):
            if not await self._clock.wait(self._tried.event, max(0.0, until - self._clock.monotonic())):
                break
            if found := self._fitting(kid, algorithm):
                return found
        return ()

    def _fitting(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """A token that names no key may be of any."""
        kind = _KEY_TYPES[algorithm[:2]]
        return [
            key
            for key in self._keys
            if key.key_type == kind and key.alg in (None, algorithm) and kid in (None, key.kid)
        ]

    async def _fetch(self) -> None:
        try:
            text = await self._load()
            keys = keys_in(text) if text != self._text else self._keys
        except (SourceError, JsonError) as exc:
            log.warning("issuer_keys_not_fetched", reason=str(exc), kept=len(self._keys))
            return
        if text != self._text:
            self._text, self._keys = text, keys
            self.generation += 1
            log.info("issuer_keys_fetched", keys=len(keys))


def keys_in(text: bytes) -> Sequence[Key]:
    """The keys of a set that can verify; others are left out (RFC 7517, section 5). Raises JsonError."""
    check(text, MAX_DEPTH)
    given = loads(text)
    found = given.get("keys") if isinstance(given, dict) else None
    if not isinstance(found, list):
        raise JsonError("no key set: it has no list of keys")
    keys = (_key(one) for one in found[:MAX_KEYS])
    return [key for key in keys if key is not None]


def _key(given: Any) -> Key | None:
    """None for what is no public key for signatures, and for one that is too weak."""
    if not isinstance(given, dict) or given.get("kty") not in _KEY_TYPES.values():
        return None
    if given.get("use", "sig") != "sig":
        return None
    public = {name: value for name, value in given.items() if name in _PUBLIC}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SecurityWarning)
            return JWKRegistry.import_key(public)
    except Exception as exc:  # noqa: BLE001 - whatever a library stumbles over keeps no other key from use
        log.warning("issuer_key_not_usable", reason=type(exc).__name__)
        return None


_PUBLIC: Final = frozenset({"kty", "kid", "alg", "n", "e", "crv", "x", "y"})
