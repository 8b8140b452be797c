"""The HTTP server under the endpoints: aiohttp's, on connections of our own.

Above: `app`. Below: `connection`.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from aiohttp import web

from proxy.downstream.connection import ConnectionBounds, Server
from proxy.downstream.guard import ANYBODY, Guard
from proxy.errors import ConfigError

SHUTDOWN_S: Final = 2.0  # for handlers that are still at it when the server ends


class HttpRunner(web.AppRunner):
    """Runs an application as `web.AppRunner` does, on our connections; a hang-up cancels its handler."""

    def __init__(self, app: web.Application, bounds: ConnectionBounds, guard: Guard = ANYBODY) -> None:
        super().__init__(app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)
        self._bounds = bounds
        self._guard = guard

    async def _make_server(self) -> web.Server:
        return Server(await super()._make_server(), self._bounds, self._guard)


@asynccontextmanager
async def served(
    app: web.Application,
    host: str,
    port: int,
    bounds: ConnectionBounds,
    guard: Guard = ANYBODY,
    *,
    setting: str,
) -> AsyncIterator[int]:
    """Serve an application; yields the port, which is another one for 0. `guard` says which pages may read
    what was wrong with a request that never got as far as the application.

    Raises ConfigError, which names `setting`, if the address cannot be had.
    """
    runner = HttpRunner(app, bounds, guard)
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
