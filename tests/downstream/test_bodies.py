"""Bodies on their way share room, whoever sends them. The bounds of one body: `test_http.py`."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
from anyio.abc import SocketStream

from proxy.downstream.bodies import AT_ONCE
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
