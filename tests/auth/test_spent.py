"""Tokens that are good for nothing any more: expired by their own word, or refused by the server.

Contract section 8, "A token whose own `exp` has passed, or that upstream last answered 401"; AUTH-002.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import anyio
import pytest

from proxy.auth.challenges import Challenger
from proxy.auth.kept_refusals import IN_ONE_PLACE, KEEP_S
from proxy.auth.spent import MAX_CHALLENGE_CHARS, PAUSE_S, SpentTokens
from proxy.errors import StoreError, Unauthorized
from proxy.owners import Owner, owner_of
from proxy.stores.memory import MemoryStore
from tests.auth.issuer import NOW_S, ONE, claims, token
from tests.manual_clock import ManualClock

OWN = Challenger("https://p.example/mcp").challenge


def spent(leeway_s: float = 0.0, store: MemoryStore | None = None) -> SpentTokens:
    clock = ManualClock()
    challenger = Challenger("https://p.example/mcp")
    return SpentTokens(challenger, clock, b"s" * 32, store or MemoryStore(clock), leeway_s=leeway_s)


def refusal(tokens: SpentTokens, authorization: str) -> Unauthorized:
    with pytest.raises(Unauthorized) as caught:
        tokens.check(authorization)
    assert caught.value.http_status == 401
    return caught.value


@pytest.mark.parametrize("authorization", [None, "", "Bearer opaque", "Basic YTpi", "Bearer " + token()])
def test_what_nobody_has_refused_is_good(authorization: str | None) -> None:
    spent().check(authorization)


def test_what_the_server_has_refused_is_refused_with_its_own_words() -> None:
    tokens = spent()
    challenges = ('Bearer realm="r", error="invalid_token", scope="a b"', "Negotiate")
    tokens.answered("Bearer one", 401, challenges)
    refused = refusal(tokens, "Bearer one")
    assert (refused.challenges, refused.reason) == (challenges, "refused_upstream")
    tokens.check("Bearer two")


def test_a_refusal_without_a_challenge_gets_one_of_ours() -> None:
    """RFC 9110: a 401 has a challenge."""
    tokens = spent()
    tokens.answered("Bearer one", 401, ())
    assert refusal(tokens, "Bearer one").challenges[0].startswith('Bearer error="invalid_token"')


@pytest.mark.parametrize(
    "status, is_good", [(200, True), (202, True), (307, False), (403, False), (500, False)]
)
def test_the_servers_last_word_counts(status: int, is_good: bool) -> None:
    """Only what it has served says that it takes the token again."""
    tokens = spent()
    tokens.answered("Bearer one", 401, ())
    assert tokens.wants_all
    tokens.answered("Bearer two", 200, ())
    tokens.answered("Bearer one", status, ())
    if is_good:
        tokens.check("Bearer one")
        assert not tokens.wants_all
    else:
        refusal(tokens, "Bearer one")


def test_a_request_without_a_token_says_nothing_of_any() -> None:
    tokens = spent()
    tokens.answered(None, 401, ())
    assert not tokens.wants_all


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
@pytest.mark.parametrize(
    "exp, leeway_s, is_good", [(0, 0.0, False), (1, 0.0, True), (-9, 10.0, True), (-10, 10.0, False)]
)
def test_a_token_ends_when_it_says_so(scheme: str, exp: int, leeway_s: float, is_good: bool) -> None:
    authorization = f"{scheme} {token(ONE, claims(exp=NOW_S + exp))}"
    if is_good:
        spent(leeway_s).check(authorization)
    else:
        assert refusal(spent(leeway_s), authorization).reason == "expired"


@pytest.mark.parametrize("spelt", ["bearer {}", "BEARER  {}", " Bearer {} "])
def test_a_refused_token_is_refused_however_it_is_spelt(spelt: str) -> None:
    """Whoever verifies tokens takes them all for the same."""
    tokens = spent()
    tokens.answered("Bearer one", 401, ())
    refusal(tokens, spelt.format("one"))
    tokens.check("Bearer ONE")
    tokens.check("Basic one")


def test_a_refused_token_is_refused_with_whatever_signature_where_signatures_are_verified() -> None:
    """Of one good signature another one can be made, by whoever has the token alone."""
    clock = ManualClock()
    challenger, store = Challenger(None), MemoryStore(clock)
    tokens = SpentTokens(challenger, clock, b"s" * 32, store, whose=lambda authorization: Owner("user-a"))
    tokens.answered("Bearer head.claims.signature", 401, ())
    refusal(tokens, "Bearer head.claims.another")
    tokens.check("Bearer head.others.signature")
    unverified = spent()
    unverified.answered("Bearer head.claims.signature", 401, ())
    unverified.check("Bearer head.claims.made-up")


def test_a_challenge_without_end_is_not_kept() -> None:
    tokens = spent()
    tokens.answered("Bearer one", 401, ("x" * MAX_CHALLENGE_CHARS, "y"))
    assert refusal(tokens, "Bearer one").challenges[0].startswith("Bearer error=")


# Over a restart.


class Kept:
    """A store's memory, and the runs of the proxy on it, one after the other."""

    def __init__(self, clock: ManualClock, store: MemoryStore) -> None:
        self.clock = clock
        self.store = store
        self.owners: set[str] = set()  # that have tasks

    def has_tasks(self, authorization: str) -> None:
        self.owners.add(owner_of(authorization, b"s" * 32).key)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[SpentTokens]:
        challenger, owns = Challenger("https://p.example/mcp"), lambda key: key in self.owners
        tokens = SpentTokens(challenger, self.clock, b"s" * 32, self.store, owns=owns)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                await tasks.start(tokens.run)
                yield tokens
                tasks.cancel_scope.cancel()


