"""What is said of rounds, and kept of them, so that a long run can be stopped and taken up again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tests.faults.breaking import KILLS
from tests.faults.plan import FaultKind
from tests.faults.rounds import RoundSeen
from tests.faults.violation import Violation


@dataclass(slots=True)
class Totals:
    """Sums over the rounds of a run, also those of its earlier processes."""

    rounds: int = 0
    kills: int = 0
    calls: int = 0
    tasks: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, lanes: Iterable[Totals]) -> Totals:
        """Of all lanes together."""
        totals = cls()
        for lane in lanes:
            for each in fields(cls):
                setattr(totals, each.name, getattr(totals, each.name) + getattr(lane, each.name))
        return totals

    def add(self, row: dict[str, Any]) -> None:
        self.rounds += 1
        self.kills += row["kills"]
        self.calls += row["calls"]
        self.tasks += row["tasks"]
        self.seconds += row["seconds"]
        self.faults.update(row["faults"])
        self.endings.update(row["endings"])
        self.violations.update(violation["what"] for violation in row["violations"])

    def lines(self) -> Iterator[str]:
        yield (
            f"{self.rounds} rounds, {self.kills} kills, {self.calls} calls, {self.tasks} tasks "
            f"in {self.seconds / 60:.1f} min"
        )
        for name, counts in (("faults", self.faults), ("ends of tasks", self.endings)):
            yield f"{name}: " + (", ".join(f"{kind} {n}" for kind, n in counts.most_common()) or "none")
        found = ", ".join(f"{kind} {n}" for kind, n in self.violations.most_common())
        yield f"violations: {found or 'none'}"


class Record:
    """The file with one line for each round of a run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.totals = Totals()
        self.next_round = 0
        if file.exists():
            for line in file.read_text().splitlines():
                self._count(json.loads(line))

    def add(self, seen: RoundSeen) -> None:
        row = _row(seen)
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._count(row)

    def add_violations(self, violations: list[Violation]) -> None:
        """Those that were found at the end of an era."""
        self.totals.violations.update(violation.what.value for violation in violations)

    def _count(self, row: dict[str, Any]) -> None:
        self.totals.add(row)
        self.next_round = row["round"] + 1


def line_of(seed: int, seen: RoundSeen) -> str:
    """What a round was, on one line."""
    faults = ", ".join(map(str, seen.plan.faults)) or "nothing broken"
    found = f"{len(seen.violations)} VIOLATIONS" if seen.violations else "ok"
    return (
        f"seed {seed} round {seen.plan.number}: {len(seen.calls)} calls, {seen.tasks} tasks; {faults}: "
        f"{found} ({seen.seconds:.1f} s)"
    )


def _row(seen: RoundSeen) -> dict[str, Any]:
    kinds = Counter(felt.kind.value for felt in seen.felt)
    endings = Counter(_ending(call.task.ended) for call in seen.calls if call.task is not None)
    return {
        "round": seen.plan.number,
        "kills": sum(KILLS.get(FaultKind(kind), 0) * count for kind, count in kinds.items()),
        "calls": len(seen.calls),
        "tasks": seen.tasks,
        "seconds": seen.seconds,
        "faults": dict(kinds),
        "endings": dict(endings),
        "violations": [{"what": v.what.value, "whose": v.whose, "words": v.words} for v in seen.violations],
    }


def _ending(raw: bytes | None) -> str:
    """The status, and for a call that the proxy lost why."""
    if raw is None:
        return "none"
    task = json.loads(raw)["result"]
    if task["status"] != "failed":
        return str(task["status"])
    words = task["error"]["message"]
    if "outcome unknown: the proxy stopped" in words:
        return "failed: proxy stopped"
    if "tasks.runtime_limit" in words or "tasks.input_limit" in words:
        return "failed: limit"
    return "failed: by the server" if task["error"]["code"] != -32603 else "failed: server lost"
