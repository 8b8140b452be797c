"""Bounds for each owner and each peer at the HTTP entrance, in both eras. Contract section 8, "Bounds"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from proxy.errors import LimitReached, TaskNotFound
from proxy.protocol import names
from proxy.protocol.jsonrpc import RequestId, error_object, error_response
from proxy.routing.legacy import Reply
from tests.downstream.http_rig import OK, Rig, headers_of, http_rig, message
from tests.downstream.played_legacy import JSON, PlayedLegacy

pytestmark = pytest.mark.anyio

ADA: Final = {"Authorization": "Bearer ada"}
BOB: Final = {"Authorization": "Bearer bob"}
SESSION: Final = {"Mcp-Session-Id": "s-1", "MCP-Protocol-Version": "2025-11-25"}
GET_2025: Final = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": "tpx-x"}}


async def get_task(rig: Rig, headers: Mapping[str, str] | None = None) -> tuple[int, str | None]:
    """Status and Retry-After of one `tasks/get`."""
    async with rig.post(names.TASKS_GET, taskId="t", headers=headers) as response:
        return response.status, response.headers.get("Retry-After")


async def get_task_2025(rig: Rig) -> int:
    async with rig.session.post(rig.url, data=json.dumps(GET_2025).encode(), headers=SESSION) as response:
        return response.status


async def test_an_owner_whose_requests_are_too_many_is_refused_and_another_is_served() -> None:
    """SEC-003: 429, with Retry-After and the request's own id."""
    async with http_rig(requests_per_owner=1) as rig:
        sent = rig.send(headers=ADA)
        served = await rig.router.next()
        async with rig.post(id="mine", headers=ADA) as response:
            body = json.loads(await response.read())
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
            assert (body["id"], "limits.requests_per_owner" in body["error"]["message"]) == ("mine", True)
        rig.router.always = OK
        for headers in (BOB, {}):
            async with rig.post(headers=headers) as response:
                assert response.status == 200
        served.end()
        assert json.loads(await sent.body())["id"] == 1
        async with rig.post(headers=ADA) as response:
            assert response.status == 200


async def test_a_legacy_owner_has_the_same_share() -> None:
    legacy = PlayedLegacy()
    async with http_rig(requests_per_owner=1, legacy=legacy) as rig:
        sent = rig.send(headers=ADA)
        served = await rig.router.next()
        call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}'
        async with rig.session.post(rig.url, data=call, headers={**SESSION, **ADA}) as response:
            assert response.status == 429
        async with rig.session.post(rig.url, data=call, headers={**SESSION, **BOB}) as response:
            assert response.status == 200
        served.end()
        await sent.body()


async def test_a_peer_that_guesses_ids_is_soon_not_let_look() -> None:
    """T25-SEC-004: 429, and nothing is looked up; with another owner's token it is another's affair."""
    async with http_rig(lookups_per_s=0.5) as rig:
        rig.router.always = TaskNotFound()
        assert [(await get_task(rig))[0] for _ in range(5)] == [200] * 5
        assert await get_task(rig) == (429, "2")
        assert len(rig.router.seen) == 5
        assert await get_task(rig, ADA) == (200, None)
        rig.clock.jump(2)
        assert await get_task(rig) == (200, None)


async def test_look_ups_that_succeed_are_not_counted() -> None:
    async with http_rig(lookups_per_s=0.5) as rig:
        rig.router.always = OK
        assert [(await get_task(rig))[0] for _ in range(20)] == [200] * 20


async def test_ids_that_a_listen_stream_names_in_vain_are_counted() -> None:
    """T25-SEC-004: it says nothing about them, but it is a way to ask for many."""
    async with http_rig(lookups_per_s=0.5) as rig:
        sent = rig.send(names.SUBSCRIPTIONS_LISTEN, notifications={"taskIds": ["a"]})
        served = await rig.router.next()
        for _ in range(5):
            served.sink.lookup_failed()
        served.end(LimitReached("over", retry_after_s=1))
        await sent.body()
        assert (await get_task(rig))[0] == 429
        for named, status in (({"taskIds": ["a"]}, 429), ({"toolsListChanged": True}, 200)):
            rig.router.always = OK
            async with rig.post(names.SUBSCRIPTIONS_LISTEN, notifications=named) as response:
                assert response.status == status


async def test_guesses_of_2025_clients_are_counted_with_the_others() -> None:
    """T25-SEC-004: wherever below the entrance the task was looked for."""
    one = RequestId.parse(b"1")
    assert one is not None
    missing = error_response(one, error_object(-32602, TaskNotFound.MESSAGE))
    legacy = PlayedLegacy(Reply(200, JSON, missing))
    async with http_rig(lookups_per_s=0.5, legacy=legacy) as rig:
        assert [await get_task_2025(rig) for _ in range(7)] == [200] * 5 + [429] * 2
        assert len(legacy.seen) == 5
        assert (await get_task(rig))[0] == 429


async def test_a_peer_is_whom_a_trusted_gateway_names() -> None:
    """T25-SEC-004: nobody behind it is refused for what another did."""
    async with http_rig(lookups_per_s=0.5, trusted=["127.0.0.0/8"]) as rig:
        rig.router.always = TaskNotFound()
        told = [{"X-Forwarded-For": f"198.51.100.9, 192.0.2.{n}"} for n in (1, 2)]
        assert [(await get_task(rig, told[0]))[0] for _ in range(6)] == [200] * 5 + [429]
        assert (await get_task(rig, told[1]))[0] == 200


async def test_without_trusted_gateways_nobody_gets_more_guesses_by_a_header() -> None:
    """T25-SEC-004."""
    async with http_rig(lookups_per_s=0.5) as rig:
        rig.router.always = TaskNotFound()
        told = [{"X-Forwarded-For": f"192.0.2.{n}"} for n in range(6)]
        assert [(await get_task(rig, headers))[0] for headers in told] == [200] * 5 + [429]


async def test_the_answer_over_the_bound_has_the_id_of_the_request() -> None:
    async with http_rig(lookups_per_s=0.1) as rig:
        rig.router.always = TaskNotFound()
        await get_task(rig)
        body = message(names.TASKS_GET, id="late", taskId="t")
        headers: dict[str, Any] = headers_of(names.TASKS_GET, {"taskId": "t"})
        async with rig.session.post(rig.url, data=body, headers=headers) as response:
            assert (response.status, json.loads(await response.read())["id"]) == (429, "late")
