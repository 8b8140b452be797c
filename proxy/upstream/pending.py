"""Which calls of ours are in flight in one session, and which of them a message belongs to.

Above: `session`, which calls, `inbox`, which brings what comes, and `questions`, which asks whose a
question is. Below: `eras.attribution`, the rule where the wire does not tell. Nothing in here waits or
sends. Contract section 2, "Which call does a server-initiated request belong to?".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import anyio

from proxy.eras.attribution import AskingTools, attribute
from proxy.errors import UpstreamError
from proxy.protocol import names
from proxy.protocol.jsonrpc import RequestId
from proxy.upstream.base import CallListener, Outcome, Question

__all__ = ["AskingTools", "PendingCall", "PendingTable"]


@dataclass(eq=False)
class PendingCall:
    """A request that was sent and not yet answered.

    `id` doubles as its progress token: both are ours, integers, and never used twice in a session.
    `questions` are those that it waits with for an answer. `upstream_task` is the upstream's own 2025 task
    that it waits for. `number` is higher than those of all calls that were in flight here before it, also
    of those that an earlier process sent.
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
    upstream_task: str | None = None
    begun: float = 0.0  # monotonic
    number: int = 0

    @property
    def carries_input(self) -> bool:
        return self.method in names.CARRIES_INPUT or self.upstream_task is not None

    @property
    def waiting(self) -> bool:
        return bool(self.questions)

    def result(self) -> Outcome:
        """How it ended, once it has `ended`; raises the UpstreamError that it was lost by."""
        if self.outcome is not None:
            return self.outcome
        assert self.loss is not None  # it has ended
        # One error is raised by every call of a lost session: it must not gather their frames.
        raise self.loss.with_traceback(None)

    def rises(self, progress: bytes) -> bool:
        """Whether this raw progress value goes on rising; others are not passed on (PROG-003)."""
        try:
            value = float(progress)
        except ValueError:
            return False
        if value <= self.progress:
            return False
        self.progress = value
        return True


class PendingTable:
    """The calls in flight in one session, oldest first. One that has ended is in it no more."""

    def __init__(self, ids: Iterator[int] | None = None) -> None:
        """`ids` are for its requests, which may share them with those of other sessions."""
        self._calls: dict[int, PendingCall] = {}
        self._ids = ids if ids is not None else itertools.count(1)
        self._newest = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[PendingCall]:
        return iter(list(self._calls.values()))

    def __contains__(self, call: PendingCall) -> bool:
        return call.id in self._calls

    def add(self, method: str, name: str | None, listener: CallListener) -> PendingCall:
        return self._put(PendingCall(next(self._ids), method, name, listener))

    def new_id(self) -> int:
        """For a request whose answer nobody waits for."""
        return next(self._ids)

    def restore(self, id: int, method: str, name: str | None, listener: CallListener) -> PendingCall:
        """A call that an earlier process sent under this id."""
        return self._put(PendingCall(id, method, name, listener))

    def _put(self, call: PendingCall) -> PendingCall:
        self._newest += 1
        call.number = self._newest
        self._calls[call.id] = call
        return call

    def remove(self, call: PendingCall) -> None:
        """Nobody waits for it any more; what comes for it later is dropped."""
        self._calls.pop(call.id, None)

    def settle(self, call: PendingCall, outcome: Outcome) -> None:
        self.remove(call)
        call.outcome = outcome
        call.ended.set()

    def lose(self, call: PendingCall, loss: UpstreamError) -> None:
        self.remove(call)
        call.loss = loss
        call.ended.set()

    def lose_all(self, loss: UpstreamError) -> None:
        for call in list(self._calls.values()):
            self.lose(call, loss)

    def get(self, call_id: int | None) -> PendingCall | None:
        return None if call_id is None else self._calls.get(call_id)

    def of_task(self, task_id: str | None) -> PendingCall | None:
        """The call that waits for this task of the upstream's."""
        if task_id is None:
            return None
        return next((call for call in self._calls.values() if call.upstream_task == task_id), None)

    def answered_by(self, rid: RequestId | None) -> PendingCall | None:
        """The call that a response with this id answers."""
        return self.get(rid.number if rid is not None else None)

    def alone(self) -> PendingCall | None:
        """The call that is alone in flight, if one is. A listen stream is none: nothing but what it asked for
        belongs to it (SUB-009)."""
        calls = [c for c in self._calls.values() if c.method != names.SUBSCRIPTIONS_LISTEN]
        return calls[0] if len(calls) == 1 else None

    @property
    def newest(self) -> int:
        """The number of the call that was begun last, still in flight or not."""
        return self._newest

    def lone_carrier(self) -> PendingCall | None:
        """The one call in flight that can carry input, if there is just one."""
        carrying = [c for c in self._calls.values() if c.carries_input]
        return carrying[0] if len(carrying) == 1 else None

    def attribute(self, asking: AskingTools, up_to: float = float("inf")) -> PendingCall | None:
        """The call that a question belongs to where nothing on the wire says so; None if none can carry it.

        Not one with a number above `up_to`: what was sent after the question came did not ask it.
        """
        return attribute((c for c in self._calls.values() if c.number <= up_to), asking)
