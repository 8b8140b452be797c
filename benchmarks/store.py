"""How fast the disk store creates tasks, and how long it keeps the event loop.

Creates tasks one by one and many at once, at both durabilities, with and without encryption, in a temporary
directory of the file system that is named (default: here). A stall is by how much a short sleep in the same
event loop was late; much of it is the starting of so many callers in one turn of the loop, so the same is
shown for the memory store.

    python -m benchmarks.store [DIRECTORY]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

import anyio

from proxy.clock import SystemClock
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.memory import MemoryStore
from proxy.tasks.task import Task

ONE_BY_ONE: Final = 1_000
AT_ONCE: Final = 500
ROUNDS: Final = 20
TICK_S: Final = 0.001
ENCRYPTION: Final = {"": NO_KEYS, ", encrypted": Keys([b"k" * 32])}

Run: TypeAlias = "Callable[[MemoryStore | DiskStore], Awaitable[int]]"


@dataclass(frozen=True, slots=True)
class Measured:
    creates: int
    seconds: float
    commits: int
    stalls_ms: list[float]

    def row(self, store: str, creates: str) -> str:
        stalls = sorted(self.stalls_ms)
        p99 = stalls[int(0.99 * (len(stalls) - 1))]
        a_commit = f"{self.creates / self.commits:.1f}" if self.commits else "-"
        per_second = f"{self.creates / self.seconds:,.0f}"
        return f"{store:<18} {creates:<12} {per_second:>10} {a_commit:>15} {p99:>13.1f} {stalls[-1]:>13.1f}"


def a_task(number: int) -> Task:
    now = time.time_ns() // 1_000_000
    return Task(
        id=f"tpx-{number:032d}", owner="somebody", method="tools/call", name="train_model",
        created_at_ms=now, updated_at_ms=now, retention_ms=3_600_000, status_message="started",
    )  # fmt: skip


async def one_by_one(store: MemoryStore | DiskStore) -> int:
    for number in range(ONE_BY_ONE):
        await store.create(a_task(number))
    return ONE_BY_ONE


async def many_at_once(store: MemoryStore | DiskStore) -> int:
    for round_ in range(ROUNDS):
        async with anyio.create_task_group() as group:
            for number in range(AT_ONCE):
                group.start_soon(store.create, a_task(round_ * AT_ONCE + number))
    return ROUNDS * AT_ONCE


async def measure(run: Run, store: MemoryStore | DiskStore) -> Measured:
    stalls_ms: list[float] = []

    async def watch_the_loop() -> None:
        while True:
            asleep = time.perf_counter()
            await anyio.sleep(TICK_S)
            stalls_ms.append(max(0.0, (time.perf_counter() - asleep - TICK_S) * 1000))

    async with store, anyio.create_task_group() as group:
        group.start_soon(watch_the_loop)
        began = time.perf_counter()
        creates = await run(store)
        seconds = time.perf_counter() - began
        group.cancel_scope.cancel()
    return Measured(creates, seconds, store.commits if isinstance(store, DiskStore) else 0, stalls_ms)


async def main(where: Path) -> None:
    print("store              creates      per second  tasks a commit  stall p99 ms  stall max ms")
    runs: dict[str, Run] = {"one by one": one_by_one, f"{AT_ONCE} at once": many_at_once}
    for creates, run in runs.items():
        print((await measure(run, MemoryStore(SystemClock()))).row("memory", creates))
    for durability, encryption in product(Durability, ENCRYPTION):
        for creates, run in runs.items():
            with TemporaryDirectory(dir=where) as directory:
                keys, clock = ENCRYPTION[encryption], SystemClock()
                store = DiskStore(Path(directory), durability=durability, clock=clock, keys=keys)
                print((await measure(run, store)).row(f"{durability}{encryption}", creates))


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1] if len(sys.argv) > 1 else "."))
