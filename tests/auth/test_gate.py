"""Who is let in where clients are authenticated here: by tokens, or by the word of a gateway.

AUTH-002, AUTH-003; Authorization 2026-07-28, "Error Handling"; contract section 8.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from multidict import CIMultiDict

from proxy.auth.challenges import Challenger
from proxy.auth.gate import MAX_NAME_CHARS, GatewayGate, TokenGate
from proxy.auth.keys import Keys
from proxy.auth.tokens import TokenRules, TokenVerifier
from proxy.errors import Unauthorized
from proxy.owners import Owner
from tests.auth.issuer import AUDIENCE, ISSUER, NOW_S, ONE, claims, key_set, token
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

METADATA = 'resource_metadata="https://p.example/.well-known/oauth-protected-resource/mcp"'
SECRET = b"s" * 32


async def by_token(*given: str) -> Owner:
    """What comes of a request with these `Authorization` headers."""

    async def load() -> bytes:
        return key_set(ONE)

    clock = ManualClock()
    keys = Keys(load, clock)
    rules = TokenRules(ISSUER, (AUDIENCE,), ("ES256",), 0.0)
    gate = TokenGate(
        TokenVerifier(rules, keys, SECRET, clock), Challenger("https://p.example/mcp", ("a", "b"))
    )
    fault: Unauthorized | None = None
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keys.run)
            await anyio.wait_all_tasks_blocked()
            try:
                return await gate.admit(CIMultiDict([("authorization", one) for one in given]), None)
            except Unauthorized as exc:
                fault = exc
            finally:
                tasks.cancel_scope.cancel()
    assert fault is not None
    raise fault


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_a_good_token_lets_its_subject_in(scheme: str) -> None:
    assert (await by_token(f"{scheme}  {token()} ")).has_token


@pytest.mark.parametrize("given", [(), ("",), ("Basic YTpi",), ("Bearer",)], ids=str)
async def test_without_a_token_the_challenge_names_no_error(given: tuple[str, ...]) -> None:
    """RFC 6750, section 3: who has sent no token has made no mistake."""
    with pytest.raises(Unauthorized) as caught:
        await by_token(*given)
    refused = caught.value
    assert refused.http_status == 401
    if given == ("Bearer",):
        assert "invalid_token" in refused.challenges[0]
    else:
        assert refused.challenges == (f'Bearer {METADATA}, scope="a b"',)


async def test_a_token_that_does_not_count_is_told_so_with_where_to_get_another() -> None:
    """AUTH-002."""
    with pytest.raises(Unauthorized) as caught:
        await by_token("Bearer " + token(ONE, claims(exp=NOW_S - 1)))
    refused = caught.value
    assert (refused.http_status, refused.reason) == (401, "expired")
    assert refused.challenges == (
        'Bearer error="invalid_token", '
        'error_description="The access token is not good: it has expired", '
        f'{METADATA}, scope="a b"',
    )


async def test_of_two_tokens_none_counts() -> None:
    """What goes upstream unchanged must be what was verified."""
    with pytest.raises(Unauthorized):
        await by_token("Bearer " + token(), "Bearer " + token())


async def test_the_answer_shows_nothing_of_the_token() -> None:
    """AUTH-007."""
    with pytest.raises(Unauthorized) as caught:
        await by_token("Bearer hunter2-hunter2")
    assert "hunter2" not in caught.value.message + "".join(caught.value.challenges)


# -- a gateway that knows the user -------------------------------------------------------------------


async def by_gateway(
    peer: str | None, *headers: tuple[str, str], trusted: Any = ("10.0.0.0/8", "::1")
) -> Owner:
    return await GatewayGate("X-User", trusted, SECRET).admit(CIMultiDict(headers), peer)


@pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3", "::1", "::1%lo"])
async def test_the_gateways_word_is_taken(peer: str) -> None:
    owner = await by_gateway(peer, ("x-user", "alice"))
    assert owner == await by_gateway("10.0.0.1", ("X-User", " alice "), ("Authorization", "Bearer a"))
    assert owner != await by_gateway(peer, ("X-User", "bob"))
    assert "alice" not in owner.key


@pytest.mark.parametrize(
    "peer", ["11.0.0.1", "::ffff:11.0.0.1", "fe80::1", "", None, "localhost", "10.0.0.1:80"]
)
@pytest.mark.parametrize("headers", [(("X-User", "alice"),), ()], ids=["named", "unnamed"])
async def test_nobody_elses_word_is_taken(peer: str | None, headers: tuple[tuple[str, str], ...]) -> None:
    """Contract section 8: the header of a trusted gateway alone; AUTH-009."""
    with pytest.raises(Unauthorized) as caught:
        await by_gateway(peer, *headers, ("X-Forwarded-For", "10.0.0.1"))
    assert caught.value.http_status == 403


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("X-User", ""),),
        (("X-User", " "),),
        (("X-User", "alice"), ("X-User", "bob")),
        (("X-User", "alice"), ("x-user", "alice")),
        (("X-User", "alice,bob"),),
        (("X-User", "alice, bob"),),
        (("X-User", ",bob"),),
        (("X-User", "CN=bob,O=example"),),
        (("X-User", "a" * (MAX_NAME_CHARS + 1)),),
    ],
    ids=["none", "empty", "blank", "two", "twice", "joined", "joined-2", "joined-3", "dn", "long"],
)
async def test_a_user_who_is_not_named_for_sure_is_nobody(headers: tuple[tuple[str, str], ...]) -> None:
    """Two, in two lines or in one, if a client had its own passed through."""
    with pytest.raises(Unauthorized) as caught:
        await by_gateway("10.0.0.1", *headers)
    assert caught.value.http_status == 403


async def test_a_name_from_a_gateway_is_no_subject_of_an_issuer() -> None:
    """SEC-004."""
    named = await by_gateway("10.0.0.1", ("X-User", "alice"))
    assert named != await by_token("Bearer " + token())
