"""What a start makes of the tasks that an earlier process left: resumed, repeated, or failed and why.

Contract section 9, the row "proxy killed, restarted"; I2, I3, I4 and I6; lesson 8 of the field reports.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import anyio
import pytest

from proxy.owners import ANONYMOUS
from proxy.routing import recovery
from proxy.routing.recovery import NEVER_STARTED, OUTCOME_UNKNOWN
from proxy.tasks import lifecycle
from proxy.tasks.lost_call import CallTrace, Repeat
from proxy.tasks.task import Task
from proxy.upstream.pool import PoolSettings
from tests.routing.bench import POLICY, THRESHOLD_S
from tests.routing.fake_server import SESSION, TEXT
from tests.routing.recovery_bench import YES, Restarts, restarts

pytestmark = pytest.mark.anyio

NO: Final[dict[str, Any]] = {"action": "decline"}
ONE_AT_A_TIME: Final = PoolSettings(processes=1, calls_per_process=1, idle_timeout_s=None)


async def failed_with(at: Restarts, task: str) -> str:
    """The words of a task that has failed; it stays so."""
    told = await at.told(task)
    assert (told["status"], told["error"]["code"]) == ("failed", -32603)
    assert told["statusMessage"] == told["error"]["message"]
    assert await at.told(task) == told
    return str(told["error"]["message"])


async def test_a_task_whose_last_news_are_lost_does_not_go_back_in_time() -> None:
    """Contract section 4: `lastUpdatedAt` never moves backwards, though progress may (it is stored later)."""
    async with restarts() as at:
        task, call = await at.task()
        stored = await at.rig.stored(task)
        await at.rig.pass_time(5)
        call.progress(7, total=10)
        await at.rig.pass_time(0.2)
        told = await at.told(task)
        await at.kill()
        at.rig.memory._index.put(stored)
        await at.start()
        again = await at.told(task)
        assert (told["statusMessage"], again["statusMessage"]) == ("7/10", stored.status_message)
        assert again["lastUpdatedAt"] >= told["lastUpdatedAt"]


# ------------------------------------------------------------------------------ nothing to resume


async def test_after_a_restart_every_task_answers_and_nothing_runs_again() -> None:
    """TX-STA-007, TX-GET-012, TX-UPD-006, I2, I3, I4."""
    async with restarts() as at:
        at.resumable = False
        client = at.client()
        done, call = await at.task()
        call.answer()
        running, _ = await at.task()
        asking, key, _ = await at.asking_task()
        before = await at.told(done)
        await at.restart()
        assert await at.told(done) == before
        for task in (running, asking):
            assert await failed_with(at, task) == OUTCOME_UNKNOWN
            assert await client.update(task, {key: NO}) == await client.cancel(task)
            assert await failed_with(at, task) == OUTCOME_UNKNOWN
        assert at.server.calls_seen == 3
        await at.restart()
        assert await at.told(done) == before


async def test_a_stream_without_event_ids_leaves_nothing_to_resume() -> None:
    async with restarts() as at:
        task, _ = await at.rig.task(at.client())
        await at.restart()
        assert await failed_with(at, task) == OUTCOME_UNKNOWN
        assert at.server.calls_seen == 1


# ------------------------------------------------------------------------------ waiting for a process


async def waiting_task(at: Restarts, tool: str = "slow") -> str:
    """A task whose call waits until the one process is free."""
    at.client().call("never_busy")
    await at.server.next_call()
    sent = at.client().call(tool)
    await at.rig.pass_time(THRESHOLD_S)
    return str((await sent.result())["taskId"])


async def test_a_call_that_waited_for_a_process_was_never_started() -> None:
    """Contract section 2."""
    async with restarts(settings=ONE_AT_A_TIME) as at:
        task = await waiting_task(at)
        await at.restart()
        assert await failed_with(at, task) == NEVER_STARTED
        assert at.server.calls_seen == 1


async def test_a_call_that_may_be_repeated_and_waited_for_a_process_is_started() -> None:
    """Contract section 2."""
    async with restarts(settings=ONE_AT_A_TIME) as at:
        task = await waiting_task(at, "again_1")
        await at.restart()
        (await at.server.next_call()).answer()
        assert (await at.told(task))["status"] == "completed"


# ------------------------------------------------------------------------------ repeated


async def test_a_call_that_may_be_repeated_is_sent_once_more_as_it_was() -> None:
    """I2: with the client's own arguments, on a session that was told what the client had declared."""
    async with restarts() as at:
        at.resumable = False
        client = at.client(capabilities={**at.client().capabilities, "experimental": {"x": {"y": 1.0}}})
        sent = client.call("again_1", path="/a", n=1)
        before = await at.server.next_call()
        await at.rig.pass_time(THRESHOLD_S)
        task = (await sent.result())["taskId"]
        await at.restart()
        call = await at.server.next_call()
        assert call.params["arguments"] == before.params["arguments"]
        assert call.wire.capabilities == before.wire.capabilities
        assert (await at.told(task))["status"] == "working"
        call.answer()
        told = await at.told(task)
        assert (told["status"], told["result"]["content"]) == ("completed", TEXT["content"])
        assert at.server.calls_seen == 2


