"""2025 tasks from their creation to their end, as their owner's sessions see them.

Contract section 5; MCP 2025-11-25, "Tasks". Questions are in test_task_questions, lists and what belongs to
the upstream in test_task_session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import anyio
import pytest

from proxy.eras.tasks_2025 import UpstreamTasks
from proxy.errors import UpstreamUnavailable
from proxy.protocol import names
from proxy.tasks.task import TaskStatus, is_task_id
from proxy.tasks.views_2025 import status_of
from tests.routing.bench import BOB
from tests.routing.bench_2025 import (
    MAX_CALLS,
    RELATED,
    SHORT,
    UNKNOWN,
    Bench2025,
    Client2025,
    FakeChannel,
    Sent,
    bench_2025,
)
from tests.routing.fake_server import TEXT, Call

pytestmark = pytest.mark.anyio

NOT_FOUND: Final = (-32602, "Task not found: no such task, or it has expired")
TOOL_ERROR: Final = {"content": [{"type": "text", "text": "no such file"}], "isError": True}


# -- made at once -------------------------------------------------------------------------------------


async def test_a_call_with_task_is_answered_before_the_server_does_anything() -> None:
    """T25-NEW-001, T25-NEW-002, T25-NEW-003, T25-NEW-004, T25-NEW-007, T25-GET-001, T25-GET-002, I3."""
    async with bench_2025() as it:
        client = it.client()
        made = await client.call(task={"taskId": "mine", "x": 1}).result()
        assert made.keys() == {"task", "_meta"}
        task = made["task"]
        assert task["status"] == "working"
        assert is_task_id(task["taskId"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", task["createdAt"])
        assert task["lastUpdatedAt"] == task["createdAt"]
        assert isinstance(made["_meta"][names.META_IMMEDIATE_RESPONSE], str)
        assert (await it.rig.stored(task["taskId"])).owner == client.owner.key
        assert it.rig.store.writes["create"] == 1


async def test_the_call_goes_up_once_without_task_and_is_else_as_it_was_sent() -> None:
    """T25-NEW-008, I1, I2: the progress token is ours, whether the client gave one or not."""
    async with bench_2025() as it:
        client = it.client()
        params = b'{"name": "slow" ,"arguments":{ "n":1.10},"task":{"ttl":60000},"x":null,"_meta":{"k": 1}}'
        client.start(names.TOOLS_CALL, params)
        call = await it.rig.server.next_call()
        assert call.raw == (
            b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
            b'{"name": "slow","arguments":{ "n":1.10},"x":null,"_meta":{"k": 1,"progressToken":%d}}}'
        ) % (call.id, call.id)
        assert it.rig.server.calls_seen == 1


async def test_a_tool_that_asks_at_once_begins_working_too() -> None:
    """T25-NEW-003: its question comes later, when the client knows the task."""
    async with bench_2025() as it:
        client = it.client()
        sent = client.call()
        (await it.rig.server.next_call()).elicit()
        made = await sent.result()
        assert made["task"]["status"] == "working"


async def test_ids_are_never_the_same_twice() -> None:
    """T25-NEW-005, T25-SEC-002: whichever dialect made the task; 192 bits of the system's randomness each."""
    async with bench_2025() as it:
        client, modern = it.client(), it.rig.client(owner=it.client().owner)
        ids = [(await client.task())[0] for _ in range(MAX_CALLS - 1)]
        ids.append((await it.rig.task(modern))[0])
        assert len(set(ids)) == MAX_CALLS
        assert all(re.fullmatch(r"tpx-[A-Za-z0-9_-]{32}", one) for one in ids)


@pytest.mark.parametrize(
    ("task", "ttl"),
    [
        ({}, 60_000),
        ({"ttl": 0}, 10_000),
        ({"ttl": 1}, 10_000),
        ({"ttl": 42_000}, 42_000),
        ({"ttl": None}, 600_000),
        ({"ttl": 10**12}, 600_000),
    ],
)
async def test_the_ttl_that_is_reported_is_the_one_that_counts(task: Any, ttl: int) -> None:
    """T25-NEW-006, T25-GET-003, T25-SEC-006, F11: it is raised while the work lasts, stands from the end on,
    and the result is there as long."""
    async with bench_2025() as it:
        client = it.client()
        made = (await client.call(task=task).result())["task"]
        assert made["ttl"] == ttl
        call, task_id = await it.rig.server.next_call(), made["taskId"]
        await it.rig.pass_time(3 * ttl / 1000)
        assert (await client.get(task_id))["ttl"] == 4 * ttl
        call.answer()
        await it.rig.settle()
        assert (await client.get(task_id))["ttl"] == 4 * ttl
        await it.rig.pass_time(ttl / 1000 - 0.001)
        assert (await client.result(task_id).result())["content"] == TEXT["content"]
        await it.rig.pass_time(0.001)
        assert await client.read(task_id).refused() == NOT_FOUND


