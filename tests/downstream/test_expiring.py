"""Streams that stay open end when the token of their client does. The timer is the loop's own.

Contract section 8, "A token whose own `exp` has passed"; AUTH-003, AUTH-005.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import anyio
import pytest

from proxy.auth.challenges import Challenger
from proxy.auth.gate import Gate, TokenGate
from proxy.auth.spent import SpentTokens
from proxy.downstream.admission import Admission
from proxy.downstream.expiring import while_good
from proxy.errors import Unauthorized
from proxy.owners import Owner
from proxy.protocol import names
from proxy.routing.legacy import Reply
from proxy.stores.memory import MemoryStore
from proxy.tasks.task import ID_PREFIX
from tests.auth.issuer import NOW_S, ONE, claims, token
from tests.downstream.http_rig import Rig, http_rig
from tests.downstream.played_legacy import EVENTS, PlayedLegacy, Told
from tests.manual_clock import ManualClock
from tests.upstream.told import until

pytestmark = pytest.mark.anyio

SOON_S: Final = 0.1
SESSION: Final = {"Mcp-Session-Id": "s-1", "MCP-Protocol-Version": "2025-11-25"}
OURS: Final = ID_PREFIX + "A" * 32
GOOD: Final = b"data: while it is good\n\n"


class AnyToken:
    """In the place of a `TokenVerifier`."""

    async def owner_of(self, token: str) -> Owner:
        return Owner("user-alice")


def expiring(said: dict[str, Any] | None = None) -> dict[str, str]:
    return {"Authorization": "Bearer " + token(ONE, said or claims(exp=NOW_S + SOON_S)), **SESSION}


def admission(*, verifies: bool) -> Admission:
    clock, verifier = ManualClock(), AnyToken()
    gate: Gate | None = TokenGate(verifier, Challenger(None)) if verifies else None  # type: ignore[arg-type]
    return Admission(gate, SpentTokens(Challenger(None), clock, b"s" * 32, MemoryStore(clock)))


def ask(
    rig: Rig, method: str, headers: dict[str, str], task: str = OURS
) -> aiohttp.client._RequestContextManager:
    if method == "GET":
        return rig.session.get(rig.url, headers={**headers, "Accept": "text/event-stream"})
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"taskId": task}})
    return rig.session.post(rig.url, data=body, headers=headers)


@pytest.mark.parametrize("method, verifies", [("GET", True), ("tasks/result", True), ("tasks/result", False)])
async def test_a_stream_about_tasks_ends_in_good_order_with_its_token(method: str, verifies: bool) -> None:
    body = Told()
    body.tell(GOOD)
    legacy = PlayedLegacy(Reply(200, EVENTS, body))
    async with http_rig(legacy=legacy, admission=admission(verifies=verifies)) as rig:
        async with ask(rig, method, expiring()) as response:
            assert (response.status, await response.read()) == (200, GOOD)
        body.tell(b"data: for nobody\n\n")
        await until(lambda: legacy.left == 1)
        await rig.endpoint.wait_idle()
        assert body.is_behind


@pytest.mark.parametrize("verifies", [True, False])
async def test_who_waits_for_a_result_without_a_stream_is_refused_once_the_token_expires(
    verifies: bool,
) -> None:
    """401, and where to get another one."""
    legacy = PlayedLegacy(held=anyio.Event())
    async with http_rig(legacy=legacy, admission=admission(verifies=verifies)) as rig:
        async with ask(rig, "tasks/result", expiring()) as response:
            assert response.status == 401
            assert "invalid_token" in response.headers["WWW-Authenticate"]
            assert (await response.json())["id"] == 1
        assert legacy.left == 1


@pytest.mark.parametrize(
    "method, task, verifies, said",
    [
        ("GET", OURS, False, None),
        ("tasks/result", "the-servers-own", True, None),
        ("tools/call", OURS, True, None),
        ("GET", OURS, True, claims(exp=NOW_S + 3_600)),
        ("tasks/result", OURS, True, claims(exp=NOW_S + 3_600)),
    ],
)
async def test_other_streams_stay(
    method: str, task: str, verifies: bool, said: dict[str, Any] | None
) -> None:
    """What the server serves is for it to end; a call that has begun goes on."""
    body = Told()
    legacy = PlayedLegacy(Reply(200, EVENTS, body))
    async with (
        http_rig(legacy=legacy, admission=admission(verifies=verifies)) as rig,
        ask(rig, method, expiring(said), task) as response,
    ):
        await anyio.sleep(SOON_S * 1.5)  # nothing is to be seen
        body.tell(GOOD)
        body.end()
        assert (response.status, await response.read()) == (200, GOOD)


@pytest.mark.parametrize("said, good_for_s", [(None, SOON_S), (claims(exp=None), None)])
async def test_a_listen_stream_is_told_how_long_its_token_is_good(
    said: dict[str, Any] | None, good_for_s: float | None
) -> None:
    """What it does then: `routing.listen`. No other request asks."""
    headers = {"Authorization": expiring(said)["Authorization"]}
    async with http_rig(admission=admission(verifies=False)) as rig:
        for method in (names.SUBSCRIPTIONS_LISTEN, names.TOOLS_LIST):
            sent = rig.send(method, headers=headers)
            served = await rig.router.next()
            expected = good_for_s if method == names.SUBSCRIPTIONS_LISTEN else None
            assert served.request.good_for_s == (
                None if expected is None else pytest.approx(expected, abs=1e-3)
            )
            served.end()
            await sent.body()


async def test_a_body_that_breaks_off_before_is_told_as_ever() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield GOOD
        raise ConnectionError("gone")

    def expired() -> Unauthorized:
        raise AssertionError("not yet")

    legacy = PlayedLegacy(Reply(200, EVENTS, chunks()))
    got = []
    with pytest.raises(ConnectionError, match="gone"):
        async with while_good(legacy.serve(None), 60.0, expired) as reply:  # type: ignore[arg-type]
            assert not isinstance(reply.body, bytes)
            async for chunk in reply.body:
                got.append(chunk)
    assert (got, legacy.left) == ([GOOD], 1)
