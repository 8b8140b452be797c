"""The place of the store: a directory, or a small file system that can be full, where we may mount one."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

SIZE_MB: Final = 160  # the results of an era several times over
DISK: Final = "disk"
_BALLAST: Final = "ballast"
_CHUNK: Final = 1 << 20
_LARGEST_GROWN: Final = 1 << 20


class Disk:
    """`small` asks for a file system of its own; `is_small` says whether we may have one."""

    def __init__(self, scene: Path, *, small: bool) -> None:
        self._place = scene / DISK
        self._place.mkdir(parents=True)
        self.is_small = small and _mounted(self._place)

    @property
    def store(self) -> Path:
        return self._place / "store"

    def fill(self) -> None:
        """Leave no byte."""
        with (self._place / _BALLAST).open("wb", buffering=0) as file:
            size = _CHUNK
            while size:
                try:
                    file.write(b"\0" * size)
                except OSError as exc:
                    if exc.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def free(self) -> None:
        with suppress(FileNotFoundError):
            (self._place / _BALLAST).unlink()

    def close(self) -> None:
        """The store is gone with a small file system, and stays where it was none."""
        if self.is_small:
            subprocess.run(["umount", "--lazy", self._place], check=True)


def clear(scene: Path) -> None:
    """Remove what was left of a scene, also by a bench that was killed."""
    place = scene / DISK
    if place.is_mount():
        subprocess.run(["umount", "--lazy", place], check=True)
    shutil.rmtree(scene, ignore_errors=True)


def let_no_file_grow(pid: int, part: float) -> None:
    """From now on every write of this process beyond some size fails (EFBIG), or is cut short there."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (int(part * part * _LARGEST_GROWN), hard))


def let_files_grow(pid: int) -> None:
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def _mounted(place: Path) -> bool:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=0700", "tmpfs", str(place)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
