"""The HTTP server under the endpoints: aiohttp's, with our own words for what is no HTTP.

Above: `app`. aiohttp answers a malformed request, or one with headers over the limit, with the start of what
it could not read, and logs that too: it may be a credential. Ours say what was wrong and nothing else.
Contract section 8, "Bounds"; field report F23.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import anyio
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from proxy.downstream.base import message_of_fault
from proxy.errors import ClientProtocolError, ConfigError, ErrorCode
from proxy.logs import get_logger

SHUTDOWN_S: Final = 2.0  # for handlers that are still at it when the server ends

log = get_logger()


class Connection(web.RequestHandler):
    """One connection of a client."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        log.info("http_request_malformed", fault=type(exc).__name__)
        response = web.Response(
            status=_status_of(exc),
            body=message_of_fault(None, ClientProtocolError(ErrorCode.INVALID_REQUEST, self._words_for(exc))),
            content_type="application/json",
        )
        response.force_close()
        return response

    def _words_for(self, exc: HttpProcessingError) -> str:
        if isinstance(exc, LineTooLong):
            return f"Invalid request: a header is over {self.max_field_size} bytes (limits.header)"
        return "Invalid request: not well-formed HTTP"


def _status_of(exc: HttpProcessingError) -> HTTPStatus:
    if isinstance(exc, LineTooLong):
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    return HTTPStatus.BAD_REQUEST


class _Server(web.Server):
    def __call__(self) -> Connection:
        return Connection(self, loop=asyncio.get_running_loop(), **self._kwargs)


class HttpRunner(web.AppRunner):
    """Runs an application as `web.AppRunner` does, on our connections; a hang-up cancels its handler."""

    def __init__(self, app: web.Application, *, max_header_bytes: int) -> None:
        super().__init__(
            app,
            access_log=None,
            handler_cancellation=True,
            max_field_size=max_header_bytes,
            max_line_size=max_header_bytes,
            shutdown_timeout=SHUTDOWN_S,
        )

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        kwargs: dict[str, Any] = made._kwargs
        return _Server(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **kwargs,
        )


@asynccontextmanager
async def served(
    app: web.Application, host: str, port: int, *, max_header_bytes: int, setting: str
) -> AsyncIterator[int]:
    """Serve an application; yields the port, which is another one for 0.

    Raises ConfigError, which names `setting`, if the address cannot be had.
    """
    runner = HttpRunner(app, max_header_bytes=max_header_bytes)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as exc:
            in_use = exc.errno == errno.EADDRINUSE
            reason = "is in use by another program" if in_use else f"cannot be bound: {exc.strerror}"
            raise ConfigError(f"{setting}: {host}:{port} {reason}") from exc
        yield int(runner.addresses[0][1])
    finally:
        with anyio.move_on_after(SHUTDOWN_S * 2, shield=True):
            await runner.cleanup()
