"""What comes from the upstream in one session: understood, and given to whom it concerns.

Above: `session`, whose transport delivers here. Below: `pending` (answers, progress, logs) and
`questions`. Called from the transport's reader loop, so nothing in here waits, and nothing that an
upstream can send makes it raise. MCP 2025-11-25, "Base Protocol".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from proxy.errors import UpstreamProtocolError
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names, salvage
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, check, elements
from proxy.protocol.jsonrpc import (
    ErrorResponse,
    MessageError,
    Notification,
    Request,
    RequestId,
    ResultResponse,
)
from proxy.upstream.base import Failure, Outcome, Result
from proxy.upstream.pending import PendingCall, PendingTable
from proxy.upstream.questions import Questions

NOISE_LOGGED: Final = 5  # so many one by one, then at every power of ten

_CHANGES: Final = frozenset(
    {
        names.TOOLS_LIST_CHANGED,
        names.PROMPTS_LIST_CHANGED,
        names.RESOURCES_LIST_CHANGED,
        names.RESOURCES_UPDATED,
    }
)

ChangeListener: TypeAlias = Callable[[str, bytes | None], None]
"""Told the method and params of what belongs to no one call, such as a list change. Must not block."""

log = get_logger()


class Inbox:
    """See the module. `post` sends a message that nobody waits for."""

    def __init__(
        self,
        table: PendingTable,
        questions: Questions,
        *,
        name: str,
        max_depth: int,
        post: Callable[[bytes], None],
        on_change: ChangeListener,
        on_stray: ChangeListener | None = None,
    ) -> None:
        """`on_stray` is told log lines and the like of which nobody knows whose call they belong to."""
        self._table = table
        self._questions = questions
        self._name = name
        self._max_depth = max_depth
        self._post = post
        self._on_change = on_change
        self._on_stray = on_stray
        self._noise = 0

    def take(self, message: bytes, call_id: int | None) -> None:
        """See `base.Receiver.received`. An array is a batch of old servers, and taken apart (F20)."""
        try:
            check(message, self._max_depth)
        except JsonError as fault:
            self._take_unreadable(message, call_id, fault)
            return
        batch = elements(message) if message.lstrip()[:1] == b"[" else []
        for part in batch or [message]:
            self._take_one(part, call_id)

    def _take_one(self, message: bytes, call_id: int | None) -> None:
        try:
            parsed = jsonrpc.parse_checked(message)
        except MessageError as fault:
            self._take_invalid(message, fault)
            return
        match parsed:
            case ResultResponse(rid, result):
                self._answered(rid, call_id, Result(result))
            case ErrorResponse(rid, error):
                self._answered(rid, call_id, Failure(error))
            case Request(rid, method):
                if method == names.PING:
                    self._post(jsonrpc.result_response(rid, b"{}"))
                else:
                    self._questions.ask(parsed, call_id)
            case Notification(method, params):
                self._notified(method, _object_or_none(params), call_id)

    def _take_invalid(self, message: bytes, fault: MessageError) -> None:
        """A broken response ends the call that it names; the rest is noise (F34). A broken request has an
        id of the server's, which says nothing about our calls."""
        call = self._table.answered_by(fault.id)
        if call is not None and "method" not in RawObject.parse(message):
            error = UpstreamProtocolError(f"upstream '{self._name}' sent an invalid response: {fault}")
            self._table.lose(call, error)
        else:
            self._skip(message, fault.message)

    def _take_unreadable(self, message: bytes, call_id: int | None, fault: JsonError) -> None:
        """What is no JSON ends the call that it seems to answer; else that call would wait for ever."""
        answered = salvage.answered_by(message)
        call = self._table.get(answered) if call_id in (None, answered) else None
        if call is not None:
            error = UpstreamProtocolError(f"upstream '{self._name}' sent an answer that is unusable: {fault}")
            self._table.lose(call, error)
        self._skip(message, str(fault))

    def _skip(self, message: bytes, reason: str) -> None:
        self._noise += 1
        if self._noise <= NOISE_LOGGED or str(self._noise).rstrip("0") == "1":
            log.warning(
                "upstream_noise_skipped",
                upstream=self._name,
                count=self._noise,
                reason=reason,
                bytes=len(message),
            )

    def _answered(self, rid: RequestId | None, call_id: int | None, outcome: Outcome) -> None:
        call = self._table.answered_by(rid)
        if rid is None:
            call = self._table.get(call_id)  # an error to a request whose id the server could not read
        if call is None:
            log.debug("late_answer_dropped", upstream=self._name)
        else:
            self._table.settle(call, outcome)

    def _notified(self, method: str, params: bytes | None, call_id: int | None) -> None:
        if method == names.PROGRESS:
            self._progressed(params)
        elif method == names.CANCELLED:
            self._withdrawn(params, call_id)
        elif (stream := self._subscription_of(params)) is not None:
            stream.listener.on_notification(method, params)
        elif method in _CHANGES:
            self._on_change(method, params)
        elif method != names.ELICITATION_COMPLETE:  # ours alone to know (ELIC-004)
            call = self._table.alone() if call_id is None else self._table.get(call_id)
            if call is not None:
                call.listener.on_notification(method, params)
            elif call_id is None and self._on_stray is not None:
                self._on_stray(method, params)

    def _subscription_of(self, params: bytes | None) -> PendingCall | None:
        """Our listen request with a modern server that the notification names (STDIO-012)."""
        if params is None or names.META_SUBSCRIPTION_ID.encode() not in params:
            return None
        raw = _member(_member(params, names.META), names.META_SUBSCRIPTION_ID)
        return self._table.answered_by(RequestId.parse(raw)) if raw is not None else None

    def _progressed(self, params: bytes | None) -> None:
        token, progress = _member(params, names.META_PROGRESS_TOKEN), _member(params, "progress")
        call = self._table.answered_by(RequestId.parse(token)) if token is not None else None
        if call is not None and progress is not None and call.rises(progress):
            call.listener.on_notification(names.PROGRESS, params)

    def _withdrawn(self, params: bytes | None, call_id: int | None) -> None:
        raw = _member(params, "requestId")
        rid = RequestId.parse(raw) if raw is not None else None
        if rid is not None:
            self._questions.withdraw(rid, call_id)

    def __repr__(self) -> str:
        return f"<Inbox '{self._name}' {self._noise} noisy messages>"


def _object_or_none(params: bytes | None) -> bytes | None:
    """MCP knows no other params; `null` is a spelling of none (F19)."""
    return params if params is not None and params[:1] == b"{" else None


def _member(params: bytes | None, key: str) -> bytes | None:
    """The raw value of a member that is there once."""
    try:
        return None if params is None else RawObject.parse(params).get(key)
    except DuplicateMember:
        return None
