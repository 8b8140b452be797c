"""Legacy clients over HTTP before a server that speaks Streamable HTTP: nobody notices the proxy.

Holds F20, F24, F25, F26, F28, F29, F31, F40 and F41 on a real wire, HTTP-060 to HTTP-068, HTTP-074, VER-006,
and the row "proxy killed" of the contract's section 9 for sessions that are the server's own.
"""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import anyio.to_thread
import pytest
from aiohttp import web
from multidict import CIMultiDict

from proxy.protocol import names
from tests.real.bench import Bench
from tests.real.proxy_process import EXIT_BOUND_S, ProxyProcess
from tests.real.session_client import CAN, SessionClient, connected, text
from tests.real.task_client import Kind
from tests.real.test_http_sessions import plain_client
from tests.real.waiting import asked_until, together, until
from tests.setup_tools import TESTS
from tests.upstream.fake_http import EVENT_STREAM, FakeHttp, Seen, answer, start_stream, stream

pytestmark = pytest.mark.anyio

SUITE_BOUND_S: Final = 240.0
MANY: Final = 150


# ----------------------------------------------------------------------------------------- the suite


async def test_the_conformance_suite_passes_as_without_the_proxy(bench: Bench) -> None:
    """All that passes before the server itself, at both revisions."""
    legacy = await bench.legacy("http")
    proxy = await bench.proxy(legacy.upstream)
    out = await conformance("run", proxy.url, "-s", "core-2025-06-18", "-s", "core-2025-11-25")
    assert f"{27 + 33} passed, 0 failed" in out, out
    assert "SKIP" not in out, out


async def conformance(*arguments: str) -> str:
    run = partial(
        subprocess.run,
        [sys.executable, "-m", "tests.tools.conformance", *arguments],
        cwd=TESTS.parent,
        timeout=SUITE_BOUND_S,
        capture_output=True,
        text=True,
    )
    ran = await anyio.to_thread.run_sync(run)
    return ran.stdout + ran.stderr


# -------------------------------------------------------------------------------------- real clients


async def test_plain_clients_are_served_as_without_the_proxy(bench: Bench, tmp_path: Path) -> None:
    legacy = await bench.legacy("http", "--pre-delay", "0")
    proxy = await bench.proxy(legacy.upstream)
    kinds: list[Kind] = ["sdk1", "npm1"]
    homes = {kind: tmp_path / kind for kind in kinds}
    for home in homes.values():
        home.mkdir()
    await together(plain_client(kind, proxy.url, home) for kind, home in homes.items())


# ------------------------------------------------------------------------------------------ restarts


@asynccontextmanager
async def session(proxy: ProxyProcess) -> AsyncIterator[SessionClient]:
    async with connected(proxy.url) as client:
        await client.initialize(**CAN)
        yield client


async def test_a_kill_of_the_proxy_breaks_no_session_and_no_stream_that_can_be_resumed(bench: Bench) -> None:
    """F24: each event once, the answer included; the call ran on meanwhile, once (HTTP-063)."""
    legacy = await bench.legacy("http", "--pre-delay", "0")
    proxy = await bench.proxy(legacy.upstream)
    job = {
        "name": "progress_job",
        "arguments": {"steps": 4, "delay": 0.3},
        "_meta": {"progressToken": "t"},
    }
    async with session(proxy) as client:
        before = client.session_id
        async with client.asking(names.TOOLS_CALL, job) as call:
            while not [event for event in call.events if event.data]:
                await call.message()
            heard, last = len([event for event in call.events if event.data]), call.last_id
            await proxy.kill9()
        await proxy.restart()

        async with client.listening(last) as resumed:
            rest: list[dict[str, Any]] = []
            while not (rest and "result" in rest[-1]):
                message = await resumed.message()
                assert message is not None
                rest.append(message)
        assert [message["params"]["progress"] for message in rest[:-1]] == list(range(heard, 5))
        assert text(await client.call("confirm_delete", filename="f")) == "deleted f"
        async with client.listening() as get:
            await client.call("test_trigger_tool_change")
            await get.until(names.TOOLS_LIST_CHANGED)
        assert client.session_id == before
        assert await client.status_of("DELETE") == HTTPStatus.OK
        assert await client.status_of("POST") == HTTPStatus.NOT_FOUND
    assert legacy.labels("cancelled") == {}


# ---------------------------------------------------------------------------------- byte by byte


