"""Cursors of `tasks/list`: they lead on, and only their own owner. T25-LST-005; contract section 5."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol import request_state
from proxy.protocol.list_cursor import InvalidCursor, ListPosition, seal, unseal
from proxy.protocol.request_state import NONCE_BYTES, Claim

KEY = b"k" * 32
HERE = ListPosition(after="tpx-1")

texts = st.none() | st.text()
positions = st.builds(ListPosition, texts, texts)


@given(positions, st.text())
def test_a_cursor_leads_where_it_was_made_for(position: ListPosition, owner: str) -> None:
    """Whatever the upstream's own cursor looks like; the text fits into a URL."""
    text = seal(KEY, owner, position)
    assert unseal(KEY, owner, text) == position
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_a_cursor_of_another_owner_is_none() -> None:
    """T25-LST-005, I5."""
    with pytest.raises(InvalidCursor):
        unseal(KEY, "bob", seal(KEY, "ada", HERE))


def test_a_cursor_of_another_proxy_is_none() -> None:
    with pytest.raises(InvalidCursor):
        unseal(b"x" * 32, "ada", seal(KEY, "ada", HERE))


@given(st.text())
def test_what_nobody_made_here_is_none(text: str) -> None:
    """T25-LST-005: also what is no base64, or not ASCII; one message for all."""
    with pytest.raises(InvalidCursor, match=r"^the cursor is not valid$"):
        unseal(KEY, "ada", text)


def test_a_cursor_that_was_changed_anywhere_is_none() -> None:
    data = base64.urlsafe_b64decode(seal(KEY, "ada", HERE) + "==")
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(InvalidCursor):
            unseal(KEY, "ada", base64.urlsafe_b64encode(bytes(changed)).decode())
    for end in range(len(data)):
        with pytest.raises(InvalidCursor):
            unseal(KEY, "ada", base64.urlsafe_b64encode(data[:end]).decode())


def made_for(purpose: bytes) -> str:
    """A cursor to HERE for ada, as whoever signs with the same key for this purpose would make it."""
    body = json.dumps([HERE.after, HERE.upstream]).encode()
    signature = hmac.digest(KEY, purpose + hashlib.sha256(b"ada").digest() + body, "sha256")
    return base64.urlsafe_b64encode(signature[:16] + body).decode().rstrip("=")


def test_what_was_signed_with_the_same_key_for_another_purpose_is_none() -> None:
    """I5: the store's one secret signs cursors and states."""
    assert unseal(KEY, "ada", made_for(b"mcp-taskproxy tasks/list cursor 1")) == HERE
    for purpose in (b"", b"mcp-taskproxy requestState 1", b"mcp-taskproxy tasks/list cursor 2"):
        with pytest.raises(InvalidCursor):
            unseal(KEY, "ada", made_for(purpose))


def test_a_state_is_no_cursor() -> None:
    state = request_state.seal(KEY, b"n" * NONCE_BYTES, 1 << 60, Claim("ada", b"d" * 32))
    with pytest.raises(InvalidCursor):
        unseal(KEY, "ada", state)
