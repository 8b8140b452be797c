"""Who may talk to us at all: Host, Origin, and the CORS headers that browsers need.

Pure decisions; `http` acts on them. Contract sections 6 and 8; Streamable HTTP 2026-07-28, "Security &
Endpoint".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from proxy.errors import AccessDenied
from proxy.protocol import names

EXPOSED: Final = ", ".join((names.H_SESSION_ID, "WWW-Authenticate", names.H_PROTOCOL_VERSION, "Retry-After"))
ALLOWED_METHODS: Final = "GET, POST, DELETE"
PREFLIGHT_MAX_AGE_S: Final = 600
_NAMES_KEPT: Final = 256  # clients come by few names, with every request; who tries many gets no memory
_ORIGIN: Final = re.compile(r"https?://(?P<host>[!-.0-~]+)\Z")  # visible ASCII, no slash: it is echoed
_PORT: Final = re.compile(r":[0-9]*\Z")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+\Z")
_STANDARD_HEADERS: Final = (
    "authorization",
    "content-type",
    "accept",
    names.H_PROTOCOL_VERSION.lower(),
    names.H_SESSION_ID.lower(),
    names.H_LAST_EVENT_ID.lower(),
    names.H_METHOD.lower(),
    names.H_NAME.lower(),
)


@dataclass(frozen=True, slots=True)
class Guard:
    """Host is checked where the bind is loopback or hosts are allowed by name; without a port: at any."""

    is_loopback: bool
    allowed_hosts: frozenset[str]
    allowed_origins: frozenset[str]

    def check(self, host: str | None, origins: Sequence[str]) -> None:
        """Raise AccessDenied (403) unless both may pass. No Origin is no browser, and passes; of two nobody
        could say which one the server behind us, or a cache, would go by."""
        if (self.is_loopback or self.allowed_hosts) and not self._allows_host((host or "").lower()):
            raise AccessDenied(f"Host {host!r} is not allowed here (allowed_hosts)")
        if origins and not self.allows(origins):
            shown = " and ".join(map(repr, origins))
            raise AccessDenied(f"Origin {shown} is not allowed here (allowed_origins)")

    def _allows_host(self, host: str) -> bool:
        if self.is_loopback and _is_loopback(host):
            return True
        return host in self.allowed_hosts or _without_port(host) in self.allowed_hosts

    def allows(self, origins: Sequence[str]) -> bool:
        """Whether these values of `Origin` are one, and may pass."""
        return len(origins) == 1 and self.allows_origin(origins[0])

    def allows_origin(self, origin: str) -> bool:
        if origin in self.allowed_origins:
            return True
        match = _ORIGIN.match(origin.lower())
        return self.is_loopback and match is not None and _is_loopback(match["host"])

    def cors_headers(self, origins: Sequence[str]) -> list[tuple[str, str]]:
        """For every response to a browser page that may talk to us, errors included."""
        if not self.allows(origins):
            return []
        return [
            ("Access-Control-Allow-Origin", origins[0]),
            ("Access-Control-Expose-Headers", EXPOSED),
            ("Vary", "Origin"),
        ]

    def preflight_headers(self, requested: str) -> list[tuple[str, str]]:
        """`requested` is Access-Control-Request-Headers; MCP's own and any `Mcp-Param-*` are allowed."""
        prefix = names.H_PARAM_PREFIX.lower()
        params = [h for h in _words(requested) if h.startswith(prefix) and _TOKEN.match(h)]
        return [
            ("Access-Control-Allow-Methods", ALLOWED_METHODS),
            ("Access-Control-Allow-Headers", ", ".join([*_STANDARD_HEADERS, *params])),
            ("Access-Control-Max-Age", str(PREFLIGHT_MAX_AGE_S)),
        ]


ANYBODY: Final = Guard(is_loopback=False, allowed_hosts=frozenset(), allowed_origins=frozenset())


def _words(header: str) -> Iterable[str]:
    return filter(None, (word.strip().lower() for word in header.split(",")))


def _without_port(host: str) -> str:
    return _PORT.sub("", host)


@lru_cache(maxsize=_NAMES_KEPT)
def _is_loopback(host: str) -> bool:
    """`host` as in a Host header, in lower case, with or without a port."""
    name = _without_port(host)
    if name == "localhost":
        return True
    try:
        return ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
