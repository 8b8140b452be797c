"""`/.well-known/*` at the HTTP entrance, for clients of both eras.

Above: `http`. Below: `routing.well_known`, which has the documents, and `reply_writer`. Asked without
credentials, and by browsers from anywhere. Contract section 6; field report F28.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web

from proxy.downstream.guard import Guard
from proxy.downstream.reply_writer import ReplyWriter
from proxy.downstream.responses import refusal
from proxy.downstream.single import host_of, origins_of
from proxy.errors import InternalError, ProxyError, ShuttingDown, UpstreamError
from proxy.limits import Gauge
from proxy.logs import get_logger
from proxy.owners import ANONYMOUS
from proxy.routing.well_known import PREFIX, Documents

EVERY_PAGE: Final = PREFIX + "{document:.+}"

log = get_logger()


class WellKnownPages:
    """Handlers for GET and HEAD."""

    def __init__(self, documents: Documents, guard: Guard, writer: ReplyWriter, requests: Gauge) -> None:
        self._documents = documents
        self._guard = guard
        self._writer = writer
        self._requests = requests
        self._retry_after_s: int | None = None

    def add_to(self, app: web.Application) -> None:
        app.router.add_get(EVERY_PAGE, self.get)

    def drain(self, retry_after_s: int) -> None:
        """Refuse new requests from now on, saying when to come back."""
        self._retry_after_s = retry_after_s

    async def get(self, http: web.Request) -> web.StreamResponse:
        try:
            self._guard.check(host_of(http), origins_of(http))
            if self._retry_after_s is not None:
                raise ShuttingDown(retry_after_s=self._retry_after_s)
            with self._requests.hold(ANONYMOUS):  # who asks is not known yet
                return await self._writer.write(
                    http,
                    self._documents.document(
                        http.method,
                        http.rel_url.raw_path,
                        http.rel_url.raw_query_string,
                        tuple(http.headers.items()),
                    ),
                )
        except UpstreamError as exc:
            return refusal(None, exc, exc.status or HTTPStatus.BAD_GATEWAY)
        except ProxyError as exc:
            return refusal(None, exc)
        except Exception:
            log.exception("request_failed")
            return refusal(None, InternalError(), HTTPStatus.INTERNAL_SERVER_ERROR)  # 200 would be a document
