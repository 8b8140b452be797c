"""A place in the pool: one session, who uses it, and who waits for one.

Above: the pool, which owns all of it and changes it between awaits. Below: `session`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from proxy.eras.capabilities import ClientCapabilities
from proxy.errors import ProxyError, UpstreamClosed
from proxy.metrics import SessionEnd
from proxy.owners import Owner
from proxy.upstream.session import LegacySession


@dataclass(frozen=True, slots=True)
class Key:
    """What sessions are kept apart by. Tasks are between the client and us: they make no other session."""

    owner: Owner
    capabilities: ClientCapabilities

    @classmethod
    def of(cls, owner: Owner, capabilities: ClientCapabilities) -> Key:
        return cls(owner, ClientCapabilities(capabilities.offered, tasks=False))


@dataclass(eq=False)
class Slot:
    """One session and who uses it. `holds` keep it alive, `calls` fill its capacity.

    It is in the pool's list until nothing of the session is left. `ready` is set when it was started, and
    also when it could not be: then `error` says why.
    """

    key: Key
    session: LegacySession
    ready: anyio.Event = field(default_factory=anyio.Event)
    unwanted: anyio.Event = field(default_factory=anyio.Event)
    error: ProxyError | None = None
    holds: int = 0
    calls: int = 0
    idle_since: float = 0.0

    def end(self) -> None:
        """We no longer want it; that is no failure."""
        self.unwanted.set()
        self.session.close()

    def how_it_ended(self) -> SessionEnd:
        """To be asked before `ready` is set for those that could not be started."""
        if not self.ready.is_set():
            return SessionEnd.NOT_STARTED
        lost = self.session.loss is not None and not self.unwanted.is_set()
        return SessionEnd.LOST if lost else SessionEnd.CLOSED

    @property
    def usable(self) -> bool:
        """Whether new calls may go here, or wait for its start."""
        return self.session.is_alive or not self.ready.is_set()

    @property
    def idle(self) -> bool:
        return self.ready.is_set() and self.session.is_alive and self.holds == 0

    @property
    def leaving(self) -> bool:
        """Whether it will be off the list soon."""
        return not self.usable and self.holds == 0

    @property
    def fault(self) -> ProxyError | None:
        """Why those who waited for the start cannot have the session."""
        if self.error is None and not self.session.is_alive:
            return self.session.loss or UpstreamClosed("the upstream session ended right after its start")
        return self.error


@dataclass(eq=False, slots=True)
class Waiter:
    """Somebody who waits for a place. When `told`, `slot` is held for it, or `error` is set."""

    key: Key
    for_call: bool
    slot: Slot | None = None
    error: ProxyError | None = None
    told: anyio.Event = field(default_factory=anyio.Event)
