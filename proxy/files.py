"""Files that settings name: regular ones of bounded size, and none is waited for without a bound.

Above: `sources` (the configuration itself), `config_encryption` (keys of the store), `auth` (keys of an
issuer), `cli`. A FIFO would be waited on for ever, and `/dev/zero` has no end. Contract section 1 (I6).
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from proxy.errors import ConfigError

ANSWER_S: Final = 8.0  # below what a client waits for keys; a file system that takes longer does not answer

KEY_SET_MAX_BYTES: Final = 256 << 10  # of an issuer

_T = TypeVar("_T")


class UnusableFile(Exception):
    """It cannot be had. The message goes behind its name, and repeats nothing that is in it."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """What is in it, and its permissions."""

    content: bytes
    mode: int


def read_regular(path: Path, max_bytes: int) -> FoundFile:
    """Blocks no longer than the file system does. Raises UnusableFile."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # does not wait for who writes
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise UnusableFile("is no regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(max_bytes + 1)
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise UnusableFile(f"cannot be read: {exc.strerror or type(exc).__name__}") from exc
    except ValueError as exc:  # a zero byte in its name
        raise UnusableFile("is no name that a file can have") from exc
    if len(content) > max_bytes:
        raise UnusableFile(f"is over {max_bytes} bytes")
    return FoundFile(content, stat.S_IMODE(mode))


def within_bound(name: str, call: Callable[[], _T], bound_s: float = ANSWER_S) -> _T:
    """What `call` returns or raises, if it does so in time. Raises ConfigError, which begins with `name`; the
    call is then left to itself, since nothing can end it."""
    done: Future[_T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as exc:  # noqa: BLE001 - raised in the thread that waits
            done.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    try:
        return done.result(bound_s)
    except TimeoutError as exc:
        raise ConfigError(f"{name}: the file system does not answer within {bound_s:g} s") from exc
