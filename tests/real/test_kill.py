"""`kill -9` while a hundred tasks run and a hundred are finished: nothing is lost, nothing runs twice.

Over HTTP the fixture's streams can be resumed, so that calls in flight go on; over stdio they are lost with
their process. Holds I2, I3 and I4 of the contract and the row "proxy killed, restarted" of its section 9.
"""

from __future__ import annotations

from typing import Any, Final

import anyio
import pytest

from tests.real.bench import Bench
from tests.real.legacy import Transport
from tests.real.waiting import together, until

pytestmark = pytest.mark.anyio

SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "250ms"}}
EACH: Final = 100
FINISHES_S: Final = 0.5
RUNS_ON_S: Final = 300
READ_ID: Final = 7
"""The same request id for every read that is compared, so that whole responses can be."""


async def test_kill_9_loses_no_task_and_repeats_no_call(bench: Bench, transport: Transport) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    before = await bench.client(proxy)

    async def start(key: str, delay: float) -> str:
        return (await before.call_tool("count_call", {"key": key, "delay": delay})).task_id

    with anyio.fail_after(60):
        finishing = await together(start(f"finished-{n}", FINISHES_S) for n in range(EACH))
        await together(before.wait_task(task, every_s=0.5) for task in finishing)
        running = await together(start(f"running-{n}", RUNS_ON_S) for n in range(EACH))
        # A server that has not begun the answer yet has given no place to resume it from.
        await until(lambda: len(legacy.labels("start")) == 2 * EACH, "the server has begun all calls")
        finished = await together(before.get_task(task, request_id=READ_ID) for task in finishing)

    await proxy.kill9()
    await proxy.restart()

    after = await bench.client(proxy)
    with anyio.fail_after(60):
        read_again = await together(after.get_task(task, request_id=READ_ID) for task in finishing)
        if transport == "http":
            still = await together(after.get_task(task) for task in running)
            assert {answer.result["status"] for answer in still} == {"working"}
            await together(after.cancel_task(task) for task in running)
        ended = await together(after.wait_task(task) for task in running)
        ended_again = await together(after.get_task(task, request_id=READ_ID) for task in running)
        ended_later = await together(after.get_task(task, request_id=READ_ID) for task in running)

    assert len({*finishing, *running}) == 2 * EACH
    assert [answer.text for answer in read_again] == [f"finished-{n} executed 1 time(s)" for n in range(EACH)]
    assert [answer.raw for answer in read_again] == [answer.raw for answer in finished]
    assert [answer.raw for answer in ended_later] == [answer.raw for answer in ended_again]
    for answer in ended:
        if transport == "http":
            assert answer.result["status"] == "cancelled"
        else:
            assert answer.result["status"] == "failed"
            assert "outcome unknown" in answer.result["error"]["message"]
    if transport == "http":
        cancelled = [f"running-{n}" for n in range(EACH)]
        await until(lambda: set(legacy.labels("cancelled")) == set(cancelled), "the server is told of all")
    started = legacy.labels("start")
    keys = [f"{kind}-{n}" for kind in ("finished", "running") for n in range(EACH)]
    assert started == dict.fromkeys(keys, 1)


async def test_a_task_is_durable_before_its_id_is_said(bench: Bench, transport: Transport) -> None:
    """Killed the moment the first handle arrives: the id that was said is known, whatever else was not."""
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy)

    for round_number in range(3):
        key = f"round-{round_number}"
        task = (await client.call_tool("count_call", {"key": key, "delay": RUNS_ON_S})).task_id
        await proxy.kill9()
        await proxy.restart()
        if transport == "http" and (await client.get_task(task)).result["status"] == "working":
            await client.cancel_task(task)  # the call was found again
        ends = {"cancelled", "failed"} if transport == "http" else {"failed"}
        await client.wait_task(task, ends)
        assert legacy.labels("start")[key] <= 1  # it may have been killed on its way there
