"""The bytes of a record: whole again after a round trip, and never taken for whole when torn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.protocol.envelope import Member
from proxy.protocol.outline import Outline
from proxy.stores.encryption import NO_KEYS
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
    unpack,
)
from proxy.tasks.lost_call import CallTrace, Repeat, RoundTrace
from proxy.tasks.task import InputAnswer, InputRequest, Task, TaskStatus
from tests.manual_clock import ManualClock
from tests.stores.records import a_task, asked, cancelled, completed, failed

ID = "tpx-" + "0" * 32
OUTLINE = Outline((Member("_meta", 1, 9, 1 << 40),), 1 << 40)
FORMAT_1 = bytes.fromhex(
    "74707801ee72c6f77fe7f4843c3bb96a1e0184da81a47461736bde0012a26964d9247470782d30303030303030303030"
    "30303030303030303030303030303030303030303030a56f776e6572a5616c696365a66d6574686f64aa746f6f6c732f"
    "63616c6ca46e616d65ab747261696e5f6d6f64656cad637265617465645f61745f6d73cf000001a3185c5000ad757064"
    "617465645f61745f6d73cf000001a3185c5bb8ac726574656e74696f6e5f6d73cdea60a6737461747573ae696e707574"
    "5f7265717569726564ae7374617475735f6d657373616765c0a6696e707574739184a36b6579a7696e7075742d32a66d"
    "6574686f64b2656c696369746174696f6e2f637265617465a6706172616d73c4027b7dab7175657374696f6e5f6964c4"
    "0522712d3222a7616e73776572739183a36b6579a7696e7075742d31ab7175657374696f6e5f6964c40131a576616c75"
    "65c4027b7da86e6578745f6b657903a674746c5f6d73c0b0706f6c6c5f696e74657276616c5f6d73c0a6726573756c74"
    "c0a56572726f72c0ab7365727665725f696e666fc0a87265766973696f6e02"
)  # as the first version wrote it


def decoded(data: bytes, task_id: str = ID) -> Record:
    return decode(row_key(task_id), data)


def test_every_kind_of_record_comes_back_equal() -> None:
    clock = ManualClock()
    task = a_task(clock, status_message="Größe 3/10", server_info=b"{}")
    for state in (
        task,
        asked(task, clock),
        completed(task, clock),
        replace(completed(task, clock), tool_error="no such table", result_outline=OUTLINE),
        failed(task, clock),
        cancelled(task, clock),
    ):
        assert decoded(encode(Record(task=state)), state.id) == Record(task=state)
    large = Record(task=task, result_file="f" * 32, result_size=1 << 40)
    assert decoded(encode(large), task.id) == large


def test_a_record_of_format_1_is_read_for_ever() -> None:
    assert decoded(FORMAT_1).task == Task(  # what came later has its default
        id=ID,
        owner="alice",
        method="tools/call",
        name="train_model",
        created_at_ms=1_800_000_000_000,
        updated_at_ms=1_800_000_003_000,
        retention_ms=60_000,
        status=TaskStatus.INPUT_REQUIRED,
        inputs=(InputRequest("input-2", "elicitation/create", b"{}", b'"q-2"'),),
        answers=(InputAnswer("input-1", b"1", b"{}"),),
        next_key=3,
        revision=2,
    )


def test_text_that_utf8_cannot_hold_comes_back_equal() -> None:
    clock = ManualClock()
    task = asked(a_task(clock, name="cut \ud83d", status_message="\udfff"), clock)
    assert decoded(encode(Record(task=task)), task.id) == Record(task=task)


def test_a_flipped_bit_or_a_missing_end_is_noticed_wherever_it_is() -> None:
    sound = encode(Record(task=a_task(ManualClock(), id=ID)))
    for at in range(len(sound)):
        torn = bytearray(sound)
        torn[at] ^= 0x10
        with pytest.raises(DamagedData):
            decoded(bytes(torn))
        with pytest.raises(DamagedData):
            decoded(sound[:at])
    with pytest.raises(DamagedData):
        decoded(sound + b"\0")


def test_a_later_format_is_told_from_damage() -> None:
    with pytest.raises(NewerFormat, match=f"format {FORMAT + 1}, while this version reads up to {FORMAT}"):
        decoded(seal(b"what we cannot know", FORMAT + 1) + b"what we cannot know")


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
        b'{"task": {"id": "\\ud83d", "owner": "o", "method": "m", "name": "n", "created_at_ms": 1,'
        b' "updated_at_ms": 1, "retention_ms": 0}}',
    ],
)
def test_sealed_nonsense_is_damage(payload: bytes) -> None:
    with pytest.raises(DamagedData, match="not a task record"):
        decoded(seal(payload) + payload)


def test_an_empty_result_has_a_seal_too() -> None:
    (header,) = pack(b"", b"file", NO_KEYS)
    assert len(header) == HEADER_SIZE
    assert unpack(bytes(header), b"", b"file", NO_KEYS) == b""


def test_what_is_kept_of_a_call_comes_back_equal(clock: ManualClock) -> None:
    """Contract section 9; half an emoji in the arguments, too."""
    trace = CallTrace("s", "2025-11-25", 7, "e1", is_ours=False, upstream_task="t")
    waits = RoundTrace(b'{"a":"\\ud83d"}', "{}", None, (("input-1", "who"),))
    task = a_task(clock, trace=trace, round=waits, repeat=Repeat(b"{}", '{"x":"\ud83d"}'), sent=False)
    assert decoded(encode(Record(task=task)), task.id).task == task
