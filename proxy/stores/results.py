"""Results that are too large for a row: one file each, written once, never changed.

Above: `disk`. Below: `records` (seal and encryption), `directory`. A file counts only once a committed row
names it, so it is durable before its row is; what no row names was left by a crash and is swept. Names are
random within a task, so a second attempt never touches the file of a first. Everything here blocks and runs
in a thread.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from proxy.stores.directory import make_private_directory, open_private, sync_directory, sync_file
from proxy.stores.encryption import NO_KEYS, PIECE_BYTES, Keys
from proxy.stores.records import HEADER_SIZE, DamagedData, pack, stand_in, unpack

RESULTS_NAME: Final = "results"
_AT_ONCE_BYTES: Final = PIECE_BYTES
_CHECK: Final = re.compile(r"check(-[0-9a-f]{16})?\Z")  # earlier versions left off the number
_SET_ASIDE: Final = ".damaged"
_PART_CHARS: Final = 32
_NAME: Final = re.compile(r"([0-9a-f]{32})-[0-9a-f]{16}\Z")


class ResultFiles:
    """The result files of one store directory. `synced`: written files survive a power cut; `keys`: with
    which their content is encrypted."""

    def __init__(self, store: Path, *, synced: bool, keys: Keys = NO_KEYS) -> None:
        self._directory = store / RESULTS_NAME
        self._keys = keys
        self._synced = synced

    def make_directory(self) -> None:
        make_private_directory(self._directory)

    def write(self, name: str, result: bytes) -> int:
        """Write a new file; durable when this returns, as far as `synced` says. Raises OSError.

        Returns the size that `check_size` will be given.
        """
        path = self._directory / name
        try:
            with os.fdopen(open_private(path), "wb") as file:
                pieces = pack(result, _in_file(name), self._keys)
                for piece in pieces:
                    file.write(piece)
                file.flush()
                if self._synced:
                    sync_file(file.fileno())
            if self._synced:
                sync_directory(self._directory)
        except OSError:
            self.remove(name)
            raise
        return sum(map(len, pieces)) - HEADER_SIZE

    def read(self, name: str) -> bytes:
        """The result in a file. Raises OSError, DamagedData, NewerFormat or MissingKey.

        Nothing that is done here to a large one keeps Python's lock from the event loop for long.
        """
        with (self._directory / name).open("rb", buffering=0) as file:
            header = file.read(HEADER_SIZE)
            payload = b"".join(iter(partial(file.read, _AT_ONCE_BYTES), b""))
        return unpack(header, payload, _in_file(name), self._keys)

    def check_size(self, name: str, size: int) -> None:
        """Raises DamagedData unless the file is there, with a payload of `size` bytes."""
        try:
            found = (self._directory / name).stat().st_size
        except OSError as exc:
            raise DamagedData("its result file is missing") from exc
        if found != HEADER_SIZE + size:
            raise DamagedData("its result file is torn")

    def remove(self, name: str) -> None:
        """Remove a file if that can be done; if not, a later sweep will."""
        with suppress(OSError):
            (self._directory / name).unlink()

    def set_aside(self, name: str) -> None:
        """Keep a damaged file from being swept, for whoever wants to look at it."""
        with suppress(OSError):  # it is missing; or the directory cannot be written, and no sweep removes it
            self._set_aside(name)

    def _set_aside(self, name: str) -> None:
        path = self._directory / name
        path.rename(path.with_name(name + _SET_ASIDE))

    def names(self) -> list[str]:
        return os.listdir(self._directory)

    def exist(self) -> bool:
        """Whether there is any result."""
        return any(map(_NAME.match, self.names()))

    def remove_strays(self, names: list[str], named: Collection[str], untouchable: Collection[str]) -> None:
        """As `Place.sweep`."""
        for name in (*_strays(names, named, untouchable), *filter(_CHECK.match, names)):
            self.remove(name)

    def set_strays_aside(
        self, names: list[str], named: Collection[str], untouchable: Collection[str]
    ) -> None:
        """As `Place.sweep`. Raises OSError if one cannot be kept so, for what is left is removed later."""
        for name in _strays(names, named, untouchable):
            with suppress(FileNotFoundError):
                self._set_aside(name)
        if self._synced:
            sync_directory(self._directory)

    def try_write(self) -> None:
        """Write a small file and remove it again; several may do so at once. Raises OSError."""
        name = f"check-{secrets.token_hex(8)}"
        self.write(name, b"")
        self.remove(name)


def _strays(names: list[str], named: Collection[str], untouchable: Collection[str]) -> list[str]:
    keep = {task[:_PART_CHARS] for task in untouchable}
    matches = map(_NAME.match, set(names).difference(named))
    return [match[0] for match in matches if match is not None and match[1] not in keep]


def new_name(task_id: str) -> str:
    """A name for a result of this task. The id itself stays out, for it can act as a bearer token."""
    return f"{_task_part(task_id)}-{secrets.token_hex(8)}"


def check_name(name: str, task_id: str) -> None:
    """Raises DamagedData if no result of this task can have this name; a path never can."""
    match = _NAME.match(name)
    if match is None or match[1] != _task_part(task_id):
        raise DamagedData("its result file has a foreign name")


def _in_file(name: str) -> bytes:
    return b"file " + name.encode()


def _task_part(task_id: str) -> str:
    return stand_in(task_id)[:_PART_CHARS]