@pytest.mark.parametrize("task", [5, [], {"ttl": "1h"}, {"ttl": True}])
async def test_a_wish_that_is_none_is_refused_and_nothing_runs(task: Any) -> None:
    async with bench_2025() as it:
        client = it.client()
        sent = client.start(names.TOOLS_CALL, {"name": "slow", "task": task})
        code, words = await sent.refused()
        assert code == -32602
        assert "task" in words
        assert it.rig.server.calls_seen == it.rig.store.writes["create"] == 0


async def test_where_as_many_calls_run_as_may_a_further_one_is_refused_before_it_is_sent() -> None:
    """T25-SEC-005."""
    async with bench_2025() as it:
        client = it.client()
        for _ in range(MAX_CALLS):
            await client.task()
        code, words = await client.call().refused()
        assert (code, "limits.calls" in words) == (-32603, True)
        await it.rig.settle()
        assert it.rig.server.calls_seen == it.rig.store.writes["create"] == MAX_CALLS


async def test_with_a_broken_store_nothing_is_sent_and_nothing_is_promised() -> None:
    """T25-ERR-002, T25-ERR-004; contract section 9."""
    async with bench_2025() as it:
        client = it.client()
        it.rig.store.broken = True
        assert await client.call().refused() == (
            -32603,
            "the task could not be stored; the call was not sent",
        )
        await it.rig.settle()
        assert it.rig.server.calls_seen == 0
        assert it.companions == {}
        it.rig.store.broken = False
        await client.task()


@pytest.mark.parametrize("fault", ["unsure", "late"])
async def test_a_record_that_is_there_all_the_same_is_no_running_task(fault: str) -> None:
    """The client was told that nothing was sent, and nothing was. Nobody knows the id of what is stored."""
    async with bench_2025() as it:
        client = it.client()
        setattr(it.rig.store, fault, True)
        assert (await client.call().refused())[0] == -32603
        setattr(it.rig.store, fault, False)
        await it.rig.store.make_late_ones()
        await it.rig.settle()
        assert it.rig.server.calls_seen == 0


async def test_a_client_that_leaves_while_its_task_is_stored_has_it_run_once() -> None:
    """I2: what is stored is sent, whoever still listens; the owner finds it in its list."""
    async with bench_2025() as it:
        client = it.client()
        it.rig.store.gate = anyio.Event()
        sent = client.call()
        await it.rig.settle()
        assert it.rig.store.waiting == 1
        sent.hang_up()
        await it.rig.settle()
        it.rig.store.gate.set()
        call = await it.rig.server.next_call()
        [task] = await it.client().listed()
        call.answer()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "completed"
        assert it.rig.server.calls_seen == 1


async def test_wherever_a_client_leaves_its_call_there_is_a_task_that_runs_once_or_nothing() -> None:
    """I2, I3: at every turn on the way; whether the tool is the upstream's own is asked first."""
    seen: set[int] = set()
    async with bench_2025() as it:
        client = it.client(upstream=UpstreamTasks(tools=True))
        for turns in range(30):
            stored, sent = it.rig.store.writes["create"], it.rig.server.calls_seen
            calling = client.call(f"tool-{turns}")
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            calling.hang_up()
            await it.rig.settle()
            made = it.rig.store.writes["create"] - stored
            assert it.rig.server.calls_seen - sent == made
            seen.add(made)
            if made:
                call = await it.rig.server.next_call()
                call.answer()
                await it.rig.settle()
        assert seen == {0, 1}
        states = {task["status"] for page in await client.pages() for task in page["tasks"]}
        assert states == {"completed"}
        assert it.companions == {}


async def test_wherever_a_client_leaves_its_wait_the_task_does_not_notice() -> None:
    """T25-GET-007, T25-RES-008: also at the very moment of the end."""
    async with bench_2025() as it:
        client = it.client()
        for ends in (False, True):
            for turns in range(20):
                task, call = await client.task()
                waiting = client.result(task, FakeChannel())
                if ends:
                    call.answer()
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                waiting.hang_up()
                await it.rig.settle()
                assert all(not companion.streams for companion in it.companions.values())
                if not ends:
                    assert (await client.get(task))["status"] == "working"
                    call.answer()
                assert (await client.result(task).result())["content"] == TEXT["content"]
        assert it.companions == {}


