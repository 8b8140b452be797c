"""A start whose store cannot be written: what an earlier process left fails once it can be stored.

Contract section 9: disk full; I4 and I6.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from proxy.owners import Credentials
from proxy.routing.recovery import OUTCOME_UNKNOWN, RETRY_S, Recovery
from tests.routing.bench import Bench, bench
from tests.scrape import Scraped

pytestmark = pytest.mark.anyio

YES: Final[dict[str, Any]] = {"action": "accept", "content": {"ok": True}}


async def start_over(rig: Bench) -> None:
    """A new process before the same store, which takes up what the old one left."""
    rig.runner.freeze()
    rig.start_over()
    await rig.tasks.start(rig.pool.run)
    await rig.tasks.start(rig.runner.run)
    recovery = Recovery(rig.store, rig.runner, rig.policy, Credentials(), rig.clock, None, rig.metrics)
    rig.tasks.start_soon(recovery.run)
    await rig.settle()


async def asking_task(rig: Bench) -> tuple[str, str]:
    """A task that waits for its user: its id, and the key of its question."""
    client = rig.client()
    task, call = await rig.task(client)
    call.elicit()
    await rig.settle()
    [key] = (await client.get(task))["inputRequests"]
    return task, key


async def test_what_cannot_be_stored_yet_reads_as_it_was_and_fails_later() -> None:
    async with bench() as rig:
        client = rig.client()
        tasks = [(await rig.task(client))[0] for _ in range(3)]
        rig.store.broken = True
        await start_over(rig)
        await rig.pass_time(10 * RETRY_S)
        assert [(await client.get(task))["status"] for task in tasks] == ["working"] * 3
        rig.store.broken = False
        await rig.pass_time(RETRY_S)
        for task in tasks:
            told = await client.get(task)
            assert (told["status"], told["error"]["message"]) == ("failed", OUTCOME_UNKNOWN)
        assert Scraped.of(rig.metrics).value("tasks_ended_total", status="failed") == 3


async def test_an_answer_that_comes_first_does_not_leave_the_task_at_work_for_ever() -> None:
    """I6: the record has changed under us, and still nobody is at work on it."""
    async with bench() as rig:
        task, key = await asking_task(rig)
        rig.store.broken = True
        await start_over(rig)
        rig.store.broken = False
        client = rig.client()
        await client.update(task, {key: YES})
        assert (await client.get(task))["status"] == "working"
        await rig.pass_time(RETRY_S)
        assert (await client.get(task))["status"] == "failed"


async def test_a_cancel_that_comes_first_stays() -> None:
    """I4."""
    async with bench() as rig:
        task, _ = await asking_task(rig)
        rig.store.broken = True
        await start_over(rig)
        rig.store.broken = False
        client = rig.client()
        await client.cancel(task)
        await rig.pass_time(3 * RETRY_S)
        assert (await client.get(task))["status"] == "cancelled"
        assert rig.store.writes["compare_and_set"] == 2  # the question, and the cancel


async def test_a_store_that_cannot_be_read_is_asked_again() -> None:
    async with bench() as rig:
        task, _ = await rig.task(rig.client())
        rig.store.unreadable = True
        await start_over(rig)
        await rig.pass_time(3 * RETRY_S)
        rig.store.unreadable = False
        await rig.pass_time(RETRY_S)
        assert (await rig.client().get(task))["status"] == "failed"
