"""Event streams: every line ending, every cut, the corners of the standard (F21, F22, F23)."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.sse import (
    Block,
    BlockSplitter,
    Event,
    EventDecoder,
    EventTooLarge,
    comment,
    encode,
    ends_block,
)

LIMIT = 1_000
MESSAGE = b'{"jsonrpc":"2.0","id":1,"result":{}}'


def decode(stream: bytes, *, limit: int = LIMIT) -> list[Event]:
    return EventDecoder(limit).feed(stream)


def decode_cut(stream: bytes, cuts: list[int], *, limit: int = LIMIT) -> tuple[list[Event], bool]:
    """The events of `stream` fed in pieces, and whether one was too large."""
    decoder = EventDecoder(limit)
    events: list[Event] = []
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        try:
            events += decoder.feed(stream[start:end])
        except EventTooLarge as exc:
            return [*events, *exc.events], True
    return events, False


# -- generated streams --------------------------------------------------------------------------------

endings = st.sampled_from([b"\n", b"\r", b"\r\n"])
texts = st.binary(max_size=12).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b""))
lines = st.one_of(
    texts.map(lambda text: b"data:" + text),
    texts.map(lambda text: b"data: " + text),
    texts.map(lambda text: b": " + text),
    texts.map(lambda text: b"unknown: " + text),
    st.sampled_from([b"data", b"id: 7", b"id:", b"id: a\0b", b"retry: 50", b"retry: x", b"event: ping", b""]),
)


plain = st.text("abc:{} ü", max_size=6)
events_sent = st.builds(
    Event,
    data=st.lists(plain, min_size=1, max_size=3).map(lambda data: "\n".join(data).encode()),
    event=st.sampled_from(["message", "ping"]),
    id=st.none() | plain,
    retry_ms=st.none() | st.integers(0, 10**6),
)


def render(event: Event, ending: bytes, noise: bytes) -> bytes:
    fields = [b"data: " + line for line in event.data.split(b"\n")]
    fields.append(b"event: " + event.event.encode())
    if event.id is not None:
        fields.insert(0, b"id: " + event.id.encode())
    if event.retry_ms is not None:
        fields.append(b"retry: %d" % event.retry_ms)
    return ending.join([noise, *fields, noise, b"", b""])


@given(
    st.lists(events_sent, max_size=4),
    endings,
    st.sampled_from([b": ping", b":", b"vendor: 1", b"vendor"]),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_what_was_sent_comes_out(sent: list[Event], ending: bytes, noise: bytes, cuts: list[int]) -> None:
    stream = b"".join(render(event, ending, noise) for event in sent)
    assert decode_cut(stream, cuts) == (sent, False)


streams = st.lists(st.tuples(lines, endings).map(b"".join), max_size=12).map(b"".join)


@given(streams, st.lists(st.integers(0, 400), max_size=8))
def test_where_a_stream_is_cut_makes_no_difference(stream: bytes, cuts: list[int]) -> None:
    assert decode_cut(stream, cuts) == (decode(stream), False)


@given(streams)
def test_one_byte_at_a_time_gives_the_same_events(stream: bytes) -> None:
    assert decode_cut(stream, list(range(len(stream)))) == (decode(stream), False)


@given(st.lists(lines, max_size=12), st.lists(st.integers(0, 400), max_size=8))
def test_every_line_ending_gives_the_same_events(written: list[bytes], cuts: list[int]) -> None:
    expected = decode(b"".join(line + b"\n" for line in written))
    for ending in (b"\r", b"\r\n"):
        assert decode_cut(b"".join(line + ending for line in written), cuts) == (expected, False)


@given(
    st.lists(st.binary(max_size=40), max_size=5),
    st.lists(st.integers(0, 400), max_size=8),
    st.integers(0, 40),
)
def test_the_limit_falls_at_the_same_event_wherever_the_stream_is_cut(
    bodies: list[bytes], cuts: list[int], limit: int
) -> None:
    stream = b"".join(b"data: " + b.replace(b"\r", b"").replace(b"\n", b"") + b"\n\n" for b in bodies)
    assert decode_cut(stream, cuts, limit=limit) == decode_cut(stream, [], limit=limit)


json_texts = st.recursive(
    st.sampled_from([b"1", b'"x"', b'"\\n"', b"null"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: b"[\r\n" + b",\n".join(parts) + b"\r]"),
    max_leaves=5,
)


@given(json_texts, st.none() | st.text("abc:/ é", max_size=5), st.none() | st.integers(0, 10**9))
def test_what_we_encode_is_decoded_as_one_event_on_one_data_line(
    message: bytes, event_id: str | None, retry_ms: int | None
) -> None:
    encoded = encode(message, event_id=event_id, retry_ms=retry_ms)
    assert encoded.count(b"data:") == 1
    assert b"\r" not in encoded
    (event,) = decode(encoded)
    assert (event.event, event.id, event.retry_ms) == ("message", event_id, retry_ms)
    assert event.data == message.replace(b"\r", b" ").replace(b"\n", b" ")


# -- examples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
def test_data_lines_are_joined_with_lf_whatever_ends_them(ending: bytes) -> None:
    """F21."""
    written = (b"event: message", b'data:{"jsonrpc":"2.0",', b'data: "id":1,"result":{}}', b"", b"")
    assert decode(ending.join(written)) == [Event(b'{"jsonrpc":"2.0",\n"id":1,"result":{}}')]


def test_mixed_endings_fields_and_comments_make_one_event() -> None:
    """F21."""
    stream = b": hello\r\nid: 4\rretry: 1500\nvendor: x\r\nevent: update\rdata: a\r\ndata:  b\n\r\n"
    assert decode(stream) == [Event(b"a\n b", "update", "4", 1500)]


def test_a_priming_event_gives_its_id_and_retry_and_no_data() -> None:
    """F22."""
    assert decode(b"id: 0\nretry: 50\ndata:\n\n") == [Event(b"", "message", "0", 50)]


def test_an_id_or_a_retry_counts_in_a_block_without_data() -> None:
    assert decode(b"id: 9\n\nretry: 70\n\n") == [Event(id="9"), Event(retry_ms=70)]


def test_comments_unknown_fields_and_blank_lines_make_no_event() -> None:
    assert decode(b"\n\n: ping\n\n:\n\nvendor: 1\nvendor\n\n\n") == []


def test_a_byte_order_mark_is_dropped_at_the_start_alone() -> None:
    stream = b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n"
    for cuts in ([], [1], [2], [1, 2], [3]):
        assert decode_cut(stream, cuts) == ([Event(b"1")], False)


def test_what_begins_like_a_byte_order_mark_is_not_lost() -> None:
    assert decode_cut(b"\xef\xbbdata: 1\ndata: 2\n\n", [1, 2]) == ([Event(b"2")], False)


def test_only_the_first_space_after_the_colon_is_dropped() -> None:
    assert decode(b"data:  x \n\n") == [Event(b" x ")]


def test_an_id_with_null_and_a_retry_that_is_no_number_are_ignored() -> None:
    stream = b"id: a\0b\nretry: 1.5\nretry: -1\nretry: " + b"9" * 5_000 + b"\ndata: x\n\n"
    assert decode(stream, limit=6_000) == [Event(b"x")]


def test_an_empty_id_takes_the_last_one_back_and_an_empty_event_is_a_message() -> None:
    assert decode(b"id\nevent:\ndata: x\n\n") == [Event(b"x", "message", "")]


def test_fields_do_not_leak_into_the_next_event() -> None:
    stream = b"id: 1\nretry: 5\nevent: ping\ndata: x\n\ndata: y\n\n"
    assert decode(stream) == [Event(b"x", "ping", "1", 5), Event(b"y")]


def test_invalid_utf8_in_data_is_kept_for_the_json_layer_to_judge() -> None:
    assert decode(b"data: \xff\xfe\n\n") == [Event(b"\xff\xfe")]


def test_a_character_cut_between_chunks_arrives_whole() -> None:
    """HTTP-079."""
    stream = "data: ünï😀\n\n".encode()
    assert decode_cut(stream, list(range(len(stream)))) == ([Event("ünï😀".encode())], False)


def test_what_is_unfinished_at_the_end_is_not_an_event() -> None:
    assert decode(b"data: whole\n\nid: 2\ndata: half\n") == [Event(b"whole")]
    assert decode(b"data: whole\n\ndata: ha") == [Event(b"whole")]


def test_an_event_ends_with_its_cr_and_not_only_when_the_next_byte_comes() -> None:
    decoder = EventDecoder(LIMIT)
    assert decoder.feed(b"data: 1\r\r") == [Event(b"1")]
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"data: 2\n\r") == [Event(b"2")]


def test_a_line_end_after_a_cut_that_no_cr_stands_before_is_one() -> None:
    decoder = EventDecoder(LIMIT)
    assert decoder.feed(b"id: 1\rdata: x") == []
    assert decoder.feed(b"\n\n") == [Event(b"x", id="1")]


def test_data_of_exactly_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert decode(b"data: 12345\n\n", limit=5) == [Event(b"12345")]
    assert decode(b"data: 12\ndata:34\n\n", limit=5) == [Event(b"12\n34")]
    for stream in (b"data: 123456\n\n", b"data: 123\ndata:45\n\n", b"data:123456\n\n"):
        with pytest.raises(EventTooLarge, match="limit of 5 bytes"):
            decode(stream, limit=5)


def test_events_before_one_that_is_too_large_are_not_lost() -> None:
    """F23."""
    with pytest.raises(EventTooLarge) as caught:
        decode(b"data: 1\n\ndata: 2\n\ndata: " + b"x" * 20, limit=10)
    assert caught.value.events == (Event(b"1"), Event(b"2"))


@pytest.mark.parametrize("start", [b"data: ", b": ", b"vendor: ", b""])
def test_an_endless_line_of_any_kind_is_stopped_near_the_limit(start: bytes) -> None:
    """F23."""
    decoder = EventDecoder(LIMIT)
    decoder.feed(start)
    with pytest.raises(EventTooLarge):
        for _ in range(LIMIT // 100 + 1):
            decoder.feed(b"x" * 100)


def test_endless_data_lines_are_stopped_at_the_limit() -> None:
    decoder = EventDecoder(LIMIT)
    with pytest.raises(EventTooLarge):
        for _ in range(LIMIT + 2):
            decoder.feed(b"data:\n")


def test_any_number_of_comments_passes() -> None:
    decoder = EventDecoder(LIMIT)
    for _ in range(10 * LIMIT):
        assert decoder.feed(b": still here\n\n") == []
    assert decoder.feed(b"data: x\n\n") == [Event(b"x")]


def test_a_line_of_20_mb_in_chunks_takes_linear_time() -> None:
    """F23: quadratic copying would take minutes, so the bound can be wide."""
    decoder = EventDecoder(32 << 20)
    body = b"x" * (20 << 20)
    stream = b"data: " + body + b"\n\n"
    began = time.process_time()
    events = [e for at in range(0, len(stream), 65_536) for e in decoder.feed(stream[at : at + 65_536])]
    assert [event.data for event in events] == [body]
    assert time.process_time() - began < 5


def test_a_message_is_written_as_one_event() -> None:
    assert encode(MESSAGE) == b"event: message\ndata: " + MESSAGE + b"\n\n"
    assert encode(b"{}", event_id="7", retry_ms=50) == b"event: message\nid: 7\nretry: 50\ndata: {}\n\n"


def test_a_priming_event_is_an_empty_message_with_an_id() -> None:
    assert decode(encode(b"", event_id="0", retry_ms=50)) == [Event(b"", "message", "0", 50)]


def test_an_id_that_would_break_the_stream_is_never_written() -> None:
    with pytest.raises(AssertionError):
        encode(b"{}", event_id="1\ndata: forged")


def test_a_comment_is_ignored_wherever_it_stands_between_events() -> None:
    assert comment() == b": \n\n"
    assert comment(b"two\nlines") == b": two lines\n\n"
    assert decode(comment() + encode(b"1") + comment(b"x") + encode(b"2")) == [Event(b"1"), Event(b"2")]


# -- blocks as they came ------------------------------------------------------------------------------


def split_cut(stream: bytes, cuts: list[int], *, limit: int = LIMIT) -> tuple[list[Block], bytes]:
    """The blocks of `stream` fed in pieces, and what is left of it."""
    splitter = BlockSplitter(limit)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    blocks = [block for start, end in pairwise(edges) for block in splitter.feed(stream[start:end])]
    return blocks, splitter.rest()


@given(streams, st.lists(st.integers(0, 400), max_size=8))
def test_blocks_put_together_again_are_the_stream_with_every_event_in_its_place(
    stream: bytes, cuts: list[int]
) -> None:
    blocks, rest = split_cut(stream, cuts)
    assert b"".join(block.raw for block in blocks) + rest == stream
    assert [block.event for block in blocks if block.event is not None] == decode(stream)


@given(streams, st.lists(st.integers(0, 400), max_size=8), st.integers(0, 20))
def test_what_is_put_between_two_blocks_changes_no_event(stream: bytes, cuts: list[int], at: int) -> None:
    blocks, rest = split_cut(stream, cuts)
    at %= len(blocks) + 1
    ours = encode(MESSAGE)
    head, tail = b"".join(b.raw for b in blocks[:at]), b"".join(b.raw for b in blocks[at:]) + rest
    events = [event for event in decode(head + ours + tail) if event.data != MESSAGE]
    assert events == decode(stream)
    assert len(decode(head + ours + tail)) == len(events) + 1


@given(streams)
def test_between_blocks_is_where_a_comment_changes_no_event(stream: bytes) -> None:
    """F03: wherever `ends_block` says so, also between CR and LF."""
    for at in range(1, len(stream) + 1):
        if ends_block(stream[:at][-4:]):
            assert decode(stream[:at] + comment() + stream[at:]) == decode(stream)


@pytest.mark.parametrize("tail", [b"\n\n", b"\r\r", b"\r\n\r\n", b"x\n\r\n", b"\r\n\r", b"x\n\n\n"])
def test_two_line_ends_in_a_row_end_a_block(tail: bytes) -> None:
    assert ends_block(tail)
    [block], rest = split_cut(b"data: 1" + tail.removeprefix(b"x"), [])[0][:1], b""
    assert (block.event, rest) == (Event(b"1"), b"")


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r", b"\r\n", b"x\r\n", b"\n\nx", b"\n x\n"])
def test_one_line_end_does_not(tail: bytes) -> None:
    assert not ends_block(tail)


def test_a_block_comes_at_once_where_cr_ends_it_and_a_late_lf_means_nothing() -> None:
    splitter = BlockSplitter(LIMIT)
    assert [b.raw for b in splitter.feed(b"data: 1\r\n\r")] == [b"data: 1\r\n\r"]
    [second] = splitter.feed(b"\ndata: 2\r\n\r\n")
    assert second == Block(b"\ndata: 2\r\n\r\n", Event(b"2"))


def test_a_block_without_anything_that_counts_is_still_passed_on() -> None:
    blocks, rest = split_cut(b": ping\n\nvendor: 1\n\nid: 7\n\ndata: x", [])
    assert [block.event for block in blocks] == [None, None, Event(id="7")]
    assert rest == b"data: x"


def test_a_block_over_the_limit_is_refused_after_those_before_it() -> None:
    """F23: whole in one chunk, or still growing."""
    for tail in (b"\n\n", b""):
        splitter, seen = BlockSplitter(20), []
        with pytest.raises(EventTooLarge):
            for block in splitter.feed(b"data: 1\n\ndata: " + b"x" * 20 + tail):
                seen.append(block.raw)
        assert seen == [b"data: 1\n\n"]


def test_a_block_of_20_mb_in_chunks_is_split_in_linear_time() -> None:
    splitter, chunk = BlockSplitter(64 << 20), b"x" * 65_536
    began = time.process_time()
    assert list(splitter.feed(b"data: ")) == []
    for _ in range(320):
        assert list(splitter.feed(chunk)) == []
    [block] = splitter.feed(b"\n\n")
    assert block.event is not None
    assert len(block.event.data) == 320 * 65_536
    assert time.process_time() - began < 5
