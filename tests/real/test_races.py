"""Clients that go away, upstreams that crash, answers and cancels that cross: one outcome each, and no hang.

Holds F04, F05, F07, F14 of the field reports; TX-STA-*, TX-UPD-*, TX-CAN-*, MRTR-012; I4 and I6 of the
contract.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

import anyio
import pytest

from tests.real.bench import Bench
from tests.real.legacy import Legacy, Transport
from tests.real.modern_client import ELICITATION, Answer, ModernClient
from tests.real.waiting import asked_until, until

pytestmark = pytest.mark.anyio

SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "250ms"}}
ASKS: Final = "test_input_required_result_elicitation"
READ_ID: Final = 7

ROUNDS: Final = 200
UNANSWERABLE: Final = 40
FIRST_LAG_S: Final = 0.002
LAG_STEP: Final = 1.5


def accepted(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


# ------------------------------------------------------------------------------ crossing answers


async def test_cancel_and_result_released_together_leave_one_outcome(bench: Bench) -> None:
    """The answer that lets the tool finish, and a cancel a moment later.

    The moment is moved so that either wins about as often: later after a cancel won, sooner after it lost.
    Servers on the Python SDK 1.x die now and then when a cancel crosses their answer; so there is one race
    at a time, and a call that such an end cut off is made again.
    """
    legacy = await bench.legacy("stdio")
    settings = {"tasks": {"tools": [{"match": ASKS, "input": "task"}]}}
    proxy = await bench.proxy(legacy.upstream, settings)
    client = await bench.client(proxy, capabilities=ELICITATION)
    outcomes: Counter[str] = Counter()

    lag_s = FIRST_LAG_S
    with anyio.fail_after(200):
        for _ in range(ROUNDS):
            outcome = await one_race(client, lag_s)
            lag_s = lag_s * LAG_STEP if outcome == "cancelled" else lag_s / LAG_STEP
            outcomes[outcome] += 1

    assert set(outcomes) == {"completed", "cancelled"}
    assert outcomes.total() == ROUNDS


async def one_race(client: ModernClient, lag_s: float) -> str:
    """How it ended; every read after the end is the same."""
    task = (await until_served(client, ASKS)).task_id
    asked = await client.wait_task(task, {"input_required"}, every_s=0.01)
    [key] = asked.result["inputRequests"]

    async def cancel() -> None:
        await anyio.sleep(lag_s)  # the race itself: the two have nothing else in common
        assert (await client.cancel_task(task)).result["resultType"] == "complete"

    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        await client.update_task(task, {key: accepted(name="Ada")})
    ended = await client.wait_task(task, every_s=0.01)
    reads = [await client.get_task(task, request_id=READ_ID) for _ in range(2)]
    assert reads[0].raw == reads[1].raw
    assert reads[0].result["status"] == ended.result["status"]
    if ended.result["status"] == "completed":
        assert ended.text == "Hello, Ada!"
    else:
        assert "result" not in ended.result
    return str(ended.result["status"])


# ------------------------------------------------------------------------------ going away


async def test_a_client_that_hangs_up_before_the_answer_cancels_upstream(
    bench: Bench, transport: Transport
) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy, tasks=False)

    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "cancellable_job", {"seconds": 300, "label": "abandoned"})
        await legacy.happened("start", "abandoned")
        group.cancel_scope.cancel()

    await legacy.happened("cancelled", "abandoned")


async def test_a_client_that_hangs_up_after_the_handle_finds_its_task_again(
    bench: Bench, transport: Transport
) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    async with ModernClient(proxy.url) as first:
        task = (await first.call_tool("slow_compute", {"seconds": 1.5, "label": "kept"})).task_id

    second = await bench.client(proxy)
    ended = await second.wait_task(task)

    assert ended.text == "computed kept in 1.5 s"
    assert legacy.labels("start")["kept"] == 1


async def test_tasks_cancel_stops_the_call_upstream(bench: Bench, transport: Transport) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy)
    task = (await client.call_tool("cancellable_job", {"seconds": 300, "label": "stopped"})).task_id
    await legacy.happened("start", "stopped")

    ack = await client.cancel_task(task)
    now = await client.get_task(task)

    assert ack.result["resultType"] == "complete"
    assert now.result["status"] == "cancelled"
    await legacy.happened("cancelled", "stopped")
    assert (await client.get_task(task, request_id=READ_ID)).result["status"] == "cancelled"


async def test_an_upstream_that_crashes_fails_its_tasks_and_the_next_call_works(
    bench: Bench, transport: Transport
) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy)
    task = (await client.call_tool("cancellable_job", {"seconds": 300, "label": "lost"})).task_id
    await legacy.happened("start", "lost")

    blocking = await bench.client(proxy, tasks=False)

    async def crash() -> None:
        crashed = await blocking.call_tool("crash")
        assert crashed.error["code"] == -32603

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(crash)
            await until(lambda: any(row["event"] == "crash" for row in legacy.journal()), "the crash")
            await legacy.restart()
        lost = await client.wait_task(task)

    assert lost.result["status"] == "failed"
    assert lost.result["error"]["code"] == -32603
    assert lost.result["error"]["message"]
    assert (await until_served(client, "greet", {"name": "again"})).text == "Hello, again!"
    assert legacy.labels("start")["lost"] == 1


async def until_served(client: ModernClient, tool: str, arguments: dict[str, Any] | None = None) -> Answer:
    """An upstream that just ended may be held off for a moment; then it is tried afresh."""
    return await asked_until(
        lambda: client.call_tool(tool, arguments),
        lambda answer: "result" in answer.message,
        f"{tool} is served after the upstream ended",
    )


# ------------------------------------------------------------------------------ questions


async def test_a_parked_call_whose_client_never_returns_is_cancelled_upstream(
    bench: Bench, transport: Transport
) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, {"tasks": {"threshold": "10s", "mrtr_wait": "1s"}})
    client = await bench.client(proxy, capabilities=ELICITATION)

    asked = await client.call_tool(ASKS)
    assert asked.result["resultType"] == "input_required"
    await cancelled_tool(legacy, ASKS)

    [key] = asked.result["inputRequests"]
    late = await client.call_tool(
        ASKS, inputs={key: accepted(name="Ada")}, state=asked.result["requestState"]
    )
    assert late.error["code"] == -32602


async def cancelled_tool(legacy: Legacy, tool: str) -> None:
    """Wait until a call of this tool, which has no label, was cancelled."""
    await until(
        lambda: any(row["event"] == "cancelled" and row["tool"] == tool for row in legacy.journal()),
        f"{tool} is cancelled",
    )


async def test_a_question_before_the_threshold_is_answered_by_a_retry(
    bench: Bench, transport: Transport
) -> None:
    legacy = await bench.legacy(transport, "--post-delay", "0")
    proxy = await bench.proxy(legacy.upstream, {"tasks": {"threshold": "10s"}})
    client = await bench.client(proxy, capabilities=ELICITATION)

    asked = await client.call_tool("test_tool_with_task")
    [(key, question)] = asked.result["inputRequests"].items()
    answer = await client.call_tool(
        "test_tool_with_task", inputs={key: accepted(name="Ada")}, state=asked.result["requestState"]
    )

    assert question["params"]["message"] == "What is your name?"
    assert answer.text == "task done for Ada"
    assert [row["content"] for row in legacy.journal() if row["event"] == "answer"] == [{"name": "Ada"}]


async def test_a_question_inside_a_task_is_answered_by_an_update(bench: Bench, transport: Transport) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy, capabilities=ELICITATION)

    task = (await client.call_tool("confirm_delete", {"filename": "a.txt"})).task_id
    asked = await client.wait_task(task, {"input_required"})
    [(key, question)] = asked.result["inputRequests"].items()
    assert question["method"] == "elicitation/create"
    assert question["params"]["message"] == "Really delete a.txt?"
    await client.update_task(task, {key: accepted(confirm=True)})
    assert key not in (await client.get_task(task)).result.get("inputRequests", {})

    assert (await client.wait_task(task)).text == "deleted a.txt"
    assert [row["content"] for row in legacy.journal() if row["event"] == "answer"] == [{"confirm": True}]


async def test_a_question_that_nobody_can_answer_ends_its_call_and_nothing_else(
    bench: Bench, transport: Transport
) -> None:
    """Cancelled, then refused. The other way round the refusal lets the tool answer while the cancel arrives,
    and a server on the Python SDK 1.x ends its session over that."""
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy, tasks=False)

    for _ in range(UNANSWERABLE):
        asked = await client.call_tool("test_missing_capability")
        assert asked.error["code"] == -32021
        assert asked.error["data"]["requiredCapabilities"] == {"sampling": {}}
        assert (await client.call_tool("greet", {"name": "Ada"})).text == "Hello, Ada!"

    assert len({row["session"] for row in legacy.journal() if row["event"] == "start"}) == 1


async def test_two_questions_are_answered_one_after_the_other(bench: Bench, transport: Transport) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy, capabilities=ELICITATION)

    task = (await client.call_tool("multi_input")).task_id
    keys = await both_open(client, task)
    await client.update_task(task, {keys["first"]: accepted(name="Ada")})
    between = (await client.get_task(task)).result
    assert between["status"] == "input_required"
    assert list(between["inputRequests"]) == [keys["second"]]
    await client.update_task(task, {keys["first"]: accepted(name="no"), keys["second"]: accepted(name="Bob")})

    ended = json.loads((await client.wait_task(task)).text)
    assert ended == {"first": ["accept", "Ada"], "second": ["accept", "Bob"]}


async def both_open(client: ModernClient, task: str) -> dict[str, str]:
    """The keys of both questions of `multi_input`, by the word they ask for."""
    answer = await asked_until(
        lambda: client.get_task(task),
        lambda answer: len(answer.result.get("inputRequests", {})) == 2,
        "both questions are open",
    )
    return {
        question["params"]["message"].removeprefix("Input ").removesuffix("?"): key
        for key, question in answer.result["inputRequests"].items()
    }


async def test_a_question_off_the_call_s_stream_reaches_the_call(bench: Bench) -> None:
    """On HTTP it comes on the session's GET stream, as from many servers."""
    legacy = await bench.legacy("http")
    proxy = await bench.proxy(legacy.upstream, {"tasks": {"threshold": "1s"}})
    client = await bench.client(proxy, capabilities=ELICITATION)

    task = (await client.call_tool("elicit_unrelated", {"delay": 1.5})).task_id
    asked = await client.wait_task(task, {"input_required"})
    [key] = asked.result["inputRequests"]
    await client.update_task(task, {key: accepted(name="Ada")})
    assert (await client.wait_task(task)).text == 'off-stream answer: accept {"name": "Ada"}'

    at_once = await client.call_tool("elicit_unrelated")
    [key] = at_once.result["inputRequests"]
    answer = await client.call_tool(
        "elicit_unrelated", inputs={key: accepted(name="Bob")}, state=at_once.result["requestState"]
    )
    assert answer.text == 'off-stream answer: accept {"name": "Bob"}'


async def test_listeners_see_every_state_of_a_task_and_its_end_last(
    bench: Bench, transport: Transport
) -> None:
    """BASE-017: each client here has connections of its own."""
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    caller, listener, answerer = [await bench.client(proxy, capabilities=ELICITATION) for _ in range(3)]
    task = (await caller.call_tool("confirm_delete", {"filename": "b.txt"})).task_id

    with anyio.fail_after(30):
        async with listener.listen(taskIds=[task]) as stream:
            acknowledged = await anext(stream)
            assert acknowledged["params"]["notifications"]["taskIds"] == [task]
            async for message in stream:
                seen = message["params"]
                if seen["status"] == "input_required":
                    answers = dict.fromkeys(seen["inputRequests"], accepted(confirm=True))
                    await answerer.update_task(task, answers)
                if seen["status"] in {"completed", "failed", "cancelled"}:
                    break

    assert seen["result"]["content"][0]["text"] == "deleted b.txt"