# -- a fault on the way -------------------------------------------------------------------------------


async def test_a_server_that_cannot_be_reached_ends_the_task_with_its_words() -> None:
    """T25-STA-004, T25-STA-005."""
    async with bench_2025() as it:
        client = it.client()
        it.start_fault = UpstreamUnavailable("upstream 'fake' could not be started")
        task = (await client.call().result())["task"]["taskId"]
        await it.rig.settle()
        told = await client.get(task)
        assert (told["status"], told["statusMessage"]) == ("failed", "upstream 'fake' could not be started")
        assert await client.result(task).refused() == (-32603, "upstream 'fake' could not be started")


async def test_a_server_that_dies_ends_its_tasks_and_the_next_one_gets_the_next_call() -> None:
    """I6, T25-STA-004; contract section 9."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        waiting = client.result(task)
        call.wire.break_off("upstream 'fake' died; outcome unknown")
        assert await waiting.refused() == (-32603, "upstream 'fake' died; outcome unknown")
        assert (await client.get(task))["status"] == "failed"
        _, again = await client.task()
        assert again.wire is not call.wire


async def test_the_runtime_limit_ends_a_task_and_the_server_is_told() -> None:
    """I6, T25-STA-005."""
    async with bench_2025(policy=replace(SHORT, runtime_limit_s=60.0)) as it:
        client = it.client()
        task, call = await client.task()
        await it.rig.pass_time(60)
        assert call.cancelled.is_set()
        told = await client.get(task)
        assert (told["status"], "tasks.runtime_limit" in told["statusMessage"]) == ("failed", True)
        assert await client.result(task).refused() == (-32603, told["statusMessage"])


# -- its states ---------------------------------------------------------------------------------------


async def _waiting(it: Bench2025, client: Client2025) -> str:
    task, call = await client.task()
    call.elicit()
    await it.rig.settle()
    return task


async def _completed(it: Bench2025, client: Client2025) -> str:
    task, call = await client.task()
    call.answer()
    await it.rig.settle()
    return task


async def _failed(it: Bench2025, client: Client2025) -> str:
    task, call = await client.task()
    call.fail(-7, "disk on fire", data={"n": 1.5})
    await it.rig.settle()
    return task


async def _failed_by_its_tool(it: Bench2025, client: Client2025) -> str:
    task, call = await client.task()
    call.answer(TOOL_ERROR)
    await it.rig.settle()
    return task


async def _cancelled(it: Bench2025, client: Client2025) -> str:
    task, _ = await client.task()
    await client.cancel(task).result()
    return task


async def _working(it: Bench2025, client: Client2025) -> str:
    return (await client.task())[0]


Make = Callable[[Bench2025, Client2025], Awaitable[str]]

ENDS: Final[dict[str, Make]] = {
    "completed": _completed,
    "failed": _failed,
    "failed_by_its_tool": _failed_by_its_tool,
    "cancelled": _cancelled,
}
STATES: Final[dict[str, Make]] = {"working": _working, "input_required": _waiting, **ENDS}

every_state = pytest.mark.parametrize("state", STATES)
every_end = pytest.mark.parametrize("end", ENDS)


def status(state: str) -> str:
    return state.partition("_by_")[0]


@every_state
async def test_every_answer_about_a_task_tells_the_same(state: str) -> None:
    """T25-GET-001, T25-GET-002, T25-GET-003, T25-GET-005, T25-GET-006, T25-REL-003: get, list, news."""
    async with bench_2025() as it:
        client = it.client()
        task = await STATES[state](it, client)
        told = await client.get(task)
        assert told["status"] == status(state)
        assert told.keys() == {
            *("taskId", "status", "statusMessage"),
            *("createdAt", "lastUpdatedAt", "ttl", "pollInterval"),
        }
        [page] = await client.pages()
        assert page == {"tasks": [told]}
        if state != "working":
            assert client.channel.told(names.TASK_STATUS_NOTIFICATION)[-1] == told


async def test_the_answer_to_a_cancel_is_the_task() -> None:
    """T25-CAN-002, T25-REL-003: it is stored before it is told."""
    async with bench_2025() as it:
        client = it.client()
        task, _ = await client.task()
        told = await client.cancel(task).result()
        assert told["status"] == "cancelled"
        assert (await it.rig.stored(task)).status is TaskStatus.CANCELLED
        assert told == await client.get(task)


@every_end
async def test_a_task_that_has_ended_never_moves_again(end: str) -> None:
    """T25-STA-002, T25-CAN-001, I4, F07: cancel is refused by the status, in either dialect's words."""
    async with bench_2025() as it:
        client = it.client()
        task = await ENDS[end](it, client)
        told = await client.get(task)
        await it.rig.pass_time(5)
        assert await client.cancel(task).refused() == (
            -32602,
            f"Cannot cancel the task: it is {status(end)} already",
        )
        await it.rig.client(owner=client.owner).cancel(task)
        assert await client.get(task) == told


