"""What a process asked of its disk, in order and with every byte, as strace saw it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path
from typing import Final

_CALLS: Final = (
    "openat,write,pwrite64,pwritev,pwritev2,writev,ftruncate,truncate,fallocate,"
    "?rename,renameat,?renameat2,?unlink,unlinkat,?mkdir,mkdirat,fsync,fdatasync"
)
_LONGEST: Final = 64 << 20
_LINE: Final = re.compile(r"(?P<pid>\d+) +(?P<at>[\d.]+) (?P<rest>.*)")
_UNFINISHED: Final = re.compile(r"(?P<name>\w+)\((?P<args>.*) <unfinished \.\.\.>")
_RESUMED: Final = re.compile(r"<\.\.\. (?P<name>\w+) resumed>(?P<args>.*)")
_WHOLE: Final = re.compile(r"(?P<name>\w+)\((?P<args>.*)\) += (?P<code>-?\d+)(?:<(?P<path>[^>]*)>)?.*")
_TEXT: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_DESCRIPTOR: Final = re.compile(r"(\d+)<([^>]*)>")
_DELETED: Final = " (deleted)"


class Deed(StrEnum):
    """What was done. A rename, a name made or removed is done to the directory."""

    MAKE = auto()
    MAKE_DIRECTORY = auto()
    WRITE = auto()
    CUT = auto()
    RENAME = auto()
    REMOVE = auto()
    SYNC = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Act:
    """One call that succeeded. Times are the wall clock's, in seconds; `returned` is endless if it never did.

    `data` from `offset` on for a write, the length in `offset` for a cut, the new name in `to` for a rename.
    """

    deed: Deed
    path: str
    began: float
    returned: float
    offset: int = 0
    data: bytes = b""
    to: str = ""


def traced(command: Sequence[str], trace: Path) -> list[str]:
    """`command`, watched. Its process is the one that is started, so it can be signalled as without."""
    strace = shutil.which("strace")
    assert strace is not None, "strace is missing: run `make tools`"
    watch = ["-D", "-f", "-y", "-ttt", "-xx", "-s", str(_LONGEST), "--seccomp-bpf"]
    return [strace, *watch, "-e", f"trace={_CALLS}", "-o", str(trace), *command]


def read_trace(trace: Path) -> list[Act]:
    """All acts in the order in which they began."""
    acts = list(_Reader().read(trace.read_text().splitlines()))
    return sorted(acts, key=lambda act: act.began)


class _Reader:
    """Knows where in each open file the next plain `write` goes. One process, however many threads."""

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}

    def read(self, lines: Sequence[str]) -> Iterator[Act]:
        begun: dict[tuple[str, str], tuple[float, str]] = {}
        for line in lines:
            if (found := _LINE.fullmatch(line)) is None:
                continue
            pid, at, rest = found["pid"], float(found["at"]), found["rest"]
            if (cut := _UNFINISHED.fullmatch(rest)) is not None:
                begun[pid, cut["name"]] = at, cut["args"]
                continue
            began = at
            if (resumed := _RESUMED.fullmatch(rest)) is not None:
                began, args = begun.pop((pid, resumed["name"]))
                rest = f"{resumed['name']}({args}{resumed['args']}"
            if (whole := _WHOLE.fullmatch(rest)) is not None and int(whole["code"]) >= 0:
                yield from self._acts(whole, began, at)

    def _acts(self, call: re.Match[str], began: float, returned: float) -> Iterator[Act]:
        name, args, code = call["name"], call["args"], int(call["code"])
        match name:
            case "openat":
                path = _decoded(call["path"])
                self._offsets[str(code)] = 0
                if "O_CREAT" in args:
                    yield Act(Deed.MAKE, path, began, returned)
                if "O_TRUNC" in args:
                    yield Act(Deed.CUT, path, began, returned)
            case "write":
                number, path = _descriptor(args)
                offset = self._offsets.get(number, 0)
                self._offsets[number] = offset + code
                yield Act(Deed.WRITE, path, began, returned, offset, _texts(args)[0][:code])
            case "pwrite64":
                offset = int(args.rpartition(",")[2])
                yield Act(Deed.WRITE, _descriptor(args)[1], began, returned, offset, _texts(args)[0][:code])
            case "ftruncate":
                yield Act(Deed.CUT, _descriptor(args)[1], began, returned, int(args.rpartition(",")[2]))
            case "fsync" | "fdatasync":
                yield Act(Deed.SYNC, _descriptor(args)[1], began, returned)
            case "mkdir" | "mkdirat":
                yield Act(Deed.MAKE_DIRECTORY, _texts(args)[0].decode(), began, returned)
            case "unlink" | "unlinkat":
                yield Act(Deed.REMOVE, _texts(args)[0].decode(), began, returned)
            case "rename" | "renameat" | "renameat2":
                old, new = (text.decode() for text in _texts(args))
                yield Act(Deed.RENAME, old, began, returned, to=new)
            case _:
                raise AssertionError(f"{name} is not understood: {args[:200]}")


def _descriptor(args: str) -> tuple[str, str]:
    found = _DESCRIPTOR.match(args)
    assert found is not None, args[:200]
    return found[1], _decoded(found[2]).removesuffix(_DELETED)


def _texts(args: str) -> list[bytes]:
    found = list(_TEXT.finditer(args))
    assert not any(match[2] for match in found), "a text was cut short"
    return [bytes.fromhex(match[1].replace("\\x", "")) for match in found]


def _decoded(path: str) -> str:
    """A path of strace's: hexadecimal, but for what it says of its own (`socket:[1]`)."""
    return bytes.fromhex(path.replace("\\x", "")).decode() if path.startswith("\\x") else path
