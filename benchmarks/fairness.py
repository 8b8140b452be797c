"""How long one client's `tasks/get` takes while two others take what they can get.

One polls its task without pause, and is refused most of the time; one downloads a result of 50 MB over and
over. The measured client polls a running task and a completed one with a small result, at a steady rate and
without waiting for answers, so that what is held up is seen; alone and beside the others in turn. Target: p99
beside the others below five times p99 alone.

    python -m benchmarks.fairness [ROUNDS]
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio

from benchmarks.rig.servers import Server, Servers, on_one_core
from tests.real.modern_client import ModernClient

ROUNDS: Final = 3
PHASE_S: Final = 10.0
EVERY_S: Final = 0.02  # of either task every other time; half of what limits.polls_per_task allows
TARGET: Final = 5.0
FOR_LONG_S: Final = 3_600  # longer than the benchmark
START_S: Final = 1.0  # for the greedy clients to be at it
END_S: Final = 30.0  # for the last download

SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "0s"}}


@dataclass(slots=True)
class Taken:
    """Milliseconds from asking to answer, by what was asked."""

    running: list[float] = field(default_factory=list)
    completed: list[float] = field(default_factory=list)


class Measuring:
    """The client that is measured, with its two tasks."""

    def __init__(self, client: ModernClient) -> None:
        self._client = client
        self._running = ""
        self._completed = ""

    async def create_tasks(self) -> None:
        self._running = await self._task("wait", {"seconds": FOR_LONG_S, "label": "running"})
        self._completed = await self._task("answer_json", {"label": "completed"})
        await self._client.wait_task(self._completed)

    async def _task(self, tool: str, arguments: Mapping[str, Any]) -> str:
        return (await self._client.call_tool(tool, arguments)).task_id

    async def poll(self, taken: Taken) -> None:
        """For PHASE_S."""
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for number in range(int(PHASE_S / EVERY_S)):
                await anyio.sleep(max(0.0, began + number * EVERY_S - time.perf_counter()))
                if number % 2:
                    group.start_soon(self._get, self._running, "working", taken.running)
                else:
                    group.start_soon(self._get, self._completed, "completed", taken.completed)

    async def _get(self, task_id: str, status: str, taken: list[float]) -> None:
        asked = time.perf_counter()
        answer = await self._client.get_task(task_id)
        taken.append((time.perf_counter() - asked) * 1000)
        assert answer.result["status"] == status, answer.raw[:500]


class Greedy:
    """Another client, a process of its own while it is at it."""

    def __init__(self, servers: Servers, proxy: Server, name: str) -> None:
        self._servers = servers
        self._proxy = proxy
        self._name = name
        self._task_id = ""
        self.served: Counter[str] = Counter()

    async def create_task(self, tool: str, arguments: Mapping[str, Any], status: str) -> None:
        async with client_of(self._proxy, self._name) as client:
            self._task_id = (await client.call_tool(tool, arguments)).task_id
            await client.wait_task(self._task_id, [status])

    async def run(self) -> None:
        """For a little longer than a phase."""
        seconds = str(START_S + PHASE_S)
        program = self._servers.client("greedy_client", self._proxy, self._name, self._task_id, seconds)
        code = await program.wait(within_s=START_S + PHASE_S + END_S)
        assert code == 0, program.tail()
        self.served += Counter(json.loads(program.tail(1)))


def client_of(proxy: Server, name: str) -> ModernClient:
    """A client that is an owner of its own."""
    return ModernClient(proxy.url, headers={"Authorization": f"Bearer {name}"})


async def main(rounds: int) -> None:
    quiet, beside = Taken(), Taken()
    with TemporaryDirectory() as home:
        async with on_one_core(Path(home)) as servers:
            upstream = await servers.module("upstream")
            proxy = await servers.proxy(upstream.url, SETTINGS)
            poller, downloader = (Greedy(servers, proxy, name) for name in ("poller", "downloader"))
            await poller.create_task("wait", {"seconds": FOR_LONG_S, "label": "running"}, "working")
            await downloader.create_task("big", {}, "completed")
            async with client_of(proxy, "measured") as client:
                measuring = Measuring(client)
                await measuring.create_tasks()
                await measuring.poll(Taken())  # to warm up
                for _ in range(rounds):
                    await measuring.poll(quiet)
                    async with anyio.create_task_group() as group:
                        group.start_soon(poller.run)
                        group.start_soon(downloader.run)
                        await anyio.sleep(START_S)
                        await measuring.poll(beside)
    report(quiet, beside)
    seconds = rounds * (START_S + PHASE_S)
    served, megabytes = downloader.served["200"], downloader.served["bytes"] / 1e6
    print(f"In {seconds:.0f} s beside the others, the poller was served {poller.served['200']:,} times")
    print(f"and refused {poller.served['429']:,} times; {served} downloads brought {megabytes:,.0f} MB.")


def report(quiet: Taken, beside: Taken) -> None:
    print(
        f"{'tasks/get, ms':<28} {'quiet p50':>10} {'p99':>8} {'beside p50':>12} {'p99':>8} {'p99 ratio':>11}"
    )
    print(row("of a running task", quiet.running, beside.running))
    print(row("of a completed task", quiet.completed, beside.completed))
    print(row("all", quiet.running + quiet.completed, beside.running + beside.completed))
    print(f"{len(quiet.running + quiet.completed):,} polls quiet and as many beside the others.")
    print(f"Target: p99 ratio below {TARGET:g}.")


def row(name: str, quiet: Sequence[float], beside: Sequence[float]) -> str:
    q50, q99, b50, b99 = at(quiet, 0.5), at(quiet, 0.99), at(beside, 0.5), at(beside, 0.99)
    return f"{name:<28} {q50:>10.1f} {q99:>8.1f} {b50:>12.1f} {b99:>8.1f} {b99 / q99:>11.1f}"


def at(figures: Sequence[float], quantile: float) -> float:
    return sorted(figures)[int(quantile * (len(figures) - 1))]


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
