"""How long one client's `tasks/get` takes while two others take what they can get.

One polls its task without pause, and is refused most of the time; one downloads a result of 50 MB over and
over. The measured client polls a running task and a completed one with a small result, at a steady rate and
without waiting for answers, so that what is held up is seen; alone and beside the others in turn. Target: p99
beside the others below five times p99 alone. What other programs of the machine do shows in single rounds,
so the median of the rounds counts.

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
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio

from benchmarks.rig.servers import Server, Servers, on_one_core
from tests.real.modern_client import ModernClient

ROUNDS: Final = 5
PHASE_S: Final = 8.0
EVERY_S: Final = 0.02  # of either task every other time; half of what limits.polls_per_task allows
TARGET: Final = 5.0
FOR_LONG_S: Final = 3_600  # longer than the benchmark
START_S: Final = 1.0  # for the greedy clients to be at it
END_S: Final = 30.0  # for the last download

SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "0s"}}


@dataclass(slots=True)
class Taken:
    """In one phase: milliseconds from asking to answer, by what was asked."""

    running: list[float] = field(default_factory=list)
    completed: list[float] = field(default_factory=list)

    @property
    def all(self) -> list[float]:
        return self.running + self.completed


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

    async def poll(self) -> Taken:
        """For PHASE_S."""
        taken = Taken()
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for number in range(int(PHASE_S / EVERY_S)):
                await anyio.sleep(max(0.0, began + number * EVERY_S - time.perf_counter()))
                if number % 2:
                    group.start_soon(self._get, self._running, "working", taken.running)
                else:
                    group.start_soon(self._get, self._completed, "completed", taken.completed)
        return taken

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
    quiet: list[Taken] = []
    beside: list[Taken] = []
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
                await measuring.poll()  # to warm up
                for _ in range(rounds):
                    quiet.append(await measuring.poll())
                    async with anyio.create_task_group() as group:
                        group.start_soon(poller.run)
                        group.start_soon(downloader.run)
                        await anyio.sleep(START_S)
                        beside.append(await measuring.poll())
    report(quiet, beside)
    seconds = rounds * (START_S + PHASE_S)
    served, megabytes = downloader.served["200"], downloader.served["bytes"] / 1e6
    print(f"In {seconds:.0f} s beside the others, the poller was served {poller.served['200']:,} times")
    print(f"and refused {poller.served['429']:,} times; {served} downloads brought {megabytes:,.0f} MB.")


def report(quiet: Sequence[Taken], beside: Sequence[Taken]) -> None:
    print(
        f"{'tasks/get, ms':<24} {'quiet p50':>10} {'p99':>7} {'beside p50':>12} {'p99':>7} {'p99 ratio':>18}"
    )
    print(row("of a running task", [t.running for t in quiet], [t.running for t in beside]))
    print(row("of a completed task", [t.completed for t in quiet], [t.completed for t in beside]))
    print(row("all", [t.all for t in quiet], [t.all for t in beside]))
    print(f"Medians of {len(quiet)} rounds, and of the ratio the least and the greatest;")
    print(f"{sum(len(t.all) for t in (*quiet, *beside)):,} polls. Target: p99 ratio of all below {TARGET:g}.")


def row(name: str, quiet: Sequence[Sequence[float]], beside: Sequence[Sequence[float]]) -> str:
    ratios = [at(b, 0.99) / at(q, 0.99) for q, b in zip(quiet, beside, strict=True)]
    shown = f"{median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})"
    q50, q99 = (median(at(phase, quantile) for phase in quiet) for quantile in (0.5, 0.99))
    b50, b99 = (median(at(phase, quantile) for phase in beside) for quantile in (0.5, 0.99))
    return f"{name:<24} {q50:>10.1f} {q99:>7.1f} {b50:>12.1f} {b99:>7.1f} {shown:>18}"


def at(figures: Sequence[float], quantile: float) -> float:
    return sorted(figures)[int(quantile * (len(figures) - 1))]


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
