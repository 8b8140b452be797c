"""Progress of a call in words that people read.

Above: `live`. What comes out becomes a task's `statusMessage`, since progress has no other way out of a
task (contract section 4).
"""

from __future__ import annotations

from typing import Any, Final

from proxy.protocol.envelope import JsonError, RawObject, loads

MAX_NUMBER_DIGITS: Final = 40  # longer ones tell people nothing
MAX_CHARS: Final = 1_000  # it is stored, and sent with every poll


def progress_text(params: bytes) -> str | None:
    """The params of a progress notification in words: "3/10 rows copied". None if they tell nothing.

    Numbers keep the upstream's spelling.
    """
    try:
        obj = RawObject.parse(params)
        done, total = _number(obj.get("progress")), _number(obj.get("total"))
        message = obj.text("message")
    except (JsonError, ValueError):
        return None
    amount = f"{done}/{total}" if done and total else done
    return shortened(" ".join(part for part in (amount, message) if part)) or None


def shortened(text: str) -> str:
    """At most MAX_CHARS of it."""
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


def _number(raw: bytes | None) -> str | None:
    if raw is None or len(raw) > MAX_NUMBER_DIGITS:
        return None
    value: Any = loads(raw)
    return raw.decode() if isinstance(value, int | float) and not isinstance(value, bool) else None
