"""What a disk holds after a power cut: what was synced for certain, and of all else what chance decides.

A write is certain once a sync of its file began after it and returned; a name once its directory was synced
so. Of what is not certain some writes may have reached the disk, whole or in part, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from random import Random
from typing import Final

from tests.faults.disk_trace import Act, Deed

SHARED_MEMORY: Final = (
    "-shm"  # SQLite maps it and makes it anew; what is on the disk of it counts for nothing
)


@dataclass(slots=True, eq=False)
class _File:
    writes: list[Act] = field(default_factory=list)
    certain: set[Act] = field(default_factory=set)

    def content(self, chance: Random | None) -> bytes:
        found = bytearray()
        for act in self.writes:
            if act in self.certain:
                _apply(found, act, len(act.data))
            elif chance is not None and chance.random() < 0.5:
                _apply(found, act, chance.choice((len(act.data), chance.randint(0, len(act.data)))))
        return bytes(found)


def _apply(content: bytearray, act: Act, length: int) -> None:
    if act.deed is Deed.CUT:
        del content[act.offset :]
        content.extend(bytes(act.offset - len(content)))
        return
    content.extend(bytes(max(0, act.offset - len(content))))
    content[act.offset : act.offset + length] = act.data[:length]


class PowerCut:
    """A disk as it was `at` a moment (wall clock, seconds). Nothing but what is below `root` is looked at."""

    def __init__(self, acts: Sequence[Act], root: Path, at: float) -> None:
        self._root = root
        self._files: dict[str, _File] = {}
        self._names: list[Act] = []
        self._made: dict[Act, _File] = {}
        self._certain: set[Act] = set()
        below = f"{root}/"
        for act in acts:
            if act.began <= at and f"{act.path}/".startswith(below):
                self._do(act, at)

    def _do(self, act: Act, at: float) -> None:
        match act.deed:
            case Deed.MAKE:
                if act.path not in self._files:
                    self._names.append(act)
                    self._made[act] = self._files[act.path] = _File()
            case Deed.MAKE_DIRECTORY:
                self._names.append(act)
            case Deed.WRITE | Deed.CUT:
                if (file := self._files.get(act.path)) is not None:
                    file.writes.append(act)
            case Deed.RENAME:
                self._names.append(act)
                self._files[act.to] = self._files.pop(act.path)
            case Deed.REMOVE:
                self._names.append(act)
                self._files.pop(act.path, None)
            case Deed.SYNC:
                if act.returned <= at:
                    self._sync(act)

    def _sync(self, sync: Act) -> None:
        if (file := self._files.get(sync.path)) is not None:
            file.certain.update(act for act in file.writes if act.returned <= sync.began)
            return
        here = (act for act in self._names if act.path.rpartition("/")[0] == sync.path)
        self._certain.update(act for act in here if act.returned <= sync.began)

    def write(self, target: Path, chance: Random | None) -> None:
        """Make `target` what `root` would be. Without `chance` all is lost that is not certain."""
        target.mkdir()
        for name, file in self._found(chance).items():
            place = target / PurePath(name).relative_to(self._root)
            if file is None:
                place.mkdir(mode=0o700)
            elif not name.endswith(SHARED_MEMORY):
                place.write_bytes(file.content(chance))

    def _found(self, chance: Random | None) -> dict[str, _File | None]:
        """Files, and None for directories, by name. Names reach the disk in the order they were made."""
        found: dict[str, _File | None] = {}
        uncertain = [act for act in self._names if act not in self._certain]
        reached = set(uncertain[: chance.randint(0, len(uncertain))]) if chance is not None else set()
        for act in self._names:
            if act not in self._certain and act not in reached:
                continue
            match act.deed:
                case Deed.MAKE:
                    found[act.path] = self._made[act]
                case Deed.MAKE_DIRECTORY:
                    found[act.path] = None
                case Deed.RENAME if act.path in found:
                    found[act.to] = found.pop(act.path)
                case _:
                    found.pop(act.path, None)
        return {name: file for name, file in found.items() if self._reachable(name, found)}

    def _reachable(self, name: str, found: dict[str, _File | None]) -> bool:
        """Whether the directories that it stands in are there, too."""
        between = [str(p) for p in PurePath(name).parents if p != self._root and p.is_relative_to(self._root)]
        return all(directory in found for directory in between)
