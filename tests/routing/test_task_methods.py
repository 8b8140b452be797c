"""What clients ask about tasks, and make of them: get, update, cancel.

Contract section 4; Tasks extension, "Task Polling", "Task Update Requests", "Task Cancellation".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import pytest
from anyio.lowlevel import checkpoint

from proxy.protocol.outline import Outline
from proxy.routing.base import ResultAnswer
from proxy.tasks import inputs, lifecycle
from proxy.tasks.policy import Polling
from tests.routing.bench import ADA, ASKABLE, BOB, TASKS, Bench, Client, bench
from tests.routing.fake_server import Asked, Call, Refused

pytestmark = pytest.mark.anyio

YES: Final = {"action": "accept", "content": {"ok": True}}
NO: Final = {"action": "decline"}
ACK: Final = {"resultType": "complete"}
UNKNOWN: Final = "tpx-" + "A" * 32
ONLY_2025: Final[dict[str, Any]] = {"tasks": {"cancel": {}}}
METHODS: Final = ("tasks/get", "tasks/update", "tasks/cancel")


async def waiting_task(
    rig: Bench, client: Client, *messages: str
) -> tuple[str, Call, list[Asked], list[str]]:
    """A task that waits for input: its id, the call, its questions and their keys."""
    task, call = await rig.task(client)
    questions = [call.elicit(message) for message in messages or ("Go on?",)]
    await rig.settle()
    shown = (await client.get(task))["inputRequests"]
    return task, call, questions, list(shown)


def params(task: Any, **more: Any) -> dict[str, Any]:
    return {"taskId": task, **more}


# ------------------------------------------------------------------------------ get


async def test_a_task_is_told_in_every_status() -> None:
    """TX-GET-001, TX-GET-002, TX-GET-004, TX-GET-005, TX-GET-006, TX-RES-002, TX-RES-003, TX-STA-001."""
    async with bench() as rig:
        client = rig.client()
        told = {}
        task, call = await rig.task(client)
        told["working"] = await client.get(task)
        call.elicit()
        await rig.settle()
        told["input_required"] = await client.get(task)
        call.answer()
        await rig.settle()
        told["completed"] = await client.get(task)
        task, call = await rig.task(client)
        call.fail(-1, "no")
        await rig.settle()
        told["failed"] = await client.get(task)
        task, call = await rig.task(client)
        await client.cancel(task)
        told["cancelled"] = await client.get(task)

        extra = {
            "working": set(),
            "input_required": {"inputRequests"},
            "completed": {"result"},
            "failed": {"error"},
            "cancelled": set(),
        }
        for status, answer in told.items():
            assert answer["status"] == status
            assert answer["resultType"] == "complete"
            assert answer.keys() & {"result", "error", "inputRequests"} == extra[status]
            assert not answer.keys() & {"ttl", "pollInterval"}
        assert told["failed"]["error"] == {"code": -1, "message": "no"}
        assert told["completed"]["result"]["resultType"] == "complete"


async def test_a_result_in_a_task_is_what_the_blocking_answer_would_have_been() -> None:
    """TX-GET-004, TX-GET-013: to the letter, without related-task metadata."""
    raw = b'{"content": [], "structuredContent":{"n": 1.50}, "isError":false,"_meta":{"com.example/x": 1}}'
    async with bench() as rig:
        blocking = rig.client(capabilities={}).call("slow")
        (await rig.server.next_call()).answer_raw(raw)
        await blocking.result()
        client = rig.client()
        task, call = await rig.task(client)
        call.answer_raw(raw)
        await rig.settle()
        polled = client.start("tasks/get", params(task))
        await polled.result()
        assert b'"result":' + blocking.raw + b"}" in polled.raw
        assert b"related-task" not in polled.raw


async def test_reading_a_task_changes_nothing_and_asks_nobody() -> None:
    """TX-GET-003, TX-GET-009."""
    async with bench(polls=1_000) as rig:
        client = rig.client()
        task, call, _, _ = await waiting_task(rig, client, "first", "second")
        heard, writes = len(call.wire.heard), dict(rig.store.writes)
        answers = [await client.get(task) for _ in range(100)]
        assert all(answer == answers[0] for answer in answers)
        assert len(answers[0]["inputRequests"]) == 2
        assert (len(call.wire.heard), dict(rig.store.writes)) == (heard, writes)


@pytest.mark.parametrize("task", [UNKNOWN, "", "x", "tpx-", None, 7, {}])
@pytest.mark.parametrize("method", METHODS)
async def test_an_unknown_or_malformed_id_is_one_error(method: str, task: Any) -> None:
    """TX-GET-007, TX-GET-011, TX-UPD-002, TX-CAN-002."""
    async with bench() as rig:
        given = {"inputResponses": {}} if task is None else params(task, inputResponses={})
        status, error = await rig.client().start(method, given).error()
        assert (status, error) == (
            200,
            {"code": -32602, "message": "Task not found: no such task, or it has expired"},
        )


async def test_an_unknown_task_is_told_before_what_else_is_wrong() -> None:
    """TX-UPD-002."""
    async with bench() as rig:
        _, error = await rig.client().start("tasks/update", params(UNKNOWN)).error()
        assert error["message"].startswith("Task not found")


async def test_a_task_of_another_owner_is_as_unknown_as_one_that_never_was() -> None:
    """TX-SEC-002, TX-UPD-011: the same answer to the letter; and nothing happens to the task."""
    async with bench() as rig:
        ada, bob = rig.client(owner=ADA), rig.client(owner=BOB)
        task, _, [question], [key] = await waiting_task(rig, ada)
        for method in METHODS:
            answers = [
                json.dumps(await bob.start(method, params(name, inputResponses={key: NO})).error())
                for name in (task, UNKNOWN)
            ]
            assert answers[0] == answers[1]
        assert (await ada.get(task))["status"] == "input_required"
        assert not question.answers


async def test_a_result_is_read_for_its_owner_alone_and_where_it_is_shown() -> None:
    """TX-SEC-002: who may not have it could tell from the time that a large one takes."""
    async with bench(polls=1) as rig:
        ada, bob = rig.client(owner=ADA), rig.client(owner=BOB)
        task, call = await rig.task(ada)
        call.answer()
        await rig.settle()
        rig.store.results_read = 0
        for method in METHODS:
            await bob.start(method, params(task, inputResponses={})).error()
        await ada.cancel(task)
        await ada.update(task, {})
        assert rig.store.results_read == 0
        await ada.get(task)
        assert rig.store.results_read == 1
        assert (await ada.start("tasks/get", params(task)).error())[0] == 429
        assert rig.store.results_read == 1


async def test_a_stored_result_is_neither_read_through_nor_copied_at_a_poll() -> None:
    """Others are served meanwhile: with 50 MB each of the two would take a second from them."""
    broken = b'{"content":[[["' + b"x" * 1_000_000 + b'"}'  # who reads it through stumbles
    async with bench() as rig:
        now_ms = rig.clock.wall_ms()
        task = lifecycle.created(
            id=UNKNOWN, owner=ADA.key, method="tools/call", name="t", now_ms=now_ms, retention_ms=60_000
        )
        outline = Outline((), len(broken) - 1)
        task = lifecycle.completed(
            task, broken, b'{"name":"s"}', Polling(), now_ms, tool_error=None, outline=outline
        )
        await rig.memory.create(task)
        polled = rig.client(owner=ADA).start("tasks/get", params(task.id))
        answer = await polled.answer()
        assert isinstance(answer, ResultAnswer)
        pieces = answer.pieces
        assert sum(len(piece) for piece in pieces if isinstance(piece, bytes)) < 1_000
        assert [piece.obj for piece in pieces if isinstance(piece, memoryview)] == [broken] * 2
        assert b'"result":' + broken[:-1] + b',"resultType":"complete","_meta":{' in answer.result


async def test_another_connection_of_the_owner_may_do_all() -> None:
    """TX-UPD-011, TX-GET-012, BASE-018."""
    async with bench() as rig:
        task, call, [question], [key] = await waiting_task(rig, rig.client(owner=ADA))
        other = rig.client(
            owner=ADA, meta={"io.modelcontextprotocol/clientInfo": {"name": "o", "version": "1"}}
        )
        assert await other.update(task, {key: YES}) == ACK
        assert await question.answer() == YES
        assert await other.cancel(task) == ACK
        await call.cancelled.wait()


@pytest.mark.parametrize("task", ["own", UNKNOWN])
@pytest.mark.parametrize("method", METHODS)
async def test_without_the_extension_the_methods_are_refused_and_do_nothing(method: str, task: str) -> None:
    """TX-CAP-005, TX-CAP-009, TX-CAP-010: also where only the 2025 slot is declared."""
    async with bench() as rig:
        client = rig.client()
        own, call, [question], [key] = await waiting_task(rig, client)
        for declared in (ASKABLE, ONLY_2025):
            named = params(own if task == "own" else task, inputResponses={key: YES})
            status, error = await client.but(capabilities=declared).start(method, named).error()
            assert (status, error["code"]) == (400, -32021)
            assert error["data"] == {"requiredCapabilities": TASKS}
        assert list((await client.get(own))["inputRequests"]) == [key]
        assert not question.answers
        assert not call.cancelled.is_set()


async def test_polls_are_served_up_to_the_limit_and_then_refused_clearly() -> None:
    """TX-GET-008: one every 20 ms is ordinary; a refused one costs the task nothing."""
    async with bench(polls=50) as rig:
        client = rig.client()
        task, _ = await rig.task(client)
        for _ in range(100):
            await client.get(task)
            await rig.pass_time(0.02)
        for _ in range(49):
            await client.get(task)
        status, error = await client.start("tasks/get", params(task)).error()
        assert status == 429
        assert "too fast" in error["message"]
        assert (await rig.stored(task)).status == "working"
        await rig.pass_time(1)
        assert (await client.get(task))["status"] == "working"


@pytest.mark.parametrize("method", METHODS)
async def test_a_store_that_cannot_be_read_is_an_internal_error_without_internals(method: str) -> None:
    """TX-GET-010."""
    async with bench() as rig:
        client = rig.client()
        task, _ = await rig.task(client)
        rig.store.unreadable = True
        status, error = await client.start(method, params(task, inputResponses={})).error()
        assert (status, error["code"]) == (200, -32603)
        assert "Traceback" not in json.dumps(error)


# ------------------------------------------------------------------------------ update


async def test_an_answer_takes_effect_before_it_is_acknowledged() -> None:
    """TX-UPD-001, TX-UPD-005, TX-UPD-009, TX-RES-004: the upstream gets it once, by its own id."""
    async with bench() as rig:
        client = rig.client()
        task, call, [question], [key] = await waiting_task(rig, client)
        assert await client.update(task, {key: YES}) == ACK
        after = await client.get(task)
        assert (after["status"], "inputRequests" in after) == ("working", False)
        assert await question.answer() == YES
        call.answer()
        await rig.settle()
        assert (await client.get(task))["status"] == "completed"
        assert len(question.answers) == 1
        assert question.answers[0]["id"] == question.id


async def test_a_subset_may_be_answered() -> None:
    """TX-UPD-004."""
    async with bench() as rig:
        client = rig.client()
        task, _, questions, [first, second] = await waiting_task(rig, client, "first", "second")
        assert await client.update(task, {second: NO}) == ACK
        shown = await client.get(task)
        assert (shown["status"], list(shown["inputRequests"])) == ("input_required", [first])
        assert await questions[1].answer() == NO
        assert not questions[0].answers
        await client.update(task, {first: YES})
        assert await questions[0].answer() == YES
        assert (await client.get(task))["status"] == "working"


async def test_keys_that_are_not_open_are_ignored_each_by_itself() -> None:
    """TX-UPD-003: never asked, answered already, and a good one."""
    async with bench() as rig:
        client = rig.client()
        task, _, questions, [first, second] = await waiting_task(rig, client, "first", "second")
        await client.update(task, {first: YES})
        assert await client.update(task, {first: NO, "input-99": 1, second: NO}) == ACK
        assert [await question.answer() for question in questions] == [YES, NO]
        assert [len(question.answers) for question in questions] == [1, 1]
        assert await client.update(task, {first: NO}) == ACK


@pytest.mark.parametrize(
    "given", [{}, {"inputResponses": []}, {"inputResponses": "a"}, {"inputResponses": None}]
)
async def test_an_update_without_usable_answers_is_invalid(given: Any) -> None:
    """TX-UPD-012."""
    async with bench() as rig:
        client = rig.client()
        task, _, [question], [key] = await waiting_task(rig, client)
        status, error = await client.start("tasks/update", params(task, **given)).error()
        assert (status, error["code"]) == (200, -32602)
        assert list((await client.get(task))["inputRequests"]) == [key]
        assert not question.answers


@pytest.mark.parametrize("bad", [{}, {"action": "maybe"}, "text", {"action": "accept", "content": []}])
async def test_one_value_of_a_wrong_kind_spoils_the_update(bad: Any) -> None:
    """TX-UPD-012: nothing is applied."""
    async with bench() as rig:
        client = rig.client()
        task, _, questions, [first, second] = await waiting_task(rig, client, "first", "second")
        answers = {first: YES, second: bad}
        _, error = await client.start("tasks/update", params(task, inputResponses=answers)).error()
        assert error["code"] == -32602
        assert list((await client.get(task))["inputRequests"]) == [first, second]
        assert not any(question.answers for question in questions)


async def test_answers_that_the_server_does_not_read_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract section 8: what is too much is refused and changes nothing; later there is room for it."""
    monkeypatch.setattr(inputs, "MAX_BYTES", 1_000)
    async with bench() as rig:
        client = rig.client()
        task, _, [one, other], [first, second] = await waiting_task(rig, client, "first", "second")
        large = {"action": "accept", "content": {"text": "x" * 600}}
        rig.server.reads = anyio.Event()
        assert await client.update(task, {first: large}) == ACK
        _, error = await client.start("tasks/update", params(task, inputResponses={second: large})).error()
        assert error["code"] == -32602
        assert "over the limit of 1000" in error["message"]
        assert list((await client.get(task))["inputRequests"]) == [second]
        rig.server.reads.set()
        assert await one.answer() == large
        await rig.settle()
        assert await client.update(task, {second: large}) == ACK
        assert await other.answer() == large


