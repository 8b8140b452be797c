"""Streamable HTTP towards modern clients, on a real socket: what goes in, what comes out, and when.

Contract section 3; Streamable HTTP 2026-07-28.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import pytest
from structlog.testing import capture_logs

from proxy.downstream import http as http_module
from proxy.downstream.exchange import MAX_QUEUED
from proxy.errors import (
    ClientProtocolError,
    ErrorCode,
    LimitReached,
    ProxyError,
    TaskNotFound,
    UpstreamRefused,
)
from proxy.owners import ANONYMOUS
from proxy.protocol import names
from proxy.routing.base import ErrorAnswer, ResultAnswer
from tests.downstream.http_rig import (
    MAX_BODY,
    OK,
    ORIGIN,
    Rig,
    Served,
    headers_of,
    http_rig,
    message,
    raw_post,
    read_all,
)

pytestmark = pytest.mark.anyio

LISTEN: Final = names.SUBSCRIPTIONS_LISTEN
EVIL: Final = "https://evil.example"
LOGS: Final = "notifications/message"


async def ask(rig: Rig, *args: Any, **kwargs: Any) -> tuple[int, dict[str, Any], aiohttp.ClientResponse]:
    """Status, JSON body and the response of one POST."""
    async with rig.post(*args, **kwargs) as response:
        return response.status, json.loads(await response.read()), response


# ------------------------------------------------------------------------------ ids


async def test_ids_come_back_as_they_were_written() -> None:
    """BASE-003, BASE-009, F17."""
    async with http_rig() as rig:
        rig.router.always = OK
        for raw in (b"0", b"-1", b'"1"', b'""', b"9007199254740993", b'"\\u00fc"', '"ünï"'.encode()):
            body = message().replace(b'"id": 1', b'"id": ' + raw)
            async with rig.session.post(rig.url, data=body, headers=headers_of("tools/list", {})) as response:
                assert b'"id":' + raw + b"," in await response.read()


async def test_each_of_many_at_once_gets_its_own_answer() -> None:
    """BASE-005."""
    async with http_rig() as rig:
        sent = {n: rig.send(id=n) for n in range(100)}
        for served in reversed([await rig.router.next() for _ in sent]):
            served.end(ResultAnswer(b'{"n":' + served.request.id.raw + b"}"))
        for n, exchanged in sent.items():
            answer = json.loads(await exchanged.body())
            assert (answer["id"], answer["result"]) == (n, {"n": n})


async def test_listening_without_taking_streams_is_refused() -> None:
    async with http_rig() as rig:
        status, body, _ = await ask(rig, LISTEN, headers={"Accept": "application/json"})
        assert (status, body["id"], body["error"]["code"]) == (406, 1, -32600)
        assert rig.router.seen == []


# ------------------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    "fault, status, code",
    [
        (TaskNotFound(), 200, -32602),
        (ProxyError("ours"), 200, -32603),
        (RuntimeError("a bug"), 200, -32603),
        (ClientProtocolError(ErrorCode.METHOD_NOT_FOUND, "no"), 404, -32601),
        (ClientProtocolError(ErrorCode.MISSING_CLIENT_CAPABILITY, "no"), 400, -32021),
        (ClientProtocolError(ErrorCode.HEADER_MISMATCH, "no"), 400, -32020),
        (LimitReached("later", retry_after_s=7), 429, -32603),
        (UpstreamRefused("no", status=HTTPStatus.FORBIDDEN, challenges=()), 403, -32603),
    ],
)
async def test_a_fault_is_a_json_rpc_error_with_the_id_of_its_request(
    fault: Exception, status: int, code: int
) -> None:
    """BASE-009, HTTP-018, TX-GET-010: without internals."""
    async with http_rig() as rig:
        sent = rig.send(id="x")
        (await rig.router.next()).end(fault)
        assert (await sent.head()).status == status
        answer = json.loads(await sent.body())
        assert (answer["id"], answer["error"]["code"]) == ("x", code)
        assert "bug" not in answer["error"]["message"]


async def test_an_error_of_the_upstream_is_passed_on_raw() -> None:
    async with http_rig() as rig:
        rig.router.always = ErrorAnswer(b'{"code": -1, "message":"no", "data":1.0}', HTTPStatus.OK)
        async with rig.post() as response:
            assert await response.read() == (
                b'{"jsonrpc":"2.0","id":1,"error":{"code": -1, "message":"no", "data":1.0}}'
            )


async def test_the_challenges_of_the_upstream_are_passed_on() -> None:
    """F28, AUTH-005: each of them, with all its parameters; odd bytes do no harm."""
    challenges = ('Bearer realm="r", error="invalid_token", scope="a b"', 'Basic realm="x, y"')
    async with http_rig() as rig:
        rig.router.always = UpstreamRefused("refused", status=HTTPStatus.UNAUTHORIZED, challenges=challenges)
        status, body, response = await ask(rig)
        assert (status, body["error"]["code"]) == (401, -32603)
        assert tuple(response.headers.getall("WWW-Authenticate")) == challenges
        rig.router.always = UpstreamRefused(
            "refused", status=HTTPStatus.UNAUTHORIZED, challenges=('Bearer realm="caf\udce9"',)
        )
        status, body, _ = await ask(rig)
        assert status == 401


async def test_whoever_is_refused_for_now_is_told_when_to_come_back() -> None:
    async with http_rig(requests=1, listens=1) as rig:
        rig.send()
        served = await rig.router.next()
        status, body, response = await ask(rig, id=2)
        assert (status, body["id"]) == (429, 2)
        assert int(response.headers["Retry-After"]) >= 1
        assert "limits.requests" in body["error"]["message"]
        listening = rig.send(LISTEN)  # has a bound of its own
        stream = await rig.router.next()
        status, body, _ = await ask(rig, LISTEN)
        assert (status, "limits.listens" in body["error"]["message"]) == (429, True)
        async with rig.session.get(rig.url.replace("/mcp", "/healthz")) as response:
            assert response.status == 200
        served.end()
        stream.end()
        await listening.body()
        rig.router.always = OK
        assert (await ask(rig))[0] == 200


async def test_a_fault_of_our_own_while_reading_is_an_error_and_not_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(http_module, "read_message", broken)
    async with http_rig() as rig:
        status, body, _ = await ask(rig)
        assert (status, body["error"]["code"]) == (200, -32603)
        assert "bug" not in json.dumps(body)


# ------------------------------------------------------------------------------ hang-up


async def test_a_hang_up_before_any_answer_cancels_the_request() -> None:
    """HTTP-014."""
    async with http_rig() as rig:
        sent = rig.send()
        served = await rig.router.next()
        sent.hang_up()
        await rig.endpoint.wait_idle()
        assert served.cancelled.is_set()


async def test_a_hang_up_in_the_middle_of_a_stream_cancels_the_request() -> None:
    """HTTP-014, SUB-008."""
    async with http_rig() as rig:
        sent = rig.send(LISTEN)
        served = await rig.router.next()
        served.tell(progress=1)
        await sent.until(b"progress")
        sent.hang_up()
        await rig.endpoint.wait_idle()
        assert served.cancelled.is_set()


async def test_a_request_ends_with_the_answer_that_its_stream_was_read_too_slowly() -> None:
    """I6: nobody reads what it still says."""
    async with http_rig() as rig:
        sent = rig.send(LISTEN)
        served = await rig.router.next()
        for _ in range(MAX_QUEUED + 1):
            served.tell(names.RESOURCES_UPDATED)
        await served.cancelled.wait()
        assert b"too slowly" in await sent.body()


async def test_a_hang_up_while_the_body_comes_in_is_no_fault_of_ours() -> None:
    async with http_rig() as rig:
        with capture_logs() as logs:
            async with await rig.connect() as stream:
                await stream.send(raw_post(message())[:-10])
            rig.router.always = OK
            assert (await ask(rig))[0] == 200
        assert [entry for entry in logs if entry["log_level"] in ("warning", "error")] == []
        assert len(rig.router.seen) == 1


async def test_of_two_requests_in_a_pipe_the_second_waits_and_a_hang_up_ends_both() -> None:
    """HTTP-014."""
    async with http_rig() as rig:
        async with await rig.connect() as stream:
            await stream.send(raw_post(message(id=1)) + raw_post(message(id=2)))
            first = await rig.router.next()
        await first.cancelled.wait()
        await rig.endpoint.wait_idle()
        assert len(rig.router.seen) == 1


async def test_requests_in_a_pipe_are_answered_in_order() -> None:
    async with http_rig() as rig, await rig.connect() as stream:
        await stream.send(raw_post(message(id=1)) + raw_post(message(id=2), more="Connection: close\r\n"))
        (await rig.router.next()).end(ResultAnswer(b'{"first":1}'))
        (await rig.router.next()).end(ResultAnswer(b'{"second":2}'))
        answers = await read_all(stream)
        assert answers.index(b"first") < answers.index(b"second")


async def test_every_request_of_a_connection_is_judged_alone() -> None:
    """BASE-016, VER-003: its version, its capabilities, its owner."""
    async with http_rig() as rig:
        rig.router.always = OK
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=connector) as session:
            for version, token in ((names.LATEST_MODERN, "a"), ("v999", "a"), (names.LATEST_MODERN, None)):
                headers = {**headers_of("tools/list", {}), names.H_PROTOCOL_VERSION: version}
                if token is not None:
                    headers["Authorization"] = f"Bearer {token}"
                body = message().replace(names.LATEST_MODERN.encode(), version.encode())
                async with session.post(rig.url, data=body, headers=headers) as response:
                    assert response.status == (400 if version == "v999" else 200)
        first, second = (request.owner for request in rig.router.seen)
        assert not first.is_anonymous
        assert second == ANONYMOUS
        assert rig.credentials.headers(first) == {"Authorization": "Bearer a"}


# ------------------------------------------------------------------------------ what is no request


async def test_a_notification_is_accepted_and_has_no_answer() -> None:
    """HTTP-006, BASE-015."""
    async with http_rig() as rig:
        body = b'{"jsonrpc":"2.0","method":"notifications/anything"}'
        async with rig.session.post(rig.url, data=body) as response:
            assert (response.status, await response.read()) == (202, b"")
        assert rig.router.seen == []


@pytest.mark.parametrize(
    "body, code",
    [
        (b"", -32700),
        (b'{"jsonrpc":', -32700),
        (b'{"a":"\xff"}', -32700),
        (b"[" * 100 + b"]" * 100, -32700),
        (b"[]", -32600),
        (b"[" + message() + b"]", -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
        (b'{"jsonrpc":"2.0","method":7}', -32600),
        (message(id=None), -32600),
        (message().replace(b'"2.0"', b'"1.0"'), -32600),
    ],
)
async def test_what_is_no_request_is_refused(body: bytes, code: int) -> None:
    """HTTP-005, HTTP-006, HTTP-079, BASE-001, BASE-002, BASE-003, F20."""
    async with http_rig() as rig:
        async with rig.session.post(rig.url, data=body, headers=headers_of("tools/list", {})) as response:
            answer = json.loads(await response.read())
            assert (response.status, answer["error"]["code"]) == (400, code)
        assert rig.router.seen == []


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_both_spellings_of_the_path_are_served(path: str) -> None:
    """HTTP-001, F26."""
    async with http_rig() as rig:
        rig.router.always = OK
        url = rig.url.replace("/mcp", path)
        async with rig.session.post(
            url, data=message(), headers=headers_of("tools/list", {}), allow_redirects=False
        ) as response:
            assert response.status == 200


@pytest.mark.parametrize("path", ["/", "/mcpx", "/mcp/x", "/.well-known/oauth-protected-resource"])
async def test_other_paths_are_not_found(path: str) -> None:
    """HTTP-001: without a JSON-RPC body."""
    async with http_rig() as rig, rig.session.post(rig.url.replace("/mcp", path), data=message()) as response:
        assert response.status == 404
        assert "jsonrpc" not in await response.text()


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "HEAD"])
async def test_other_methods_are_not_allowed(method: str) -> None:
    """HTTP-028, F25."""
    async with http_rig() as rig:
        headers = {names.H_PROTOCOL_VERSION: names.LATEST_MODERN}
        async with rig.session.request(method, rig.url, headers=headers) as response:
            assert response.status == 405
            assert "POST" in response.headers["Allow"]


async def test_header_names_have_no_case() -> None:
    """HTTP-026."""
    async with http_rig() as rig:
        rig.router.always = OK
        headers = {key.swapcase(): value for key, value in headers_of("tools/list", {}).items()}
        async with rig.session.post(rig.url, data=message(), headers=headers) as response:
            assert response.status == 200


# ------------------------------------------------------------------------------ Host, Origin, CORS


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Origin": EVIL}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Origin": ORIGIN}, 200),
        ({"Origin": "http://localhost:5173"}, 200),
        ({"Host": "localhost:9999"}, 200),
        ({}, 200),
    ],
)
async def test_host_and_origin_are_checked_before_anything_is_read(
    headers: dict[str, str], status: int
) -> None:
    """HTTP-002, SEC-001, F29."""
    async with http_rig() as rig:
        rig.router.always = OK
        async with rig.post(headers=headers) as response:
            assert response.status == status
        assert len(rig.router.seen) == (status == 200)
        async with rig.session.get(rig.url, headers=headers) as response:
            assert response.status == (403 if status == 403 else 405)


async def test_a_page_that_may_talk_to_us_can_read_every_response() -> None:
    """F30: errors, aiohttp's own and streams included; exactly one set of headers."""
    async with http_rig() as rig:
        page = {"Origin": ORIGIN}
        rig.router.always = OK
        async with rig.post(headers=page) as response:
            seen = [response]
        rig.router.always = UpstreamRefused("no", status=HTTPStatus.UNAUTHORIZED, challenges=("Bearer",))
        for how in (
            rig.post(headers=page),
            rig.session.post(rig.url, data=b"x", headers=page),
            rig.session.post(rig.url, data=b'{"jsonrpc":"2.0","method":"a"}', headers=page),
            rig.session.post(rig.url.replace("/mcp", "/x"), headers=page),
            rig.session.get(rig.url, headers=page),
            rig.session.get(rig.url.replace("/mcp", "/healthz"), headers=page),
        ):
            async with how as response:
                seen.append(response)
        rig.router.always = None
        sent = rig.send(headers=page)
        served = await rig.router.next()
        served.tell(progress=1)
        seen.append(await sent.head())
        assert [response.status for response in seen] == [200, 401, 400, 202, 404, 405, 200, 200]
        for response in seen:
            assert response.headers.getall("Access-Control-Allow-Origin") == [ORIGIN]
            exposed = response.headers["Access-Control-Expose-Headers"]
            assert {"Mcp-Session-Id", "WWW-Authenticate", "MCP-Protocol-Version"} <= set(exposed.split(", "))
            assert "Origin" in response.headers["Vary"]
            assert "Access-Control-Allow-Credentials" not in response.headers


