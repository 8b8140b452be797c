"""The bytes of a record: whole again after a round trip, and never taken for whole when torn."""

from __future__ import annotations

import pytest

from proxy.stores.records import (
    FORMAT,
    HEADER_SIZE,
    DamagedData,
    NewerFormat,
    Record,
    decode,
    encode,
    seal,
    unseal,
)
from tests.manual_clock import ManualClock
from tests.stores.records import a_task, asked, cancelled, completed, failed

OLDEST = bytes.fromhex("00")


def test_every_kind_of_record_comes_back_equal() -> None:
    clock = ManualClock()
    task = a_task(clock, status_message="Größe 3/10", server_info=b"{}")
    for state in (
        task,
        asked(task, clock),
        completed(task, clock),
        failed(task, clock),
        cancelled(task, clock),
    ):
        assert decode(encode(Record(task=state))) == Record(task=state)
    large = Record(task=task, result_file="f" * 32, result_size=1 << 40)
    assert decode(encode(large)) == large


def test_text_that_utf8_cannot_hold_comes_back_equal() -> None:
    clock = ManualClock()
    task = asked(a_task(clock, name="cut \ud83d", status_message="\udfff"), clock)
    assert decode(encode(Record(task=task))) == Record(task=task)


def test_a_flipped_bit_or_a_missing_end_is_noticed_wherever_it_is() -> None:
    sound = encode(Record(task=a_task(ManualClock())))
    for at in range(len(sound)):
        torn = bytearray(sound)
        torn[at] ^= 0x10
        with pytest.raises(DamagedData):
            decode(bytes(torn))
        with pytest.raises(DamagedData):
            decode(sound[:at])
    with pytest.raises(DamagedData):
        decode(sound + b"\0")


def test_a_later_format_is_told_from_damage() -> None:
    with pytest.raises(NewerFormat, match=f"format {FORMAT + 1}, while this version reads up to {FORMAT}"):
        unseal(seal(b"what we cannot know", FORMAT + 1) + b"what we cannot know")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x80",
        b"{}",
        b"{no json",
        b"[]",
        b'{"task": {"id": "x", "owner": "o", "method": "m", "name": "n", "created_at_ms": 2,'
        b' "updated_at_ms": 1, "retention_ms": 0}}',
    ],
)
def test_sealed_nonsense_is_damage(payload: bytes) -> None:
    with pytest.raises(DamagedData, match="not a task record"):
        decode(seal(payload) + payload)


def test_an_empty_result_has_a_seal_too() -> None:
    assert len(seal(b"")) == HEADER_SIZE
    assert unseal(seal(b"")) == b""
