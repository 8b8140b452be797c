"""Thousands of legacy sessions that are opened, used and left by clients that just go away.

    python -m tests.real.soak [--rounds 20] [--sessions 200] [--at-once 16]

In each round so many sessions are opened, each listens and calls; half of them go in mid-call, none says
DELETE. After each round, once the idle time has passed, descriptors and subprocesses are as before the first
one, and memory stays within a tenth of its level after the first. Field report F39. Not collected by pytest;
`test_http_sessions` runs a short one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from proxy.protocol import names
from tests.real.proxy_process import ProxyProcess
from tests.real.session_client import CAN, connected
from tests.real.waiting import until
from tests.setup_tools import TESTS

SERVER: Final = [sys.executable, str(TESTS / "real" / "small_server.py")]
IDLE_S: Final = 2.0
SETTLED_S: Final = 60.0  # after a round, for the idle time and the ends of all servers
GROWTH: Final = 1.10


@dataclass(frozen=True)
class Level:
    """What the proxy holds while nobody uses it."""

    rss_kib: int
    descriptors: int
    children: int

    @classmethod
    def of(cls, proxy: ProxyProcess) -> Level:
        return cls(proxy.rss_kib(), proxy.descriptors(), len(proxy.children()))


@dataclass(frozen=True)
class Soaked:
    """`levels`: before the first round, and after each."""

    levels: Sequence[Level]
    opened: int

    def faults(self) -> list[str]:
        """What has grown; nothing if all is well."""
        before, first, *later = self.levels
        found = []
        for nth, level in enumerate([first, *later], start=1):
            if level.children != before.children:
                found.append(f"round {nth}: {level.children} subprocesses are left")
            if level.descriptors > before.descriptors:
                found.append(f"round {nth}: {level.descriptors} descriptors, {before.descriptors} before")
            if level.rss_kib > first.rss_kib * GROWTH:
                found.append(f"round {nth}: {level.rss_kib} KiB of memory, {first.rss_kib} after the first")
        return found


async def one_session(url: str, *, is_patient: bool) -> None:
    """Opened, used, left without a word; the impatient ones while their call runs."""
    async with connected(url) as client:
        await client.initialize(**CAN)
        call = {"name": "nap", "arguments": {"seconds": 0.01 if is_patient else 0.5}}
        async with client.listening(), client.asking(names.TOOLS_CALL, call) as exchange:
            if is_patient:
                answers = await exchange.all()
                assert answers[-1]["result"]["isError"] is False
            else:
                while not exchange.events:
                    await exchange.read_on()


async def one_round(url: str, sessions: int, at_once: int) -> None:
    room = anyio.CapacityLimiter(at_once)

    async def one(nth: int) -> None:
        async with room:
            await one_session(url, is_patient=nth % 2 == 0)

    async with anyio.create_task_group() as group:
        for nth in range(sessions):
            group.start_soon(one, nth)


async def soak(home: Path, *, rounds: int, sessions: int, at_once: int = 16) -> Soaked:
    """Raises AssertionError if a session fails, or a round does not settle."""
    room = sessions + at_once
    settings = {"limits": {"session_idle": f"{IDLE_S}s", "sessions": room}, "log": {"level": "warning"}}
    proxy = ProxyProcess(home, SERVER, settings)
    try:
        await proxy.start()
        levels = [Level.of(proxy)]
        for nth in range(1, rounds + 1):
            began = time.monotonic()
            await one_round(proxy.url, sessions, at_once)
            await until(
                lambda: not proxy.children() and proxy.descriptors() <= levels[0].descriptors,
                "what the sessions held is given back",
                within_s=SETTLED_S,
            )
            levels.append(Level.of(proxy))
            took = time.monotonic() - began
            print(f"round {nth}: {sessions} sessions in {took:.1f} s, {levels[-1]}", flush=True)
        await proxy.terminate()
    finally:
        await proxy.stop()
    return Soaked(levels, rounds * sessions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:

        async def run() -> Soaked:
            return await soak(
                Path(home), rounds=options.rounds, sessions=options.sessions, at_once=options.at_once
            )

        soaked = anyio.run(run)
    for fault in soaked.faults():
        print(fault)
    print(f"{soaked.opened} sessions, {len(soaked.faults())} faults")
    return 1 if soaked.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
