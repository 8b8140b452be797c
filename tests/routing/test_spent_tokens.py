"""Messages that ask for nothing, with tokens that are good for nothing any more: no task and no session of
ours hears of them. What the server hears, the server judges.

Contract section 8, "gets 401 ... on `tasks/*` too".
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from proxy.errors import Unauthorized
from proxy.protocol import names
from tests.routing.http_bench_2025 import http_bench_2025
from tests.routing.session_bench import session_bench
from tests.upstream.fake_transport import until

pytestmark = pytest.mark.anyio

YES: Final[dict[str, Any]] = {"action": "accept", "content": {"ok": True}}
NO: Final[dict[str, Any]] = {"code": -1, "message": "no"}


def spent() -> None:
    raise Unauthorized("the access token is not good: it has expired", reason="expired")


def good() -> None:
    """Nothing is known against it."""


@pytest.mark.parametrize("said", [{"result": YES}, {"error": NO}], ids=["result", "error"])
async def test_a_spent_token_answers_no_question_of_a_task(said: dict[str, Any]) -> None:
    async with http_bench_2025() as bench:
        client = await bench.opened()
        task, call = await client.call()
        waiting = client.result(task, id="r")
        question = call.elicit()
        await until(lambda: waiting.messages)
        [asked] = waiting.messages
        client.check_token = spent
        with pytest.raises(Unauthorized):
            client.post({"id": asked["id"], **said})
        with pytest.raises(Unauthorized):
            client.post({"method": names.CANCELLED, "params": {"requestId": "r"}})
        await bench.settle()
        assert (question.answers, waiting.done) == ([], False)
        client.check_token = good
        assert (await client.answer(asked, YES).ended()).status == 202
        assert await question.answer() == YES


async def test_a_spent_token_ends_no_session_in_which_tasks_run() -> None:
    async with http_bench_2025() as bench:
        client = await bench.opened()
        task, call = await client.call()
        client.check_token = spent
        refused = await client.delete().ended()
        assert isinstance(refused.raised, Unauthorized)
        client.check_token = good
        call.answer()
        await bench.settle()
        assert (await client.read(task))["status"] == "completed"


async def test_what_is_said_to_the_server_is_for_the_server_to_refuse() -> None:
    """AUTH-005. Its own questions are answered as without us, and its sessions ended."""
    async with http_bench_2025() as bench:
        client = await bench.opened()
        client.check_token = spent
        for said in ({"id": 7, "result": YES}, {"method": names.CANCELLED, "params": {"requestId": 9}}):
            bench.upstream.will(401, [])
            assert (await client.post(said).ended()).status == 401
        bench.upstream.will(401, [])
        assert (await client.delete().ended()).status == 401
        assert bench.methods == [names.INITIALIZE, "answer", names.CANCELLED, "DELETE"]


async def test_a_spent_token_says_nothing_in_a_session_that_is_ours() -> None:
    async with session_bench() as bench:
        client = await bench.client().initialize()
        asks = await client.call()
        heard = len(bench.server.sent)
        client.check_token = spent
        for response in (
            client.post({"id": 1, "result": YES}),
            client.post({"method": names.CANCELLED, "params": {"requestId": client.next_id}}),
            client.delete(),
        ):
            assert isinstance((await response.ended()).raised, Unauthorized)
        assert len(bench.server.sent) == heard
        assert (await client.post({"method": names.INITIALIZED}).ended()).status == 202
        client.check_token = good
        assert (await asks.answer()).status == 200
