"""What ten thousand tasks that run and a thousand listen streams cost, and whether it is given back.

All are held at once: memory for each, how long `tasks/get` takes meanwhile, and what is left after the
tasks were cancelled and the streams closed. Contract sections 8 and 9.

python -m benchmarks.limits [TASKS] [STREAMS]
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio

from benchmarks.rig.servers import Server, Servers, on_one_core
from tests.real.modern_client import ModernClient
from tests.real.processes import descriptors, rss_kib

TASKS: Final = 10_000
STREAMS: Final = 1_000
AT_ONCE: Final = 50
POLLS: Final = 500
FOR_LONG_S: Final = 3_600  # longer than the benchmark
SETTLE_S: Final = 5.0  # for what was cancelled to be gone


async def together(count: int, work: Any) -> None:
    """`work(n)` for each n below `count`, AT_ONCE at a time."""
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def one(number: int) -> None:
        async with limiter:
            await work(number)

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)


async def poll_ms(client: ModernClient, task_ids: list[str]) -> tuple[float, float]:
    """Median and 99th percentile of `tasks/get`, one after the other."""
    taken: list[float] = []
    for number in range(POLLS):
        began = time.perf_counter()
        await client.get_task(task_ids[number % len(task_ids)])
        taken.append((time.perf_counter() - began) * 1_000)
    return statistics.median(taken), statistics.quantiles(taken, n=100)[98]


@asynccontextmanager
async def streams(client: ModernClient, task_ids: list[str], count: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for number in range(count):
            named = task_ids[number % len(task_ids)]
            listening = await stack.enter_async_context(client.listen(taskIds=[named]))
            await anext(aiter(listening))
        yield


def tell(what: str, proxy: Server, before_kib: int, each: int = 0) -> None:
    now_kib = rss_kib(proxy.program.pid)
    per = f", {(now_kib - before_kib) / each:.1f} KiB each" if each else ""
    print(f"{what:<34} {now_kib / 1024:8.1f} MiB, {descriptors(proxy.program.pid):6} descriptors{per}")


async def measure(servers: Servers, tasks: int, held: int) -> None:
    upstream = await servers.module("upstream")
    bounds = {"calls": tasks * 2, "listens": held + 10}
    proxy = await servers.proxy(upstream.url, {"tasks": {"threshold": "0s"}, "limits": bounds})
    async with ModernClient(proxy.url) as client:
        task_ids: list[str] = []

        async def start(number: int) -> None:
            made = await client.call_tool("wait", {"seconds": FOR_LONG_S, "label": str(number)})
            task_ids.append(made.task_id)

        await start(-1)
        quiet = await poll_ms(client, task_ids)
        before = rss_kib(proxy.program.pid)
        tell("at first", proxy, before)
        began = time.perf_counter()
        await together(tasks, start)
        tell(f"{tasks} tasks in {time.perf_counter() - began:.0f} s", proxy, before, tasks)
        busy = await poll_ms(client, task_ids)
        with_tasks = rss_kib(proxy.program.pid)
        async with streams(client, task_ids, held):
            tell(f"and {held} listen streams", proxy, with_tasks, held)
            full = await poll_ms(client, task_ids)

            async def cancel(number: int) -> None:
                await client.cancel_task(task_ids[number])

            await together(len(task_ids), cancel)
        await anyio.sleep(SETTLE_S)
        tell("all cancelled, streams closed", proxy, before)
    for what, (median, p99) in {"alone": quiet, "beside the tasks": busy, "and the streams": full}.items():
        print(f"tasks/get {what:<24} {median:6.2f} ms median, {p99:6.2f} ms p99")


async def main(tasks: int, held: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the upstream holds a connection for each task
    with TemporaryDirectory() as home:
        async with on_one_core(Path(home)) as servers:
            await measure(servers, tasks, held)


if __name__ == "__main__":
    given = dict(zip(("tasks", "held"), map(int, sys.argv[1:]), strict=False))
    anyio.run(main, given.get("tasks", TASKS), given.get("held", STREAMS))
