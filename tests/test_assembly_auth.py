"""Which parts the settings of `auth` make."""

from __future__ import annotations

from typing import Any

import aiohttp
import anyio
import pytest
from multidict import CIMultiDict

from proxy.assembly_auth import AuthParts, assemble_auth
from proxy.auth.client_credentials import PAUSE_S
from proxy.auth.gate import GatewayGate, TokenGate
from proxy.auth.own_credential import OwnCredential
from proxy.auth.spent import SpentTokens
from proxy.config import Config
from proxy.downstream.stdio import LOCAL_USER
from proxy.owners import owner_of
from proxy.stores.memory import MemoryStore
from tests.auth.issuer import ISSUER, ONE, claims, key_set, token
from tests.manual_clock import ManualClock
from tests.stores.records import a_task
from tests.upstream.fake_http import FakeHttp
from tests.upstream.fake_http import status as answering
from tests.upstream.told import until

pytestmark = pytest.mark.anyio

PUBLIC = "https://p.example/mcp"
JWT = {"issuer": ISSUER, "jwks_file": "/nowhere"}
OWN = {"mode": "own_resource", "jwt": JWT}
GATEWAY = {"header": "X-User", "trusted": ["127.0.0.1"]}


async def assembled(auth: dict[str, Any], *, store: MemoryStore | None = None, **more: Any) -> AuthParts:
    settings = {"upstream": {"url": "http://127.0.0.1:9/mcp"}, "auth": auth, **more}
    clock = ManualClock()
    async with aiohttp.ClientSession() as client:
        return assemble_auth(
            Config.model_validate(settings), b"s" * 32, client, clock, store or MemoryStore(clock)
        )


async def test_without_a_word_everybody_comes_in_and_the_server_decides() -> None:
    parts = await assembled({})
    assert parts.admission.gate is None
    assert parts.admission.urls is None
    assert parts.verdicts is parts.admission.spent
    assert isinstance(parts.verdicts, SpentTokens)
    assert not isinstance(parts.credentials, OwnCredential)
    assert parts.metadata is None
    assert parts.report() == {}


async def test_tokens_that_are_made_up_have_none_forgotten_whose_owner_has_tasks() -> None:
    """SEC-003; contract section 8."""
    store = MemoryStore(clock := ManualClock())
    await store.create(a_task(clock, owner=owner_of("Bearer one", b"s" * 32).key))
    spent = (await assembled({}, store=store)).spent
    assert spent is not None
    for name in ("one", "of nobody", *(f"junk{number}" for number in range(2_000))):
        spent.answered(f"Bearer {name}", 401, ())
    assert spent.knows("Bearer one")
    assert not spent.knows("Bearer of nobody")


async def test_where_tokens_are_verified_those_of_one_subject_are_one_owners() -> None:
    """However many one has refused; and another token of the same subject may have tasks yet."""
    spent = (await assembled({"jwt": JWT}, public_url=PUBLIC)).spent
    assert spent is not None
    names = [f"Bearer {token(ONE, claims(sub='bob', jti=str(n)))}" for n in range(60)]
    alices = f"Bearer {token(ONE, claims(sub='alice'))}"
    for name in (alices, *names):
        spent.answered(name, 401, ())
    assert spent.knows(alices)
    assert [spent.knows(name) for name in names] == [False] * 10 + [True] * 50


async def test_the_servers_address_is_put_right_where_ours_is_known() -> None:
    assert (await assembled({}, public_url=PUBLIC)).admission.urls is not None
    command = await assembled({}, public_url=PUBLIC, upstream={"command": ["server"]})
    assert command.admission.urls is None


async def test_a_gateway_is_believed_from_where_it_is() -> None:
    gate = (await assembled({"gateway": GATEWAY})).admission.gate
    assert isinstance(gate, GatewayGate)
    assert (await gate.admit(CIMultiDict({"x-user": "a"}), "127.0.0.1")).has_token


async def test_a_resource_of_our_own_has_metadata_and_gives_the_server_nothing_that_is_not_configured() -> (
    None
):
    """AUTH-004."""
    parts = await assembled(OWN, public_url=PUBLIC)
    assert isinstance(parts.admission.gate, TokenGate)
    assert parts.metadata is not None
    assert parts.verdicts.is_ours
    parts.credentials.note(LOCAL_USER, "Bearer of-a-client")
    assert parts.credentials.headers(LOCAL_USER) == {}


async def test_behind_a_gateway_a_resource_of_our_own_says_nothing_of_tokens() -> None:
    assert (await assembled({"mode": "own_resource", "gateway": GATEWAY})).metadata is None


async def test_before_a_command_tokens_are_for_us_in_any_mode() -> None:
    """RFC 9728: there is nobody else who could say where they are to be had."""
    command = {"command": ["server"]}
    parts = await assembled({"jwt": JWT, "scopes": ["a"]}, public_url=PUBLIC, upstream=command)
    assert parts.metadata is not None
    assert (await assembled({"jwt": JWT}, public_url=PUBLIC)).metadata is None


async def test_a_client_on_stdio_may_have_the_server_see_a_credential() -> None:
    """AUTH-008."""
    parts = await assembled({"upstream": {"headers": {"X-Key": "k"}}}, listen="stdio")
    assert parts.credentials.headers(LOCAL_USER) == {"X-Key": "k"}
    assert parts.admission.gate is None


async def test_a_credential_that_the_server_refuses_is_told_to_those_who_run_it() -> None:
    """As long as there is no other; contract section 9."""
    async with FakeHttp().serving() as http:
        granted = b'{"access_token":"t","token_type":"Bearer"}'
        http.handlers["POST"] = answering(200, granted)
        upstream = {"token_url": http.url, "client_id": "us", "client_secret": "hunter2"}
        settings = {"upstream": {"url": "http://127.0.0.1:9/mcp"}, "auth": {**OWN, "upstream": upstream}}
        config = Config.model_validate({"public_url": PUBLIC, **settings})
        clock = ManualClock()
        with anyio.fail_after(5):
            async with aiohttp.ClientSession() as client, anyio.create_task_group() as tasks:
                parts = assemble_auth(config, b"s" * 32, client, clock, MemoryStore(clock))
                assert parts.report()["credential"] == "could not be had"
                await tasks.start(parts.run)
                assert parts.report()["credential"] == "ok"
                http.handlers["POST"] = answering(401)
                parts.verdicts.answered("Bearer t", 401, ())
                assert "refused" in parts.report()["credential"]
                await clock.advance(PAUSE_S)
                await until(lambda: len(http.seen) >= 2)
                assert "refused" in parts.report()["credential"]
                parts.verdicts.answered("Bearer t", 200, ())
                assert parts.report()["credential"] == "ok"
                tasks.cancel_scope.cancel()


async def test_what_is_missing_is_told_to_those_who_run_it(tmp_path: Any) -> None:
    """Contract section 9: readiness names what is broken."""
    file = tmp_path / "keys.json"
    jwt = {**JWT, "jwks_file": str(file)}
    parts = await assembled({"jwt": jwt}, public_url=PUBLIC)
    assert parts.report() == {"issuer_keys": "could not be had yet"}
    file.write_bytes(key_set(ONE))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await tasks.start(parts.run)
            assert parts.keys is not None
            await parts.keys.find("one", "ES256")
            assert parts.report() == {"issuer_keys": "ok"}
            tasks.cancel_scope.cancel()
