"""Reads a database as its last commit left it, without a byte being written anywhere.

Above: `opening`, where the disk is full or the directory read-only: SQLite then cannot even read a database
with a write-ahead log, since it shares an index of that log in a file. Below: the two files. The pages of
the log's committed frames are laid over those of the database, in memory. SQLite, "Database File Format",
section 4. Everything here blocks and runs in a thread.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_WAL_HEADER: Final = struct.Struct(">8I")
_FRAME_HEADER: Final = struct.Struct(">6I")
_MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""By the log's first word: the byte order of its checksums."""

_JOURNAL_MODES: Final = slice(18, 20)  # two bytes of the header: 2 is a write-ahead log
_NO_LOG: Final = b"\1\1"
_PAGE_COUNT: Final = slice(28, 32)

_Sums = tuple[int, int]


def connect(database: Path) -> sqlite3.Connection:
    """A database in memory with the content of this one; an empty one if there is none.

    Raises OSError if it cannot be read; sqlite3.Error comes of what is no database.
    """
    image = _image(database)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    if image:
        connection.deserialize(image)
    return connection


def _image(database: Path) -> bytes:
    try:
        image = bytearray(database.read_bytes())
    except FileNotFoundError:
        return b""
    log = database.with_name(f"{database.name}-wal")
    frames = log.read_bytes() if log.exists() else b""
    for number, page, pages in _committed(frames):
        end = pages * len(page)
        image[end:] = b"\0" * (end - len(image))
        image[(number - 1) * len(page) : number * len(page)] = page
        image[_PAGE_COUNT] = pages.to_bytes(4, "big")
    if image:
        image[_JOURNAL_MODES] = _NO_LOG
    return bytes(image)


def _committed(log: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Number and content of each page that was committed, oldest first, and how many pages the database has
    after that commit. What follows the last whole commit was never made."""
    uncommitted: list[tuple[int, bytes]] = []
    for number, pages, content in _frames(log):
        uncommitted.append((number, content))
        if pages:
            yield from ((number, content, pages) for number, content in uncommitted)
            uncommitted.clear()


def _frames(log: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The frames up to the first that is torn, or left of an earlier use of the file: page number, database
    size in pages if it ends a commit, content."""
    if len(log) < _WAL_HEADER.size:
        return
    magic, _, page_size, _, *salts, first, second = _WAL_HEADER.unpack_from(log)
    order = _MAGIC.get(magic)
    if order is None:
        return
    sums = _summed(log[: _WAL_HEADER.size - 8], order, (0, 0))
    if sums != (first, second):
        return
    step = _FRAME_HEADER.size + page_size
    for start in range(_WAL_HEADER.size, len(log) - step + 1, step):
        number, pages, *frame_salts, first, second = _FRAME_HEADER.unpack_from(log, start)
        content = log[start + _FRAME_HEADER.size : start + step]
        sums = _summed(content, order, _summed(log[start : start + 8], order, sums))
        if frame_salts != salts or sums != (first, second):
            return
        yield number, pages, content


def _summed(data: bytes, order: str, sums: _Sums) -> _Sums:
    """The log's running checksum, further by `data`."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for word, next_word in zip(words, words, strict=True):
        first = (first + word + second) & 0xFFFFFFFF
        second = (second + next_word + first) & 0xFFFFFFFF
    return first, second
