"""Streamable HTTP towards clients: one endpoint, each request its own POST.

Above: `app`, which starts and stops it. Below: `validation` (is it a request), the router (what happens to
it), `base` (errors). A response is plain JSON when nothing but the result is to be sent, and becomes an
event stream with the first notification, or after some silence, so that a long call can be kept alive
with comments. aiohttp cancels a handler whose client hangs up; that is how a hang-up reaches the call.
Streamable HTTP 2026-07-28; contract section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import anyio
from aiohttp import web

from proxy.clock import Clock, Pulse
from proxy.downstream.base import headers_of_fault, message_of, message_of_fault
from proxy.downstream.exchange import Exchange
from proxy.downstream.guard import Guard
from proxy.downstream.validation import Headers, Rejection, read_request
from proxy.errors import ClientProtocolError, ErrorCode, LimitReached, ProxyError
from proxy.limits import Gauge
from proxy.logs import get_logger
from proxy.owners import Credentials, owner_of
from proxy.protocol import names, sse
from proxy.protocol.jsonrpc import Notification, RequestId
from proxy.routing.base import ClientRequest
from proxy.routing.router import Router

QUIET_S: Final = (
    10.0  # a silent response becomes a stream, a silent stream gets a comment; proxies cut at 20+
)
BODY_TIMEOUT_S: Final = 60.0  # a body that trickles in holds memory
WRITE_TIMEOUT_S: Final = 60.0  # a client that has stopped reading is cut; its task is not harmed
CHUNK_BYTES: Final = 256 * 1024
_STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}

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
            self._admit(http)
            request = self._read(await self._body(http), http)
            if isinstance(request, Notification):
                return self._respond(http, HTTPStatus.ACCEPTED)
            rid = request.id
            gauge = self._listens if request.method == names.SUBSCRIPTIONS_LISTEN else self._calls
            try:
                with gauge.hold():
                    return await self._serve(http, request)
            finally:
                self._ends.beat()
        except Rejection as exc:
            return self._respond_fault(http, exc.rid, exc.fault)
        except ProxyError as exc:
            return self._respond_fault(http, rid, exc)

    async def preflight(self, http: web.Request) -> web.StreamResponse:
        """Answered before any authentication, for pages that may talk to us (F30)."""
        origin = http.headers.get("Origin")
        if origin is None or not self._guard.allows_origin(origin):
            return self._respond(http, HTTPStatus.FORBIDDEN)
        requested = http.headers.get("Access-Control-Request-Headers", "")
        return self._respond(http, HTTPStatus.NO_CONTENT, self._guard.preflight_headers(requested))

    async def not_allowed(self, http: web.Request) -> web.StreamResponse:
        """GET and DELETE belong to legacy sessions (HTTP-028)."""
        try:
            self._guard.check(http.headers.get("Host"), http.headers.get("Origin"))
        except ProxyError as exc:
            return self._respond_fault(http, None, exc)
        return self._respond(http, HTTPStatus.METHOD_NOT_ALLOWED, [("Allow", "POST, OPTIONS")])

    # -- reading ------------------------------------------------------------------------------------

    def _admit(self, http: web.Request) -> None:
        self._guard.check(http.headers.get("Host"), http.headers.get("Origin"))
        if self._retry_after_s is not None:
            raise LimitReached(
                "the proxy is shutting down; nothing was sent to the server",
                retry_after_s=self._retry_after_s,
                status=HTTPStatus.SERVICE_UNAVAILABLE,
            )

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

    # -- answering ----------------------------------------------------------------------------------

    async def _serve(self, http: web.Request, request: ClientRequest) -> web.StreamResponse:
        """Have the request handled, and write what comes of it as it comes."""
        exchange = Exchange()
        response: web.StreamResponse | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._handle, request, exchange)
            try:
                response = await self._write_exchange(http, request, exchange)
            except (ConnectionError, TimeoutError):  # the client is gone, or has stopped reading
                log.debug("client_gone", method=request.method)
            tasks.cancel_scope.cancel()
        return response if response is not None else web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def _handle(self, request: ClientRequest, exchange: Exchange) -> None:
        try:
            exchange.finish(await self._router.handle(request, exchange))
        except ProxyError as exc:
            exchange.fail(exc)
        except Exception:
            log.exception("request_failed", method=request.method)
            exchange.fail(ProxyError("internal error of the proxy"))

    async def _write_exchange(
        self, http: web.Request, request: ClientRequest, exchange: Exchange
    ) -> web.StreamResponse:
        stream: web.StreamResponse | None = None
        may_stream = _accepts_stream(http.headers.get("Accept"))
        while True:
            changed = exchange.changed.event
            for message in exchange.take():
                if may_stream:
                    stream = stream or await self._open_stream(http)
                    await _write(stream, sse.encode(message))
            if exchange.done:
                break
            if not await self._clock.wait(changed, QUIET_S) and may_stream:
                stream = stream or await self._open_stream(http)
                await _write(stream, sse.comment())
        message, status = self._final(request, exchange)
        if stream is None:
            fault_headers = headers_of_fault(exchange.fault) if exchange.fault else []
            return await self._send_json(http, status, message, fault_headers)
        await _write(stream, sse.encode(message))
        await stream.write_eof()
        return stream

    @staticmethod
    def _final(request: ClientRequest, exchange: Exchange) -> tuple[bytes, HTTPStatus]:
        if exchange.answer is not None:
            return message_of(request.id, exchange.answer)
        assert exchange.fault is not None  # an exchange that is done has one or the other
        return message_of_fault(request.id, exchange.fault), exchange.fault.http_status

    async def _open_stream(self, http: web.Request) -> web.StreamResponse:
        """Headers and a first comment at once: some hold the status back until a byte of body (F03)."""
        headers = {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
        response = web.StreamResponse(status=HTTPStatus.OK, headers=headers)
        response.headers.extend(self._guard.cors_headers(http.headers.get("Origin")))
        await response.prepare(http)
        await _write(response, sse.comment())
        return response

    async def _send_json(
        self, http: web.Request, status: HTTPStatus, body: bytes, headers: Sequence[tuple[str, str]]
    ) -> web.StreamResponse:
        """A JSON body in pieces, so that a reader who stops is noticed."""
        response = web.StreamResponse(status=status)
        response.content_type = "application/json"
        response.content_length = len(body)
        response.headers.extend([*headers, *self._guard.cors_headers(http.headers.get("Origin"))])
        await response.prepare(http)
        for start in range(0, len(body), CHUNK_BYTES):
            await _write(response, body[start : start + CHUNK_BYTES])
        await response.write_eof()
        return response

    def _respond(
        self,
        http: web.Request,
        status: HTTPStatus,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> web.Response:
        response = web.Response(status=status, body=body or None)
        if body:
            response.content_type = "application/json"
        response.headers.extend([*headers, *self._guard.cors_headers(http.headers.get("Origin"))])
        return response

    def _respond_fault(self, http: web.Request, rid: RequestId | None, fault: ProxyError) -> web.Response:
        return self._respond(http, fault.http_status, headers_of_fault(fault), message_of_fault(rid, fault))


async def _write(response: web.StreamResponse, data: bytes) -> None:
    with anyio.fail_after(WRITE_TIMEOUT_S):
        await response.write(data)


def _accepts_stream(accept: str | None) -> bool:
    """A client that names what it accepts, and no event stream among it, gets JSON alone."""
    if accept is None:
        return True
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
    return bool(kinds & {"text/event-stream", "text/*", "*/*"})


def _bad_body(message: str, status: HTTPStatus) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.INVALID_REQUEST, f"Invalid request: {message}", status=status)
