"""`/healthz`, `/readyz` and `/metrics`, for those who run the proxy.

Liveness is local and always green while the event loop turns. Readiness names what is broken; it opens
nothing upstream. Metrics stand on `admin.listen` alone, the other two also beside the MCP endpoint. No
secret, no task id and no tool argument is in any of them. What tells something is not told to a web page that
has got a name of its own for a loopback address (SEC-001). Contract sections 9 and 11.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import anyio
from aiohttp import web

from proxy.downstream.guard import ANYBODY, Guard
from proxy.downstream.responses import refusal
from proxy.downstream.single import host_of, origins_of
from proxy.errors import AccessDenied
from proxy.metrics import CONTENT_TYPE

REPORT_TIMEOUT_S: Final = 5.0  # a probe that hangs says less than one that fails

Report = Callable[[], Awaitable[dict[str, str]]]
"""What is looked at, by name: "ok", or in words what is wrong."""

Scrape = Callable[[], Awaitable[bytes]]
"""The metrics as they are now."""

_Handler = Callable[[web.Request], Awaitable[web.Response]]


class Operations:
    """The handlers."""

    def __init__(self, report: Report, scrape: Scrape) -> None:
        self._report = report
        self._scrape = scrape
        self._draining = False

    def drain(self) -> None:
        """Not ready any more, so that a load balancer sends nothing new."""
        self._draining = True

    def add_to(self, app: web.Application, guard: Guard = ANYBODY) -> None:
        """`guard`: of the address that the application is served on."""
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", _guarded(guard, self.readyz))

    def add_metrics_to(self, app: web.Application, guard: Guard = ANYBODY) -> None:
        """As `add_to`."""
        app.router.add_get("/metrics", _guarded(guard, self.metrics))

    async def healthz(self, http: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(self, http: web.Request) -> web.Response:
        report = {"report": f"took more than {REPORT_TIMEOUT_S:g} s"}
        with anyio.move_on_after(REPORT_TIMEOUT_S):
            report = await self._report()
        if self._draining:
            report = {**report, "proxy": "shutting down"}
        ready = all(state == "ok" for state in report.values())
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return web.json_response({"ready": ready, **report}, status=status)

    async def metrics(self, http: web.Request) -> web.Response:
        return web.Response(body=await self._scrape(), headers={"Content-Type": CONTENT_TYPE})


def _guarded(guard: Guard, handler: _Handler) -> _Handler:
    async def handle(http: web.Request) -> web.Response:
        try:
            guard.check(host_of(http), origins_of(http))
        except AccessDenied as exc:
            return refusal(None, exc)
        return await handler(http)

    return handle
