"""Something in the middle that cuts a connection once nothing has come from the server for a while.

Load balancers do; field report F03.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio.abc import ByteReceiveStream, ByteStream, SocketAttribute

GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError)


@asynccontextmanager
async def idle_relay(port: int, patience_s: float) -> AsyncIterator[int]:
    """A port that leads to `port` of this machine."""

    async def serve(client: ByteStream) -> None:
        with suppress(*GONE):
            async with (
                client,
                await anyio.connect_tcp("127.0.0.1", port) as server,
                anyio.create_task_group() as both,
            ):
                both.start_soon(_pass_on, client, server, float("inf"))
                await _pass_on(server, client, patience_s)
                both.cancel_scope.cancel()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as connections:
        connections.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        connections.cancel_scope.cancel()


async def _pass_on(source: ByteReceiveStream, to: ByteStream, patience_s: float) -> None:
    """Until the source has ended, or been silent for too long."""
    while True:
        chunk = b""
        with anyio.move_on_after(patience_s), suppress(anyio.EndOfStream, *GONE):
            chunk = await source.receive()
        if not chunk:
            return
        await to.send(chunk)