async def test_what_a_repeated_call_had_asked_is_asked_anew_under_a_new_key() -> None:
    """TX-UPD-006: a key is never used twice; the old question has nobody who waits for its answer."""
    async with restarts() as at:
        at.resumable = False
        client = at.client()
        task, key, old = await at.asking_task(tool="again_1")
        await at.restart()
        call = await at.server.next_call()
        assert (await at.told(task))["status"] == "working"
        await client.update(task, {key: NO})
        asked = call.elicit()
        [new_key] = (await at.told(task))["inputRequests"]
        assert new_key != key
        await client.update(task, {new_key: YES})
        assert await asked.answer() == YES
        assert old.answers == []


async def test_what_may_no_longer_be_repeated_is_not() -> None:
    """I2: "unless configuration says that this tool may be repeated" - the configuration of now."""
    async with restarts() as at:
        at.resumable = False
        task, _ = await at.task(tool="again_1")
        await at.restart(policy=POLICY)
        assert await failed_with(at, task) == OUTCOME_UNKNOWN
        assert at.server.calls_seen == 1


async def test_a_repeated_call_that_is_killed_again_is_repeated_again() -> None:
    async with restarts() as at:
        at.resumable = False
        task, _ = await at.task(tool="again_1")
        for _ in range(3):
            await at.restart()
            call = await at.server.next_call()
        call.answer()
        assert (await at.told(task))["status"] == "completed"
        assert at.server.calls_seen == 4


# ------------------------------------------------------------------------------ the start


async def test_one_task_that_cannot_be_taken_up_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: a record that makes us stumble must not keep the proxy from starting, again and again."""
    async with restarts() as at:
        bad, _ = await at.task()
        good, _ = await at.task()
        stumbled = await at.rig.stored(bad)
        place_of = Restarts._place_of

        async def stumble(self: Restarts, owner: Any, task: Any, trace: Any) -> Any:
            if task.id == stumbled.id:
                raise RuntimeError("a bug")
            return await place_of(self, owner, task, trace)

        monkeypatch.setattr(Restarts, "_place_of", stumble)
        await at.restart()
        (await at.server.next_resumed()).answer()
        assert (await at.told(good))["status"] == "completed"
        assert await failed_with(at, bad) == OUTCOME_UNKNOWN


def left_task(at: Restarts, n: int) -> Task:
    """As an earlier process may have left it: its call can be resumed, or repeated, or neither."""
    name, now_ms = ("again_1" if n % 3 == 1 else "slow"), at.rig.clock.wall_ms()
    task = lifecycle.created(
        id=f"tpx-{n:032}",
        owner=ANONYMOUS.key,
        method="tools/call",
        name=name,
        now_ms=now_ms,
        retention_ms=3_600_000,
        repeat=Repeat(b'{"name":"again_1"}', "{}") if n % 3 == 1 else None,
    )
    trace = CallTrace(SESSION, "2025-11-25", n, f"e{n}", is_ours=True) if n % 3 == 2 else None
    return replace(task, trace=trace)


async def test_a_thousand_tasks_are_taken_up_while_others_are_served() -> None:
    async with restarts() as at:
        left = [left_task(at, n) for n in range(999)]
        for task in left:
            await at.rig.store.create(task)
        at.server.answers["fast"] = TEXT
        at.rig.store.gate = anyio.Event()
        await at.restart()
        fast = at.client().call("fast")
        assert (await fast.result())["content"] == TEXT["content"]
        at.rig.store.gate.set()
        await at.rig.settle()
        resumed = [(await at.server.next_resumed()) for _ in range(333)]
        repeated = [(await at.server.next_call()) for _ in range(333)]
        for call in (*resumed, *repeated):
            call.answer()
        for task in left:
            while not (now := await at.rig.stored(task.id)).status.is_terminal:
                await at.rig.pass_time(1)
            assert now.status == ("failed" if task.trace is None and task.repeat is None else "completed")
        assert sorted(call.from_event or "" for call in resumed) == sorted(
            task.trace.event_id for task in left if task.trace is not None
        )


async def test_a_store_that_cannot_fail_a_task_does_not_hold_up_those_that_are_resumed() -> None:
    """Many that fail wait for the store; one that can be resumed is not behind them."""
    async with restarts() as at:
        lost = [(await at.rig.task(at.client()))[0] for _ in range(recovery.AT_ONCE + 1)]
        task, _ = await at.task()
        await at.kill()
        at.rig.store.broken = True
        await at.start()
        call = await at.server.next_resumed()
        at.rig.store.broken = False
        call.answer()
        await at.rig.pass_time(30)
        assert (await at.told(task))["status"] == "completed"
        assert {(await at.told(one))["status"] for one in lost} == {"failed"}


async def test_tasks_that_go_on_are_calls_and_are_not_refused_where_there_are_more_of_them_than_may_be() -> (
    None
):
    """SEC-003: the bound may have been lowered, and what was promised goes on."""
    async with restarts() as at:
        for _ in range(2):
            await at.task()
        at.rig._at_most = (1, None)
        await at.restart()
        calls = [await at.server.next_resumed() for _ in range(2)]
        assert at.rig.calls.held == 2
        status, error = await at.client().call("slow").error()
        assert (status, "(limits.calls)" in error["message"]) == (429, True)
        for call in calls:
            call.answer()
        await at.rig.settle()
        assert at.rig.calls.held == 0
        await at.task()
