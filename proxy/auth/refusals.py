"""Which refused tokens are kept in mind, where there are too many: those by which something could be had.

Above: `spent`. Anybody can make tokens up, and have each refused; so a token whose owner has no tasks takes
no room from one whose owner has. Where there are none, there is nothing to be had by it, refused or not.
Contract section 8.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

MAX_OF_OWNERS: Final = 10_000  # whose owners have tasks
MAX_OTHERS: Final = 1_000
MAX_OF_ONE: Final = 50  # owner; who has more has them from an issuer, and pushes out his own
_LOOKED_AT: Final = 64  # of the oldest, for one whose owner has no tasks any more


@dataclass(frozen=True, slots=True)
class Refusal:
    """Of a token of this owner (its key), which is worth nothing from `until_s` on by its own word. The wall
    clock counts, in seconds."""

    owner: str
    until_s: int
    challenges: tuple[str, ...] = ()


class Refusals:
    """By the keys of the tokens. `owns` says whether an owner has tasks now. In both tables the oldest come
    first."""

    def __init__(self, owns: Callable[[str], bool], now_s: Callable[[], float]) -> None:
        self._owns = owns
        self._now_s = now_s
        self._of_owners: OrderedDict[bytes, Refusal] = OrderedDict()
        self._others: OrderedDict[bytes, Refusal] = OrderedDict()
        self._count: Counter[str] = Counter()  # of each owner with tasks

    def __repr__(self) -> str:
        return f"<Refusals {len(self._of_owners)} of owners, {len(self._others)} others>"

    def __len__(self) -> int:
        return len(self._of_owners) + len(self._others)

    def __contains__(self, key: bytes) -> bool:
        return key in self._of_owners or key in self._others

    def get(self, key: bytes) -> Refusal | None:
        return self._of_owners.get(key) or self._others.get(key)

    def put(self, key: bytes, refusal: Refusal) -> None:
        """As the newest. Another one may have to go."""
        self.remove(key)
        if self._matters(refusal):
            self._put_of_owner(key, refusal)
            return
        self._others[key] = refusal
        if len(self._others) > MAX_OTHERS:
            oldest, its = self._others.popitem(last=False)
            if self._matters(its):  # by now
                self._put_of_owner(oldest, its)

    def remove(self, key: bytes) -> bool:
        """Whether it was there."""
        if (refusal := self._of_owners.pop(key, None)) is not None:
            self._count[refusal.owner] -= 1
            if not self._count[refusal.owner]:
                del self._count[refusal.owner]
            return True
        return self._others.pop(key, None) is not None

    def newest(self) -> tuple[Iterable[tuple[bytes, Refusal]], Iterable[tuple[bytes, Refusal]]]:
        """Those whose owners have tasks now, and the others; the newest first."""
        judged = [
            (key, refusal, self._matters(refusal))
            for key, refusal in chain(reversed(self._of_owners.items()), reversed(self._others.items()))
        ]
        return [one[:2] for one in judged if one[2]], [one[:2] for one in judged if not one[2]]

    def _matters(self, refusal: Refusal) -> bool:
        return refusal.until_s > self._now_s() and self._owns(refusal.owner)

    def _put_of_owner(self, key: bytes, refusal: Refusal) -> None:
        owner = refusal.owner
        self._of_owners[key] = refusal
        self._count[owner] += 1
        if self._count[owner] > MAX_OF_ONE:
            self.remove(next(k for k, one in self._of_owners.items() if one.owner == owner))
        if len(self._of_owners) > MAX_OF_OWNERS:
            oldest = list(islice(self._of_owners.items(), _LOOKED_AT))
            self.remove(next((k for k, one in oldest if not self._matters(one)), oldest[0][0]))
