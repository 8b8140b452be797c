"""`/.well-known/*` at the entrance: passed on for GET and HEAD, with our CORS, within our bounds.

Contract section 6; field reports F28 and F30.
"""

from __future__ import annotations

from http import HTTPStatus

import anyio
import pytest

from proxy.errors import UpstreamUnavailable
from proxy.routing.well_known import WellKnown
from tests.downstream.http_rig import ORIGIN, Rig, http_rig
from tests.routing.fake_forwarder import JSON, FakeForwarder

pytestmark = pytest.mark.anyio

PRM = "/.well-known/oauth-protected-resource/mcp"


@pytest.fixture
def upstream() -> FakeForwarder:
    return FakeForwarder()


@pytest.fixture
def documents(upstream: FakeForwarder) -> WellKnown:
    return WellKnown(upstream, path="/mcp", upstream_path="/v1")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("status", [200, 302, 404])
async def test_a_document_is_passed_on_with_our_cors_and_without_a_redirect_followed(
    upstream: FakeForwarder, documents: WellKnown, method: str, status: int
) -> None:
    """F28, F30."""
    headers = [*JSON, ("ETag", '"1"'), ("Location", "http://elsewhere.example/")]
    upstream.will(status, headers, b"{}" if method == "GET" else b"")
    async with http_rig(well_known=documents) as rig:
        url = rig.url.replace("/mcp", PRM)
        async with rig.session.request(
            method, url + "?a=1", headers={"Origin": ORIGIN, "X-A": "1"}, allow_redirects=False
        ) as response:
            assert (response.status, response.headers["ETag"]) == (status, '"1"')
            assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
            assert await response.read() == (b"{}" if method == "GET" else b"")
    [asked] = upstream.asked
    assert (asked.method, asked.path, asked.query) == (
        method,
        "/.well-known/oauth-protected-resource/v1",
        "a=1",
    )
    assert ("X-A", "1") in asked.headers


@pytest.mark.parametrize(
    "method, headers, status",
    [
        ("POST", {}, 405),
        ("GET", {"Host": "evil.example"}, 403),
        ("GET", {"Origin": "https://evil.example"}, 403),
        ("OPTIONS", {"Origin": ORIGIN, "Access-Control-Request-Method": "GET"}, 204),
    ],
)
async def test_others_are_answered_here(
    upstream: FakeForwarder, documents: WellKnown, method: str, headers: dict[str, str], status: int
) -> None:
    """F29."""
    async with (
        http_rig(well_known=documents) as rig,
        rig.session.request(method, rig.url.replace("/mcp", PRM), headers=headers) as response,
    ):
        assert response.status == status
    assert upstream.asked == []


async def test_an_upstream_that_is_not_there_is_a_bad_gateway(
    upstream: FakeForwarder, documents: WellKnown
) -> None:
    upstream.answers.append(UpstreamUnavailable("not there"))
    async with (
        http_rig(well_known=documents) as rig,
        rig.session.get(rig.url.replace("/mcp", PRM)) as response,
    ):
        assert response.status == HTTPStatus.BAD_GATEWAY


async def test_a_bug_of_ours_is_an_error_and_not_a_page(documents: WellKnown) -> None:
    async with (
        http_rig(well_known=documents) as rig,
        rig.session.get(rig.url.replace("/mcp", PRM)) as response,
    ):
        assert response.status == HTTPStatus.INTERNAL_SERVER_ERROR  # nobody plays the upstream


async def test_documents_count_as_calls(upstream: FakeForwarder, documents: WellKnown) -> None:
    """F40."""
    async with http_rig(well_known=documents, requests=1) as rig:
        rig.send()
        await rig.router.next()
        async with rig.session.get(rig.url.replace("/mcp", PRM)) as response:
            assert response.status == 429
    assert upstream.asked == []


async def test_who_asks_for_documents_has_the_share_of_one_owner(
    upstream: FakeForwarder, documents: WellKnown
) -> None:
    """SEC-003: strangers do not take the calls of those who are known."""
    upstream.will(200, JSON, b"{}")
    async with http_rig(requests=2, requests_per_owner=1, well_known=documents) as rig:
        sent = rig.send(headers={"Authorization": "Bearer ada"})
        served = await rig.router.next()
        assert await status_of_document(rig) == 200
        served.end()
        await sent.body()
        anonymous = rig.send()
        served = await rig.router.next()
        assert await status_of_document(rig) == 429
        served.end()
        await anonymous.body()


async def test_while_draining_documents_are_refused_and_it_is_said_when_to_come_back(
    upstream: FakeForwarder, documents: WellKnown
) -> None:
    """Contract section 9, SIGTERM."""
    async with http_rig(well_known=documents) as rig:
        rig.endpoint.drain(5)
        async with rig.session.get(rig.url.replace("/mcp", PRM)) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "5")
    assert upstream.asked == []


async def status_of_document(rig: Rig) -> int:
    async with rig.session.get(rig.url.replace("/mcp", PRM)) as response:
        return response.status


async def test_without_documents_there_is_no_such_place() -> None:
    with anyio.fail_after(5):
        async with http_rig() as rig, rig.session.get(rig.url.replace("/mcp", PRM)) as response:
            assert response.status == 404
