"""Durations, sizes and rates as people write them: `500ms`, `64MiB`, `100/s`.

Above: `config` alone, as the types of its fields. A value from a file, the environment or a flag needs
its unit; code and tests may give plain numbers in the unit of the type. Contract section 11.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, ValidationInfo

WRITTEN_BY_PEOPLE: Final[Mapping[str, bool]] = {"written_by_people": True}
"""The validation context under which plain numbers are refused where a unit is needed."""

LONGEST_S: Final = 3650 * 86_400.0  # ten years: far past any use, and safe for every timer and date

_DURATIONS_MS: Final[Mapping[str, int]] = {
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_SIZES: Final[Mapping[str, int]] = {
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_RATES: Final[Mapping[str, float]] = {"s": 1.0, "m": 60.0, "h": 3_600.0}

_NEED_DURATION: Final = "a duration with its unit is needed, such as 500ms, 2s, 10m, 1h, or 0"
_NEED_SIZE: Final = "a size is needed, such as 4096, 64KiB, 64MiB, 1GB"
_NEED_RATE: Final = "a rate above zero is needed, such as 100/s or 10/m"

_QUANTITY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([a-z]*)", re.ASCII)
_RATE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?/ ?([a-z])", re.ASCII)


def parse_seconds(value: object, info: ValidationInfo) -> float:
    """Seconds from `2s`, `500ms`, `0`; from a plain number only if a program gave it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value and info.context is WRITTEN_BY_PEOPLE:
            raise ValueError(_NEED_DURATION)
        seconds = float(value)
    else:
        amount, unit = _quantity(value, _NEED_DURATION)
        if unit not in _DURATIONS_MS and (unit or float(amount)):
            raise ValueError(_NEED_DURATION)
        seconds = float(amount) * _DURATIONS_MS.get(unit, 1) / 1000
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"a duration from 0 to {format_seconds(LONGEST_S)} is needed")
    return seconds


def parse_bytes(value: object) -> int:
    """Bytes from `64MiB`, `1MB`, `4096`."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        amount, unit = _quantity(value, _NEED_SIZE)
        if (unit or "b") not in _SIZES:
            raise ValueError(_NEED_SIZE)
        size = int(float(amount) * _SIZES[unit or "b"])
    if size < 1:
        raise ValueError(_NEED_SIZE)
    return size


def parse_per_second(value: object, info: ValidationInfo) -> float:
    """Events per second from `100/s`, `10/m`; from a plain number only if a program gave it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if info.context is WRITTEN_BY_PEOPLE:
            raise ValueError(_NEED_RATE)
        rate = float(value)
    else:
        match = _RATE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
        if match is None or match[2] not in _RATES:
            raise ValueError(_NEED_RATE)
        rate = float(match[1]) / _RATES[match[2]]
    if rate <= 0:
        raise ValueError(_NEED_RATE)
    return rate


def _quantity(value: object, need: str) -> tuple[str, str]:
    match = _QUANTITY.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(need)
    return match[1], match[2]


def format_seconds(seconds: float) -> str:
    """In the largest unit that needs no fraction: 90.0 is `90s`, 3600.0 is `1h`."""
    if seconds == 0:
        return "0s"
    ms = round(seconds * 1000)
    if not math.isclose(ms, seconds * 1000):
        return f"{seconds:.9f}s"
    return next(f"{ms // size}{unit}" for unit, size in _DURATIONS_MS.items() if ms % size == 0)


def format_bytes(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def format_per_second(rate: float) -> str:
    for unit, seconds in _RATES.items():
        if (rate * seconds).is_integer():
            return f"{rate * seconds:.0f}/{unit}"
    return f"{rate:.9f}/s"


def _needs_more_than_nothing(seconds: float) -> float:
    if seconds == 0:
        raise ValueError("a duration above zero is needed")
    return seconds


Seconds: TypeAlias = Annotated[
    float, BeforeValidator(parse_seconds), PlainSerializer(format_seconds, when_used="json")
]
"""A duration, in seconds; may be 0."""

SomeSeconds: TypeAlias = Annotated[Seconds, AfterValidator(_needs_more_than_nothing)]
"""A duration above 0, in seconds."""

Bytes: TypeAlias = Annotated[
    int, BeforeValidator(parse_bytes), PlainSerializer(format_bytes, when_used="json")
]
"""A size, in bytes."""

PerSecond: TypeAlias = Annotated[
    float, BeforeValidator(parse_per_second), PlainSerializer(format_per_second, when_used="json")
]
"""A rate, in events per second."""


def whole_number(value: Any) -> Any:
    """`true` is no number, though Python thinks so."""
    if isinstance(value, bool):
        raise ValueError("a whole number is needed")
    return value


Count: TypeAlias = Annotated[int, BeforeValidator(whole_number)]
"""A whole number."""
