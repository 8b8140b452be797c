"""Tokens that are verified here: what proves whose they are, and what proves nothing.

AUTH-001; Authorization 2026-07-28, "Token Handling".
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import RSAKey

from proxy.auth.keys import MAX_AGE_S, WAIT_S, Keys
from proxy.auth.sources import SourceError
from proxy.auth.tokens import (
    MAX_TOKEN_BYTES,
    TokenRefused,
    TokenRules,
    TokenVerifier,
    claimed_expiry,
    claimed_owner,
)
from proxy.owners import Owner
from tests.auth.issuer import AUDIENCE, ISSUER, NOW_S, ONE, by_secret, claims, ec, key_set, okp, rsa, token
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

RSA = rsa("rsa")
ED = okp("ed")
STRANGER = ec("one")
"""Has the same id as ONE, and is another key."""

ALGORITHMS = ("RS256", "ES256", "EdDSA", "Ed25519")
LEEWAY_S = 10.0


class Bench:
    """A verifier whose issuer has the keys in `text`."""

    def __init__(self) -> None:
        self.text: bytes | SourceError = key_set(ONE, RSA, ED)
        self.clock = ManualClock()
        self.keys = Keys(self.load, self.clock)
        rules = TokenRules(ISSUER, (AUDIENCE, "other"), ALGORITHMS, LEEWAY_S)
        self.verifier = TokenVerifier(rules, self.keys, b"s" * 32, self.clock)

    async def load(self) -> bytes:
        if isinstance(self.text, SourceError):
            raise self.text
        return self.text

    async def owner_of(self, token: str) -> Owner:
        return await self.verifier.owner_of(token)

    async def reason(self, token: str) -> str:
        """Why it is refused; a key that is not known is waited for in no time."""
        reasons: list[str] = []

        async def look() -> None:
            with pytest.raises(TokenRefused) as caught:
                await self.verifier.owner_of(token)
            reasons.append(caught.value.reason)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            await anyio.wait_all_tasks_blocked()
            if not reasons:
                await self.clock.advance(WAIT_S)
        return reasons[0]


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.keys.run)
            await anyio.wait_all_tasks_blocked()
            yield made
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "key, alg", [(ONE, "ES256"), (RSA, "RS256"), (ED, "Ed25519")], ids=["ES256", "RS256", "Ed25519"]
)
async def test_a_good_token_is_its_subjects(key: Any, alg: str) -> None:
    async with bench() as b:
        owner = await b.owner_of(token(key, alg=alg))
        assert owner.has_token
        assert "alice" not in owner.key
        assert owner == await b.owner_of(token(ONE, claims(exp=NOW_S + 600, scope="more")))


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")  # while the test signs
async def test_the_older_name_of_a_signature_is_taken_without_a_word(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async with bench() as b:
        signed = token(ED, alg="EdDSA")
        recwarn.clear()
        await b.owner_of(signed)
        assert not recwarn.list


async def test_another_subject_is_another_owner() -> None:
    async with bench() as b:
        assert await b.owner_of(token()) != await b.owner_of(token(ONE, claims(sub="bob")))


async def test_a_token_that_names_no_key_may_be_of_any() -> None:
    async with bench() as b:
        await b.owner_of(token(RSA, alg="RS256", header={"kid": None}))


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": ["elsewhere", AUDIENCE]},
        {"aud": "other"},
        {"exp": NOW_S - LEEWAY_S + 1},
        {"exp": NOW_S + 0.5},
        {"nbf": NOW_S + LEEWAY_S},
        {"iat": None},
    ],
    ids=str,
)
async def test_what_is_within_the_rules_is_taken(changes: dict[str, Any]) -> None:
    async with bench() as b:
        await b.owner_of(token(ONE, claims(**changes)))


NO_TIMES: list[Any] = [
    *("", "soon", str(NOW_S), True, False, [], [NOW_S], {}),
    *(-1, -0.5, 10**12, 1e300, 10**400),
]


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"iss": "https://issuer.example/"}, "issuer"),
        ({"iss": ["https://issuer.example"]}, "issuer"),
        *[({"aud": AUDIENCE + more}, "audience") for more in ("/", "//", "/x", "?", "#", " ")],
        ({"aud": AUDIENCE.upper()}, "audience"),
        ({"aud": ["elsewhere"]}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": {AUDIENCE: 1}}, "audience"),
        ({"exp": NOW_S - LEEWAY_S}, "expired"),
        ({"exp": str(NOW_S + 300)}, "claims"),
        ({"exp": True}, "claims"),
        *[({name: wrong}, "claims") for name in ("exp", "nbf", "iat") for wrong in NO_TIMES],
        ({"nbf": NOW_S + LEEWAY_S + 2}, "not_yet_valid"),
        ({"iat": NOW_S + LEEWAY_S + 2}, "not_yet_valid"),
        ({"sub": ""}, "claims"),
        ({"sub": 7}, "claims"),
        *[({name: None}, "claims") for name in ("iss", "sub", "aud", "exp")],
    ],
    ids=str,
)
async def test_what_is_not_within_them_is_refused(changes: dict[str, Any], reason: str) -> None:
    """AUTH-001: issuer, expiry and audience."""
    async with bench() as b:
        assert await b.reason(token(ONE, claims(**changes))) == reason


def unsigned(header: Any, said: Any = None, signature: str = "") -> str:
    parts = (header, claims() if said is None else said)
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*coded, signature])


def tampered(part: int) -> str:
    """Of a good token, one letter of a part is another."""
    parts = token().split(".")
    at = len(parts[part]) // 2
    letter = "A" if parts[part][at] != "A" else "B"
    parts[part] = parts[part][:at] + letter + parts[part][at + 1 :]
    return ".".join(parts)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
async def test_a_time_that_is_no_json_number_is_refused(name: str, word: str) -> None:
    said = json.dumps(claims(**{name: 0.5})).replace("0.5", word).encode()
    async with bench() as b:
        signed = jws.serialize_compact({"alg": "ES256", "kid": "one"}, said, ONE)
        assert await b.reason(signed) in ("malformed", "claims")


FORGED: dict[str, tuple[Callable[[], str], str]] = {
    "alg none": (lambda: unsigned({"alg": "none"}), "algorithm"),
    "alg None": (lambda: unsigned({"alg": "None", "kid": "one"}), "algorithm"),
    "alg none with a signature": (lambda: unsigned({"alg": "none"}, signature="AAAA"), "algorithm"),
    "no alg": (lambda: unsigned({"kid": "one"}), "algorithm"),
    "alg a list": (lambda: unsigned({"alg": ["ES256"]}), "algorithm"),
    "alg not allowed": (lambda: token(RSA, alg="RS512"), "algorithm"),
    "HS256 with the public key": (lambda: by_secret(pem(RSA), claims(), "rsa"), "algorithm"),
    "no signature": (lambda: unsigned({"alg": "ES256", "kid": "one"}), "signature"),
    "another's key of the same name": (lambda: token(STRANGER), "signature"),
    "another key's name": (lambda: token(ec("x"), header={"kid": "one"}), "signature"),
    "a key that is not known": (lambda: token(ec("unknown")), "unknown_key"),
    "RS256 by the name of an EC key": (lambda: token(RSA, alg="RS256", header={"kid": "one"}), "unknown_key"),
    "its own key in it": (
        lambda: token(STRANGER, header={"jwk": STRANGER.as_dict(private=False)}),
        "signature",
    ),
    "kid a list": (lambda: unsigned({"alg": "ES256", "kid": ["one"]}), "malformed"),
    "something critical": (
        lambda: unsigned({"alg": "ES256", "kid": "one", "crit": ["b64"], "b64": False}),
        "malformed",
    ),
    "claims changed": (lambda: tampered(1), "signature"),
    "header an array": (lambda: unsigned(["ES256"]), "malformed"),
    "header nested": (lambda: unsigned(json.loads("[" * 60 + "]" * 60)), "malformed"),
    "empty": (lambda: "", "malformed"),
    "opaque": (lambda: "abcdef", "malformed"),
    "two parts": (lambda: "a.b", "malformed"),
    "five parts": (lambda: "a.b.c.d.e", "malformed"),
    "not ASCII": (lambda: "\udcff.ü.x", "malformed"),
    "too long": (lambda: "a" * MAX_TOKEN_BYTES + ".b.c", "malformed"),
}


def pem(key: RSAKey) -> bytes:
    return key.as_pem(private=False)


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")  # while the test forges
async def test_what_is_forged_is_refused(name: str) -> None:
    """AUTH-001: the signature, whatever the token says of it."""
    make, reason = FORGED[name]
    async with bench() as b:
        assert await b.reason(make()) == reason


async def test_what_was_proved_is_proved_no_longer_once_it_has_expired() -> None:
    """AUTH-003."""
    async with bench() as b:
        good = token()
        await b.owner_of(good)
        await b.clock.advance(300)
        await b.owner_of(good)
        await b.clock.advance(LEEWAY_S)
        assert await b.reason(good) == "expired"


async def test_what_was_proved_by_a_key_that_is_withdrawn_is_proved_no_longer() -> None:
    async with bench() as b:
        good = token(ONE, claims(exp=NOW_S + 9_999))
        await b.owner_of(good)
        b.text = key_set(RSA)
        await b.clock.advance(MAX_AGE_S)
        assert await b.reason(good) == "unknown_key"


async def test_a_new_key_is_found_while_the_old_one_still_counts() -> None:
    """Key rotation."""
    async with bench() as b:
        new = ec("new")
        b.text = key_set(ONE, new)
        owners: list[Owner] = []

        async def look() -> None:
            owners.append(await b.owner_of(token(new)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            await b.clock.advance(WAIT_S)
        assert owners == [await b.owner_of(token())]


@given(st.text(max_size=200) | st.lists(st.binary(max_size=60), min_size=3, max_size=3))
def test_whatever_is_sent_is_an_answer_and_no_fault(sent: str | list[bytes]) -> None:
    """Nothing but TokenRefused comes of what is no token."""
    text = (
        sent
        if isinstance(sent, str)
        else ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in sent)
    )

    async def look() -> None:
        async with bench() as b:
            await b.reason(text)

    anyio.run(look)
    assert claimed_expiry(text) is None or "exp" in text or isinstance(sent, list)


@pytest.mark.parametrize(
    "said, expiry",
    [
        ({"exp": 5}, 5.0),
        ({"exp": 5.5}, 5.5),
        ({"exp": 0}, 0.0),
        ({"exp": -5}, -5.0),
        ({"exp": True}, None),
        ({"exp": "5"}, None),
        ({"exp": 10**400}, None),
        ({}, None),
        ([], None),
    ],
)
def test_what_a_token_says_of_its_end_is_read_without_proof(said: Any, expiry: float | None) -> None:
    """Contract section 8, "whose own `exp` has passed"."""
    assert claimed_expiry(unsigned({"alg": "none"}, said)) == expiry


@pytest.mark.parametrize("text", ["", "opaque", "a.b", "a.b.c", "a.e30.c.d", "\udcff.\udcff.\udcff"])
def test_what_is_no_token_says_nothing_of_its_end(text: str) -> None:
    assert claimed_expiry(text) is None


async def test_a_token_that_proves_whose_it_is_says_the_same() -> None:
    """Of one that proves nothing, nothing is believed but that it was refused."""
    async with bench() as at:
        assert claimed_owner(token(), b"s" * 32) == await at.owner_of(token())
    assert claimed_owner(token(ONE, claims(sub="bob")), b"s" * 32) != claimed_owner(token(), b"s" * 32)
    for said in ("opaque", "a.b.c", token(ONE, claims(sub=None)), token(ONE, claims(iss=7)), ""):
        assert claimed_owner(said, b"s" * 32) is None
