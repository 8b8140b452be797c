"""What the latest attempts to start or reach the server have shown, for `/readyz`.

Above: the pool, and whoever else starts sessions, tells it; `assembly` reports it. It says nothing that the
server said, its last words least of all: `/readyz` is open to everybody. Those stand in the log. Contract
sections 8 and 9; field report F41.
"""

from __future__ import annotations

from typing import Final

from proxy.clock import Clock
from proxy.errors import (
    NoCredential,
    ProxyError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)

FORGOTTEN_S: Final = 60.0  # longer than any back-off: while somebody tries, a fault is seen again by then
OK: Final = "ok"


class Health:
    """Of the server, as far as anybody has tried; nothing is tried for its sake. A `base.StartListener`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._fault: str | None = None
        self._seen = 0.0

    def works(self) -> None:
        """A session was started."""
        self._fault = None

    def failed(self, fault: ProxyError) -> None:
        """A session could not be started. 401 and 403 are a server at work, which wants another caller. Where
        we have no credential, nobody has asked it."""
        if isinstance(fault, NoCredential):
            return
        wants_another = isinstance(fault, UpstreamRefused) and fault.status is not None
        self._fault = None if wants_another else _words_for(fault)
        self._seen = self._clock.monotonic()

    def words(self) -> str:
        """OK, or what was wrong.

        A fault that nobody has met for long is forgotten: who is never ready gets no request that could show
        that the server is back.
        """
        if self._fault is None or self._clock.monotonic() - self._seen >= FORGOTTEN_S:
            return OK
        return self._fault

    def __repr__(self) -> str:
        return f"<Health {self.words()!r}>"


def _words_for(fault: ProxyError) -> str:
    match fault:
        case UpstreamRefused():
            return "refused the proxy's own credential"
        case UpstreamUnavailable():
            return "could not be started or reached"
        case UpstreamTimeout():
            return "did not answer in time when it was started"
        case UpstreamClosed():
            return "ended, or broke the connection, when it was started"
        case UpstreamProtocolError():
            return "did not speak the protocol when it was started"
        case UpstreamError():
            return "failed when it was started"
        case _:
            return "internal error of the proxy when it was started"
