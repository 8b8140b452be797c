"""A server that was restarted refuses what comes on our old sessions (404): it ran none of it.

HTTP-073: the client of a session that is gone opens another one; contract section 9, I4.
"""

from __future__ import annotations

import pytest

from proxy.errors import SessionLost, SessionUnknown, UpstreamError, UpstreamUnavailable
from proxy.routing.runner import OLD_SESSIONS
from tests.routing.bench import TASKS, bench
from tests.routing.fake_server import TEXT
from tests.routing.recovery_bench import restarts

pytestmark = pytest.mark.anyio

FORGOTTEN = SessionUnknown("upstream 'fake' no longer knows the session (404: not found)")
LOST = SessionLost("upstream 'fake' lost the session during the call; outcome unknown")


async def test_a_call_that_an_old_session_refused_runs_on_a_new_one() -> None:
    async with bench() as it:
        call = it.client().call("x")
        old = await it.server.next_call()
        old.wire.lose(old.id, FORGOTTEN)
        again = await it.server.next_call()
        assert again.wire is not old.wire
        assert again.params == old.params
        again.answer()
        assert (await call.result())["content"] == TEXT["content"]
        assert it.server.calls_seen == 2


async def test_so_does_that_of_a_task_whose_client_does_not_notice() -> None:
    async with bench() as it:
        ada = it.client(capabilities=TASKS)
        handle = await ada.call("at_once").result()
        old = await it.server.next_call()
        old.wire.lose(old.id, FORGOTTEN)
        again = await it.server.next_call()
        assert (await ada.get(handle["taskId"]))["status"] == "working"
        again.answer()
        await it.settle()
        assert (await ada.get(handle["taskId"]))["status"] == "completed"


async def test_a_server_that_knows_no_session_at_all_is_tried_a_few_times() -> None:
    async with bench() as it:
        call = it.client().call("x")
        for _ in range(OLD_SESSIONS + 1):
            refused = await it.server.next_call()
            refused.wire.lose(refused.id, FORGOTTEN)
        _, error = await call.error()
        assert error["message"] == FORGOTTEN.message
        assert it.server.calls_seen == OLD_SESSIONS + 1


async def test_a_call_that_finds_its_process_dead_runs_in_the_next_one() -> None:
    """Contract section 9: the call that comes after a death gets a fresh server."""
    async with bench() as it:
        it.client().call("first")
        (await it.server.next_call()).answer()
        await it.settle()
        it.server.dies_unseen = True
        call = it.client().call("x")
        again = await it.server.next_call()
        assert again.wire is not it.server.wires[0]
        again.answer()
        assert (await call.result())["content"] == TEXT["content"]
        assert it.server.calls_seen == 2


async def test_a_call_whose_session_is_lost_later_may_have_run_and_is_not_sent_again() -> None:
    async with bench() as it:
        call = it.client().call("x")
        lost = await it.server.next_call()
        lost.wire.lose(lost.id, LOST)
        _, error = await call.error()
        assert error["message"] == LOST.message
        assert it.server.calls_seen == 1


@pytest.mark.parametrize(
    "fault",
    [FORGOTTEN, LOST, UpstreamUnavailable("upstream 'fake' could not be reached")],
    ids=["forgotten", "lost", "unreachable"],
)
@pytest.mark.parametrize("resumed", [True, False])
async def test_what_was_sent_before_a_restart_may_have_run_whatever_becomes_of_it_when_it_is_repeated(
    fault: UpstreamError, resumed: bool
) -> None:
    async with restarts() as at:
        task, before = await at.rig.task(at.client(), "again_1")
        if resumed:
            before.at("e0")
        await at.rig.pass_time(1)
        await at.restart()
        if resumed:
            call = await at.server.next_resumed()
            call.wire.lose(call.id, LOST)
        for _ in range(OLD_SESSIONS + 1 if fault is FORGOTTEN else 1):
            again = await at.server.next_call()
            again.wire.lose(again.id, fault)
        told = await at.told(task)
        assert told["status"] == "failed"
        assert fault.message in told["error"]["message"]
        assert "outcome unknown" in told["error"]["message"]
