"""One request of the client on its way to its answer, and who waits for it.

Above: `conversion`, which brings a round to its answer in the runner's task group; so the client's request
only watches it. A second, identical retry watches the same round and gets the same answer; a client that
hangs up before the answer ends the call when nobody else watches. Contract sections 3 ("Hang-up",
"Notifications") and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from proxy.eras.to_modern import with_progress_token
from proxy.errors import ProxyError
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject
from proxy.routing.base import Answer, ClientRequest, ErrorAnswer, ResultAnswer, Sink
from proxy.routing.live import LiveCall


@dataclass(eq=False)
class Round:
    """`answers`: what a retry brings, by key; None in a call's first round. `may_convert`: whether a task
    may be the answer."""

    request: ClientRequest
    call: LiveCall
    may_convert: bool
    answers: Mapping[str, bytes] | None = None
    running: bool = False
    _done: anyio.Event = field(default_factory=anyio.Event)
    _answer: Answer | None = None
    _fault: ProxyError | None = None
    _watchers: int = 0
    _delivered: bool = False

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def size(self) -> int:
        """Bytes that are held for an identical retry."""
        held = len(self.request.params.raw)
        match self._answer:
            case ResultAnswer(result):
                held += len(result)
            case ErrorAnswer(error):
                held += len(error)
            case None:
                pass
        return held

    def finish(self, answer: Answer) -> None:
        self._answer = answer
        self._done.set()

    def fail(self, fault: ProxyError) -> None:
        self._fault = fault
        self._done.set()

    async def watch(self, request: ClientRequest, sink: Sink) -> Answer:
        """Wait for the answer, passing notifications on as `request` wants them. Raises the fault.

        If the last one who waits is cancelled before anybody got the answer, the call ends.
        """
        if not self.done:
            await self._wait(_Forwarder(request, sink))
        if self._fault is not None:
            raise self._fault
        assert self._answer is not None  # a round that is done has one or the other
        return self._answer

    async def _wait(self, forward: _Forwarder) -> None:
        self._watchers += 1
        self.call.listen(forward)
        try:
            await self._done.wait()
            self._delivered = True
        finally:
            self.call.unlisten(forward)
            self._watchers -= 1
            if self._watchers == 0 and not self._delivered:
                self.call.stop("the client hung up")


class _Forwarder:
    """Passes a call's notifications to one watching request, as that request wants them."""

    def __init__(self, request: ClientRequest, sink: Sink) -> None:
        self._request = request
        self._sink = sink

    def __call__(self, method: str, params: bytes | None) -> None:
        token, level = self._request.progress_token, self._request.log_level
        if method == names.PROGRESS:
            if token is not None and params is not None:
                self._sink.notify(method, with_progress_token(params, token))
        elif method == names.LOG_MESSAGE:
            if level is not None and params is not None and _at_least(params, level):
                self._sink.notify(method, params)
        else:
            self._sink.notify(method, params)


def _at_least(params: bytes, level: str) -> bool:
    try:
        given = RawObject.parse(params).text("level")
    except (JsonError, DuplicateMember):
        return False
    return given in names.LOG_LEVELS and names.LOG_LEVELS.index(given) >= names.LOG_LEVELS.index(level)