JSON: Final = "application/json"
CALL: Final = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}'
ODD_CALL: Final = (
    b' {"method" : "tools/call",\r\n"id": "\\u00fc", "x": 1.10, "jsonrpc":"2.0",'
    b'"params":{"arguments":{"a":null,"a":1E400,"s":"\\ud83d"},"name":"x"}}\n'
)
BATCH: Final = b"[" + CALL + b' ,{"jsonrpc":"2.0","method":"notifications/x"}]'
EVENTS: Final = (
    b"\xef\xbb\xbf: hello\r\rid: 0\nretry: 50\ndata:\n\nevent: ping\r\ndata: x\r\n\r\n"
    b'data: {"jsonrpc":"2.0",\ndata: "id":1,"result":{}}\nvendor: 1\n\ndata: cut'
)
CHALLENGE: Final = (
    'Bearer realm="r", error="invalid_token", scope="a b", resource_metadata='
    '"https://u.internal:9/.well-known/oauth-protected-resource/mcp", Basic realm="x"'
)


@dataclass(frozen=True)
class Case:
    """One request of a client, and how the upstream answers it. A list as `body` is streamed as it stands."""

    method: str = "POST"
    sent: bytes | None = CALL
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    answered: Sequence[tuple[str, str]] = (("Content-Type", JSON),)
    body: bytes | list[bytes] = b'{"jsonrpc":"2.0","id":1,"result":{"n":1.10}}'
    path: str = ""


def get(**more: Any) -> Case:
    return Case("GET", None, {"Accept": EVENT_STREAM, "Mcp-Session-Id": "s-1"}, **more)


