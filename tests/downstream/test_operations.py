"""`/healthz`, `/readyz` and `/metrics`, and what the HTTP endpoint has counted there."""

from __future__ import annotations

import anyio
import pytest
from aiohttp import web

from proxy.downstream import operations
from proxy.downstream.connection import ConnectionBounds
from proxy.downstream.guard import Guard
from proxy.downstream.operations import Operations
from proxy.downstream.server import served
from proxy.protocol import names
from tests.downstream.http_rig import http_rig
from tests.scrape import Scraped

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


async def test_metrics_are_served_where_they_are_added_and_not_beside_the_endpoint() -> None:
    """Contract section 11: "/metrics here only"."""
    async with http_rig() as rig:
        async with rig.session.get(rig.url.replace("/mcp", "/metrics")) as response:
            assert response.status == 404
        admin = web.Application()
        rig.operations.add_to(admin)
        rig.operations.add_metrics_to(admin)
        async with served(admin, "127.0.0.1", 0, ConnectionBounds(1024), setting="admin.listen") as port:
            at = f"http://127.0.0.1:{port}"
            rig.metrics.task_created()
            async with rig.session.get(f"{at}/metrics") as response:
                assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
                assert Scraped(await response.read()).value("tasks_created_total") == 1
            for path in ("/healthz", "/readyz"):
                async with rig.session.get(at + path) as response:
                    assert response.status == 200
            async with rig.session.post(f"{at}/metrics") as response:
                assert response.status == 405


async def test_a_web_page_with_a_name_for_a_loopback_address_is_told_nothing() -> None:
    """SEC-001: but that the proxy is there."""
    loopback = Guard(True, frozenset({"mcp.example.com"}), frozenset())
    async with http_rig() as rig:
        admin = web.Application()
        rig.operations.add_to(admin, loopback)
        rig.operations.add_metrics_to(admin, loopback)
        async with served(admin, "127.0.0.1", 0, ConnectionBounds(1024), setting="admin.listen") as port:

            async def status(path: str, host: str, **page: str) -> int:
                at = f"http://127.0.0.1:{port}{path}"
                async with rig.session.get(at, headers={"Host": host, **page}) as response:
                    return response.status

            for path in ("/readyz", "/metrics"):
                found = [await status(path, host) for host in ("rebound.evil.example", "mcp.example.com")]
                assert found == [403, 200]
                assert await status(path, f"localhost:{port}") == 200
                assert await status(path, f"localhost:{port}", Origin="https://evil.example") == 403
            assert await status("/healthz", "rebound.evil.example") == 200


async def test_requests_that_are_refused_before_they_are_read_count_by_their_reason() -> None:
    async with http_rig(requests=1) as rig:

        def refused(reason: str) -> float:
            return Scraped.of(rig.metrics).value("refusals_total", reason=reason)

        async with rig.post(headers={"Origin": "https://evil.example"}) as response:
            assert (response.status, refused("host_or_origin")) == (403, 1)
        async with rig.session.get(rig.url, headers={"Host": "evil.example"}) as response:
            assert (response.status, refused("host_or_origin")) == (403, 2)
        async with rig.session.post(rig.url, data=b"{") as response:
            assert (response.status, refused("invalid")) == (400, 1)
        async with rig.post(headers={names.H_METHOD: "tools/call"}) as response:
            assert (response.status, refused("invalid")) == (400, 2)
        rig.send()
        first = await rig.router.next()
        async with rig.post() as response:
            assert (response.status, refused("limit")) == (429, 1)
        rig.endpoint.drain(retry_after_s=7)
        async with rig.post() as response:
            assert (response.status, response.headers["Retry-After"], refused("shutting_down")) == (
                503,
                "7",
                1,
            )
        first.end()
