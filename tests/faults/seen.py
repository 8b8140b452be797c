"""What clients were told of one call and of its task, judged as it comes by what they were told before."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from proxy.errors import ErrorCode
from tests.faults.plan import CallPlan
from tests.faults.violation import Violation, What
from tests.real.modern_client import TERMINAL, Answer
from tests.real.upstreams.raw_json import value

_STATUSES: Final = TERMINAL | {"working", "input_required"}
_FIXED: Final = ("taskId", "createdAt")


@dataclass(slots=True, eq=False)
class TaskSeen:
    """A task whose id was answered. Times are monotonic but for those that the proxy tells.

    `first` is the handle, `last` what was read last. `ended` is the first response that showed it at its end,
    as it was on the wire: so must be all later ones. `answered` and `cancelled_at`: when keys, or a cancel,
    were acknowledged.
    """

    id: str
    plan: CallPlan
    retention_s: float
    told_at: float
    first: dict[str, Any]
    last: dict[str, Any] = field(default_factory=dict)
    ended: bytes | None = None
    ended_at: float | None = None
    gone: bool = False
    cancelled_at: float | None = None
    answered: dict[str, float] = field(default_factory=dict)
    refusals: list[tuple[float, str]] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    _read_at: float = 0.0
    _told_ended: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._read_at = self.told_at
        self.last = self.last or self.first

    @property
    def over(self) -> bool:
        return self.ended is not None or self.gone

    @property
    def questions(self) -> dict[str, Any]:
        """What is open, as last read."""
        found: dict[str, Any] = self.last.get("inputRequests") or {}
        return found

    def read(self, answer: Answer, now: float, wall_ms: float) -> None:
        """A `tasks/get` was answered, at `now`."""
        message = answer.message
        if (error := message.get("error")) is not None:
            self._refused(error, now, wall_ms)
        elif not isinstance(result := message.get("result"), dict):
            self._complain(What.MALFORMED, f"{answer.status} {answer.raw[:300]!r}")
        elif self.gone:
            self._complain(What.CAME_BACK, f"read again: {answer.raw[:300]!r}")
        else:
            self._read_at = now
            if result.get("status") in TERMINAL:
                self._read_ended(answer.raw, now)
            self._shown(result)

    def notified(self, params: dict[str, Any]) -> None:
        """A `notifications/tasks` came: the same, without the shell of a result."""
        shown = {key: member for key, member in params.items() if key != "_meta"}
        if shown.get("status") in TERMINAL:
            self._told_ended = shown
            self._compare_told()
        if shown.get("status") not in _STATUSES:
            self._complain(What.MALFORMED, f"notified {params!r}")

    def as_of(self, moment: float) -> TaskSeen:
        """What was known of it at that moment, for another to go on reading."""
        known = replace(self, refusals=[], violations=[], answered={}, last=self.first)
        known.answered = {key: at for key, at in self.answered.items() if at <= moment}
        if self.ended_at is None or self.ended_at > moment:
            known.ended, known.ended_at, known._told_ended = None, None, None
        if self.cancelled_at is not None and self.cancelled_at > moment:
            known.cancelled_at = None
        return known

    def _read_ended(self, raw: bytes, now: float) -> None:
        if self.ended is None:
            self.ended, self.ended_at = raw, now
            self._compare_told()
        elif raw != self.ended:
            self._complain(What.CHANGED, f"first {self.ended[:600]!r}, then {raw[:600]!r}")

    def _compare_told(self) -> None:
        if self.ended is None or self._told_ended is None:
            return
        read = {
            key: member for key, member in json.loads(self.ended)["result"].items() if key != "resultType"
        }
        if read != self._told_ended:
            self._complain(What.CHANGED, f"read as {str(read)[:600]}, told as {str(self._told_ended)[:600]}")

    def _shown(self, shown: dict[str, Any]) -> None:
        """Held against what was shown before; reads of one task follow each other."""
        if shown.get("status") not in _STATUSES or bool(shown.get("inputRequests")) != (
            shown["status"] == "input_required"
        ):
            self._complain(What.MALFORMED, f"shown as {str(shown)[:300]}")
        if self.ended is not None and shown["status"] not in TERMINAL:
            self._complain(What.CHANGED, f"{shown['status']} after {self.ended[:300]!r}")
        for name in _FIXED:
            if shown.get(name) != self.last.get(name):
                self._complain(What.MOVED_BACK, f"{name} was {self.last.get(name)}, is {shown.get(name)}")
        if shown["lastUpdatedAt"] < self.last["lastUpdatedAt"]:
            before, after = self.last["lastUpdatedAt"], shown["lastUpdatedAt"]
            self._complain(What.MOVED_BACK, f"lastUpdatedAt was {before}, is {after} ({shown['status']})")
        if again := self.answered.keys() & (shown.get("inputRequests") or {}).keys():
            self._complain(What.KEY_SHOWN_AGAIN, f"{sorted(again)} in {shown['status']}")
        if self.cancelled_at is not None and shown["status"] not in TERMINAL:
            self._complain(What.CANCEL_UNHEARD, f"{shown['status']} after the acknowledgement")
        self.last = shown

    def _refused(self, error: dict[str, Any], now: float, wall_ms: float) -> None:
        if error["code"] != ErrorCode.INVALID_PARAMS:
            self.refusals.append((now, f"tasks/get: {error['message']}"))
        elif self._may_be_expired(now, wall_ms):
            self.gone = True
        else:
            self._complain(What.LOST, f"{error['message']!r}; last seen {str(self.last)[:300]}")

    def _may_be_expired(self, now: float, wall_ms: float) -> bool:
        if self.ended is None:  # it may have ended, and expired, since it was read last
            return now - self._read_at >= self.retention_s
        created_ms = datetime.fromisoformat(self.last["createdAt"]).timestamp() * 1000
        return bool(wall_ms >= created_ms + self.last["ttlMs"])

    def _complain(self, what: What, words: str) -> None:
        self.violations.append(Violation(what, self.plan.label, words))


@dataclass(slots=True, eq=False)
class CallSeen:
    """One call, from its client's side. `over`: its client waits no more. `retried`: with answers (MRTR).

    `answer` is the final one, where it is no task. Without either nothing is known: the connection was
    `cut_at` some time, or the client hung up.
    """

    plan: CallPlan
    sent_at: float | None = None
    answer: Answer | None = None
    answered_at: float | None = None
    task: TaskSeen | None = None
    cut_at: float | None = None
    retried: bool = False
    cancel_sent: bool = False
    violations: list[Violation] = field(default_factory=list)
    over: bool = False

    def complain(self, what: What, words: str) -> None:
        self.violations.append(Violation(what, self.plan.label, words))

    def final(self) -> tuple[str, bytes] | None:
        """`result` or `error`, and the object as it was on the wire; None if there is neither."""
        raw = self.answer.raw if self.answer is not None else None
        path: tuple[str, ...] = ()
        if self.task is not None:
            raw, path = self.task.ended, ("result",)
        if raw is None:
            return None
        for member in ("result", "error"):
            found = value(raw, *path, member)
            if found is not None:
                return member, found
        return None
