"""Tokens that are good for nothing any more: expired by their own word, or refused by the server.

Contract section 8, "A token whose own `exp` has passed, or that upstream last answered 401"; AUTH-002.
"""

from __future__ import annotations

import pytest

from proxy.auth.challenges import Challenger
from proxy.auth.spent import MAX_CHALLENGE_CHARS, SpentTokens
from proxy.errors import Unauthorized
from tests.auth.issuer import NOW_S, ONE, claims, token
from tests.manual_clock import ManualClock

OWN = Challenger("https://p.example/mcp").challenge


def spent(leeway_s: float = 0.0) -> SpentTokens:
    return SpentTokens(Challenger("https://p.example/mcp"), ManualClock(), leeway_s=leeway_s)


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


def test_refusals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-003: who makes up tokens fills no memory."""
    monkeypatch.setattr("proxy.auth.spent.MAX_REFUSED", 2)
    tokens = spent()
    for name in ("one", "two", "one", "three"):
        tokens.answered(f"Bearer {name}", 401, ())
    tokens.check("Bearer two")
    refusal(tokens, "Bearer one")
    refusal(tokens, "Bearer three")


def test_a_challenge_without_end_is_not_kept() -> None:
    tokens = spent()
    tokens.answered("Bearer one", 401, ("x" * MAX_CHALLENGE_CHARS, "y"))
    assert refusal(tokens, "Bearer one").challenges[0].startswith("Bearer error=")
