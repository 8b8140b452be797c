"""From call to task: when, what is answered, and what a hang-up, a broken store or a dead upstream changes.

Contract section 4; Tasks extension, "Task Creation".
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import anyio
import pytest
from anyio.lowlevel import checkpoint

from proxy.routing.live import START_GRACE_S
from proxy.tasks.policy import Policy
from proxy.upstream.pool import PoolSettings
from tests.routing.bench import ASKABLE, TASKS, THRESHOLD_S, bench
from tests.routing.fake_server import SERVER_INFO, TEXT, FakeServer

pytestmark = pytest.mark.anyio

LONG_S: Final = 3_600.0
HANDLE: Final = {
    "resultType",
    "taskId",
    "status",
    "statusMessage",
    "createdAt",
    "lastUpdatedAt",
    "ttlMs",
    "pollIntervalMs",
    "_meta",
}
DONE: Final[dict[str, Any]] = {
    **TEXT,
    "resultType": "complete",
    "_meta": {"io.modelcontextprotocol/serverInfo": SERVER_INFO},
}
"""The server's ordinary answer as a modern client gets it."""


# ------------------------------------------------------------------------------ when


async def test_a_call_that_ends_before_its_threshold_is_answered_and_never_stored() -> None:
    """TX-CAP-002: the same tool, fast."""
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        await rig.pass_time(THRESHOLD_S - 0.01)
        call.answer()
        assert await sent.result() == DONE
        await rig.pass_time(LONG_S)
        assert not rig.store.writes


async def test_a_call_becomes_a_task_when_its_threshold_passes() -> None:
    """TX-CAP-002, TX-RES-001, TX-NEW-003, TX-NEW-005, TX-NEW-006, TX-NEW-007, TX-SEC-001."""
    async with bench() as rig:
        sent = rig.client().call("slow")
        await rig.server.next_call()
        await rig.pass_time(THRESHOLD_S - 0.01)
        assert not sent.done
        await rig.pass_time(0.01)
        handle = await sent.result()
        assert handle.keys() == HANDLE
        assert handle["resultType"] == "task"
        assert handle["status"] == "working"
        assert handle["ttlMs"] == 3_600_000
        assert handle["pollIntervalMs"] == 300
        assert datetime.fromisoformat(handle["createdAt"]).tzinfo is not None
        assert len(handle["taskId"].removeprefix("tpx-")) * 6 >= 128


@pytest.mark.parametrize(
    "declared",
    [{}, ASKABLE, {"tasks": {"requests": {"tools": {"call": {}}}}}],
    ids=["nothing", "only questions", "only the 2025 slot"],
)
async def test_a_client_that_does_not_declare_tasks_gets_what_the_call_gives(declared: Any) -> None:
    """TX-CAP-003, TX-CAP-009, TX-CAP-017: whatever an earlier request declared, however slow the tool."""
    async with bench() as rig:
        await rig.task(rig.client(capabilities={**TASKS, **declared}))
        sent = rig.client(capabilities=declared).call("slow")
        call = await rig.server.next_call()
        await rig.pass_time(LONG_S)
        assert not sent.done
        call.answer()
        assert await sent.result() == DONE


async def test_a_tool_of_mode_never_is_no_task_however_slow() -> None:
    async with bench() as rig:
        sent = rig.client().call("never_this")
        call = await rig.server.next_call()
        await rig.pass_time(LONG_S)
        assert not sent.done
        call.answer()
        assert await sent.result() == DONE


async def test_a_required_tool_without_the_extension_is_refused_and_not_called() -> None:
    """TX-CAP-004."""
    async with bench() as rig:
        status, error = await rig.client(capabilities=ASKABLE).call("required_this").error()
        assert (status, error["code"]) == (400, -32021)
        assert error["data"] == {"requiredCapabilities": TASKS}
        await rig.pass_time(LONG_S)
        assert not rig.server.wires


