"""What goes through the relay is what was said; what it breaks ends in a reset on both sides."""

from __future__ import annotations

import anyio
import pytest
from anyio.abc import SocketStream

from tests.faults.relay import Relay

pytestmark = pytest.mark.anyio


async def test_bytes_pass_both_ways_and_a_reset_reaches_both_ends() -> None:
    ended: list[str] = []
    done = anyio.Event()

    async def echo(stream: SocketStream) -> None:
        try:
            async for chunk in stream:
                await stream.send(chunk)
            ended.append("by an orderly end")
        except anyio.BrokenResourceError:
            ended.append("by a reset")
        done.set()

    with anyio.fail_after(5):
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as server,
            anyio.create_task_group() as group,
        ):
            port = server.extra(anyio.abc.SocketAttribute.local_port)
            group.start_soon(server.serve, echo)
            relay = Relay(port)
            await group.start(relay.run)
            async with await anyio.connect_tcp("127.0.0.1", relay.port) as near:
                await near.send(b"through")
                assert await near.receive() == b"through"
                relay.reset(1.0)
                with pytest.raises(anyio.BrokenResourceError):
                    await near.receive()
                await done.wait()
            group.cancel_scope.cancel()
    assert ended == ["by a reset"]


async def test_a_target_that_is_not_there_is_a_reset() -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            relay = Relay(1)
            await group.start(relay.run)
            async with await anyio.connect_tcp("127.0.0.1", relay.port) as near:
                with pytest.raises(anyio.BrokenResourceError):
                    await near.receive()
            group.cancel_scope.cancel()
