"""deploy/nginx.conf and deploy/Caddyfile at work: nothing is held back, cut off or sent twice on the way.

Holds F03 of the field reports for what stands in front of us.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import anyio
import pytest

from proxy.downstream.http import QUIET_S
from proxy.protocol import names
from tests.real.bench import Bench
from tests.real.gateways import KINDS, NAME, Gateway
from tests.real.legacy import Legacy
from tests.real.modern_client import EVENT_STREAM, ModernClient
from tests.real.waiting import together
from tests.upstream.fake_http import FakeHttp
from tests.upstream.fake_http import status as answering

pytestmark = pytest.mark.anyio

SETTINGS: Final[dict[str, Any]] = {"allowed_hosts": [NAME], "tasks": {"threshold": "500ms"}}
BOUND_S: Final = 30.0
HOST: Final = {"Host": NAME}


@dataclass(frozen=True, slots=True)
class Front:
    """Gateways, the proxy behind them, and the server behind that."""

    legacy: Legacy
    urls: tuple[str, ...]


async def made(bench: Bench, *kinds: str) -> Front:
    legacy = await bench.legacy("stdio")
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    gateways = [Gateway(kind, bench.home, proxy.port) for kind in kinds]
    for gateway in gateways:
        bench.stack.push_async_callback(gateway.stop)
        await gateway.start()
    return Front(legacy, tuple(gateway.url for gateway in gateways))


@asynccontextmanager
async def calling(url: str, name: str, arguments: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
    """A call of a client without tasks, to be read as it comes, or to be left."""
    meta = {
        names.META_PROTOCOL_VERSION: names.LATEST_MODERN,
        names.META_CLIENT_CAPABILITIES: {},
        "progressToken": "token",
    }
    params = {"name": name, "arguments": arguments, names.META: meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": names.TOOLS_CALL, "params": params}
    headers = {
        **HOST,
        "Accept": f"application/json, {EVENT_STREAM}",
        names.H_PROTOCOL_VERSION: names.LATEST_MODERN,
        names.H_METHOD: names.TOOLS_CALL,
        names.H_NAME: name,
    }
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as response:
        yield response


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_and_its_stream_come_as_they_happen(bench: Bench, kind: str) -> None:
    """The stream never ends in this test: what is held back would never come."""
    front = await made(bench, kind)
    with anyio.fail_after(BOUND_S):
        async with ModernClient(front.urls[0], headers=HOST) as client:
            called = await client.call_tool("cancellable_job", {"seconds": 300, "label": "job"})
            async with client.listen(taskIds=[called.task_id]) as stream:
                assert (await anext(stream))["method"] == "notifications/subscriptions/acknowledged"
                assert (await client.get_task(called.task_id)).result["status"] == "working"
                await client.cancel_task(called.task_id)
                while (told := await anext(stream))["params"]["status"] == "working":
                    pass
                assert (told["method"], told["params"]["status"]) == ("notifications/tasks", "cancelled")
    await front.legacy.happened("cancelled", "job")


@pytest.mark.parametrize("kind", KINDS)
async def test_progress_comes_while_the_call_runs(bench: Bench, kind: str) -> None:
    front = await made(bench, kind)
    with anyio.fail_after(BOUND_S):
        async with calling(front.urls[0], "progress_job", {"steps": 1000, "delay": 0.5}) as response:
            assert response.content_type == EVENT_STREAM
            while b"step 2 of" not in (await response.content.readline()):
                pass


@pytest.mark.parametrize("kind", KINDS)
async def test_a_hang_up_ends_a_silent_call(bench: Bench, kind: str) -> None:
    front = await made(bench, kind)
    arguments = {"seconds": 300, "label": "left"}
    async with (
        ModernClient(front.urls[0], tasks=False, headers=HOST) as client,
        anyio.create_task_group() as group,
    ):
        group.start_soon(client.call_tool, "cancellable_job", arguments)
        await front.legacy.happened("start", "left")
        group.cancel_scope.cancel()
    await front.legacy.happened("cancelled", "left")
    assert front.legacy.labels("start")["left"] == 1


async def test_a_slow_silent_call_is_kept_alive_and_answered(bench: Bench) -> None:
    front = await made(bench, *KINDS)

    async def called(url: str, label: str) -> bytes:
        arguments = {"seconds": QUIET_S + 1, "label": label}
        async with calling(url, "cancellable_job", arguments) as response:
            assert (await response.content.readline()).startswith(b":")
            assert front.legacy.labels("finish")[label] == 0
            return await response.content.read()

    answers = await together(called(url, label) for url, label in zip(front.urls, KINDS, strict=True))
    for label, answer in zip(KINDS, answers, strict=True):
        assert f"finished {label}".encode() in answer


DOCUMENTS: Final = [
    *("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"),
    *("/.well-known/oauth-authorization-server", "/.well-known/oauth-authorization-server/as"),
    *("/.well-known/openid-configuration", "/.well-known/openid-configuration/as"),
]
FORGED: Final = {
    "X-Forwarded-Host": "forged.example",
    "X-Forwarded-Proto": "forged",
    "X-Real-IP": "9.9.9.9",
    "Forwarded": "for=9.9.9.9;host=forged.example",
    "X-User": "forged",
}


async def test_clients_find_the_documents_and_cannot_say_who_they_are(bench: Bench) -> None:
    """RFC 9728, section 3.1; contract section 8. The clients have addresses that are no gateway's."""
    async with FakeHttp().serving() as http:
        http.handlers["GET"] = answering(200, b"{}", Content_Type="application/json")
        settings = {
            **SETTINGS,
            "public_url": f"https://{NAME}/mcp",
            "trusted_proxies": ["127.0.0.1"],
            "limits": {"failed_lookups": "1/s"},
        }
        proxy = await bench.proxy(http.url, settings)

        async def tried(kind: str, address: str) -> None:
            gateway = Gateway(kind, bench.home, proxy.port)
            bench.stack.push_async_callback(gateway.stop)
            await gateway.start()
            async with aiohttp.ClientSession(headers={**HOST, **FORGED, "Mark": kind}) as session:
                for path in DOCUMENTS:
                    async with session.get(gateway.url.replace("/mcp", path)) as response:
                        assert (response.status, await response.read()) == (HTTPStatus.OK, b"{}"), path
                async with session.post(gateway.url, json={"jsonrpc": "2.0", "method": "x"}) as response:
                    assert response.status == HTTPStatus.ACCEPTED
            async with ModernClient(gateway.url, headers=HOST, address=address) as client:
                answers = [
                    await client.get_task("tpx-" + "A" * 32, headers={"X-Forwarded-For": f"9.9.9.{n}"})
                    for n in range(20)
                ]
            assert answers[0].error["code"] == -32602
            assert HTTPStatus.TOO_MANY_REQUESTS in [answer.status for answer in answers]

        with anyio.fail_after(BOUND_S):
            async with anyio.create_task_group() as group:
                for number, kind in enumerate(KINDS, 2):
                    group.start_soon(tried, kind, f"127.0.0.{number}")
    for kind in KINDS:
        came = [seen for seen in http.seen if seen.headers.get("Mark") == kind]
        assert len(came) > len(DOCUMENTS)
        for seen in came:
            assert not set(seen.headers.values()) & set(FORGED.values()), seen.headers


@pytest.mark.parametrize("kind", KINDS)
async def test_other_paths_and_other_hosts_are_not_served(bench: Bench, kind: str) -> None:
    (url,) = (await made(bench, kind)).urls
    async with aiohttp.ClientSession(headers=HOST) as session:
        for path in ("/healthz", "/readyz"):
            async with session.get(url.replace("/mcp", path)) as response:
                assert response.status == HTTPStatus.NOT_FOUND
    async with ModernClient(url, headers={"Host": "evil.example"}) as stranger:
        assert b"result" not in (await stranger.request(names.DISCOVER)).raw
