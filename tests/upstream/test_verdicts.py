"""Whoever keeps track of tokens is told what the server says to them, by whatever way they were sent.

Contract section 8, "that upstream last answered 401".
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import anyio
import pytest
from aiohttp import web

from proxy.errors import NoCredential, UpstreamRefused, UpstreamUnavailable
from proxy.protocol import names
from proxy.upstream.acceptance import fault
from proxy.upstream.base import Transport
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.forward import HttpForwarder
from proxy.upstream.health import OK, Health
from proxy.upstream.http import HttpTransport, make_client
from proxy.upstream.sse import SseTransport
from tests.manual_clock import ManualClock
from tests.upstream.fake_http import FakeHttp, Handler, Seen, answer, status, stream
from tests.upstream.told import Told, until

pytestmark = pytest.mark.anyio

Verdict = tuple[str | None, int, tuple[str, ...]]


@dataclass
class Verdicts:
    is_ours: bool = False
    wants_all: bool = False
    told: list[Verdict] = field(default_factory=list)

    others: list[bool] = field(default_factory=list)  # what `another` says, each time it is asked
    asked: list[str | None] = field(default_factory=list)

    async def another(self, refused: str | None) -> bool:
        self.asked.append(refused)
        return bool(self.others) and self.others.pop(0)

    def held_up_within(self, seconds: float) -> bool:
        return False

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


class Renewing:
    """A server that takes `good` alone, before it an endpoint whose credential is the next of `values`."""

    def __init__(self, upstream: FakeHttp, good: str, *values: str, code: int = 401) -> None:
        self.upstream = upstream
        self.values = list(values)
        self.verdicts = Verdicts(is_ours=True)

        async def play(seen: Seen) -> web.StreamResponse:
            return web.Response(status=200 if seen.headers.get("Authorization") == good else code)

        upstream.handlers = dict.fromkeys(("POST", "GET"), play)

    def headers(self) -> dict[str, str]:
        value = self.values.pop(0) if len(self.values) > 1 else self.values[0]
        if not value:
            raise NoCredential("there is none")
        return {"Authorization": value}

    async def open(self, method: str = "POST", *, gets_count: bool = False, last_event_id: str = "") -> int:
        """The status that comes of it."""
        more = {"Last-Event-ID": last_event_id} if last_event_id else {}
        with anyio.fail_after(5):
            async with make_client() as client:
                to = Endpoint(
                    self.upstream.url,
                    name="search",
                    client=client,
                    headers=self.headers,
                    verdicts=self.verdicts,
                    gets_count=gets_count,
                )
                body = b'{"a":1}' if method == "POST" else None
                async with to.open(method, {"X-Same": "x", **more}, body) as answer:
                    return answer.status

    def sent(self) -> list[str | None]:
        assert {seen.headers["X-Same"] for seen in self.upstream.seen} <= {"x"}
        assert {seen.body for seen in self.upstream.by("POST")} <= {b'{"a":1}'}
        return [seen.headers.get("Authorization") for seen in self.upstream.seen]


@pytest.mark.parametrize(
    ("method", "how"),
    [("POST", {}), ("GET", {"gets_count": True}), ("GET", {"last_event_id": "e1"})],
)
async def test_what_was_refused_is_sent_once_more_with_another_credential(
    upstream: FakeHttp, method: str, how: dict[str, Any]
) -> None:
    """I2: it has not run. The GET is the stream of HTTP+SSE, or one that is resumed."""
    scene = Renewing(upstream, "new-one", "old-one", "new-one")
    scene.verdicts.others = [True]
    assert await scene.open(method, **how) == 200
    assert scene.sent() == ["old-one", "new-one"]
    assert scene.verdicts.asked == ["old-one"]
    assert [(value, code) for value, code, _ in scene.verdicts.told] == [("old-one", 401), ("new-one", 200)]


async def test_it_is_not_sent_a_third_time(upstream: FakeHttp) -> None:
    scene = Renewing(upstream, "good", "one", "two", "good")
    scene.verdicts.others = [True, True]
    assert await scene.open() == 401
    assert scene.sent() == ["one", "two"]


async def test_where_there_is_no_other_the_refusal_stands(upstream: FakeHttp) -> None:
    scene = Renewing(upstream, "good", "one", "good")
    assert await scene.open() == 401
    assert scene.sent() == ["one"]


@pytest.mark.parametrize("code", [200, 302, 400, 403, 404, 407, 500, 503])
async def test_nothing_else_is_sent_again(upstream: FakeHttp, code: int) -> None:
    """403 says that the credential was understood; the others may have run."""
    scene = Renewing(upstream, "good", "one", "good", code=code)
    scene.verdicts.others = [True]
    assert await scene.open() == code
    assert scene.sent() == ["one"]
    assert scene.verdicts.asked == []


async def test_a_get_that_servers_need_not_have_is_not_repeated(upstream: FakeHttp) -> None:
    """F25."""
    scene = Renewing(upstream, "good", "one", "good")
    scene.verdicts.others = [True]
    assert await scene.open("GET") == 401
    assert scene.sent() == ["one"]


async def test_who_has_no_credential_waits_for_one(upstream: FakeHttp) -> None:
    scene = Renewing(upstream, "good", "", "good")
    scene.verdicts.others = [True]
    assert await scene.open() == 200
    assert scene.verdicts.asked == [None]
    scene = Renewing(upstream, "good", "")
    with pytest.raises(NoCredential):
        await scene.open()
    assert scene.sent() == ["good"]


async def test_who_leaves_while_another_one_is_fetched_sends_nothing_more(upstream: FakeHttp) -> None:
    scene = Renewing(upstream, "good", "one", "good")
    waits = anyio.Event()

    async def for_ever(refused: str | None) -> bool:
        waits.set()
        await anyio.sleep_forever()
        return True

    scene.verdicts.another = for_ever  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scene.open)
        with anyio.fail_after(5):
            await waits.wait()
        tasks.cancel_scope.cancel()
    assert scene.sent() == ["one"]


class GoodOnce:
    """A credential of which the server takes each token for one request alone."""

    is_ours = True
    wants_all = False

    def __init__(self) -> None:
        self.number = 1
        self.used: set[str] = set()
        self.taken: list[dict[str, Any]] = []

    def has_taken(self, number: int) -> bool:
        return len(self.taken) >= number

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.number}"}

    def answered(self, authorization: str | None, status: int, challenges: Sequence[str]) -> None:
        """Is seen by what comes."""

    async def another(self, refused: str | None) -> bool:
        self.number += refused == self.headers()["Authorization"]
        return True

    def held_up_within(self, seconds: float) -> bool:
        return False

    def guarding(self, handler: Handler) -> Handler:
        async def play(seen: Seen) -> web.StreamResponse:
            if (token := seen.headers["Authorization"]) in self.used:
                return web.Response(status=401)
            self.used.add(token)
            if seen.method == "POST":
                self.taken.append(seen.message)
            return await handler(seen)

        return play


SAID: Final[list[tuple[dict[str, Any], int | None]]] = [
    ({"id": 1, "method": names.INITIALIZE, "params": {}}, 1),
    ({"method": names.INITIALIZED}, None),
    ({"id": 2, "method": names.TOOLS_LIST}, 2),
    ({"id": 3, "method": names.TOOLS_CALL, "params": {"name": "t"}}, 3),
    ({"id": 7, "result": {"action": "decline"}}, None),
    ({"id": 9, "error": {"code": -32601, "message": "no"}}, None),
    ({"method": names.CANCELLED, "params": {"requestId": 3}}, None),
]


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_whatever_is_sent_in_a_session_is_taken_once_though_every_token_is_taken_back(
    upstream: FakeHttp, kind: str
) -> None:
    """I2: handshake, requests, notifications, answers; over Streamable HTTP, and over HTTP+SSE, where the
    stream is refused at first, too."""
    own, told, clock = GoodOnce(), Told(), ManualClock()
    own.used.add("Bearer 1")
    taken = answer if kind == "http" else status(202)
    upstream.handlers["POST"] = own.guarding(taken)
    if kind == "sse":
        upstream.handlers["GET"] = own.guarding(stream(b"event: endpoint\ndata: /mcp\n\n", hold=True))
    make = HttpTransport if kind == "http" else SseTransport
    with anyio.fail_after(10):
        async with make_client() as client, anyio.create_task_group() as tasks:
            transport: Transport = make(
                upstream.url,
                name="s",
                max_bytes=10_000,
                client=client,
                headers=own.headers,
                verdicts=own,
                clock=clock,
            )
            await tasks.start(transport.run, told)
            for number, (message, call) in enumerate(SAID, 1):
                await transport.send(json.dumps({"jsonrpc": "2.0", **message}).encode(), call=call)
                await until(partial(own.has_taken, number))
            assert own.taken == [{"jsonrpc": "2.0", **message} for message, _ in SAID]
            assert told.losses == []
            tasks.cancel_scope.cancel()
    assert len(upstream.by("POST")) == 2 * len(SAID)


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
