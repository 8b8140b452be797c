"""How long a poll of a completed task with a large result keeps the event loop from everybody else.

One task for each kind of result, all of the same size, in a disk store in a temporary directory. Each is
polled again and again, up to the response, which the HTTP side then writes in small pieces; meanwhile a short
sleep in the same event loop is measured. A stall is by how much it was late at worst during one poll: for so
long no other client was answered. Other programs cause some of it, hence the row without polls, and the
processor's time of the loop's thread, most of which is the watching itself. Shown are medians of the polls.

    python -m benchmarks.large_result [MEGABYTES]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final, NoReturn

import anyio

from proxy.audit import Audit
from proxy.clock import Clock, SystemClock
from proxy.downstream.base import pieces_of
from proxy.downstream.exchange import Exchange
from proxy.eras.capabilities import ANY_CAPABILITIES
from proxy.eras.to_modern import ServerInfo
from proxy.limits import Gauge, PollLimit
from proxy.metrics import UNSERVED
from proxy.owners import Credentials, Owner
from proxy.protocol import names
from proxy.protocol.envelope import RawObject, dumps
from proxy.protocol.jsonrpc import RequestId
from proxy.routing.base import ClientRequest
from proxy.routing.outcomes import read_result
from proxy.routing.runner import Runner
from proxy.routing.task_changes import TaskChanges
from proxy.routing.task_methods import TaskMethods
from proxy.stores.disk import DiskStore, Durability
from proxy.tasks import lifecycle
from proxy.tasks.policy import Policy
from proxy.tasks.task import ID_PREFIX
from proxy.upstream.pool import Pool, PoolSettings

DEFAULT_MB: Final = 50
POLLS: Final = 20
QUIET_S: Final = 0.5  # about as long as a poll on a busy machine
PAUSE_S: Final = 0.02
TICK_S: Final = 0.001
OWNER: Final = Owner("somebody")
POLICY: Final = Policy()
SERVER: Final = ServerInfo("2025-11-25", b"{}", b'{"name":"trainer","version":"1"}', None)


@dataclass(slots=True)
class Measured:
    """Milliseconds of each poll."""

    wall: list[float] = field(default_factory=list)
    stall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def row(self, what: str) -> str:
        wall, stall, processor = median(self.wall), median(self.stall), median(self.processor)
        return f"{what:<12} {wall:>10.1f} {stall:>18.1f} {processor:>20.1f}"


class Loop:
    """The event loop, watched. `worst_ms` is by how much a short sleep was late since it was last reset."""

    def __init__(self) -> None:
        self.worst_ms = 0.0

    async def watch(self) -> None:
        while True:
            asleep = time.perf_counter()
            await anyio.sleep(TICK_S)
            self.worst_ms = max(self.worst_ms, (time.perf_counter() - asleep - TICK_S) * 1000)

    async def measure(self, poll: Callable[[], Awaitable[object]]) -> Measured:
        measured = Measured()
        for _ in range(POLLS):
            await anyio.sleep(PAUSE_S)
            self.worst_ms, worked, began = 0.0, time.thread_time(), time.perf_counter()
            await poll()
            await anyio.sleep(2 * TICK_S)  # the watch has its turn
            measured.wall.append((time.perf_counter() - began) * 1000)
            measured.stall.append(self.worst_ms)
            measured.processor.append((time.thread_time() - worked) * 1000)
        return measured


def results(size: int) -> Iterator[tuple[str, bytes]]:
    """Results of about `size` bytes, by what they are made of."""
    yield "one text", b'{"content":[{"type":"text","text":"' + b"a line\\n" * (size // 8) + b'"}]}'
    block = b'{"type":"text","text":"a line"},'
    yield "many texts", b'{"content":[' + (block * (size // len(block)))[:-1] + b"]}"
    yield "numbers", b'{"content":[],"structuredContent":{"all":[' + (b"1.25," * (size // 5))[:-1] + b"]}}"


async def complete(store: DiskStore, clock: Clock, kind: str, result: bytes) -> str:
    """A completed task with this result: its id."""
    task = lifecycle.created(
        id=ID_PREFIX + kind.replace(" ", "-").ljust(32, "_"),
        owner=OWNER.key,
        method=names.TOOLS_CALL,
        name="read",
        now_ms=clock.wall_ms(),
        retention_ms=POLICY.retention_ms,
    )
    await store.create(task)
    read = read_result(task.method, result, SERVER)
    done = lifecycle.completed(
        task,
        result,
        SERVER.server_info,
        POLICY.polling,
        clock.wall_ms(),
        tool_error=None,
        outline=read.outline,
    )
    await store.compare_and_set(task, done)
    return task.id


def task_methods(store: DiskStore, clock: Clock) -> TaskMethods:
    """As they are wired; nothing upstream is ever asked."""

    def no_session(*_: object) -> NoReturn:
        raise AssertionError("a poll asked the upstream")

    pool = Pool(no_session, PoolSettings(idle_timeout_s=None), clock)
    runner = Runner(pool, store, POLICY, clock, UNSERVED, Gauge("calls", 1, "limits.calls"), Credentials())
    changes = TaskChanges(store, runner, POLICY, clock, Audit(b"k" * 32))
    return TaskMethods(changes, POLICY, PollLimit(1_000, clock), clock)


async def poll(methods: TaskMethods, task_id: str) -> int:
    """The size of the response."""
    params = RawObject.parse(dumps({"taskId": task_id}))
    request = ClientRequest(RequestId(b"1", 1), names.TASKS_GET, params, OWNER, ANY_CAPABILITIES)
    pieces, _ = pieces_of(request.id, await methods.get(request, Exchange()))
    return sum(map(len, pieces))


async def main(megabytes: int) -> None:
    print(f"{f'{megabytes} MB':<12} a poll, ms  longest stall, ms  of the processor, ms")
    clock, loop = SystemClock(), Loop()
    with TemporaryDirectory(dir=".") as directory:
        store = DiskStore(Path(directory), durability=Durability.PROCESS, clock=clock)
        async with store, anyio.create_task_group() as group:
            group.start_soon(loop.watch)
            print((await loop.measure(partial(anyio.sleep, QUIET_S))).row("no poll"))
            methods = task_methods(store, clock)
            for kind, result in results(megabytes * 1_000_000):
                task_id = await complete(store, clock, kind, result)
                print((await loop.measure(partial(poll, methods, task_id))).row(kind))
            group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_MB)
