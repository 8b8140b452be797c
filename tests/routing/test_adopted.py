"""A client's own HTTP session, as the calls of its tasks use it: one at a time, and given up after the last.

Contract section 5; sessions over Streamable HTTP, played by fakes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from proxy.eras.to_modern import ServerInfo
from proxy.errors import SessionLost, UpstreamClosed, UpstreamUnavailable
from proxy.protocol import names
from proxy.routing.adopted import Adopted, Adoption
from proxy.upstream.session import LegacySession
from tests.manual_clock import ManualClock
from tests.upstream.fake_transport import FakeTransport, Listener, adopted_session, settle

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Rig:
    """What was made, in its order."""

    group: TaskGroup
    planned: list[FakeTransport] = field(default_factory=list)
    transports: list[FakeTransport] = field(default_factory=list)
    listens: list[list[bool]] = field(default_factory=list)
    adopted: Adopted = field(init=False)

    def __post_init__(self) -> None:
        self.adopted = Adopted(self._make, self._spawn)

    @property
    def server(self) -> FakeTransport:
        return self.transports[-1]

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        self.group.start_soon(work, *args)

    def _make(self) -> Adoption:
        transport = self.planned.pop(0) if self.planned else FakeTransport()
        self.transports.append(transport)
        self.listens.append([])
        info = ServerInfo("2025-11-25", b"{}", None, None)
        session = adopted_session(transport, info, ManualClock(), first_id=1_000)
        return Adoption(session, self.listens[-1].append)


@asynccontextmanager
async def rig(*planned: FakeTransport) -> AsyncIterator[Rig]:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            yield Rig(group, list(planned))
            group.cancel_scope.cancel()


async def test_calls_share_one_session_without_a_handshake_that_ends_with_the_last_of_them() -> None:
    """And is not ended for the client: there is no DELETE."""
    async with rig() as it:
        async with AsyncExitStack() as second:
            async with it.adopted.lease() as first:
                assert await second.enter_async_context(it.adopted.lease()) is first
            await settle()
            assert it.adopted.in_use
            assert not it.server.ended
        await settle()
        assert not it.adopted.in_use
        assert it.server.ended
        assert it.server.sent == []
        async with it.adopted.lease() as again:
            assert again is not first
        assert len(it.transports) == 2


async def test_who_comes_while_it_starts_waits_for_the_same_one() -> None:
    starts = anyio.Event()
    async with rig(FakeTransport(starts=starts)) as it:
        found: list[LegacySession] = []

        async def use() -> None:
            async with it.adopted.lease() as session:
                found.append(session)
                await anyio.sleep_forever()

        for _ in range(3):
            it.group.start_soon(use)
        await settle()
        assert found == []
        starts.set()
        await settle()
        assert len(found) == 3
        assert len(set(map(id, found))) == len(it.transports) == 1


async def test_one_that_cannot_be_started_is_an_error_and_the_next_is_another() -> None:
    fault = UpstreamUnavailable("upstream 'fake' could not be reached")
    async with rig(FakeTransport(unavailable=fault)) as it:
        with pytest.raises(UpstreamUnavailable):
            async with it.adopted.lease():
                raise AssertionError("it was not started")
        assert not it.adopted.in_use
        async with it.adopted.lease():
            assert len(it.transports) == 2


async def test_whoever_gives_up_while_it_starts_leaves_nothing_behind() -> None:
    """Nobody else knows of it, so nobody else would end it."""
    starts = anyio.Event()
    async with rig(FakeTransport(starts=starts)) as it:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as trying:

                async def use() -> None:
                    async with it.adopted.lease():
                        raise AssertionError("it was not started")

                trying.start_soon(use)
                await settle()
                scope.cancel()
        assert not it.adopted.in_use
        starts.set()
        await settle()
        assert it.server.ended
        async with it.adopted.lease():
            assert len(it.transports) == 2


async def test_one_that_was_lost_is_replaced_and_both_end_after_the_last_call() -> None:
    """A session that the server forgot (404): what is in flight may still be answered."""
    async with rig() as it:
        async with it.adopted.lease() as first:
            lost = it.server
            lost.refusal = SessionLost("upstream 'fake' no longer knows the session")
            with pytest.raises(SessionLost):
                await first.call(names.TOOLS_CALL, b'{"name":"a"}', Listener("a"), want_progress=False)
            async with it.adopted.lease() as second:
                assert second is not first
            await settle()
            assert not lost.ended
        await settle()
        assert [one.ended for one in it.transports] == [True, True]


async def test_its_last_words_are_out_before_it_is_given_up() -> None:
    """CANC-002: the notice that a call is cancelled; and whoever waits for that sees it so."""
    async with rig() as it:
        unused, reads = anyio.Event(), anyio.Event()

        async def watch() -> None:
            await it.adopted.wait_unused()
            unused.set()

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as calling, it.adopted.lease() as session:
                it.group.start_soon(watch)
                calling.start_soon(
                    lambda: session.call(
                        names.TOOLS_CALL, b'{"name":"a"}', Listener("a"), want_progress=False
                    )
                )
                await it.server.asked(names.TOOLS_CALL)
                it.server.reads = reads
                scope.cancel()
        await it.server.asked(names.CANCELLED)
        await settle()
        assert not it.server.ended
        assert not unused.is_set()
        reads.set()
        await settle()
        assert it.server.ended
        assert unused.is_set()


async def test_who_asks_whether_it_is_unused_right_after_the_last_call_still_waits() -> None:
    async with rig() as it:
        async with it.adopted.lease():
            pass
        assert it.adopted._giving_up == 1
        await it.adopted.wait_unused()
        assert it.server.ended or it.server.closed


async def test_it_keeps_a_get_stream_while_the_client_has_none() -> None:
    """Questions come there, and servers end sessions that look idle."""
    async with rig() as it:
        assert not it.adopted.client_listens(True)
        assert not it.adopted.client_listens(False)
        async with it.adopted.lease():
            assert it.listens == [[True]]
            assert it.adopted.client_listens(True)
            assert not it.adopted.client_listens(True)
            assert it.listens == [[True, False]]
            assert not it.adopted.client_listens(False)
            assert it.listens == [[True, False, True]]
        it.adopted.client_listens(True)
        async with it.adopted.lease():
            assert it.listens[1] == [False]


async def test_what_comes_on_the_clients_stream_for_its_calls_is_told_there() -> None:
    async with rig() as it:
        it.adopted.received(b"{}")  # nobody is there
        assert list(it.adopted.calls) == []
        async with anyio.create_task_group() as calling, it.adopted.lease() as session:
            told = Listener("a")
            calling.start_soon(
                lambda: session.call(names.TOOLS_CALL, b'{"name":"a"}', told, want_progress=True)
            )
            sent = await it.server.asked(names.TOOLS_CALL)
            assert [call.id for call in it.adopted.calls] == [sent.id]
            progress = b'{"jsonrpc":"2.0","method":"notifications/progress","params":'
            it.adopted.received(progress + b'{"progressToken":%d,"progress":1}}' % sent.id)
            assert told.notes == [(names.PROGRESS, {"progressToken": sent.id, "progress": 1})]
            it.server.answer(sent)


async def test_a_session_that_breaks_while_it_is_used_says_so_to_the_next() -> None:
    async with rig() as it, it.adopted.lease():
        it.server.die(UpstreamClosed("it broke"))
        await settle()
        async with it.adopted.lease():
            assert len(it.transports) == 2
