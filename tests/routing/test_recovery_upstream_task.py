"""2025 tasks of the upstream's own, taken up by their ids after a restart.

Contract sections 2 ("so it survives our restart") and 9.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proxy.protocol import names
from tests.routing.bench import THRESHOLD_S
from tests.routing.fake_server import Call
from tests.routing.recovery_bench import YES, Restarts, restarts
from tests.routing.test_upstream_task import DONE, RELATED, TASK, server

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def before_a_task_server() -> AsyncIterator[Restarts]:
    async with restarts(server(must="required")) as at:
        yield at


async def task_of_theirs(at: Restarts) -> tuple[str, Call]:
    """A task of ours whose call is one of the server's own: its id, and the wait for its result."""
    sent = at.client().call("must")
    call = await at.server.next_call()
    call.at("")  # the server's answer has begun: without event ids
    call.answer({"task": TASK})
    held = await at.server.next_call()
    held.at("")
    at.server.answers[names.TASKS_GET] = TASK
    await at.rig.pass_time(THRESHOLD_S)
    task: str = (await sent.result())["taskId"]
    return task, held


async def next_wait(at: Restarts) -> Call:
    held = await at.server.next_call()
    assert (held.method, held.params["taskId"]) == (names.TASKS_RESULT, "theirs")
    return held


async def test_the_servers_task_goes_on_and_is_waited_for_again() -> None:
    async with before_a_task_server() as at:
        task, _ = await task_of_theirs(at)
        for _ in range(2):
            await at.restart()
            held = await next_wait(at)
            held.at("")
        held.answer({**DONE, "_meta": RELATED})
        told = await at.told(task)
        assert (told["status"], told["result"]["content"]) == ("completed", DONE["content"])
        assert names.META_RELATED_TASK not in told["result"].get("_meta", {})
        assert at.server.calls_seen == 1


async def test_its_open_question_is_answered_by_the_id_that_it_was_asked_under() -> None:
    async with before_a_task_server() as at:
        task, held = await task_of_theirs(at)
        asked = held.elicit(_meta=RELATED)
        [key] = (await at.told(task))["inputRequests"]
        await at.restart()
        again = await next_wait(at)
        again.repeat(asked)
        assert list((await at.told(task))["inputRequests"]) == [key]
        await at.client().update(task, {key: YES})
        assert await asked.answer() == {**YES, "_meta": RELATED}
        again.answer(DONE)
        assert (await at.told(task))["status"] == "completed"
        assert len(asked.answers) == 1


async def test_a_task_that_the_server_has_forgotten_fails_with_an_unknown_outcome() -> None:
    async with before_a_task_server() as at:
        task, _ = await task_of_theirs(at)
        await at.restart()
        at.server.answers[names.TASKS_GET] = (-32602, "no such task")
        (await next_wait(at)).fail(-32602, "no such task")
        told = await at.told(task)
        assert told["status"] == "failed"
        assert "outcome unknown" in told["error"]["message"]
        assert at.server.calls_seen == 1


async def test_to_cancel_it_after_the_restart_is_to_cancel_theirs() -> None:
    async with before_a_task_server() as at:
        task, _ = await task_of_theirs(at)
        await at.restart()
        await next_wait(at)
        at.server.answers[names.TASKS_CANCEL] = {**TASK, "status": "cancelled"}
        await at.client().cancel(task)
        await at.rig.pass_time(1)
        assert [params["taskId"] for params in at.server.heard(names.TASKS_CANCEL)] == ["theirs"]
        assert at.server.heard(names.CANCELLED) == []


async def test_a_task_that_is_told_only_after_the_restart_is_one_all_the_same() -> None:
    """Killed between the call and its CreateTaskResult: that is on the stream that is resumed."""
    async with before_a_task_server() as at:
        sent = at.client().call("must")
        call = await at.server.next_call()
        call.at("e0")
        await at.rig.pass_time(THRESHOLD_S)
        task = (await sent.result())["taskId"]
        await at.rig.pass_time(1)
        await at.restart()
        at.server.answers[names.TASKS_GET] = TASK
        resumed = await at.server.next_resumed()
        resumed.answer({"task": TASK})
        (await next_wait(at)).answer(DONE)
        told = await at.told(task)
        assert (told["status"], told["result"]["content"]) == ("completed", DONE["content"])
        assert at.server.calls_seen == 1
