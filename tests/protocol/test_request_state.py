"""`requestState`: nobody else can make one, move it to another call, or keep it beyond its time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import string
import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol import list_cursor
from proxy.protocol.list_cursor import ListPosition
from proxy.protocol.request_state import NONCE_BYTES, Claim, InvalidState, seal, unseal

KEY: Final = b"k" * 32
NONCE: Final = bytes(range(NONCE_BYTES))
NOW_MS: Final = 1_800_000_000_000
EXPIRES_MS: Final = NOW_MS + 600_000
CLAIM: Final = Claim("alice", b"d" * 32)
STATE: Final = seal(KEY, NONCE, EXPIRES_MS, CLAIM)
URL_SAFE: Final = string.ascii_letters + string.digits + "-_"


def is_refused(text: str, *, key: bytes = KEY, claim: Claim = CLAIM, now_ms: int = NOW_MS) -> bool:
    try:
        unseal(key, text, now_ms, claim)
    except InvalidState:
        return True
    return False


def test_a_state_gives_back_its_nonce_to_whom_it_was_made_for() -> None:
    assert unseal(KEY, STATE, NOW_MS, CLAIM) == NONCE


def test_a_state_shows_nothing_of_owner_and_call() -> None:
    """MRTR-007: they are signed, not contained; the text is safe in any JSON or URL."""
    assert set(STATE) <= set(URL_SAFE)
    data = base64.urlsafe_b64decode(STATE + "=")
    assert CLAIM.owner.encode() not in data
    assert CLAIM.call_digest not in data


def test_every_flipped_bit_is_seen() -> None:
    """MRTR-006: all bits of all characters, those too that base64 does not use."""
    for at in range(len(STATE)):
        for bit in range(7):
            flipped = STATE[:at] + chr(ord(STATE[at]) ^ 1 << bit) + STATE[at + 1 :]
            assert is_refused(flipped), (at, bit)


def test_every_other_character_is_seen() -> None:
    """MRTR-006: one state has one spelling."""
    for at in range(len(STATE)):
        for character in set(URL_SAFE + "+/= \n") - {STATE[at]}:
            assert is_refused(STATE[:at] + character + STATE[at + 1 :])


def test_every_truncation_and_every_addition_is_seen() -> None:
    """MRTR-006."""
    assert all(is_refused(STATE[:length]) for length in range(len(STATE)))
    assert all(is_refused(STATE[length:]) for length in range(1, len(STATE)))
    assert all(is_refused(STATE + more) for more in ("=", "==", "A", "AAAA", "\n", " ", STATE))
    assert all(is_refused(more + STATE) for more in ("=", "A", "AAAA", " "))


@pytest.mark.parametrize("text", ["", "=", "ä" * 75, "\ud83d", "\0", "null", "A" * 75, "A" * 100_000])
def test_what_was_never_a_state_is_refused(text: str) -> None:
    """MRTR-006."""
    assert is_refused(text)


@given(st.text(max_size=120))
def test_any_text_is_refused_without_a_fault_of_ours(text: str) -> None:
    """MRTR-006."""
    assert is_refused(text)


@pytest.mark.parametrize("key", [b"", b"K" * 32, b"k" * 31, b"k" * 33])
def test_another_key_refuses(key: bytes) -> None:
    """MRTR-006: a state from before the store was made anew is no state."""
    assert is_refused(STATE, key=key)


@pytest.mark.parametrize(
    "claim",
    [
        Claim("bob", CLAIM.call_digest),
        Claim("", CLAIM.call_digest),
        Claim("alice", b"e" * 32),
        Claim("alice", b""),
        Claim("aliced", b"d" * 31),
    ],
)
def test_a_state_fits_its_owner_and_its_call_alone(claim: Claim) -> None:
    """MRTR-007, MRTR-009."""
    assert is_refused(STATE, claim=claim)


def test_a_state_ends_with_its_time() -> None:
    """MRTR-008."""
    assert not is_refused(STATE, now_ms=EXPIRES_MS - 1)
    with pytest.raises(InvalidState, match="expired"):
        unseal(KEY, STATE, EXPIRES_MS, CLAIM)


def test_only_the_rightful_owner_learns_that_it_has_expired() -> None:
    """MRTR-007: the same words for every other fault."""
    for claim, key in ((Claim("bob", CLAIM.call_digest), KEY), (CLAIM, b"other")):
        with pytest.raises(InvalidState, match="not valid for this request"):
            unseal(key, STATE, EXPIRES_MS + 1, claim)


@given(
    st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES),
    st.integers(min_value=NOW_MS + 1, max_value=2**63),
    st.text(max_size=20).filter(lambda text: text.isprintable()),
)
def test_every_state_that_we_make_comes_back(nonce: bytes, expires_ms: int, owner: str) -> None:
    claim = Claim(owner, b"c" * 32)
    assert unseal(KEY, seal(KEY, nonce, expires_ms, claim), NOW_MS, claim) == nonce


def made_for(purpose: bytes) -> str:
    """The very state, as whoever signs with the same key for this purpose would make it."""
    body = NONCE + struct.pack(">Q", EXPIRES_MS)
    owner = hashlib.sha256(CLAIM.owner.encode()).digest()
    signature = hmac.digest(KEY, purpose + body + owner + CLAIM.call_digest, "sha256")
    return base64.urlsafe_b64encode(body + signature).decode().rstrip("=")


def test_what_was_signed_with_the_same_key_for_another_purpose_is_refused() -> None:
    """MRTR-006: the store's one secret signs states and cursors."""
    assert made_for(b"mcp-taskproxy requestState 1") == STATE
    for purpose in (b"", b"mcp-taskproxy tasks/list cursor 1", b"mcp-taskproxy requestState 2"):
        assert is_refused(made_for(purpose))


def test_a_cursor_is_no_state() -> None:
    for after in (None, "tpx-1", "x" * 35):  # of any length, also that of a state
        assert is_refused(list_cursor.seal(KEY, CLAIM.owner, ListPosition(after)))
