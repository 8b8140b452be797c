"""Which call a server's question belongs to, where nothing on the wire says so: stdio, an HTTP GET stream.

PURE. Above: `upstream.pending` (sessions that modern clients share) and `routing.in_flight` (the server of
one legacy client), which each have a table of what is in flight. Contract section 2, "Which call does a
server-initiated request belong to?".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from proxy.protocol import names


class InFlight(Protocol):
    """A request that was sent to the server and not yet answered."""

    @property
    def method(self) -> str: ...

    @property
    def name(self) -> str | None:
        """The tool, prompt or resource, if it names one."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether it waits for the answer to a question already."""
        ...


Call = TypeVar("Call", bound=InFlight)


class AskingTools:
    """Tools known to ask their client: set `input: task`, or seen asking while alone in flight."""

    MAX_SEEN: Final = 1_000  # names come from clients' calls that the server accepted

    def __init__(self, is_set_to_ask: Callable[[str], bool]) -> None:
        self._is_set_to_ask = is_set_to_ask
        self._seen: set[str] = set()

    def saw(self, call: InFlight) -> None:
        if call.method == names.TOOLS_CALL and call.name is not None and len(self._seen) < self.MAX_SEEN:
            self._seen.add(call.name)

    def know(self, call: InFlight) -> bool:
        if call.method != names.TOOLS_CALL or call.name is None:
            return False
        return call.name in self._seen or self._is_set_to_ask(call.name)


def attribute(calls: Iterable[Call], asking: AskingTools) -> Call | None:
    """The one of `calls`, oldest first, that a question belongs to; None if none can carry it.

    One call that can carry input: that one. Several: of those known to ask and not waiting already the
    oldest; else the newest that is not waiting; and where all wait, the newest.
    """
    carrying = [c for c in calls if c.method in names.CARRIES_INPUT]
    if len(carrying) < 2:
        return carrying[0] if carrying else None
    idle = [c for c in carrying if not c.waiting]
    known = [c for c in idle if asking.know(c)]
    return known[0] if known else (idle or carrying)[-1]
