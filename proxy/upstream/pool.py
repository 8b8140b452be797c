"""Sessions with the upstream, kept apart by owner and declared capabilities, shared where that is safe.

Above: `routing`, which takes a `Lease` for each call and each listen stream. Below: `session`. The pool's
task group owns every session; callers only wait for them. Contract section 2 (who shares a process)
and section 3 ("Upstream sessions").
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock
from proxy.eras.capabilities import ClientCapabilities
from proxy.errors import ProxyError, UpstreamClosed, UpstreamError, UpstreamUnavailable, only_fault
from proxy.logs import get_logger
from proxy.owners import Owner
from proxy.upstream.session import ChangeListener, LegacySession

BACK_OFF_FIRST_S: Final = 0.5  # before the second start in a row that fails
BACK_OFF_LAST_S: Final = 30.0
STABLE_S: Final = 60.0  # a session that lived this long starts a new count of failures
SWEEP_S: Final = 5.0  # how exact the end of idle sessions is

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


@dataclass(frozen=True, slots=True)
class _Key:
    owner: Owner
    capabilities: ClientCapabilities


@dataclass(eq=False)
class _Slot:
    """One session and who uses it. `holds` keep it alive, `calls` fill its capacity."""

    key: _Key
    session: LegacySession
    ready: anyio.Event = field(default_factory=anyio.Event)
    error: ProxyError | None = None
    holds: int = 0
    calls: int = 0
    idle_since: float = 0.0
    ending: bool = False

    def end(self) -> None:
        """We no longer want it; that is no failure."""
        self.ending = True
        self.session.close()

    @property
    def usable(self) -> bool:
        return self.session.is_alive if self.ready.is_set() else True


@dataclass(slots=True)
class _Failures:
    """Starts that failed or sessions that died young, in a row."""

    count: int = 0
    last: float = 0.0

    @property
    def delay_s(self) -> float:
        return 0.0 if self.count < 2 else min(BACK_OFF_LAST_S, BACK_OFF_FIRST_S * 2.0 ** (self.count - 2))


MakeSession = Callable[[Owner, ClientCapabilities, ChangeListener], LegacySession]


class Pool:
    """Use `lease`; `run` must be running. `repr` tells the state."""

    def __init__(self, make_session: MakeSession, settings: PoolSettings, clock: Clock) -> None:
        self._make_session = make_session
        self._settings = settings
        self._clock = clock
        self._slots: list[_Slot] = []
        self._failures: dict[_Key, _Failures] = {}
        self._freed = anyio.Event()
        self._listeners: dict[Owner, list[ChangeListener]] = {}
        self._closing = False
        self.last_fault: str | None = None  # of the last start, None if that succeeded
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: StartStatus[None]) -> None:
        """Own the sessions until cancelled or until `close` has ended them all."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._sweep)
            task_status.started()

    async def close(self) -> None:
        """End every session in an orderly way; new leases are refused from now on."""
        self._closing = True
        for slot in self._slots:
            slot.end()
        while self._slots:
            await self._changed()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def __repr__(self) -> str:
        calls = sum(s.calls for s in self._slots)
        return f"<Pool {len(self._slots)} sessions, {calls} calls>"

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
        key = _key(owner, capabilities)
        slot = await self._acquire(key, for_call, on_starting)
        try:
            yield slot.session
        finally:
            self._release(slot, for_call)

    def at_hand(self, owner: Owner, capabilities: ClientCapabilities) -> LegacySession | None:
        """A live session of this owner and these capabilities, if there is one now; not leased."""
        key = _key(owner, capabilities)
        return next((s.session for s in self._slots if s.key == key and s.session.is_alive), None)

    async def _acquire(self, key: _Key, for_call: bool, on_starting: Callable[[], None] | None) -> _Slot:
        with anyio.move_on_after(self._settings.wait_s):
            while True:
                if self._closing:
                    raise UpstreamUnavailable("the proxy is shutting down")
                slot = self._choose(key, for_call) or self._open(key)
                if slot is None:
                    await self._changed()
                    continue
                self._hold(slot, for_call)
                if on_starting is not None and not slot.ready.is_set():
                    on_starting()
                try:
                    await slot.ready.wait()
                except BaseException:
                    self._release(slot, for_call)
                    raise
                if slot.error is None and slot.session.is_alive:
                    return slot
                self._release(slot, for_call)
                if slot.error is not None:
                    raise slot.error
        raise UpstreamUnavailable(self._busy_text(key))

    def _busy_text(self, key: _Key) -> str:
        mine = [s for s in self._slots if s.key == key]
        return (
            f"no upstream process became free within {self._settings.wait_s:g} s: {len(mine)} are in use "
            f"for this client, {len(self._slots)} in all, among them those whose tasks wait for their users"
        )

    def _capacity(self, key: _Key) -> int | None:
        """How many calls one session of this key may carry at a time."""
        apart = self._settings.isolate_anonymous and key.owner.is_anonymous and key.capabilities.may_be_asked
        return self._settings.calls_per_process or (1 if apart and not self._settings.share else None)

    def _choose(self, key: _Key, for_call: bool) -> _Slot | None:
        capacity = self._capacity(key) if for_call else None
        fitting = (s for s in self._slots if s.key == key and s.usable and s.error is None)
        free = [s for s in fitting if capacity is None or s.calls < capacity]
        return min(free, key=lambda s: s.calls, default=None)

    def _open(self, key: _Key) -> _Slot | None:
        """A further session, if the bounds allow one; an idle one of somebody else may have to go first."""
        if sum(s.key == key and s.usable for s in self._slots) >= self._settings.processes:
            return None
        if len(self._slots) >= self._settings.max_sessions:
            idle = [s for s in self._slots if s.holds == 0]
            if idle:
                min(idle, key=lambda s: s.idle_since).end()
            return None
        assert self._tasks is not None  # `run` is running

        def changed(method: str, params: bytes | None) -> None:
            self._publish(key.owner, method, params)

        slot = _Slot(key, self._make_session(key.owner, key.capabilities, changed))
        self._slots.append(slot)
        self._tasks.start_soon(self._keep, slot)
        return slot

    def _hold(self, slot: _Slot, for_call: bool) -> None:
        slot.holds += 1
        slot.calls += for_call

    def _release(self, slot: _Slot, for_call: bool) -> None:
        slot.holds -= 1
        slot.calls -= for_call
        slot.idle_since = self._clock.monotonic()
        if slot.holds == 0 and slot.ready.is_set() and not slot.session.is_alive:
            slot.end()  # lost upstream (404), and the last call on it is over
        self._notify()

    # -- sessions -----------------------------------------------------------------------------------

    async def _keep(self, slot: _Slot) -> None:
        """The life of one session, from back-off to end. One handshake, however many calls wait for it."""
        failures = self._failures.setdefault(slot.key, _Failures())
        started = self._clock.monotonic()
        try:
            await self._clock.sleep(failures.delay_s)
            if self._closing:
                raise UpstreamUnavailable("the proxy is shutting down")
            async with anyio.create_task_group() as tasks:
                await tasks.start(slot.session.run)
                started = self._clock.monotonic()
                slot.idle_since = started
                self.last_fault = None
                slot.ready.set()
        except BaseExceptionGroup as group:
            self._note_end(slot, only_fault(group))
        except UpstreamError as exc:
            self._note_end(slot, exc)
        finally:
            failures.last = self._clock.monotonic()
            if not slot.ending:
                failures.count = 1 if failures.last - started >= STABLE_S else failures.count + 1
            slot.error = slot.error or UpstreamClosed("the upstream session has ended")
            slot.ready.set()
            self._slots.remove(slot)
            self._notify()

    def _note_end(self, slot: _Slot, error: ProxyError) -> None:
        log.warning("upstream_failed", reason=error.message)
        if not slot.ready.is_set():
            slot.error = error
            self.last_fault = error.message

    async def _sweep(self) -> None:
        limit = self._settings.idle_timeout_s
        while True:
            await self._clock.sleep(SWEEP_S)
            now = self._clock.monotonic()
            for slot in self._slots:
                idle_s = now - slot.idle_since
                if limit is not None and slot.holds == 0 and slot.ready.is_set() and idle_s >= limit:
                    slot.end()
            for key, failures in list(self._failures.items()):
                if failures.last and now - failures.last >= STABLE_S:
                    del self._failures[key]

    async def _changed(self) -> None:
        await self._freed.wait()

    def _notify(self) -> None:
        self._freed.set()
        self._freed = anyio.Event()

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


def _key(owner: Owner, capabilities: ClientCapabilities) -> _Key:
    """Tasks are between the client and us: whether they were declared makes no other session."""
    return _Key(owner, ClientCapabilities(capabilities.offered, tasks=False))
