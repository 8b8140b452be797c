"""All streams of one session: what an event id means, and what is kept of answers that were given."""

from __future__ import annotations

from typing import Final

import anyio
import pytest

from proxy.sessions.stream import KEPT_S, Stream
from proxy.sessions.streams import ENDED_BYTES, ENDED_STREAMS, Streams
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


async def read_to_the_end(stream: Stream) -> None:
    reader = stream.attach()
    with anyio.fail_after(5):
        while await reader.blocks() is not None:
            pass
    reader.leave()


async def answered(streams: Streams, answer: bytes = b"{}") -> Stream:
    """A stream that was read to its end."""
    stream = streams.open()
    stream.answer(answer)
    stream.end()
    await read_to_the_end(stream)
    return stream


def test_event_ids_are_unique_in_the_session_and_lead_to_their_stream() -> None:
    """HTTP-067."""
    streams = Streams(ManualClock())
    ids = set()
    for stream in (streams.listening, streams.open(), streams.open()):
        stream.send(b"{}")
        for number in (0, 1):
            assert streams.find(stream.event_id(number)) == (stream, number)
            ids.add(stream.event_id(number))
    assert len(ids) == 6


NO_IDS: Final = (
    *("", "0", "x", "-1", "a-0-1", "000000000000-0-0", "é-0-0", "0" * 10_000),
    *("{}-0--1", "{}-0-1", "{}-9-0", "{}-0-0 ", "{}-0", "{}-0-0-0", "{}-0-" + "9" * 5_000),
)


@pytest.mark.parametrize("event_id", NO_IDS)
def test_what_is_no_id_of_an_event_of_this_session_leads_nowhere(event_id: str) -> None:
    """F24: garbage, an id from before a restart, one that was not given yet."""
    streams = Streams(ManualClock())
    tag = streams.listening.name.partition("-")[0]
    assert streams.find(event_id.replace("{}", tag)) is None


def test_an_id_of_another_session_leads_nowhere() -> None:
    """F24."""
    mine, others = Streams(ManualClock()), Streams(ManualClock())
    others.listening.send(b'"secret"')
    assert mine.find(others.listening.event_id(1)) is None


async def test_an_answer_can_be_read_again_for_a_while() -> None:
    clock = ManualClock()
    streams = Streams(clock)
    stream = await answered(streams)
    clock.jump(KEPT_S - 1)
    streams.forget()
    assert streams.find(stream.event_id(0)) is not None
    clock.jump(1)
    streams.forget()
    assert streams.find(stream.event_id(0)) is None


async def test_what_is_still_read_or_not_ended_is_not_forgotten() -> None:
    clock = ManualClock()
    streams = Streams(clock)
    running, slow = streams.open(), streams.open()
    running.send(b"{}")
    slow.answer(b"{}")
    slow.end()
    reader = slow.attach()
    clock.jump(10 * KEPT_S)
    streams.forget()
    assert streams.find(running.event_id(0)) is not None
    assert await reader.blocks() is not None
    assert streams.find(slow.event_id(1)) is not None


def test_a_stream_of_which_nobody_knows_an_id_is_not_kept() -> None:
    streams = Streams(ManualClock())
    stream = streams.open()
    stream.answer(b"{}")
    stream.end()
    streams.forget()
    assert streams.find(stream.event_id(1)) is None


async def test_answers_are_kept_in_bounded_number_the_last_ones_longest() -> None:
    clock = ManualClock()
    streams = Streams(clock)
    made = []
    for _ in range(5 * ENDED_STREAMS):
        made.append(await answered(streams))
        clock.jump(0.001)
    kept = [stream for stream in made if streams.find(stream.event_id(1))]
    assert len(kept) <= 2 * ENDED_STREAMS
    assert kept == made[-len(kept) :]
    streams.forget()
    assert [s for s in made if streams.find(s.event_id(1))] == made[-ENDED_STREAMS:]


async def test_answers_are_kept_within_a_number_of_bytes_and_the_last_one_in_any_case() -> None:
    clock = ManualClock()
    streams = Streams(clock)
    made = []
    for size in (ENDED_BYTES // 2, ENDED_BYTES // 2, ENDED_BYTES * 2):
        clock.jump(0.001)
        made.append(await answered(streams, b'"' + b"x" * size + b'"'))
    streams.forget()
    assert [streams.find(s.event_id(1)) is not None for s in made] == [False, False, True]


def test_when_the_session_is_over_all_its_streams_end() -> None:
    streams = Streams(ManualClock())
    made = [streams.listening, streams.open()]
    for stream in made:
        stream.attach()
    streams.end()
    assert [stream.is_open for stream in made] == [False, False]


def test_whether_anything_is_read_shows() -> None:
    streams = Streams(ManualClock())
    assert not streams.any_open
    reader = streams.open().attach()
    assert streams.any_open
    reader.leave()
    assert not streams.any_open
