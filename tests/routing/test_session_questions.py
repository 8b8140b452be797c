"""Questions that come while nobody can be asked: they wait, bounded, and are then refused.

Holds the contract's section 2, "A request that comes with no call in flight", and ELIC-011.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from proxy.protocol import names
from proxy.routing.session_questions import MAX_UNCLAIMED, UNCLAIMED_S
from proxy.sessions.stream import UNREAD_EVENTS
from tests.routing.session_bench import Response, session_bench, settle
from tests.upstream.fake_transport import FORM, until

pytestmark = pytest.mark.anyio

ASK: Final = names.ELICITATION_CREATE


def questions(response: Response) -> list[Any]:
    return [message["id"] for message in response.messages if "method" in message]


@pytest.mark.parametrize("carrier", ["tools/call", "prompts/get", "resources/read"])
async def test_it_waits_for_the_next_request_that_can_carry_it(carrier: str) -> None:
    async with session_bench() as it:
        client = await it.client().initialize("2025-06-18")
        it.server.ask("r", names.ROOTS_LIST)
        cannot = client.request("tools/list")
        it.server.answer(await it.server.asked("tools/list"))
        assert (await cannot.ended()).headers["content-type"] == "application/json"
        response = client.request(carrier)
        await until(lambda: response.body)
        assert questions(response) == ["r"]
        await client.post({"id": "r", "result": {"roots": []}}).ended()
        assert (await it.server.told("r"))["result"] == {"roots": []}


async def test_it_goes_to_the_get_stream_if_that_opens_first_and_then_nowhere_else() -> None:
    """HTTP-065."""
    async with session_bench() as it:
        client = await it.client().initialize()
        it.server.ask("r", names.ROOTS_LIST)
        get = client.get()
        await until(lambda: get.body and questions(get))
        call = await client.call()
        await settle()
        assert questions(get) == ["r"]
        assert questions(call.response) == []


async def test_it_does_not_wait_for_a_request_whose_client_takes_no_stream() -> None:
    async with session_bench() as it:
        client = await it.client().initialize()
        it.server.ask("r", names.ROOTS_LIST)
        call = await client.but(accept="application/json").call()
        await call.answer()
        assert call.response.headers["content-type"] == "application/json"
        get = client.get()
        await until(lambda: get.body and questions(get))


async def test_when_nothing_comes_it_is_refused_each_in_its_time() -> None:
    """I6, ELIC-011: never left in silence."""
    async with session_bench() as it:
        await it.client().initialize()
        it.server.ask("a", names.ROOTS_LIST)
        await it.pass_time(10)
        it.server.ask("b", ASK, FORM)
        await it.pass_time(UNCLAIMED_S - 10)
        assert it.server.answers_to("a")[0]["error"]["code"] == -32603
        assert it.server.answers_to("b") == []
        await it.pass_time(10)
        assert len(it.server.answers_to("b")) == 1


async def test_one_that_was_claimed_is_not_refused() -> None:
    async with session_bench() as it:
        client = await it.client().initialize()
        it.server.ask("a", names.ROOTS_LIST)
        client.get()
        await it.pass_time(10 * UNCLAIMED_S)
        assert it.server.answers_to("a") == []


async def test_one_that_is_withdrawn_before_anybody_saw_it_is_seen_by_nobody() -> None:
    async with session_bench() as it:
        client = await it.client().initialize()
        it.server.ask("a", ASK, FORM)
        it.server.notify(names.CANCELLED, {"requestId": "a"})
        get = client.get()
        await it.pass_time(2 * UNCLAIMED_S)
        assert get.messages == []
        assert it.server.answers_to("a") == []


async def test_roots_that_are_known_are_answered_at_once_until_they_change() -> None:
    """Contract section 2."""
    async with session_bench() as it:
        client = await it.client().initialize()
        call = await client.call()
        it.server.ask(1, names.ROOTS_LIST)
        await client.post(b'{"jsonrpc":"2.0","id":1,"result":{"roots": [ 1.10 ]}}').ended()
        await call.answer()
        it.server.ask(2, names.ROOTS_LIST)
        assert (await it.server.told(2))["result"] == {"roots": [1.1]}
        await client.post({"method": names.ROOTS_LIST_CHANGED}).ended()
        it.server.ask(3, names.ROOTS_LIST)
        await settle()
        assert it.server.answers_to(3) == []


async def test_an_error_and_the_answer_to_another_question_are_no_roots() -> None:
    async with session_bench() as it:
        client = await it.client().initialize()
        call = await client.call()
        it.server.ask(1, names.ROOTS_LIST)
        it.server.ask(2, ASK, FORM)
        await client.post({"id": 1, "error": {"code": -32601, "message": "no"}}).ended()
        await client.post({"id": 2, "result": {"action": "cancel"}}).ended()
        await call.answer()
        it.server.ask(3, names.ROOTS_LIST)
        await settle()
        assert it.server.answers_to(3) == []


async def test_so_many_that_nobody_can_mean_it_are_refused() -> None:
    """F16: the table is bounded."""
    async with session_bench() as it:
        await it.client().initialize()
        for n in range(MAX_UNCLAIMED + 3):
            it.server.ask(n, ASK, FORM)
        await settle()
        refused = [n for n in range(MAX_UNCLAIMED + 3) if it.server.answers_to(n)]
        assert refused == [MAX_UNCLAIMED, MAX_UNCLAIMED + 1, MAX_UNCLAIMED + 2]


async def test_on_a_stream_that_nobody_reads_on_a_question_is_refused_once_it_is_full() -> None:
    async with session_bench() as it:
        client = await it.client().initialize()
        call = await client.call()
        call.response.hang_up()
        await settle()
        for n in range(UNREAD_EVENTS + 1):
            it.server.ask(n, ASK, FORM)
        await settle()
        assert it.server.answers_to(UNREAD_EVENTS - 1) == []
        assert it.server.answers_to(UNREAD_EVENTS)[0]["error"]["code"] == -32603
