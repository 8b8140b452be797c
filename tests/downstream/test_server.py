"""What is no HTTP, or has headers over the limit: refused clearly, and nothing of it repeated.

Contract section 8, "Bounds"; field report F23.
"""

from __future__ import annotations

import json
import logging

import anyio
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from proxy.downstream.server import served
from proxy.errors import ConfigError
from tests.downstream.http_rig import BOUNDS, MAX_HEADER, OK, http_rig, message, raw_post, read_all

pytestmark = pytest.mark.anyio

SECRET = "Bearer tell-nobody"


@pytest.mark.parametrize(
    "header, value",
    [
        ("Authorization", SECRET + "x" * 100_000),
        ("X-Other", SECRET + "x" * 100_000),
        (SECRET.replace(" ", "-") + "x" * 100_000, "y"),
    ],
)
async def test_a_header_over_the_limit_is_refused_clearly_and_not_repeated(
    header: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC-003, LOG-005: neither to the client nor in a log."""
    caplog.set_level(logging.DEBUG)
    async with http_rig() as rig, await rig.connect() as stream:
        with capture_logs() as logs:
            await stream.send(raw_post(message(), more=f"{header}: {value}\r\n"))
            answer = await read_all(stream)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split()[1] == b"431"
        assert json.loads(body)["error"]["code"] == -32600
        assert str(MAX_HEADER) in json.loads(body)["error"]["message"]
        for said in (answer.decode(), caplog.text, json.dumps(logs)):
            assert "tell-nobody" not in said


@pytest.mark.parametrize(
    "request_head",
    [
        f"GET / HTTP/1.1\r\nAuthorization {SECRET}\r\n\r\n",
        f"{SECRET}\r\n\r\n",
        f"GET /{SECRET} HTTP/9.9\r\n\r\n",
        f"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: {SECRET}\r\n\r\n",
        f"POST /mcp HTTP/1.1\r\nHost: a\r\nX: a\0{SECRET}\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SECRET,
    ],
)
async def test_what_is_no_http_is_refused_and_not_repeated(
    request_head: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC-003, LOG-005, I6."""
    caplog.set_level(logging.DEBUG)
    async with http_rig() as rig, await rig.connect() as stream:
        with capture_logs() as logs:
            await stream.send(request_head.encode("latin-1"))
            answer = await read_all(stream)
        assert answer.split()[1] == b"400"
        for said in (answer.decode(), caplog.text, json.dumps(logs)):
            assert "tell-nobody" not in said
        assert [entry for entry in logs if entry["log_level"] in ("warning", "error")] == []
        rig.router.always = OK
        async with rig.post() as response:
            assert response.status == 200


async def test_long_headers_of_real_clients_pass() -> None:
    """F23: a token of 12 kB, a name of 6 kB."""
    async with http_rig() as rig:
        rig.router.always = OK
        token, name = "Bearer " + "t" * 12_000, "n" * 6_000
        async with rig.post("tools/call", headers={"Authorization": token}, name=name) as response:
            assert response.status == 200
        [request] = rig.router.seen
        assert rig.credentials.headers(request.owner) == {"Authorization": token}


async def test_an_application_is_served_as_long_as_the_context_lasts() -> None:
    made = served(web.Application(), "127.0.0.1", 0, BOUNDS, setting="listen")
    async with made as port, await anyio.connect_tcp("127.0.0.1", port):
        pass
    with pytest.raises(OSError, match="connection attempts failed"):
        await anyio.connect_tcp("127.0.0.1", port)


async def test_an_address_that_another_has_is_a_fault_of_the_operators() -> None:
    app = web.Application()
    async with served(app, "127.0.0.1", 0, BOUNDS, setting="listen") as port:
        again = served(web.Application(), "127.0.0.1", port, BOUNDS, setting="admin.listen")
        with pytest.raises(ConfigError, match=rf"admin\.listen: 127\.0\.0\.1:{port} is in use by another"):
            async with again:
                pass
