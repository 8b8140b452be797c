"""How often, and after how long, a server is asked again: by rounds, and about tasks of its own.

PURE. Above: `upstream.lowered_call`, for legacy clients, and `routing`, for modern ones. MRTR 2026-07-28,
"Client Requirements"; Tasks 2025-11-25 and 2026-07-28, "Polling".
"""

from __future__ import annotations

from typing import Final

from proxy.protocol.envelope import loads

MAX_ROUNDS: Final = 50  # how often one call may ask for input before it counts as stuck
FAILED_POLLS: Final = 5  # in a row, of `tasks/get`, before the task counts as lost
POLL_S: Final = 1.0  # where the server suggests nothing

_LEAST_POLL_S: Final = 0.1
_MOST_POLL_S: Final = 60.0
_AGAIN_FIRST_S: Final = 0.5
_AGAIN_LAST_S: Final = 30.0


def again_s(attempt: int) -> float:
    """Before the same is asked again, where the server wants just that (MRTR-019); `attempt`: 0, 1, ..."""
    return min(_AGAIN_LAST_S, _AGAIN_FIRST_S * 2.0**attempt)


def poll_s(wish_ms: bytes | None) -> float:
    """Seconds between two polls, by the raw wish of the server, within bounds; POLL_S where it is none."""
    try:
        wish = None if wish_ms is None or not wish_ms[:1].isdigit() else float(loads(wish_ms))
    except (ValueError, OverflowError):  # more digits than any wish has
        wish = None
    return POLL_S if wish is None else min(max(wish / 1_000, _LEAST_POLL_S), _MOST_POLL_S)
