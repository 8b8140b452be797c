"""Room in bytes: for all, and of it for each owner and each peer."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from proxy.errors import LimitReached
from proxy.room import Room


def test_room_is_for_all_and_comes_back() -> None:
    """SEC-003: 503, with the setting's name and a time to come back."""
    room = Room("bodies", 10, "limits.body")
    one, other = room.place({}), room.place({})
    one.grow(6)
    with pytest.raises(LimitReached, match=r"10 bytes are held already \(limits.body\)") as refused:
        other.grow(5)
    assert refused.value.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert refused.value.retry_after_s == 1
    other.grow(4)
    one.leave()
    one.leave()
    assert room.held == 4
    other.grow(6)


def test_one_owner_has_a_share_and_others_still_have_room() -> None:
    room = Room("bodies", 10, "limits.body")
    room.place({"alice": 5}).leave()
    first, second = room.place({"alice": 5}), room.place({"alice": 5})
    first.grow(3)
    with pytest.raises(LimitReached, match="5 bytes of yours") as refused:
        second.grow(3)
    assert refused.value.status is HTTPStatus.TOO_MANY_REQUESTS
    assert second.size == 0
    room.place({"bob": 5}).grow(5)
    first.leave()
    second.grow(5)


def test_whoever_makes_up_owners_has_the_share_of_a_peer() -> None:
    room = Room("bodies", 12, "limits.body")
    for owner in ("made up", "another"):
        room.place({"peer": 6, owner: 3}).grow(3)
    with pytest.raises(LimitReached):
        room.place({"peer": 6, "a third": 3}).grow(1)
    room.place({"elsewhere": 6, "a third": 3}).grow(3)


def test_what_is_there_already_is_counted_and_not_refused() -> None:
    room = Room("answers", 10, "limits.result")
    place = room.place({"alice": 5})
    place.count(20)
    with pytest.raises(LimitReached):
        room.place({}).grow(1)
    place.leave()
    assert room.held == 0


def test_for_one_thing_alone_there_is_always_room() -> None:
    """A result that was stored before its limit was lowered can be had."""
    room = Room("answers", 10, "limits.result")
    alone = room.place({"alice": 5})
    alone.grow(20)
    with pytest.raises(LimitReached):
        alone.need(1)
