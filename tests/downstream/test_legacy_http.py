"""Legacy clients at the HTTP entrance, on a real socket: who is served by whom, and when nobody is.

Contract sections 2, 6 and 8; Transports 2025-11-25, "Streamable HTTP".
"""

from __future__ import annotations

import json
from http import HTTPMethod
from typing import Any

import aiohttp
import anyio
import pytest
from structlog.testing import capture_logs
from yarl import URL

from proxy.errors import (
    ClientProtocolError,
    ErrorCode,
    ProxyError,
    UpstreamClosed,
    UpstreamRefused,
    UpstreamUnavailable,
)
from proxy.owners import ANONYMOUS, owner_of
from proxy.protocol import names
from proxy.protocol.jsonrpc import Notification, Request
from proxy.routing.legacy import Reply
from tests.downstream.http_rig import MAX_BODY, META, OK, ORIGIN, VERSION, Rig, http_rig
from tests.downstream.played_legacy import EVENTS, PlayedLegacy, Told, legacy_call
from tests.scrape import Scraped
from tests.upstream.told import until

pytestmark = pytest.mark.anyio

SESSION = {"Mcp-Session-Id": "s-1", "MCP-Protocol-Version": "2025-11-25"}
NOTE = {"jsonrpc": "2.0", "method": "notifications/initialized"}
ANSWER = {"jsonrpc": "2.0", "id": 7, "result": {}}


def post(rig: Rig, message: Any, **headers: str) -> aiohttp.client._RequestContextManager:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return rig.session.post(rig.url, data=body, headers={**SESSION, **headers})


async def ask(rig: Rig, message: Any, **headers: str) -> tuple[int, Any]:
    async with post(rig, message, **headers) as response:
        body = await response.read()
        return response.status, json.loads(body) if body else None


# -- who serves whom ----------------------------------------------------------------------------------


async def test_a_legacy_message_goes_to_the_handler_with_all_that_came() -> None:
    """HTTP-060."""
    legacy = PlayedLegacy()
    async with http_rig(legacy=legacy) as rig:
        body = b' {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}\n'
        headers = {**SESSION, "Authorization": "Bearer t", "X-Vendor": "ü"}
        url = URL(rig.url + "/?a=%2F&b", encoded=True)
        async with rig.session.post(url, data=body, headers=headers) as response:
            assert await response.read() == b'{"jsonrpc":"2.0","id":1,"result":{}}'
    [seen] = legacy.seen
    assert (seen.method, seen.body, seen.is_batch, seen.query) == (HTTPMethod.POST, body, False, "a=%2F&b")
    [message] = seen.messages
    assert isinstance(message, Request)
    assert message.method == "tools/call"
    assert seen.owner == owner_of("Bearer t", b"s" * 32)
    assert {key: seen.header(key) for key in headers} == headers
    assert rig.credentials.headers(seen.owner) == {"Authorization": "Bearer t"}
    assert rig.router.seen == []


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD"])
async def test_get_and_delete_of_legacy_go_to_the_handler(method: str) -> None:
    """HTTP-060."""
    legacy = PlayedLegacy(Reply(404, [("X-Vendor", "1")], b""))
    async with http_rig(legacy=legacy) as rig:
        for headers in ({}, SESSION, {**SESSION, "Last-Event-ID": "7"}):
            async with rig.session.request(method, rig.url + "?a=1", headers=headers) as response:
                assert (response.status, response.headers["X-Vendor"]) == (404, "1")
    assert [(seen.method, seen.body, seen.messages) for seen in legacy.seen] == [(method, b"", ())] * 3
    assert [seen.header("last-event-id") for seen in legacy.seen] == [None, None, "7"]
    assert {(seen.owner, seen.query) for seen in legacy.seen} == {(ANONYMOUS, "a=1")}


