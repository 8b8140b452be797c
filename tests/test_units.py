"""Quantities as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from proxy.units import (
    LONGEST_S,
    WRITTEN_BY_PEOPLE,
    Bytes,
    Count,
    PerSecond,
    Seconds,
    SomeSeconds,
)

SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)
BYTES: TypeAdapter[int] = TypeAdapter(Bytes)
PER_SECOND: TypeAdapter[float] = TypeAdapter(PerSecond)


def read(kind: TypeAdapter[Any], value: object) -> Any:
    return kind.validate_python(value, context=WRITTEN_BY_PEOPLE)


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("2s", 2.0),
        ("500ms", 0.5),
        ("570ms", 0.57),
        ("1.5s", 1.5),
        ("10m", 600.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        (" 2 S ", 2.0),
        ("0", 0.0),
        ("0s", 0.0),
        (0, 0.0),
    ],
)
def test_a_duration_is_read_as_seconds(text: object, seconds: float) -> None:
    assert read(SECONDS, text) == seconds


@pytest.mark.parametrize(
    "value", [2, 0.5, "2", "soon", "", "s", "-1s", "1e3s", "1h30m", "2 weeks", "9999d", None, True, [], "٣s"]
)
def test_what_is_no_duration_is_refused_with_examples(value: object) -> None:
    with pytest.raises(ValidationError, match=r"500ms, 2s, 10m, 1h|from 0 to 3650d"):
        read(SECONDS, value)


def test_a_program_may_give_plain_numbers() -> None:
    assert SECONDS.validate_python(0.25) == 0.25
    assert PER_SECOND.validate_python(5) == 5.0


def test_where_nothing_is_no_duration_zero_is_refused() -> None:
    with pytest.raises(ValidationError, match="above zero"):
        read(TypeAdapter(SomeSeconds), "0s")


@given(st.integers(min_value=0, max_value=int(LONGEST_S * 1000)))
def test_a_duration_that_was_written_down_reads_the_same(ms: int) -> None:
    seconds = ms / 1000
    assert read(SECONDS, SECONDS.dump_python(seconds, mode="json")) == seconds


@pytest.mark.parametrize(
    "seconds, text",
    [(0.0, "0s"), (0.3, "300ms"), (90.0, "90s"), (600.0, "10m"), (86400.0, "1d"), (1e-4, "0.000100000s")],
)
def test_a_duration_is_written_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert SECONDS.dump_python(seconds, mode="json") == text


@pytest.mark.parametrize(
    "text, size",
    [
        ("64MiB", 64 << 20),
        ("1MB", 1_000_000),
        ("4096", 4096),
        (4096, 4096),
        ("0.5kib", 512),
        ("1 GiB", 1 << 30),
        ("7b", 7),
    ],
)
def test_a_size_is_read_as_bytes(text: object, size: int) -> None:
    assert read(BYTES, text) == size


@pytest.mark.parametrize("value", ["64M", "many", 0, "0", -1, 1.5, True, None, "0.1b"])
def test_what_is_no_size_is_refused_with_examples(value: object) -> None:
    with pytest.raises(ValidationError, match="4096, 64KiB, 64MiB, 1GB"):
        read(BYTES, value)


@given(st.integers(min_value=1, max_value=1 << 40))
def test_a_size_that_was_written_down_reads_the_same(size: int) -> None:
    assert read(BYTES, BYTES.dump_python(size, mode="json")) == size


@pytest.mark.parametrize("text, rate", [("100/s", 100.0), ("30/m", 0.5), ("3600 / h", 1.0), ("0.5/s", 0.5)])
def test_a_rate_is_read_as_events_per_second(text: object, rate: float) -> None:
    assert read(PER_SECOND, text) == rate


@pytest.mark.parametrize("value", [100, "100", "0/s", "fast", "1/d", None, True])
def test_what_is_no_rate_is_refused_with_examples(value: object) -> None:
    with pytest.raises(ValidationError, match="100/s or 10/m"):
        read(PER_SECOND, value)


@given(st.integers(min_value=1, max_value=10_000), st.sampled_from("smh"))
def test_a_rate_that_was_written_down_reads_the_same(count: int, unit: str) -> None:
    rate = read(PER_SECOND, f"{count}/{unit}")
    assert read(PER_SECOND, PER_SECOND.dump_python(rate, mode="json")) == pytest.approx(rate, rel=1e-4)


def test_true_is_no_count() -> None:
    with pytest.raises(ValidationError, match="whole number"):
        read(TypeAdapter(Count), True)
