"""Calls in flight: their limits, their log level, and the end of the proxy.

Contract sections 4 and 9.
"""

from __future__ import annotations

from typing import Any, Final

import anyio
import pytest

from proxy.tasks.policy import Policy
from tests.routing.bench import Exchanged, bench
from tests.routing.fake_server import Refused

pytestmark = pytest.mark.anyio

YES: Final[dict[str, Any]] = {"action": "accept", "content": {"ok": True}}


# ------------------------------------------------------------------------------ limits


async def test_the_runtime_limit_fails_the_task_and_tells_the_upstream() -> None:
    """TX-STA-007, CANC-005; its late answer is dropped."""
    async with bench(policy=Policy(runtime_limit_s=60)) as rig:
        task, call = await rig.task(rig.client())
        await rig.pass_time(57.9)
        assert (await rig.client().get(task))["status"] == "working"
        await rig.pass_time(0.1)
        await call.cancelled.wait()
        call.answer()
        await rig.settle()
        answer = await rig.client().get(task)
        assert answer["status"] == "failed"
        assert "runtime_limit" in answer["error"]["message"]
        assert rig.calls.held == 0


async def test_the_runtime_limit_holds_for_calls_that_are_no_tasks() -> None:
    async with bench(policy=Policy(runtime_limit_s=60)) as rig:
        sent = rig.client(capabilities={}).call("slow")
        call = await rig.server.next_call()
        await rig.pass_time(60)
        _, error = await sent.error()
        assert error["code"] == -32603
        await call.cancelled.wait()


async def test_the_runtime_limit_stands_still_while_input_is_awaited() -> None:
    async with bench(policy=Policy(runtime_limit_s=60, input_limit_s=1_000)) as rig:
        client = rig.client()
        task, call = await rig.task(client)
        await rig.pass_time(28)
        call.elicit()
        await rig.pass_time(900)
        [key] = (await client.get(task))["inputRequests"]
        await client.update(task, {key: YES})
        await rig.pass_time(29)
        assert (await client.get(task))["status"] == "working"
        await rig.pass_time(1)
        assert (await client.get(task))["status"] == "failed"


async def test_a_question_that_nobody_answers_fails_the_task_at_the_input_limit() -> None:
    async with bench(policy=Policy(runtime_limit_s=60, input_limit_s=100)) as rig:
        task, call = await rig.task(rig.client())
        question = call.elicit()
        await rig.pass_time(99)
        assert (await rig.client().get(task))["status"] == "input_required"
        await rig.pass_time(1)
        answer = await rig.client().get(task)
        assert answer["status"] == "failed"
        assert "input_limit" in answer["error"]["message"]
        await call.cancelled.wait()
        with pytest.raises(Refused):
            await question.answer()


# ------------------------------------------------------------------------------ log levels


async def test_the_upstream_logs_from_the_lowest_level_that_a_call_in_flight_asks_for() -> None:
    """LOG-004."""
    async with bench() as rig:
        calls = []
        for level in ("warning", "debug", "error"):
            rig.client(meta={"io.modelcontextprotocol/logLevel": level}).call("slow")
            calls.append(await rig.server.next_call())
        told = [params["level"] for params in rig.server.heard("logging/setLevel")]
        assert told == ["warning", "debug"]


# ------------------------------------------------------------------------------ shutdown


async def test_at_the_end_of_the_drain_who_still_waits_is_told() -> None:
    async with bench() as rig:
        task, _ = await rig.task(rig.client())
        sent = rig.client(capabilities={}).call("slow")
        call = await rig.server.next_call()
        rig.runner.give_up_waiting()
        _, error = await sent.error()
        assert "outcome is unknown" in error["message"]
        await call.cancelled.wait()
        assert (await rig.stored(task)).status == "working"


@pytest.mark.parametrize("event_id", ["3-1", ""])
async def test_at_the_end_the_session_of_a_call_that_can_be_resumed_is_left_to_the_next_start(
    event_id: str,
) -> None:
    """Contract section 9, SIGTERM. Any other session is ended."""
    async with bench() as rig:
        task, call = await rig.task(rig.client())
        call.wire.move(call.id, event_id)
        await rig.settle()
        rig.runner.freeze()
        assert call.wire.left == bool(event_id)
        assert (await rig.stored(task)).status == "working"


async def test_who_waits_when_the_runner_is_ended_is_told() -> None:
    async with bench() as rig:
        async with anyio.create_task_group() as tasks:
            rig.start_over()
            await tasks.start(rig.pool.run)
            await tasks.start(rig.runner.run)
            sent: Exchanged = rig.client(capabilities={}).call("slow")
            await rig.server.next_call()
            tasks.cancel_scope.cancel()
        _, error = await sent.error()
        assert "stopped" in error["message"]


async def test_when_nothing_is_in_flight_the_runner_is_idle() -> None:
    async with bench() as rig:
        await rig.runner.wait_idle()
        _, call = await rig.task(rig.client())
        with anyio.move_on_after(0.01) as waiting:
            await rig.runner.wait_idle()
        assert waiting.cancelled_caught
        assert repr(rig.runner) == "<Runner 1 calls, 1 tasks>"
        call.answer()
        await rig.runner.wait_idle()
        sent = rig.client(capabilities={}).call("slow")
        call = await rig.server.next_call()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.runner.wait_idle)
            await rig.settle()
            call.answer()
        assert (await sent.result())["resultType"] == "complete"