@pytest.mark.parametrize("tool", ["required_this", "at_once"])
async def test_a_tool_that_is_a_task_at_once_is_stored_before_it_is_called(tool: str) -> None:
    """TX-NEW-001: required, or with a threshold of zero."""
    async with bench() as rig:
        rig.store.gate = anyio.Event()
        sent = rig.client().call(tool)
        await rig.pass_time(LONG_S)
        assert rig.store.waiting == 1
        assert not sent.done
        assert not rig.server.wires
        rig.store.gate.set()
        task = (await sent.result())["taskId"]
        assert (await rig.client().get(task))["status"] == "working"
        (await rig.server.next_call()).answer()
        await rig.settle()
        assert (await rig.client().get(task))["result"] == DONE


async def test_a_handle_is_given_when_its_record_is_durable_and_not_before() -> None:
    """TX-NEW-001, TX-GET-012: from any connection."""
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        rig.store.gate = anyio.Event()
        await rig.pass_time(THRESHOLD_S + 0.5)
        assert not sent.done
        call.progress(1)
        rig.store.gate.set()
        task = (await sent.result())["taskId"]
        assert (await rig.client().get(task))["taskId"] == task


async def test_a_call_that_ends_while_its_task_is_stored_is_a_task_that_has_ended() -> None:
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        rig.store.gate = anyio.Event()
        await rig.pass_time(THRESHOLD_S)
        call.answer()
        await rig.settle()
        rig.store.gate.set()
        task = (await sent.result())["taskId"]
        await rig.settle()
        assert (await rig.client().get(task))["result"] == DONE


async def test_a_tool_set_to_ask_as_a_task_becomes_one_at_its_first_question() -> None:
    """TX-NEW-004: the question itself comes with `tasks/get`."""
    async with bench() as rig:
        client = rig.client()
        sent = client.call("ask_me")
        call = await rig.server.next_call()
        call.elicit("Sure?")
        handle = await sent.result()
        assert handle.keys() == HANDLE
        assert handle["status"] == "input_required"
        [question] = (await client.get(handle["taskId"]))["inputRequests"].values()
        assert question["params"]["message"] == "Sure?"


async def test_other_methods_never_become_tasks() -> None:
    async with bench() as rig:
        for method, params in (
            ("prompts/get", {"name": "at_once"}),
            ("resources/read", {"uri": "file:///a"}),
        ):
            sent = rig.client().start(method, params)
            call = await rig.server.next_call()
            await rig.pass_time(LONG_S)
            assert not sent.done
            call.answer({"messages": [], "contents": []})
            assert (await sent.result())["resultType"] == "complete"


async def test_the_task_param_of_2025_is_ignored_and_not_sent_on() -> None:
    """TX-CAP-012, T25-NEW-008."""
    async with bench() as rig:
        sent = rig.client().call("slow", {"task": {"ttl": 1}}, text="a")
        call = await rig.server.next_call()
        assert call.params.keys() == {"name", "arguments", "_meta"}
        assert call.params["_meta"].keys() == {"progressToken"}
        call.answer()
        assert await sent.result() == DONE


# ------------------------------------------------------------------------------ the clock


async def test_a_call_that_waits_for_a_free_process_is_on_the_clock_from_its_arrival() -> None:
    """And says so; once it runs it no longer does."""
    settings = PoolSettings(processes=1, calls_per_process=1, idle_timeout_s=None)
    async with bench(settings=settings) as rig:
        client = rig.client()
        _, first = await rig.task(client)
        sent = client.call("slow")
        await rig.pass_time(THRESHOLD_S)
        task = (await sent.result())["taskId"]
        await rig.pass_time(1)
        assert (await client.get(task))["statusMessage"] == "Waiting for an upstream process."
        first.answer()
        second = await rig.server.next_call()
        await rig.pass_time(1)
        assert (await client.get(task))["statusMessage"] == "The call is running."
        second.answer()
        await rig.settle()
        assert (await client.get(task))["status"] == "completed"


