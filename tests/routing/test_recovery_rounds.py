"""Tasks that wait for their user before a modern server go on after a restart: nothing of them is in flight.

Contract sections 4 ("From a modern upstream") and 9; MRTR 2026-07-28, "Client Requirements".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from proxy.eras.era import Era
from proxy.owners import Owner
from proxy.protocol import names
from proxy.routing.recovery import OUTCOME_UNKNOWN
from proxy.tasks import lifecycle
from proxy.upstream.probe import UpstreamEra
from tests.routing.bench import Client
from tests.routing.fake_server import TEXT, Call
from tests.routing.recovery_bench import YES, Restarts, restarts

pytestmark = pytest.mark.anyio

NO: Final[dict[str, Any]] = {"action": "decline"}
DISCOVERED: Final[dict[str, Any]] = {
    "resultType": "complete",
    "supportedVersions": [names.LATEST_MODERN],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "private",
}
WITH_TOKEN: Final = Owner("token-1")


@asynccontextmanager
async def before_a_modern_server() -> AsyncIterator[Restarts]:
    async with restarts() as at:
        at.rig.era = UpstreamEra(Era.MODERN)
        at.server.answers[names.DISCOVER] = DISCOVERED
        yield at


def ask(call: Call, *keys: str, state: str = "s1") -> None:
    asked = {"method": names.ELICITATION_CREATE, "params": {"message": "?", "requestedSchema": {}}}
    requests = dict.fromkeys(keys, asked)
    call.answer({"resultType": "input_required", "inputRequests": requests, "requestState": state})


async def waiting(at: Restarts, *keys: str, client: Client | None = None) -> tuple[str, Call, list[str]]:
    """A task that waits for answers to these keys of the server's: its id, the call, and our keys."""
    client = client or at.client()
    task, call = await at.rig.task(client)
    ask(call, *keys)
    return task, call, list((await at.told(task, client))["inputRequests"])


async def test_the_next_round_goes_out_after_the_restart_and_says_all_that_it_must() -> None:
    """MRTR-017, MRTR-018: the same params, the exact state, the server's own keys; each round once."""
    async with before_a_modern_server() as at:
        task, first, [key] = await waiting(at, "who")
        before = await at.told(task)
        for _ in range(2):
            await at.restart()
            assert await at.told(task) == before
        assert at.server.calls_seen == 1
        await at.client().update(task, {key: YES})
        second = await at.server.next_call()
        assert second.params["requestState"] == "s1"
        assert second.params["inputResponses"] == {"who": YES}
        assert {**second.params, "_meta": 0} == {
            **first.params,
            "_meta": 0,
            "requestState": "s1",
            "inputResponses": {"who": YES},
        }
        second.answer({**TEXT, "resultType": "complete"})
        told = await at.told(task)
        assert (told["status"], told["result"]["content"]) == ("completed", TEXT["content"])


async def test_an_answer_that_was_given_before_is_not_asked_for_again() -> None:
    async with before_a_modern_server() as at:
        task, _, [one, two] = await waiting(at, "one", "two")
        await at.client().update(task, {one: NO})
        await at.restart()
        assert list((await at.told(task))["inputRequests"]) == [two]
        await at.client().update(task, {one: YES, two: YES})
        call = await at.server.next_call()
        assert call.params["inputResponses"] == {"one": NO, "two": YES}


async def test_a_further_round_after_the_restart_has_keys_of_its_own() -> None:
    async with before_a_modern_server() as at:
        client = at.client()
        task, _, [key] = await waiting(at, "who")
        await at.restart()
        await client.update(task, {key: YES})
        ask(await at.server.next_call(), "who", state="s2")
        [new_key] = (await at.told(task))["inputRequests"]
        assert new_key != key
        await at.restart()
        await client.update(task, {new_key: NO})
        third = await at.server.next_call()
        assert (third.params["requestState"], third.params["inputResponses"]) == ("s2", {"who": NO})
        assert at.server.calls_seen == 3


async def test_a_round_that_may_have_been_sent_is_not_sent_again() -> None:
    """I2: killed once all was answered, the next step of the call may have run."""
    async with before_a_modern_server() as at:
        task, _, [key] = await waiting(at, "who")
        await at.client().update(task, {key: YES})
        await at.server.next_call()
        await at.restart()
        told = await at.told(task)
        assert (told["status"], told["error"]["message"]) == ("failed", OUTCOME_UNKNOWN)
        assert at.server.calls_seen == 2


async def test_a_call_that_runs_at_a_modern_server_cannot_be_resumed() -> None:
    async with before_a_modern_server() as at:
        task, _ = await at.rig.task(at.client())
        await at.restart()
        assert (await at.told(task))["status"] == "failed"
        assert at.server.calls_seen == 1


async def test_a_waiting_task_that_is_cancelled_sends_no_further_round() -> None:
    async with before_a_modern_server() as at:
        task, _, [key] = await waiting(at, "who")
        await at.restart()
        await at.client().cancel(task)
        await at.client().update(task, {key: YES})
        await at.rig.pass_time(10)
        assert (await at.told(task))["status"] == "cancelled"
        assert at.server.calls_seen == 1
        assert at.rig.calls.held == 0


async def test_the_words_of_a_task_that_goes_on_are_plain() -> None:
    async with before_a_modern_server() as at:
        task, _, [key] = await waiting(at, "who")
        await at.restart()
        assert (await at.told(task))["statusMessage"] == lifecycle.WAITING_MESSAGE
        await at.client().update(task, {key: YES})
        await at.server.next_call()
        await at.rig.pass_time(1)
        assert (await at.told(task))["statusMessage"] == lifecycle.WORKING_MESSAGE


async def test_an_answer_of_an_owner_with_a_token_brings_it_along() -> None:
    async with before_a_modern_server() as at:
        client = at.client(owner=WITH_TOKEN)
        task, _, [key] = await waiting(at, "who", client=client)
        await at.restart()
        await client.update(task, {key: YES})
        await at.rig.settle()
        assert at.server.calls_seen == 1
        at.credentials.note(WITH_TOKEN, "Bearer t")
        call = await at.server.next_call()
        assert call.params["inputResponses"] == {"who": YES}
