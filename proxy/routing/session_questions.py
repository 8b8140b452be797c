"""What a server asks in one HTTP session: where it was asked, and what waits until somebody can be asked.

Above: `http_session`. A question that no stream can carry waits, bounded, for the next one that can: many
servers ask for roots at once. Then it is refused, so that the server does not wait for ever. Contract
section 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.clock import Clock, Pulse
from proxy.errors import ErrorCode
from proxy.protocol import jsonrpc, names
from proxy.protocol.jsonrpc import ErrorResponse, Request, RequestId, ResultResponse
from proxy.sessions.stream import Stream

UNCLAIMED_S: Final = 60.0  # how long a question without a stream waits for one
MAX_UNCLAIMED: Final = 100  # a server that asks more gets errors
MAX_ASKED: Final = 1_000  # questions of which is known where they went
MAX_ROOTS_BYTES: Final = 64 * 1024

Reply = Callable[[ResultResponse | ErrorResponse, bytes], None]
"""Takes an answer of ours to the server."""


class SessionQuestions:
    """`expire` must be running."""

    def __init__(self, clock: Clock, reply: Reply) -> None:
        self._clock = clock
        self._reply = reply
        self._asked: dict[int | str, tuple[str, Stream]] = {}
        self._waiting: dict[int | str, tuple[Request, bytes, float]] = {}
        self._came = Pulse()
        self._roots: bytes | None = None  # the client's last answer

    def __repr__(self) -> str:
        return f"<SessionQuestions {len(self._asked)} asked, {len(self._waiting)} waiting>"

    # -- what the server does -----------------------------------------------------------------------

    def ask(self, question: Request, message: bytes, stream: Stream | None) -> None:
        """Ask on this stream; without one, answer it ourselves or let it wait."""
        if stream is not None:
            self._put(question, message, stream)
        elif question.method == names.ROOTS_LIST and self._roots is not None:
            self.answer(question, self._roots)
        elif len(self._waiting) >= MAX_UNCLAIMED:
            self._refuse(question)
        else:
            self._waiting[question.id.value] = question, message, self._clock.monotonic() + UNCLAIMED_S
            self._came.beat()

    def withdraw(self, rid: RequestId, message: bytes, otherwise: Stream) -> None:
        """The server does not want an answer any more. That is said where the question was asked; one that
        nobody has seen goes in silence."""
        if self._waiting.pop(rid.value, None) is None:
            _, stream = self._asked.pop(rid.value, ("", otherwise))
            stream.send(message)

    def answer(self, question: Request, result: bytes) -> None:
        """In the client's place."""
        self._reply(ResultResponse(question.id, result), jsonrpc.result_response(question.id, result))

    # -- what the client does -----------------------------------------------------------------------

    def claim(self, stream: Stream) -> None:
        """A stream is there that can carry questions."""
        waiting, self._waiting = self._waiting, {}
        for question, message, _ in waiting.values():
            self._put(question, message, stream)

    def answered(self, rid: RequestId, result: bytes | None) -> None:
        """The client has answered; None is an error."""
        method, _ = self._asked.pop(rid.value, ("", None))
        if method == names.ROOTS_LIST and result is not None and len(result) <= MAX_ROOTS_BYTES:
            self._roots = result

    def roots_changed(self) -> None:
        self._roots = None

    async def expire(self) -> None:
        """Refuse those that no stream came for. Runs as long as the session."""
        while True:
            came = self._came.event
            if not self._waiting:
                await came.wait()
                continue
            question, _, until = next(iter(self._waiting.values()))
            await self._clock.sleep(until - self._clock.monotonic())
            found = self._waiting.get(question.id.value)
            if found is not None and found[0] is question:
                del self._waiting[question.id.value]
                self._refuse(question)

    def _put(self, question: Request, message: bytes, stream: Stream) -> None:
        if stream.is_full:
            self._refuse(question)
            return
        if len(self._asked) >= MAX_ASKED:
            del self._asked[next(iter(self._asked))]
        self._asked[question.id.value] = question.method, stream
        stream.send(message)

    def _refuse(self, question: Request) -> None:
        error = jsonrpc.error_object(
            ErrorCode.INTERNAL_ERROR, f"the client cannot be asked {question.method}: it listens to no stream"
        )
        self._reply(ErrorResponse(question.id, error), jsonrpc.error_response(question.id, error))
