"""Lines from bytes: only 0x0A ends one, whatever the chunks (F33)."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.lines import HEAD_BYTES, Line, LineSplitter, Oversized

LIMIT = 20
SECONDS = 10.0  # for what takes less than two; quadratic work would take minutes


def split(stream: bytes, cuts: list[int], *, limit: int = LIMIT) -> list[bytes | tuple[str, bytes]]:
    """The lines of a whole stream, fed in pieces. How much of an oversized line had come is left out."""
    splitter = LineSplitter(limit)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    found = [line for start, end in pairwise(edges) for line in splitter.feed(stream[start:end])]
    return [
        ("oversized", line.head) if isinstance(line, Oversized) else line.text
        for line in found + splitter.end()
    ]


def reference(stream: bytes, *, limit: int = LIMIT) -> list[bytes | tuple[str, bytes]]:
    """What they should be, by a look at the whole stream."""
    lines = [line.removesuffix(b"\r") for line in stream.removesuffix(b"\n").split(b"\n")] if stream else []
    return [line if len(line) <= limit else ("oversized", line[:limit]) for line in lines]


pieces = st.sampled_from(
    [b"\n", b"\r", b"\r\n", b"\n\n", b"a", b"{}", b"\xe2\x80\xa8", b"\x0c\x1c", b"x" * 19]
)
streams = st.lists(pieces | st.binary(max_size=30), max_size=20).map(b"".join)


@given(streams, st.lists(st.integers(0, 400), max_size=12))
def test_where_a_stream_is_cut_makes_no_difference(stream: bytes, cuts: list[int]) -> None:
    assert split(stream, cuts) == reference(stream)


@given(streams)
def test_one_byte_at_a_time_gives_the_same_lines(stream: bytes) -> None:
    assert split(stream, list(range(len(stream)))) == reference(stream)


@given(st.lists(st.binary(max_size=LIMIT).filter(lambda line: b"\n" not in line and line[-1:] != b"\r")))
def test_lines_within_the_limit_come_back_as_they_were(lines: list[bytes]) -> None:
    assert LineSplitter(LIMIT).feed(b"".join(line + b"\n" for line in lines)) == list(map(Line, lines))


def test_nothing_but_a_line_feed_ends_a_line() -> None:
    """Libraries also cut at these, some of which may stand in a JSON string."""
    line = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\rj".encode()
    assert LineSplitter(100).feed(line + b"\r\nnext\n") == [Line(line), Line(b"next")]


def test_one_carriage_return_before_the_line_feed_is_stripped() -> None:
    assert LineSplitter(LIMIT).feed(b"a\r\nb\r\r\n\r\n") == [Line(b"a"), Line(b"b\r"), Line(b"")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_limit_counts_the_text_without_its_end(end: bytes) -> None:
    splitter = LineSplitter(LIMIT)
    assert splitter.feed(b"x" * LIMIT + end) == [Line(b"x" * LIMIT)]
    over = b"x" * (LIMIT + 1)
    assert splitter.feed(over + end) == [Oversized(b"x" * LIMIT, len(over + end) - 1)]


def test_an_oversized_line_is_told_once_and_as_soon_as_it_is_one() -> None:
    splitter = LineSplitter(LIMIT)
    assert splitter.feed(b"good\n" + b"x" * LIMIT) == [Line(b"good")]
    assert splitter.feed(b"yz") == [Oversized(b"x" * LIMIT, LIMIT + 2)]
    assert splitter.feed(b"more " * 1_000) == []
    assert splitter.feed(b"end\nnext\n") == [Line(b"next")]


def test_only_the_beginning_of_an_oversized_line_is_told() -> None:
    (long,) = LineSplitter(1_000).feed(b"x" * 1_001)
    assert long == Oversized(b"x" * HEAD_BYTES, 1_001)
    (short,) = LineSplitter(1_000, head_bytes=3).feed(b"x" * 1_001)
    assert short == Oversized(b"xxx", 1_001)


def test_the_end_of_the_stream_ends_a_line() -> None:
    splitter = LineSplitter(LIMIT)
    assert splitter.feed(b"a\nlast\r") == [Line(b"a")]
    assert splitter.end() == [Line(b"last")]
    assert splitter.end() == []


def test_the_end_of_an_oversized_line_is_no_line() -> None:
    splitter = LineSplitter(LIMIT)
    splitter.feed(b"x" * 100)
    assert splitter.end() == []


def test_what_is_held_is_bounded() -> None:
    splitter = LineSplitter(LIMIT)
    assert repr(splitter) == "<LineSplitter of 20 bytes, 0 held>"
    splitter.feed(b"x" * LIMIT)
    assert repr(splitter) == "<LineSplitter of 20 bytes, 20 held>"
    splitter.feed(b"x" * 1_000_000)
    assert repr(splitter) == "<LineSplitter of 20 bytes, skipping>"


@pytest.mark.parametrize("size, step", [(64 << 20, 65_536), (5_000_000, 1)])
def test_time_is_in_proportion_to_the_stream(size: int, step: int) -> None:
    splitter = LineSplitter(size)
    chunk = b"x" * step
    start = time.process_time()
    for _ in range(size // step):
        splitter.feed(chunk)
    (line,) = splitter.feed(b"\n")
    assert time.process_time() - start < SECONDS
    assert isinstance(line, Line)
    assert len(line.text) == size


@pytest.mark.parametrize("step", [1, 3, 7, 100])
def test_the_tail_of_an_oversized_line_is_told_where_it_is_asked_for(step: int) -> None:
    splitter = LineSplitter(10, head_bytes=4, tail_bytes=5)
    stream = b"short\n" + b"0123456789abcdefghi\r\n" + b"again\n" + b"0123456789abc"
    found = [line for i in range(0, len(stream), step) for line in splitter.feed(stream[i : i + step])]
    kinds = [(type(line).__name__, getattr(line, "text", None)) for line in found + splitter.end()]
    assert kinds == [
        ("Line", b"short"),
        ("Oversized", None),
        ("Tail", b"fghi"),  # five bytes, the carriage return among them
        ("Line", b"again"),
        ("Oversized", None),
        ("Tail", b"89abc"),
    ]
