"""Carries the connections between the proxy and an HTTP server, and breaks them: a TCP reset at both ends."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Final

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskStatus

from tests.faults.ports import lasting_port

_RESET_AT_CLOSE: Final = struct.pack(
    "ii", 1, 0
)  # SO_LINGER with no time: what is unsent is dropped, RST sent
_BROKEN: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


class Relay:
    """Listens on `port`, connects to `target`. A target that is not there is a reset, too."""

    def __init__(self, target: int) -> None:
        self.port = lasting_port()
        self._target = target
        self._open: list[_Pair] = []

    def __repr__(self) -> str:
        return f"<Relay {self.port} to {self._target}, {len(self._open)} connections>"

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self.port) as listener:
            task_status.started()
            await listener.serve(self._serve)

    def reset(self, part: float) -> None:
        """Break this share of the connections, the oldest first; at least one."""
        for pair in self._open[: max(1, round(len(self._open) * part))]:
            pair.scope.cancel()

    async def _serve(self, near: SocketStream) -> None:
        try:
            far = await anyio.connect_tcp("127.0.0.1", self._target)
        except OSError:
            await _reset(near)
            return
        pair = _Pair(near, far)
        self._open.append(pair)
        try:
            await pair.carry()
        finally:
            self._open.remove(pair)


class _Pair:
    """One connection of each side. Carried until one ends; what ends in a reset there ends so here."""

    def __init__(self, near: SocketStream, far: SocketStream) -> None:
        self.scope = anyio.CancelScope()
        self._near = near
        self._far = far
        self._clean = False

    async def carry(self) -> None:
        try:
            with self.scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._copy, self._near, self._far, group.cancel_scope)
                    group.start_soon(self._copy, self._far, self._near, group.cancel_scope)
        finally:
            for stream in (self._near, self._far):
                with anyio.CancelScope(shield=True):
                    await (stream.aclose() if self._clean else _reset(stream))

    async def _copy(self, source: SocketStream, sink: SocketStream, both: anyio.CancelScope) -> None:
        try:
            async for chunk in source:
                await sink.send(chunk)
            self._clean = True
        except _BROKEN:
            pass
        both.cancel()


async def _reset(stream: SocketStream) -> None:
    with suppress(OSError):
        stream.extra(SocketAttribute.raw_socket).setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE
        )
    await anyio.aclose_forcefully(stream)
