"""Requests of our own to an upstream: redirects, and what is said of strange answers.

Where no credential may arrive, a second server records that nothing at all came.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPMethod

import aiohttp
import anyio
import pytest
from aiohttp import web

from proxy.errors import UpstreamProtocolError, UpstreamUnavailable
from proxy.upstream.endpoint import MAX_REDIRECTS, Endpoint
from proxy.upstream.http import make_client
from tests.upstream.fake_http import FakeHttp, Handler, Seen, one_by_one, status

pytestmark = pytest.mark.anyio


@pytest.fixture
async def upstream() -> AsyncIterator[FakeHttp]:
    async with FakeHttp().serving() as fake:
        yield fake


@asynccontextmanager
async def endpoint(url: str) -> AsyncIterator[Endpoint]:
    async with make_client() as client:
        yield Endpoint(url, name="search", client=client, headers=lambda: {"X-Api-Key": "secret-key"})
        assert isinstance(client.connector, aiohttp.BaseConnector)
        assert not client.connector._acquired


async def ask(to: Endpoint, method: str = "POST", body: bytes | None = b"{}") -> bytes:
    with anyio.fail_after(5):
        async with to.open(method, {"Content-Type": "application/json"}, body) as answer:
            assert answer.ok
            return await answer.body(1_000)


def moved(code: int, location: str) -> Handler:
    return status(code, b"moved", Location=location)


def at(path: str, otherwise: Handler) -> Handler:
    """Say `ok` at `path`."""

    async def play(seen: Seen) -> web.StreamResponse:
        return web.Response(body=b"ok") if seen.path == path else await otherwise(seen)

    return play


@pytest.mark.parametrize("code", [307, 308])
@pytest.mark.parametrize("location", ["/mcp/", "mcp/", "./mcp/", "//{host}/mcp/", "http://{host}/mcp/#x"])
async def test_a_redirect_within_the_origin_keeps_method_and_body_and_is_remembered(
    upstream: FakeHttp, code: int, location: str
) -> None:
    """F26: the trailing slash of Python servers."""
    host = upstream.url.split("/")[2]
    upstream.handlers["POST"] = at("/mcp/", moved(code, location.format(host=host)))
    async with endpoint(upstream.url) as to:
        assert await ask(to, body=b'{"id":1}') == b"ok"
        assert await ask(to, body=b'{"id":2}') == b"ok"
    assert [(seen.path, seen.body) for seen in upstream.seen] == [
        ("/mcp", b'{"id":1}'),
        ("/mcp/", b'{"id":1}'),
        ("/mcp/", b'{"id":2}'),
    ]
    assert all(seen.headers["X-Api-Key"] == "secret-key" for seen in upstream.seen)
    assert all(seen.headers["Content-Type"] == "application/json" for seen in upstream.seen)


@pytest.mark.parametrize("method", [HTTPMethod.GET, HTTPMethod.DELETE])
async def test_get_and_delete_follow_it_too(upstream: FakeHttp, method: str) -> None:
    upstream.handlers[method] = at("/mcp/", moved(307, "/mcp/"))
    async with endpoint(upstream.url) as to:
        assert await ask(to, method, None) == b"ok"
    assert [seen.method for seen in upstream.seen] == [method, method]


@pytest.mark.parametrize("code", [307, 308, 301, 302, 303])
async def test_another_origin_is_an_error_and_nothing_arrives_there(upstream: FakeHttp, code: int) -> None:
    """F26: not even the credential in a header of the operator's own."""
    async with FakeHttp().serving() as other:
        upstream.handlers["POST"] = moved(code, other.url.replace("//", "//user:pw@") + "?state=hidden")
        async with endpoint(upstream.url) as to:
            with pytest.raises(UpstreamProtocolError) as caught:
                await ask(to)
        assert caught.value.message == (
            f"upstream 'search' redirected ({code}) to {other.url}, which is not followed"
        )
        assert not other.seen
    assert len(upstream.seen) == 1


@pytest.mark.parametrize("code", [301, 302, 303])
async def test_a_redirect_that_would_turn_post_into_get_is_an_error(upstream: FakeHttp, code: int) -> None:
    """F26."""
    upstream.handlers["POST"] = moved(code, "/mcp/")
    async with endpoint(upstream.url) as to:
        with pytest.raises(UpstreamProtocolError, match=f"redirected \\({code}\\) to http.*/mcp/, which"):
            await ask(to)
    assert [seen.method for seen in upstream.seen] == ["POST"]


@pytest.mark.parametrize(
    "location", ["https://{host}/mcp", "http://localhost:{port}/mcp", "http://[", "mailto:x@y"]
)
async def test_another_scheme_or_host_is_another_origin(upstream: FakeHttp, location: str) -> None:
    """F26."""
    host = upstream.url.split("/")[2]
    upstream.handlers["POST"] = moved(307, location.format(host=host, port=host.split(":")[1]))
    async with endpoint(upstream.url) as to:
        with pytest.raises(UpstreamProtocolError, match="redirected"):
            await ask(to)
    assert len(upstream.seen) == 1


async def test_a_loop_of_redirects_ends(upstream: FakeHttp) -> None:
    """F26."""
    upstream.handlers["POST"] = one_by_one(*(moved(307, f"/{n}") for n in range(20)))
    async with endpoint(upstream.url) as to:
        with pytest.raises(UpstreamProtocolError, match="more than 5 times"):
            await ask(to)
        assert len(upstream.seen) == MAX_REDIRECTS + 1
        upstream.handlers["POST"] = status(200, b"ok")
        assert await ask(to) == b"ok"
    assert upstream.seen[-1].path == "/mcp"


async def test_five_redirects_are_followed(upstream: FakeHttp) -> None:
    upstream.handlers["POST"] = at("/4", one_by_one(*(moved(307, f"/{n}") for n in range(5))))
    async with endpoint(upstream.url) as to:
        assert await ask(to) == b"ok"
    assert len(upstream.seen) == MAX_REDIRECTS + 1


async def test_a_url_that_is_none_is_an_upstream_that_cannot_be_reached() -> None:
    async with endpoint("http:///mcp") as to:
        with pytest.raises(UpstreamUnavailable, match="could not be reached"):
            await ask(to)


async def test_a_name_that_does_not_resolve_is_an_upstream_that_cannot_be_reached() -> None:
    async with endpoint("http://upstream.invalid/mcp?key=secret") as to:
        with pytest.raises(UpstreamUnavailable) as caught:
            await ask(to)
    assert "secret" not in caught.value.message
