"""What is counted of the conversations of modern clients. T25-SEC-010."""

from __future__ import annotations

from typing import Any, Final

import pytest

from proxy.errors import InternalError
from proxy.metrics import Methods, Metrics
from proxy.protocol import names
from proxy.routing.counted import counted, group_of
from proxy.tasks.policy import Policy
from tests.manual_clock import ManualClock
from tests.routing.bench import ADA, BOB, THRESHOLD_S, Bench, bench
from tests.scrape import Scraped

pytestmark = pytest.mark.anyio

YES: Final[dict[str, Any]] = {"action": "accept", "content": {"ok": True}}
UNKNOWN: Final = "tpx-" + "A" * 32


def counts(rig: Bench, outcome: str, method: str = "tools_call") -> float:
    scraped = Scraped.of(rig.metrics)
    return scraped.value("requests_total", era="modern", method=method, outcome=outcome)


# -- groups ------------------------------------------------------------------------------------------


def test_every_method_of_the_protocol_has_its_group() -> None:
    methods = {
        value
        for name, value in vars(names).items()
        if isinstance(value, str)
        and "/" in value
        and not name.startswith(("META", "H_", "TASKS_EXTENSION", "_"))
    }
    asked_by_servers = {names.ELICITATION_CREATE, names.SAMPLING_CREATE_MESSAGE, names.ROOTS_LIST}
    requests = {m for m in methods if not m.startswith("notifications/")} - asked_by_servers
    assert {m for m in requests if group_of(m) is Methods.OTHER} == {names.COMPLETION_COMPLETE}


def test_a_method_that_nobody_knows_is_no_label() -> None:
    assert group_of("tools/train_on_secret") is Methods.OTHER


# -- requests ----------------------------------------------------------------------------------------


async def test_a_request_counts_once_by_how_it_ended() -> None:
    async with bench() as rig:
        client = rig.client()
        sent = client.call("quick")
        call = await rig.server.next_call()
        assert counts(rig, "result") == 0
        await rig.pass_time(0.5)
        call.answer()
        await sent.result()
        assert counts(rig, "result") == 1

        sent = client.call("quick")
        (await rig.server.next_call()).fail(-1, "no")
        await sent.error()
        assert counts(rig, "error") == 1

        sent = client.call("quick")
        await rig.server.next_call()
        sent.hang_up()
        await rig.settle()
        assert counts(rig, "hung_up") == 1

        sent = client.call("quick")
        (await rig.server.next_call()).wire.break_off()
        await sent.error()
        assert counts(rig, "upstream_failed") == 1

        await client.start("initialize").error()
        assert counts(rig, "refused", "session") == 1
        scraped = Scraped.of(rig.metrics)
        assert scraped.value("refusals_total", reason="invalid") == 1
        assert scraped.value("request_duration_seconds_sum", method="tools_call") == 0.5
        assert scraped.value("request_duration_seconds_count", method="tools_call") == 4


def test_a_fault_of_ours_counts_as_ours() -> None:
    metrics, clock = Metrics(), ManualClock()
    for fault in (InternalError(), ZeroDivisionError()):
        with pytest.raises(type(fault)), counted("tools/call", "legacy", metrics, clock):
            raise fault
    outcome = {"era": "legacy", "method": "tools_call", "outcome": "proxy_failed"}
    assert Scraped.of(metrics).value("requests_total", **outcome) == 2


# -- tasks -------------------------------------------------------------------------------------------


async def test_calls_that_become_tasks_count_when_they_do_and_when_they_end() -> None:
    async with bench() as rig:
        client = rig.client()
        _, call = await rig.task(client)
        before = Scraped.of(rig.metrics)
        assert before.value("tasks_created_total") == 1
        await rig.pass_time(8)
        call.answer()
        await rig.settle()
        task, _ = await rig.task(client)
        await client.cancel(task)
        await rig.settle()
        scraped = Scraped.of(rig.metrics)
        assert scraped.value("tasks_created_total") == 2
        assert scraped.value("tasks_ended_total", status="completed") == 1
        assert scraped.value("tasks_ended_total", status="cancelled") == 1
        assert scraped.value("tasks_ended_total", status="failed") == 0
        assert scraped.value("task_duration_seconds_count") == 2
        assert scraped.value("task_duration_seconds_sum") == 8


async def test_a_task_that_could_not_be_stored_is_none() -> None:
    async with bench() as rig:
        rig.store.broken = True
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        await rig.pass_time(THRESHOLD_S)
        call.answer()
        await sent.result()
        assert Scraped.of(rig.metrics).value("tasks_created_total") == 0


async def test_a_task_that_the_drain_leaves_running_has_not_ended() -> None:
    async with bench() as rig:
        await rig.task(rig.client())
        rig.runner.freeze()
        await rig.pool.close()
        await rig.settle()
        scraped = Scraped.of(rig.metrics)
        assert sum(scraped.value("tasks_ended_total", status=s) for s in ("completed", "failed")) == 0


async def test_who_asks_for_tasks_that_are_not_theirs_is_seen() -> None:
    """T25-SEC-010: failed lookups, of all kinds and by every method."""
    async with bench() as rig:
        task, _ = await rig.task(rig.client(owner=ADA))
        mallory = rig.client(owner=BOB)
        for task_id in (UNKNOWN, "no id of ours", task):
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                await mallory.start(method, {"taskId": task_id, "inputResponses": {"input-1": YES}}).error()
        listening = mallory.listen(taskIds=[task, UNKNOWN])
        await rig.settle()
        scraped = Scraped.of(rig.metrics)
        assert scraped.value("task_lookups_denied_total", reason="unknown") == 6 + 1
        assert scraped.value("task_lookups_denied_total", reason="foreign") == 3 + 1
        assert counts(rig, "refused", "tasks") == 9
        listening.hang_up()


async def test_who_polls_too_fast_is_seen() -> None:
    """T25-SEC-010: excessive polling."""
    async with bench(polls=2) as rig:
        client = rig.client()
        task, _ = await rig.task(client)
        polls = [client.start("tasks/get", {"taskId": task}) for _ in range(5)]
        await rig.settle()
        assert [poll.answered for poll in polls] == [True, True, False, False, False]
        assert Scraped.of(rig.metrics).value("refusals_total", reason="rate") == 3
        assert counts(rig, "refused", "tasks") == 3


# -- what lives --------------------------------------------------------------------------------------


async def test_parked_calls_streams_and_sessions_are_shown_while_they_last() -> None:
    async with bench(policy=Policy(mrtr_wait_s=60)) as rig:
        client = rig.client()
        stream = client.listen(toolsListChanged=True)
        await rig.settle()
        assert (rig.listen.streams, rig.pool.sessions, rig.conversion.parked) == (1, 1, 0)
        sent = client.call("asks")
        (await rig.server.next_call()).elicit()
        await rig.pass_time(0.1)
        asked = await sent.result()
        assert rig.conversion.parked == 1
        await rig.pass_time(60)
        assert rig.conversion.parked == 0
        assert asked["resultType"] == "input_required"
        stream.hang_up()
        await rig.settle()
        assert rig.listen.streams == 0