async def test_a_late_answer_changes_nothing() -> None:
    """T25-STA-002, T25-CAN-003, T25-CAN-004, I4, F05: the server is told, and not waited for."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        told = await client.cancel(task).result()
        await it.rig.settle()
        assert call.cancelled.is_set()
        call.answer()
        call.fail(0, "Request cancelled")
        await it.rig.settle()
        assert await client.get(task) == told


async def test_an_error_of_the_server_is_the_tasks_end_and_its_words_are_shown() -> None:
    """T25-STA-004, T25-STA-005, T25-RES-001: code, message and data as they came."""
    async with bench_2025() as it:
        client = it.client()
        task = await _failed(it, client)
        assert (await client.get(task))["statusMessage"] == "disk on fire"
        assert await client.result(task).error() == {
            "code": -7,
            "message": "disk on fire",
            "data": {"n": 1.5},
        }


async def test_a_tool_error_fails_the_task_and_is_still_its_result() -> None:
    """T25-STA-003, T25-STA-005, T25-RES-005; a modern client of the owner sees it completed."""
    async with bench_2025() as it:
        client = it.client()
        task = await _failed_by_its_tool(it, client)
        told = await client.get(task)
        assert (told["status"], told["statusMessage"]) == ("failed", "no such file")
        result = await client.result(task).result()
        assert {**result, "_meta": None} == {**TOOL_ERROR, "_meta": None}
        modern = await it.rig.client(owner=client.owner).get(task)
        assert modern["status"] == "completed"
        assert modern["result"] == {**TOOL_ERROR, "resultType": "complete"} | {
            "_meta": modern["result"]["_meta"]
        }


async def test_every_order_of_events_moves_a_task_as_it_may_and_no_other() -> None:
    """T25-STA-001, T25-STA-002: as seen by `tasks/get` after each event."""
    allowed = {
        ("working", "input_required"),
        ("input_required", "working"),
        *((before, after) for before in ("working", "input_required") for after in ("completed", "failed")),
        *((before, "cancelled") for before in ("working", "input_required")),
    }
    seen: set[tuple[str, str]] = set()

    async def play(events: str) -> None:
        async with bench_2025() as it:
            client = it.client()
            task, call = await client.task()
            before = (await client.get(task))["status"]
            for event in events:
                await _happens(event, client, task, call)
                await it.rig.settle()
                after = (await client.get(task))["status"]
                if after != before:
                    seen.add((before, after))
                before = after

    for events in ("qar", "qqaar", "qre", "qec", "qca", "rqac", "eqrc", "crqa", "qaqaT", "Tqc", "qarec"):
        await play(events)
    assert seen == allowed


async def _happens(event: str, client: Client2025, task: str, call: Call) -> None:
    match event:
        case "q":
            call.elicit()
        case "a":
            for question in client.channel.open_questions[-1:]:
                client.answer(question)
        case "r":
            call.answer()
        case "T":
            call.answer(TOOL_ERROR)
        case "e":
            call.fail(-1, "no")
        case _:
            client.cancel(task)


# -- its result ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        b'{"content":[ ],"structuredContent":{"n":1.10 , "n2":1E400}, "x": "\\ud800" }',
        b'{"_meta":{"theirs": 1.0},"content":[]}',
        b"{}",
        b'{ "content": [{"type":"text","text":"f\\u00fcr"}] , "isError": true}',
    ],
)
async def test_the_result_is_what_the_plain_call_would_have_returned(result: bytes) -> None:
    """T25-RES-001, T25-RES-004, I1: byte by byte, but for whose it is."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        call.answer_raw(result)
        await it.rig.settle()
        raw = await client.result(task).raw()
        related = json.dumps({RELATED: {"taskId": task}}, separators=(",", ":")).encode()[1:-1]
        for gone in (b',"_meta":{' + related + b"}", b'"_meta":{' + related + b"}", b"," + related):
            raw = raw.replace(gone, b"")
        assert raw == result


