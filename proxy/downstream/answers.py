"""Room for large answers on their way: each reader who is slow holds a copy of its own.

Above: `http` and `legacy_http`. Contract section 8, "Bounds".
"""

from __future__ import annotations

from typing import Final

from proxy.owners import Owner
from proxy.room import Place, Room

AT_ONCE: Final = 8  # results of the largest size that may be on their way at the same time


class Answers:
    """`has_others`: one owner gets half of the room."""

    def __init__(self, max_bytes: int, *, has_others: bool) -> None:
        self._room = Room("answers", AT_ONCE * max_bytes, f"{AT_ONCE} times limits.result")
        self._share = self._room.total // 2 if has_others else None

    def __repr__(self) -> str:
        return f"<Answers {self._room}>"

    def place(self, owner: Owner) -> Place:
        """For one of this owner; to be left when it is written."""
        return self._room.place({} if self._share is None else {owner.key: self._share})
