"""Which calls of ours are in flight in one session, and which of them a message belongs to.

Above: `session`, which does what is decided here. Nothing in here waits or sends. Contract section 2,
"Which call does a server-initiated request belong to?".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import anyio

from proxy.errors import UpstreamError
from proxy.protocol import names
from proxy.protocol.envelope import RawObject, loads
from proxy.protocol.jsonrpc import RequestId
from proxy.upstream.base import CallListener, Outcome, Question


@dataclass(eq=False)
class PendingCall:
    """A request that was sent and not yet answered.

    `id` doubles as its progress token: both are ours, integers, and never used twice in a session.
    """

    id: int
    method: str
    name: str | None
    listener: CallListener
    questions: list[Question] = field(default_factory=list)
    ended: anyio.Event = field(default_factory=anyio.Event)
    outcome: Outcome | None = None
    loss: UpstreamError | None = None
    progress: float = float("-inf")

    @property
    def carries_input(self) -> bool:
        return self.method in names.CARRIES_INPUT

    @property
    def waiting(self) -> bool:
        return bool(self.questions)

    def settle(self, outcome: Outcome) -> None:
        if not self.ended.is_set():
            self.outcome = outcome
            self.ended.set()

    def lose(self, loss: UpstreamError) -> None:
        if not self.ended.is_set():
            self.loss = loss
            self.ended.set()

    def rises(self, params: bytes) -> bool:
        """Whether a progress notification goes on rising; the others are not passed on (PROG-003)."""
        raw = RawObject.parse(params).get("progress")
        value = loads(raw) if raw is not None else None
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= self.progress:
            return False
        self.progress = float(value)
        return True


class AskingTools:
    """Tools known to ask their client: set `input: task`, or seen asking while alone in flight."""

    MAX_SEEN: Final = 1_000  # names come from clients' calls that the server accepted

    def __init__(self, is_set_to_ask: Callable[[str], bool]) -> None:
        self._is_set_to_ask = is_set_to_ask
        self._seen: set[str] = set()

    def saw(self, call: PendingCall) -> None:
        if call.name is not None and len(self._seen) < self.MAX_SEEN:
            self._seen.add(call.name)

    def __contains__(self, name: str | None) -> bool:
        return name is not None and (name in self._seen or self._is_set_to_ask(name))


class PendingTable:
    """The calls in flight in one session, oldest first."""

    def __init__(self, asking: AskingTools) -> None:
        self._asking = asking
        self._calls: dict[int, PendingCall] = {}
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        return len(self._calls)

    def new_id(self) -> int:
        return next(self._ids)

    def add(self, method: str, name: str | None, listener: CallListener) -> PendingCall:
        call = PendingCall(self.new_id(), method, name, listener)
        self._calls[call.id] = call
        return call

    def remove(self, call: PendingCall) -> None:
        self._calls.pop(call.id, None)

    def get(self, call_id: int | None) -> PendingCall | None:
        return None if call_id is None else self._calls.get(call_id)

    def answered_by(self, rid: RequestId | None) -> PendingCall | None:
        """The call that a response with this id answers.

        Some servers answer `"7"` to 7; a string of digits of an open id is taken for it (F17).
        """
        if rid is None:
            return None
        value = rid.value
        if isinstance(value, str):
            if not (value.isascii() and value.isdigit() and len(value) < 19):
                return None
            value = int(value)
        return self._calls.get(value)

    def all(self) -> list[PendingCall]:
        return list(self._calls.values())

    def alone(self) -> PendingCall | None:
        """The call that is alone in flight, if one is."""
        return next(iter(self._calls.values())) if len(self._calls) == 1 else None

    def attribute(self) -> PendingCall | None:
        """The call that a question belongs to where nothing on the wire says so; None if none can carry it.

        One call that can carry input: that one. Several: of those known to ask and not waiting already the
        oldest; else the newest that is not waiting; and where all wait, the newest.
        """
        carrying = [c for c in self._calls.values() if c.carries_input and not c.ended.is_set()]
        if len(carrying) == 1:
            if len(self._calls) == 1:
                self._asking.saw(carrying[0])
            return carrying[0]
        idle = [c for c in carrying if not c.waiting]
        known = [c for c in idle if c.name in self._asking]
        if known:
            return known[0]
        choice = idle or carrying
        return choice[-1] if choice else None
