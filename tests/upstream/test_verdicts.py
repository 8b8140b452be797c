"""Whoever keeps track of tokens is told what the server says to them, by whatever way they were sent.

Contract section 8, "that upstream last answered 401".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

import anyio
import pytest
from aiohttp import web

from proxy.errors import UpstreamRefused, UpstreamUnavailable
from proxy.upstream.acceptance import fault
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.forward import HttpForwarder
from proxy.upstream.health import OK, Health
from proxy.upstream.http import make_client
from tests.manual_clock import ManualClock
from tests.upstream.fake_http import FakeHttp, Handler, Seen, status

pytestmark = pytest.mark.anyio

Told = tuple[str | None, int, tuple[str, ...]]


@dataclass
class Verdicts:
    is_ours: bool = False
    wants_all: bool = False
    told: list[Told] = field(default_factory=list)

    def answered(self, authorization: str | None, status: int, challenges: Sequence[str]) -> None:
        self.told.append((authorization, status, tuple(challenges)))


@pytest.fixture
async def upstream() -> AsyncIterator[FakeHttp]:
    async with FakeHttp().serving() as fake:
        yield fake


def refused(code: int = 401) -> Handler:
    async def play(seen: Seen) -> web.StreamResponse:
        return web.Response(status=code, headers={"WWW-Authenticate": "Bearer x"})

    return play


async def forward(url: str, verdicts: Verdicts, path: str | None = None) -> None:
    with anyio.fail_after(5):
        async with make_client() as client:
            health = Health(ManualClock())
            to = HttpForwarder(url, name="search", client=client, health=health, verdicts=verdicts)
            async with to.forward("POST", [("authorization", "Bearer a")], b"{}", path=path) as answer:
                async for _ in answer.chunks:
                    pass


async def ask(url: str, verdicts: Verdicts, authorization: str | None = "Bearer a") -> UpstreamRefused | None:
    headers = {} if authorization is None else {"Authorization": authorization}
    with anyio.fail_after(5):
        async with make_client() as client:
            to = Endpoint(url, name="search", client=client, headers=lambda: headers, verdicts=verdicts)
            async with to.open("POST", {}, b"{}") as answer:
                if answer.ok:
                    return None
                found = fault(answer, b"", 64, gone=False)
                assert isinstance(found, UpstreamRefused)
                return found


async def test_a_refusal_of_what_is_passed_on_is_told(upstream: FakeHttp) -> None:
    verdicts = Verdicts()
    upstream.handlers["POST"] = refused()
    await forward(upstream.url, verdicts)
    assert verdicts.told == [("Bearer a", 401, ("Bearer x",))]


@pytest.mark.parametrize("wants_all", [True, False])
async def test_an_acceptance_is_told_if_it_matters(upstream: FakeHttp, wants_all: bool) -> None:
    verdicts = Verdicts(wants_all=wants_all)
    upstream.handlers["POST"] = status(200)
    await forward(upstream.url, verdicts)
    assert verdicts.told == ([("Bearer a", 200, ())] if wants_all else [])


async def test_what_anybody_may_read_says_nothing_of_a_token(upstream: FakeHttp) -> None:
    verdicts = Verdicts(wants_all=True)
    upstream.handlers["POST"] = status(200)
    await forward(upstream.url, verdicts, path="/.well-known/oauth-protected-resource")
    assert verdicts.told == []


@pytest.mark.parametrize("gets_count", [False, True])
async def test_a_get_that_is_refused_says_nothing_where_servers_need_not_have_one(
    upstream: FakeHttp, gets_count: bool
) -> None:
    """F25; on HTTP+SSE it is the stream that everything hangs on."""
    verdicts = Verdicts()
    upstream.handlers["GET"] = refused()
    with anyio.fail_after(5):
        async with make_client() as client:
            headers = {"Authorization": "Bearer a"}
            to = Endpoint(
                upstream.url,
                name="search",
                client=client,
                headers=lambda: headers,
                verdicts=verdicts,
                gets_count=gets_count,
            )
            async with to.open("GET", {}):
                pass
            through = HttpForwarder(
                upstream.url, name="s", client=client, health=Health(ManualClock()), verdicts=verdicts
            )
            async with through.forward("GET", [("Authorization", "Bearer a")]):
                pass
    assert verdicts.told == ([("Bearer a", 401, ("Bearer x",))] if gets_count else [])


async def test_what_the_server_says_to_requests_of_our_own_is_told(upstream: FakeHttp) -> None:
    verdicts = Verdicts()
    upstream.handlers["POST"] = refused()
    found = await ask(upstream.url, verdicts)
    assert found is not None
    assert (found.http_status, found.challenges) == (401, ("Bearer x",))
    upstream.handlers["POST"] = status(200)
    await ask(upstream.url, verdicts, None)
    assert verdicts.told == [("Bearer a", 401, ("Bearer x",)), (None, 200, ())]


@pytest.mark.parametrize("code", [401, 403])
async def test_the_refusal_of_our_own_credential_is_no_matter_of_the_clients(
    upstream: FakeHttp, code: int
) -> None:
    """AUTH-004: its challenge would lead clients to the server's authorization server, in vain."""
    upstream.handlers["POST"] = refused(code)
    found = await ask(upstream.url, Verdicts(is_ours=True), "Bearer hunter2")
    assert found is not None
    assert (found.http_status, found.challenges) == (HTTPStatus.OK, ())
    assert "hunter2" not in found.message
    health = Health(ManualClock())
    health.failed(found)
    assert health.words() != OK


async def test_without_a_credential_nothing_is_sent(upstream: FakeHttp) -> None:
    def none() -> dict[str, str]:
        raise UpstreamUnavailable("there is no credential")

    with anyio.fail_after(5):
        async with make_client() as client:
            to = Endpoint(upstream.url, name="search", client=client, headers=none)
            with pytest.raises(UpstreamUnavailable):
                async with to.open("POST", {}, b"{}"):
                    pass
    assert upstream.seen == []
