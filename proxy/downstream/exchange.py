"""What is told during one request, on its way from the router to a transport that may be slower.

Above: `http` and `stdio`, which write what they take from here. Below: the router and its handlers; those
that tell what happens elsewhere cannot wait, a listen stream can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from proxy.clock import Pulse
from proxy.errors import InternalError, LimitReached, ProxyError, TaskNotFound
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import LARGE
from proxy.room import Place
from proxy.routing.base import Answer, ClientRequest, ResultAnswer
from proxy.routing.router import Router

MAX_QUEUED: Final = 1_000  # notifications that a slow reader may be behind
MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024

_MAY_BE_LEFT_OUT: Final = frozenset({names.PROGRESS, names.LOG_MESSAGE})

log = get_logger()


class Exchange:
    """The notifications of one request, then its answer or fault. Implements `routing.base.Sink`."""

    def __init__(self, lookup_failed: Callable[[], None] = lambda: None, place: Place | None = None) -> None:
        """`place`: what the client may hold of large answers; None: as much as it likes."""
        self.lookup_failed = lookup_failed
        self._place = place
        self.changed = Pulse()
        self.answer: Answer | None = None
        self.fault: ProxyError | None = None
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._taken = Pulse()
        self._is_writing = False

    @property
    def done(self) -> bool:
        return self.answer is not None or self.fault is not None

    def notify(self, method: str, params: bytes | None) -> None:
        """Nothing follows the final response. Progress and logs are left out while the reader is behind;
        where something else would be lost, the stream ends with an error instead."""
        if self.done:
            return
        if len(self._queue) >= MAX_QUEUED or self._bytes >= MAX_QUEUED_BYTES:
            if method not in _MAY_BE_LEFT_OUT:
                self.fail(LimitReached("the stream was read too slowly", retry_after_s=1))
            return
        message = jsonrpc.notification(method, params)
        self._queue.append(message)
        self._bytes += len(message)
        self.changed.beat()

    def make_room(self, size: int) -> None:
        if self._place is not None and size > LARGE:
            self._place.grow(size)

    async def ready(self) -> None:
        while self._queue or self._is_writing:
            await self._taken.event.wait()
        if self._place is not None:
            self._place.leave()

    def written(self) -> None:
        """What was taken is on its way to the client."""
        self._is_writing = False
        self._taken.beat()

    def finish(self, answer: Answer) -> None:
        if not self.done:
            self.answer = answer
            if self._place is not None and isinstance(answer, ResultAnswer):
                size = sum(map(len, answer.pieces))
                if size > LARGE and not self._place.size:  # nobody could ask for it again
                    self._place.count(size)
            self.changed.beat()

    def fail(self, fault: ProxyError) -> None:
        if not self.done:
            if isinstance(fault, TaskNotFound):
                self.lookup_failed()
            self.fault = fault
            self.changed.beat()

    def take(self, *, writing: bool = False) -> list[bytes]:
        """The notifications told since the last time, as whole messages. `writing`: it takes a while until
        they are on their way, and then `written` is called, if there are any."""
        taken = list(self._queue)
        self._queue.clear()
        self._bytes = 0
        self._is_writing = writing and bool(taken)
        self._taken.beat()
        return taken


async def handle(router: Router, request: ClientRequest, exchange: Exchange) -> None:
    """Have a request handled, and tell what comes of it; a fault of ours, too, which harms nobody else."""
    try:
        exchange.finish(await router.handle(request, exchange))
    except ProxyError as exc:
        exchange.fail(exc)
    except Exception:
        log.exception("request_failed", method=request.method)
        exchange.fail(InternalError())
