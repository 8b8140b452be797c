"""What a transport told, and waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from anyio.lowlevel import checkpoint

from proxy.errors import UpstreamError
from proxy.upstream.base import Position, StreamPosition, WaitingRound


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(5):
        while not condition():
            await checkpoint()


@dataclass
class Told:
    """A receiver that remembers."""

    received_: list[tuple[bytes, int | None]] = field(default_factory=list)
    losses: list[tuple[int | None, UpstreamError]] = field(default_factory=list)
    positions: list[StreamPosition] = field(default_factory=list)
    waiting: list[WaitingRound | None] = field(default_factory=list)
    on_received: Callable[[bytes, int | None], None] | None = None

    def received(self, message: bytes, call: int | None) -> None:
        self.received_.append((message, call))
        if self.on_received is not None:
            self.on_received(message, call)

    def lost(self, call: int | None, error: UpstreamError) -> None:
        assert not any(lost is None for lost, _ in self.losses), "the last thing was said already"
        self.losses.append((call, error))

    def moved(self, call: int, position: Position) -> None:
        if isinstance(position, StreamPosition):
            self.positions.append(position)
        else:
            self.waiting.append(position)

    def of(self, call: int | None) -> list[bytes]:
        return [message for message, about in self.received_ if about == call]

    def loss_of(self, call: int | None) -> UpstreamError | None:
        return next((error for lost, error in self.losses if lost == call), None)
