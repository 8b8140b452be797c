"""Cursors of `tasks/list`: they lead on, and only their own owner. T25-LST-005; contract section 5."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.list_cursor import InvalidCursor, ListPosition, seal, unseal

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
