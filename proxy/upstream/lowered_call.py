"""One request of a legacy client on its way to a modern server: round by round, to an answer of the old
kind.

Above: `lowered`, which starts one for each request. Below: the session with the server. An
InputRequiredResult becomes requests to the client, whose answers go out with the next round; a task of the
server's own is polled to its end on behalf of a client that has no tasks. MRTR 2026-07-28, "Client
Requirements"; contract section 7.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio

from proxy.clock import Clock
from proxy.eras.capabilities import ClientCapabilities
from proxy.eras.lowering import lowered_error, lowered_result, modern_params
from proxy.eras.patience import FAILED_POLLS, MAX_ROUNDS, again_s, poll_s
from proxy.eras.to_modern import OF_ANOTHER_ERA, error_code, with_progress_token
from proxy.errors import ErrorCode, UpstreamError, UpstreamProtocolError
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, splice
from proxy.protocol.jsonrpc import Request, RequestId
from proxy.upstream.base import (
    NO_HEADERS,
    Failure,
    Headers,
    Outcome,
    Position,
    Question,
    WaitingRound,
)
from proxy.upstream.session import LegacySession

CANCEL_NOTICE_TIMEOUT_S: Final = 3.0  # courtesy to the server; must not hold up the client's end
_QUESTIONS: Final = (names.ELICITATION_CREATE, names.SAMPLING_CREATE_MESSAGE, names.ROOTS_LIST)

log = get_logger()

Ask = Callable[[str, str, bytes | None, int], Awaitable[bytes]]
"""Asks the client during a call: id of the question, method, raw params, our id of the call. Raises Refused
if it answers with an error."""

Waits = Callable[[WaitingRound | None, int], None]
"""Told that the call waits for answers, before they are asked for, and that it is in flight again."""

Told = Callable[[bytes, int], None]
"""Told a message for the client, and the call that it belongs to."""

HeadersOf = Callable[[bytes], Awaitable[Headers]]
"""The mirrored parameters of a call with these params."""


class Refused(Exception):
    """The request is answered with this error (raw)."""

    def __init__(self, error: bytes) -> None:
        super().__init__("refused")
        self.error = error


@dataclass(frozen=True, slots=True)
class _Question:
    """`id` is that of the request to the client, `key` the server's."""

    id: str
    key: str
    method: str
    params: bytes | None