async def test_the_start_of_a_process_is_not_counted_against_the_tool() -> None:
    async with bench() as rig:
        rig.server.may_start = anyio.Event()
        sent = rig.client().call("slow")
        await rig.pass_time(5)
        rig.server.may_start.set()
        await rig.server.next_call()
        await rig.pass_time(THRESHOLD_S - 0.1)
        assert not sent.done
        await rig.pass_time(0.1)
        assert (await sent.result())["resultType"] == "task"


async def test_a_start_that_takes_too_long_is() -> None:
    async with bench() as rig:
        rig.server.may_start = anyio.Event()
        sent = rig.client().call("slow")
        await rig.pass_time(START_GRACE_S + THRESHOLD_S - 0.1)
        assert not sent.done
        await rig.pass_time(0.1)
        assert (await sent.result())["resultType"] == "task"


# ------------------------------------------------------------------------------ a broken store


async def test_with_a_broken_store_a_slow_call_goes_on_blocking() -> None:
    async with bench() as rig:
        rig.store.broken = True
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        await rig.pass_time(LONG_S)
        assert not sent.done
        call.answer()
        assert await sent.result() == DONE
        assert not rig.store.writes


@pytest.mark.parametrize("tool", ["slow", "ask_me", "at_once"])
async def test_with_a_broken_store_questions_go_out_by_round_trips(tool: str) -> None:
    async with bench() as rig:
        rig.store.broken = True
        client = rig.client()
        sent = client.call(tool)
        call = await rig.server.next_call()
        await rig.pass_time(THRESHOLD_S)
        question = call.elicit()
        await rig.pass_time(0.05)
        asked = await sent.result()
        assert asked["resultType"] == "input_required"
        [key] = asked["inputRequests"]
        rig.store.broken = False  # for a while: the next round may be a task again
        again = client.retry(asked, tool, {key: {"action": "decline"}})
        assert await question.answer() == {"action": "decline"}
        await rig.pass_time(THRESHOLD_S)
        assert (await again.result())["resultType"] == "task"


@pytest.mark.parametrize("fault", ["broken", "unsure", "late"])
async def test_a_required_tool_is_refused_where_its_task_cannot_be_stored(fault: str) -> None:
    """Before anything is sent; also where the store does not know whether it was."""
    async with bench() as rig:
        setattr(rig.store, fault, True)
        status, error = await rig.client().call("required_this").error()
        assert (status, error["code"]) == (200, -32603)
        assert "not sent" in error["message"]
        await rig.pass_time(LONG_S)
        assert not rig.server.wires


async def test_no_id_is_given_out_where_nobody_knows_whether_it_was_stored() -> None:
    async with bench() as rig:
        rig.store.unsure = True
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        await rig.pass_time(LONG_S)
        assert not sent.done
        call.answer()
        assert await sent.result() == DONE


async def test_a_fault_of_our_own_is_told_as_such_and_ends_the_call() -> None:
    async with bench() as rig:
        rig.store.buggy = True
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        await rig.pass_time(THRESHOLD_S)
        _, error = await sent.error()
        assert (error["code"], error["message"]) == (-32603, "internal error of the proxy")
        await call.cancelled.wait()


# ------------------------------------------------------------------------------ hang-up


async def test_a_hang_up_before_the_answer_cancels_the_call() -> None:
    """HTTP-014, CANC-006: with the id that the upstream knows."""
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        sent.hang_up()
        await call.cancelled.wait()
        call.answer()  # late, and dropped
        await rig.pass_time(LONG_S)
        assert not rig.store.writes
        assert rig.calls.held == 0


async def test_a_hang_up_after_the_handle_does_nothing() -> None:
    """HTTP-015."""
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        await rig.pass_time(THRESHOLD_S)
        task = (await sent.result())["taskId"]
        sent.hang_up()
        await rig.pass_time(LONG_S / 2)
        assert not call.cancelled.is_set()
        call.answer()
        await rig.settle()
        assert (await rig.client().get(task))["result"] == DONE


