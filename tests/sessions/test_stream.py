"""One event stream: who reads it, what is kept, and what a reader that comes back gets.

Holds F24, HTTP-067 and the bounds of the buffer.
"""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.protocol.sse import Event, EventDecoder
from proxy.sessions.stream import (
    KEPT_BYTES,
    KEPT_EVENTS,
    KEPT_S,
    RETRY_MS,
    UNREAD_BYTES,
    UNREAD_EVENTS,
    Reader,
    Stream,
)
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


def message(n: int) -> bytes:
    return b'{"n":%d}' % n


def stream(clock: ManualClock | None = None) -> Stream:
    return Stream("s", clock or ManualClock())


async def read(reader: Reader) -> list[Event] | None:
    """What is there now; None at the reader's end."""
    with anyio.fail_after(5):
        blocks = await reader.blocks()
    return None if blocks is None else EventDecoder(KEPT_BYTES).feed(blocks)


async def numbers(reader: Reader) -> list[int]:
    """The numbers of the messages that are there now."""
    return [int(event.data[5:-1]) for event in await read(reader) or []]


async def test_what_was_said_is_read_in_its_order_under_ids_that_name_the_stream() -> None:
    it = stream()
    for n in (1, 2):
        it.send(message(n))
    assert await read(it.attach()) == [Event(message(1), id="s-1"), Event(message(2), id="s-2")]


async def test_a_reader_waits_for_what_comes() -> None:
    it = stream()
    reader, got = it.attach(), list[int]()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def read_on() -> None:
                got.extend(await numbers(reader))

            tasks.start_soon(read_on)
            await anyio.lowlevel.checkpoint()
            it.send(message(1))
    assert got == [1]


async def test_a_stream_that_has_ended_is_read_to_its_end_and_takes_nothing_more() -> None:
    it = stream()
    reader = it.attach()
    it.answer(message(1))
    it.end()
    it.send(message(2))
    it.answer(message(3))
    assert await numbers(reader) == [1]
    assert await read(reader) is None
    assert await read(it.attach(after=1)) is None


@pytest.mark.parametrize("seen", [0, 1, 2, 3, 4])
async def test_a_reader_that_comes_back_gets_the_rest_each_event_once(seen: int) -> None:
    """F24: also the answer that was written and never arrived."""
    it = stream()
    first = it.attach()
    for n in (1, 2, 3, 4):
        it.answer(message(n))
        assert await numbers(first) == [n]
    it.end()
    first.leave()
    again = it.attach(after=seen)
    assert await numbers(again) == list(range(seen + 1, 5))
    assert await read(again) is None


async def test_without_an_event_id_a_reader_gets_what_nobody_has_read() -> None:
    it = stream()
    it.send(message(1))
    first = it.attach()
    assert await numbers(first) == [1]
    first.leave()
    it.send(message(2))
    assert await numbers(it.attach()) == [2]


async def test_of_two_readers_the_newer_is_the_one() -> None:
    """F24: two reconnects at once."""
    it = stream()
    it.send(message(1))
    older = it.attach(after=0)
    newer = it.attach(after=0)
    assert await read(older) is None
    assert await numbers(newer) == [1]
    older.leave()  # of one that is none any more
    assert it.is_open


async def test_a_reader_that_is_superseded_while_it_waits_ends() -> None:
    it = stream()
    older = it.attach()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def read_on() -> None:
                assert await read(older) is None

            tasks.start_soon(read_on)
            await anyio.lowlevel.checkpoint()
            it.attach()


async def test_priming_gives_an_id_from_which_everything_follows() -> None:
    it = stream()
    primed = EventDecoder(100).feed(it.attach().priming())
    assert primed == [Event(b"", id="s-0", retry_ms=RETRY_MS)]
    it.answer(message(1))
    assert await numbers(it.attach(after=0)) == [1]


async def test_it_is_open_while_it_is_read_and_has_not_ended() -> None:
    changes: list[bool] = []
    it = Stream("s", ManualClock(), lambda: changes.append(it.is_open))
    reader = it.attach()
    reader.leave()
    it.attach()
    it.end()
    assert changes == [True, False, True, False]
    assert it.is_read


