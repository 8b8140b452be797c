"""When faults could be felt. What went wrong then may have been their doing, else it is the proxy's.

PURE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.faults.plan import FaultKind

AFTERMATH_S: Final = (
    3.0  # how long after its end a fault may still be felt: back-off, a restart of the server
)
ENDS_OF_THE_PROXY: Final = frozenset(
    {FaultKind.KILL, FaultKind.KILL_STARTING, FaultKind.TERM, FaultKind.TERM_KILL}
)
OF_THE_DISK: Final = frozenset({FaultKind.DISK_FULL, FaultKind.DISK_ERROR})


@dataclass(slots=True)
class Felt:
    """One fault. Monotonic; `ended` is None while it lasts."""

    kind: FaultKind
    began: float
    ended: float | None = None


def felt_between(
    felt: Sequence[Felt], began: float, ended: float, kinds: frozenset[FaultKind] | None = None
) -> bool:
    """Whether a fault may have been felt at any time between the two."""
    return any(
        fault.began <= ended and (fault.ended is None or began <= fault.ended + AFTERMATH_S)
        for fault in felt
        if kinds is None or fault.kind in kinds
    )
