"""Bodies on their way share room, whoever sends them. The bounds of one body: `test_http.py`."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
from anyio.abc import SocketStream

from proxy.downstream.bodies import AT_ONCE, Bodies
from proxy.downstream.http import kept_with
from proxy.downstream.posted import Posted
from proxy.eras.era import Era
from proxy.errors import LimitReached
from proxy.owners import ANONYMOUS, Owner
from proxy.protocol.envelope import LARGE
from proxy.protocol.jsonrpc import Request, parse_large
from tests.downstream.http_rig import MAX_BODY, OK, http_rig, message, raw_post

pytestmark = pytest.mark.anyio

LAST = 10


async def test_bodies_on_their_way_share_room_and_give_it_back() -> None:
    """SEC-003: 503 and a time to come back for the one that is too much, however many are sent slowly."""
    whole = raw_post(message(pad="x" * (MAX_BODY - 200)))
    refused: list[SocketStream] = []
    async with http_rig() as rig, AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        rig.router.always = OK
        slow = [await stack.enter_async_context(await rig.connect()) for _ in range(AT_ONCE + 1)]
        seen = anyio.Event()

        async def see_refusal(stream: SocketStream) -> None:
            answer = await stream.receive()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1" in answer
            refused.append(stream)
            seen.set()

        with anyio.fail_after(5):
            async with anyio.create_task_group() as seeing:
                for stream in slow:
                    await stream.send(whole[:-LAST])
                    seeing.start_soon(see_refusal, stream)
                await seen.wait()
                seeing.cancel_scope.cancel()
            assert len(refused) == 1
            for stream in set(slow) - set(refused):
                await stream.send(whole[-LAST:])
                assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
        assert len(rig.router.seen) == AT_ONCE
        tasks.cancel_scope.cancel()


ALICE, BOB = Owner("alice"), Owner("bob")


def test_one_owner_holds_half_of_the_room_and_leaves_the_rest_to_others() -> None:
    """SEC-003: however many bodies are sent but for their last byte."""
    bodies = Bodies(100, 1.0, has_others=True)
    bodies.place(ALICE, "peer").grow(400)
    with pytest.raises(LimitReached, match="of yours"):
        bodies.place(ALICE, "another peer").grow(1)
    bodies.place(BOB, "peer").grow(400)


def test_made_up_owners_of_one_peer_hold_half_of_the_room() -> None:
    bodies = Bodies(100, 1.0, has_others=True, knows_owners=False)
    bodies.place(Owner("made up"), "peer").grow(200)
    with pytest.raises(LimitReached):
        bodies.place(Owner("made up"), "peer").grow(1)
    bodies.place(Owner("made up, too"), "peer").grow(200)
    with pytest.raises(LimitReached):
        bodies.place(Owner("and a third"), "peer").grow(1)
    bodies.place(BOB, "another peer").grow(200)
    bodies.place(ANONYMOUS, "a third peer").grow(200)


def test_whoever_is_alone_has_all_of_the_room() -> None:
    bodies = Bodies(100, 1.0)
    bodies.place(ALICE, "peer").grow(800)
    with pytest.raises(LimitReached, match=r"8 times limits\.body"):
        bodies.place(BOB, "another peer").grow(1)


def test_a_large_body_takes_its_place_until_nobody_holds_it() -> None:
    """A task that runs may hold its arguments for hours; a small body has left when it is read."""
    bodies = Bodies(LARGE, 1.0)
    message = parse_large(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}', 9)
    assert isinstance(message, Request)
    posted = Posted(Era.MODERN, b"", (message,))
    place, small = bodies.place(ALICE, "peer"), bodies.place(ALICE, "peer")
    place.grow(LARGE + 1)
    small.grow(1)
    assert kept_with(posted, small) is None
    assert small.size == 0
    assert kept_with(posted, place) is None
    params = message.known
    del message, posted
    assert place.size == LARGE + 1
    assert params is not None
    del params
    assert place.size == 0


def test_a_large_body_that_nobody_holds_apart_leaves_with_its_request() -> None:
    bodies = Bodies(LARGE, 1.0)
    place = bodies.place(ALICE, "peer")
    place.grow(LARGE + 1)
    message = parse_large(b'{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}', 9)
    assert kept_with(Posted(Era.LEGACY, b"", (message,)), place) is place