async def test_content_is_the_servers_business() -> None:
    """TX-UPD-012."""
    async with bench() as rig:
        client = rig.client()
        task, _, [question], [key] = await waiting_task(rig, client)
        odd = {"action": "accept", "content": {"ok": "not a boolean", "more": [1]}}
        assert await client.update(task, {key: odd}) == ACK
        assert await question.answer() == odd


async def test_a_key_is_never_used_twice() -> None:
    """TX-UPD-006, TX-UPD-008, ELIC-007: three rounds, the same text; before the task and in it."""
    async with bench() as rig:
        client = rig.client()
        sent = client.call("slow")
        call = await rig.server.next_call()
        call.elicit()
        await rig.pass_time(0.05)
        asked = await sent.result()
        keys = list(asked["inputRequests"])
        again = client.retry(asked, "slow", {keys[0]: NO})
        await rig.pass_time(2)
        task = (await again.result())["taskId"]
        for _ in range(3):
            call.elicit()
            await rig.settle()
            [key] = (await client.get(task))["inputRequests"]
            keys.append(key)
            await client.update(task, {key: NO})
        assert len(set(keys)) == 4


async def test_answers_are_kept_until_the_upstream_has_them_and_no_longer() -> None:
    async with bench() as rig:
        client = rig.client()
        task, _, [question], [key] = await waiting_task(rig, client)
        rig.server.reads = anyio.Event()
        await client.update(task, {key: YES})
        [kept] = (await rig.stored(task)).answers
        assert (kept.key, json.loads(kept.value)) == (key, YES)
        rig.server.reads.set()
        assert await question.answer() == YES
        await rig.settle()
        assert (await rig.stored(task)).answers == ()


