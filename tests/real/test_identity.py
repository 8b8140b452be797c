"""Who a client is, with a real authorization server: tokens that are renewed, keys that change, tokens that
are taken back, and a credential of our own.

AUTH-001 ... AUTH-004, AUTH-009, SEC-004; contract section 8; issue 6, items 1 and 2.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web
from joserfc.jwk import ECKey

from proxy.protocol import names
from proxy.sessions.table import ID_PREFIX
from tests.auth.issuer import by_secret
from tests.real.authorization_server import CLIENT, LIFETIME_S, SECRET, AuthorizationServer
from tests.real.bench import Bench
from tests.real.owned_http import calls, well
from tests.real.processes import free_port
from tests.real.proxy_process import ProxyProcess
from tests.real.session_client import SessionClient, connected
from tests.real.waiting import asked_until
from tests.upstream.fake_http import FakeHttp, Seen

pytestmark = pytest.mark.anyio

AT_ONCE: Final = {"tasks": {"threshold": "0s"}}
CHALLENGE: Final = 'Bearer realm="r", error="invalid_token", scope="a b"'


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Protected:
    """A server that refuses what is in `refused`, and does its work for everybody else."""

    def __init__(self, http: FakeHttp) -> None:
        self.http = http
        self.refused: set[str] = set()
        http.handlers["POST"] = self.play

    async def play(self, seen: Seen) -> web.StreamResponse:
        if seen.headers.get("Authorization", "").removeprefix("Bearer ") in self.refused:
            return web.Response(status=401, headers={"WWW-Authenticate": CHALLENGE})
        return await well(seen)

    def tokens(self) -> set[str]:
        """What came as such."""
        return {seen.headers.get("Authorization", "") for seen in self.http.seen}


@asynccontextmanager
async def protected() -> AsyncIterator[Protected]:
    async with FakeHttp().serving() as http:
        yield Protected(http)


class Asking:
    """Asks one proxy, each time with the token that is named."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self._http = http

    async def post(
        self, method: str, token: str | None, params: Mapping[str, Any], *, modern: bool = True
    ) -> tuple[int, str | None, dict[str, Any]]:
        """Status, challenge and message; as a modern client, or as one without a session of 2025-11-25."""
        version = names.LATEST_MODERN if modern else names.LATEST_LEGACY
        meta = {
            names.META_PROTOCOL_VERSION: version,
            names.META_CLIENT_CAPABILITIES: {"extensions": {names.TASKS_EXTENSION: {}}},
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params)}
        headers = {names.H_PROTOCOL_VERSION: version, **({} if token is None else bearer(token))}
        if modern:
            body["params"] = {**params, names.META: meta}
            headers[names.H_METHOD] = method
            if (member := names.NAME_MEMBER.get(method)) is not None:
                headers[names.H_NAME] = str(params[member])
        async with self._http.post(self.url, json=body, headers=headers) as response:
            challenge = response.headers.get("WWW-Authenticate")
            return response.status, challenge, json.loads(await response.read() or b"{}")

    async def task(self, token: str) -> str:
        """A new one, of the owner of this token, once it is completed."""
        _, _, said = await self.post(names.TOOLS_CALL, token, {"name": "t", "arguments": {}})
        task = str(said["result"]["taskId"])

        async def state() -> str:
            return str((await self.get(token, task))[2]["result"]["status"])

        await asked_until(state, lambda status: status == "completed", "the task is completed")
        return task

    async def get(
        self, token: str | None, task: str, *, modern: bool = True
    ) -> tuple[int, str | None, dict[str, Any]]:
        return await self.post(names.TASKS_GET, token, {"taskId": task}, modern=modern)


@asynccontextmanager
async def asking(proxy: ProxyProcess) -> AsyncIterator[Asking]:
    async with aiohttp.ClientSession() as http:
        yield Asking(proxy.url, http)


def jwt_settings(server: AuthorizationServer) -> dict[str, Any]:
    jwt = {"issuer": server.url, "jwks_url": f"{server.url}/jwks", "audience": ["a"], "leeway": "1s"}
    return {**AT_ONCE, "auth": {"jwt": jwt}}


def unsigned(server: AuthorizationServer) -> str:
    _, claims, _ = server.token().split(".")
    header = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    return f"{header}.{claims}."


