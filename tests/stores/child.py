"""A process that uses a disk store, to be killed, traced or kept waiting by the tests.

    python -m tests.stores.child PLAY DIRECTORY DURABILITY [KEY]

Says on stdout, one line each and unbuffered, what the store has acknowledged.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path
from typing import Final

import anyio

from proxy.stores.disk import DiskStore, Durability
from proxy.stores.encryption import Keys
from proxy.tasks.task import Task
from tests.manual_clock import ManualClock
from tests.stores.records import a_task, completed

WORKERS: Final = 8


def numbered_task(number: int) -> Task:
    return a_task(ManualClock(), id=f"tpx-{number:032d}", status_message=f"number {number}")


def numbered_end(number: int) -> Task:
    """The end of that task; every fifth has a result too large for a row."""
    size = 50_000 if number % 5 == 0 else 50
    return completed(numbered_task(number), ManualClock(), b'{"n": "' + str(number).encode() * size + b'"}')


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def stream(store: DiskStore) -> None:
    """Create and complete tasks, and remember something of each, without end."""
    numbers = count()

    async def work() -> None:
        for number in numbers:
            await store.create(numbered_task(number))
            say("created", number)
            await store.compare_and_set(numbered_task(number), numbered_end(number))
            say("completed", number)
            await store.remember(f"session/{number}", b"%d" % number, keep_s=60)
            say("remembered", number)

    async with anyio.create_task_group() as group:
        for _ in range(WORKERS):
            group.start_soon(work)


async def once(store: DiskStore) -> None:
    """Create one task and complete it with a large result."""
    await store.create(numbered_task(0))
    say("created")
    await store.compare_and_set(numbered_task(0), numbered_end(0))
    say("completed")


async def hold(store: DiskStore) -> None:
    say("holding")
    await anyio.sleep_forever()


async def main(*arguments: str) -> None:
    play, directory, durability, *key = arguments
    plays = {"stream": stream, "once": once, "hold": hold}
    clock, keys = ManualClock(), Keys([bytes.fromhex(text) for text in key])
    store = DiskStore(Path(directory), durability=Durability(durability), clock=clock, keys=keys)
    async with store:
        await plays[play](store)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
