"""Who a request belongs to, and which credential is used in whose name."""

from __future__ import annotations

from itertools import combinations

import anyio
import pytest

from proxy.owners import ANONYMOUS, Credentials, Owner, owner_by_name, owner_of

SECRET = b"s" * 32


@pytest.mark.parametrize("authorization", [None, "", " ", "\t "])
def test_without_a_credential_everybody_is_anonymous(authorization: str | None) -> None:
    """Contract section 8."""
    assert owner_of(authorization, SECRET) is ANONYMOUS
    assert ANONYMOUS.is_anonymous


def test_the_same_credential_is_the_same_owner() -> None:
    """From any connection, after any restart with the same store."""
    assert owner_of("Bearer a", SECRET) == owner_of(" Bearer a ", SECRET)
    assert not owner_of("Bearer a", SECRET).is_anonymous


CREDENTIALS = ["Bearer a", "Bearer A", "bearer a", "Basic a", "anonymous", "Bearer \udcff"]


@pytest.mark.parametrize("one, two", list(combinations(CREDENTIALS, 2)))
def test_another_credential_is_another_owner(one: str, two: str) -> None:
    """SEC-004: compared with case, whatever bytes it has."""
    assert owner_of(one, SECRET) != owner_of(two, SECRET)


def test_the_key_shows_nothing_of_the_credential_and_cannot_be_tried_without_the_secret() -> None:
    """AUTH-007, SEC-004."""
    owner = owner_of("Bearer hunter2", SECRET)
    assert "hunter2" not in owner.key
    assert owner.key.removeprefix("token-").isalnum()
    assert owner != owner_of("Bearer hunter2", b"t" * 32)


def test_no_credential_can_claim_to_be_anonymous() -> None:
    """SEC-004: keys of both kinds never meet."""
    assert owner_of("anonymous", SECRET).key != ANONYMOUS.key


def test_the_latest_credential_is_used() -> None:
    """Contract section 8: a task uses its owner's latest token towards upstream."""
    credentials, owner = Credentials(), Owner("token-1")
    assert credentials.headers(owner) == {}
    credentials.note(owner, "Bearer old")
    credentials.note(owner, "Bearer new")
    credentials.note(owner, None)
    assert credentials.headers(owner) == {"Authorization": "Bearer new"}


def test_one_that_was_refused_takes_the_place_of_no_other() -> None:
    """Contract section 8: else a client of before would have the tasks of its user fail."""
    credentials, owner = Credentials(), Owner("user-1")
    credentials.note(owner, "Bearer refused", is_doubtful=True)
    assert credentials.headers(owner) == {"Authorization": "Bearer refused"}
    credentials.note(owner, "Bearer good")
    credentials.note(owner, "Bearer refused", is_doubtful=True)
    assert credentials.headers(owner) == {"Authorization": "Bearer good"}


def test_a_named_owner_may_come_without_one() -> None:
    """A gateway keeps it to itself, or takes it away: then none is sent."""
    credentials, owner = Credentials(), owner_by_name(SECRET, "header x-user", "alice")
    credentials.note(owner, "Bearer a")
    credentials.note(owner, None)
    assert credentials.headers(owner) == {}


def test_names_of_one_issuer_are_not_those_of_another() -> None:
    """SEC-004."""
    named = [owner_by_name(SECRET, *pair) for pair in (("a", "bc"), ("ab", "c"), ("a", "b"), ('a","b', "c"))]
    assert len({owner.key for owner in named}) == 4
    assert owner_by_name(SECRET, "a", "bc") == named[0] != owner_by_name(b"t" * 32, "a", "bc")
    assert named[0].has_token


def test_the_anonymous_owner_never_has_a_credential() -> None:
    """SEC-004: it is shared by everybody."""
    credentials = Credentials()
    credentials.note(ANONYMOUS, "Bearer a")
    assert credentials.headers(ANONYMOUS) == {}


def test_owners_that_were_not_seen_for_long_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-003."""
    monkeypatch.setattr(Credentials, "MAX_OWNERS", 2)
    credentials = Credentials()
    one, two, three = (Owner(f"token-{n}") for n in (1, 2, 3))
    for owner in (one, two, one, three):
        credentials.note(owner, "Bearer a")
    assert credentials.headers(two) == {}
    assert credentials.headers(one)
    assert credentials.headers(three)


def test_what_is_used_outlives_what_anybody_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-003: else a flood of values would take those of running tasks away."""
    monkeypatch.setattr(Credentials, "MAX_OWNERS", 3)
    credentials = Credentials()
    one, two, newest = Owner("token-1"), Owner("token-2"), Owner("token-newest")
    for owner in (one, two):
        credentials.note(owner, "Bearer good")
        assert credentials.headers(owner)
        assert credentials.headers(owner)
    for n in range(10):
        made_up = Owner(f"token-made-up-{n}")
        credentials.note(made_up, "Bearer bad")
        assert credentials.headers(made_up)  # sent, and refused
    assert credentials.headers(one) == credentials.headers(two) == {"Authorization": "Bearer good"}
    assert credentials.headers(made_up)  # twice: as good as any
    credentials.note(newest, "Bearer good")
    assert credentials.headers(newest)
    assert credentials.headers(one) == {}  # used longest ago


def test_what_the_server_refused_goes_before_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-003: however often it is tried."""
    monkeypatch.setattr(Credentials, "MAX_OWNERS", 2)
    credentials = Credentials(lambda authorization: authorization == "Bearer bad")
    real = Owner("token-real")
    credentials.note(real, "Bearer good")
    assert credentials.headers(real) == credentials.headers(real)
    for n in range(5):
        credentials.note(made_up := Owner(f"token-made-up-{n}"), "Bearer bad")
        assert all(credentials.headers(made_up) for _ in range(3))
    assert credentials.headers(real)


def test_large_values_are_kept_of_fewer_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-003."""
    monkeypatch.setattr(Credentials, "MAX_BYTES", 100)
    credentials = Credentials()
    owners = [Owner(f"token-{n}") for n in range(4)]
    for owner in owners:
        credentials.note(owner, "x" * 30)
    credentials.note(owners[3], "x" * 40)  # in the place of its first
    assert [bool(credentials.headers(owner)) for owner in owners] == [False, True, True, True]
    credentials.note(owners[0], "x" * 99)
    assert [bool(credentials.headers(owner)) for owner in owners] == [True, False, False, False]


@pytest.mark.anyio
async def test_who_waits_for_an_owners_credential_is_told_of_no_others() -> None:
    """Contract section 9: recovery waits for the owner's next request."""
    credentials, owner = Credentials(), Owner("token-1")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            told = anyio.Event()

            async def wait() -> None:
                await credentials.wait_for(owner)
                told.set()

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            credentials.note(Owner("token-2"), "Bearer b")
            await anyio.wait_all_tasks_blocked()
            assert not told.is_set()
            credentials.note(owner, "Bearer a")
            await told.wait()
        await credentials.wait_for(owner)


def test_only_an_owner_by_token_needs_one() -> None:
    assert owner_of("Bearer a", SECRET).has_token
    assert not ANONYMOUS.has_token
