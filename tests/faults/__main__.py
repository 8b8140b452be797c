"""Runs the bench: python -m tests.faults [--kills N] [--lanes N] [--seed N] [--only ROUND] …

Goes on where a run with the same seed and home was stopped. Prints a line for each round and each violation,
and keeps the scene of a violation under the home. Ends with exit code 1 if there was one. A round mostly
waits: several lanes, each with scenes of its own, get more kills out of the same time.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import anyio

from tests.faults.dice import plan_era, plan_round
from tests.faults.disk import clear
from tests.faults.plan import ROUNDS_PER_ERA, Transport, era_of
from tests.faults.report import Record, Totals, line_of
from tests.faults.rounds import era
from tests.faults.scene import NotServing
from tests.faults.violation import Violation, What


async def run(seed: int, home: Path, kills: int, lanes: int, transports: tuple[Transport, ...]) -> int:
    """Play rounds in so many lanes, each with the next seed, until so many kills are done in all."""
    homes = [home] if lanes == 1 else [home / f"lane-{seed + lane}" for lane in range(lanes)]
    for one in homes:
        one.mkdir(exist_ok=True)
    records = [Record(one / "rounds.jsonl") for one in homes]

    def is_enough() -> bool:
        return sum(record.totals.kills for record in records) >= kills

    async with anyio.create_task_group() as group:
        for lane, record in enumerate(records):
            group.start_soon(play, seed + lane, homes[lane], record, is_enough, transports)
    return _conclude(Totals.of(record.totals for record in records))


async def run_only(seed: int, home: Path, number: int, transports: tuple[Transport, ...]) -> int:
    """Play one round."""
    record = Record(home / f"only-{number}.jsonl")
    await play(seed, home, record, lambda: True, transports, only=number)
    return _conclude(record.totals)


async def play(
    seed: int,
    home: Path,
    record: Record,
    is_enough: Callable[[], bool],
    transports: tuple[Transport, ...],
    *,
    only: int | None = None,
) -> None:
    """Rounds until it is enough, or the one that is asked for."""
    number = record.next_round if only is None else only
    while not is_enough() or only == number:
        scene = home / f"era-{era_of(number)}-from-{number}"
        clear(scene)
        plan = plan_era(seed, era_of(number), transports)
        found: list[Violation] = []
        _say(f"era {era_of(number)}: {plan}")
        last = number if only is not None else (era_of(number) + 1) * ROUNDS_PER_ERA - 1
        try:
            async with era(scene, plan) as playing:
                while number <= last and (not is_enough() or only == number):
                    seen = await playing.play(plan_round(seed, number, plan))
                    record.add(seen)
                    found += seen.violations
                    _say(line_of(seed, seen), *(f"    {violation}" for violation in seen.violations))
                    number += 1
                at_end = await playing.end()
        except NotServing as exc:
            at_end = [Violation(What.EXITED, "proxy", f"round {number}: {exc}")]
            number += 1
        record.add_violations(at_end)
        found += at_end
        _say(*(f"    at the end: {violation}" for violation in at_end))
        if not found:
            clear(scene)
        if only is not None:
            break


def _conclude(totals: Totals) -> int:
    """The exit code."""
    _say(*totals.lines())
    return 1 if totals.violations else 0


def _say(*lines: str) -> None:
    for line in lines:
        print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--kills", type=int, default=30, help="how often to kill the proxy in all")
    parser.add_argument("--lanes", type=int, default=1, help="how many rounds to play at a time")
    parser.add_argument("--seed", type=int, default=None, help="of the plan; a new one if none is given")
    parser.add_argument("--home", type=Path, default=None, help="where scenes and the record are kept")
    parser.add_argument("--transport", choices=[*Transport], action="append", help="only this one")
    parser.add_argument("--only", type=int, default=None, help="play this round alone")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    home = given.home or Path(".work", "faults", str(seed))
    home.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # in the background of a shell SIGINT is ignored
        signal.signal(number, signal.default_int_handler)
    transports = tuple(Transport(name) for name in given.transport or Transport)
    _say(f"seed {seed}, home {home}")
    try:
        if given.only is not None:
            return anyio.run(run_only, seed, home.absolute(), given.only, transports)
        return anyio.run(run, seed, home.absolute(), given.kills, given.lanes, transports)
    except KeyboardInterrupt:
        _say("stopped; the same command goes on from here")
        return 130


if __name__ == "__main__":
    sys.exit(main())
