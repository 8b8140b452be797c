"""The directory of a disk store: made private, held by one process, and the calls that make it durable.

Above: `disk`, `results`. Below: the file system (POSIX: Linux, macOS). Everything here blocks and runs in a
thread. Contract sections 8 (0700, the secret) and 9 (two proxies on one store directory).
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from proxy.errors import ConfigError

LOCK_NAME: Final = "taskproxy.lock"  # also the mark by which we know a directory of ours
SECRET_NAME: Final = "secret"
SECRET_BYTES: Final = 32
_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_OTHERS: Final = 0o077
_FULL_SYNC: Final[int | None] = getattr(
    fcntl, "F_FULLFSYNC", None
)  # macOS: fsync alone stops at the drive's cache

_log = structlog.get_logger()


class DirectoryInUse(ConfigError):
    """Another process holds the store directory."""


class HeldDirectory:
    """A store directory that is ours until `release`, or until the process ends in whatever way."""

    def __init__(self, path: Path) -> None:
        """Make the directory if it is missing, make it private, and lock it.

        Raises DirectoryInUse, or ConfigError with one line that names the path and what is wrong with it.
        """
        self.path = path
        try:
            _make(path)
            _make_private(path)
            self._lock = _lock(path)
        except OSError as exc:
            raise unusable(path, exc) from exc

    def __repr__(self) -> str:
        return f"<HeldDirectory {str(self.path)!r}>"

    def release(self) -> None:
        os.close(self._lock)

    def secret(self, new: bytes) -> bytes:
        """The store's secret; at its first use `new` becomes that. Raises ConfigError if it is damaged."""
        path = self.path / SECRET_NAME
        try:
            if not path.exists():
                _write_durably(path, new)
            _close_to_others(path, _PRIVATE_FILE)
        except OSError as exc:
            raise unusable(self.path, exc) from exc
        secret = self.kept_secret()
        assert secret is not None  # it was there a moment ago, and is nobody else's to remove
        return secret

    def kept_secret(self) -> bytes | None:
        """The secret that is there. Raises ConfigError if it is damaged."""
        path = self.path / SECRET_NAME
        try:
            secret = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise unusable(self.path, exc) from exc
        if len(secret) != SECRET_BYTES:
            raise ConfigError(f"{path} is damaged: it holds {len(secret)} bytes instead of {SECRET_BYTES}")
        return secret


def unusable(path: Path, exc: Exception) -> ConfigError:
    """What the operator is told when `path` cannot serve as store directory."""
    reason = exc.strerror if isinstance(exc, OSError) else None
    return ConfigError(f"store directory {path} cannot be used: {reason or exc}")


def open_private(path: Path) -> int:
    """Create a file that only we can read, for writing. Raises FileExistsError if it exists."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)


def make_private_file(path: Path) -> None:
    """Make sure that a file exists and that only we can read it."""
    with suppress(FileExistsError):
        os.close(open_private(path))
    _close_to_others(path, _PRIVATE_FILE)


def make_private_directory(path: Path) -> None:
    """Make sure that a directory of ours exists and that only we can look into it."""
    _make(path)
    _close_to_others(path, _PRIVATE_DIRECTORY)


def sync_file(descriptor: int) -> None:
    """Return when what was written would survive a power cut."""
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Return when the names in a directory would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def _close_to_others(path: Path, mode: int) -> None:
    """A mode that is right is left alone: on a read-only file system that is all there is."""
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)


def _make(path: Path) -> None:
    if path.is_dir():
        return
    if not path.parent.exists():
        _make(path.parent)
    path.mkdir(mode=_PRIVATE_DIRECTORY)
    sync_directory(path.parent)


def _make_private(path: Path) -> None:
    """Close a directory to others if it is empty or ours already; refuse to do that to any other one.

    Somebody may have named /tmp, a home or a project directory: changing the mode of those breaks more
    than it protects.
    """
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"store directory {path} belongs to another user (uid {found.st_uid}):"
            f" name one of your own, such as {path / 'taskproxy'}"
        )
    mode = stat.S_IMODE(found.st_mode)
    if not mode & _OTHERS:
        return
    if not (path / LOCK_NAME).exists() and any(path.iterdir()):
        raise ConfigError(
            f"store directory {path} is open to other users (mode {mode:04o}) and holds other files:"
            f" name a directory of its own, such as {path / 'taskproxy'}"
        )
    path.chmod(_PRIVATE_DIRECTORY)
    _log.warning("store_directory_tightened", directory=str(path), mode=f"{mode:04o}")


def _lock(path: Path) -> int:
    """A lock of the kernel's, so that a killed process leaves none; the pid in it is for people."""
    descriptor = _lock_file(path / LOCK_NAME)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _still_stands(path / LOCK_NAME, descriptor):
            raise BlockingIOError  # whoever held it has removed it, and perhaps all else
        with suppress(OSError):  # a full disk does not take it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except BlockingIOError as exc:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace") or "unknown"
        os.close(descriptor)
        raise DirectoryInUse(
            f"store directory {path} is in use by another mcp-taskproxy (pid {holder})"
        ) from exc
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _still_stands(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lock_file(path: Path) -> int:
    with suppress(FileNotFoundError):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return os.open(path, os.O_RDONLY)
    return os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE_FILE)


def _write_durably(path: Path, content: bytes) -> None:
    """Write a small file so that after a power cut it is there whole or not at all."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(open_private(unfinished), "wb") as file:
        file.write(content)
        file.flush()
        sync_file(file.fileno())
    unfinished.rename(path)
    sync_directory(path.parent)