async def test_only_what_is_no_answer_is_news() -> None:
    it = stream()
    it.answer(message(1))
    assert not it.has_news
    it.send(message(2))
    assert it.has_news


# ------------------------------------------------------------------------------------------- bounds


async def test_behind_a_reader_that_is_away_only_answers_are_taken_beyond_the_bound() -> None:
    it = stream()
    for n in range(UNREAD_EVENTS + 5):
        it.send(message(n))
    assert it.is_full
    it.answer(message(9_999))
    assert await numbers(it.attach()) == [*range(UNREAD_EVENTS), 9_999]
    assert not it.is_full


async def test_what_was_not_taken_is_said_and_so_is_that_there_is_room_again() -> None:
    """I6: whoever could not say something waits for that."""
    told: list[bool] = []
    it = Stream("s", ManualClock(), lambda: told.append(it.is_full))
    reader = it.attach()
    assert all(it.send(message(n)) for n in range(UNREAD_EVENTS))
    assert not it.send(message(UNREAD_EVENTS))
    assert told == [False]
    await reader.blocks()
    assert told == [False, False]
    assert it.send(message(0))
    await reader.blocks()
    assert told == [False, False]
    it.end()
    assert not it.send(message(0))


async def test_what_is_unread_is_bounded_in_bytes_too() -> None:
    it = stream()
    large = b'"' + b"x" * (UNREAD_BYTES // 4) + b'"'
    for _ in range(10):
        it.send(large)
    assert it.kept_bytes <= UNREAD_BYTES + len(large)


async def test_what_was_read_is_kept_within_bounds_the_newest_longest() -> None:
    it = stream()
    reader = it.attach()
    for n in range(1, 2 * KEPT_EVENTS + 1):
        it.send(message(n))
        await reader.blocks()
    assert len(it.messages) == KEPT_EVENTS
    assert (await numbers(it.attach(after=0)))[-1] == 2 * KEPT_EVENTS
    for _ in range(8):
        it.send(b'"' + b"x" * (KEPT_BYTES // 4) + b'"')
        await it.attach().blocks()
    assert it.kept_bytes <= KEPT_BYTES


async def test_the_last_event_of_a_stream_that_has_ended_is_kept_however_large_it_is() -> None:
    it = stream()
    reader = it.attach()
    it.send(message(1))
    it.answer(b'"' + b"x" * 2 * KEPT_BYTES + b'"')
    it.end()
    await reader.blocks()
    it.forget()
    assert [len(m) for m in it.messages] == [2 * KEPT_BYTES + 2]


async def test_what_was_read_long_ago_is_forgotten_and_what_waits_is_not() -> None:
    clock = ManualClock()
    it = stream(clock)
    it.send(message(1))
    await it.attach().blocks()
    it.send(message(2))
    clock.jump(KEPT_S + 1)
    it.forget()
    assert it.messages == [message(2)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["say", "read", "lose", "leave", "come back"]), max_size=40))
def test_whatever_happens_no_event_is_missed_and_none_comes_twice(acts: list[str]) -> None:
    """`lose`: what is written never arrives. A client comes back with the last id that it has seen."""

    async def talk() -> None:
        it, said, seen = stream(), 0, list[int]()
        reader: Reader | None = None
        for act in acts:
            match act:
                case "say":
                    said += 1
                    it.send(message(said))
                case "read" | "lose" if reader is not None and said > (seen[-1] if seen else 0):
                    got = await numbers(reader)
                    if act == "read":
                        seen += got
                    else:
                        reader.leave()
                        reader = None
                case "leave" if reader is not None:
                    reader.leave()
                    reader = None
                case "come back":
                    reader = it.attach(after=seen[-1] if seen else 0)
                case _:
                    pass
        it.end()
        seen += await numbers(it.attach(after=seen[-1] if seen else 0))
        assert seen == list(range(1, said + 1))

    anyio.run(talk)
