"""Who gets which session, who waits, and what happens when sessions fail, die, idle or must go.

The servers behind are scripts; time is moved by hand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from proxy.eras.capabilities import ClientCapabilities
from proxy.errors import (
    NoCredential,
    ProxyError,
    ServerGone,
    SessionLost,
    UpstreamClosed,
    UpstreamError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from proxy.metrics import Metrics
from proxy.owners import ANONYMOUS, Owner
from proxy.upstream.back_off import STABLE_S
from proxy.upstream.base import NO_HEADERS, Headers, Receiver
from proxy.upstream.health import OK, Health
from proxy.upstream.inbox import ChangeListener
from proxy.upstream.pool import SWEEP_S, Pool, PoolSettings
from proxy.upstream.session import LegacySession
from tests.manual_clock import ManualClock
from tests.scrape import Scraped
from tests.upstream.fake_transport import (
    FakeTransport,
    Listener,
    Sent,
    capabilities,
    initialize_result,
    session_over,
    settle,
    until,
)

pytestmark = pytest.mark.anyio

ALICE, BOB, CAROL = Owner("alice"), Owner("bob"), Owner("carol")
PLAIN, ASKABLE = capabilities(), capabilities({"elicitation": {}})
DIED = UpstreamClosed("upstream 'fake' exited")


@dataclass(eq=False)
class Server(FakeTransport):
    """Shakes hands by itself, unless `silent`; `fault` is what initialize meets instead, `bug` what
    connecting raises, `dies_on` the message of ours that it does not survive."""

    owner: Owner = ANONYMOUS
    silent: bool = False
    fault: UpstreamError | None = None
    bug: Exception | None = None
    dies_on: str | None = None

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        if self.bug is not None:
            raise self.bug
        await super().run(receiver, task_status=task_status)

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        await super().send(message, call=call)
        last = self.sent[-1]
        if last.method == "initialize" and not self.silent:
            if self.fault is not None:
                self.lose(last.id, self.fault)
            else:
                self.answer(last, initialize_result())
        if last.method == self.dies_on:
            self.lose_all(DIED)


@dataclass(eq=False)
class Holder:
    """Somebody who has, or waits for, a session of the pool."""

    owner: Owner
    session: LegacySession | None = None
    error: ProxyError | None = None
    starting: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    leave: anyio.Event = field(default_factory=anyio.Event)
    done: anyio.Event = field(default_factory=anyio.Event)

    @property
    def waits(self) -> bool:
        return self.session is None and not self.done.is_set()

    async def got(self) -> LegacySession:
        await until(lambda: self.session is not None or self.done.is_set())
        assert self.session is not None, self.error
        return self.session

    async def failed(self) -> ProxyError:
        await until(self.done.is_set)
        assert self.error is not None
        return self.error

    async def go(self) -> None:
        self.leave.set()
        await until(self.done.is_set)


Prepare = Callable[[Server], None]
"""Makes a server what the test wants, before its session is begun."""


@dataclass
class Bench:
    """A running pool, and the servers of its sessions."""

    tasks: TaskGroup
    settings: PoolSettings
    prepare: Prepare
    clock: ManualClock = field(default_factory=ManualClock)
    servers: list[Server] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.health = Health(self.clock)
        self.pool = Pool(self._make, self.settings, self.clock, self.metrics, self.health)

    def _make(self, owner: Owner, declared: ClientCapabilities, on_change: ChangeListener) -> LegacySession:
        server = Server(owner=owner)
        self.prepare(server)
        self.servers.append(server)
        return session_over(server, self.clock, on_change=on_change)

    def lease(
        self, owner: Owner = ALICE, declared: ClientCapabilities = PLAIN, *, for_call: bool = True
    ) -> Holder:
        holder = Holder(owner)

        def starting() -> None:
            holder.starting += 1

        async def hold() -> None:
            with holder.scope:
                try:
                    async with self.pool.lease(
                        owner, declared, for_call=for_call, on_starting=starting
                    ) as session:
                        holder.session = session
                        await holder.leave.wait()
                except ProxyError as exc:
                    holder.error = exc
            holder.done.set()

        self.tasks.start_soon(hold)
        return holder

    async def server(self, nth: int = 1) -> Server:
        """Of the `nth` session, once it was begun."""
        await until(lambda: len(self.servers) >= nth)
        return self.servers[nth - 1]

    @property
    def begun(self) -> int:
        return len(self.servers)


@asynccontextmanager
async def bench(prepare: Prepare = lambda server: None, **settings: Any) -> AsyncIterator[Bench]:
    """Closed in order at the end; then nothing is left."""
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            b = Bench(tasks, PoolSettings(**settings), prepare)
            await tasks.start(b.pool.run)
            yield b
            tasks.start_soon(b.pool.close)
            await settle()
            for server in b.servers:
                server.end()
            await settle()
            tasks.cancel_scope.cancel()
    assert all(server.ended for server in b.servers if server.sent)


def silent(server: Server) -> None:
    server.silent = True


def failing_with(*faults: UpstreamError | None) -> Prepare:
    """One for each session, the last one for all others."""
    left = list(faults)

    def prepare(server: Server) -> None:
        server.fault = left.pop(0) if len(left) > 1 else left[0]

    return prepare


@pytest.mark.parametrize("hops", range(16))
async def test_who_comes_while_a_start_fails_gets_no_session_that_never_lived(hops: int) -> None:
    """At whichever step of the failure."""
    async with bench(silent) as b:
        b.lease()
        server = await b.server()
        server.lose((await server.asked("initialize")).id, DIED)
        for _ in range(hops):
            await checkpoint()
        late = b.lease()
        await settle()
        assert late.session is None or late.session.info
        assert late.error is None or late.error.message == DIED.message


# ------------------------------------------------------------------------------------- who shares what


async def test_calls_of_one_owner_and_one_set_of_capabilities_share_a_session() -> None:
    async with bench() as b:
        first, second = b.lease(), b.lease()
        assert await first.got() is await second.got()
        assert b.begun == 1
        assert repr(b.pool) == "<Pool 1 sessions, 2 calls, 0 waiting>"


async def test_sessions_are_never_shared_between_owners() -> None:
    """ELIC-008."""
    async with bench() as b:
        a, c = await b.lease(ALICE).got(), await b.lease(BOB).got()
        assert a is not c
        assert [s.owner for s in b.servers] == [ALICE, BOB]


async def test_each_set_of_capabilities_has_a_session_of_its_own() -> None:
    """VER-018. Tasks are between the client and us."""
    tasks = capabilities({"extensions": {"io.modelcontextprotocol/tasks": {}}})
    async with bench() as b:
        plain = await b.lease(ALICE, PLAIN).got()
        assert await b.lease(ALICE, ASKABLE).got() is not plain
        assert await b.lease(ALICE, tasks).got() is plain


@pytest.mark.parametrize(
    ("owner", "declared", "settings", "apart"),
    [
        (ANONYMOUS, ASKABLE, {"isolate_anonymous": True}, True),
        (ANONYMOUS, ASKABLE, {"isolate_anonymous": True, "share": True}, False),
        (ANONYMOUS, PLAIN, {"isolate_anonymous": True}, False),
        (ANONYMOUS, ASKABLE, {}, False),
        (ALICE, ASKABLE, {"isolate_anonymous": True}, False),
        (ALICE, PLAIN, {"calls_per_process": 1}, True),
        (ANONYMOUS, ASKABLE, {"calls_per_process": 1, "share": True}, True),
    ],
)
async def test_who_is_kept_apart(
    owner: Owner, declared: ClientCapabilities, settings: dict[str, Any], apart: bool
) -> None:
    """Contract section 2: strangers on an open bind, where questions could reach the wrong one."""
    async with bench(**settings) as b:
        first, second = await b.lease(owner, declared).got(), await b.lease(owner, declared).got()
        assert (first is not second) is apart


async def test_a_free_session_is_used_again() -> None:
    async with bench(calls_per_process=1) as b:
        holder = b.lease()
        session = await holder.got()
        await holder.go()
        assert await b.lease().got() is session


async def test_calls_go_to_the_least_busy_session() -> None:
    async with bench(calls_per_process=3, processes=2) as b:
        holders = [b.lease() for _ in range(6)]
        sessions = [await h.got() for h in holders]
        assert [sessions.count(s) for s in sessions] == [3] * 6
        for holder in (holders[0], holders[1], holders[5]):
            await holder.go()
        assert await b.lease().got() is sessions[0]


async def test_a_session_that_is_there_goes_before_one_that_is_starting() -> None:
    async with bench(calls_per_process=2, processes=2) as b:
        first, second = b.lease(), b.lease()
        session = await first.got()
        await second.got()
        b.prepare = silent
        impatient = b.lease()
        await b.server(2)
        impatient.scope.cancel()
        await first.go()
        await until(impatient.done.is_set)
        assert await b.lease().got() is session


async def test_a_listen_stream_fills_no_capacity() -> None:
    async with bench(calls_per_process=1, processes=1) as b:
        listening = [b.lease(for_call=False) for _ in range(3)]
        call = b.lease()
        sessions = {await h.got() for h in (*listening, call)}
        assert len(sessions) == 1
        assert await b.lease(for_call=False).got() in sessions


async def test_a_session_that_is_there_is_at_hand() -> None:
    async with bench() as b:
        assert b.pool.at_hand(ALICE, PLAIN) is None
        session = await b.lease().got()
        assert b.pool.at_hand(ALICE, PLAIN) is session
        assert b.pool.at_hand(BOB, PLAIN) is None
        b.servers[0].lose_all(DIED)
        assert b.pool.at_hand(ALICE, PLAIN) is None


# ----------------------------------------------------------------------------------------- who waits


async def test_who_finds_all_processes_busy_waits_and_is_served_in_turn() -> None:
    async with bench(calls_per_process=1, processes=2) as b:
        holders = [b.lease() for _ in range(5)]
        await holders[0].got()
        await holders[1].got()
        for nth in (2, 3, 4):
            await settle()
            assert [h.waits for h in holders[2:]] == [n >= nth for n in (2, 3, 4)]
            await holders[nth - 2].go()
            await holders[nth].got()
        assert b.begun == 2


async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    """The one who leaves comes back in the same breath."""
    async with bench(calls_per_process=1, processes=1) as b:
        order: list[str] = []

        async def work(name: str, times: int) -> None:
            for _ in range(times):
                async with b.pool.lease(ALICE, PLAIN):
                    order.append(name)
                    await settle()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, "greedy", 3)
            await settle()
            tasks.start_soon(work, "patient", 1)
        assert order == ["greedy", "patient", "greedy", "greedy"]


async def test_who_waits_and_goes_away_is_passed_over() -> None:
    async with bench(calls_per_process=1, processes=1) as b:
        first, gone, last = b.lease(), b.lease(), b.lease()
        await first.got()
        await settle()
        gone.scope.cancel()
        await until(gone.done.is_set)
        await first.go()
        await last.got()


async def test_who_goes_away_in_the_moment_of_being_served_leaves_the_place_to_the_next() -> None:
    async with bench(calls_per_process=1, processes=1) as b:
        first, gone, last = b.lease(), b.lease(), b.lease()
        await first.got()
        await settle()
        first.leave.set()
        gone.scope.cancel()
        await last.got()
        assert gone.session is None
        await last.go()
        assert "0 calls" in repr(b.pool)


async def test_who_waits_in_vain_is_told_why() -> None:
    async with bench(calls_per_process=1, processes=1, wait_s=30.0) as b:
        await b.lease().got()
        waiting = b.lease()
        await b.clock.advance(29.0)
        assert waiting.waits
        await b.clock.advance(1.0)
        error = await waiting.failed()
        assert isinstance(error, UpstreamUnavailable)
        assert "30 s" in error.message
        assert "1 are in use" in error.message
        assert repr(b.pool) == "<Pool 1 sessions, 1 calls, 0 waiting>"


async def test_one_owner_does_not_use_up_the_processes_of_another() -> None:
    async with bench(calls_per_process=1, processes=1) as b:
        await b.lease(ALICE).got()
        waiting = b.lease(ALICE)
        await b.lease(BOB).got()
        assert waiting.waits


async def test_many_who_wait_are_all_served() -> None:
    async with bench(calls_per_process=1, processes=4) as b:
        served: list[int] = []

        async def work(n: int) -> None:
            async with b.pool.lease(ALICE, PLAIN):
                served.append(n)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            for n in range(300):
                tasks.start_soon(work, n)
        assert served == list(range(300))
        assert b.begun == 4


# ------------------------------------------------------------------------------------------- starting


async def test_one_handshake_however_many_wait_for_it() -> None:
    """F38: no stampede."""
    async with bench(silent) as b:
        holders = [b.lease() for _ in range(100)]
        server = await b.server()
        request = await server.asked("initialize")
        await settle()
        assert all(h.waits and h.starting == 1 for h in holders)
        server.answer(request, initialize_result())
        assert len({await h.got() for h in holders}) == 1
        assert (b.begun, len(server.of("initialize"))) == (1, 1)

        late = b.lease()
        await late.got()
        assert late.starting == 0


async def test_a_start_that_fails_fails_for_all_who_wait_for_it() -> None:
    fault = UpstreamUnavailable("no such file")
    async with bench(failing_with(fault)) as b:
        holders = [b.lease() for _ in range(100)]
        assert {await h.failed() for h in holders} == {fault}
        assert b.begun == 1
        assert b.health.words() == "could not be started or reached"
        assert repr(b.pool) == "<Pool 0 sessions, 0 calls, 0 waiting>"


async def test_a_start_that_fails_fails_for_those_who_wait_for_a_process_too() -> None:
    fault = UpstreamUnavailable("no such file")
    async with bench(failing_with(fault), calls_per_process=1, processes=3) as b:
        holders = [b.lease() for _ in range(50)]
        assert {await h.failed() for h in holders} == {fault}
        assert b.begun == 3
        assert b.clock.monotonic() == 0


async def test_who_waits_for_a_process_that_lives_is_not_concerned_by_a_start_that_fails() -> None:
    async with bench(calls_per_process=1, processes=2) as b:
        good = b.lease()
        await good.got()
        fault = UpstreamUnavailable("out of memory")
        b.prepare = failing_with(fault, None)
        unlucky, waiting = b.lease(), b.lease()
        assert await unlucky.failed() is fault
        await good.go()
        await waiting.got()


async def test_a_client_that_goes_away_during_the_start_does_not_end_it() -> None:
    async with bench(silent) as b:
        gone = b.lease()
        server = await b.server()
        request = await server.asked("initialize")
        gone.scope.cancel()
        await until(gone.done.is_set)
        server.answer(request, initialize_result())
        await b.lease().got()
        assert b.begun == 1


@pytest.mark.parametrize(
    ("refusal", "is_ready"),
    [
        (UpstreamRefused("401", status=HTTPStatus.UNAUTHORIZED, challenges=("Bearer",)), True),
        (UpstreamRefused("401, to us", status=None, challenges=()), False),
        (NoCredential("the authorization server is away"), True),
    ],
)
async def test_a_server_that_refuses_its_caller_is_no_fault_of_the_server(
    refusal: UpstreamError, is_ready: bool
) -> None:
    """401 and 403 are answers: every caller gets its own at once, and the proxy stays ready; unless it is its
    own credential that is refused. That has a back-off of its own: nobody need sit out another one here."""
    async with bench(failing_with(refusal)) as b:
        for _ in range(20):
            assert await b.lease().failed() is refusal
        assert b.begun == 20
        assert b.clock.monotonic() == 0
        assert (b.health.words() == OK) is is_ready


async def test_a_fault_of_ours_in_one_session_harms_no_other() -> None:
    async with bench() as b:
        session = await b.lease(ALICE).got()
        b.prepare = lambda server: setattr(server, "bug", RuntimeError("ours"))
        with capture_logs() as logs:
            error = await b.lease(BOB).failed()
        assert "internal" in error.message
        assert [e["log_level"] for e in logs if e["event"] == "session_failed"] == ["error"]
        assert session.is_alive
        assert await b.lease(ALICE).got() is session


# -------------------------------------------------------------------------------------------- back-off


async def starts_after(b: Bench, seconds: float) -> None:
    """The next session, which a call waits for already, begins after so long and not sooner."""
    begun = len([s for s in b.servers if s.sent])
    await b.clock.advance(seconds - 0.01)
    assert len([s for s in b.servers if s.sent]) == begun
    await b.clock.advance(0.01)
    assert len([s for s in b.servers if s.sent]) == begun + 1


async def test_starts_that_fail_are_tried_more_and_more_seldom() -> None:
    fault = UpstreamUnavailable("no such file")
    async with bench(failing_with(fault)) as b:
        for _ in range(2):
            await b.lease().failed()
        for pause in (0.5, 1, 2, 4, 8, 16, 30, 30):
            holder = b.lease()
            await starts_after(b, pause)
            assert await holder.failed() is fault


async def test_the_pause_counts_from_the_failure_and_is_one_owners_matter() -> None:
    fault = UpstreamUnavailable("no such file")
    async with bench(failing_with(fault, fault, fault, None)) as b:
        for _ in range(2):
            await b.lease().failed()
        holder = b.lease()
        await b.clock.advance(0.5)
        await holder.failed()
        await b.lease(BOB).got()
        await b.clock.advance(0.75)
        holder = b.lease()
        await b.clock.advance(0.2)
        assert holder.waits
        await b.clock.advance(0.05)
        await holder.got()
        assert b.health.words() == OK


async def test_old_failures_are_forgotten() -> None:
    fault = UpstreamUnavailable("no such file")
    async with bench(failing_with(fault)) as b:
        for _ in range(2):
            await b.lease().failed()
        await b.clock.advance(STABLE_S + SWEEP_S)
        now = b.clock.monotonic()
        for _ in range(2):
            await b.lease().failed()
        assert b.clock.monotonic() == now


async def test_a_server_that_dies_right_after_the_handshake_is_started_more_and_more_seldom() -> None:
    async with bench() as b:
        for _ in range(2):
            holder = b.lease()
            await holder.got()
            b.servers[-1].die(DIED)
            await holder.go()
        holder = b.lease()
        await starts_after(b, 0.5)
        await holder.got()


async def test_a_server_that_ends_while_it_is_started_is_an_error_for_those_who_wait() -> None:
    """Not another attempt: it would be as short-lived, as often as the machine can start it."""

    def prepare(server: Server) -> None:
        server.dies_on = "notifications/initialized"
        server.ends_when_closed = False

    async with bench(prepare) as b:
        holders = [b.lease() for _ in range(3)]
        assert {await h.failed() for h in holders} == {DIED}
        assert b.begun == 1
        await b.lease().failed()
        holder = b.lease()
        await starts_after(b, 0.5)
        await holder.failed()


async def test_a_server_that_dies_of_its_calls_is_started_more_and_more_seldom() -> None:
    async with bench(lambda server: setattr(server, "dies_on", "tools/call")) as b:

        async def call() -> None:
            async with b.pool.lease(ALICE, PLAIN) as session:
                with pytest.raises(UpstreamClosed):
                    await session.call("tools/call", b'{"name":"x"}', Listener("x"), want_progress=False)

        for server in (1, 2):
            await call()
            b.servers[-1].end()
            assert b.begun == server
        b.tasks.start_soon(call)
        await starts_after(b, 0.5)


async def test_a_session_that_lived_long_starts_a_new_count() -> None:
    async with bench() as b:
        for _ in range(3):
            holder = b.lease()
            await holder.got()
            await b.clock.advance(STABLE_S)
            b.servers[-1].die(DIED)
            await holder.go()
        begun = b.clock.monotonic()
        await b.lease().got()
        assert b.clock.monotonic() == begun


# ------------------------------------------------------------------------------------ sessions that die


async def test_a_call_on_a_session_that_dies_fails_and_the_next_gets_a_new_one() -> None:
    """STDIO-010; the clean-up of the old process is not waited for."""
    async with bench() as b:
        holder = b.lease()
        session = await holder.got()
        b.servers[0].ends_when_closed = False
        with capture_logs() as logs:
            b.servers[0].lose_all(DIED)
            with pytest.raises(ServerGone):
                await session.call("tools/call", b'{"name":"x"}', Listener("x"), want_progress=False)
            assert await b.lease().got() is not session
        assert [e["reason"] for e in logs if e["event"] == "upstream_lost"] == [DIED.message]
        await holder.go()
        assert not b.servers[0].ended


async def test_a_dead_process_gives_way_to_who_waits() -> None:
    async with bench(calls_per_process=1, processes=1) as b:
        holder = b.lease()
        await holder.got()
        waiting = b.lease()
        await settle()
        b.servers[0].ends_when_closed = False
        b.servers[0].lose_all(DIED)
        await waiting.got()
        assert b.begun == 2


async def test_a_session_that_upstream_forgot_is_replaced_and_ends_with_its_last_call() -> None:
    """HTTP-073."""
    async with bench() as b:
        first, second = b.lease(), b.lease()
        old = await first.got()
        lost = await begin_call(b, old)
        b.servers[0].lose(lost.id, SessionLost("404"))
        assert await b.lease().got() is not old
        await first.go()
        assert not b.servers[0].closed
        await second.go()
        assert b.servers[0].closed


async def begin_call(b: Bench, session: LegacySession) -> Sent:
    async def call() -> None:
        with pytest.raises(UpstreamError):
            await session.call("tools/call", b'{"name":"x"}', Listener("x"), want_progress=False)

    b.tasks.start_soon(call)
    return await b.servers[0].asked("tools/call")


async def test_an_idle_session_that_upstream_forgot_is_ended() -> None:
    async with bench() as b:
        holder = b.lease()
        await holder.got()
        await holder.go()
        b.servers[0].refusal = SessionLost("404")
        b.servers[0].ask("p", "ping")
        await until(lambda: b.servers[0].closed)
        b.servers[0].refusal = None


async def test_a_server_may_forget_sessions_as_often_as_it_likes() -> None:
    """That is no failure: no pauses."""
    async with bench() as b:
        for _ in range(10):
            holder = b.lease()
            await holder.got()
            b.servers[-1].die(SessionLost("404"))
            await holder.go()
        assert b.begun == 10
        assert b.clock.monotonic() == 0


# -------------------------------------------------------------------------------------- idle sessions


async def test_an_idle_session_is_ended_after_its_time() -> None:
    """HTTP-075, F39."""
    async with bench(idle_timeout_s=60.0) as b:
        holder = b.lease()
        session = await holder.got()
        await b.clock.advance(30.0)
        await holder.go()
        await b.clock.advance(59.0)
        assert session.is_alive
        await b.clock.advance(SWEEP_S)
        assert not session.is_alive
        assert b.servers[0].closed
        assert repr(b.pool).startswith("<Pool 0 sessions")
        await b.lease().got()
        assert b.begun == 2


@pytest.mark.parametrize("for_call", [True, False])
async def test_a_session_that_is_held_is_never_idle(for_call: bool) -> None:
    """F39: a call of twice the idle time; a listen stream."""
    async with bench(idle_timeout_s=60.0) as b:
        holder = b.lease(for_call=for_call)
        session = await holder.got()
        await b.clock.advance(200.0)
        assert session.is_alive
        await holder.go()
        assert session.is_alive
        await b.clock.advance(60.0 + SWEEP_S)
        assert not session.is_alive


async def test_a_session_that_nobody_came_for_is_idle_too() -> None:
    async with bench(silent, idle_timeout_s=60.0) as b:
        gone = b.lease()
        server = await b.server()
        request = await server.asked("initialize")
        gone.scope.cancel()
        await b.clock.advance(100.0)
        assert not server.closed
        server.answer(request, initialize_result())
        await b.clock.advance(60.0 + SWEEP_S)
        assert server.closed


async def test_without_an_idle_time_sessions_stay() -> None:
    async with bench(idle_timeout_s=None) as b:
        holder = b.lease()
        session = await holder.got()
        await holder.go()
        await b.clock.advance(5_000.0)
        assert session.is_alive


async def test_at_the_bound_the_session_idle_for_longest_makes_room() -> None:
    async with bench(max_sessions=2) as b:
        for owner in (ALICE, BOB):
            holder = b.lease(owner)
            await holder.got()
            await b.clock.advance(1.0)
            await holder.go()
        alices, bobs = b.servers
        alices.ends_when_closed = False
        newcomer = b.lease(CAROL)
        await until(lambda: alices.closed)
        await settle()
        assert newcomer.waits  # until nothing of the old one is left
        alices.end()
        await newcomer.got()
        assert not bobs.closed


async def test_no_more_sessions_end_than_are_needed() -> None:
    async with bench(max_sessions=3) as b:
        for owner in (ALICE, BOB, CAROL):
            holder = b.lease(owner)
            await holder.got()
            await holder.go()
        for server in b.servers:
            server.ends_when_closed = False
        first, second = b.lease(Owner("d")), b.lease(Owner("e"))
        await settle()
        bystander = b.lease(CAROL)
        await bystander.got()
        await settle()
        assert [bool(s.closed) for s in b.servers] == [True, False, False]
        b.servers[0].end()
        await first.got()
        assert second.waits
        assert [bool(s.closed) for s in b.servers[:3]] == [True, True, False]
        b.servers[1].end()
        await second.got()


async def test_at_the_bound_with_nothing_idle_who_waits_is_told_why() -> None:
    async with bench(max_sessions=1, wait_s=30.0) as b:
        await b.lease(ALICE).got()
        waiting = b.lease(BOB)
        await b.clock.advance(30.0)
        error = await waiting.failed()
        assert "0 are in use for this client, 1 in all" in error.message
        assert not b.servers[0].closed


async def test_an_owner_with_its_share_makes_room_among_its_own_and_leaves_the_others_alone() -> None:
    """SEC-003: sessions and subprocesses per owner."""
    async with bench(max_sessions_per_owner=1) as b:
        for holder in (b.lease(BOB), b.lease(ALICE)):
            await holder.got()
            await holder.go()
        bobs, alices = b.servers
        further = b.lease(ALICE, ASKABLE)
        await until(lambda: alices.closed)
        await further.got()
        assert not bobs.closed
        waiting = b.lease(ALICE)
        await settle()
        assert waiting.waits
        await b.lease(CAROL).got()
        assert not bobs.closed
        await further.go()
        await waiting.got()


# ------------------------------------------------------------------------------------------- the end


async def test_closing_ends_every_session_and_refuses_who_waits_and_who_comes() -> None:
    async with bench(calls_per_process=1, processes=1) as b:
        holder, waiting = b.lease(ALICE), b.lease(ALICE)
        idle = b.lease(BOB)
        await holder.got()
        await idle.got()
        await idle.go()
        b.servers[0].ends_when_closed = False
        closed = anyio.Event()

        async def close() -> None:
            await b.pool.close()
            closed.set()

        b.tasks.start_soon(close)
        assert "shutting down" in (await waiting.failed()).message
        assert "shutting down" in (await b.lease(CAROL).failed()).message
        await until(lambda: b.servers[1].ended)
        assert not closed.is_set()  # until nothing is left of the first
        b.servers[0].end()
        with anyio.fail_after(5):
            await closed.wait()
        await holder.go()


async def test_closing_ends_a_start_and_the_pause_before_one() -> None:
    """F41: a back-off must not hold up the end."""
    fault = UpstreamUnavailable("no such file")

    def prepare(server: Server) -> None:
        server.fault = fault if server.owner == ALICE else None
        server.silent = server.owner == BOB

    async with bench(prepare) as b:
        for _ in range(2):
            await b.lease(ALICE).failed()
        pausing, starting = b.lease(ALICE), b.lease(BOB)
        await settle()
        assert pausing.waits
        assert starting.waits
        await b.pool.close()
        assert "shutting down" in (await pausing.failed()).message
        assert isinstance(await starting.failed(), UpstreamError)
        assert b.clock.monotonic() == 0
        assert len([s for s in b.servers if s.sent]) == 3


async def test_sessions_are_counted_by_how_they_end() -> None:
    """Field report F39: those that grow are seen."""
    gone = SessionLost("upstream 'fake' no longer knows the session")
    async with bench(failing_with(UpstreamUnavailable("down"), None), idle_timeout_s=60.0) as b:

        def ended() -> list[float]:
            scraped = Scraped.of(b.metrics)
            how = ("not_started", "lost", "closed")
            return [scraped.value("upstream_sessions_ended_total", how=one) for one in how]

        await b.lease().failed()
        assert ended() == [1, 0, 0]
        for fault in (DIED, gone):
            holder = b.lease()
            await b.clock.advance(5)  # past the pause before a further start
            await holder.got()
            b.servers[-1].die(fault)
            b.servers[-1].end()
            await holder.go()
            await settle()
        assert ended() == [1, 2, 0]
        holder = b.lease()
        await b.clock.advance(5)
        await holder.got()
        await holder.go()
        assert (b.pool.sessions, b.pool.waiting) == (1, 0)
        await b.clock.advance(60 + SWEEP_S)
        b.servers[-1].end()
        await settle()
        assert ended() == [1, 2, 1]
        assert Scraped.of(b.metrics).value("upstream_sessions_started_total") == 3
        assert b.pool.sessions == 0


async def test_a_pool_that_is_cancelled_leaves_nothing() -> None:
    server = Server(silent=True)
    clock = ManualClock()
    pool = Pool(lambda owner, declared, on_change: session_over(server, clock), PoolSettings(), clock)

    async def wait_in_vain() -> None:
        with pytest.raises(ProxyError):
            async with pool.lease(ALICE, PLAIN):
                raise AssertionError("there is none")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as callers, anyio.create_task_group() as tasks:
            await tasks.start(pool.run)
            callers.start_soon(wait_in_vain)
            await server.asked("initialize")
            tasks.cancel_scope.cancel()
    assert server.ended


# -------------------------------------------------------------------------------------------- changes


async def test_changes_go_to_the_listeners_of_the_owner_alone() -> None:
    """F38: of all sessions of that owner."""
    async with bench() as b:
        told: list[str] = []

        def alice(method: str, params: bytes | None) -> None:
            told.append(f"alice {method}")

        def bob(method: str, params: bytes | None) -> None:
            told.append(f"bob {method}")

        b.pool.listen(ALICE, alice)
        b.pool.listen(BOB, bob)
        await b.lease(ALICE, PLAIN).got()
        await b.lease(ALICE, ASKABLE).got()
        await b.lease(BOB, PLAIN).got()
        for server in b.servers[:2]:
            server.notify("notifications/tools/list_changed")
        b.servers[2].notify("notifications/resources/updated", {"uri": "file:///a"})
        b.pool.unlisten(ALICE, alice)
        b.servers[0].notify("notifications/tools/list_changed")
        changed = "alice notifications/tools/list_changed"
        assert told == [changed, changed, "bob notifications/resources/updated"]
