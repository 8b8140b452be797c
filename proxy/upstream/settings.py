"""What a session is told once for all its calls: the log level, and the resources that are watched.

Above: `session`. Below: its `ask`, which has a bound of its own. A server that leaves a setting
unanswered must not hold up whoever asked for it; so waiting for one's turn has the same bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

import anyio

from proxy.errors import UpstreamError, UpstreamProtocolError, UpstreamTimeout
from proxy.logs import get_logger
from proxy.protocol import names
from proxy.protocol.envelope import dumps
from proxy.upstream.base import Failure, Outcome

TURN_TIMEOUT_S: Final = 10.0  # as long as one unanswered request of another caller takes

Ask: TypeAlias = Callable[[str, bytes | None], Awaitable[Outcome]]
"""A request of our own; raises UpstreamError, also where the upstream does not answer in time."""

log = get_logger()


@asynccontextmanager
async def _turn(lock: anyio.Lock) -> AsyncIterator[None]:
    """Settings are told one at a time. Raises TimeoutError if one's turn does not come."""
    with anyio.fail_after(TURN_TIMEOUT_S):
        await lock.acquire()
    try:
        yield
    finally:
        lock.release()


class LogLevel:
    """The level that the upstream was last told."""

    def __init__(self, ask: Ask, name: str) -> None:
        self._ask = ask
        self._name = name
        self._lock = anyio.Lock()
        self._told: str | None = None

    async def ensure(self, level: str) -> None:
        """Have the upstream log from `level` on. What it says to that is not the caller's matter, and a
        server that refuses or ignores the level is not told the same one again."""
        with suppress(TimeoutError):
            async with _turn(self._lock):
                if level != self._told:
                    await self._tell(level)

    async def _tell(self, level: str) -> None:
        self._told = None  # if this is cancelled, nobody knows
        try:
            outcome = await self._ask(names.LOGGING_SET_LEVEL, dumps({"level": level}))
            fault = "refused" if isinstance(outcome, Failure) else None
        except UpstreamError as exc:
            fault = exc.message
        self._told = level
        if fault is not None:
            log.warning("upstream_setting_failed", upstream=self._name, setting="level", reason=fault)


class WatchedResources:
    """Who listens is counted by URI; the upstream is subscribed while somebody does (SUB-008, SUB-010)."""

    def __init__(self, ask: Ask, name: str) -> None:
        self._ask = ask
        self._name = name
        self._lock = anyio.Lock()
        self._listeners: Counter[str] = Counter()
        self._subscribed: set[str] = set()

    async def watch(self, uri: str) -> None:
        """Raises UpstreamError if the upstream is not subscribed; then this listener does not count."""
        self._listeners[uri] += 1
        try:
            await self._bring_in_line(uri)
        except BaseException:
            self._leave(uri)
            raise

    async def unwatch(self, uri: str) -> None:
        """To be called once for each `watch` that returned. Cannot fail."""
        self._leave(uri)
        with suppress(UpstreamError):
            await self._bring_in_line(uri)

    def _leave(self, uri: str) -> None:
        self._listeners[uri] -= 1
        if not self._listeners[uri]:
            del self._listeners[uri]

    async def _bring_in_line(self, uri: str) -> None:
        try:
            async with _turn(self._lock):
                if uri in self._listeners and uri not in self._subscribed:
                    await self._subscribe(uri)
                elif uri not in self._listeners and uri in self._subscribed:
                    self._subscribed.discard(uri)  # whatever comes of it: the next one asks anew
                    await self._ask(names.RESOURCES_UNSUBSCRIBE, dumps({"uri": uri}))
        except TimeoutError:
            raise UpstreamTimeout(
                f"upstream '{self._name}' leaves subscriptions unanswered; this one was not sent"
            ) from None

    async def _subscribe(self, uri: str) -> None:
        outcome = await self._ask(names.RESOURCES_SUBSCRIBE, dumps({"uri": uri}))
        if isinstance(outcome, Failure):
            raise UpstreamProtocolError(f"upstream '{self._name}' refused to subscribe to a resource")
        self._subscribed.add(uri)
