"""Room for what is large: so many bytes in all, and of one owner, that are held for clients at a time.

Above: `downstream`. What is small is bounded by its number, which others count. Contract section 8, "Bounds".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final

from proxy.errors import LimitReached

BUSY_RETRY_S: Final = 1


class Room:
    """At most `total` bytes. `what` and `setting` tell what it is for, and what makes it larger."""

    def __init__(self, what: str, total: int, setting: str) -> None:
        self._what = what
        self._setting = setting
        self.total = total
        self._shares: dict[str, int] = {}
        self.held = 0

    def __repr__(self) -> str:
        return f"<Room {self.held} of {self.total} bytes of {self._what}>"

    def place(self, shares: Mapping[str, int]) -> Place:
        """An empty one. `shares`: of whom it is, its owner or who brings it, and what each may take."""
        return Place(self, shares)

    def _grow(self, by: int, whose: Iterable[str]) -> None:
        """Whatever the bounds."""
        self.held += by
        for one in whose:
            left = self._shares.get(one, 0) + by
            if left:
                self._shares[one] = left
            else:
                self._shares.pop(one, None)

    def _check(self, by: int, shares: Mapping[str, int]) -> None:
        """Raises LimitReached where there is no room for so much more. For one thing alone there always is: a
        result may have been stored when larger ones were allowed."""
        if self.held and self.held + by > self.total:
            fault = f"{self._what} of {self.total} bytes are held already ({self._setting}); try again later"
            status = HTTPStatus.SERVICE_UNAVAILABLE
            raise LimitReached(fault, retry_after_s=BUSY_RETRY_S, status=status)
        for one, share in shares.items():
            held = self._shares.get(one, 0)
            if held and held + by > share:
                fault = (
                    f"{self._what} of {share} bytes of yours are held already (a share of {self._setting})"
                )
                raise LimitReached(f"{fault}; try again later", retry_after_s=BUSY_RETRY_S)


class Place:
    """What one thing takes of a room, until it is left."""

    __slots__ = ("_room", "_shares", "size")

    def __init__(self, room: Room, shares: Mapping[str, int]) -> None:
        self._room = room
        self._shares = shares
        self.size = 0

    def grow(self, by: int) -> None:
        """Raises LimitReached (503, or 429 where others still have room); then it is as large as before."""
        self.need(by)
        self.count(by)

    def need(self, by: int) -> None:
        """Raises LimitReached where there is no room for so much; nothing is taken."""
        self._room._check(by, self._shares)

    def count(self, by: int) -> None:
        """As `grow`, of what is there already and cannot be refused."""
        self.size += by
        self._room._grow(by, self._shares)

    def leave(self) -> None:
        """May be called again."""
        self._room._grow(-self.size, self._shares)
        self.size = 0
