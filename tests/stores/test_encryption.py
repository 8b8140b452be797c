"""What is encrypted opens with its key, whole, in its place; nothing else does. Contract section 8."""

from __future__ import annotations

from typing import Final

import pytest

from proxy.stores.encryption import NO_KEYS, PIECE_BYTES, Keys, MissingKey, NotAuthentic
from proxy.stores.records import (
    FORMAT,
    HEADER_SIZE,
    DamagedData,
    NewerFormat,
    Record,
    decode,
    encode,
    pack,
    row_key,
    seal,
    stand_in,
    stand_in_of_row,
    unpack,
)
from tests.manual_clock import ManualClock
from tests.stores.records import a_task, asked

FIRST, SECOND, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))
KEYS: Final = Keys([FIRST])
PLACE: Final = b"row tpx-1"
FIXED: Final = 8 + 24  # which key, and what the value's own key is made from
TAG: Final = 16
KEPT: Final = bytes.fromhex(
    "ae2b69a696b7b3c2518747d9525bca19292c137a0ba8daf5df45eb2434a5ad7200d125456a4324a4f006e65c5397674410e064ff"
)  # as the first version that encrypts wrote it


def locked(plain: bytes, place: bytes = PLACE, keys: Keys = KEYS) -> bytes:
    return b"".join(keys.encrypt(plain, place))