async def test_the_result_is_held_until_the_end_also_while_input_is_awaited() -> None:
    """T25-RES-002, T25-GET-007, T25-RES-008: `tasks/get` is answered meanwhile, and several may wait."""
    async with bench_2025() as it:
        client, other = it.client(), it.client()
        task, call = await client.task()
        waiting = [client.result(task), client.result(task), other.result(task)]
        call.elicit()
        await it.rig.pass_time(600)
        assert not any(one.done for one in waiting)
        assert (await client.get(task))["status"] == "input_required"
        waiting.pop().hang_up()
        await it.rig.settle()
        call.answer()
        first, second = [await one.raw() for one in waiting]
        assert first == second == await other.result(task).raw()


async def test_whoever_waits_for_a_task_that_is_cancelled_is_told() -> None:
    """T25-RES-006: also who asks afterwards."""
    async with bench_2025() as it:
        client = it.client()
        task, _ = await client.task()
        waiting = client.result(task)
        await it.rig.settle()
        await client.cancel(task).result()
        assert await waiting.refused() == (-32603, "The task was cancelled")
        assert await client.result(task).refused() == (-32603, "The task was cancelled")


async def test_300_waiters_of_whom_half_leave_cost_the_task_nothing() -> None:
    """F08."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        waiting = [client.result(task, FakeChannel()) for _ in range(300)]
        await it.rig.settle()
        for one in waiting[::2]:
            one.hang_up()
        await it.rig.settle()
        again = [client.result(task) for _ in range(150)]
        assert (await client.get(task))["status"] == "working"
        call.answer()
        found = {await one.raw() for one in [*waiting[1::2], *again]}
        assert len(found) == 1
        assert it.rig.server.calls_seen == 1


async def test_at_the_end_of_the_drain_waiters_are_told_to_come_back() -> None:
    """I6: the task is not touched."""
    async with bench_2025() as it:
        client = it.client()
        task, _ = await client.task()
        waiting = client.result(task)
        await it.rig.settle()
        it.tasks.give_up_waiting()
        code, words = await waiting.refused()
        assert (code, "ask for its result again" in words) == (-32603, True)
        assert (await client.get(task))["status"] == "working"


async def test_while_the_store_cannot_be_read_nothing_is_made_up() -> None:
    """T25-ERR-002."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        it.rig.store.unreadable = True
        for sent in (client.read(task), client.result(task), client.cancel(task)):
            assert await sent.refused() == (-32603, "the task store cannot be read")
        assert (await client.start(names.TASKS_LIST).refused())[0] == -32603
        it.rig.store.unreadable = False
        assert not call.cancelled.is_set()
        assert (await client.get(task))["status"] == "working"


async def test_a_result_that_cannot_be_stored_yet_is_not_told_and_not_lost() -> None:
    """I3; contract section 9, "at the end of a task"."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        waiting = client.result(task)
        it.rig.store.broken = True
        call.answer()
        await it.rig.pass_time(30)
        assert not waiting.done
        assert (await client.get(task))["status"] == "working"
        it.rig.store.broken = False
        await it.rig.pass_time(30)
        assert (await waiting.result())["content"] == TEXT["content"]


# -- cancel -------------------------------------------------------------------------------------------


async def test_a_cancel_that_cannot_be_stored_is_an_error_and_can_be_made_again() -> None:
    """T25-ERR-002, I3."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        it.rig.store.broken = True
        assert (await client.cancel(task).refused())[0] == -32603
        assert not call.cancelled.is_set()
        it.rig.store.broken = False
        assert (await client.cancel(task).result())["status"] == "cancelled"
        await it.rig.settle()
        assert call.cancelled.is_set()