SSE: Final = (("Content-Type", EVENT_STREAM), ("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))
CASES: Final[Mapping[str, Case]] = {
    "json": Case(
        headers={
            "Authorization": "Bearer token",
            "MCP-Protocol-Version": "2025-06-18",
            "Mcp-Session-Id": "s-1",
            "Mcp-Param-Region": "ü",
            "User-Agent": "client/1",
            "X-Vendor": "a, b",
            "Cookie": "a=b",
        },
        answered=[
            ("Content-Type", JSON + "; charset=utf-8"),
            ("Mcp-Session-Id", "s-2"),
            ("Set-Cookie", "a=b"),
            ("Set-Cookie", "c=d"),
            ("X-Vendor", "1"),
            ("Server", "upstream/1"),
        ],
    ),
    "odd json": Case(sent=ODD_CALL, body=b' {"id": "\\u00fc","jsonrpc":"2.0" ,\r\n"result":{"s":"\\ud83d"}}'),
    "large": Case(sent=CALL[:-1] + b',"y":"' + b"x" * 3_000_000 + b'"}', body=b"y" * 3_000_000),
    "chunked json": Case(body=[b'{"jsonrpc":"2.0",', b'"id":1,"result":{}}']),
    "no type": Case(answered=[], body=b"?"),
    "batch": Case(sent=BATCH, headers={"MCP-Protocol-Version": "2025-03-26"}, body=b"[ " + CALL + b"]"),
    "accepted": Case(sent=b'{"jsonrpc":"2.0","method":"x"}', status=202, answered=[], body=b""),
    "answer of the client": Case(sent=b'{"jsonrpc":"2.0","id":7,"result":{}}', status=202, body=b""),
    "events": Case(answered=SSE, body=[EVENTS[:9], EVENTS[9:40], EVENTS[40:]]),
    "challenge": Case(
        status=401, answered=[("WWW-Authenticate", CHALLENGE), ("WWW-Authenticate", "X")], body=b""
    ),
    "forbidden": Case(status=403, answered=[("WWW-Authenticate", 'Bearer error="insufficient_scope"')]),
    "misdirected": Case(status=421, answered=[], body=b"Invalid Host"),
    "lost session": Case(status=404, body=b'{"jsonrpc":"2.0","id":"server-error","error":{}}'),
    "moved": Case(status=307, answered=[("Location", "/mcp/")], body=b""),
    "moved elsewhere": Case(status=301, answered=[("Location", "https://e.example/mcp?a=%2F")], body=b""),
    "page": Case(status=500, answered=[("Content-Type", "text/html")], body=b"<h1>"),
    "gzip": Case(
        headers={"Accept-Encoding": "gzip, br"},
        answered=[("Content-Type", JSON), ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")],
        body=gzip.compress(b"{}" * 999),
    ),
    "br although not asked": Case(answered=[("Content-Encoding", "br")], body=b"\x0b\x01\x80{}\x03"),
    "gzip that is none": Case(answered=[("Content-Encoding", "gzip")]),
    "gzip stream": Case(
        answered=[("Content-Type", EVENT_STREAM), ("Content-Encoding", "gzip")],
        body=[gzip.compress(EVENTS)[:30], gzip.compress(EVENTS)[30:]],
    ),
    "query": Case(path="?profile=a%2Fb&x"),
    "get": get(answered=SSE, body=[EVENTS[:30], EVENTS[30:]]),
    "resumed": Case(
        "GET",
        None,
        {"Accept": EVENT_STREAM, "Last-Event-ID": "7"},
        answered=SSE,
        body=[b"id: 8\ndata: x\n\n"],
    ),
    "get not offered": get(status=405, answered=[("Allow", "POST, DELETE")], body=b""),
    "get not found": get(status=404),
    "get refused": get(status=401, answered=[("WWW-Authenticate", "Bearer")]),
    "get malformed": get(status=400),
    "get is json": get(body=b'{"error":"no"}'),
    "get ends at once": get(answered=SSE, body=[b""]),
    "get gzipped": get(
        answered=[("Content-Type", EVENT_STREAM), ("Content-Encoding", "gzip")], body=[gzip.compress(EVENTS)]
    ),
    "deleted": Case("DELETE", None, {"Mcp-Session-Id": "s-1"}, body=b""),
    "deleted without content": Case("DELETE", None, {}, status=204, answered=[], body=b""),
    "delete not offered": Case("DELETE", None, {}, status=405, answered=[("Allow", "POST")], body=b""),
    "head": Case("HEAD", None, {}, body=b""),
}
DOCUMENTS: Final[Mapping[str, str]] = {
    "/.well-known/oauth-protected-resource/mcp": "/.well-known/oauth-protected-resource/v1/mcp",
    "/.well-known/oauth-protected-resource": "/.well-known/oauth-protected-resource",
    "/.well-known/openid-configuration?a=1": "/.well-known/openid-configuration?a=1",
}
CORS: Final = {"access-control-allow-origin": "*", "access-control-expose-headers": "X"}
OF_THE_HOP: Final = {"date", "connection", "keep-alive", "transfer-encoding"}
FROM_US: Final = {"host", "accept-encoding"}


class Playing(FakeHttp):
    """Plays whatever case is set."""

    def __init__(self) -> None:
        super().__init__()
        self.case = Case()
        self.handlers = dict.fromkeys(("POST", "GET", "DELETE", "HEAD"), self._play_case)

    async def _play_case(self, seen: Seen) -> web.StreamResponse:
        case = self.case
        headers = CIMultiDict([*case.answered, *CORS.items()])
        if isinstance(case.body, bytes):
            response = web.Response(status=case.status, headers=headers, body=case.body)
            response.headers.popall("Content-Type", None)
            response.headers.extend({k: v for k, v in case.answered if k == "Content-Type"})
            return response
        streamed = web.StreamResponse(status=case.status, headers=headers)
        await streamed.prepare(seen.request)
        for piece in case.body:
            await streamed.write(piece)
            await anyio.sleep(0.005)  # so that it comes in pieces
        return streamed


async def exchanged(client: aiohttp.ClientSession, url: str, case: Case) -> tuple[int, Any, bytes]:
    """Status, headers and body, as they came."""
    async with client.request(
        case.method,
        url,
        data=None if case.sent is None else io.BytesIO(case.sent),
        headers=case.headers,
        allow_redirects=False,
        skip_auto_headers=SKIPPED,
    ) as response:
        headers = [(key.lower(), value) for key, value in response.headers.items()]
        return response.status, sorted(h for h in headers if h[0] not in OF_THE_HOP), await response.read()


SKIPPED: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


def shown(seen: Seen) -> tuple[Any, ...]:
    headers = sorted((key.lower(), value) for key, value in seen.headers.items())
    return seen.method, seen.path, [h for h in headers if h[0] not in FROM_US], seen.body


@pytest.mark.parametrize("tasks", [True, False])
async def test_requests_and_responses_are_the_same_byte_by_byte(bench: Bench, tasks: bool) -> None:
    """F20, F25, F26, F28, F29, F31: with one exception, CORS, which is ours. The switch for tasks changes
    nothing for clients that do not ask."""
    upstream = Playing()
    async with upstream.serving(), aiohttp.ClientSession(auto_decompress=False) as client:
        there = upstream.url.replace("/mcp", "/v1/mcp")
        proxy = await bench.proxy(there, {"tasks": {"legacy_2025": tasks}})
        for name, upstream.case in CASES.items():
            upstream.seen.clear()
            direct = await exchanged(client, there + upstream.case.path, upstream.case)
            status, headers, body = direct
            direct = status, [h for h in headers if h[0] not in CORS], body
            proxied = await exchanged(client, proxy.url + upstream.case.path, upstream.case)
            assert proxied == direct, name
            to_server, through_us = upstream.seen
            assert shown(through_us) == shown(to_server), name
            assert through_us.headers["Host"] == to_server.headers["Host"], name

        upstream.case = Case("GET", None)
        for asked, reached in DOCUMENTS.items():
            upstream.seen.clear()
            status, headers, body = await exchanged(client, proxy.url.replace("/mcp", asked), upstream.case)
            assert (status, body, CORS.keys() & dict(headers)) == (200, upstream.case.body, set())
            assert [seen.path for seen in upstream.seen] == [reached]

        upstream.seen.clear()
        upstream.case = Case()
        for url in (proxy.url, proxy.url + "/"):
            assert (await exchanged(client, url, Case()))[0] == HTTPStatus.OK
        for refused in (b"[]", b"[1]", b"null", CALL.replace(b"1,", b"null,"), b"no json"):
            assert (await exchanged(client, proxy.url, Case(sent=refused)))[0] == HTTPStatus.BAD_REQUEST
        later = Case(sent=BATCH, headers={"MCP-Protocol-Version": "2025-06-18"})
        assert (await exchanged(client, proxy.url, later))[0] == HTTPStatus.BAD_REQUEST
        assert len(upstream.seen) == 2, "what is refused does not get to the server"


# ------------------------------------------------------------------------------------ many, and the end


async def test_many_clients_with_open_streams_all_get_their_answers_and_a_stop_ends_the_streams(
    bench: Bench,
) -> None:
    """F40, F41: streams end in good order, within the drain time."""
    upstream = FakeHttp()
    upstream.handlers |= {"POST": answer, "GET": stream(b": hello\n\n", hold=True)}
    async with upstream.serving(), AsyncExitStack() as stack:
        proxy = await bench.proxy(upstream.url, {"limits": {"listens": MANY + 50}})

        async def one() -> tuple[SessionClient, Any]:
            client = await stack.enter_async_context(connected(proxy.url))
            client.session_id, client.version = "s-1", "2025-06-18"
            return client, await stack.enter_async_context(client.listening())

        clients = await together(one() for _ in range(MANY))
        with anyio.fail_after(30):
            answers = await together(client.request(names.TOOLS_CALL, {"name": "x"}) for client, _ in clients)
        assert len(answers) == MANY
        first, streams = clients[0][0], [opened for _, opened in clients]
        for _ in range(50):
            streams.append(await stack.enter_async_context(first.listening()))
        async with first.exchange("GET", Accept=EVENT_STREAM) as refused:
            assert refused.status == HTTPStatus.TOO_MANY_REQUESTS
            assert int(refused.headers["Retry-After"]) > 0
        assert proxy.is_ready()
        with anyio.fail_after(EXIT_BOUND_S + 1):
            async with anyio.create_task_group() as group:
                group.start_soon(proxy.terminate)
                for opened in streams:
                    assert await opened.all() == []


async def test_a_call_that_runs_at_a_stop_gets_its_drain_time(bench: Bench) -> None:
    """F41: what is cut then is cut as if the connection broke; some servers let it be resumed."""
    upstream = FakeHttp()
    go_on = anyio.Event()

    async def play(seen: Seen) -> web.StreamResponse:
        if seen.message["params"]["name"] == "never":
            return await stream(b": hello\n\n", hold=True)(seen)
        await go_on.wait()
        response = await start_stream(seen)
        await response.write(b'data: {"jsonrpc":"2.0","id":1,"result":{}}\n\n')
        return response

    upstream.handlers["POST"] = play
    async with upstream.serving(), anyio.create_task_group() as group:
        proxy = await bench.proxy(upstream.url)
        async with connected(proxy.url) as client, client.asking(names.TOOLS_CALL, {"name": "never"}) as cut:
            got: list[Any] = []

            async def call() -> None:
                async with client.asking(names.TOOLS_CALL, {"name": "soon"}, rid=1) as exchange:
                    got.extend(await exchange.all())

            group.start_soon(call)
            await until(lambda: len(upstream.seen) == 2, "both calls are upstream", within_s=10)
            group.start_soon(proxy.terminate)
            with anyio.fail_after(EXIT_BOUND_S + 1):
                await asked_until(
                    lambda: client.status_of("GET"),
                    lambda status: status == HTTPStatus.SERVICE_UNAVAILABLE,
                    "it drains",
                    every_s=0.01,
                )
                go_on.set()
                with pytest.raises(aiohttp.ClientPayloadError):
                    await cut.all()
    assert got == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