# ------------------------------------------------------------------------------ cancel


async def test_a_cancel_is_acknowledged_at_once_whatever_the_upstream_does() -> None:
    """TX-CAN-001, TX-RES-005, TX-STA-002, F05: its late answer is dropped."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        assert await client.cancel(task) == ACK
        await call.cancelled.wait()
        cancelled = await client.get(task)
        call.fail(0, "Request cancelled")
        call.answer()
        await rig.pass_time(60)
        assert cancelled["status"] == "cancelled"
        assert await client.get(task) == cancelled
        assert rig.calls.held == 0


async def test_a_task_that_waits_for_input_can_be_cancelled() -> None:
    """TX-CAN-006: its questions are released."""
    async with bench() as rig:
        client = rig.client()
        task, call, [question], [key] = await waiting_task(rig, client)
        await client.cancel(task)
        await call.cancelled.wait()
        with pytest.raises(Refused):
            await question.answer()
        assert (await client.get(task)).keys().isdisjoint({"inputRequests", "result", "error"})
        assert await client.update(task, {key: YES}) == ACK


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_a_cancel_of_what_has_ended_is_acknowledged_and_changes_nothing(end: str) -> None:
    """TX-CAN-003, TX-STA-002, F07."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        match end:
            case "completed":
                call.answer()
            case "failed":
                call.fail(-1, "no")
            case "cancelled":
                await client.cancel(task)
        await rig.settle()
        before = await client.get(task)
        await rig.pass_time(60)
        assert await client.cancel(task) == ACK
        assert await client.get(task) == before
        assert before["status"] == end


