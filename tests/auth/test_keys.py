"""The keys of an issuer: fetched, kept while it is away, fetched anew for a key that is not known.

Contract section 8; RFC 7517.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from proxy.auth.keys import MAX_AGE_S, MAX_KEYS, MAX_WAITING, PAUSE_S, WAIT_S, Keys, keys_in
from proxy.auth.sources import SourceError
from proxy.errors import LimitReached
from proxy.protocol.envelope import JsonError
from tests.auth.issuer import ec, key_set, okp, rsa
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

ONE, TWO = ec("one"), ec("two")


class Source:
    """Gives `text`; a fault is raised. `hold` makes it wait."""

    def __init__(self, text: bytes | SourceError) -> None:
        self.text = text
        self.asked = 0
        self.let_go = anyio.Event()
        self.let_go.set()

    def hold(self) -> None:
        self.let_go = anyio.Event()

    async def load(self) -> bytes:
        self.asked += 1
        text = self.text
        await self.let_go.wait()
        if isinstance(text, SourceError):
            raise text
        return text


@asynccontextmanager
async def running(source: Source) -> AsyncIterator[tuple[Keys, ManualClock]]:
    clock = ManualClock()
    keys = Keys(source.load, clock)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keys.run)
            await anyio.wait_all_tasks_blocked()
            yield keys, clock
            tasks.cancel_scope.cancel()


async def kids(keys: Keys, kid: str | None = None, algorithm: str = "ES256") -> list[str | None]:
    return [key.kid for key in await keys.find(kid, algorithm)]


async def test_a_key_is_found_by_its_id_or_among_all_that_fit() -> None:
    source = Source(key_set(ONE, TWO, okp("ed"), rsa("rsa", alg="RS512")))
    async with running(source) as (keys, _):
        assert await kids(keys, "two") == ["two"]
        assert await kids(keys) == ["one", "two"]
        assert await kids(keys, algorithm="EdDSA") == ["ed"]
        assert await kids(keys, "rsa", "RS512") == ["rsa"]
        assert source.asked == 1


async def test_a_key_is_of_the_algorithm_that_it_names() -> None:
    """An RSA key that is for RS512 verifies no RS256, and an EC key no RSA signature."""
    async with running(Source(key_set(ONE, rsa("rsa", alg="RS512")))) as (keys, clock):
        async with anyio.create_task_group() as tasks:
            found: list[list[str | None]] = []

            async def look(kid: str, algorithm: str) -> None:
                found.append(await kids(keys, kid, algorithm))

            tasks.start_soon(look, "rsa", "RS256")
            tasks.start_soon(look, "one", "RS256")
            await clock.advance(WAIT_S)
        assert found == [[], []]


async def test_a_key_that_is_not_known_is_asked_for_once_by_all_who_wait_for_it() -> None:
    """Key rotation."""
    source = Source(key_set(ONE))
    async with running(source) as (keys, clock):
        source.text = key_set(ONE, TWO)
        found: list[list[str | None]] = []

        async def look() -> None:
            found.append(await kids(keys, "two"))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(look)
            await clock.advance(PAUSE_S)
        assert found == [["two"]] * 3
        assert source.asked == 2
        assert keys.generation == 2


async def test_ids_that_are_made_up_cost_the_issuer_one_question_now_and_then() -> None:
    """SEC-003."""
    source = Source(key_set(ONE))
    async with running(source) as (keys, clock):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(kids, keys, f"made-up-{number}")
            await clock.advance(PAUSE_S * 2)
        assert source.asked <= 3
        assert await kids(keys, "one") == ["one"]


async def test_more_who_wait_than_are_allowed_are_answered_at_once() -> None:
    async with running(Source(key_set(ONE))) as (keys, clock), anyio.create_task_group() as tasks:
        for _ in range(MAX_WAITING):
            tasks.start_soon(kids, keys, "made-up")
        await anyio.wait_all_tasks_blocked()
        assert await kids(keys, "made-up-too") == []
        await clock.advance(WAIT_S)


async def test_a_key_that_came_after_the_fetch_had_begun_is_found_by_the_next() -> None:
    source = Source(key_set(ONE))
    source.hold()
    async with running(source) as (keys, clock), anyio.create_task_group() as tasks:
        found: list[list[str | None]] = []

        async def look() -> None:
            found.append(await kids(keys, "two"))

        tasks.start_soon(look)
        await anyio.wait_all_tasks_blocked()
        source.let_go.set()
        await anyio.wait_all_tasks_blocked()
        assert found == []
        source.text = key_set(TWO)
        await clock.advance(PAUSE_S)
        assert found == [["two"]]


async def test_while_the_issuer_is_away_its_keys_of_before_are_used() -> None:
    source = Source(key_set(ONE))
    async with running(source) as (keys, clock):
        source.text = SourceError("away")
        await clock.advance(MAX_AGE_S * 3)
        assert source.asked >= 3
        assert await kids(keys, "one") == ["one"]
        assert keys.generation == 1


async def test_a_key_that_the_issuer_has_withdrawn_is_used_no_longer_than_its_age_allows() -> None:
    source = Source(key_set(ONE, TWO))
    async with running(source) as (keys, clock):
        source.text = key_set(TWO)
        await clock.advance(MAX_AGE_S)
        assert await kids(keys) == ["two"]
        assert keys.generation == 2


async def test_without_any_keys_nobody_is_told_that_a_token_is_bad() -> None:
    """503, and the keys are asked for again."""
    source = Source(SourceError("away"))
    async with running(source) as (keys, clock), anyio.create_task_group() as tasks:
        faults: list[LimitReached] = []

        async def look() -> None:
            with pytest.raises(LimitReached) as caught:
                await keys.find("one", "ES256")
            faults.append(caught.value)

        tasks.start_soon(look)
        await clock.advance(WAIT_S)
        assert faults[0].http_status == 503
        source.text = key_set(ONE)
        tasks.start_soon(keys.find, "one", "ES256")
        await clock.advance(PAUSE_S)
        assert await kids(keys, "one") == ["one"]


@pytest.mark.parametrize(
    "more",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "x"},
        {**ec("x").as_dict(private=False), "use": "enc"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "x"},
        {"kty": "EC", "crv": "unheard-of", "x": "AA", "y": "AA"},
        {"kty": "RSA", "n": 7, "e": "AQAB"},
        {"kty": "RSA", "e": "AQAB"},
        {"kty": ["RSA"]},
        {"kty": {}},
        {},
        "key",
        None,
    ],
)
def test_what_is_no_public_key_for_signatures_is_left_out(more: object) -> None:
    assert [key.kid for key in keys_in(key_set(ONE, more=[more]))] == ["one"]


def test_a_key_that_is_too_weak_is_left_out(recwarn: pytest.WarningsRecorder) -> None:
    weak = {
        "kty": "RSA",
        "kid": "weak",
        "e": "AQAB",
        "n": rsa("x").as_dict(private=False)["n"][:128],
    }
    assert [key.kid for key in keys_in(key_set(ONE, more=[weak]))] == ["one"]
    assert not recwarn.list


def test_of_a_private_key_the_public_half_is_used() -> None:
    (key,) = keys_in(key_set(more=[ONE.as_dict(private=True)]))
    assert not key.is_private


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"keys":{}}', b"[" * 900, b'{"keys":' + b"[" * 90, b"\xff"]
)
def test_what_is_no_key_set_is_refused(text: bytes) -> None:
    with pytest.raises(JsonError):
        keys_in(text)


def test_a_set_is_bounded() -> None:
    """SEC-003."""
    assert len(keys_in(key_set(*[ONE] * (MAX_KEYS + 1)))) == MAX_KEYS
