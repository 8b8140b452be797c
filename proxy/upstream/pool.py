"""Sessions with the upstream, kept apart by owner and declared capabilities, shared where that is safe.

Above: `routing`, which takes a `Lease` for each call and each listen stream. Below: `session`, one in
each `slot`. The pool's task group owns every session; callers only wait for them. Contract section 2 (who
shares a process) and section 3 ("Upstream sessions").
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock, Pulse
from proxy.eras.capabilities import ClientCapabilities
from proxy.errors import (
    InternalError,
    NoCredential,
    ProxyError,
    SessionLost,
    UpstreamClosed,
    UpstreamRefused,
    UpstreamUnavailable,
    only_fault,
)
from proxy.logs import get_logger
from proxy.metrics import UNSERVED, Metrics
from proxy.owners import Owner
from proxy.upstream.back_off import BackOff
from proxy.upstream.base import StartListener
from proxy.upstream.health import Health
from proxy.upstream.session import ChangeListener, LegacySession
from proxy.upstream.slot import Key, Slot, Waiter

SWEEP_S: Final = 5.0  # how exact the end of idle sessions is

SHUTTING_DOWN: Final = "the proxy is shutting down"

log = get_logger()


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Seconds; None means no limit. `isolate_anonymous`: strangers share this proxy (an open bind)."""

    processes: int = 16
    share: bool = False
    calls_per_process: int | None = None
    isolate_anonymous: bool = False
    wait_s: float = 600.0
    idle_timeout_s: float | None = 600.0
    max_sessions: int = 256
    max_sessions_per_owner: int = 256


MakeSession = Callable[[Owner, ClientCapabilities, ChangeListener], LegacySession]


