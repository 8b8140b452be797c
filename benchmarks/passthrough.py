"""What a small call costs in the proxy, against a proxy that only copies bytes.

Servers on one core, the load on the other; the cost is the CPU time of the proxy's process, not time on the
wall. The two take turns of a tenth of a second, so that whatever else the machine does hits both. Target:
legacy calls over HTTP before an HTTP server at most 1.3 times the copying proxy. Modern calls are translated
and have no target.

    python -m benchmarks.passthrough [ROUNDS]

Where the time goes (py-spy, JSON answers at 2025-11-25): three quarters in aiohttp, asyncio and the sockets,
which the copying proxy pays as well. Ours: the entrance and the writing of the reply 7 %, passing on 7 %,
parsing the message 6 %, what 2025 tasks look at 4 %, headers both ways 3 %, body, bounds and counting 4 %.
It is many small things of some microseconds each; most cost twice what they cost alone, since their code
is not in the cache. Ratios are worse on a busy machine for the same reason.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Final

import anyio

from benchmarks.rig.load import Kind, Load
from benchmarks.rig.servers import Server, on_one_core
from proxy.protocol import names

ROUNDS: Final = 40
CALLS: Final = 200  # of each kind in each round
WARM_UP: Final = 500  # of each kind; connections are there and the interpreter has specialised
AT_ONCE: Final = 16
TARGET: Final = 1.3

TOOLS: Final = ("answer_json", "answer_events")
VERSIONS: Final = ("2025-06-18", "2025-11-25")
LEGACY: Final = [Kind(version, tool) for version in VERSIONS for tool in TOOLS]
MODERN: Final = Kind(names.LATEST_MODERN, "answer_json")

Costs = dict[Kind, list[float]]
"""CPU microseconds a call, by kind; one figure a round."""


class Measured:
    """A server, the load on it, and what its calls have cost."""

    def __init__(self, server: Server, load: Load, kinds: Sequence[Kind]) -> None:
        self.kinds = kinds
        self.costs: Costs = defaultdict(list)
        self._server = server
        self._load = load

    async def warm_up(self) -> None:
        for version in VERSIONS:
            await self._load.begin(version)
        for kind in self.kinds:
            await self._load.run(kind, WARM_UP)

    async def turn(self, kind: Kind) -> None:
        if kind not in self.kinds:
            return
        before = self._server.cpu_s()
        await self._load.run(kind, CALLS)
        self.costs[kind].append((self._server.cpu_s() - before) / CALLS * 1e6)

    def all_legacy(self) -> list[float]:
        """The mean over all legacy kinds, round by round."""
        by_round = zip(*(self.costs[kind] for kind in LEGACY), strict=True)
        return [sum(figures) / len(LEGACY) for figures in by_round]


async def main(rounds: int) -> None:
    with TemporaryDirectory() as home:
        async with on_one_core(Path(home)) as servers, AsyncExitStack() as stack:
            upstream = await servers.module("upstream")
            copier = await servers.module("copying_proxy", upstream.url)
            proxy = await servers.proxy(upstream.url)
            copying, ours = [
                Measured(server, await stack.enter_async_context(Load(server.url, AT_ONCE)), kinds)
                for server, kinds in ((copier, LEGACY), (proxy, [*LEGACY, MODERN]))
            ]
            await copying.warm_up()
            await ours.warm_up()
            for number in range(rounds):
                for kind in ours.kinds:
                    for measured in (copying, ours) if number % 2 else (ours, copying):
                        await measured.turn(kind)
    report(ours, copying, rounds)


def report(ours: Measured, copying: Measured, rounds: int) -> None:
    print(f"{'CPU microseconds a call':<24} {'proxy':>18} {'copying proxy':>18} {'ratio':>18}")
    for kind in LEGACY:
        print(row(str(kind), ours.costs[kind], copying.costs[kind]))
    print(row("all legacy", ours.all_legacy(), copying.all_legacy()))
    print(f"{MODERN!s:<24} {shown(ours.costs[MODERN]):>18}")
    calls = rounds * CALLS * (len(ours.kinds) + len(copying.kinds))
    print(
        f"Medians, and in brackets the middle half, of {rounds} rounds of {CALLS} calls, {AT_ONCE} at once;"
    )
    print(f"{calls:,} calls, every answer checked. Target: ratio at most {TARGET} for all legacy.")


def row(name: str, ours: Sequence[float], copying: Sequence[float]) -> str:
    ratios = [our / its for our, its in zip(ours, copying, strict=True)]
    return f"{name:<24} {shown(ours):>18} {shown(copying):>18} {shown(ratios, 2):>18}"


def shown(figures: Sequence[float], digits: int = 0) -> str:
    """Median and quartiles."""
    low, _, high = quantiles(figures, n=4, method="inclusive")
    return f"{median(figures):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