@pytest.mark.parametrize("turns", range(12))
async def test_whoever_hangs_up_while_the_task_is_stored_has_the_handle_or_cancels(turns: int) -> None:
    """HTTP-014, HTTP-015: at whatever turn of the event loop after the commit, one or the other."""
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        rig.store.gate = anyio.Event()
        await rig.pass_time(THRESHOLD_S)
        rig.store.gate.set()
        for _ in range(turns):
            await checkpoint()
        sent.hang_up()
        await rig.settle()
        [task] = await rig.memory.owned("anonymous")
        assert (task.status, call.cancelled.is_set()) == (
            ("working", False) if sent.answered else ("cancelled", True)
        )


async def test_who_hangs_up_while_a_task_at_once_is_stored_has_nothing_called() -> None:
    async with bench() as rig:
        rig.store.gate = anyio.Event()
        sent = rig.client().call("at_once")
        await rig.settle()
        sent.hang_up()
        await rig.settle()
        rig.store.gate.set()
        await rig.settle()
        assert not rig.server.wires
        [task] = await rig.memory.owned("anonymous")
        assert task.status == "cancelled"


async def test_a_hang_up_while_the_upstream_starts_sends_nothing() -> None:
    async with bench() as rig:
        rig.server.may_start = anyio.Event()
        sent = rig.client().call("slow")
        await rig.settle()
        sent.hang_up()
        await rig.settle()
        rig.server.may_start.set()
        await rig.settle()
        assert rig.server.calls_seen == 0


# ------------------------------------------------------------------------------ the upstream fails


async def test_an_upstream_that_cannot_be_started_is_an_error() -> None:
    async with bench() as rig:
        rig.server.start_fault = "upstream 'fake' could not be started: no such file"
        _, error = await rig.client().call("slow").error()
        assert (error["code"], error["message"]) == (-32603, rig.server.start_fault)


async def test_an_upstream_that_dies_before_the_threshold_ends_every_call_on_it_at_once() -> None:
    async with bench() as rig:
        sent = [rig.client().call("slow") for _ in range(3)]
        for _ in sent:
            await rig.server.next_call()
        rig.server.wire.break_off("upstream 'fake' died; outcome unknown")
        for exchanged in sent:
            _, error = await exchanged.error()
            assert (error["code"], error["message"]) == (-32603, "upstream 'fake' died; outcome unknown")
        assert rig.server.calls_seen == 3


async def test_an_error_of_the_upstream_passes_with_a_code_that_a_modern_client_may_see() -> None:
    """BASE-010, TOOL-003."""
    async with bench() as rig:
        for code, seen in ((-32602, -32602), (7, 7), (-32050, -32603)):
            sent = rig.client().call("slow")
            (await rig.server.next_call()).fail(code, "no", data={"why": 1})
            status, error = await sent.error()
            assert (status, error["code"], error["message"]) == (200, seen, "no")
            original = error["data"].get("upstreamError", error)
            assert (original["code"], original["data"]) == (code, {"why": 1})


async def test_a_result_is_passed_on_as_it_was_written() -> None:
    """I1 of the contract; TX-RES-002: but for a stray `resultType`."""
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        call.answer_raw(b'{ "n": 1.10e2, "resultType": "task",\r\n"x":{"b":1,"a":-0}, "content": [] }')
        await sent.result()
        assert sent.raw.startswith(
            b'{ "n": 1.10e2, "resultType": "complete",\r\n"x":{"b":1,"a":-0}, "content": [],"_meta":'
        )


async def test_a_result_that_is_no_object_is_an_error() -> None:
    async with bench() as rig:
        sent = rig.client().call("slow")
        (await rig.server.next_call()).answer_raw(b"[1]")
        _, error = await sent.error()
        assert error["code"] == -32603


# ------------------------------------------------------------------------------ what is told on the way


