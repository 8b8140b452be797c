"""Whether an HTTP upstream took a message: how long its word is waited for, and what a refusal means.

Above: the two HTTP transports; below: `endpoint` and `replies`. Transports 2024-11-05 ... 2025-11-25,
"Sending Messages to the Server".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

import anyio

from proxy.errors import UpstreamClosed, UpstreamError, UpstreamTimeout
from proxy.upstream import replies
from proxy.upstream.endpoint import Answer

ACCEPT_TIMEOUT_S: Final = 30.0  # for the 202 to a notification or an answer; servers send it at once
REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class Handovers:
    """The messages of one session that somebody waits for until the server has accepted them."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._scopes: set[anyio.CancelScope] = set()
        self._ended = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Send inside. Raises UpstreamTimeout if that takes too long, UpstreamClosed if `end` ended it."""
        with anyio.move_on_after(ACCEPT_TIMEOUT_S) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            if self._ended:
                raise UpstreamClosed(f"{self._who}: the session was closed while a message was sent")
            raise UpstreamTimeout(f"{self._who} did not accept a message within {ACCEPT_TIMEOUT_S:.0f} s")

    def end(self) -> None:
        """The session is over: nobody waits any longer."""
        self._ended = True
        for scope in self._scopes:
            scope.cancel()


async def error_body(answer: Answer, max_bytes: int) -> bytes:
    """What came with an error status, as far as it is of use."""
    return b"" if answer.is_encoded or answer.status in REFUSED else await answer.body(max_bytes)


def fault(answer: Answer, body: bytes, max_depth: int, *, gone: bool) -> UpstreamError:
    """What an error status means. `gone`: that the server has no such session."""
    if answer.status in REFUSED:
        return answer.refusal()
    reply = replies.error_in(body, max_depth)
    said = answer.words(body if reply is None else replies.text_of(reply))
    return answer.gone(said) if gone else answer.unexpected(said)
