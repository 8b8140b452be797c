"""A task's record kept in step with its call: how it ends, what it shows on the way, and a store that fails.

Contract sections 4 and 9; Tasks extension, "Task Status".
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import anyio
import pytest

from proxy.protocol.envelope import RawObject
from proxy.protocol.outline import Outline
from proxy.routing.outcomes import ERROR_MAX_BYTES
from proxy.tasks.policy import Policy, Polling
from tests.routing.bench import TASKS, Bench, bench
from tests.routing.fake_server import TEXT, Refused

pytestmark = pytest.mark.anyio

YES: Final = {"action": "accept", "content": {"ok": True}}
DIED: Final = "upstream 'fake' died; outcome unknown"


async def ended(rig: Bench, task: str) -> dict[str, Any]:
    """The task once it has ended, and that it reads the same an hour later."""
    await rig.settle()
    answer = await rig.client().get(task)
    await rig.pass_time(3_000)
    assert await rig.client().get(task) == answer
    return answer


# ------------------------------------------------------------------------------ how it ends


@pytest.mark.parametrize("is_error", [True, False])
async def test_a_result_ends_in_completed_whether_or_not_it_is_an_error_of_the_tool(is_error: bool) -> None:
    """TX-STA-003, TX-STA-004, TOOL-003; the record knows which, for T25-STA-003."""
    async with bench() as rig:
        task, call = await rig.task(rig.client())
        call.answer({**TEXT, "isError": is_error})
        answer = await ended(rig, task)
        assert (answer["status"], answer["result"]["isError"]) == ("completed", is_error)
        assert answer["result"]["content"] == TEXT["content"]
        stored = await rig.stored(task)
        assert stored.tool_error == (TEXT["content"][0]["text"] if is_error else None)
        assert stored.result is not None
        assert stored.result_outline == Outline.of(RawObject.parse(stored.result))


@pytest.mark.parametrize("code, seen", [(-32602, -32602), (7, 7), (-32002, -32602), (-32050, -32603)])
async def test_an_error_ends_in_failed_with_that_very_error(code: int, seen: int) -> None:
    """TX-STA-005, TX-STA-006, BASE-010, BASE-012: and its words as the status message."""
    async with bench() as rig:
        task, call = await rig.task(rig.client())
        call.fail(code, "no such row", data={"row": 1.0})
        answer = await ended(rig, task)
        assert (answer["status"], answer["statusMessage"]) == ("failed", "no such row")
        error = answer["error"]
        assert (error["code"], error["message"]) == (seen, "no such row")
        original = error["data"].get("upstreamError", error)
        assert original["data"] == {"row": 1.0}


@pytest.mark.parametrize("limit", [1_000, 64 * 1024 * 1024])
async def test_of_an_error_that_is_too_large_to_be_kept_its_code_and_words_are(limit: int) -> None:
    """Errors of all tasks are in memory; TX-STA-005."""
    async with bench(policy=Policy(max_result_bytes=limit)) as rig:
        task, call = await rig.task(rig.client())
        call.fail(7, "no such row", data={"rows": "x" * min(limit, ERROR_MAX_BYTES)})
        answer = await ended(rig, task)
        assert (answer["status"], answer["statusMessage"]) == ("failed", "no such row")
        error = answer["error"]
        assert (error["code"], "data" in error) == (7, False)
        assert "no such row (the error had" in error["message"]
        assert f"over the limit of {min(limit, ERROR_MAX_BYTES)}" in error["message"]


@pytest.mark.parametrize("error", [b"{}", b'{"code":"x"}', b'{"code":1,"message":"a","message":"b"}'])
async def test_a_malformed_error_ends_in_failed_all_the_same(error: bytes) -> None:
    async with bench() as rig:
        task, call = await rig.task(rig.client())
        call.wire.tell_raw(b'{"jsonrpc":"2.0","id":%d,"error":%s}' % (call.id, error), call.id)
        answer = await ended(rig, task)
        assert (answer["status"], answer["error"]["code"]) == ("failed", -32603)


@pytest.mark.parametrize(
    "result", [b"[1]", b"7", b'{"_meta":{},"_meta":{}}', b'{"content":"' + b"x" * 2_000 + b'"}']
)
async def test_a_result_that_cannot_be_served_ends_in_failed(result: bytes) -> None:
    """TX-STA-007: no object, not to be spliced, or over `limits.result`."""
    async with bench(policy=Policy(max_result_bytes=1_000)) as rig:
        task, call = await rig.task(rig.client())
        call.answer_raw(result)
        answer = await ended(rig, task)
        assert (answer["status"], answer["error"]["code"]) == ("failed", -32603)
        assert answer["statusMessage"] == answer["error"]["message"]


@pytest.mark.parametrize("phase", ["working", "input_required", "not sent"])
async def test_an_upstream_that_dies_fails_the_task_at_once_and_says_why(phase: str) -> None:
    """TX-STA-006, TX-STA-007: never sent again; the next call gets a fresh upstream."""
    async with bench() as rig:
        client = rig.client()
        if phase == "not sent":
            rig.server.start_fault = DIED
            task = (await client.call("at_once").result())["taskId"]
        else:
            task, call = await rig.task(client)
            if phase == "input_required":
                call.elicit()
                await rig.settle()
            rig.server.wire.break_off(DIED)
        await rig.settle()
        answer = await client.get(task)
        assert answer["status"] == "failed"
        assert answer["error"] == {"code": -32603, "message": DIED}
        assert answer["statusMessage"] == DIED
        assert rig.server.calls_seen == (0 if phase == "not sent" else 1)
        rig.server.start_fault = None
        _, again = await rig.task(client)
        assert again.wire is rig.server.wire


# ------------------------------------------------------------------------------ what it shows


async def test_questions_come_and_go_in_the_record() -> None:
    """TX-GET-002, TX-GET-003, TX-STA-001, TX-NEW-005: `lastUpdatedAt` moves with them."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        first = call.elicit("first")
        await rig.settle()
        shown = await client.get(task)
        assert (shown["status"], shown["statusMessage"]) == ("input_required", "Waiting for input.")
        await rig.pass_time(1)
        assert (await client.get(task))["lastUpdatedAt"] == shown["lastUpdatedAt"]
        call.elicit("second")
        await rig.settle()
        both = await client.get(task)
        assert list(both["inputRequests"])[:1] == list(shown["inputRequests"])
        assert len(both["inputRequests"]) == 2
        assert both["lastUpdatedAt"] > shown["lastUpdatedAt"]
        call.withdraw(first)
        await rig.settle()
        assert list((await client.get(task))["inputRequests"]) == list(both["inputRequests"])[1:]


