"""The URLs that a -32042 error wants visited, put to the client like questions of the server.

Above: `runner`, which sends the call again when all of them were accepted: the next step of the same call.
Below: the call. Nobody upstream waits for these answers. Contract sections 1 (I2) and 3; MCP 2025-11-25,
"URL Elicitation Required".
"""

from __future__ import annotations

from typing import Final

import anyio

from proxy.eras.to_modern import error_code, url_elicitations
from proxy.protocol import names
from proxy.protocol.envelope import RawObject
from proxy.protocol.jsonrpc import RequestId
from proxy.routing.live import LiveCall
from proxy.upstream.base import Failure, Outcome

_NO_REQUEST: Final = RequestId(b"null", "")


class UrlQuestion:
    """One such URL. Implements `upstream.base.Question`; its answer is for us."""

    id: RequestId = _NO_REQUEST
    method: str = names.ELICITATION_CREATE

    def __init__(self, params: bytes) -> None:
        self.params: bytes | None = params
        self.action: str | None = None
        self.answered = anyio.Event()

    async def answer(self, result: bytes) -> None:
        self.action = RawObject.parse(result).text("action")
        self.answered.set()

    async def reject(self, error: bytes) -> None:
        self.refuse(error)

    def refuse(self, error: bytes) -> None:
        self.action = "cancel"
        self.answered.set()


def asked_for(call: LiveCall, outcome: Outcome) -> list[UrlQuestion]:
    """The URLs that this outcome wants visited before it lets the call go on; none if it is final."""
    if not isinstance(outcome, Failure) or call.request.method not in names.CARRIES_INPUT:
        return []
    if error_code(outcome.error) != names.LEGACY_URL_ELICITATION_REQUIRED:
        return []
    return [UrlQuestion(params) for params in url_elicitations(outcome.error)]


async def visited(call: LiveCall, questions: list[UrlQuestion]) -> bool:
    """Put them to the client. Whether all were accepted; False, and the call stopped, if it cannot answer;
    False if they are too many or too large to be asked.

    The wait is cancelled with the call.
    """
    if call.too_much(questions) is not None:
        return False
    missing = call.capabilities.missing_for(names.ELICITATION_CREATE, questions[0].params)
    if missing is not None:
        if not call.is_task:  # a task ends with the server's error
            call.miss(missing)
        return False
    call.trace = None  # nothing of the call is in flight that a later process could find
    for question in questions:
        call.ask(question)
    for question in questions:
        await question.answered.wait()
    return all(question.action == "accept" for question in questions)
