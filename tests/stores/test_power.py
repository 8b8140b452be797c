"""What the system is asked to do before the store acknowledges, seen by strace. Contract section 1 (I3)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

_STARTED = re.compile(r"(\d+) +(\w+)\((.*)")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>")
_CALLS = "fsync,fdatasync,rename,openat,write,pwrite64"


@dataclass
class Call:
    """A system call: the lines of the trace where it began and where it had returned."""

    name: str
    arguments: str
    began: int
    returned: int

    def syncs(self, path: str) -> bool:
        return self.name in ("fsync", "fdatasync") and self.arguments.rstrip(") =0").endswith(f"{path}>")


def trace(play: str, directory: Path, durability: str) -> list[Call]:
    """Run a child under strace; its calls in the order in which they began."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.fail("strace is missing, and without it this test proves nothing: run `make tools`")
    log = directory.with_suffix(".trace")
    command = [strace, "-f", "-y", "-s", "40", "-e", f"trace={_CALLS}", "-o", str(log)]
    child = [sys.executable, "-m", "tests.stores.child", play, str(directory), durability]
    subprocess.run(command + child, check=True, stdout=subprocess.DEVNULL, timeout=60)
    calls: list[Call] = []
    unfinished: dict[tuple[str, str], Call] = {}
    for number, line in enumerate(log.read_text(errors="replace").splitlines()):
        if resumed := _RESUMED.match(line):
            unfinished.pop((resumed[1], resumed[2])).returned = number
        elif started := _STARTED.match(line):
            calls.append(call := Call(started[2], started[3].split(" <unfinished")[0], number, number))
            if line.endswith("<unfinished ...>"):
                unfinished[started[1], started[2]] = call
    return calls


def first(calls: list[Call], after: int, what: str, matches: Callable[[Call], bool]) -> Call:
    for call in calls:
        if call.began > after and matches(call):
            return call
    raise AssertionError(f"no {what} after line {after} of the trace")


def says(word: str) -> Callable[[Call], bool]:
    return lambda call: (
        call.name == "write" and call.arguments.startswith("1<") and f'"{word}' in call.arguments
    )


def test_at_power_the_disk_is_told_before_the_caller(tmp_path: Path) -> None:
    """The row is synced before a creation is acknowledged; at the end, first the result file, then its
    directory, then the row, then the acknowledgement."""
    directory = tmp_path / "store"
    calls = trace("once", directory, "power")
    log, results = f"{directory}/cache.db-wal", f"{directory}/results"

    created = first(calls, 0, "acknowledgement of the creation", says("created"))
    synced = [call for call in calls if call.syncs(log) and call.returned < created.began]
    written = [call for call in calls if call.name == "pwrite64" and log in call.arguments]
    rows = [call for call in written if call.returned < created.began]
    assert rows[-1].returned < synced[-1].began

    file = first(
        calls, created.returned, "result file",
        lambda call: call.name == "openat" and results in call.arguments and "O_CREAT" in call.arguments,
    )  # fmt: skip
    name = re.search(r'"([^"]+)"', file.arguments)
    assert name is not None
    data = first(
        calls, file.returned, "data", lambda call: call.name == "write" and name[1] in call.arguments
    )
    data_synced = first(calls, data.returned, "sync of the file", lambda call: call.syncs(name[1]))
    name_synced = first(calls, data_synced.returned, "sync of its name", lambda call: call.syncs(results))
    row = first(
        calls, created.returned, "row", lambda call: call.name == "pwrite64" and log in call.arguments
    )  # fmt: skip
    assert row.began > name_synced.returned
    row_synced = first(calls, row.returned, "sync of the row", lambda call: call.syncs(log))
    completed = first(calls, created.returned, "acknowledgement of the end", says("completed"))
    later = [call for call in written if row.began < call.began < completed.began]
    assert all(call.returned < row_synced.began for call in later)
    assert row_synced.returned < completed.began


def test_at_process_the_disk_is_not_waited_for(tmp_path: Path) -> None:
    """`kill -9` takes nothing from the system's cache, so no commit and no result costs a sync."""
    directory = tmp_path / "store"
    calls = trace("once", directory, "process")
    created = first(calls, 0, "acknowledgement of the creation", says("created"))
    completed = first(calls, created.returned, "acknowledgement of the end", says("completed"))
    between = [call for call in calls if created.returned < call.began < completed.began]
    assert any("results" in call.arguments for call in between)
    assert not [call for call in between if call.name in ("fsync", "fdatasync")]


def test_at_power_the_new_directory_and_the_secret_are_synced(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    calls = trace("once", directory, "power")
    created = first(calls, 0, "acknowledgement", says("created"))
    before = [call for call in calls if call.returned < created.began]
    assert any(call.syncs(str(tmp_path)) for call in before)
    assert any(call.syncs(f"{directory}/secret.new") for call in before)
    renamed = first(calls, 0, "rename of the secret", lambda call: call.name == "rename")
    first(calls, renamed.returned, "sync of its name", lambda call: call.syncs(str(directory)))