async def test_a_cancel_of_a_call_that_waits_for_its_process_sends_nothing() -> None:
    async with bench() as rig:
        rig.server.may_start = anyio.Event()
        client = rig.client()
        task = (await client.call("at_once").result())["taskId"]
        await client.cancel(task)
        rig.server.may_start.set()
        await rig.settle()
        assert rig.server.calls_seen == 0


async def after_turns(turns: int, act: Callable[[], Awaitable[None]]) -> None:
    for _ in range(turns):
        await checkpoint()
    await act()


async def test_a_cancel_and_a_result_released_together_leave_one_outcome() -> None:
    """TX-CAN-004, TX-STA-002, CANC-001, I4: whichever was stored first stays, a thousand times."""
    outcomes = set()
    async with bench(bound_s=60) as rig:
        client = rig.client()

        async def cancel() -> None:
            assert await client.cancel(task) == ACK

        async def answer() -> None:
            call.answer()

        for turn in range(1_000):
            task = (await client.call("at_once").result())["taskId"]
            call = await rig.server.next_call()
            first, second = (cancel, answer) if turn % 2 else (answer, cancel)
            async with anyio.create_task_group() as group:
                group.start_soon(after_turns, 0, first)
                group.start_soon(after_turns, turn // 2 % 7, second)
            ended = await client.get(task)
            await rig.settle()
            assert await client.get(task) == ended
            assert (ended["status"] == "completed") == ("result" in ended)
            outcomes.add(ended["status"])
    assert outcomes == {"completed", "cancelled"}


# ------------------------------------------------------------------------------ what crosses


async def test_an_update_that_crosses_the_withdrawal_of_its_question_is_harmless() -> None:
    """At every turn of the event loop: the answer is sent or not, the task works on."""
    for turns in range(12):
        async with bench() as rig:
            client = rig.client()
            task, call, [question], [key] = await waiting_task(rig, client)
            update = client.start("tasks/update", params(task, inputResponses={key: YES}))
            for _ in range(turns):
                await checkpoint()
            call.withdraw(question)
            assert await update.result() == ACK
            await rig.settle()
            assert (await client.get(task))["status"] == "working"
            assert len(question.answers) <= 1
            call.answer()
            await rig.settle()
            assert (await client.get(task))["status"] == "completed"


async def test_a_question_that_is_withdrawn_is_no_longer_shown() -> None:
    async with bench() as rig:
        client = rig.client()
        task, call, [question], [key] = await waiting_task(rig, client)
        call.withdraw(question)
        await rig.settle()
        assert (await client.get(task))["status"] == "working"
        assert await client.update(task, {key: YES}) == ACK
        await rig.settle()
        assert not question.answers


async def test_who_hangs_up_during_an_update_has_it_carried_out_all_the_same() -> None:
    async with bench() as rig:
        client = rig.client()
        task, _, [question], [key] = await waiting_task(rig, client)
        rig.store.gate = anyio.Event()
        update = client.start("tasks/update", params(task, inputResponses={key: YES}))
        await rig.settle()
        update.hang_up()
        await rig.settle()
        rig.store.gate.set()
        assert await question.answer() == YES


async def test_who_hangs_up_during_a_cancel_has_it_carried_out_all_the_same() -> None:
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        rig.store.gate = anyio.Event()
        cancel = client.start("tasks/cancel", params(task))
        await rig.settle()
        cancel.hang_up()
        await rig.settle()
        rig.store.gate.set()
        await call.cancelled.wait()
        assert (await client.get(task))["status"] == "cancelled"


async def test_an_update_that_could_not_be_stored_changes_nothing_and_may_be_sent_again() -> None:
    async with bench() as rig:
        client = rig.client()
        task, _, [question], [key] = await waiting_task(rig, client)
        rig.store.broken = True
        _, error = await client.start("tasks/update", params(task, inputResponses={key: YES})).error()
        assert error["code"] == -32603
        assert list((await client.get(task))["inputRequests"]) == [key]
        rig.store.broken = False
        assert await client.update(task, {key: YES}) == ACK
        assert await question.answer() == YES
        await rig.pass_time(60)
        assert len(question.answers) == 1


@pytest.mark.parametrize("fault", ["unsure", "late"])
@pytest.mark.parametrize("again", [True, False])
async def test_an_update_of_which_nobody_knows_is_carried_out_if_it_was_made(fault: str, again: bool) -> None:
    """Whether or not the client comes again; once."""
    async with bench() as rig:
        client = rig.client()
        task, _, [question], [key] = await waiting_task(rig, client)
        setattr(rig.store, fault, True)
        await client.start("tasks/update", params(task, inputResponses={key: YES})).error()
        await rig.pass_time(5)
        setattr(rig.store, fault, False)
        await rig.store.make_late_ones()
        if again:
            assert await client.update(task, {key: YES}) == ACK
        else:
            await rig.pass_time(1)
        assert await question.answer() == YES
        await rig.pass_time(60)
        assert len(question.answers) == 1


@pytest.mark.parametrize("fault", ["unsure", "late"])
async def test_a_cancel_of_which_nobody_knows_is_carried_out_if_it_was_made(fault: str) -> None:
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        setattr(rig.store, fault, True)
        _, error = await client.start("tasks/cancel", params(task)).error()
        assert error["code"] == -32603
        await rig.pass_time(5)
        setattr(rig.store, fault, False)
        await rig.store.make_late_ones()
        await rig.pass_time(1)
        await call.cancelled.wait()
        assert (await client.get(task))["status"] == "cancelled"


async def test_a_cancel_gets_through_while_progress_pours_in() -> None:
    """PROG-004: neither starves the other."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        cancel = client.start("tasks/cancel", params(task))
        for n in range(1, 1_000):
            call.progress(n)
            await checkpoint()
        assert await cancel.result() == ACK
        assert (await client.get(task))["status"] == "cancelled"


async def test_a_result_that_there_is_no_room_for_is_not_read_and_can_be_asked_for_again() -> None:
    """SEC-003."""
    async with bench() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        call.answer()
        await rig.settle()
        full = client.start("tasks/get", {"taskId": task})
        full.has_room = False
        status, error = await full.error()
        assert status == 429
        assert "limits.result" in error["message"]
        assert (await client.get(task))["status"] == "completed"