@pytest.mark.parametrize(
    "asked, code",
    [
        ("sampling/createMessage", -32601),
        ("roots/list", -32601),
        ("elicitation/create", -32602),
    ],
)
async def test_in_a_task_a_question_that_the_client_cannot_answer_is_refused_and_the_tool_goes_on(
    asked: str, code: int
) -> None:
    """TX-UPD-010, ELIC-001: nothing of it is ever shown."""
    async with bench() as rig:
        client = rig.client(capabilities={**TASKS, "elicitation": {}})
        task, call = await rig.task(client)
        question = call.ask(asked, mode="url", url="https://a", message="b")
        with pytest.raises(Refused) as refused:
            await question.answer()
        assert refused.value.code == code
        assert (await client.get(task))["status"] == "working"
        call.answer()
        assert (await ended(rig, task))["status"] == "completed"


async def test_progress_becomes_the_status_message() -> None:
    """TX-NEW-008; it is shown again once a question is answered."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        assert (await client.get(task))["statusMessage"] == "The call is running."
        call.progress(3, total=10, message="rows copied")
        await rig.pass_time(0.1)
        told = await client.get(task)
        assert told["statusMessage"] == "3/10 rows copied"
        call.elicit()
        await rig.settle()
        asked = await client.get(task)
        assert asked["statusMessage"] == "Waiting for input."
        call.progress(4, total=10, message="rows copied")
        await rig.pass_time(0.1)
        assert (await client.get(task))["statusMessage"] == "Waiting for input."
        await client.update(task, dict.fromkeys(asked["inputRequests"], YES))
        await rig.pass_time(0.1)
        assert (await client.get(task))["statusMessage"] == "4/10 rows copied"


async def test_a_task_whose_process_is_at_hand_never_says_that_it_waits() -> None:
    async with bench() as rig:
        client = rig.client()
        await client.start("server/discover").result()
        task = (await client.call("at_once").result())["taskId"]
        await rig.pass_time(1)
        assert (await client.get(task))["statusMessage"] == "The call is running."
        assert (await rig.stored(task)).revision == 0


async def test_a_flood_of_progress_costs_little() -> None:
    """PROG-004: ten thousand in a second, and one is not lost: the last."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        n = 0
        for _ in range(100):
            for _ in range(100):
                n += 1
                call.progress(n)
            await rig.pass_time(0.01)
        await rig.pass_time(0.2)
        assert (await client.get(task))["statusMessage"] == "10000"
        assert rig.store.writes["note"] <= 12


