"""What a server was sent, byte for byte: written by the server, read by the test."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

from tests.real.upstreams.tail import Tail


class Record:
    """One file, a message a line. The test sees each message once."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tail = Tail(file)

    def add(self, message: bytes) -> None:
        with self._file.open("ab") as file:
            file.write(base64.b64encode(message) + b"\n")

    def new(self) -> Iterator[bytes]:
        """The messages since the last time, oldest first."""
        return map(base64.b64decode, self._tail.new())