async def test_progress_goes_to_a_client_that_gave_a_token_with_that_token() -> None:
    """PROG-001, HTTP-008: each with its own."""
    async with bench() as rig:
        with_token = [rig.client(meta={"progressToken": token}) for token in ("x", 7)]
        sent = [client.call("slow") for client in with_token]
        calls = [await rig.server.next_call() for _ in sent]
        for call in calls:
            call.progress(1, total=4, message=f"of {call.id}")
            call.progress(0.5)  # does not rise
        await rig.settle()
        assert [exchanged.told for exchanged in sent] == [
            [
                (
                    "notifications/progress",
                    {"progressToken": t, "progress": 1, "total": 4, "message": f"of {c.id}"},
                )
            ]
            for t, c in zip(("x", 7), calls, strict=True)
        ]


async def test_progress_that_we_asked_for_on_our_own_account_is_not_told() -> None:
    """PROG-001."""
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        assert call.token == call.id
        call.progress(1)
        call.answer()
        await sent.result()
        assert sent.told == []


@pytest.mark.parametrize(
    "capabilities, method, params",
    [
        ({}, "tools/call", {"name": "slow"}),
        (TASKS, "tools/call", {"name": "never_this"}),
        (TASKS, "tools/list", {}),
    ],
)
async def test_progress_is_not_asked_for_where_nobody_could_use_it(
    capabilities: Any, method: str, params: Any
) -> None:
    async with bench() as rig:
        rig.server.answers.pop("tools/list")
        rig.client(capabilities=capabilities).start(method, params)
        assert "_meta" not in (await rig.server.next_call()).params


async def test_nothing_is_told_after_the_handle() -> None:
    """TX-NOT-005: the exchange itself refuses what follows its answer."""
    async with bench() as rig:
        sent = rig.client(meta={"progressToken": 1, "io.modelcontextprotocol/logLevel": "debug"}).call("slow")
        call = await rig.server.next_call()
        call.progress(1)
        await rig.pass_time(THRESHOLD_S)
        call.progress(2)
        call.log("error")
        await rig.pass_time(LONG_S / 2)
        assert (await sent.result())["resultType"] == "task"
        assert [params["progress"] for _, params in sent.told] == [1]


@pytest.mark.parametrize(
    "level, heard", [(None, []), ("warning", ["warning", "error"]), ("debug", ["info", "warning", "error"])]
)
async def test_logs_are_told_where_the_request_asks_from_its_level_on(
    level: str | None, heard: list[str]
) -> None:
    """LOG-001, LOG-002."""
    async with bench() as rig:
        meta = {} if level is None else {"io.modelcontextprotocol/logLevel": level}
        sent = rig.client(meta=meta).call("slow")
        call = await rig.server.next_call()
        for said in ("info", "warning", "error", "loud"):
            call.log(said)
        call.answer()
        await sent.result()
        assert [params["level"] for _, params in sent.told] == heard


async def test_two_calls_on_one_pipe_get_no_logs_that_may_be_the_others() -> None:
    """LOG-002: on stdio a log line says not whose it is."""
    async with bench(FakeServer(tells_calls=False)) as rig:
        client = rig.client(meta={"io.modelcontextprotocol/logLevel": "debug"})
        first, second = client.call("slow"), client.call("slow")
        calls = [await rig.server.next_call(), await rig.server.next_call()]
        calls[0].log("error", "whose?")
        calls[1].answer()
        await second.result()
        calls[0].log("error", "mine")
        calls[0].answer()
        await first.result()
        assert [params["data"] for _, params in first.told] == ["mine"]
        assert second.told == []


def test_which_methods_may_become_tasks_is_a_table() -> None:
    """TX-CAP-014: a further one needs a row, and nothing of the task machine."""
    from proxy.tasks import policy

    assert policy.CONVERTIBLE == {"tools/call": "name"}
    assert json.dumps(sorted(policy.CONVERTIBLE))
    assert Policy().for_tool("any").threshold_s == THRESHOLD_S
