"""2025 tasks of HTTP clients whose sessions are ours: before stdio and HTTP+SSE servers.

Contract sections 5 and 6; Transports 2025-11-25, "Resumability and Redelivery".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from proxy.errors import LimitReached
from proxy.owners import ANONYMOUS
from proxy.protocol import names
from proxy.routing.offers import ID_PREFIX
from proxy.sessions.stream import UNREAD_EVENTS
from proxy.tasks.task import is_task_id
from tests.routing.bench import ADA, BOB
from tests.routing.bench_2025 import RELATED, YES, Bench2025, bench_2025
from tests.routing.fake_server import TEXT
from tests.routing.piped_2025 import layered
from tests.routing.session_bench import IDLE_S, HttpClient, Response, SessionBench
from tests.upstream.fake_transport import Sent, initialize_result, until

pytestmark = pytest.mark.anyio

FORM: Final = {"message": "Go on?", "requestedSchema": {}}


class Scene:
    """`bench` has the sessions, `it` the store and the clock."""

    def __init__(self, it: Bench2025, bench: SessionBench) -> None:
        self.it = it
        self.bench = bench

    async def client(self, owner: Any = ADA) -> HttpClient:
        return await self.bench.client(owner=owner).initialize(tools={})

    async def settle(self) -> None:
        await self.it.rig.settle()

    async def task(self, client: HttpClient, tool: str = "slow", **more: Any) -> tuple[str, Sent]:
        """A task that the client knows, and its call at the server."""
        before = len(self.bench.server.of(names.TOOLS_CALL))
        made = await answer(client.request(names.TOOLS_CALL, {"name": tool, "task": {}, **more}))
        task: str = made["result"]["task"]["taskId"]
        await get(client, task)
        return task, await self.bench.server.asked(names.TOOLS_CALL, before + 1)


@asynccontextmanager
async def scene(**server: Any) -> AsyncIterator[Scene]:
    async with bench_2025() as it, layered(it, **server) as bench:
        yield Scene(it, bench)


async def answer(response: Response) -> dict[str, Any]:
    """The last message on it, once it has ended."""
    return dict((await response.ended()).messages[-1])


async def get(client: HttpClient, task: str) -> dict[str, Any]:
    return dict((await answer(client.request(names.TASKS_GET, {"taskId": task})))["result"])


def questions(response: Response) -> list[dict[str, Any]]:
    if not response.is_stream:
        return []
    return [message for message in response.messages if "id" in message and "method" in message]


async def asked(response: Response, count: int = 1) -> list[dict[str, Any]]:
    await until(lambda: len(questions(response)) >= count)
    return questions(response)


async def test_a_task_is_made_read_and_its_result_fetched() -> None:
    """T25-CAP-001, T25-NEW-001, T25-RES-004."""
    async with scene() as it:
        client = await it.client()
        task, call = await it.task(client)
        assert is_task_id(task)
        assert "task" not in call.body["params"]
        it.bench.server.answer(call, TEXT)
        await it.settle()
        assert (await get(client, task))["status"] == "completed"
        told = await answer(client.request(names.TASKS_RESULT, {"taskId": task}))
        assert told["result"] == {**TEXT, "_meta": {RELATED: {"taskId": task}}}


async def test_who_polls_too_fast_is_told_so_by_http() -> None:
    """SEC-003, T25-SEC-004: 429 and Retry-After, as before an HTTP server; the task is not touched."""
    async with scene() as it:
        client = await it.client()
        task, _ = await it.task(client)
        responses = [client.request(names.TASKS_GET, {"taskId": task}) for _ in range(200)]
        await it.settle()
        refused = [r.raised for r in responses if isinstance(r.raised, LimitReached)]
        assert 0 < len(refused) < len(responses)
        assert {(fault.status, fault.retry_after_s) for fault in refused} == {(429, 1)}
        it.it.rig.clock.jump(1)
        assert (await get(client, task))["status"] == "working"


@pytest.mark.parametrize(("owner", "has_list"), [(ADA, True), (ANONYMOUS, False)])
async def test_list_is_there_for_an_owner_who_is_known(owner: Any, has_list: bool) -> None:
    """T25-LST-006, T25-CAP-002."""
    async with scene() as it:
        bench = it.bench
        server, response = await bench.client(owner=owner).begin()
        server.answer(await server.asked(names.INITIALIZE), initialize_result(tools={}))
        told = await answer(response)
        assert ("list" in told["result"]["capabilities"]["tasks"]) is has_list
        client = bench.client(owner=owner, session_id=response.headers["mcp-session-id"])
        client.version = "2025-11-25"
        listed = await answer(client.request(names.TASKS_LIST))
        assert ("result" in listed) is has_list
        assert has_list or listed["error"]["code"] == -32601


async def test_tasks_get_is_plain_json_also_while_input_is_awaited() -> None:
    """T25-INP-005."""
    async with scene() as it:
        client = await it.client()
        task, _ = await it.task(client)
        it.bench.server.ask(0, names.ELICITATION_CREATE, FORM)
        await it.settle()
        response = await client.request(names.TASKS_GET, {"taskId": task}).ended()
        assert response.headers["content-type"] == "application/json"
        assert response.messages[0]["result"]["status"] == "input_required"


async def test_a_question_comes_on_the_stream_of_tasks_result() -> None:
    """T25-INP-002, T25-INP-004, T25-RES-002."""
    async with scene() as it:
        client = await it.client()
        get_stream = await client.listen()
        task, call = await it.task(client)
        waiting = client.request(names.TASKS_RESULT, {"taskId": task})
        await it.settle()
        it.bench.server.ask(0, names.ELICITATION_CREATE, FORM)
        [question] = await asked(waiting)
        assert question["params"]["_meta"] == {RELATED: {"taskId": task}}
        assert questions(get_stream) == []
        assert (await client.post({"id": question["id"], "result": YES}).ended()).status == 202
        assert (await it.bench.server.told(0))["result"] == YES
        it.bench.server.answer(call, TEXT)
        assert (await answer(waiting))["result"]["content"] == TEXT["content"]


async def test_else_on_the_sessions_own_stream_also_when_that_opens_later() -> None:
    """T25-INP-004."""
    async with scene() as it:
        client = await it.client()
        task, _ = await it.task(client)
        it.bench.server.ask(0, names.ELICITATION_CREATE, FORM)
        await it.settle()
        [question] = await asked(await client.listen())
        assert question["params"]["_meta"] == {RELATED: {"taskId": task}}


async def test_a_question_waits_for_a_stream_that_is_full_until_its_reader_has_made_room() -> None:
    """I6, T25-INP-004: asked once, and not lost."""
    async with scene() as it:
        client = await it.client()
        task, _ = await it.task(client)
        [session] = it.bench.layer._sessions
        reader = session.listening.attach()  # one that reads when it is told to
        for _ in range(UNREAD_EVENTS):
            it.bench.server.notify(names.TOOLS_LIST_CHANGED)
        it.bench.server.ask(0, names.ELICITATION_CREATE, FORM)
        await it.settle()
        assert ID_PREFIX.encode() not in (await reader.blocks() or b"")
        assert (await reader.blocks() or b"").count(ID_PREFIX.encode()) == 1
        assert (await get(client, task))["status"] == "input_required"


async def test_a_stream_that_is_dropped_moves_its_question_and_either_answer_counts() -> None:
    """T25-INP-004, T25-GET-007, F08: the client may come back for the first stream, too."""
    async with scene() as it:
        client = await it.client()
        task, call = await it.task(client)
        first = client.request(names.TASKS_RESULT, {"taskId": task})
        await it.settle()
        it.bench.server.ask(0, names.ELICITATION_CREATE, FORM)
        [question] = await asked(first)
        first.hang_up()
        await first.ended()
        [again] = await asked(await client.listen())
        assert question["id"] != again["id"]
        back = client.get(first.last_id)
        await client.post({"id": again["id"], "result": YES}).ended()
        await client.post({"id": question["id"], "result": {"action": "decline"}}).ended()
        assert (await it.bench.server.told(0))["result"] == YES
        it.bench.server.answer(call, TEXT)
        await it.settle()
        assert len(it.bench.server.answers_to(0)) == 1
        assert (await answer(back))["result"]["content"] == TEXT["content"]


async def test_a_wait_that_is_cancelled_ends_its_stream_and_the_task_goes_on() -> None:
    async with scene() as it:
        client = await it.client()
        task, call = await it.task(client)
        waiting = client.request(names.TASKS_RESULT, {"taskId": task}, id="w")
        await it.settle()
        await client.post({"method": names.CANCELLED, "params": {"requestId": "w"}}).ended()
        await waiting.ended()
        assert it.bench.server.of(names.CANCELLED) == []
        it.bench.server.answer(call, TEXT)
        await it.settle()
        assert (await get(client, task))["status"] == "completed"


async def test_progress_and_status_come_on_the_sessions_own_stream() -> None:
    """T25-PRG-001, T25-NOT-001, T25-NOT-002."""
    async with scene() as it:
        client = await it.client()
        stream = await client.listen()
        task, call = await it.task(client, _meta={"progressToken": 0})
        it.bench.server.notify(names.PROGRESS, {"progressToken": call.id, "progress": 1})
        it.bench.server.answer(call, TEXT)
        await until(lambda: len(stream.messages) == 2)
        progress, status = stream.messages
        assert progress["params"]["progressToken"] == 0
        assert progress["params"]["_meta"] == {RELATED: {"taskId": task}}
        assert status["params"] == await get(client, task)


async def test_a_session_that_is_ended_is_gone_at_once_and_its_server_after_its_tasks() -> None:
    """Contract section 5, F06: they are found in the next session of the owner."""
    async with scene() as it:
        client = await it.client()
        server = it.bench.server
        task, call = await it.task(client)
        waiting = client.request(names.TASKS_RESULT, {"taskId": task})
        await it.settle()
        assert (await client.delete().ended()).status == 200
        assert (await answer(waiting))["error"]["code"] == -32603
        assert (await client.request(names.TASKS_GET, {"taskId": task}).refused())[0] == 404
        assert not server.ended
        server.answer(call, TEXT)
        await it.settle()
        assert server.ended
        again = await it.client()
        assert (await get(again, task))["status"] == "completed"


async def test_two_sessions_of_one_owner_see_each_others_tasks_and_others_do_not() -> None:
    """T25-SEC-001, T25-LST-004, I5."""
    async with scene() as it:
        client = await it.client()
        task, _ = await it.task(client)
        other, stranger = await it.client(), await it.client(BOB)
        assert (await get(other, task))["status"] == "working"
        for method in (names.TASKS_GET, names.TASKS_RESULT, names.TASKS_CANCEL):
            told = await answer(stranger.request(method, {"taskId": task}))
            assert told["error"]["code"] == -32602
        listed = await answer(stranger.request(names.TASKS_LIST))
        assert listed["result"] == {"tasks": []}


async def test_a_session_in_which_only_a_task_runs_is_not_idle() -> None:
    """Lesson 21: work in flight is never swept."""
    async with scene() as it:
        client = await it.client()
        task, _ = await it.task(client)
        await it.it.rig.pass_time(3 * IDLE_S)
        assert (await get(client, task))["status"] == "working"


async def test_when_the_last_task_of_an_ended_session_ends_nothing_is_left() -> None:
    async with scene() as it:
        client = await it.client()
        _, call = await it.task(client)
        await client.delete().ended()
        assert len(it.bench.layer._sessions) == 1
        it.bench.server.answer(call, TEXT)
        await it.settle()
        assert len(it.bench.layer._sessions) == 0
