"""What clients saw of a round, held against what the server wrote down and what was broken meanwhile.

PURE. A call that was in flight when the proxy was killed may end `failed`, outcome unknown, where it could be
neither resumed nor repeated. But what completes has the server's own result. Contract sections 1, 4, 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.errors import ErrorCode
from tests.faults.felt import ENDS_OF_THE_PROXY, OF_THE_DISK, Felt, felt_between
from tests.faults.journal import Event, Row, digest
from tests.faults.plan import INPUT_LIMIT_S, RUNTIME_LIMIT_S, FaultKind, Kind
from tests.faults.seen import CallSeen
from tests.faults.violation import Violation, What
from tests.real.upstreams.raw_json import value

EARLY_S: Final = 0.2  # clocks are read at different moments
ON_ITS_WAY_S: Final = 1.0  # a request, from the proxy to the server's journal
POSITION_KEPT_S: Final = 2.0  # where a call's stream stands is stored within a second or so

SAYS_IT_NEVER_RAN: Final = (
    "nothing was sent",
    "was not sent",
    "could not be reached",
    "could not be started",
    "could not be connected",
    "is not running",
    "never started",
    "no upstream process became free",
    "did not answer initialize",
    "refused initialize",
    "the proxy is shutting down",
)
SAYS_THE_SESSION_IS_GONE: Final = "no longer knows the session"
SAYS_THAT_WE_STOPPED: Final = "the proxy stopped while the call was running"
SAYS_NOBODY_KNOWS: Final = ("outcome unknown", "outcome is unknown", "outcome of the call is unknown")
LIMITS: Final[Mapping[str, float]] = {
    "tasks.runtime_limit": RUNTIME_LIMIT_S,
    "tasks.input_limit": INPUT_LIMIT_S,
}


@dataclass(slots=True)
class Told:
    """What the server wrote down of one call."""

    starts: int = 0
    started_at: float | None = None
    crossed: int = 0
    stopped: bool = False
    ends: set[tuple[str, str | None]] = field(default_factory=set)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Told:
        told = cls()
        for row in rows:
            match row.event:
                case Event.START:
                    told.starts += 1
                    told.started_at = row.at if told.started_at is None else told.started_at
                case Event.RESULT | Event.ERROR:
                    told.ends.add((row.event.value, row.digest))
                case Event.CANCELLED:
                    told.stopped = True
                case Event.CROSSED:
                    told.crossed += 1
                case Event.ANSWERED:
                    pass
        return told


def judge(
    call: CallSeen, told: Told, felt: Sequence[Felt], now: float, *, resumable: bool = False
) -> Iterator[Violation]:
    """What is wrong with one call, at the end of its round (`now`). `resumable`: the server's streams are."""
    yield from call.violations
    if call.task is not None:
        yield from call.task.violations
    for what, words in _faults(call, told, felt, now):
        yield Violation(what, call.plan.label, words)
    if (left := _left(call, told, felt, resumable)) is not None:
        yield Violation(What.NOT_TAKEN_UP, call.plan.label, left)


def _faults(call: CallSeen, told: Told, felt: Sequence[Felt], now: float) -> Iterator[tuple[What, str]]:
    repeatable = call.plan.kind is Kind.REPEATABLE
    if told.starts > 1 and not repeatable:
        yield What.RAN_TWICE, f"{told.starts} times"
    if told.crossed:
        yield What.CROSSED, "a question was answered with the answer to another"
    sent_at = call.sent_at
    if sent_at is None:
        return
    if not call.over:
        where = "its task has no end" if call.task is not None else "it is not answered"
        yield What.STUCK, f"{where} {now - sent_at:.1f} s after it was sent; {_last(call)}"
    yield from _refusals(call, felt)
    if call.cut_at is not None and not felt_between(felt, sent_at, call.cut_at):
        yield What.UNCALLED, "the connection was cut, with nothing broken"
    if told.starts and not told.ends and not told.stopped and not felt_between(felt, sent_at, now):
        yield What.NOT_TOLD, "it runs on upstream"
    final = call.final()
    if final is not None:
        yield from _final(call, told, felt, sent_at, *final)
    elif call.answer is not None:
        yield What.MALFORMED, f"{call.answer.status} {call.answer.raw[:300]!r}"
    elif call.task is not None and call.task.ended is not None and not call.cancel_sent:
        yield What.UNCALLED, f"cancelled, though nobody asked for it: {call.task.ended[:300]!r}"


