"""How far an event stream was read, and when to come back for the rest.

PURE. Above: the HTTP transport, one cursor for each stream that it would resume. Transports 2025-11-25,
"Resumability and Redelivery"; WHATWG HTML "Server-sent events" on `id` and `retry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy.protocol.sse import Event

DEFAULT_RETRY_S: Final = 1.0
MIN_RETRY_S: Final = 0.05  # whatever `retry` says: no tight loop
MAX_BACK_OFF_S: Final = 30.0
_MOST_COUNTED: Final = 10  # 2 ** 9 s is past the longest back-off


@dataclass(slots=True)
class Cursor:
    """The place in one stream. `opened` says that the server has offered it at least once.

    `fruitless` counts the attempts in a row that brought nothing new.
    """

    opened: bool
    last_id: str = ""
    retry_s: float = DEFAULT_RETRY_S
    fruitless: int = 0

    def note(self, event: Event) -> None:
        """An event was read."""
        if event.retry_ms is not None:
            self.retry_s = max(event.retry_ms / 1_000, MIN_RETRY_S)
        if event.data or event.id not in (None, self.last_id):
            self.fruitless = 0
        if event.id is not None:
            self.last_id = event.id if event.id.isprintable() else ""  # such a one fits into no header

    def held_for(self, seconds: float) -> None:
        """The stream has ended after so long. A long one was no failure: something cuts quiet streams."""
        if seconds >= MAX_BACK_OFF_S:
            self.fruitless = 0

    def next_delay_s(self) -> float:
        """How long to wait before the next attempt, which counts as fruitless until it brings something:
        what `retry` asks for, and more for each one in a row that brought nothing."""
        back_off = min(2.0 ** (self.fruitless - 1), MAX_BACK_OFF_S) if self.fruitless else 0.0
        self.fruitless = min(self.fruitless + 1, _MOST_COUNTED)
        return max(self.retry_s, back_off)
