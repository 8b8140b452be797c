"""`/healthz` and `/readyz`."""

from __future__ import annotations

import anyio
import pytest
from aiohttp import web

from proxy.downstream import operations
from proxy.downstream.operations import Operations
from tests.downstream.http_rig import http_rig

pytestmark = pytest.mark.anyio


async def test_liveness_is_green_whatever_is_broken() -> None:
    """F41."""
    async with http_rig() as rig:
        rig.report["store"] = "disk full"
        async with rig.session.get(rig.url.replace("/mcp", "/healthz")) as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})


async def test_readiness_names_what_is_broken() -> None:
    """F41; contract section 9."""
    async with http_rig() as rig:
        url = rig.url.replace("/mcp", "/readyz")
        async with rig.session.get(url) as response:
            assert (response.status, await response.json()) == (200, {"ready": True, "store": "ok"})
        rig.report["store"] = "disk full"
        async with rig.session.get(url) as response:
            assert (response.status, await response.json()) == (503, {"ready": False, "store": "disk full"})
        assert rig.router.seen == []


async def test_what_shuts_down_is_not_ready_but_lives() -> None:
    """F41: a load balancer sends nothing new."""
    async with http_rig() as rig:
        rig.operations.drain()
        async with rig.session.get(rig.url.replace("/mcp", "/readyz")) as response:
            report = await response.json()
            assert (response.status, report["ready"], report["proxy"]) == (503, False, "shutting down")
        async with rig.session.get(rig.url.replace("/mcp", "/healthz")) as response:
            assert response.status == 200


async def test_readiness_does_not_hang_with_what_it_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6."""
    monkeypatch.setattr(operations, "REPORT_TIMEOUT_S", 0.05)

    async def never() -> dict[str, str]:
        await anyio.sleep_forever()
        return {}

    async def scraped() -> bytes:
        return b""

    app = web.Application()
    Operations(never, scraped).add_to(app)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        with anyio.fail_after(5):
            async with await anyio.connect_tcp("127.0.0.1", runner.addresses[0][1]) as stream:
                await stream.send(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 503 ")
    finally:
        await runner.cleanup()
