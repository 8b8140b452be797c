"""Legacy clients at the HTTP entrance: which of their messages may come in.

Above: `http`, which has read the message and judged its era. Below: a `routing.legacy.LegacyHandler`, which
serves it, and `reply_writer`. Transports 2025-03-26 ... 2025-11-25, "Streamable HTTP"; contract section 6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from http import HTTPMethod, HTTPStatus
from typing import Final

from aiohttp import web

from proxy.clock import Clock
from proxy.downstream.admission import Admission
from proxy.downstream.answers import Answers
from proxy.downstream.posted import Posted
from proxy.downstream.reply_writer import ReplyWriter
from proxy.downstream.responses import refusal
from proxy.errors import ShuttingDown, TaskNotFound, UpstreamError
from proxy.limits import Gauge
from proxy.metrics import Metrics, Outcome, Refusal
from proxy.owners import Owner
from proxy.protocol import names
from proxy.protocol.envelope import LARGE
from proxy.protocol.jsonrpc import Request
from proxy.routing.counted import counted
from proxy.routing.legacy import HttpMessage, LegacyHandler, Reply
from proxy.routing.own_tasks import MAY_BE_OURS, concerns_our_tasks

_POST, _GET = HTTPMethod.POST, HTTPMethod.GET  # to name one of this enum takes a microsecond each time
_BAD_REQUEST, _SERVER_ERROR = HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR
_RESULT: Final = Outcome.RESULT

_WANTS_CREDENTIALS: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

_NOT_FOUND: Final = TaskNotFound.MESSAGE.encode()

BeginLookup = Callable[[web.Request, Owner], Callable[[], None]]
"""See `LookupLimit.begin`."""

METHODS: Final = frozenset({HTTPMethod.GET, HTTPMethod.HEAD, HTTPMethod.DELETE})
"""Those beside POST."""


class LegacyEntrance:
    """Serves the messages of legacy clients. What asks for nothing (notifications, answers, DELETE) meets no
    bound of ours: a call may be waiting for it. Whether its token is still good is the handler's to ask, who
    alone knows whether it is served here."""

    def __init__(
        self,
        handler: LegacyHandler,
        writer: ReplyWriter,
        *,
        requests: Gauge,
        listens: Gauge,
        lookups: BeginLookup,
        answers: Answers,
        clock: Clock,
        admission: Admission,
        metrics: Metrics,
    ) -> None:
        self._answers = answers
        self._admission = admission
        self._handler = handler
        self._writer = writer
        self._requests = requests
        self._listens = listens
        self._begin_lookup = lookups
        self._clock = clock
        self._metrics = metrics
        self._retry_after_s: int | None = None

    def drain(self, retry_after_s: int) -> None:
        """Refuse new calls and streams from now on, and end the streams that never end by themselves."""
        self._retry_after_s = retry_after_s
        self._handler.drain()

    async def post(self, http: web.Request, posted: Posted, owner: Owner) -> web.StreamResponse:
        """Raises ProxyError."""
        message = HttpMessage(
            method=_POST,
            headers=tuple(http.headers.items()),
            owner=owner,
            body=posted.body,
            messages=posted.messages,
            is_batch=posted.is_batch,
            query=http.rel_url.raw_query_string,
        )
        try:
            if (asks := _first_request(posted)) is None:
                message.check_token = partial(self._admission.refuse_spent, http)
                return await self._serve(http, message)
            is_ours = asks.method in MAY_BE_OURS and concerns_our_tasks(asks.method, asks.readable)
            if is_ours:
                self._admission.refuse_spent(http)
            with counted(asks.method, "legacy", self._metrics, self._clock) as ending:
                with self._admit(self._requests, owner):
                    if asks.method in names.TASK_METHODS_2025:
                        response = await self._look_up(http, message, is_ours)
                    else:
                        response = await self._serve(http, message)
                ending.outcome = _outcome_of(response)
                if response.status in _WANTS_CREDENTIALS:
                    self._metrics.refused_for(Refusal.AUTH)
                return response
        except UpstreamError as exc:
            return refusal(posted.rid, exc, exc.status or HTTPStatus.BAD_GATEWAY)

    async def other(self, http: web.Request, owner: Owner) -> web.StreamResponse:
        """One of METHODS. Raises ProxyError."""
        message = HttpMessage(
            method=HTTPMethod(http.method),
            headers=tuple(http.headers.items()),
            owner=owner,
            query=http.rel_url.raw_query_string,
            check_token=partial(self._admission.refuse_spent, http),
        )
        is_stream = message.method is _GET
        try:
            with self._admit(self._listens, owner) if is_stream else nullcontext():
                serving = self._handler.serve(message)
                if is_stream and self._admission.verifies_tokens:
                    serving = self._admission.while_good(http, serving)
                return await self._writer.write(http, serving)
        except UpstreamError as exc:
            return refusal(None, exc, exc.status or HTTPStatus.BAD_GATEWAY)

    def _admit(self, gauge: Gauge, owner: Owner) -> AbstractContextManager[None]:
        if self._retry_after_s is not None:
            raise ShuttingDown(retry_after_s=self._retry_after_s)
        return gauge.hold(owner)

    async def _serve(self, http: web.Request, message: HttpMessage) -> web.StreamResponse:
        return await self._writer.write(http, self._handler.serve(message))

    async def _look_up(self, http: web.Request, message: HttpMessage, is_ours: bool) -> web.StreamResponse:
        """Where the task is ours, whoever waits for its end waits as long as the token is good."""
        serving: AbstractAsyncContextManager[Reply]
        serving = _looked_up(self._handler.serve(message), self._begin_lookup(http, message.owner))
        place = None
        if is_ours and message.is_a(names.TASKS_RESULT):
            serving = self._admission.while_good(http, serving)
            place = self._answers.place(message.owner)
            place.need(LARGE)  # how large it will be is known to nobody here
        return await self._writer.write(http, serving, place)


@asynccontextmanager
async def _looked_up(
    serving: AbstractAsyncContextManager[Reply], failed: Callable[[], None]
) -> AsyncIterator[Reply]:
    """A task that is not there is told at once and in our words, wherever below it was looked for."""
    async with serving as reply:
        if isinstance(reply.body, bytes) and _NOT_FOUND in reply.body:
            failed()
        yield reply


def _first_request(posted: Posted) -> Request | None:
    """Stands for all of a batch, which has one response."""
    if isinstance(first := posted.messages[0], Request):
        return first
    return next((message for message in posted.messages if isinstance(message, Request)), None)


def _outcome_of(response: web.StreamResponse) -> Outcome:
    """As far as the status tells: what is in the body is not read here."""
    if response.status < _BAD_REQUEST:
        return _RESULT
    if response.status < _SERVER_ERROR:
        return Outcome.REFUSED
    return Outcome.UPSTREAM_FAILED