class LoweredCall:
    """Implements `upstream.base.CallListener`. `meta` is that of each of its requests."""

    def __init__(
        self,
        request: Request,
        call: int,
        session: LegacySession,
        meta: Mapping[str, Any],
        clock: Clock,
        *,
        ask: Ask,
        question_ids: Iterator[str],
        waits: Waits,
        told: Told,
        headers_of: HeadersOf,
    ) -> None:
        self._request = request
        self._call = call
        self._session = session
        self._meta = meta
        self._clock = clock
        self._ask = ask
        self._question_ids = question_ids
        self._waits = waits
        self._told = told
        self._headers_of = headers_of
        self._token = _progress_token(request.params)
        self.is_doubtful = False  # a server of the other era might have answered as this one did

    async def result(self) -> bytes:
        """The raw result. Raises Refused for an error of the server's, and UpstreamError."""
        base = modern_params(self._request.params, self._meta)
        params = base
        for attempt in range(MAX_ROUNDS):
            outcome = await self._sent(params)
            if isinstance(outcome, Failure):
                raise Refused(lowered_error(self._request.method, outcome.error))
            try:
                result = RawObject.parse(outcome.raw)
                kind = result.text("resultType") or names.COMPLETE
                match kind:
                    case names.COMPLETE:
                        return lowered_result(self._request.method, outcome.raw)
                    case names.INPUT_REQUIRED:
                        params = await self._next_params(base, result, attempt)
                    case names.TASK:
                        return await self._result_of_task(result)
                    case _:
                        raise UpstreamProtocolError(
                            f"the upstream answered with the unknown resultType {kind!r}"
                        )
            except (JsonError, DuplicateMember) as exc:
                raise UpstreamProtocolError(f"the upstream's result cannot be used: {exc}") from exc
        raise UpstreamError(f"the upstream asked for input {MAX_ROUNDS} times in a row")

    async def _sent(self, params: bytes) -> Outcome:
        """Once more where the server says that the headers do not match: then nothing has run (HTTP-044)."""
        try:
            outcome = await self._send(params, await self._headers_of(params))
            if isinstance(outcome, Failure) and error_code(outcome.error) == ErrorCode.HEADER_MISMATCH:
                self._session.catalogue.forget()
                outcome = await self._send(params, await self._headers_of(params))
        except UpstreamProtocolError:
            self.is_doubtful = True
            raise
        self.is_doubtful = isinstance(outcome, Failure) and error_code(outcome.error) in OF_ANOTHER_ERA
        return outcome

    async def _send(self, params: bytes, headers: Headers = NO_HEADERS) -> Outcome:
        return await self._session.call(
            self._request.method, params, self, want_progress=self._token is not None, headers=headers
        )

    # -- input --------------------------------------------------------------------------------------

    async def _next_params(self, base: bytes, asked: RawObject, attempt: int) -> bytes:
        """Have the client answer what the server asks."""
        requests = asked.object("inputRequests")
        changes: dict[str, bytes | None] = {"requestState": asked.get("requestState")}
        if requests is not None and requests.members:
            questions = self._questions(requests)
            self._say_what_it_waits_for(base, asked.get("requestState"), questions)
            changes["inputResponses"] = await self._answers(questions)
            self._waits(None, self._call)
        else:
            await self._clock.sleep(again_s(attempt))
        return splice(base, changes)

    def _questions(self, requests: RawObject) -> list[_Question]:
        """Raises UpstreamProtocolError for what is no question."""
        ids = self._question_ids
        return [_Question(next(ids), m.key, *_question(requests, m.key)) for m in requests.members]

    def _say_what_it_waits_for(
        self, base: bytes, state: bytes | None, questions: Sequence[_Question]
    ) -> None:
        """Not where the next round may bring a task of the server's own, which no later process could
        read."""
        if not self._session.info.has_tasks:
            named = tuple((dumps(one.id), one.key) for one in questions)
            declared = ClientCapabilities.parse(dumps(self._meta[names.META_CLIENT_CAPABILITIES]))
            self._waits(WaitingRound(base, declared.offered, state, named), self._call)

    async def _answers(self, questions: Sequence[_Question]) -> bytes:
        """By the server's keys; all are asked at once. One that is refused makes the others pointless."""
        found: dict[str, bytes] = {}
        refused: list[Refused] = []

        async def ask(one: _Question) -> None:
            try:
                found[one.key] = await self._ask(one.id, one.method, one.params, self._call)
            except Refused as exc:
                refused.append(exc)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for one in questions:
                tasks.start_soon(ask, one)
        if refused:
            raise refused[0]
        return b"{" + b",".join(dumps(one.key) + b":" + found[one.key] for one in questions) + b"}"

    # -- a task of the server's own -------------------------------------------------------------------

    async def _result_of_task(self, task: RawObject) -> bytes:
        task_id = task.text("taskId")
        if self._request.method != names.TOOLS_CALL or not self._session.info.has_tasks or task_id is None:
            raise UpstreamProtocolError("the upstream answered with a task where there can be none")
        try:
            return await self._polled(task_id, task)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(CANCEL_NOTICE_TIMEOUT_S, shield=True), suppress(UpstreamError):
                await self._about_task(names.TASKS_CANCEL, self._of_task(task_id))
            raise

    async def _polled(self, task_id: str, task: RawObject) -> bytes:
        answered: set[str] = set()
        failures = 0
        while True:
            await self._clock.sleep(poll_s(task.get("pollIntervalMs")))  # from the first on (TX-CAP-015)
            try:
                outcome = await self._about_task(names.TASKS_GET, self._of_task(task_id))
                failures = 0
            except UpstreamError as exc:  # the task goes on without us
                failures += 1
                if failures >= FAILED_POLLS or self._session.loss is not None:
                    raise
                log.info("upstream_task_not_read", reason=exc.message)
                continue
            if isinstance(outcome, Failure):
                raise Refused(lowered_error(self._request.method, outcome.error))
            task = RawObject.parse(outcome.raw)
            match task.text("status"):
                case "completed":
                    return lowered_result(self._request.method, task.get("result") or b"{}")
                case "failed":
                    raise Refused(
                        lowered_error(
                            self._request.method, task.get("error") or _error("the upstream's task failed")
                        )
                    )
                case "cancelled":
                    raise Refused(_error("the upstream's task was cancelled"))
                case "input_required":
                    await self._update(task_id, task, answered)
                case _:
                    pass

    async def _update(self, task_id: str, task: RawObject, answered: set[str]) -> None:
        """Answer what is open, each key once."""
        requests = task.object("inputRequests")
        fresh = [m.key for m in requests.members if m.key not in answered] if requests is not None else []
        if requests is None or not fresh:
            return
        answered.update(fresh)
        left = splice(requests.raw, {m.key: None for m in requests.members if m.key not in fresh})
        responses = await self._answers(self._questions(RawObject.parse(left)))
        params = splice(self._of_task(task_id), {"inputResponses": responses})
        await self._about_task(names.TASKS_UPDATE, params)

    async def _about_task(self, method: str, params: bytes) -> Outcome:
        return await self._session.call(method, params, self, want_progress=False)

    def _of_task(self, task_id: str) -> bytes:
        return modern_params(dumps({"taskId": task_id}), self._meta)

    # -- what the server tells (base.CallListener) ----------------------------------------------------

    def on_notification(self, method: str, params: bytes | None) -> None:
        if method == names.PROGRESS:
            if self._token is None or params is None:
                return
            params = with_progress_token(params, self._token)
        self._told(jsonrpc.notification(method, params), self._call)

    def on_question(self, question: Question) -> None:
        question.refuse(_error("a modern server asks by its results"))

    def on_withdrawn(self, question: Question) -> None:
        """Was refused."""

    def on_position(self, position: Position) -> None:
        """Modern streams are not resumed."""


def _question(requests: RawObject, key: str) -> tuple[str, bytes | None]:
    """Method and params. Raises UpstreamProtocolError for what is no question."""
    asked = requests.object(key)
    method = asked.text("method") if asked is not None else None
    if asked is None or method not in _QUESTIONS:
        raise UpstreamProtocolError(f"inputRequests[{key!r}] is no question")
    return method, asked.get("params")


def _error(words: str) -> bytes:
    return jsonrpc.error_object(ErrorCode.INTERNAL_ERROR, words)


def _progress_token(params: bytes | None) -> bytes | None:
    try:
        meta = RawObject.parse(params or b"{}").object(names.META)
        token = meta.get(names.META_PROGRESS_TOKEN) if meta is not None else None
    except (JsonError, DuplicateMember):
        return None
    return token if token is not None and RequestId.parse(token) is not None else None