def forged(server: AuthorizationServer) -> dict[str, str | None]:
    now = int(time.time())
    stranger = ECKey.generate_key("P-256", {"kid": server.keys[-1].kid or ""})
    claims = {"iss": server.url, "sub": "alice", "aud": "a", "exp": now + LIFETIME_S}
    public = server.keys[-1].as_pem(private=False)
    return {
        "none at all": None,
        "wrong audience": server.token(aud="b"),
        "another issuer": server.token(iss="https://elsewhere.example"),
        "expired": server.token(exp=now - 60),
        "not yet valid": server.token(nbf=now + 60),
        "no subject": server.token(sub=None),  # type: ignore[arg-type]
        "alg none": unsigned(server),
        "HS256 with the public key": by_secret(public, claims, server.keys[-1].kid or ""),
        "another's key": server.token(key=stranger),
        "opaque": "opaque",
    }


async def test_a_task_is_its_subjects_whatever_token_it_comes_with(bench: Bench) -> None:
    """A token that was renewed, a key that was rotated, a restart; and nobody else's (I5)."""
    async with AuthorizationServer().serving() as server, protected() as upstream:
        proxy = await bench.proxy(upstream.http.url, jwt_settings(server))
        async with asking(proxy) as ask:
            first = server.token()
            task = await ask.task(first)
            assert (await ask.get(server.token(), task))[0] == 200
            foreign = await ask.get(server.token("bob"), task)
            unknown = await ask.get(server.token("bob"), task[:-4] + "AAAA")
            assert foreign == unknown
            assert foreign[2]["error"]["code"] == -32602

            before = len(upstream.http.seen)
            for name, token in forged(server).items():
                for modern in (True, False):
                    status, challenge, _ = await ask.post(names.TOOLS_LIST, token, {}, modern=modern)
                    assert status == 401, name
                    assert challenge is not None
                    assert challenge.startswith("Bearer"), name
                    assert (await ask.get(token, task, modern=modern))[0] == 401, name
            assert len(upstream.http.seen) == before

            server.rotate()
            renewed = server.token()
            assert (await ask.get(renewed, task))[2]["result"]["status"] == "completed"
            server.is_away = True
            assert (await ask.get(server.token(), task))[0] == 200
            server.is_away = False

            upstream.refused.add(renewed)
            status, challenge, _ = await ask.post(names.TOOLS_LIST, renewed, {})
            assert (status, challenge) == (401, CHALLENGE)
            for modern in (True, False):
                status, challenge, _ = await ask.get(renewed, task, modern=modern)
                assert (status, challenge) == (401, CHALLENGE)
            assert (await ask.get(first, task))[0] == 200

            await proxy.kill9()
            await proxy.restart()
            assert (await ask.get(server.token(), task))[2]["result"]["status"] == "completed"
    assert {f"Bearer {first}", f"Bearer {renewed}"} <= upstream.tokens()  # stand-in: unchanged
    assert "alice" not in proxy.log.read_text()
    assert first not in proxy.log.read_text()


async def test_without_verification_a_token_that_is_worth_nothing_reaches_no_task(bench: Bench) -> None:
    """Contract section 8: by its own word, or by that of the server, in both dialects, and over a restart."""
    async with AuthorizationServer().serving() as server, protected() as upstream:
        proxy = await bench.proxy(upstream.http.url, AT_ONCE)
        async with asking(proxy) as ask:
            short, opaque = server.token(exp=int(time.time()) + 2), "opaque-token"
            tasks = {token: await ask.task(token) for token in (short, opaque)}
            upstream.refused.add(opaque)
            assert (await ask.get(opaque, tasks[opaque]))[0] == 200  # nobody has said anything yet
            assert (await ask.post(names.TOOLS_LIST, opaque, {}, modern=False))[:2] == (401, CHALLENGE)
            assert (await ask.get(opaque, tasks[opaque]))[:2] == (401, CHALLENGE)
            await proxy.terminate()
            await proxy.restart()
            assert (await ask.get(opaque, tasks[opaque]))[0] == 401
            upstream.refused.clear()
            assert (await ask.post(names.TOOLS_LIST, opaque, {}, modern=False))[0] == 200
            assert (await ask.get(opaque, tasks[opaque]))[0] == 200

            async def refused() -> tuple[int, str | None, dict[str, Any]]:
                return await ask.get(short, tasks[short])

            _, challenge, _ = await asked_until(refused, lambda seen: seen[0] == 401, "it has expired")
            assert challenge is not None
            assert 'error="invalid_token"' in challenge
            assert (await ask.get(short, tasks[short], modern=False))[0] == 401
            assert (await ask.post(names.TOOLS_LIST, short, {}))[0] == 200  # that is for the server to say