def _final(
    call: CallSeen, told: Told, felt: Sequence[Felt], sent_at: float, member: str, raw: bytes
) -> Iterator[tuple[What, str]]:
    if (member, digest(raw)) in told.ends:
        return
    if member == "result":
        yield What.WRONG_RESULT, f"the server ended it with {told.ends or 'nothing'}, not with {raw[:300]!r}"
        return
    ended_at = call.task.ended_at if call.task is not None else call.answered_at
    assert ended_at is not None  # there is an end
    yield from _failure(call, told, felt, sent_at, ended_at, raw)


def _failure(
    call: CallSeen, told: Told, felt: Sequence[Felt], sent_at: float, ended_at: float, raw: bytes
) -> Iterator[tuple[What, str]]:
    """Of an error of the proxy's own."""
    words = (value(raw, "message") or b"").decode()
    for setting, limit_s in LIMITS.items():
        if setting in words:
            if ended_at - sent_at < limit_s - EARLY_S:
                yield What.UNCALLED, f"{words} after {ended_at - sent_at:.1f} s"
            return
    if not felt_between(felt, sent_at, ended_at) and not _lost_its_session(words, felt, sent_at):
        yield What.UNCALLED, f"{raw[:300]!r}, with nothing broken"
    if "requestState" in words and call.retried:
        return  # what became of the call is not said
    if any(said in words for said in SAYS_IT_NEVER_RAN):
        if told.starts and not call.retried:  # of a retry it means the answers
            yield What.UNTRUE, f"{words!r}, but it ran"
    elif told.starts and not any(said in words for said in SAYS_NOBODY_KNOWS):
        yield What.UNTRUE, f"{words!r} does not say that it may have run"
    if value(raw, "code") != b"%d" % ErrorCode.INTERNAL_ERROR:
        yield What.MALFORMED, f"{raw[:300]!r}"


def _lost_its_session(words: str, felt: Sequence[Felt], at: float) -> bool:
    """Whether the server was another one by then: who has a session with the old one learns it from a 404."""
    killed = any(fault.kind is FaultKind.UPSTREAM_KILL and fault.began <= at for fault in felt)
    return killed and SAYS_THE_SESSION_IS_GONE in words


def _left(call: CallSeen, told: Told, felt: Sequence[Felt], resumable: bool) -> str | None:
    """Whether the call was left to its fate by a restart, though it need not have been."""
    final = call.final()
    if final is None or SAYS_THAT_WE_STOPPED.encode() not in final[1]:
        return None
    if call.plan.kind is Kind.REPEATABLE:
        return "its tool may be repeated"
    ends = [fault.began for fault in felt if fault.kind in ENDS_OF_THE_PROXY]
    others = frozenset(FaultKind) - ENDS_OF_THE_PROXY
    if not resumable or told.started_at is None or felt_between(felt, told.started_at, float("inf"), others):
        return None
    since = told.started_at - ON_ITS_WAY_S  # its sender may have been killed while it was on its way
    ran_s = min((at for at in ends if at > since), default=since) - told.started_at
    return f"it ran {ran_s:.1f} s, and can be resumed" if ran_s > POSITION_KEPT_S else None


def _refusals(call: CallSeen, felt: Sequence[Felt]) -> Iterator[tuple[What, str]]:
    """Of tasks/get, update and cancel: only a broken store is a reason."""
    if call.task is None:
        return
    for at, words in call.task.refusals:
        if not felt_between(felt, at, at, OF_THE_DISK):
            yield What.UNCALLED, f"{words}, with a store that works"


def _last(call: CallSeen) -> str:
    return f"last seen {str(call.task.last)[:300]}" if call.task is not None else "without a handle"
