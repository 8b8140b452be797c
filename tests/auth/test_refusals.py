"""Which refused tokens stay in mind where there are too many. SEC-003; contract section 8."""

from __future__ import annotations

import pytest

from proxy.auth import refusals
from proxy.auth.refusals import Refusal, Refusals

NOW_S = 1_000.0
LATER_S = 2_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MAX_OF_OWNERS", 3)
    monkeypatch.setattr(refusals, "MAX_OTHERS", 2)
    monkeypatch.setattr(refusals, "MAX_OF_ONE", 2)


class Known:
    """`owners` have tasks. A token is named after its owner: `a1` is one of `a`."""

    def __init__(self, owners: str) -> None:
        self.owners = set(owners)
        self.refusals = Refusals(lambda owner: owner in self.owners, lambda: NOW_S)

    def put(self, *names: str, until_s: int = LATER_S) -> None:
        for name in names:
            self.refusals.put(name.encode(), Refusal(name[0], until_s))

    def left(self) -> str:
        return " ".join(n for n in ("a1", "a2", "a3", "b1", "c1", "d1", "x1", "y1", "z1") if self.has(n))

    def has(self, name: str) -> bool:
        assert (name.encode() in self.refusals) == (self.refusals.get(name.encode()) is not None)
        return name.encode() in self.refusals


def test_those_of_nobody_push_out_each_other_the_oldest_first() -> None:
    known = Known("ab")
    known.put("a1", "b1", "x1", "y1", "x1", "z1")
    assert known.left() == "a1 b1 x1 z1"
    assert len(known.refusals) == 4


def test_one_whose_owner_has_come_to_have_tasks_stays() -> None:
    known = Known("")
    known.put("a1", "x1")
    known.owners.add("a")
    known.put("y1", "z1")
    assert known.left() == "a1 y1 z1"


def test_of_those_of_owners_one_goes_whose_owner_has_no_tasks_any_more() -> None:
    known = Known("abcd")
    known.put("a1", "b1", "c1")
    known.owners.remove("b")
    known.put("d1")
    assert known.left() == "a1 c1 d1"


def test_where_all_have_tasks_the_oldest_goes() -> None:
    known = Known("abcd")
    known.put("a1", "b1", "c1", "d1")
    assert known.left() == "b1 c1 d1"


def test_an_owner_pushes_out_its_own() -> None:
    known = Known("ab")
    known.put("b1", "a1", "a2", "a3")
    assert known.left() == "a2 a3 b1"
    known.refusals.remove(b"a3")
    known.put("a1")
    assert known.left() == "a1 a2 b1"


def test_a_token_that_has_expired_takes_no_room() -> None:
    """It is refused for that."""
    known = Known("a")
    known.put("a1", until_s=int(NOW_S))
    known.put("x1", "y1")
    assert known.left() == "x1 y1"


def test_what_is_to_be_kept_is_told_by_what_it_is_now() -> None:
    known = Known("abc")
    known.put("a1", "x1", "b1", "y1")
    known.owners = set("ax")
    of_owners, others = known.refusals.newest()
    assert [key for key, _ in of_owners] == [b"a1", b"x1"]
    assert [key for key, _ in others] == [b"b1", b"y1"]
    assert repr(known.refusals) == "<Refusals 2 of owners, 2 others>"


def test_what_was_taken_back_is_gone() -> None:
    known = Known("a")
    known.put("a1", "x1")
    assert known.refusals.remove(b"a1")
    assert known.refusals.remove(b"x1")
    assert not known.refusals.remove(b"a1")
    assert not known.refusals
