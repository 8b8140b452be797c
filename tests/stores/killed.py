"""Opens a store again and again, and is killed at every step of that, twice in a row each time.

    python -m tests.stores.killed DIRECTORY

DIRECTORY is left as it is; what is killed are children with copies of it. A step is what changes a file: a
rename, a removal, a new directory, the opening of a database, a commit. It says on stdout, as one JSON object
for each pair of kills, what a third start finds: how many tasks, the result files, what was moved aside; and,
last, of starts that nobody killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diskcache import Cache

from proxy.stores import repair
from proxy.stores.opening import open_store
from tests.manual_clock import ManualClock

_STEPS = frozenset({"os.rename", "os.mkdir", "os.remove", "sqlite3.connect"})


def start(directory: Path, kill_at: int) -> bool:
    """Whether a start in a process of its own was killed at this step; it may have fewer."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or status == 0, status
        return os.WIFSIGNALED(status)
    left = kill_at

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(lambda event, _: step() if event in _STEPS else None)
    make_steps_of_commits(step)
    open_store(directory, ManualClock(), synced=False).place.release()
    os._exit(0)


def make_steps_of_commits(step: Callable[[], None]) -> None:
    """With few rows in each."""
    transact = Cache.transact

    @contextmanager
    def commit(cache: Cache) -> Iterator[None]:
        with transact(cache):
            yield
            step()

    Cache.transact = commit
    repair.__dict__["_AT_ONCE"] = 4


def found(directory: Path) -> dict[str, Any]:
    opened = open_store(directory, ManualClock(), synced=False)
    tasks = {status.value: count for status, count in opened.index.counts().items() if count}
    opened.place.release()
    files = sorted(os.listdir(directory / "results"))
    return {
        "tasks": tasks,
        "results": files,
        "aside": sorted(path.name for path in directory.glob("damaged*")),
    }


def main(directory: Path) -> None:
    step, was_killed = 0, True
    copy = directory.with_name("copy")
    while was_killed:
        step += 1
        for again in {1, step}:  # the second start is killed early, or as far on as the first
            shutil.copytree(directory, copy)
            was_killed = start(copy, step)
            start(copy, again)
            print(json.dumps(found(copy)))
            shutil.rmtree(copy)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