class Counting(MemoryStore):
    """Counts what is written, and fails while it is `broken`."""

    broken = False
    written = 0

    async def remember(self, key: str, value: bytes, *, keep_s: float) -> None:
        if self.broken:
            raise StoreError("disk full")
        self.written += 1
        await super().remember(key, value, keep_s=keep_s)


def kept() -> tuple[Kept, Counting]:
    clock = ManualClock()
    store = Counting(clock)
    return Kept(clock, store), store


@pytest.mark.anyio
async def test_a_restart_lets_no_token_in_that_the_server_has_refused() -> None:
    """Contract section 8; and one that it took again is good again after a restart, too."""
    proxy, _ = kept()
    async with proxy.run() as tokens:
        for name in ("one", "two"):
            tokens.answered(f"Bearer {name}", 401, ('Bearer realm="r"',))
    async with proxy.run() as tokens:
        assert refusal(tokens, "Bearer one").challenges[0].startswith('Bearer error="invalid_token"')
        refusal(tokens, "Bearer two")
        tokens.check("Bearer three")
        tokens.answered("Bearer one", 200, ())
        tokens.check("Bearer one")
    async with proxy.run() as tokens:
        tokens.check("Bearer one")
        refusal(tokens, "Bearer two")
        tokens.answered("Bearer two", 200, ())
    async with proxy.run() as tokens:
        assert not tokens.wants_all


@pytest.mark.anyio
async def test_what_is_kept_shows_no_token_and_has_its_bounds() -> None:
    """SEC-003: in number, in age, and in how often it is written."""
    proxy, store = kept()
    async with proxy.run() as tokens:
        for number in range(IN_ONE_PLACE + 1):
            tokens.answered(f"Bearer t{number}", 401, ())
            await anyio.wait_all_tasks_blocked()
        assert store.written == 1
        await proxy.clock.advance(PAUSE_S)
        await anyio.wait_all_tasks_blocked()
        assert store.written == 2
        tokens.answered("Bearer t7", 401, ())  # that is known
        await proxy.clock.advance(PAUSE_S)
    assert store.written == 3  # at the end: it is the newest now
    ((_, value),) = await store.remembered("")
    assert b"t7" not in value
    async with proxy.run() as tokens:
        tokens.check("Bearer t0")
        refusal(tokens, "Bearer t1")
        refusal(tokens, f"Bearer t{IN_ONE_PLACE}")
    await proxy.clock.advance(KEEP_S)
    async with proxy.run() as tokens:
        assert not tokens.wants_all


@pytest.mark.anyio
@pytest.mark.parametrize("came_first", [True, False], ids=["tasks before", "tasks after"])
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
async def test_whoever_makes_tokens_up_has_none_forgotten_by_which_tasks_can_be_had(
    came_first: bool, is_killed: bool
) -> None:
    """Neither in memory, nor over a restart; and the task may come after the refusal."""
    proxy, store = kept()
    async with proxy.run() as tokens:
        if came_first:
            proxy.has_tasks("Bearer one")
        tokens.answered("Bearer one", 401, ())
        await proxy.clock.advance(PAUSE_S)
        proxy.has_tasks("Bearer one")
        for number in range(3_000):
            tokens.answered(f"Bearer junk{number}", 401, ())
        await proxy.clock.advance(PAUSE_S)
        refusal(tokens, "Bearer one")
        written, store.broken = store.written, is_killed
    store.broken = False
    assert written <= 4  # the disk has no more to do than before
    async with proxy.run() as tokens:
        refusal(tokens, "Bearer one")
        for number in range(3_000):
            tokens.answered(f"Bearer more{number}", 401, ())
        refusal(tokens, "Bearer one")


@pytest.mark.anyio
async def test_what_many_owners_have_is_kept_for_all_of_them() -> None:
    proxy, store = kept()
    names = [f"Bearer t{number}" for number in range(500)]
    async with proxy.run() as tokens:
        for name in names:
            proxy.has_tasks(name)
            tokens.answered(name, 401, ())
    async with proxy.run() as tokens:
        for name in names:
            refusal(tokens, name)
        written = store.written
        tokens.answered(names[7], 200, ())
        await proxy.clock.advance(PAUSE_S)
        assert store.written > written
    async with proxy.run() as tokens:
        tokens.check(names[7])
        refusal(tokens, names[8])


@pytest.mark.anyio
async def test_a_store_that_is_broken_keeps_nothing_and_stops_nothing() -> None:
    proxy, store = kept()
    async with proxy.run() as tokens:
        store.broken = True
        tokens.answered("Bearer one", 401, ())
        await anyio.wait_all_tasks_blocked()
        refusal(tokens, "Bearer one")
        store.broken = False
        await proxy.clock.advance(PAUSE_S)
        tokens.answered("Bearer two", 401, ())
    async with proxy.run() as tokens:
        refusal(tokens, "Bearer one")
        refusal(tokens, "Bearer two")


@pytest.mark.parametrize(
    "authorization, good_for_s",
    [
        ("Bearer " + token(ONE, claims(exp=NOW_S + 60)), 62.0),
        ("bearer  " + token(ONE, claims(exp=NOW_S - 60)), -58.0),
        ("Bearer " + token(ONE, claims(exp=None)), inf),
        ("Bearer opaque", inf),
        ("Basic " + token(ONE, claims(exp=NOW_S + 60)), inf),
    ],
)
def test_a_token_may_say_how_long_it_is_good(authorization: str, good_for_s: float) -> None:
    """With the leeway, as where it is refused."""
    assert spent(leeway_s=2.0).good_for_s(authorization) == good_for_s
