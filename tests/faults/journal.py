"""What really happened at the server, written by every process of it, read by the bench.

A row is one write to the end of a file, made before the server says anything of it; so it survives whatever
is killed. `digest` is of what a client must get of the server's text, without what the proxy adds to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.real.upstreams.raw_json import Members, flat, joined, meaning, members, without
from tests.real.upstreams.tail import Tail

_META: Final = "_meta"
_ADDED: Final = ("resultType",)
_ADDED_TO_META: Final = ("io.modelcontextprotocol/serverInfo",)
_PRIVATE: Final = 0o600


class Event(StrEnum):
    """What may happen to a call."""

    START = "start"
    RESULT = "result"
    ERROR = "error"
    CANCELLED = "cancelled"  # it was told so; also with its session
    ANSWERED = "answered"  # a question of it
    CROSSED = "crossed"  # a question of it was answered with the answer to another


@dataclass(frozen=True, slots=True)
class Row:
    """`at`: on the machine's monotonic clock, which all processes share."""

    at: float
    event: Event
    label: str
    digest: str | None = None


class Journal:
    """One file. `add` is for the server, `new` for the bench."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tail = Tail(file)

    def add(self, event: Event, label: str, digest: str | None = None) -> None:
        row = Row(time.monotonic(), event, label, digest)
        out = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _PRIVATE)
        try:
            os.write(out, json.dumps(asdict(row)).encode() + b"\n")
        finally:
            os.close(out)

    def new(self) -> Iterator[Row]:
        """The rows since the last time, oldest first."""
        for line in self._tail.new():
            found = json.loads(line)
            yield Row(found["at"], Event(found["event"]), found["label"], found["digest"])


def digest(text: bytes) -> str:
    """Of a result or error object, each value in it as it was written."""
    return hashlib.sha256(joined(_bare(members(flat(text))))).hexdigest()


def _bare(found: Members) -> Members:
    """Without what the proxy adds to a result: `resultType`, and the server's name in `_meta`."""
    bare: Members = []
    for key, raw in without(found, _ADDED):
        if meaning(key) == _META and raw[:1] == b"{":
            kept = without(members(raw), _ADDED_TO_META)
            if not kept:
                continue
            raw = joined(kept)
        bare.append((key, raw))
    return bare
