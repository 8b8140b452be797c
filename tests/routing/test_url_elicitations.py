"""-32042 of a legacy server: URLs to be visited, then the next step of the same call.

Contract sections 1 (I2) and 3.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from proxy.eras.patience import MAX_ROUNDS
from proxy.tasks.inputs import MAX_OPEN
from tests.routing.bench import ASKABLE, TASKS, THRESHOLD_S, Bench, Client, bench
from tests.routing.fake_server import TEXT, Call

pytestmark = pytest.mark.anyio

GATHER_S: Final = 0.05
CAN_VISIT: Final[dict[str, Any]] = {"elicitation": {"form": {}, "url": {}}}
ACCEPT: Final = {"action": "accept"}
NO: Final = {"action": "decline"}


def want_urls(call: Call, *urls: str) -> None:
    listed = [{"mode": "url", "elicitationId": f"e-{u}", "url": u, "message": f"Visit {u}"} for u in urls]
    call.fail(-32042, "URL elicitation required", data={"elicitations": listed})


async def asked_by(rig: Bench, client: Client, *urls: str) -> dict[str, Any]:
    sent = client.call("slow")
    want_urls(await rig.server.next_call(), *urls)
    await rig.pass_time(GATHER_S)
    return await sent.result()


async def test_urls_go_out_as_input_requests_and_then_the_call_goes_on() -> None:
    """ELIC-003, ELIC-006, BASE-013: one for each, without elicitationId; sent again with the same params."""
    async with bench() as rig:
        client = rig.client(capabilities=CAN_VISIT)
        asked = await asked_by(rig, client, "https://a", "https://b")
        assert [request["params"] for request in asked["inputRequests"].values()] == [
            {"mode": "url", "url": u, "message": f"Visit {u}"} for u in ("https://a", "https://b")
        ]
        again = client.retry(asked, "slow", dict.fromkeys(asked["inputRequests"], ACCEPT))
        call = await rig.server.next_call()
        first, second = rig.server.heard("tools/call")
        assert {**first, "_meta": None} == {**second, "_meta": None}
        call.answer()
        assert (await again.result())["content"] == TEXT["content"]


async def test_urls_that_are_visited_in_two_rounds_make_one_next_step() -> None:
    """MRTR-014."""
    async with bench() as rig:
        client = rig.client(capabilities=CAN_VISIT)
        asked = await asked_by(rig, client, "https://a", "https://b")
        first, second = asked["inputRequests"]
        again = client.retry(asked, "slow", {first: ACCEPT})
        await rig.pass_time(GATHER_S)
        rest = await again.result()
        assert list(rest["inputRequests"]) == [second]
        assert rig.server.calls_seen == 1
        last = client.retry(rest, "slow", {second: ACCEPT})
        (await rig.server.next_call()).answer()
        assert (await last.result())["resultType"] == "complete"


async def test_too_many_urls_are_asked_of_nobody_and_end_the_call() -> None:
    """Contract section 8."""
    async with bench() as rig:
        sent = rig.client(capabilities=CAN_VISIT).call("slow")
        want_urls(await rig.server.next_call(), *(f"https://{number}" for number in range(MAX_OPEN + 1)))
        _, error = await sent.error()
        assert error["data"]["upstreamError"]["code"] == -32042
        assert rig.server.calls_seen == 1


async def test_a_declined_url_ends_the_call_with_the_servers_error() -> None:
    """ELIC-007, BASE-013: under a code that a modern client may see; nothing is sent again."""
    async with bench() as rig:
        client = rig.client(capabilities=CAN_VISIT)
        asked = await asked_by(rig, client, "https://a")
        _, error = await client.retry(asked, "slow", dict.fromkeys(asked["inputRequests"], NO)).error()
        assert (error["code"], error["data"]["upstreamError"]["code"]) == (-32603, -32042)
        assert rig.server.calls_seen == 1


@pytest.mark.parametrize("declared", [{}, ASKABLE, {"elicitation": {"form": {}}}])
async def test_a_client_that_cannot_visit_urls_is_told_what_it_lacks(declared: Any) -> None:
    """BASE-013, BASE-021, ELIC-001, I2: and the call is not sent a second time."""
    async with bench() as rig:
        sent = rig.client(capabilities={**TASKS, **declared}).call("slow")
        want_urls(await rig.server.next_call(), "https://a")
        status, error = await sent.error()
        assert (status, error["code"]) == (400, -32021)
        assert error["data"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}
        await rig.pass_time(60)
        assert rig.server.calls_seen == 1
        assert rig.calls.held == 0


async def test_in_a_task_they_are_its_input() -> None:
    """ELIC-003: after the threshold."""
    async with bench() as rig:
        client = rig.client(capabilities={**TASKS, **CAN_VISIT})
        task, call = await rig.task(client)
        want_urls(call, "https://a")
        await rig.settle()
        shown = await client.get(task)
        assert shown["status"] == "input_required"
        await client.update(task, dict.fromkeys(shown["inputRequests"], ACCEPT))
        again = await rig.server.next_call()
        assert (await client.get(task))["status"] == "working"
        again.answer()
        await rig.settle()
        assert (await client.get(task))["result"]["content"] == TEXT["content"]


async def test_in_a_task_of_a_client_that_cannot_visit_urls_the_error_ends_it() -> None:
    async with bench() as rig:
        client = rig.client(capabilities=TASKS)
        task, call = await rig.task(client)
        want_urls(call, "https://a")
        await rig.settle()
        ended = await client.get(task)
        assert (ended["status"], ended["error"]["code"]) == ("failed", -32603)
        assert rig.server.calls_seen == 1


async def test_a_server_that_asks_for_urls_for_ever_is_given_up() -> None:
    async with bench() as rig:
        client = rig.client(capabilities=CAN_VISIT)
        asked = await asked_by(rig, client, "https://a")
        for _ in range(MAX_ROUNDS - 1):
            again = client.retry(asked, "slow", dict.fromkeys(asked["inputRequests"], ACCEPT))
            want_urls(await rig.server.next_call(), "https://a")
            await rig.pass_time(GATHER_S)
            asked = await again.result()
        _, error = await client.retry(asked, "slow", dict.fromkeys(asked["inputRequests"], ACCEPT)).error()
        assert error["code"] == -32603
        assert rig.server.calls_seen == MAX_ROUNDS


async def test_an_error_that_lists_no_urls_is_an_error() -> None:
    """BASE-013."""
    async with bench() as rig:
        lists: list[dict[str, Any]] = [{}, {"elicitations": []}, {"elicitations": "x"}]
        for data in lists:
            sent = rig.client(capabilities=CAN_VISIT).call("slow")
            (await rig.server.next_call()).fail(-32042, "go", data=data)
            _, error = await sent.error()
            assert error["code"] == -32603


async def test_other_methods_do_not_ask() -> None:
    """MRTR-002."""
    async with bench() as rig:
        sent = rig.client(capabilities=CAN_VISIT).start("completion/complete")
        want_urls(await rig.server.next_call(), "https://a")
        _, error = await sent.error()
        assert error["code"] == -32603


async def test_nobody_comes_back_from_the_visit() -> None:
    """MRTR-012: nothing leaks, though nothing is in flight upstream."""
    async with bench() as rig:
        client = rig.client(capabilities=CAN_VISIT)
        await asked_by(rig, client, "https://a")
        await rig.pass_time(600)
        assert rig.calls.held == 0
        assert rig.server.calls_seen == 1


async def test_the_wait_for_a_visit_counts_as_input() -> None:
    async with bench() as rig:
        client = rig.client(capabilities={**TASKS, **CAN_VISIT})
        asked = await asked_by(rig, client, "https://a")
        await rig.pass_time(500)
        again = client.retry(asked, "slow", dict.fromkeys(asked["inputRequests"], ACCEPT))
        await rig.server.next_call()
        await rig.pass_time(THRESHOLD_S)
        assert (await again.result())["resultType"] == "task"