async def test_a_client_that_leaves_during_its_cancel_has_it_carried_out() -> None:
    """T25-CAN-003."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        it.rig.store.gate = anyio.Event()
        sent = client.cancel(task)
        await it.rig.settle()
        sent.hang_up()
        it.rig.store.gate.set()
        await it.rig.settle()
        assert call.cancelled.is_set()
        assert (await client.get(task))["status"] == "cancelled"


async def test_a_cancel_and_an_answer_at_once_leave_one_end() -> None:
    """F07, I4, T25-CAN-004: `cancelled` was told and stays, or the cancel is refused and the result is."""
    seen: set[str] = set()
    async with bench_2025() as it:
        client = it.client()
        for first in ("cancel", "answer"):
            for turns in range(8):
                task, call = await client.task()
                waiting = client.result(task)
                await it.rig.settle()
                sent = client.cancel(task) if first == "cancel" else None
                if sent is None:
                    call.answer()
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                if sent is None:
                    sent = client.cancel(task)
                call.answer()
                await it.rig.settle()
                seen.add(await _one_end(client, task, sent, waiting))
    assert seen == {"cancelled", "completed"}


async def _one_end(client: Client2025, task: str, cancel: Sent, waiting: Sent) -> str:
    """What the task ended as, told alike by everything that was asked."""
    told = await client.get(task)
    if told["status"] == "cancelled":
        assert await cancel.result() == told
        assert (await waiting.refused())[1] == "The task was cancelled"
    else:
        assert (await cancel.refused())[0] == -32602
        assert (await waiting.result())["content"] == TEXT["content"]
    await client.bench.rig.pass_time(1)
    assert await client.get(task) == told
    return str(told["status"])


# -- whose it is --------------------------------------------------------------------------------------


def asks(client: Client2025, task: Any) -> list[Any]:
    return [client.read(task), client.result(task), client.cancel(task)]


async def test_unknown_foreign_and_expired_are_one_answer() -> None:
    """T25-ERR-001, T25-RES-007, T25-CAN-005, T25-SEC-001, T25-GET-004, I5."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        strangers = it.client(BOB)
        for unknown in (task, UNKNOWN, "x", "", None, 5):
            for sent in asks(strangers, unknown):
                assert await sent.refused() == NOT_FOUND
        assert (await client.get(task))["status"] == "working"
        assert not call.cancelled.is_set()
        call.answer()
        await it.rig.settle()
        await it.rig.pass_time(60)
        for sent in asks(client, task):
            assert await sent.refused() == NOT_FOUND


async def test_a_cancelled_task_is_kept_until_its_ttl() -> None:
    """T25-GET-004: our choice, the specification leaves it open."""
    async with bench_2025() as it:
        client = it.client()
        task = await _cancelled(it, client)
        await it.rig.pass_time(59.999)
        assert (await client.get(task))["status"] == "cancelled"
        await it.rig.pass_time(0.001)
        assert await client.read(task).refused() == NOT_FOUND


async def test_a_task_is_found_again_in_another_session() -> None:
    """F06, T25-SEC-001: it is its owner's, and not the session's."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        client.session.end()
        again = it.client()
        assert (await again.get(task))["status"] == "working"
        call.answer()
        await it.rig.settle()
        assert (await again.result(task).result())["content"] == TEXT["content"]


async def test_the_id_in_the_params_decides() -> None:
    """T25-REL-002, T25-CAP-003: related-task metadata is ignored there, and so is `task`."""
    async with bench_2025() as it:
        client = it.client()
        first, _ = await client.task()
        second, _ = await client.task()
        params = {"taskId": first, "_meta": {RELATED: {"taskId": second}}, "task": {"ttl": 1}}
        assert (await client.start(names.TASKS_GET, params).result())["taskId"] == first
        assert (await client.start(names.TASKS_CANCEL, params).result())["taskId"] == first
        assert (await client.start(names.TASKS_RESULT, params).refused())[1] == "The task was cancelled"
        assert (await client.get(second))["status"] == "working"


async def test_a_task_that_is_polled_too_fast_is_not_harmed() -> None:
    """T25-SEC-004."""
    async with bench_2025(polls=5.0) as it:
        client = it.client()
        task = (await client.call().result())["task"]["taskId"]
        call = await it.rig.server.next_call()
        for _ in range(5):
            await client.get(task)
        code, words = await client.read(task).refused()
        assert (code, "polls_per_task" in words) == (-32603, True)
        await it.rig.pass_time(1)
        call.answer()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "completed"


async def test_refused_look_ups_are_counted() -> None:
    """T25-SEC-010."""
    async with bench_2025() as it:
        task, _ = await it.client().task()
        stranger = it.client(BOB)
        for _ in range(3):
            await stranger.read(task).refused()
            await stranger.cancel(UNKNOWN).refused()
        counted = it.rig.metrics.text().decode()
        assert 'reason="foreign"} 3.0' in counted
        assert 'reason="unknown"} 3.0' in counted


async def test_what_tasks_there_are_and_how_they_ended_is_counted() -> None:
    """T25-SEC-008."""
    async with bench_2025() as it:
        client = it.client()
        for end in ENDS.values():
            await end(it, client)
        await client.task()
        assert it.rig.calls.held == 1
        counted = it.rig.metrics.text().decode()
        assert "mcp_taskproxy_tasks_created_total 5.0" in counted
        for ended, count in {"completed": 2.0, "failed": 1.0, "cancelled": 1.0}.items():
            assert f'mcp_taskproxy_tasks_ended_total{{status="{ended}"}} {count}' in counted


async def test_the_life_of_a_task_is_told_in_the_log_without_what_was_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """T25-SEC-009: created and ended, one line each; the id itself could be used."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task(secret="Lovelace")
        call.answer({"content": [{"type": "text", "text": "Byron"}]})
        await it.rig.settle()
        await client.result(task).result()
    told = "".join(capsys.readouterr())
    assert told.count("task_created") == told.count("task_completed") == 1
    assert not [word for word in ("Lovelace", "Byron", task) if word in told]