async def test_both_eras_are_served_at_once_on_one_endpoint() -> None:
    """VER-004, VER-005, HTTP-027: modern meta wins over a session id, which is not echoed."""
    legacy = PlayedLegacy()
    async with http_rig(legacy=legacy) as rig:
        rig.router.always = OK
        modern = legacy_call(method="tools/list", _meta=META)
        headers = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/list"}
        async with post(rig, modern, **headers) as response:
            assert (response.status, "Mcp-Session-Id" in response.headers) == (200, False)
        assert await ask(rig, legacy_call()) == (200, {"jsonrpc": "2.0", "id": 1, "result": {}})
    assert (len(rig.router.seen), len(legacy.seen)) == (1, 1)


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD"])
async def test_get_and_delete_with_a_modern_header_are_not_allowed(method: str) -> None:
    """HTTP-028, F25."""
    legacy = PlayedLegacy()
    async with http_rig(legacy=legacy) as rig:
        headers = {**SESSION, "MCP-Protocol-Version": VERSION}
        async with rig.session.request(method, rig.url, headers=headers) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST, OPTIONS")
    assert legacy.seen == []


@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE"])
async def test_other_methods_are_not_allowed(method: str) -> None:
    async with http_rig(legacy=PlayedLegacy()) as rig, rig.session.request(method, rig.url) as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET, POST, DELETE, OPTIONS")


@pytest.mark.parametrize("version", ["1900-01-01", "draft", ""])
async def test_an_unknown_version_header_is_refused_with_400(version: str) -> None:
    """VER-019."""
    legacy = PlayedLegacy()
    async with http_rig(legacy=legacy) as rig:
        status, body = await ask(rig, legacy_call(), **{"MCP-Protocol-Version": version})
        assert (status, body["id"]) == (400, 1)
    assert legacy.seen == []


async def test_without_a_version_header_a_message_is_legacy() -> None:
    """VER-020."""
    legacy = PlayedLegacy()
    async with http_rig(legacy=legacy) as rig, rig.session.post(rig.url, json=[legacy_call()]) as response:
        assert response.status == 200
    assert legacy.seen[0].is_batch


async def test_where_no_legacy_version_is_served_such_clients_are_told_what_is() -> None:
    """VER-001."""
    async with http_rig() as rig:
        status, body = await ask(rig, legacy_call(method="initialize", protocolVersion="2025-06-18"))
        assert (status, body["error"]["code"]) == (400, -32022)
        assert body["error"]["data"] == {"supported": list(names.MODERN_VERSIONS), "requested": "2025-06-18"}
        async with rig.session.get(rig.url, headers=SESSION) as response:
            assert response.status == 405
        status, body = await ask(rig, [legacy_call()], **{"MCP-Protocol-Version": "2025-03-26"})
        assert (status, body["error"]["code"]) == (400, -32600)


async def test_modern_clients_are_told_of_legacy_versions_where_they_are_served() -> None:
    """VER-002."""
    async with http_rig(legacy=PlayedLegacy()) as rig:
        meta = {**META, names.META_PROTOCOL_VERSION: "2099-01-01"}
        status, body = await ask(
            rig, legacy_call(_meta=meta), **{"MCP-Protocol-Version": "2099-01-01", "Mcp-Method": "tools/call"}
        )
        assert (status, body["error"]["code"]) == (400, -32022)
        assert body["error"]["data"]["supported"] == [*names.LEGACY_VERSIONS, *names.MODERN_VERSIONS]


# -- what is refused here -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message, status, code",
    [
        (b"no json", 400, -32700),
        (b"\xff", 400, -32700),
        (b"[" * 100, 400, -32700),
        (legacy_call(None), 400, -32600),
        (legacy_call(True), 400, -32600),
        ([], 400, -32600),
        ([legacy_call()], 400, -32600),
        (b"x" * (MAX_BODY + 1), 413, -32600),
    ],
)
async def test_what_is_no_message_is_refused_and_not_passed_on(message: Any, status: int, code: int) -> None:
    """F17, F19, F20, F23."""
    legacy = PlayedLegacy()
    async with http_rig(legacy=legacy) as rig:
        got, body = await ask(rig, message)
        assert (got, body["error"]["code"]) == (status, code)
    assert legacy.seen == []


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}]
)
async def test_strangers_are_refused_whatever_their_method(headers: dict[str, str]) -> None:
    """F29."""
    legacy = PlayedLegacy()
    async with http_rig(legacy=legacy) as rig:
        for method in ("GET", "POST", "DELETE"):
            async with rig.session.request(
                method, rig.url, data=json.dumps(legacy_call()), headers=headers
            ) as response:
                assert response.status == 403
    assert legacy.seen == []