SIZES: Final = [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 3 * PIECE_BYTES + 5]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_encrypted_comes_back_equal_and_costs_a_tag_for_each_piece(size: int) -> None:
    plain = (b"s3cret" * (size // 6 + 1))[:size]
    data = locked(plain)
    assert KEYS.decrypt(data, PLACE) == plain
    assert len(data) == FIXED + size + TAG * max(1, -(-size // PIECE_BYTES))
    assert b"s3cret" not in data


def test_what_was_encrypted_once_opens_for_ever() -> None:
    assert KEYS.decrypt(KEPT, PLACE) == b"kept"


def test_the_same_text_twice_has_nothing_in_common() -> None:
    """No two values share a key, so that no nonce is used twice under one."""
    one, other = locked(b"x" * 64), locked(b"x" * 64)
    assert one[:8] == other[:8]  # which key it was
    assert not blocks(one) & blocks(other)


def blocks(data: bytes) -> set[bytes]:
    return {data[start : start + 8] for start in range(8, len(data), 8)}


def test_a_flipped_bit_or_a_missing_end_opens_nothing_wherever_it_is() -> None:
    data = locked(b"some text")
    for at in range(len(data)):
        torn = bytearray(data)
        torn[at] ^= 0x10
        with pytest.raises((NotAuthentic, MissingKey)):
            KEYS.decrypt(bytes(torn), PLACE)
        with pytest.raises((NotAuthentic, MissingKey)):
            KEYS.decrypt(data[:at], PLACE)
    with pytest.raises(NotAuthentic):
        KEYS.decrypt(data + b"\0", PLACE)


def test_pieces_cannot_be_exchanged_left_out_or_cut_off() -> None:
    data = locked(b"a" * PIECE_BYTES + b"b" * PIECE_BYTES + b"c")
    head, step = data[:FIXED], PIECE_BYTES + TAG
    one, two, last = (
        data[FIXED : FIXED + step],
        data[FIXED + step : FIXED + 2 * step],
        data[FIXED + 2 * step :],
    )
    assert head + one + two + last == data
    for other in ([two, one, last], [one, last], [one, two], [one], [one, two, two, last], [last]):
        with pytest.raises(NotAuthentic):
            KEYS.decrypt(head + b"".join(other), PLACE)


def test_pieces_of_another_value_do_not_fit() -> None:
    one, other = locked(b"x" * PIECE_BYTES + b"1"), locked(b"x" * PIECE_BYTES + b"2")
    end = FIXED + PIECE_BYTES + TAG
    with pytest.raises(NotAuthentic):
        KEYS.decrypt(one[:end] + other[end:], PLACE)


def test_nothing_opens_in_another_place() -> None:
    with pytest.raises(NotAuthentic):
        KEYS.decrypt(locked(b"text"), b"row tpx-2")


def test_the_first_key_encrypts_and_each_decrypts() -> None:
    """Rotation: put the new key first, take the old one away once nothing of it is left."""
    old = locked(b"old", keys=Keys([FIRST]))
    rotated = Keys([SECOND, FIRST])
    new = locked(b"new", keys=rotated)
    assert (rotated.decrypt(old, PLACE), rotated.decrypt(new, PLACE)) == (b"old", b"new")
    with pytest.raises(MissingKey):
        Keys([FIRST, THIRD]).decrypt(new, PLACE)
    with pytest.raises(MissingKey):
        Keys([SECOND]).decrypt(old, PLACE)


def test_a_key_that_is_missing_is_named_without_being_shown() -> None:
    for keys in (NO_KEYS, Keys([SECOND])):
        with pytest.raises(MissingKey) as caught:
            keys.decrypt(locked(b"text"), PLACE)
        assert caught.value.key_id in str(caught.value)
        assert caught.value.key_id in repr(KEYS)
        assert FIRST.hex() not in f"{caught.value} {KEYS!r}"


def test_without_keys_nothing_is_encrypted() -> None:
    assert (bool(NO_KEYS), bool(KEYS)) == (False, True)
    record = Record(task=a_task(ManualClock()))
    assert encode(record) == encode(record, NO_KEYS)
    assert record.task.name.encode() in encode(record)


# -- behind the seal ---------------------------------------------------------------------------------


def test_a_record_is_encrypted_whole_and_bound_to_its_row() -> None:
    clock = ManualClock()
    record = Record(task=asked(a_task(clock, status_message="halfway"), clock))
    data = encode(record, KEYS)
    for word in (b"halfway", b"Sure?", b"accept", b"alice", b"train_model", record.task.id.encode()):
        assert word not in data
        assert word in encode(record)
    key = row_key(record.task.id, KEYS)
    assert record.task.id.encode() not in key
    assert decode(key, data, KEYS) == record
    for other in (row_key("tpx-other", KEYS), row_key(record.task.id)):
        with pytest.raises(DamagedData, match="not what was encrypted for this place"):
            decode(other, data, KEYS)
    with pytest.raises(MissingKey):
        decode(key, data)


def test_a_record_may_stay_where_it_was_before_there_were_keys() -> None:
    record = Record(task=a_task(ManualClock()))
    key = row_key(record.task.id)
    assert decode(key, encode(record, KEYS, key), KEYS) == record


def test_one_thing_stands_for_a_task_whatever_its_row_is_called() -> None:
    for keys in (NO_KEYS, KEYS):
        assert stand_in_of_row(row_key("tpx-1", keys)) == stand_in("tpx-1") != stand_in("tpx-2")


def test_a_torn_record_is_damaged_with_and_without_its_key() -> None:
    """What is torn is no question of keys: else it would be kept for one that will never come."""
    task = a_task(ManualClock())
    for torn in (encode(Record(task=task), KEYS)[:-1], encode(Record(task=task), KEYS) + b"\0"):
        for keys in (KEYS, NO_KEYS):
            with pytest.raises(DamagedData, match="checksum"):
                decode(row_key(task.id), torn, keys)


def test_what_is_not_encrypted_is_read_with_keys_too() -> None:
    record = Record(task=a_task(ManualClock()))
    assert decode(row_key(record.task.id), encode(record), KEYS) == record


def test_too_short_to_be_encrypted_is_damage() -> None:
    for payload in (b"", b"short", b"x" * (FIXED - 1)):
        with pytest.raises(DamagedData):
            decode(b"tpx-1", seal(payload, 2) + payload, KEYS)


def test_earlier_versions_leave_what_is_encrypted_to_later_ones() -> None:
    """They take it for a later format, and not for damage."""
    assert encode(Record(task=a_task(ManualClock())), KEYS)[3] == 2
    with pytest.raises(NewerFormat):
        decode(b"tpx-1", seal(b"?", FORMAT + 1) + b"?", KEYS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("keys", [NO_KEYS, KEYS], ids=["plain", "encrypted"])
def test_what_is_packed_comes_in_pieces_of_bounded_size(keys: Keys, size: int) -> None:
    content = bytes(size)
    header, *pieces = pack(content, b"file 1", keys)
    assert len(header) == HEADER_SIZE
    assert all(len(piece) <= PIECE_BYTES + TAG for piece in pieces)
    assert unpack(bytes(header), b"".join(pieces), b"file 1", keys) == content
