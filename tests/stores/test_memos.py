"""A memo as bytes: whole again after a round trip, never taken for whole when torn; never shown."""

from __future__ import annotations

import pytest

from proxy.stores.memos import (
    KEY_MAX_CHARS,
    VALUE_MAX_BYTES,
    Memo,
    Memos,
    decode,
    encode,
    is_row_key,
    row_key,
)
from proxy.stores.records import FORMAT, DamagedData, NewerFormat, seal

MEMO = Memo("session/Größe", b"\xff\0", 1_800_000_000_000, 1_800_000_060_000)
FORMAT_1 = bytes.fromhex(
    "7470780197a02f895fe9ec51cfad5f534106578184a36b6579af73657373696f6e2f4772c3b6c39f65a57661"
    "6c7565c402ff00b072656d656d62657265645f61745f6d73cf000001a3185c5000ad657870697265735f6174"
    "5f6d73cf000001a3185d3a60"
)  # as the first version wrote it


def test_a_memo_comes_back_equal() -> None:
    for memo in (MEMO, Memo("", b"", 0, 0), Memo("k" * KEY_MAX_CHARS, b"v" * VALUE_MAX_BYTES, 1, 2)):
        assert decode(row_key(memo.key), encode(memo)) == memo


def test_a_memo_of_format_1_is_read_for_ever() -> None:
    assert decode(row_key(MEMO.key), FORMAT_1) == MEMO


def test_a_flipped_bit_or_a_missing_end_is_noticed_wherever_it_is() -> None:
    sound = encode(MEMO)
    for at in range(len(sound)):
        torn = bytearray(sound)
        torn[at] ^= 0x10
        for damaged in (bytes(torn), sound[:at]):
            with pytest.raises(DamagedData):
                decode(row_key(MEMO.key), damaged)


def test_a_memo_under_a_foreign_key_is_damage() -> None:
    with pytest.raises(DamagedData, match="another memo"):
        decode(row_key("session/other"), encode(MEMO))


@pytest.mark.parametrize("payload", [b"", b"\x80", b"{}", b"\x84\xa3key\xa1k"])
def test_sealed_nonsense_is_damage(payload: bytes) -> None:
    with pytest.raises(DamagedData, match="not a memo"):
        decode(row_key("k"), seal(payload) + payload)


def test_a_later_format_is_told_from_damage() -> None:
    with pytest.raises(NewerFormat):
        decode(row_key("k"), seal(b"new ways", FORMAT + 1) + b"new ways")


def test_no_key_of_a_task_is_that_of_a_memo() -> None:
    assert is_row_key(row_key(""))
    assert not is_row_key(b"tpx-" + b"a" * 32)
    assert not is_row_key(b"\0check")


def test_found_memos_stand_in_order_of_age() -> None:
    found = [Memo("b", b"", 2, 9), Memo("c", b"", 3, 9), Memo("a", b"", 1, 9)]
    assert [memo.key for memo in Memos(found).live("", 0)] == ["a", "b", "c"]


def test_a_memo_shows_nothing_of_its_content() -> None:
    assert repr(MEMO) == "<Memo, 2 bytes>"
