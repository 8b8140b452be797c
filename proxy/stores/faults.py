"""What the faults of files and of SQLite mean to a store: which may pass by themselves, which never do.

Above: everything here that reads or writes. Contract section 9, "disk full or store broken".
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from typing import Final

from proxy.errors import ConfigError

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_NOT_ALLOWED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_SQLITE_FULL: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_SQLITE_NOT_ALLOWED: Final = frozenset(
    {
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,  # another program, such as a backup, holds it
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_SQLITE_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_NOT_READ: Final = frozenset(
    {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}
)
_PRIMARY_CODE: Final = 0xFF


def is_full(fault: BaseException) -> bool:
    """Whether the disk takes no more, or fails."""
    return any(_errno(f) in _FULL or _sqlite_code(f) in _SQLITE_FULL for f in _chain(fault))


def is_unwritable(fault: BaseException) -> bool:
    """Whether it is the place that cannot be written, now or at all; what is there may still be read."""
    return is_full(fault) or any(
        _errno(f) in _NOT_ALLOWED or _sqlite_code(f) in _SQLITE_NOT_ALLOWED for f in _chain(fault)
    )


def is_damaged(fault: BaseException) -> bool:
    """Whether what stands in the database's file is no database, or no whole one."""
    return any(_sqlite_code(f) in _SQLITE_DAMAGED for f in _chain(fault))


def hinders_readers(fault: sqlite3.Error) -> bool:
    """Whether it is the place, now or at all, and not what stands in the file: a full disk, say, keeps even
    readers out of a database with a log."""
    if getattr(fault, "sqlite_errorcode", None) in _NOT_READ:
        return False
    return _sqlite_code(fault) in _SQLITE_FULL | _SQLITE_NOT_ALLOWED


def reason_of(fault: BaseException) -> str:
    """Why a read or write failed, in the words of the system; without paths, for clients see it."""
    if isinstance(fault, ConfigError):
        return "its directory cannot be used"
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror.lower()
    if isinstance(fault, sqlite3.Error) and not hasattr(fault, "sqlite_errorcode"):
        return f"{type(fault).__name__} of the driver"  # its text may quote the row; SQLite's own does not
    return str(fault)


def root(fault: BaseException) -> BaseException:
    """What it began with: diskcache hides SQLite's own error behind a bare Timeout, or behind a rollback that
    failed too, and we hide both behind ours."""
    *_, first = _chain(fault)
    return first


def _chain(fault: BaseException | None) -> Iterator[BaseException]:
    """From the last to the first."""
    while fault is not None:
        yield fault
        fault = fault.__context__


def _errno(fault: BaseException) -> int | None:
    return fault.errno if isinstance(fault, OSError) else None


def _sqlite_code(fault: BaseException) -> int | None:
    """Without the bits that say more closely what it is."""
    code: int | None = getattr(fault, "sqlite_errorcode", None)
    return None if code is None else code & _PRIMARY_CODE