# -- progress and logs --------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [7, "7", "p-1", 0])
async def test_progress_keeps_the_clients_token_for_the_tasks_whole_life(token: Any) -> None:
    """T25-PRG-001, T25-PRG-002, T25-REL-001: same type; nothing after the end, though the server goes on."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task(meta={"progressToken": token})
        call.progress(1, total=3, message="one", _meta={"theirs": 1})
        call.progress(2)
        await it.rig.settle()
        first, second = client.channel.told(names.PROGRESS)
        assert first == {
            "progressToken": token,
            "progress": 1,
            "total": 3,
            "message": "one",
            "_meta": {"theirs": 1, RELATED: {"taskId": task}},
        }
        assert type(second["progressToken"]) is type(token)
        await client.cancel(task).result()
        call.progress(3)
        await it.rig.settle()
        assert len(client.channel.told(names.PROGRESS)) == 2


async def test_who_gave_no_token_gets_no_progress_but_words() -> None:
    """F02, PROG-001."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        call.progress(3, total=10, message="rows copied")
        await it.rig.pass_time(1)
        assert client.channel.told(names.PROGRESS) == []
        assert (await client.get(task))["statusMessage"] == "3/10 rows copied"


async def test_logs_of_the_call_say_whose_they_are() -> None:
    """T25-REL-001."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        call.log("info", "words")
        assert client.channel.told(names.LOG_MESSAGE) == [
            {"level": "info", "data": "words", "_meta": {RELATED: {"taskId": task}}}
        ]


async def test_what_happens_during_the_call_goes_on_one_stream() -> None:
    """HTTP-065: that of `tasks/result` where there is one."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task(meta={"progressToken": "p"})
        stream = FakeChannel()
        waiting = client.result(task, stream)
        await it.rig.settle()
        call.progress(1)
        assert len(stream.told(names.PROGRESS)) == 1
        waiting.hang_up()
        await it.rig.settle()
        call.progress(2)
        assert [params["progress"] for params in client.channel.told(names.PROGRESS)] == [2]


async def test_a_client_that_cannot_be_reached_misses_what_it_misses() -> None:
    async with bench_2025() as it:
        client = it.client(listens=False)
        task, call = await client.task(meta={"progressToken": "p"})
        call.progress(1)
        call.log("info")
        await it.rig.settle()
        stream = client.listen()
        call.progress(2)
        assert [params["progress"] for params in stream.told(names.PROGRESS)] == [2]
        call.answer()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "completed"


# -- status notifications -----------------------------------------------------------------------------


async def test_every_change_of_status_is_announced_with_the_whole_task() -> None:
    """T25-NOT-001, T25-NOT-002: on the session's own stream, not that of `tasks/result`; in this dialect."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        stream = FakeChannel()
        client.result(task, stream)
        await it.rig.settle()
        call.elicit()
        await it.rig.settle()
        client.answer(stream.questions[0])
        await it.rig.settle()
        call.answer(TOOL_ERROR)
        await it.rig.settle()
        told = client.channel.told(names.TASK_STATUS_NOTIFICATION)
        assert [one["status"] for one in told] == ["input_required", "working", "failed"]
        assert {one["taskId"] for one in told} == {task}
        assert told[-1] == await client.get(task)
        assert stream.told(names.TASK_STATUS_NOTIFICATION) == []


async def test_progress_alone_is_no_change_of_status() -> None:
    async with bench_2025() as it:
        client = it.client()
        _, call = await client.task()
        call.progress(1, message="one")
        await it.rig.pass_time(5)
        assert client.channel.told(names.TASK_STATUS_NOTIFICATION) == []


async def test_one_session_of_the_owner_is_told_the_one_that_asked_last() -> None:
    async with bench_2025() as it:
        client, other = it.client(), it.client()
        task, call = await client.task()
        await other.get(task)
        call.answer()
        await it.rig.settle()
        assert client.channel.said == []
        assert len(other.channel.said) == 1


async def test_who_has_left_is_told_nothing_and_another_session_is() -> None:
    async with bench_2025() as it:
        client, other = it.client(), it.client()
        task, call = await client.task()
        await other.get(task)
        other.session.end()
        call.answer()
        await it.rig.settle()
        assert other.channel.said == []
        assert len(client.channel.said) == 1


async def test_nothing_is_kept_of_a_task_that_has_ended() -> None:
    async with bench_2025() as it:
        client = it.client()
        for end in ENDS.values():
            await end(it, client)
        assert it.companions == {}


async def test_while_the_store_cannot_be_read_clients_are_told_later() -> None:
    """Who accompanies the task tries again."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        it.start_over()  # nobody accompanies it now
        again = it.client()
        it.rig.store.read_gate = anyio.Event()
        sent = again.read(task)
        await it.rig.settle()
        it.rig.store.read_gate.set()
        await sent.result()
        it.rig.store.unreadable = True
        await it.rig.pass_time(5)
        it.rig.store.unreadable = False
        call.elicit()
        await it.rig.pass_time(10)
        assert len(again.channel.questions) == 1