async def test_a_page_that_may_not_is_not_told_that_it_might() -> None:
    async with http_rig() as rig:
        for how in (
            rig.post(headers={"Origin": EVIL}),
            rig.session.options(rig.url, headers={"Origin": EVIL}),
        ):
            async with how as response:
                assert response.status == 403
                assert not [name for name in response.headers if name.startswith("Access-Control")]


async def test_a_preflight_is_answered_without_credentials() -> None:
    """F30."""
    asked = "authorization,content-type,mcp-protocol-version,mcp-session-id,last-event-id,mcp-method,mcp-name"
    async with http_rig() as rig:
        headers = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": f"{asked},mcp-param-region",
        }
        async with rig.session.options(rig.url, headers=headers) as response:
            assert response.status == 204
            allowed = set(response.headers["Access-Control-Allow-Headers"].split(", "))
            assert {*asked.split(","), "mcp-param-region"} <= allowed
            assert {"GET", "POST", "DELETE"} <= set(
                response.headers["Access-Control-Allow-Methods"].split(", ")
            )
            assert response.headers.getall("Access-Control-Allow-Origin") == [ORIGIN]


# ------------------------------------------------------------------------------ bounds of a body


async def test_a_body_up_to_the_limit_passes_and_one_over_it_is_refused() -> None:
    """SEC-003, F23: by its declared length and by what really comes."""
    async with http_rig() as rig:
        rig.router.always = OK
        padding = "x" * (MAX_BODY - len(message(pad="")))
        assert (await ask(rig, pad=padding))[0] == 200
        status, body, _ = await ask(rig, pad=padding + "x")
        assert (status, body["error"]["code"]) == (413, -32600)
        assert str(MAX_BODY) in body["error"]["message"]

        async def chunks() -> Any:
            for _ in range(40):
                yield b" " * 65_536

        async with rig.session.post(rig.url, data=chunks(), headers=headers_of("tools/list", {})) as response:
            assert response.status == 413


