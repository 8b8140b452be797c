"""Streamable HTTP towards clients: one endpoint, each request its own POST.

Above: `app`, which starts and stops it. Below: `validation` (is it a request), the router (what happens to
it), `responses` (what is written of it), `base` (errors). aiohttp cancels a handler whose client hangs up;
that is how a hang-up reaches the call. Streamable HTTP 2026-07-28; contract section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import anyio
from aiohttp import web

from proxy.clock import Clock, Pulse
from proxy.downstream.base import headers_of_fault, message_of_fault
from proxy.downstream.exchange import Exchange
from proxy.downstream.guard import Guard
from proxy.downstream.responses import Responder, accepts_stream
from proxy.downstream.validation import Headers, Rejection, read_request
from proxy.errors import ClientProtocolError, ErrorCode, InternalError, LimitReached, ProxyError
from proxy.limits import Gauge
from proxy.logs import get_logger
from proxy.owners import Credentials, owner_of
from proxy.protocol import names
from proxy.protocol.jsonrpc import Notification, RequestId
from proxy.routing.base import ClientRequest
from proxy.routing.router import Router

QUIET_S: Final = 10.0  # a stream begins, or gets a comment: whatever is in the middle cuts at 20 or more
BODY_TIMEOUT_S: Final = 60.0  # a body that trickles in holds memory

log = get_logger()


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """`supported`: the versions that -32022 lists."""

    path: str
    max_body_bytes: int
    max_depth: int
    supported: Sequence[str]


class HttpEndpoint:
    """The handlers of the MCP endpoint."""

    def __init__(
        self,
        router: Router,
        guard: Guard,
        credentials: Credentials,
        secret: bytes,
        *,
        calls: Gauge,
        listens: Gauge,
        settings: HttpSettings,
        clock: Clock,
    ) -> None:
        self._router = router
        self._guard = guard
        self._credentials = credentials
        self._secret = secret
        self._calls = calls
        self._listens = listens
        self._settings = settings
        self._clock = clock
        self._retry_after_s: int | None = None
        self._ends = Pulse()

    def add_to(self, app: web.Application) -> None:
        """Both spellings of the path, without a redirect (F26)."""
        app.on_response_prepare.append(self._add_cors)
        for path in {self._settings.path, self._settings.path.rstrip("/") + "/"}:
            app.router.add_route("POST", path, self.post)
            app.router.add_route("OPTIONS", path, self.preflight)
            app.router.add_route("*", path, self.not_allowed)

    def drain(self, retry_after_s: int) -> None:
        """Refuse new requests from now on, saying when to come back."""
        self._retry_after_s = retry_after_s

    async def wait_idle(self) -> None:
        """Until no request is being answered."""
        while self._calls.held or self._listens.held:
            await self._ends.event.wait()

    # -- handlers -----------------------------------------------------------------------------------

    async def post(self, http: web.Request) -> web.StreamResponse:
        rid: RequestId | None = None
        try:
            self._guard.check(http.headers.get("Host"), http.headers.get("Origin"))
            request = self._read(await self._body(http), http)
            if isinstance(request, Notification):
                return web.Response(status=HTTPStatus.ACCEPTED)
            rid = request.id
            self._admit(http, request)
            gauge = self._listens if request.method == names.SUBSCRIPTIONS_LISTEN else self._calls
            try:
                with gauge.hold():
                    return await self._serve(http, request)
            finally:
                self._ends.beat()
        except Rejection as exc:
            return _refusal(exc.rid, exc.fault)
        except ProxyError as exc:
            return _refusal(rid, exc)
        except Exception:
            log.exception("request_failed")
            return _refusal(rid, InternalError())

    async def preflight(self, http: web.Request) -> web.StreamResponse:
        """Answered before any authentication, for pages that may talk to us (F30)."""
        origin = http.headers.get("Origin")
        if origin is None or not self._guard.allows_origin(origin):
            return web.Response(status=HTTPStatus.FORBIDDEN)
        requested = http.headers.get("Access-Control-Request-Headers", "")
        return _response(HTTPStatus.NO_CONTENT, self._guard.preflight_headers(requested))

    async def not_allowed(self, http: web.Request) -> web.StreamResponse:
        """GET and DELETE belong to legacy sessions (HTTP-028)."""
        try:
            self._guard.check(http.headers.get("Host"), http.headers.get("Origin"))
        except ProxyError as exc:
            return _refusal(None, exc)
        return _response(HTTPStatus.METHOD_NOT_ALLOWED, [("Allow", "POST, OPTIONS")])

    async def _add_cors(self, http: web.Request, response: web.StreamResponse) -> None:
        """To every response, also those of aiohttp's own (F30)."""
        response.headers.extend(self._guard.cors_headers(http.headers.get("Origin")))

    # -- reading ------------------------------------------------------------------------------------

    async def _body(self, http: web.Request) -> bytes:
        """The whole body, at most `max_body_bytes` of it, within BODY_TIMEOUT_S."""
        limit = self._settings.max_body_bytes
        if http.headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
            raise _bad_body("a body with Content-Encoding is not accepted", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        too_large = _bad_body(
            f"the body is over {limit} bytes (limits.body)", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        )
        if http.content_length is not None and http.content_length > limit:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            with anyio.fail_after(BODY_TIMEOUT_S):
                async for part in http.content.iter_any():
                    size += len(part)
                    if size > limit:
                        raise too_large
                    parts.append(part)
        except TimeoutError:
            raise _bad_body("the body did not arrive in time", HTTPStatus.REQUEST_TIMEOUT) from None
        except web.RequestPayloadError:
            raise _bad_body("the body is not what its headers say", HTTPStatus.BAD_REQUEST) from None
        return b"".join(parts)

    def _read(self, body: bytes, http: web.Request) -> ClientRequest | Notification:
        authorization = http.headers.get("Authorization")
        owner = owner_of(authorization, self._secret)
        headers = Headers([(key.lower(), value) for key, value in http.headers.items()])
        settings = self._settings
        request = read_request(
            body, headers, owner, max_depth=settings.max_depth, supported=settings.supported
        )
        self._credentials.note(owner, authorization)
        return request

    def _admit(self, http: web.Request, request: ClientRequest) -> None:
        if self._retry_after_s is not None and request.method not in names.TASK_METHODS:
            raise LimitReached(
                "the proxy is shutting down; nothing was sent to the server",
                retry_after_s=self._retry_after_s,
                status=HTTPStatus.SERVICE_UNAVAILABLE,
            )
        if request.method == names.SUBSCRIPTIONS_LISTEN and not accepts_stream(http):
            raise ClientProtocolError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid request: {request.method} is answered by an event stream, which Accept leaves out",
                status=HTTPStatus.NOT_ACCEPTABLE,
            )

    # -- answering ----------------------------------------------------------------------------------

    async def _serve(self, http: web.Request, request: ClientRequest) -> web.StreamResponse:
        """Have the request handled, and write what comes of it as it comes."""
        exchange, responder = Exchange(), Responder(http, request, self._clock, quiet_s=QUIET_S)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._handle, request, exchange)
            try:
                await responder.write(exchange)
            except (ConnectionError, TimeoutError):  # the client is gone, or has stopped reading
                log.debug("client_gone", method=request.method)
                if http.transport is not None:
                    http.transport.abort()  # what is half written must not be followed by anything
            tasks.cancel_scope.cancel()
        return responder.response or web.Response()

    async def _handle(self, request: ClientRequest, exchange: Exchange) -> None:
        try:
            exchange.finish(await self._router.handle(request, exchange))
        except ProxyError as exc:
            exchange.fail(exc)
        except Exception:
            log.exception("request_failed", method=request.method)
            exchange.fail(InternalError())


def _refusal(rid: RequestId | None, fault: ProxyError) -> web.Response:
    headers = [("Content-Type", "application/json"), *headers_of_fault(fault)]
    return _response(fault.http_status, headers, message_of_fault(rid, fault))


def _response(
    status: HTTPStatus, headers: Iterable[tuple[str, str]], body: bytes | None = None
) -> web.Response:
    response = web.Response(status=status, body=body)
    response.headers.extend(headers)
    return response


def _bad_body(message: str, status: HTTPStatus) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.INVALID_REQUEST, f"Invalid request: {message}", status=status)
