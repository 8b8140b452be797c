"""Which sessions there are: whose they are, how many there may be, which ones go."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import pytest

from proxy.errors import ClientProtocolError, LimitReached
from proxy.owners import ANONYMOUS, Owner
from proxy.sessions.table import MAKES_ROOM_AFTER_S, UNREAD_MAKES_ROOM_AFTER_S, SessionTable

ADA, BOB = Owner("ada"), Owner("bob")
NOW: Final = 1_000.0


@dataclass(eq=False)
class Held:
    owner: Owner = ANONYMOUS
    idle_since: float | None = None
    unread_since: float | None = None
    has_calls: bool = True
    is_over: bool = False
    id: str = field(default_factory=SessionTable.new_id)


def table(*sessions: Held, room_for: int = 2) -> SessionTable[Held]:
    made: SessionTable[Held] = SessionTable(room_for)
    for session in sessions:
        made.add(session)
    return made


def test_session_ids_are_visible_ascii_unique_and_unguessable() -> None:
    """HTTP-069."""
    ids = [SessionTable.new_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert all(0x21 <= ord(c) <= 0x7E for made in ids for c in made)
    assert min(len(made) for made in ids) * 6 >= 128


def test_a_session_is_found_by_its_owner_and_nobody_else() -> None:
    """I5, HTTP-070: another's, one that is over and one that never was look the same."""
    mine, over = Held(ADA), Held(ADA, is_over=True)
    made = table(mine, over, room_for=9)
    assert made.find(mine.id, ADA) is mine
    faults = []
    for session_id, owner in [(mine.id, BOB), (mine.id, ANONYMOUS), (over.id, ADA), ("x", ADA), ("", ADA)]:
        with pytest.raises(ClientProtocolError) as caught:
            made.find(session_id, owner)
        faults.append((caught.value.http_status, caught.value.message))
    assert {status for status, _ in faults} == {HTTPStatus.NOT_FOUND}
    assert len(set(faults)) == 1


def test_while_there_is_room_nobody_has_to_go() -> None:
    assert table(Held(idle_since=0.0)).to_make_room(ADA, NOW) is None


def test_the_session_that_is_idle_for_longest_makes_room() -> None:
    oldest = Held(BOB, idle_since=10.0)
    made = table(Held(BOB, idle_since=20.0), oldest, Held(BOB), room_for=3)
    assert made.to_make_room(ADA, NOW) is oldest


def test_ones_own_idle_session_goes_before_that_of_another() -> None:
    """So that who opens many does not push others out."""
    own = Held(ADA, idle_since=20.0)
    assert table(Held(BOB, idle_since=10.0), own).to_make_room(ADA, NOW) is own


@pytest.mark.parametrize("idle_since", [None, NOW - MAKES_ROOM_AFTER_S + 0.1])
def test_where_nobody_can_go_the_new_one_is_refused(idle_since: float | None) -> None:
    """F40: what is in use is left alone, and what was opened just now is about to be used."""
    with pytest.raises(LimitReached) as caught:
        table(Held(idle_since=idle_since), Held()).to_make_room(ADA, NOW)
    assert caught.value.http_status is HTTPStatus.SERVICE_UNAVAILABLE
    assert caught.value.retry_after_s > 0
    assert "limits.sessions" in caught.value.message


def test_sessions_that_are_over_take_no_room_until_there_are_too_many_of_them() -> None:
    """Their servers may still be ending, or have tasks to finish."""
    made = table(*(Held(is_over=True) for _ in range(3)))
    assert made.to_make_room(ADA, NOW) is None
    made.add(Held(is_over=True))
    with pytest.raises(LimitReached):
        made.to_make_room(ADA, NOW)


def test_what_nobody_used_for_too_long_is_named_once_it_is_not_over() -> None:
    idle, recent = Held(idle_since=NOW - 60), Held(idle_since=NOW - 59)
    made = table(idle, recent, Held(), Held(idle_since=0.0, is_over=True), room_for=9)
    assert made.idle(NOW, 60) == [idle]


def test_what_was_removed_is_there_no_more() -> None:
    mine = Held(ADA)
    made = table(mine)
    made.remove(mine)
    made.remove(mine)
    assert list(made) == []
    with pytest.raises(ClientProtocolError):
        made.find(mine.id, ADA)


def test_an_owner_with_its_share_ends_one_of_its_own_though_there_is_room() -> None:
    """SEC-003: never somebody else's, however long that is idle."""
    own, others = [Held(ADA, idle_since=500.0), Held(ADA, idle_since=100.0)], [Held(BOB, idle_since=0.0)]
    made: SessionTable[Held] = SessionTable(10, 2)
    for session in (*own, *others):
        made.add(session)
    assert made.to_make_room(ADA, NOW) is own[1]
    assert made.to_make_room(BOB, NOW) is None


def test_an_owner_whose_share_is_in_use_is_refused_and_others_are_not() -> None:
    """SEC-003: 503, which names the setting."""
    made: SessionTable[Held] = SessionTable(10, 1)
    made.add(Held(ADA))
    with pytest.raises(LimitReached, match=r"1 sessions of yours .*limits\.sessions_per_owner") as fault:
        made.to_make_room(ADA, NOW)
    assert fault.value.http_status == HTTPStatus.SERVICE_UNAVAILABLE
    assert made.to_make_room(BOB, NOW) is None


LONG_AGO: Final = NOW - UNREAD_MAKES_ROOM_AFTER_S


def test_where_none_is_idle_one_makes_room_whose_calls_nobody_has_waited_for_for_minutes() -> None:
    """I6: else whoever starts a call in each and leaves has them all until the calls end."""
    read, unread = Held(BOB), Held(BOB, unread_since=LONG_AGO)
    assert table(read, unread).to_make_room(ADA, NOW) is unread
    idle = Held(BOB, idle_since=NOW - MAKES_ROOM_AFTER_S, unread_since=NOW - MAKES_ROOM_AFTER_S)
    assert table(unread, idle).to_make_room(ADA, NOW) is idle
    with pytest.raises(LimitReached):
        table(read, Held(BOB, unread_since=LONG_AGO + 0.1)).to_make_room(ADA, NOW)


def test_calls_that_nobody_waits_for_end_by_the_session_that_is_unread_for_longest_ones_own_first() -> None:
    """One without calls would make no room, and one that is over is ending as it is."""
    idle = Held(ADA, idle_since=0.0, unread_since=0.0, has_calls=False)
    over = Held(ADA, unread_since=0.0, is_over=True)
    own, recent = Held(ADA, unread_since=LONG_AGO), Held(ADA, unread_since=LONG_AGO + 0.1)
    others = Held(BOB, unread_since=1.0)
    made = table(idle, over, recent, others)
    assert made.to_end_calls(ADA, NOW, own_alone=True) is None
    assert made.to_end_calls(ADA, NOW, own_alone=False) is others
    made.add(own)
    assert made.to_end_calls(ADA, NOW, own_alone=False) is own
