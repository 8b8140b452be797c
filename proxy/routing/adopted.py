"""A legacy client's session with an HTTP server, as the calls of our tasks use it: adopted, never ended.

Above: `http_tasks`. Below: a `LegacySession` over the client's own session id, made when the first call needs
it and given up after the last one; the session itself stays the client's. It lives in the runner's task
group, for calls outlive the requests that asked for them. Contract section 5.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from proxy.clock import Pulse
from proxy.eras.attribution import InFlight
from proxy.errors import ProxyError, SessionLost, UpstreamClosed, UpstreamRefused, only_fault
from proxy.upstream.session import LegacySession

LAST_WORDS_S: Final = 6.0  # a little more than one of them may take


class CallInFlight(InFlight, Protocol):
    """`begun` is monotonic, `id` ours, and the progress token, too."""

    @property
    def begun(self) -> float: ...

    @property
    def id(self) -> int: ...


Spawn = Callable[..., None]
"""Runs an async function, with its arguments, beyond the request that asks for it."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """A session that has not been started. `listen` has it keep a GET stream of its own, or give it up."""

    session: LegacySession
    listen: Callable[[bool], None]


class Adopted:
    """Use `lease`. While the client has no GET stream, and calls of ours run, the session keeps one."""

    def __init__(self, make: Callable[[], Adoption], spawn: Spawn) -> None:
        self._make = make
        self._spawn = spawn
        self._turn = anyio.Lock()
        self._adoption: Adoption | None = None
        self._outdated: list[LegacySession] = []  # calls that began there may still be answered
        self._client_listens = False
        self._holds = 0
        self._giving_up = 0
        self._left = Pulse()
        self.is_accepted = False  # the upstream's last word on a message of this owner here was no refusal

    @property
    def in_use(self) -> bool:
        return self._holds > 0

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[LegacySession]:
        """The session, as long as the context lasts. Raises ProxyError if it cannot be had."""
        self._holds += 1
        try:
            yield await self._ready()
        except (SessionLost, UpstreamRefused):
            self.is_accepted = False
            raise
        finally:
            self._holds -= 1
            if not self._holds:
                self._give_up_all()
            self._left.beat()

    def _give_up_all(self) -> None:
        sessions, self._outdated = self._outdated, []
        if self._adoption is not None:
            sessions.append(self._adoption.session)
            self._adoption = None
        for session in sessions:
            self._giving_up += 1
            self._spawn(self._give_up, session)

    async def _give_up(self, session: LegacySession) -> None:
        """Once its last words are out: one may be that a call is cancelled."""
        try:
            with anyio.move_on_after(LAST_WORDS_S):
                await session.wait_delivered()
        finally:
            session.close()
            self._giving_up -= 1
            self._left.beat()

    async def wait_unused(self) -> None:
        """Until no call of ours runs here, and nothing more is said of any."""
        while self._holds or self._giving_up:
            await self._left.event.wait()

    def client_listens(self, listens: bool) -> bool:
        """The client has a GET stream from now on, or has none; servers have one for each session at most.
        Whether one of ours had to give way."""
        before, self._client_listens = self._client_listens, listens
        if self._adoption is not None and before is not listens:
            self._adoption.listen(not listens)
        return self._adoption is not None and listens and not before

    @property
    def calls(self) -> Sequence[CallInFlight]:
        """Our calls in flight, oldest first."""
        return [] if self._adoption is None else self._adoption.session.calls

    def received(self, message: bytes) -> None:
        """Something on the session's GET stream that concerns our calls."""
        if self._adoption is not None:
            self._adoption.session.received(message, None)

    async def _ready(self) -> LegacySession:
        async with self._turn:
            if self._adoption is not None and not self._adoption.session.is_alive:
                self._outdated.append(self._adoption.session)
                self._adoption = None
            if self._adoption is None:
                adoption = self._make()
                await self._started(adoption.session)
                adoption.listen(not self._client_listens)
                self._adoption = adoption
            return self._adoption.session

    async def _started(self, session: LegacySession) -> None:
        started, faults = anyio.Event(), list[ProxyError]()
        self._spawn(_keep, session, started, faults)
        try:
            await started.wait()
        except anyio.get_cancelled_exc_class():
            session.close()  # nobody else knows of it
            raise
        if faults:
            raise faults[0]
        if not session.is_alive:
            raise session.loss or UpstreamClosed("the upstream session has ended")

    def __repr__(self) -> str:
        return f"<Adopted {self._adoption and self._adoption.session}, {self._holds} held>"


async def _keep(session: LegacySession, started: anyio.Event, faults: list[ProxyError]) -> None:
    """The session's life. `started` is set also where it could not be; then there is a fault."""
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(session.run)
            started.set()
    except* ProxyError as group:
        faults.append(only_fault(group))
    finally:
        if not started.is_set() and not faults:
            faults.append(UpstreamClosed("the upstream session has ended"))
        started.set()