@pytest.mark.parametrize(
    "reply", [Reply(200, [], b"{}"), Reply(404, [], b""), UpstreamUnavailable("not there")]
)
async def test_every_response_to_a_page_that_may_talk_to_us_carries_one_set_of_cors_headers(
    reply: Any,
) -> None:
    """F30: also errors, and streams."""
    async with (
        http_rig(legacy=PlayedLegacy(reply)) as rig,
        post(rig, legacy_call(), Origin=ORIGIN) as response,
    ):
        assert response.headers.getall("Access-Control-Allow-Origin") == [ORIGIN]
        assert "Mcp-Session-Id" in response.headers["Access-Control-Expose-Headers"]


# -- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault, status, code",
    [
        (UpstreamUnavailable("not there"), 502, -32603),
        (UpstreamClosed("gone"), 502, -32603),
        (UpstreamRefused("no", status=401, challenges=("Bearer x",)), 401, -32603),  # type: ignore[arg-type]
        (ClientProtocolError(ErrorCode.INVALID_REQUEST, "no"), 400, -32600),
        (ProxyError("ours"), 200, -32603),
        (RuntimeError("a bug"), 200, -32603),
    ],
)
async def test_a_fault_is_an_error_with_the_id_of_its_request(
    fault: Exception, status: int, code: int
) -> None:
    async with http_rig(legacy=PlayedLegacy(fault)) as rig:
        got, body = await ask(rig, legacy_call("x"))
        assert (got, body["id"], body["error"]["code"]) == (status, "x", code)
        assert "bug" not in body["error"]["message"]


@pytest.mark.parametrize("message", [NOTE, ANSWER])
async def test_a_fault_about_what_is_no_request_is_an_http_error(message: Any) -> None:
    """HTTP-061."""
    async with http_rig(legacy=PlayedLegacy(UpstreamUnavailable("not there"))) as rig:
        status, body = await ask(rig, message)
        assert (status, "id" in body) == (502, False)
        async with rig.session.get(rig.url) as response:
            assert response.status == 502


async def test_a_fault_of_ours_after_the_response_is_not_taken_for_another_one() -> None:
    async with http_rig(legacy=PlayedLegacy(at_exit=RuntimeError("a bug"))) as rig:
        with capture_logs() as logs:
            async with post(rig, legacy_call()) as response:
                assert response.status == 200
                assert await response.read() == b'{"jsonrpc":"2.0","id":1,"result":{}}'
            await until(lambda: any(entry["event"] == "request_failed" for entry in logs))


# -- hang-up, bounds, drain ---------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True])
async def test_who_hangs_up_leaves_the_context_of_the_handler(streams: bool) -> None:
    """HTTP-063: what that means is the handler's business; here everything ends."""
    legacy = PlayedLegacy(Reply(200, EVENTS, Told()) if streams else Reply(200, []), held=anyio.Event())
    async with http_rig(legacy=legacy) as rig:
        if streams:
            legacy.held = None
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                async with post(rig, legacy_call()) as response:
                    await response.read()

            tasks.start_soon(call)
            await until(lambda: legacy.seen)
            tasks.cancel_scope.cancel()
        await rig.endpoint.wait_idle()
        assert legacy.left == len(legacy.seen) == 1


async def test_calls_and_streams_have_bounds_of_their_own() -> None:
    """F40: who is refused is told when to come back; what a call may be waiting for always passes."""
    first, second = anyio.Event(), anyio.Event()
    legacy = PlayedLegacy(held=first)
    async with http_rig(legacy=legacy, requests=1, listens=1) as rig, anyio.create_task_group() as tasks:
        tasks.start_soon(ask, rig, legacy_call())
        await until(lambda: legacy.seen)
        for message in (legacy_call(2), [legacy_call(2), NOTE]):
            async with post(rig, message, **{"MCP-Protocol-Version": "2025-03-26"}) as response:
                assert response.status == 429
                assert int(response.headers["Retry-After"]) >= 1
        tasks.start_soon(get, rig)
        await until(lambda: len(legacy.seen) == 2)
        async with rig.session.get(rig.url) as response:
            assert (response.status, "limits.listens" in await response.text()) == (429, True)
        assert len(legacy.seen) == 2
        legacy.held = second
        for message in (NOTE, ANSWER):
            tasks.start_soon(ask, rig, message)
        await until(lambda: len(legacy.seen) == 4)
        first.set()
        second.set()


