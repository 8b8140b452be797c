"""Credentials at the HTTP entrance: asked for before anything is read, judged before the store answers.

AUTH-002, AUTH-003, AUTH-005; contract section 8; field report F28.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import ClientResponse
from multidict import MultiMapping

from proxy.auth.challenges import Challenger, UrlMap
from proxy.auth.spent import SpentTokens
from proxy.downstream.admission import Admission
from proxy.errors import LimitReached, Unauthorized, UpstreamRefused
from proxy.owners import Owner, owner_of
from proxy.protocol import names
from proxy.routing.legacy import Reply
from proxy.stores.memory import MemoryStore
from proxy.tasks.task import ID_PREFIX
from tests.auth.issuer import NOW_S, ONE, claims, token
from tests.downstream.http_rig import MAX_BODY, OK, ORIGIN, Rig, http_rig
from tests.downstream.played_legacy import PlayedLegacy
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

ALICE = Owner("user-alice")
SESSION = {"Mcp-Session-Id": "s-1", "MCP-Protocol-Version": "2025-11-25"}
OURS = ID_PREFIX + "A" * 32
THEIRS = "task-of-the-servers-own"
EXPIRED = "Bearer " + token(ONE, claims(exp=NOW_S - 1))
ANSWER = {"jsonrpc": "2.0", "id": "tpx-ask-1", "result": {}}
REFUSAL = {"jsonrpc": "2.0", "id": "tpx-ask-1", "error": {"code": -1, "message": "no"}}
NOTE = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
URLS = UrlMap("https://u.internal:9/mcp", "https://p.example/team/mcp")
RAW = 'Bearer error="insufficient_scope", resource_metadata="https://u.internal:9{}"'
GIVEN = RAW.format("/.well-known/oauth-protected-resource/mcp")
TOLD = RAW.replace("u.internal:9{}", "p.example/.well-known/oauth-protected-resource/team/mcp")


class PlayedGate:
    """Lets in who has `Bearer good`."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    async def admit(self, headers: MultiMapping[str], peer: str | None) -> Owner:
        self.asked.append(peer)
        match headers.get("Authorization"):
            case "Bearer good":
                return ALICE
            case "Bearer later":
                raise LimitReached("no keys", retry_after_s=5)
            case _:
                raise Unauthorized("a token is needed", reason="missing", challenges=('Bearer scope="a"',))


def spent() -> Admission:
    clock = ManualClock()
    return Admission(spent=SpentTokens(Challenger(None), clock, b"s" * 32, MemoryStore(clock)))


async def legacy_post(rig: Rig, method: str, headers: Mapping[str, str], **params: Any) -> ClientResponse:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    async with rig.session.post(rig.url, data=body, headers={**SESSION, **headers}) as response:
        await response.read()
        return response