async def legacy_session(client: SessionClient, token: str) -> str:
    client._headers = bearer(token)
    await client.initialize()
    return client.session_id or ""


async def readiness(proxy: ProxyProcess) -> dict[str, str]:
    async with aiohttp.request("GET", proxy.url.replace("/mcp", "/readyz")) as response:
        said: dict[str, str] = await response.json()
        return said


async def test_a_resource_of_our_own_keeps_tokens_to_itself(bench: Bench) -> None:
    """AUTH-004: the server gets a credential of ours, by client credentials; metadata and challenges are
    ours, and sessions belong to their owners (AUTH-009). What it refuses has not run, and is sent once more
    (I2)."""
    port = free_port()
    ours = f"http://127.0.0.1:{port}/mcp"
    async with AuthorizationServer().serving() as server, protected() as upstream:
        settings = jwt_settings(server)
        settings["public_url"] = ours
        settings["auth"] |= {
            "mode": "own_resource",
            "scopes": ["user"],
            "upstream": {"token_url": f"{server.url}/token", "client_id": CLIENT, "client_secret": SECRET},
        }
        settings["auth"]["jwt"]["audience"] = []
        proxy = ProxyProcess(bench.home, upstream.http.url, settings, port=port)
        bench.stack.push_async_callback(proxy.stop)
        await proxy.start()
        alice, bob = (server.token(name, aud=ours) for name in ("alice", "bob"))
        async with asking(proxy) as ask, connected(ours) as one, connected(ours) as other:
            metadata = f"http://127.0.0.1:{port}/.well-known/oauth-protected-resource"
            status, challenge, _ = await ask.post(names.TOOLS_LIST, None, {})
            assert (status, challenge) == (401, f'Bearer resource_metadata="{metadata}/mcp", scope="user"')
            for url in (metadata, f"{metadata}/mcp"):
                async with aiohttp.request("GET", url) as response:
                    said = await response.json()
                assert (said["resource"], said["authorization_servers"]) == (ours, [server.url])
            task = await ask.task(alice)
            assert (await ask.get(bob, task))[2]["error"]["code"] == -32602

            session = await legacy_session(one, alice)
            assert session.startswith(ID_PREFIX)
            assert (await one.call("t"))[-1]["result"]["content"][0]["text"] == "done"
            other._headers, other.session_id, other.version = bearer(bob), session, one.version
            assert await other.status_of("POST") == 404
            other._headers = {}
            assert await other.status_of("POST") == 401

            (given,) = upstream.tokens()
            upstream.refused.add(given.removeprefix("Bearer "))
            assert (await one.call("t"))[-1]["result"]["content"][0]["text"] == "done"
            first, second = (seen for seen in upstream.http.seen[-2:])
            assert first.body == second.body
            assert first.headers["Authorization"] == given != second.headers["Authorization"]

            upstream.refused.add(second.headers["Authorization"].removeprefix("Bearer "))
            server.is_away = True
            status, challenge, said = await ask.post(names.TOOLS_LIST, alice, {})
            assert (status, challenge) == (200, None)
            assert "own credential" in said["error"]["message"]
            opening = {"protocolVersion": names.LATEST_LEGACY, "capabilities": {}, "clientInfo": {}}
            assert (await ask.post(names.INITIALIZE, alice, opening, modern=False))[0] == 502
            assert "refused" in (await readiness(proxy))["credential"]

            server.is_away = False

            async def outcome() -> str:
                return str((await one.call("t"))[-1])

            await asked_until(outcome, lambda said: "done" in said, "another token is there", within_s=5)
            await ask.task(alice)
            assert (await readiness(proxy))["credential"] == "ok"
    assert alice not in str(upstream.tokens())
    assert calls(upstream.http)
    assert SECRET not in proxy.log.read_text()
    assert given not in proxy.log.read_text()