async def test_times_never_run_backwards_though_the_wall_clock_does() -> None:
    """TX-NEW-005."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        before = await client.get(task)
        rig.clock.set_wall_ms(rig.clock.wall_ms() - 3_600_000)
        call.elicit()
        await rig.settle()
        after = await client.get(task)
        assert after["createdAt"] == before["createdAt"]
        assert after["lastUpdatedAt"] >= before["lastUpdatedAt"]


async def test_the_ttl_is_raised_in_time_and_stands_at_the_end() -> None:
    """TX-NEW-006, TX-NEW-007, TX-NEW-011, TX-NEW-012: until it is over, and then it is gone."""
    policy = Policy(retention_ms=60_000, polling=Polling(first_ms=300, last_ms=5_000))
    async with bench(policy=policy) as rig:
        client = rig.client()
        task, call = await rig.task(client)
        last = 0
        for age_s in range(0, 200, 10):
            shown = await client.get(task)
            left_ms = shown["ttlMs"] - age_s * 1_000
            assert left_ms > 30_000  # raised before half of the retention is used up
            assert shown["ttlMs"] >= last
            assert shown["pollIntervalMs"] == max(300, min(5_000, age_s * 50))
            last = shown["ttlMs"]
            await rig.pass_time(10)
        call.answer()
        await rig.settle()
        final = await client.get(task)
        assert final["ttlMs"] == 260_000
        await rig.pass_time(59)
        assert await client.get(task) == final
        await rig.pass_time(1)
        _, error = await client.start("tasks/get", {"taskId": task}).error()
        assert error["code"] == -32602


# ------------------------------------------------------------------------------ a store that fails


async def test_an_end_that_cannot_be_stored_is_held_until_it_can() -> None:
    """F13: `working` until then, never completed without its result."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        rig.store.broken = True
        call.answer()
        await rig.pass_time(60)
        assert (await client.get(task))["status"] == "working"
        rig.store.broken = False
        await rig.pass_time(10)
        answer = await client.get(task)
        assert (answer["status"], answer["result"]["content"]) == ("completed", TEXT["content"])


@pytest.mark.parametrize("fault", ["unsure", "late"])
async def test_an_end_of_which_nobody_knows_is_stored_once(fault: str) -> None:
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        setattr(rig.store, fault, True)
        call.answer()
        await rig.settle()
        setattr(rig.store, fault, False)
        await rig.store.make_late_ones()
        await rig.pass_time(10)
        answer = await client.get(task)
        assert answer["status"] == "completed"
        assert (await rig.stored(task)).revision == 1


async def test_a_cancel_that_is_stored_while_the_end_is_not_stays() -> None:
    """I4."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        rig.store.broken = True
        call.answer()
        await rig.pass_time(1)
        rig.store.broken = False
        await client.cancel(task)
        await rig.pass_time(20)
        assert (await client.get(task))["status"] == "cancelled"


@pytest.mark.parametrize("fault", ["broken", "unsure"])
async def test_a_question_that_cannot_be_stored_is_shown_when_it_can(fault: str) -> None:
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        setattr(rig.store, fault, True)
        question = call.elicit()
        await rig.pass_time(0.1)
        setattr(rig.store, fault, False)
        await rig.pass_time(1)
        shown = await client.get(task)
        [key] = shown["inputRequests"]
        await client.update(task, {key: YES})
        assert await question.answer() == YES


async def test_a_question_that_was_withdrawn_before_it_could_be_stored_is_never_shown() -> None:
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        rig.store.broken = True
        question = call.elicit()
        await rig.settle()
        call.withdraw(question)
        rig.store.broken = False
        await rig.pass_time(10)
        assert (await client.get(task))["status"] == "working"
        assert (await rig.stored(task)).next_key == 1


async def test_an_answer_that_arrives_after_the_end_changes_nothing_any_more() -> None:
    """I4: that it need not be kept is no change of a terminal record."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        call.elicit()
        await rig.settle()
        rig.server.reads = anyio.Event()
        await client.update(task, dict.fromkeys((await client.get(task))["inputRequests"], YES))
        call.answer()
        await rig.settle()
        stored = await rig.stored(task)
        rig.server.reads.set()
        await rig.pass_time(10)
        assert await rig.stored(task) == stored


async def test_an_unreadable_store_only_delays() -> None:
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        rig.store.broken = rig.store.unreadable = True
        call.answer()
        await rig.pass_time(5)
        rig.store.broken = rig.store.unreadable = False
        await rig.pass_time(10)
        assert (await client.get(task))["status"] == "completed"


async def test_a_fault_of_our_own_fails_the_task_and_ends_its_call() -> None:
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        rig.store.buggy = True
        call.elicit()
        answer = await ended(rig, task)
        assert answer["status"] == "failed"
        assert "internal error" in answer["error"]["message"]
        await call.cancelled.wait()


async def test_at_the_end_of_the_proxy_a_running_task_is_left_as_it_is_stored() -> None:
    async with bench() as rig:
        rig.start_over()
        async with anyio.create_task_group() as tasks:
            await tasks.start(rig.pool.run)
            await tasks.start(rig.runner.run)
            task, _ = await rig.task(rig.client())
            tasks.cancel_scope.cancel()
        stored = await rig.stored(task)
        assert (stored.status, stored.revision) == ("working", 0)
        assert datetime.fromisoformat((await rig.client().get(task))["createdAt"])
