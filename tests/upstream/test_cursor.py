"""When a stream is fetched again, and from where."""

from __future__ import annotations

import pytest

from proxy.protocol.sse import Event
from proxy.upstream.cursor import DEFAULT_RETRY_S, MAX_BACK_OFF_S, MIN_RETRY_S, Cursor


def delays(cursor: Cursor, number: int) -> list[float]:
    return [cursor.next_delay_s() for _ in range(number)]


def test_attempts_that_bring_nothing_are_spaced_out_up_to_a_bound() -> None:
    assert delays(Cursor(opened=True), 9) == [DEFAULT_RETRY_S, 1, 2, 4, 8, 16, *[MAX_BACK_OFF_S] * 3]
    assert delays(Cursor(opened=True), 2_000)[-1] == MAX_BACK_OFF_S


@pytest.mark.parametrize("event", [Event(b"x"), Event(id="2"), Event(b"x", id="1"), Event(id="")])
def test_news_start_the_count_anew(event: Event) -> None:
    cursor = Cursor(opened=True, last_id="1")
    delays(cursor, 4)
    cursor.note(event)
    assert cursor.fruitless == 0
    assert delays(cursor, 2) == [DEFAULT_RETRY_S, 1]


@pytest.mark.parametrize("event", [Event(id="1"), Event(retry_ms=1_000), Event(event="ping")])
def test_an_event_without_news_does_not(event: Event) -> None:
    cursor = Cursor(opened=True, last_id="1")
    delays(cursor, 4)
    cursor.note(event)
    assert delays(cursor, 1) == [8]


def test_a_stream_that_held_for_long_was_no_failure() -> None:
    cursor = Cursor(opened=True)
    delays(cursor, 4)
    cursor.held_for(MAX_BACK_OFF_S - 1)
    assert cursor.fruitless == 4
    cursor.held_for(MAX_BACK_OFF_S)
    assert cursor.fruitless == 0


def test_retry_is_the_least_delay_however_long_and_never_none_at_all() -> None:
    """HTTP-076."""
    cursor = Cursor(opened=True)
    cursor.note(Event(retry_ms=50))
    assert delays(cursor, 1) == [0.05]
    cursor.note(Event(b"x", retry_ms=90_000))
    assert delays(cursor, 2) == [90, 90]
    cursor.note(Event(b"x", retry_ms=0))
    assert delays(cursor, 1) == [MIN_RETRY_S]


def test_the_last_id_counts_until_it_is_taken_back() -> None:
    cursor = Cursor(opened=True)
    cursor.note(Event(b"x", id="ä/1"))
    cursor.note(Event(b"y"))
    assert cursor.last_id == "ä/1"
    cursor.note(Event(id=""))
    assert cursor.last_id == ""


def test_an_id_that_fits_into_no_header_is_none() -> None:
    cursor = Cursor(opened=True, last_id="1")
    cursor.note(Event(b"x", id="a\x01b"))
    assert cursor.last_id == ""
