"""The disk after a power cut, act by act: what is certain is there, what is not may be lost or torn."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

from tests.faults.disk_trace import Act, Deed
from tests.faults.power_cut import PowerCut

ROOT: Final = Path("/disk")
FILE: Final = "/disk/file"
ENDLESS: Final = float("inf")


def act(deed: Deed, at: float, path: str = FILE, *, returned: float | None = None, offset: int = 0,
        data: bytes = b"", to: str = "") -> Act:  # fmt: skip
    return Act(deed, path, at, at + 0.1 if returned is None else returned, offset, data, to)


MADE: Final = (act(Deed.MAKE, 1), act(Deed.SYNC, 2, "/disk"))


def left(tmp_path: Path, *acts: Act, at: float = 100.0, chance: Random | None = None) -> dict[str, bytes]:
    tmp_path.mkdir(exist_ok=True)
    target = tmp_path / "after"
    PowerCut(acts, ROOT, at).write(target, chance)
    return {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}


def test_what_was_synced_is_there_and_what_was_not_is_lost(tmp_path: Path) -> None:
    first, second = act(Deed.WRITE, 3, data=b"first"), act(Deed.WRITE, 5, offset=5, data=b"second")
    assert left(tmp_path, *MADE, first, act(Deed.SYNC, 4), second) == {"file": b"first"}


def test_a_sync_is_for_what_was_written_when_it_began_and_only_once_it_returned(tmp_path: Path) -> None:
    slow = act(Deed.WRITE, 3, data=b"slow", returned=4.5)
    assert left(tmp_path, *MADE, slow, act(Deed.SYNC, 4)) == {"file": b""}
    written = act(Deed.WRITE, 3, data=b"written")
    late = act(Deed.SYNC, 4, returned=ENDLESS)
    assert left(tmp_path / "2", *MADE, written, late) == {"file": b""}


def test_nothing_is_there_that_came_after_the_cut(tmp_path: Path) -> None:
    acts = (*MADE, act(Deed.WRITE, 3, data=b"early"), act(Deed.SYNC, 4))
    assert left(tmp_path, *acts, at=2.9) == {"file": b""}
    assert left(tmp_path / "2", *acts, at=4.05) == {"file": b""}
    assert left(tmp_path / "3", *acts, at=4.2) == {"file": b"early"}


def test_a_name_is_certain_with_its_directory(tmp_path: Path) -> None:
    made, written = act(Deed.MAKE, 1), act(Deed.WRITE, 2, data=b"x")
    assert left(tmp_path, made, written, act(Deed.SYNC, 3)) == {}
    renamed = act(Deed.RENAME, 4, to="/disk/other")
    acts = (*MADE, written, act(Deed.SYNC, 3), renamed)
    assert left(tmp_path / "2", *acts) == {"file": b"x"}
    assert left(tmp_path / "3", *acts, act(Deed.SYNC, 5, "/disk")) == {"other": b"x"}


def test_a_removed_file_is_back_unless_that_was_synced(tmp_path: Path) -> None:
    acts = (*MADE, act(Deed.WRITE, 3, data=b"x"), act(Deed.SYNC, 4), act(Deed.REMOVE, 5))
    assert left(tmp_path, *acts) == {"file": b"x"}
    assert left(tmp_path / "2", *acts, act(Deed.SYNC, 6, "/disk")) == {}


def test_a_file_is_lost_with_its_directory(tmp_path: Path) -> None:
    inner = "/disk/new/file"
    acts = (
        act(Deed.MAKE_DIRECTORY, 1, "/disk/new"),
        act(Deed.MAKE, 2, inner),
        act(Deed.SYNC, 3, "/disk/new"),
    )
    assert left(tmp_path, *acts) == {}
    assert left(tmp_path / "2", *acts, act(Deed.SYNC, 4, "/disk")) == {"new/file": b""}


def test_a_cut_file_has_its_new_length(tmp_path: Path) -> None:
    acts = (*MADE, act(Deed.WRITE, 3, data=b"abcdef"), act(Deed.SYNC, 4))
    assert left(tmp_path, *acts, act(Deed.CUT, 5, offset=2), act(Deed.SYNC, 6)) == {"file": b"ab"}
    assert left(tmp_path / "2", *acts, act(Deed.CUT, 5, offset=2)) == {"file": b"abcdef"}


def test_of_what_is_not_certain_any_part_may_be_there(tmp_path: Path) -> None:
    acts = (*MADE, act(Deed.WRITE, 3, data=b"aa"), act(Deed.WRITE, 4, offset=2, data=b"bb"))
    seen = {left(tmp_path / str(seed), *acts, chance=Random(seed))["file"] for seed in range(60)}
    assert {b"", b"aa", b"aabb", b"\0\0bb", b"a"} <= seen
    kept = (*acts, act(Deed.SYNC, 5))
    for seed in range(10):
        assert left(tmp_path / f"kept-{seed}", *kept, chance=Random(seed)) == {"file": b"aabb"}
