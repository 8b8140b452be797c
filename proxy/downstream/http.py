"""Streamable HTTP towards clients: one endpoint for both eras, each request its own POST.

Above: `app`, which starts and stops it. Below: `posted` (which era is it of), `validation` (is it a modern
request), the router (what happens to it), `responses` (what is written of it); `legacy_http` for legacy
clients; `base` (errors). aiohttp cancels a handler whose client hangs up; that is how a hang-up reaches the
call. Streamable HTTP 2026-07-28; contract sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Final
from weakref import finalize

import anyio
from aiohttp import web

from proxy.aside import aside
from proxy.clock import Clock
from proxy.downstream.admission import OPEN, Admission
from proxy.downstream.answers import Answers
from proxy.downstream.bodies import Bodies
from proxy.downstream.exchange import Exchange, handle
from proxy.downstream.guard import Guard
from proxy.downstream.legacy_http import METHODS, LegacyEntrance
from proxy.downstream.peers import Peers
from proxy.downstream.posted import Posted, header_era, read_posted
from proxy.downstream.reply_writer import ReplyWriter, leave_as_given
from proxy.downstream.responses import Responder, accepts_stream, plain_response, refusal
from proxy.downstream.single import authorization_of, host_of, origins_of
from proxy.downstream.validation import Headers, Rejection, read_message
from proxy.downstream.well_known import EVERY_PAGE, WellKnownPages
from proxy.eras.era import Era
from proxy.errors import ClientProtocolError, ErrorCode, InternalError, ProxyError, ShuttingDown
from proxy.limits import Gauge, LookupLimit
from proxy.logs import get_logger
from proxy.metrics import UNSERVED, Metrics
from proxy.owners import Credentials, Owner, owner_of
from proxy.protocol import names
from proxy.protocol.envelope import LARGE
from proxy.protocol.jsonrpc import Notification, Request, RequestId
from proxy.room import Place
from proxy.routing.base import ClientRequest
from proxy.routing.legacy import LegacyHandler
from proxy.routing.own_tasks import MAY_BE_OURS, concerns_our_tasks
from proxy.routing.router import Router
from proxy.routing.well_known import Documents

QUIET_S: Final = 10.0  # a stream begins, or gets a comment: whatever is in the middle cuts at 20 or more

_LEGACY: Final = Era.LEGACY  # to name a member of an enum takes a microsecond each time

log = get_logger()


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """`supported`: the versions that are served, which -32022 lists. Legacy ones are among them only where
    the endpoint has a handler for them. `has_others`: nobody may take all the room that there is."""

    path: str
    max_body_bytes: int
    max_depth: int
    supported: Sequence[str]
    body_s: float
    max_result_bytes: int = 64 << 20
    has_others: bool = False


class HttpEndpoint:
    """The handlers of the MCP endpoint. `watch` must be running."""

    def __init__(
        self,
        router: Router,
        guard: Guard,
        credentials: Credentials,
        secret: bytes,
        *,
        requests: Gauge,
        listens: Gauge,
        lookups: LookupLimit,
        peers: Peers,
        settings: HttpSettings,
        clock: Clock,
        legacy: LegacyHandler | None = None,
        well_known: Documents | None = None,
        admission: Admission = OPEN,
        metrics: Metrics = UNSERVED,
    ) -> None:
        self._metrics = metrics
        self._admission = admission
        self._router = router
        self.guard = guard
        self._credentials = credentials
        self._secret = secret
        self._requests = requests
        self._listens = listens
        self._lookups = lookups
        self._peers = peers
        self._settings = settings
        self._bodies = Bodies(
            settings.max_body_bytes,
            settings.body_s,
            has_others=settings.has_others,
            knows_owners=admission.gate is not None,
        )
        self._answers = Answers(settings.max_result_bytes, has_others=settings.has_others)
        self._clock = clock
        self._writer = writer = ReplyWriter(clock)
        self._pages = None if well_known is None else WellKnownPages(well_known, guard, writer, requests)
        self._legacy = (
            None
            if legacy is None
            else LegacyEntrance(
                legacy,
                writer,
                requests=requests,
                listens=listens,
                lookups=self._begin_lookup,
                answers=self._answers,
                admission=admission,
                clock=clock,
                metrics=metrics,
            )
        )
        self._retry_after_s: int | None = None

    def add_to(self, app: web.Application) -> None:
        """Both spellings of the path, without a redirect (F26)."""
        app.on_response_prepare.append(self._before_head)
        for path in {self._settings.path, self._settings.path.rstrip("/") + "/"}:
            app.router.add_route("POST", path, self.post)
            app.router.add_route("OPTIONS", path, self.preflight)
            app.router.add_route("*", path, self.other)
        if self._pages is not None:
            self._pages.add_to(app)
            app.router.add_route("OPTIONS", EVERY_PAGE, self.preflight)

    async def watch(self) -> None:
        """Look after what is written piece by piece until cancelled."""
        await self._writer.watch()

    def drain(self, retry_after_s: int) -> None:
        """Refuse new requests from now on, saying when to come back."""
        self._retry_after_s = retry_after_s
        if self._legacy is not None:
            self._legacy.drain(retry_after_s)
        if self._pages is not None:
            self._pages.drain(retry_after_s)

    async def wait_idle(self) -> None:
        """Until no request is being answered."""
        while self._requests.held or self._listens.held:
            await self._requests.wait_empty()
            await self._listens.wait_empty()

    # -- handlers -----------------------------------------------------------------------------------

    async def post(self, http: web.Request) -> web.StreamResponse:
        rid: RequestId | None = None
        place: Place | None = None
        taken: Place | None = None
        try:
            self.guard.check(host_of(http), origins_of(http))
            admitted = None if self._admission.gate is None else await self._admission.admit(http)
            body = self._bodies.at_hand(http)
            if body is None:
                place = taken = self._place(http, admitted)
                body = await self._bodies.read(http, place)
            if len(body) <= LARGE:
                posted = read_posted(body, _versions_in(http), self._settings.max_depth)
            else:
                posted = await aside(partial(read_posted, body, _versions_in(http), self._settings.max_depth))
            del body  # while the request is served, only what is needed of it is held
            if place is not None:
                place = kept_with(posted, place)
            rid = posted.rid
            if (legacy := self._serving_legacy(posted.era)) is not None:
                return await legacy.post(http, posted, self._owner(http, admitted))
            request = self._read(http, posted, admitted)
            del posted
            if isinstance(request, Notification):
                return web.Response(status=HTTPStatus.ACCEPTED)
            self._admit(http, request)
            if request.method == names.SUBSCRIPTIONS_LISTEN:
                request = replace(request, good_for_s=self._admission.good_for_s(http))
            gauge = self._listens if request.method == names.SUBSCRIPTIONS_LISTEN else self._requests
            with gauge.hold(request.owner):
                return await self._serve(http, request)
        except anyio.get_cancelled_exc_class():  # the client is gone: its call ends, and the rest is garbage
            if taken is not None:
                taken.leave()
            raise
        except Rejection as exc:
            self._metrics.refused(exc.fault)
            return refusal(exc.rid, exc.fault)
        except ProxyError as exc:
            self._metrics.refused(exc)
            return refusal(rid, exc)
        except Exception:
            log.exception("request_failed")
            return refusal(rid, InternalError())
        finally:
            if place is not None:
                place.leave()

    async def other(self, http: web.Request) -> web.StreamResponse:
        """GET, HEAD and DELETE belong to legacy sessions (HTTP-028)."""
        try:
            self.guard.check(host_of(http), origins_of(http))
            legacy = self._serving_legacy(header_era(_versions_in(http)))
            if legacy is not None and http.method in METHODS:
                return await legacy.other(http, self._owner(http, await self._admission.admit(http)))
        except ProxyError as exc:
            self._metrics.refused(exc)
            return refusal(None, exc)
        except Exception:
            log.exception("request_failed")
            return refusal(None, InternalError())
        allowed = "POST, OPTIONS" if legacy is None else "GET, POST, DELETE, OPTIONS"
        return plain_response(HTTPStatus.METHOD_NOT_ALLOWED, [("Allow", allowed)])

    async def preflight(self, http: web.Request) -> web.StreamResponse:
        """Answered before any authentication, for pages that may talk to us (F30)."""
        if not self.guard.allows(origins_of(http)):
            return web.Response(status=HTTPStatus.FORBIDDEN)
        requested = http.headers.get("Access-Control-Request-Headers", "")
        return plain_response(HTTPStatus.NO_CONTENT, self.guard.preflight_headers(requested))

    async def _before_head(self, http: web.Request, response: web.StreamResponse) -> None:
        """For every response, also those of aiohttp's own (F30)."""
        leave_as_given(response)
        if origins := origins_of(http):
            response.headers.extend(self.guard.cors_headers(origins))
        if self._admission.urls is not None:
            self._admission.put_right(response)

    # -- reading ------------------------------------------------------------------------------------

    def _serving_legacy(self, era: Era) -> LegacyEntrance | None:
        """Whoever serves a message of this era, None if that is the router."""
        return self._legacy if era is _LEGACY else None

    def _place(self, http: web.Request, admitted: Owner | None) -> Place:
        owner = admitted or owner_of(authorization_of(http), self._secret)
        return self._bodies.place(owner, self._peers.of(http))

    def _owner(self, http: web.Request, admitted: Owner | None) -> Owner:
        authorization = authorization_of(http)
        owner = admitted or owner_of(authorization, self._secret)
        if authorization is not None or admitted is not None:
            self._note(owner, authorization)
        return owner

    def _note(self, owner: Owner, authorization: str | None) -> None:
        is_doubtful = self._admission.doubts(authorization)
        self._credentials.note(owner, authorization, is_doubtful=is_doubtful)

    def _read(
        self, http: web.Request, posted: Posted, admitted: Owner | None
    ) -> ClientRequest | Notification:
        """The modern request that was posted. Raises Rejection."""
        if posted.is_batch:
            fault = "Invalid request: the message is an array (batches are not supported)"
            raise Rejection(None, ClientProtocolError(ErrorCode.INVALID_REQUEST, fault))
        authorization = authorization_of(http)
        owner = admitted or owner_of(authorization, self._secret)
        headers = Headers([(key.lower(), value) for key, value in http.headers.items()])
        request = read_message(posted.messages[0], headers, owner, self._settings.supported)
        self._note(owner, authorization)  # only of what is a request
        return request

    def _admit(self, http: web.Request, request: ClientRequest) -> None:
        if request.method in MAY_BE_OURS and concerns_our_tasks(request.method, request.params):
            self._admission.refuse_spent(http)
        if self._retry_after_s is not None and request.method not in names.TASK_METHODS:
            raise ShuttingDown(retry_after_s=self._retry_after_s)
        if request.method == names.SUBSCRIPTIONS_LISTEN and not accepts_stream(http):
            raise ClientProtocolError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid request: {request.method} is answered by an event stream, which Accept leaves out",
                status=HTTPStatus.NOT_ACCEPTABLE,
            )

    # -- answering ----------------------------------------------------------------------------------

    async def _serve(self, http: web.Request, request: ClientRequest) -> web.StreamResponse:
        """Have the request handled, and write what comes of it as it comes."""
        place = self._answers.place(request.owner)
        exchange = Exchange(place=place)
        responder = Responder(http, request, self._clock, quiet_s=QUIET_S)
        if request.method in names.TASK_METHODS or _names_tasks(request):
            exchange.lookup_failed = self._begin_lookup(http, request.owner)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(handle, self._router, request, exchange)
                try:
                    await responder.write(exchange)
                except ConnectionError:  # the client is gone, or has stopped reading
                    log.debug("client_gone", method=request.method)
                    if http.transport is not None:
                        http.transport.abort()  # what is half written must not be followed by anything
                tasks.cancel_scope.cancel()
        finally:
            place.leave()
        return responder.response or web.Response()

    def _begin_lookup(self, http: web.Request, owner: Owner) -> Callable[[], None]:
        """See `LookupLimit.begin`."""
        return self._lookups.begin(self._peers.of(http), owner)


def kept_with(posted: Posted, place: Place) -> Place | None:
    """A large body takes its place as long as anything of ours holds what was read of it, which may be a task
    that runs for hours; a small one leaves it now. What is returned is left when the request has been served.
    """
    message = posted.messages[0]
    known = message.known if isinstance(message, Request | Notification) else None
    if place.size <= LARGE:
        place.leave()
    elif known is not None:
        finalize(known, place.leave).atexit = False
    else:
        return place
    return None


def _names_tasks(request: ClientRequest) -> bool:
    """Whether a stream is asked for that may tell of tasks."""
    raw = request.params.raw
    return request.method == names.SUBSCRIPTIONS_LISTEN and (b'"taskIds"' in raw or b"\\" in raw)


def _versions_in(http: web.Request) -> Sequence[str]:
    return http.headers.getall(names.H_PROTOCOL_VERSION, ())
