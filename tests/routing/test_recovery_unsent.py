"""Calls that wait for a process: "never started" is said after a restart of those alone that were never sent.

Contract section 2 (a call that waits for a process) and section 9; I2, I3 and I6.
"""

from __future__ import annotations

from typing import Final

import anyio
import pytest

from proxy.routing.recovery import NEVER_STARTED, OUTCOME_UNKNOWN
from proxy.upstream.pool import PoolSettings
from tests.routing.bench import THRESHOLD_S, Exchanged
from tests.routing.fake_server import TEXT, Call
from tests.routing.recovery_bench import Restarts, restarts

pytestmark = pytest.mark.anyio

ONE_AT_A_TIME: Final = PoolSettings(processes=1, calls_per_process=1, idle_timeout_s=None)


async def behind_another(at: Restarts) -> tuple[Exchanged, Call]:
    """A call that waits until another one, which is returned, has ended."""
    at.client().call("never_busy")
    busy = await at.server.next_call()
    sent = at.client().call("slow")
    await at.rig.settle()
    return sent, busy


async def words_after_a_restart(at: Restarts) -> str:
    """Of the one task there is."""
    [task] = await at.rig.memory.unfinished()
    await at.restart()
    return str((await at.told(task.id))["error"]["message"])


@pytest.mark.parametrize("unsure", [False, True])
@pytest.mark.parametrize("moment", ["its record is written", "a note of it is written", "nothing happens"])
async def test_a_call_is_sent_only_once_its_record_does_not_say_unsent(moment: str, unsure: bool) -> None:
    """Whatever the store is at when the process is free, and whether or not it knows what it did."""
    async with restarts(settings=ONE_AT_A_TIME) as at:
        store = at.rig.store
        sent, busy = await behind_another(at)
        if moment == "its record is written":
            store.gate = anyio.Event()
            await at.rig.pass_time(THRESHOLD_S)
        elif moment == "a note of it is written":
            await at.rig.pass_time(THRESHOLD_S)
            store.gate = anyio.Event()
            await at.rig.pass_time(1)
        else:
            await at.rig.pass_time(THRESHOLD_S + 1)
            store.gate = anyio.Event()
        busy.answer()
        await at.rig.settle()
        assert at.server.calls_seen == 1
        store.unsure = unsure and moment != "its record is written"
        store.gate.set()
        await at.rig.settle()
        assert at.server.calls_seen == (1 if store.unsure else 2)
        store.unsure = False
        await at.rig.pass_time(1)
        await sent.result()
        assert at.server.calls_seen == 2
        assert await words_after_a_restart(at) == OUTCOME_UNKNOWN


async def test_a_call_that_was_not_sent_says_so_up_to_the_last_moment() -> None:
    async with restarts(settings=ONE_AT_A_TIME) as at:
        _, busy = await behind_another(at)
        await at.rig.pass_time(THRESHOLD_S + 1)
        at.rig.store.gate = anyio.Event()
        busy.answer()
        await at.rig.settle()
        assert await words_after_a_restart(at) == NEVER_STARTED


async def test_a_call_goes_on_blocking_if_it_could_not_become_a_task_while_it_waited() -> None:
    """Contract section 9: disk full at creation."""
    async with restarts(settings=ONE_AT_A_TIME) as at:
        sent, busy = await behind_another(at)
        at.rig.store.broken = True
        await at.rig.pass_time(THRESHOLD_S)
        busy.answer()
        (await at.server.next_call()).answer()
        result = await sent.result()
        assert (result["resultType"], result["content"]) == ("complete", TEXT["content"])


async def test_a_call_gets_its_process_while_the_store_refuses_its_record() -> None:
    async with restarts(settings=ONE_AT_A_TIME) as at:
        sent, busy = await behind_another(at)
        at.rig.store.gate = anyio.Event()
        await at.rig.pass_time(THRESHOLD_S)
        busy.answer()
        await at.rig.settle()
        at.rig.store.broken = True
        at.rig.store.gate.set()
        (await at.server.next_call()).answer()
        assert (await sent.result())["resultType"] == "complete"


async def test_a_call_is_not_sent_before_it_can_be_stored_that_it_is() -> None:
    """It waits on, and neither runs nor fails."""
    async with restarts(settings=ONE_AT_A_TIME) as at:
        sent, busy = await behind_another(at)
        await at.rig.pass_time(THRESHOLD_S + 1)
        task = (await sent.result())["taskId"]
        at.rig.store.broken = True
        busy.answer()
        await at.rig.pass_time(30)
        assert at.server.calls_seen == 1
        at.rig.store.broken = False
        await at.rig.pass_time(30)
        (await at.server.next_call()).answer()
        assert (await at.told(task))["status"] == "completed"


async def test_a_task_cancelled_while_it_waits_stays_as_it_is_when_the_process_is_free() -> None:
    """I4: also where the call is just about to be sent."""
    async with restarts(settings=ONE_AT_A_TIME) as at:
        sent, busy = await behind_another(at)
        await at.rig.pass_time(THRESHOLD_S + 1)
        task = (await sent.result())["taskId"]
        at.rig.store.gate = anyio.Event()
        cancel = at.client().start("tasks/cancel", {"taskId": task})
        busy.answer()
        await at.rig.settle()
        at.rig.store.gate.set()
        await cancel.result()
        cancelled = await at.rig.stored(task)
        assert cancelled.status == "cancelled"
        await at.rig.pass_time(5)
        assert await at.rig.stored(task) == cancelled
