"""Our own credential towards the server: fixed headers, or a token that is renewed in time.

AUTH-004; RFC 6749, section 4.4; contract section 8, "uses its own credential upstream".
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from proxy.auth.client_credentials import (
    LIFETIME_S,
    PAUSE_S,
    RENEWAL_S,
    REST_S,
    RETRY_LAST_S,
    ClientCredentials,
    ClientSettings,
)
from proxy.auth.own_credential import OwnCredential
from proxy.auth.sources import MAX_BYTES
from proxy.errors import UpstreamUnavailable
from proxy.owners import ANONYMOUS, Owner
from proxy.upstream.http import make_client
from tests.manual_clock import ManualClock
from tests.upstream.fake_http import FakeHttp, Seen, status
from tests.upstream.told import until

pytestmark = pytest.mark.anyio

ALICE = Owner("user-alice")


class TokenEndpoint:
    """Gives `t-1`, `t-2`, …; `more` are further members of its answers."""

    def __init__(self, http: FakeHttp, **more: Any) -> None:
        self.http = http
        self.more = {"token_type": "Bearer", "expires_in": 1_000, **more}
        http.handlers["POST"] = self.play

    async def play(self, seen: Seen) -> web.StreamResponse:
        said = {"access_token": f"t-{len(self.http.seen)}", **self.more}
        return web.json_response({name: value for name, value in said.items() if value is not None})

    async def asked(self, times: int) -> None:
        await until(lambda: len(self.http.seen) >= times)


@pytest.fixture
async def http() -> AsyncIterator[FakeHttp]:
    async with FakeHttp().serving() as fake:
        yield fake


@asynccontextmanager
async def credential(
    http: FakeHttp, *, in_form: bool = False, scopes: tuple[str, ...] = ()
) -> AsyncIterator[tuple[OwnCredential, ManualClock]]:
    clock = ManualClock()
    settings = ClientSettings(http.url, "us: 1", "hunter2 %", scopes, "https://u.example/mcp", in_form)
    with anyio.fail_after(10):
        async with make_client() as client, anyio.create_task_group() as tasks:
            tokens = ClientCredentials(settings, client, clock)
            tasks.start_soon(tokens.run)
            await tokens.wait_tried()
            yield OwnCredential({"X-Key": "k"}, tokens), clock
            tasks.cancel_scope.cancel()


async def test_headers_are_sent_for_everybody_and_nothing_that_a_client_sent() -> None:
    """AUTH-004."""
    own = OwnCredential({"X-Key": "k"}, None)
    own.note(ALICE, "Bearer of-alice")
    assert own.headers(ALICE) == own.headers(ANONYMOUS) == {"X-Key": "k"}
    assert not own.may_lack(ALICE)
    with anyio.fail_after(5):
        await own.wait_for(ALICE)
    own.answered("Bearer of-alice", 401, ())


@pytest.mark.parametrize("in_form", [False, True])
async def test_a_token_is_asked_for_with_what_it_is_for(http: FakeHttp, in_form: bool) -> None:
    """RFC 6749, sections 2.3.1 and 4.4.2; RFC 8707."""
    TokenEndpoint(http)
    async with credential(http, in_form=in_form, scopes=("a", "b")) as (own, _):
        assert own.headers(ALICE) == {"X-Key": "k", "Authorization": "Bearer t-1"}
    [seen] = http.seen
    form = {name: value for name, [value] in parse_qs(seen.body.decode()).items()}
    expected = {"grant_type": "client_credentials", "scope": "a b", "resource": "https://u.example/mcp"}
    if in_form:
        assert form == {**expected, "client_id": "us: 1", "client_secret": "hunter2 %"}
        assert "Authorization" not in seen.headers
    else:
        assert form == expected
        _, _, pair = seen.headers["Authorization"].partition(" ")
        assert base64.b64decode(pair) == b"us%3A%201:hunter2%20%25"


async def test_it_is_renewed_before_it_ends(http: FakeHttp) -> None:
    endpoint = TokenEndpoint(http)
    async with credential(http) as (own, clock):
        await clock.advance(799)
        assert len(http.seen) == 1
        await clock.advance(2)
        await endpoint.asked(2)
        await until(lambda: own.headers(ALICE)["Authorization"] == "Bearer t-2")


async def test_while_it_cannot_be_renewed_the_old_one_is_used_to_its_end(http: FakeHttp) -> None:
    endpoint = TokenEndpoint(http)
    async with credential(http) as (own, clock):
        http.handlers["POST"] = status(503)
        await clock.advance(801)
        await endpoint.asked(2)
        assert own.headers(ALICE)["Authorization"] == "Bearer t-1"
        await clock.advance(200)
        with pytest.raises(UpstreamUnavailable, match="status 503"):
            own.headers(ALICE)
        assert own.may_lack(ALICE)
        http.handlers["POST"] = endpoint.play
        done = anyio.Event()

        async def wait() -> None:
            await own.wait_for(ALICE)
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            while not done.is_set():
                await clock.advance(1)
                await anyio.lowlevel.checkpoint()
        assert own.headers(ALICE)["Authorization"].startswith("Bearer t-")


async def test_one_that_the_server_refuses_is_renewed_but_not_without_a_pause(http: FakeHttp) -> None:
    endpoint = TokenEndpoint(http)
    async with credential(http) as (own, clock):
        for _ in range(5):
            own.answered("Bearer t-1", 401, ())
        own.answered("Bearer of-somebody-else", 401, ())
        own.answered("Bearer t-1", 200, ())
        await anyio.wait_all_tasks_blocked()
        assert len(http.seen) == 1
        await clock.advance(PAUSE_S)
        await endpoint.asked(2)
        await until(lambda: own.headers(ALICE)["Authorization"] == "Bearer t-2")
        own.answered("Bearer t-1", 401, ())
        await clock.advance(PAUSE_S)
        assert len(http.seen) == 2


async def test_another_than_the_refused_one_is_asked_for_once_however_many_wait(http: FakeHttp) -> None:
    """I2: what was refused has not run, and may be sent once more."""
    endpoint = TokenEndpoint(http)
    async with credential(http) as (own, clock):
        found: list[bool] = []

        async def refused() -> None:
            own.answered("Bearer t-1", 401, ())
            found.append(await own.another("Bearer t-1"))

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(refused)
            await anyio.wait_all_tasks_blocked()
            assert own.held_up_within(0.0)
            await clock.advance(PAUSE_S)
            await endpoint.asked(2)
        assert found == [True] * 20
        assert await own.another("Bearer t-1")  # who comes later need not wait
        assert own.held_up_within(1.0)
        await clock.advance(1.0)
        assert not own.held_up_within(1.0)
        await clock.advance(2 * PAUSE_S)
        assert len(http.seen) == 2


async def test_after_the_pause_another_one_is_there_at_once(http: FakeHttp) -> None:
    TokenEndpoint(http)
    async with credential(http) as (own, clock):
        await clock.advance(PAUSE_S)
        own.answered("Bearer t-1", 401, ())
        assert await own.another("Bearer t-1")
        assert own.headers(ALICE)["Authorization"] == "Bearer t-2"


async def test_the_same_one_again_is_no_other(http: FakeHttp) -> None:
    endpoint = TokenEndpoint(http, access_token="always")
    async with credential(http) as (own, clock):
        await clock.advance(PAUSE_S)
        own.answered("Bearer always", 401, ())
        assert not await own.another("Bearer always")
        await endpoint.asked(2)


async def test_where_there_is_no_other_it_is_said_and_tried_again_when_somebody_comes(http: FakeHttp) -> None:
    """Bounded: one attempt at a time, and not sooner than REST_S after one that was in vain."""
    endpoint = TokenEndpoint(http)
    async with credential(http) as (own, clock):
        assert own._tokens is not None
        await clock.advance(PAUSE_S)
        http.handlers["POST"] = status(401)
        own.answered("Bearer t-1", 401, ())
        for _ in range(5):
            assert not await own.another("Bearer t-1")
            own.answered("Bearer t-1", 401, ())
        assert len(http.seen) == 2
        assert own.may_lack(ALICE)
        assert own.headers(ALICE)["Authorization"] == "Bearer t-1"  # the server may take it again
        for _ in range(10):  # until the pauses are long
            await clock.advance(REST_S + RETRY_LAST_S)
            await anyio.wait_all_tasks_blocked()
        http.handlers["POST"] = endpoint.play
        await clock.advance(REST_S)
        assert own._tokens.words() != "ok"
        before = len(http.seen)
        assert await own.another("Bearer t-1")
        assert len(http.seen) == before + 1
        assert own._tokens.words() == "ok"
        assert not own.may_lack(ALICE)


async def test_the_first_one_is_had_by_who_comes_for_it(http: FakeHttp) -> None:
    """The proxy was started before its authorization server."""
    endpoint = TokenEndpoint(http)
    http.handlers["POST"] = status(503)
    async with credential(http) as (own, clock):
        assert not await own.another(None)
        await clock.advance(REST_S)
        http.handlers["POST"] = endpoint.play
        assert await own.another(None)
        assert not own.may_lack(ALICE)


async def test_nobody_waits_for_another_one_for_ever(http: FakeHttp) -> None:
    """I6."""
    TokenEndpoint(http)
    async with credential(http) as (own, clock):

        async def hang(seen: Seen) -> web.StreamResponse:
            await anyio.sleep_forever()
            raise AssertionError

        await clock.advance(PAUSE_S)
        http.handlers["POST"] = hang
        own.answered("Bearer t-1", 401, ())
        found: list[bool] = []

        async def wait() -> None:
            found.append(await own.another("Bearer t-1"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert not found
            await clock.advance(RENEWAL_S)
        assert found == [False]


@pytest.mark.parametrize(
    ("code", "is_good"), [(200, True), (403, True), (404, True), (401, False), (500, False)]
)
async def test_it_is_good_again_once_the_server_takes_it(http: FakeHttp, code: int, is_good: bool) -> None:
    TokenEndpoint(http)
    async with credential(http) as (own, _):
        own.answered("Bearer t-1", 401, ())
        own.answered("Bearer t-1", code, ())
        assert own.may_lack(ALICE) is not is_good


async def test_fixed_headers_have_no_other() -> None:
    own = OwnCredential({"Authorization": "Bearer k"}, None)
    own.answered("Bearer k", 401, ())
    assert not await own.another("Bearer k")
    assert not own.held_up_within(60.0)


async def test_one_of_which_nobody_says_how_long_it_lives_is_renewed_soon(http: FakeHttp) -> None:
    endpoint = TokenEndpoint(http, expires_in=None)
    async with credential(http) as (_, clock):
        await clock.advance(LIFETIME_S)
        await endpoint.asked(2)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b"{}",
        b'{"access_token":"","token_type":"Bearer"}',
        b'{"access_token":"a\\r\\nX: b","token_type":"Bearer"}',
        b'{"access_token":"a b","token_type":"Bearer"}',
        b'{"access_token":7,"token_type":"Bearer"}',
        b'{"access_token":"a","token_type":"mac"}',
        b'{"access_token":"a"}',
        b"[" * 900,
        b'{"x":"' + b"y" * MAX_BYTES + b'"}',
    ],
    ids=range(11),
)
async def test_what_is_no_token_is_not_used_and_not_shown(http: FakeHttp, answer: bytes) -> None:
    http.handlers["POST"] = status(200, answer)
    async with credential(http) as (own, _):
        with pytest.raises(UpstreamUnavailable) as caught:
            own.headers(ALICE)
        assert "hunter2" not in caught.value.message


async def test_a_redirect_gets_no_secret(http: FakeHttp) -> None:
    """SEC-002."""
    async with FakeHttp().serving() as elsewhere:
        http.handlers["POST"] = status(307, Location=elsewhere.url)
        async with credential(http) as (own, _):
            with pytest.raises(UpstreamUnavailable, match="status 307"):
                own.headers(ALICE)
        assert elsewhere.seen == []


def test_what_is_secret_is_not_in_what_is_shown_of_it() -> None:
    """AUTH-007."""
    settings = ClientSettings("https://i.example/token", "us", "hunter2", (), "https://u.example", False)
    assert "hunter2" not in repr(settings) + repr(OwnCredential({"X": "hunter2"}, None))
    assert json.dumps("hunter2") not in repr(settings)
