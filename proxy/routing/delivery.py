"""Brings the answers of clients to the askers upstream, until each was taken, or clearly never will be.

Above: `runner`, in whose task group it runs. Below: the questions, whose sessions hand answers over. What a
client was told is stored, and so is sent again while the upstream cannot take it, also by a later process of
ours; the asker drops what comes twice. Contract section 4; section 8, "a task uses its owner's latest token".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

import anyio

from proxy.clock import Clock, Pauses
from proxy.errors import UpstreamError, UpstreamRefused
from proxy.logs import get_logger
from proxy.owners import Credentials
from proxy.routing.live import LiveCall, OpenQuestion
from proxy.upstream.base import Outcome, Question

FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 8.0
BOUND_S: Final = 600.0  # from the first failure on: a deployment, or an owner who has to log in anew
HEARD_FIRST_S: Final = 0.3  # the request that a token came with may cancel what it would set going
WAITING_FOR_TOKEN: Final = (
    "The server refused the token: the answer goes on with your next request, by its token."
)
STILL_RUNNING: Final = "outcome unknown: the call was running"

log = get_logger()


class Delivery:
    """`credentials` tell when an owner has come with a token that may be better."""

    def __init__(self, credentials: Credentials, clock: Clock) -> None:
        self._credentials = credentials
        self._clock = clock

    async def deliver(
        self,
        call: LiveCall,
        questions: Mapping[str, Question],
        answers: Mapping[str, bytes],
        asked: Mapping[str, OpenQuestion] | None = None,
    ) -> Sequence[str]:
        """Hand over the answers, by key; returns the keys of those that need not be kept any more. The call
        is ended with a clear error if one is not taken within BOUND_S, or will never be.

        `asked`: the client waits for the answer to its request, so that it can be told at once that its token
        was refused; then these are open again, and `call.refusal` says so.
        """
        delivered = []
        for key, question in questions.items():
            one = None if asked is None else asked.get(key)
            if await self._is_taken(call, partial(question.answer, answers[key]), one):
                delivered.append(key)
        return delivered

    async def reject(self, call: LiveCall, question: Question, error: bytes) -> None:
        """The same with the one answer that is a JSON-RPC error (raw error object)."""
        await self._is_taken(call, partial(question.reject, error), None)

    async def of_round(self, call: LiveCall, send: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """What a modern server answers to the round in which the answers go out. A task's is sent again, with
        its owner's next token or ours, where the server refused the token, and so has not run it (contract
        I2)."""
        pauses = Pauses(FIRST_PAUSE_S, LAST_PAUSE_S)
        until: float | None = None
        while True:
            with self._credentials.next_of(call.request.owner) as came:
                try:
                    return await send()
                except UpstreamRefused as exc:
                    now = self._clock.monotonic()
                    until = now + BOUND_S if until is None else until
                    waits_for_owner = call.request.owner.has_token and _token_refused(exc)
                    is_ours = exc.status is None  # a credential of ours, which is renewed
                    if not (call.is_task and (waits_for_owner or is_ours)) or now >= until:
                        raise _loss(exc) from exc
                    fault = exc
                    log.warning("answer_not_delivered", reason=exc.message, goes_on_for_s=until - now)
                if waits_for_owner:
                    await self._wait_for_token(call, came, until)
                else:
                    await pauses.one(self._clock)
            if call.ended:
                raise _loss(fault)

    async def _is_taken(
        self, call: LiveCall, send: Callable[[], Awaitable[None]], asked: OpenQuestion | None
    ) -> bool:
        """A question that was withdrawn takes any answer, and drops it."""
        ran_before, pauses = call.ran_before, Pauses(FIRST_PAUSE_S, LAST_PAUSE_S)
        until: float | None = None
        while True:
            with self._credentials.next_of(call.request.owner) as came:
                try:
                    await send()
                    return True
                except UpstreamError as exc:
                    fault = exc
                if _is_over(call, ran_before):
                    return False
                if asked is not None and not call.becomes_task and (refusal := _token_refused(fault)):
                    call.reopen(asked, refusal)
                    return False
                now = self._clock.monotonic()
                if fault.is_for_good or (until is not None and now >= until):
                    log.error("answer_not_delivered", reason=fault.message)
                    call.give_up(_loss(fault, f"; {STILL_RUNNING}"))
                    return False
                if until is None:
                    until = now + BOUND_S
                    log.warning("answer_not_delivered", reason=fault.message, goes_on_for_s=BOUND_S)
                if call.request.owner.has_token and _token_refused(fault):
                    await self._wait_for_token(call, came, until)
                else:
                    await pauses.one(self._clock)
            if _is_over(call, ran_before):
                return False

    async def _wait_for_token(self, call: LiveCall, came: anyio.Event, until: float) -> None:
        """Until the owner comes with a token that may be better, the time is over, or the call."""
        call.is_held_up(WAITING_FOR_TOKEN)
        try:
            while not call.ended and (left_s := until - self._clock.monotonic()) > 0:
                if await self._clock.wait(came, min(left_s, LAST_PAUSE_S)):
                    await self._clock.sleep(HEARD_FIRST_S)
                    return
        finally:
            call.is_held_up(None)


def _is_over(call: LiveCall, ran_before: bool) -> bool:
    """Whether nobody waits for the answer any more: the call has ended, is about to end with its session, or
    is sent again from its beginning."""
    is_lost = call.session is not None and call.session.loss is not None
    return call.ended or is_lost or call.ran_before != ran_before


def _token_refused(fault: UpstreamError) -> UpstreamRefused | None:
    if isinstance(fault, UpstreamRefused) and fault.status is HTTPStatus.UNAUTHORIZED:
        return fault
    return None


def _loss(fault: UpstreamError, what_of_it: str = "") -> UpstreamError:
    """What the call ends with; who waits for it is told how to get a token, if that was it."""
    words = f"the answer could not be delivered: {fault.message}{what_of_it}"
    if isinstance(fault, UpstreamRefused):
        return UpstreamRefused(words, status=fault.status, challenges=fault.challenges)
    return UpstreamError(words)