class Pool:
    """Use `lease`; `run` must be running. `repr` tells the state."""

    def __init__(
        self,
        make_session: MakeSession,
        settings: PoolSettings,
        clock: Clock,
        metrics: Metrics = UNSERVED,
        health: StartListener | None = None,
    ) -> None:
        self._health = health if health is not None else Health(clock)
        self._metrics = metrics
        self._make_session = make_session
        self._settings = settings
        self._clock = clock
        self._slots: list[Slot] = []
        self._waiters: list[Waiter] = []  # first come, first served
        self._back_off = BackOff(clock)
        self._left = Pulse()  # a slot is off the list
        self._listeners: dict[Owner, list[ChangeListener]] = {}
        self._closing = False
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: StartStatus[None]) -> None:
        """Own the sessions until cancelled or until `close` has ended them all."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._sweep)
            task_status.started()

    async def close(self) -> None:
        """End every session in an orderly way; who waits for one, and new leases, are refused."""
        self._closing = True
        self._refuse_waiters(self._waiters, UpstreamUnavailable(SHUTTING_DOWN))
        for slot in self._slots:
            slot.end()
        while self._slots:
            await self._left.event.wait()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    @property
    def sessions(self) -> int:
        """How many there are, those that start or end among them."""
        return len(self._slots)

    @property
    def waiting(self) -> int:
        """How many calls and streams wait for a place."""
        return len(self._waiters)

    def __repr__(self) -> str:
        calls = sum(s.calls for s in self._slots)
        return f"<Pool {len(self._slots)} sessions, {calls} calls, {len(self._waiters)} waiting>"

    # -- leases -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(
        self,
        owner: Owner,
        capabilities: ClientCapabilities,
        *,
        for_call: bool = True,
        on_starting: Callable[[], None] | None = None,
    ) -> AsyncIterator[LegacySession]:
        """A live session for this owner and these capabilities, as long as the context lasts.

        Raises UpstreamError if none can be started, or none is free within `wait_s`. A lease that is not
        for a call (a listen stream) keeps the session alive without filling its capacity. `on_starting` is
        called if a session has to be started first, or is starting.
        """
        slot = await self._place(Key.of(owner, capabilities), for_call)
        try:
            if not slot.ready.is_set():
                if on_starting is not None:
                    on_starting()
                await slot.ready.wait()
                if slot.fault is not None:
                    raise slot.fault.with_traceback(None)
            elif slot.error is not None:  # between our getting the place and our coming to it
                raise slot.error.with_traceback(None)
            yield slot.session
        finally:
            self._release(slot, for_call)

    def at_hand(self, owner: Owner, capabilities: ClientCapabilities) -> LegacySession | None:
        """A live session of this owner and these capabilities, if there is one now; not leased."""
        key = Key.of(owner, capabilities)
        return next((s.session for s in self._slots if s.key == key and s.session.is_alive), None)

    async def _place(self, key: Key, for_call: bool) -> Slot:
        """A slot, held for the caller; its session may still have to start, which has bounds of its own."""
        if self._closing:
            raise UpstreamUnavailable(SHUTTING_DOWN)
        waiter = Waiter(key, for_call)
        self._waiters.append(waiter)
        self._serve_waiters()
        try:
            await self._clock.wait(waiter.told, self._settings.wait_s)
        except BaseException:
            if waiter.slot is not None:
                self._release(waiter.slot, for_call)
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        if waiter.error is not None:
            raise waiter.error.with_traceback(None)  # one error for all that waited
        if waiter.slot is None:
            raise UpstreamUnavailable(self._busy_text(key))
        return waiter.slot

    def _busy_text(self, key: Key) -> str:
        mine = [s for s in self._slots if s.key == key]
        return (
            f"no upstream process became free within {self._settings.wait_s:g} s: {len(mine)} are in use "
            f"for this client, {len(self._slots)} in all, among them those whose tasks wait for their users"
        )

    def _serve_waiters(self) -> None:
        """Give those who wait what is free or may be opened. To be called after every change."""
        nothing_for: set[tuple[Key, bool]] = set()
        for waiter in list(self._waiters):
            wish = (waiter.key, waiter.for_call)
            if wish in nothing_for:
                continue
            slot = self._choose(*wish) or self._open(waiter.key)
            if slot is None:
                nothing_for.add(wish)
                continue
            slot.holds += 1
            slot.calls += waiter.for_call
            waiter.slot = slot
            self._waiters.remove(waiter)
            waiter.told.set()

    def _refuse_waiters(self, waiters: list[Waiter], error: ProxyError) -> None:
        for waiter in list(waiters):
            waiter.error = error
            self._waiters.remove(waiter)
            waiter.told.set()

    def _release(self, slot: Slot, for_call: bool) -> None:
        slot.holds -= 1
        slot.calls -= for_call
        slot.idle_since = self._clock.monotonic()
        self._end_if_lost(slot)
        self._serve_waiters()

    def _end_if_lost(self, slot: Slot) -> None:
        """A session that the upstream no longer knows (404) ends with the last call on it."""
        if slot.leaving:
            slot.session.close()

    def _capacity(self, key: Key) -> int | None:
        """How many calls one session of this key may carry at a time."""
        apart = self._settings.isolate_anonymous and key.owner.is_anonymous and key.capabilities.may_be_asked
        return self._settings.calls_per_process or (1 if apart and not self._settings.share else None)

    def _choose(self, key: Key, for_call: bool) -> Slot | None:
        """The least busy of those that have room, started ones first."""
        capacity = self._capacity(key) if for_call else None
        free = (s for s in self._slots if s.key == key and s.usable)
        fitting = [s for s in free if capacity is None or s.calls < capacity]
        return min(fitting, key=lambda s: (not s.ready.is_set(), s.calls), default=None)

    def _open(self, key: Key) -> Slot | None:
        """A further session, if the bounds allow one."""
        if sum(s.key == key and s.usable for s in self._slots) >= self._settings.processes:
            return None
        own = [s for s in self._slots if s.key.owner == key.owner]
        if len(own) >= self._settings.max_sessions_per_owner:
            self._make_room(own)
            return None
        if len(self._slots) >= self._settings.max_sessions:
            self._make_room(self._slots)
            return None
        assert self._tasks is not None  # `run` is running

        def changed(method: str, params: bytes | None) -> None:
            self._publish(key.owner, method, params)

        slot = Slot(key, self._make_session(key.owner, key.capabilities, changed))
        self._slots.append(slot)
        self._tasks.start_soon(self._keep, slot)
        return slot

    def _make_room(self, among: list[Slot]) -> None:
        """End the session that was idle for longest, one at a time; its end serves those who wait."""
        idle = [s for s in among if s.idle]
        if idle and not any(s.leaving for s in among):
            min(idle, key=lambda s: s.idle_since).end()

    # -- sessions -----------------------------------------------------------------------------------

    async def _keep(self, slot: Slot) -> None:
        """The life of one session, from back-off to end. One handshake, however many calls wait for it."""
        try:
            await self._live(slot)
        except ProxyError as exc:
            self._note_failed_start(slot, exc)
        except Exception:  # a fault of ours in one session must not end the others
            log.exception("session_failed")
            self._note_failed_start(slot, InternalError())
        finally:
            self._metrics.session_ended(slot.how_it_ended())
            slot.error = slot.error or UpstreamClosed("the upstream session has ended")
            slot.ready.set()
            self._slots.remove(slot)
            self._left.beat()
        self._serve_waiters()

    async def _live(self, slot: Slot) -> None:
        """Raises ProxyError if the session cannot be started."""
        if await self._clock.wait(slot.unwanted, self._back_off.pause_s(slot.key)):
            raise UpstreamUnavailable(SHUTTING_DOWN)
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(slot.session.run)
                self._health.works()
                self._metrics.session_started()
                started = slot.idle_since = self._clock.monotonic()
                slot.ready.set()
                await slot.session.wait_ended()
                self._note_end(slot, self._clock.monotonic() - started)
        except BaseExceptionGroup as group:
            raise only_fault(group) from None

    def _note_failed_start(self, slot: Slot, error: ProxyError) -> None:
        """Who waits for a place fares like those who waited for this start, unless a session lives: each
        would only try the same, one after the other, after longer and longer pauses."""
        slot.error = error
        if slot.unwanted.is_set():
            return
        log.warning("upstream_failed", reason=error.message)
        self._health.failed(error)
        if not isinstance(error, UpstreamRefused | NoCredential):  # else it is there, and wants another one
            self._back_off.failed(slot.key)
        if not any(s.key == slot.key and s.session.is_alive for s in self._slots):
            self._refuse_waiters([w for w in self._waiters if w.key == slot.key], error)

    def _note_end(self, slot: Slot, lived_s: float) -> None:
        """The session takes no new calls; it may still have to be cleaned up."""
        loss = slot.session.loss
        if loss is not None and not slot.unwanted.is_set():
            log.warning("upstream_lost", reason=loss.message)
            if not isinstance(loss, SessionLost):  # a server may forget sessions as often as it likes
                self._back_off.failed(slot.key, lived_s)
        self._end_if_lost(slot)
        self._serve_waiters()

    async def _sweep(self) -> None:
        limit = self._settings.idle_timeout_s
        while True:
            await self._clock.sleep(SWEEP_S)
            now = self._clock.monotonic()
            for slot in self._slots:
                if limit is not None and slot.idle and now - slot.idle_since >= limit:
                    slot.end()
            self._back_off.forget_old()

    # -- changes ------------------------------------------------------------------------------------

    def listen(self, owner: Owner, listener: ChangeListener) -> None:
        """Tell `listener` every list change and resource update of this owner's sessions."""
        self._listeners.setdefault(owner, []).append(listener)

    def unlisten(self, owner: Owner, listener: ChangeListener) -> None:
        left = self._listeners[owner]
        left.remove(listener)
        if not left:
            del self._listeners[owner]

    def _publish(self, owner: Owner, method: str, params: bytes | None) -> None:
        for listener in list(self._listeners.get(owner, ())):
            listener(method, params)
