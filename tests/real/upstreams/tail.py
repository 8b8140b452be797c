"""A file that another process writes line by line, read as it grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class Tail:
    """Gives each line once, when it is whole."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0

    def new(self) -> Iterator[bytes]:
        """The lines since the last time, oldest first."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                self._read += len(line)
                yield line