async def test_whoever_the_gate_lets_in_is_the_owner_in_both_eras() -> None:
    """AUTH-003: every request."""
    gate, legacy = PlayedGate(), PlayedLegacy()
    good = {"Authorization": "Bearer good"}
    async with http_rig(admission=Admission(gate), legacy=legacy) as rig:
        rig.router.always = OK
        async with rig.post(headers=good) as response:
            assert response.status == 200
        await legacy_post(rig, "tools/list", good)
        async with rig.session.get(rig.url, headers={**SESSION, **good}):
            pass
        async with rig.session.delete(rig.url, headers={**SESSION, **good}):
            pass
        assert rig.credentials.headers(ALICE) == good
    assert [request.owner for request in rig.router.seen] == [ALICE]
    assert [message.owner for message in legacy.seen] == [ALICE] * 3
    assert gate.asked == ["127.0.0.1"] * 4


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_nobody_else_is_let_in(method: str) -> None:
    """AUTH-002: 401 with a challenge, in every method, before a body is read."""
    legacy = PlayedLegacy()
    async with http_rig(admission=Admission(PlayedGate()), legacy=legacy) as rig:
        body = b"x" * (MAX_BODY + 1) if method == "POST" else None
        headers = {**SESSION, "Origin": ORIGIN, "Authorization": "Bearer bad"}
        async with rig.session.request(method, rig.url, data=body, headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == 'Bearer scope="a"'
            assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
            assert (await response.json())["error"]["code"] == -32600
        async with rig.post(headers={"Authorization": "Bearer bad"}) as response:
            assert response.status == 401
        assert b'refusals_total{reason="auth"} 2.0' in rig.metrics.text()
    assert legacy.seen == []
    assert rig.router.seen == []


async def test_while_it_cannot_be_found_out_nobody_is_refused_for_good() -> None:
    async with (
        http_rig(admission=Admission(PlayedGate())) as rig,
        rig.post(headers={"Authorization": "Bearer later"}) as response,
    ):
        assert (response.status, response.headers["Retry-After"]) == (429, "5")


async def test_a_preflight_has_no_credential_and_needs_none() -> None:
    """F30."""
    gate = PlayedGate()
    asks = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    async with (
        http_rig(admission=Admission(gate)) as rig,
        rig.session.options(rig.url, headers=asks) as response,
    ):
        assert response.status == 204
    assert gate.asked == []


MODERN = [
    *((method, {"taskId": OURS}) for method in sorted(names.TASK_METHODS)),
    ("subscriptions/listen", {}),
]
LEGACY = [*((method, {"taskId": OURS}) for method in sorted(names.TASK_METHODS_2025)), ("tasks/list", {})]


@pytest.mark.parametrize("method, params", MODERN)
async def test_a_spent_token_reaches_no_task_of_a_modern_client(method: str, params: dict[str, Any]) -> None:
    """Contract section 8: on `tasks/*` too."""
    async with (
        http_rig(admission=spent()) as rig,
        rig.post(method, headers={"Authorization": EXPIRED}, **params) as response,
    ):
        assert response.status == 401
        assert "invalid_token" in response.headers["WWW-Authenticate"]
        assert (await response.json())["id"] == 1
    assert rig.router.seen == []


@pytest.mark.parametrize("method, params", LEGACY)
async def test_a_spent_token_reaches_no_task_of_a_legacy_client(method: str, params: dict[str, Any]) -> None:
    legacy = PlayedLegacy()
    async with http_rig(admission=spent(), legacy=legacy) as rig:
        response = await legacy_post(rig, method, {"Authorization": EXPIRED}, **params)
        assert response.status == 401
        assert "invalid_token" in response.headers["WWW-Authenticate"]
    assert legacy.seen == []


@pytest.mark.parametrize("said", [ANSWER, REFUSAL, NOTE, "GET", "DELETE"], ids=str)
async def test_with_a_spent_token_nothing_is_said_to_what_is_served_here_alone(said: Any) -> None:
    """Contract section 8: no question of a task is answered, and no session of ours ended. What is served
    here the handler knows, and asks."""

    def reply() -> Reply:
        legacy.seen[-1].check_token()
        return Reply(202, [])

    legacy = PlayedLegacy(make=reply)
    async with http_rig(admission=spent(), legacy=legacy) as rig:
        method = said if isinstance(said, str) else "POST"
        for authorization, status in ((EXPIRED, 401), ("Bearer good", 202)):
            headers = {**SESSION, "Authorization": authorization}
            body = None if method != "POST" else json.dumps(said)
            async with rig.session.request(method, rig.url, data=body, headers=headers) as response:
                assert response.status == status
                assert ("invalid_token" in response.headers.get("WWW-Authenticate", "")) == (status == 401)


@pytest.mark.parametrize("method, params", [("tools/list", {}), ("tasks/get", {"taskId": THEIRS})])
async def test_what_the_server_answers_is_for_the_server_to_refuse(
    method: str, params: dict[str, Any]
) -> None:
    """Stand-in: AUTH-005."""
    legacy = PlayedLegacy()
    async with http_rig(admission=spent(), legacy=legacy) as rig:
        rig.router.always = OK
        async with rig.post(method, headers={"Authorization": EXPIRED}, **params) as response:
            assert response.status == 200
        assert (await legacy_post(rig, method, {"Authorization": EXPIRED}, **params)).status == 200
    assert [request.owner for request in rig.router.seen] == [owner_of(EXPIRED, b"s" * 32)]


@pytest.mark.parametrize("status", [401, 403])
async def test_challenges_of_the_server_lead_to_our_address(status: int) -> None:
    """F28, AUTH-006: those of a response that passes, and those of a refusal that is told."""
    legacy = PlayedLegacy(
        Reply(status, [("WWW-Authenticate", GIVEN), ("X-A", "1"), ("WWW-Authenticate", "Basic")])
    )
    async with http_rig(admission=Admission(urls=URLS), legacy=legacy) as rig:
        response = await legacy_post(rig, "tools/list", {})
        assert response.headers.getall("WWW-Authenticate") == [TOLD, "Basic"]
        rig.router.always = UpstreamRefused("no", status=status, challenges=(GIVEN, "Basic"))  # type: ignore[arg-type]
        async with rig.post() as modern:
            assert modern.status == status
            assert modern.headers.getall("WWW-Authenticate") == [TOLD, "Basic"]