async def test_a_body_that_does_not_come_is_given_up() -> None:
    """SEC-003, I6."""
    async with http_rig(body_s=0.05) as rig, await rig.connect() as stream:
        await stream.send(raw_post(message())[:-10])
        assert (await stream.receive()).startswith(b"HTTP/1.1 408 ")


async def test_a_body_in_another_coding_is_refused() -> None:
    """SEC-003: whatever it would unpack to."""
    async with http_rig() as rig:
        status, body, _ = await ask(rig, headers={"Content-Encoding": "gzip"})
        assert (status, body["error"]["code"]) == (415, -32600)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_body_that_is_not_what_its_headers_say_is_the_clients_fault(at_once: bool) -> None:
    """Where aiohttp notices it while the body is being read, it does not tell: then the time is the bound."""
    async with http_rig(body_s=0.05) as rig, await rig.connect() as stream:
        with capture_logs() as logs:
            head = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            await stream.send(head if at_once else head + b"2\r\n{}\r\n")
            if not at_once:
                await rig.clock.advance(0)  # by now it is being read
            await stream.send(b"zz\r\nnothing\r\n")
            assert (await stream.receive()).split()[1] in (b"400", b"408")
        assert [entry for entry in logs if entry["log_level"] == "error"] == []


# ------------------------------------------------------------------------------ the end


async def test_while_draining_running_tasks_are_still_served() -> None:
    """Contract section 9: new calls are refused; what runs may be read, answered and cancelled."""
    async with http_rig() as rig:
        rig.endpoint.drain(retry_after_s=5)
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            sent = rig.send(method, taskId="t")
            served: Served = await rig.router.next()
            served.end()
            assert json.loads(await sent.body())["id"] == 1


async def test_while_draining_new_requests_are_told_when_to_come_back() -> None:
    """F41: with their id; what runs goes on, health stays reachable."""
    async with http_rig() as rig:
        sent = rig.send()
        served: Served = await rig.router.next()
        rig.endpoint.drain(retry_after_s=5)
        for method in ("tools/list", "subscriptions/listen"):
            status, body, response = await ask(rig, method, id="late")
            assert (status, body["id"], response.headers["Retry-After"]) == (503, "late", "5")
        async with rig.session.get(rig.url.replace("/mcp", "/healthz")) as response:
            assert response.status == 200
        served.end()
        assert json.loads(await sent.body())["id"] == 1
        await rig.endpoint.wait_idle()