async def get(rig: Rig) -> int:
    async with rig.session.get(rig.url, headers=SESSION) as response:
        await response.read()
        return response.status


async def test_a_drain_refuses_what_is_new_and_lets_the_rest_come_to_its_end() -> None:
    """F41: answers, notifications and DELETE pass; streams that never end are ended."""
    call, stream = Told(), Told()
    legacy = PlayedLegacy(Reply(200, EVENTS, call))
    got: list[bytes] = []
    async with http_rig(legacy=legacy) as rig, anyio.create_task_group() as tasks:

        async def read(method: str) -> None:
            data = json.dumps(legacy_call()) if method == "POST" else None
            async with rig.session.request(method, rig.url, data=data) as response:
                got.append(await response.read())

        tasks.start_soon(read, "POST")
        await until(lambda: len(legacy.seen) == 1)
        legacy.reply = Reply(200, EVENTS, stream)
        tasks.start_soon(read, "GET")
        await until(lambda: len(legacy.seen) == 2)

        rig.endpoint.drain(retry_after_s=5)
        assert legacy.drained
        await until(lambda: len(got) == 1)

        legacy.reply = Reply(202, [], b"")
        for message in (NOTE, ANSWER):
            assert (await ask(rig, message))[0] == 202
        async with rig.session.delete(rig.url) as response:
            assert response.status == 202
        seen = len(legacy.seen)
        async with post(rig, legacy_call()) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "5")
        assert await get(rig) == 503
        assert len(legacy.seen) == seen

        call.tell(b"data: 1\n\n")
        call.end()
        await rig.endpoint.wait_idle()
        await until(lambda: len(got) == 2)
        assert got[1] == b"data: 1\n\n"


async def test_what_is_no_request_is_read_as_such() -> None:
    legacy = PlayedLegacy(Reply(202, [], b""))
    async with http_rig(legacy=legacy) as rig:
        assert await ask(rig, NOTE) == (202, None)
    assert isinstance(legacy.seen[0].messages[0], Notification)


# -- what is counted ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "outcome", "reason"),
    [
        (Reply(200, [], b"{}"), "result", None),
        (Reply(401, [("WWW-Authenticate", "Bearer")], b""), "refused", "auth"),
        (Reply(404, [], b""), "refused", None),
        (Reply(500, [], b""), "upstream_failed", None),
        (UpstreamUnavailable("down"), "upstream_failed", None),
        (ClientProtocolError(ErrorCode.INVALID_REQUEST, "no"), "refused", "invalid"),
        (ValueError("a bug"), "proxy_failed", None),
    ],
)
async def test_a_request_counts_by_its_method_and_by_what_became_of_it(
    reply: Reply | Exception, outcome: str, reason: str | None
) -> None:
    async with http_rig(legacy=PlayedLegacy(reply)) as rig:
        before = Scraped.of(rig.metrics)
        await ask(rig, NOTE)
        assert Scraped.of(rig.metrics).changed_since(before) <= {f'refusals_total{{reason="{reason}"}}'}
        before = Scraped.of(rig.metrics)
        await ask(rig, legacy_call(method="tools/call"))
        moved = Scraped.of(rig.metrics).changed_since(before)
        wanted = {f'requests_total{{era="legacy",method="tools_call",outcome="{outcome}"}}'}
        wanted |= {'request_duration_seconds_count{method="tools_call"}'}
        wanted |= set() if reason is None else {f'refusals_total{{reason="{reason}"}}'}
        assert moved == wanted


async def test_a_client_that_hangs_up_counts_as_that() -> None:
    legacy = PlayedLegacy(held=anyio.Event())
    async with http_rig(legacy=legacy) as rig:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, rig, legacy_call())
            await until(lambda: legacy.seen)
            tasks.cancel_scope.cancel()
        await until(lambda: legacy.left)
        labels = {"era": "legacy", "method": "tools_call", "outcome": "hung_up"}
        assert Scraped.of(rig.metrics).value("requests_total", **labels) == 1