# -- two dialects -------------------------------------------------------------------------------------


async def test_a_modern_client_reads_and_cancels_a_2025_task() -> None:
    """Contract section 5: an owner reaches a task by either dialect."""
    async with bench_2025() as it:
        client = it.client()
        modern = it.rig.client(owner=client.owner)
        task, call = await client.task()
        told, seen = await client.get(task), await modern.get(task)
        assert (seen["ttlMs"], seen["pollIntervalMs"]) == (told["ttl"], told["pollInterval"])
        assert {**seen, "resultType": None}.keys() & {"ttl", "pollInterval", "task"} == set()
        waiting = client.result(task)
        await it.rig.settle()
        await modern.cancel(task)
        assert (await waiting.refused())[1] == "The task was cancelled"
        await it.rig.settle()
        assert call.cancelled.is_set()
        assert (await client.get(task))["status"] == "cancelled"


async def test_a_2025_client_reads_and_cancels_a_modern_task() -> None:
    async with bench_2025() as it:
        client = it.client()
        modern = it.rig.client(owner=client.owner)
        done, call = await it.rig.task(modern)
        waiting = client.result(done)
        await it.rig.settle()
        call.answer()
        assert await waiting.result() == {**TEXT, "_meta": {RELATED: {"taskId": done}}}
        running, call = await it.rig.task(modern)
        assert (await client.cancel(running).result())["status"] == "cancelled"
        await it.rig.settle()
        assert call.cancelled.is_set()
        assert (await modern.get(running))["status"] == "cancelled"


async def test_a_modern_client_of_another_owner_sees_nothing_of_it() -> None:
    """I5."""
    async with bench_2025() as it:
        task, _ = await it.client().task()
        _, error = await it.rig.client(owner=BOB).start("tasks/get", {"taskId": task}).error()
        assert (error["code"], error["message"]) == NOT_FOUND


async def test_the_error_that_asks_for_a_visit_stays_what_it_is() -> None:
    """ELIC: -32042 reaches the 2025 client as without us, and is not followed for it; a modern client sees
    no code that its era forbids."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        data = {"elicitations": [{"mode": "url", "url": "https://x", "elicitationId": "e", "message": "m"}]}
        call.fail(-32042, "visit first", data=data)
        await it.rig.settle()
        assert await client.result(task).error() == {"code": -32042, "message": "visit first", "data": data}
        assert client.channel.questions == []
        assert it.rig.server.calls_seen == 1
        modern = await it.rig.client(owner=client.owner).get(task)
        assert (modern["status"], modern["error"]["code"]) == ("failed", -32603)


async def test_after_a_restart_a_task_that_has_ended_reads_as_before() -> None:
    """T25-SEC-001, I3, F06."""
    async with bench_2025() as it:
        client = it.client()
        tasks = [await end(it, client) for end in ENDS.values()]
        before = [await client.get(task) for task in tasks]
        result = await client.result(tasks[0]).raw()
        it.rig.start_over()
        it.start_over()
        again = it.client()
        assert [await again.get(task) for task in tasks] == before
        assert await again.result(tasks[0]).raw() == result
        assert sorted(await again.listed()) == sorted(tasks)


async def test_the_statuses_of_the_record_and_of_this_dialect_differ_in_one_case() -> None:
    """T25-STA-003."""
    async with bench_2025() as it:
        client = it.client()
        for state, make in STATES.items():
            task = await it.rig.stored(await make(it, client))
            assert (status_of(task) == task.status) is (state != "failed_by_its_tool")
