"""One call on its way: what the upstream has said of it so far, and who is told.

Above: `conversion` (rounds of the client) and `runner` (the task, once there is one) watch it. Below: the
upstream session tells it, as its `CallListener`. It belongs to the runner's task group, never to a
request of the client; so a client that goes away takes nothing with it but its own watching.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from proxy.clock import Pulse
from proxy.eras.capabilities import Missing
from proxy.eras.to_modern import lift_question
from proxy.errors import ProxyError
from proxy.protocol import names
from proxy.protocol.envelope import JsonError, RawObject, loads
from proxy.routing.base import ClientRequest
from proxy.tasks.policy import ToolPolicy
from proxy.tasks.task import InputRequest
from proxy.upstream.base import Outcome, Question
from proxy.upstream.session import LegacySession


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question of the upstream under the key that the client sees."""

    question: Question
    request: InputRequest


START_GRACE_S: Final = 10.0  # a server that takes longer to start shows as a task that waits

SessionCheck = Callable[[ClientRequest, LegacySession], Awaitable[None]]
"""Raises ProxyError where the session's server cannot be asked this."""

NotificationListener = Callable[[str, bytes | None], None]


@dataclass(eq=False)
class LiveCall:
    """The state of one call. Changed only between awaits.

    `changed` beats at every change, `turned` only when the call ends or begins or stops to wait for input.

    `questions` holds what is open, by key, in the order asked. A call has ended when `ended`: with an
    `outcome`, or with a `loss`, or because we `stopped` it.
    """

    request: ClientRequest
    name: str
    policy: ToolPolicy
    want_progress: bool
    check: SessionCheck
    questions: dict[str, OpenQuestion] = field(default_factory=dict)
    outcome: Outcome | None = None
    loss: ProxyError | None = None
    stopped: str | None = None
    limit_passed: bool = False
    missing: Missing | None = None
    server_info: bytes | None = None
    progress_text: str | None = None
    starting: bool = False
    sent_at: float | None = None
    started: bool = False
    is_task: bool = False
    next_key: int = 1
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _listeners: list[NotificationListener] = field(default_factory=list)
    changed: Pulse = field(default_factory=Pulse)
    turned: Pulse = field(default_factory=Pulse)

    @property
    def ended(self) -> bool:
        return self.outcome is not None or self.loss is not None or self.stopped is not None

    def wait_for_start(self) -> None:
        """A process or session is being started for the call (and maybe for others)."""
        self.starting = True
        self.changed.beat()

    def got_session(self, server_info: bytes | None, now: float) -> None:
        """A session is ours; the call is about to be sent. `now` is monotonic."""
        self.sent_at = now
        self.server_info = server_info
        self.changed.beat()

    def on_the_clock_since(self, arrival: float) -> float:
        """When the threshold of a client's request that came at `arrival` (monotonic) begins to count.

        From its arrival, also while it waits for a free process (contract section 2). Only the start of a
        new process does not count, up to START_GRACE_S: else the first call of each client would become a
        task, however fast its tool.
        """
        if self.sent_at is not None:
            return max(arrival, min(self.sent_at, arrival + START_GRACE_S)) if self.starting else arrival
        return arrival + START_GRACE_S if self.starting else arrival

    def settle(self, outcome: Outcome) -> None:
        self._end(outcome=outcome)

    def lose(self, loss: ProxyError) -> None:
        self._end(loss=loss)

    def stop(self, reason: str) -> None:
        """Nobody wants the answer any more: the upstream is told, and not waited for."""
        self._end(stopped=reason)
        self.scope.cancel()

    def pass_limit(self, loss: ProxyError) -> None:
        """A bound of ours is over."""
        if not self.ended:
            self.limit_passed = True
            self._end(loss=loss)
            self.scope.cancel()

    def _end(
        self, *, outcome: Outcome | None = None, loss: ProxyError | None = None, stopped: str | None = None
    ) -> None:
        """The first end stays."""
        if not self.ended:
            self.outcome, self.loss, self.stopped = outcome, loss, stopped
            self.questions.clear()
            self._turn()

    # -- who watches --------------------------------------------------------------------------------

    def _turn(self) -> None:
        self.turned.beat()
        self.changed.beat()

    def listen(self, listener: NotificationListener) -> None:
        self._listeners.append(listener)

    def unlisten(self, listener: NotificationListener) -> None:
        self._listeners.remove(listener)

    # -- what the upstream tells (upstream.base.CallListener) -------------------------------------------

    def on_notification(self, method: str, params: bytes | None) -> None:
        if method == names.PROGRESS and params is not None:
            self.progress_text = progress_text(params) or self.progress_text
            if self.is_task:
                self.changed.beat()
        for listener in self._listeners:
            listener(method, params)

    def on_question(self, question: Question) -> None:
        missing = self.request.capabilities.missing_for(question.method, question.params)
        if missing is not None:
            question.refuse(missing.refusal(question.method))
            if not self.is_task:  # within a task the tool goes on (contract section 4)
                self.missing = missing
                self._turn()
        elif not self.ended:
            self.ask(question)

    def ask(self, question: Question) -> None:
        """Give the question a key that was never used in this call's life."""
        key = f"input-{self.next_key}"
        self.next_key += 1
        params = lift_question(question.method, question.params)
        request = InputRequest(key, question.method, params, question.id.raw)
        self.questions[key] = OpenQuestion(question, request)
        self._turn()

    def on_withdrawn(self, question: Question) -> None:
        for key, open_question in list(self.questions.items()):
            if open_question.question is question:
                del self.questions[key]
        self._turn()

    def take(self, key: str) -> Question | None:
        """Close the question under `key` because an answer to it was accepted; None if it is not open."""
        open_question = self.questions.pop(key, None)
        self._turn()
        return None if open_question is None else open_question.question


def progress_text(params: bytes) -> str | None:
    """Progress in words: "3/10 rows copied". None if there is nothing to tell.

    Numbers keep the upstream's spelling.
    """
    try:
        obj = RawObject.parse(params)
        done, total = _number(obj.get("progress")), _number(obj.get("total"))
        message = obj.text("message")
    except (JsonError, ValueError):
        return None
    amount = f"{done}/{total}" if done and total else done
    return " ".join(part for part in (amount, message) if part) or None


def _number(raw: bytes | None) -> str | None:
    if raw is None or len(raw) > 40:
        return None
    value: Any = loads(raw)
    return raw.decode() if isinstance(value, int | float) and not isinstance(value, bool) else None
