"""Scripts that play stdio servers, and the proof that nothing is left of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).parent / "scripts"
MARKER: Final = "STDIO_TEST_RUN"  # in the environment of all that a test starts
PROC: Final = Path("/proc")


def script(name: str, *args: str) -> list[str]:
    """The command that runs `scripts/NAME.py`."""
    return [sys.executable, "-IS", str(SCRIPTS / f"{name}.py"), *args]


def survivors(marker: str) -> list[str]:
    """Processes of the test that put `marker` in their environment, and zombies of ours."""
    if not PROC.is_dir():
        return []  # no such view elsewhere; Linux proves it for all
    return [p.name for p in PROC.iterdir() if p.name.isdigit() and (_is_marked(p, marker) or _is_zombie(p))]


def descriptors() -> int:
    """How many descriptors we have open."""
    return len(os.listdir("/dev/fd"))


def _is_marked(process: Path, marker: str) -> bool:
    try:
        return f"{MARKER}={marker}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _is_zombie(process: Path) -> bool:
    try:
        state, parent = (process / "stat").read_bytes().rpartition(b")")[2].split()[:2]
    except OSError:
        return False
    return state == b"Z" and int(parent) == os.getpid()
