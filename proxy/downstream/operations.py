"""`/healthz` and `/readyz`, for those who run the proxy.

Liveness is local and always green while the event loop turns. Readiness names what is broken; it opens
nothing upstream. No secret and no task id is in either. Contract sections 9 and 11.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

Report = Callable[[], Awaitable[dict[str, str]]]
"""What is looked at, by name: "ok", or in words what is wrong."""


class Operations:
    def __init__(self, report: Report) -> None:
        self._report = report

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)

    async def healthz(self, http: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(self, http: web.Request) -> web.Response:
        report = await self._report()
        ready = all(state == "ok" for state in report.values())
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return web.json_response({"ready": ready, **report}, status=status)
