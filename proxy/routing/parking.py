"""Calls that have asked their client and wait for its retry, and the retries that came.

Above: `conversion`. Below: `request_state`, which names a parked call so that nobody else can. A state is
for one retry; what came of that is remembered, so that the same retry sent twice gets the same answer and
the upstream gets one. In memory alone: after a restart a state is an error, never a rerun. Contract
section 4, "Input before the threshold"; MRTR 2026-07-28, "Server Requirements".
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from proxy.clock import Clock
from proxy.eras.to_legacy import call_digest
from proxy.errors import ClientProtocolError, ErrorCode, UpstreamUnavailable
from proxy.protocol.request_state import NONCE_BYTES, Claim, InvalidState, seal, unseal
from proxy.routing.base import ClientRequest
from proxy.routing.live import LiveCall
from proxy.routing.rounds import Round
from proxy.routing.runner import Runner
from proxy.tasks import inputs
from proxy.upstream.base import Failure, Result

MAX_PARKED: Final = 10_000
MAX_BYTES: Final = 256 * 1024 * 1024  # of requests and answers that are held for retries

_OVER: Final = (
    "requestState: the call it belongs to is over, or was lost when the proxy restarted; it is not run again"
)
_USED: Final = "requestState was used already, by a retry with other answers or capabilities"


@dataclass(eq=False)
class Parked:
    """What a `requestState` stands for: a call that waits for its retry, then that retry's round."""

    call: LiveCall
    round: Round | None = None
    digest: bytes = b""

    @property
    def size(self) -> int:
        held = len(self.call.request.params.raw)
        match self.call.outcome:
            case Result(raw) | Failure(raw):
                held += len(raw)
            case None:
                pass
        return held + (self.round.size if self.round is not None else 0)

    @property
    def over(self) -> bool:
        """Kept only for a retry that may still come; nothing is lost upstream if it is forgotten."""
        return self.call.ended if self.round is None else self.round.done

    def resume(self, request: ClientRequest, may_convert: bool) -> Round:
        """The round of this retry: a new one, or that of the identical retry before it (MRTR-010).

        Raises ClientProtocolError if an answer is malformed, which uses nothing up, or if the state was
        used by another retry. Answers to questions that are not open are left out (MRTR-015).
        """
        responses = inputs.parse_responses(request.params) or {}
        digest = _retry_digest(request, responses)
        if self.round is None:
            questions = self.call.questions
            answers = {key: value for key, value in responses.items() if key in questions}
            for key, value in answers.items():
                inputs.check_answer(key, questions[key].request.method, value)
            self.round, self.digest = Round(request, self.call, may_convert, answers), digest
        elif self.digest != digest:
            raise ClientProtocolError(ErrorCode.INVALID_PARAMS, _USED)
        return self.round


class Parking:
    """All that is parked. `wait_s` is how long a call waits for its retry, and a retry is remembered."""

    def __init__(self, runner: Runner, clock: Clock, key: bytes, wait_s: float) -> None:
        self._runner = runner
        self._clock = clock
        self._key = key
        self._wait_s = wait_s
        self._zero_ms = clock.wall_ms() - int(clock.monotonic() * 1000)
        self._parked: dict[bytes, Parked] = {}

    @property
    def waiting(self) -> int:
        """How many calls wait for their client."""
        return sum(parked.round is None and not parked.call.ended for parked in self._parked.values())

    def __repr__(self) -> str:
        return f"<Parking {len(self._parked)} states>"

    def park(self, call: LiveCall, request: ClientRequest) -> str:
        """Keep the call for the retry of `request`; returns its `requestState`.

        Raises UpstreamUnavailable, and stops the call, if too much is parked already.
        """
        nonce, parked = secrets.token_bytes(NONCE_BYTES), Parked(call)
        self._parked[nonce] = parked
        self.forget_what_is_too_much()
        if self._too_much(*self._held()):
            self._parked.pop(nonce, None)
            call.stop("too many calls wait for their clients")
            raise UpstreamUnavailable("too many calls wait for answers of their clients; try again later")
        self._runner.spawn(self._forget_in_time, nonce, parked)
        return seal(self._key, nonce, self._now_ms() + int(self._wait_s * 1000), _claim(request))

    def find(self, state: str, request: ClientRequest) -> Parked:
        """What `state` stands for in this request. Raises ClientProtocolError if that is nothing."""
        try:
            nonce = unseal(self._key, state, self._now_ms(), _claim(request))
        except InvalidState as exc:
            raise ClientProtocolError(ErrorCode.INVALID_PARAMS, str(exc)) from exc
        parked = self._parked.get(nonce)
        if parked is None:
            raise ClientProtocolError(ErrorCode.INVALID_PARAMS, _OVER)
        return parked

    def open_again(self, rnd: Round) -> None:
        """The token of this retry was refused, and what it answered is open as before: the client may come
        again with another token, if its time is not over."""
        parked = next((parked for parked in self._parked.values() if parked.round is rnd), None)
        if parked is None:
            rnd.call.stop("the client did not come back with its answers")
        else:
            parked.round = None

    def stop_all(self) -> None:
        """At the drain: whoever is parked has nobody who could come back in time."""
        for parked in self._parked.values():
            if parked.round is None:
                parked.call.stop("the proxy is shutting down")

    def _now_ms(self) -> int:
        """Wall time without its jumps: a state holds as long as its call is parked, and no other knows it."""
        return self._zero_ms + int(self._clock.monotonic() * 1000)

    async def _forget_in_time(self, nonce: bytes, parked: Parked) -> None:
        """A parked call is cancelled upstream, a remembered retry is forgotten (MRTR-012)."""
        await self._clock.sleep(self._wait_s)
        if parked.round is None:
            parked.call.stop("the client did not come back with its answers")
        self._parked.pop(nonce, None)

    def forget_what_is_too_much(self) -> None:
        """Of what is over the oldest first, as far as the bounds ask for it."""
        count, size = self._held()
        for nonce in [nonce for nonce, parked in self._parked.items() if parked.over]:
            if not self._too_much(count, size):
                break
            count, size = count - 1, size - self._parked.pop(nonce).size

    def _held(self) -> tuple[int, int]:
        return len(self._parked), sum(parked.size for parked in self._parked.values())

    @staticmethod
    def _too_much(count: int, size: int) -> bool:
        return count > MAX_PARKED or size > MAX_BYTES


def _claim(request: ClientRequest) -> Claim:
    return Claim(request.owner.key, call_digest(request.method, request.params))


def _retry_digest(request: ClientRequest, responses: Mapping[str, bytes]) -> bytes:
    """What makes two retries identical: their answers, and what an answer to them may be."""
    told = (sorted(responses.items()), request.capabilities.offered, request.capabilities.tasks)
    return hashlib.sha256(repr(told).encode()).digest()
