"""Modern clients before a modern server without tasks: who may be asked what, by rounds, and whose headers
are judged here.

Contract sections 3 ("Validation") and 4 ("From a modern upstream"). After a restart: test_recovery_rounds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest

from proxy.eras.era import Era
from proxy.eras.patience import MAX_ROUNDS
from proxy.protocol import names
from proxy.tasks.inputs import MAX_OPEN
from proxy.upstream.probe import UpstreamEra
from tests.routing.bench import TASKS, THRESHOLD_S, Bench, bench
from tests.routing.fake_server import TEXT, Call

pytestmark = pytest.mark.anyio

DISCOVERED: Final[dict[str, Any]] = {
    "resultType": "complete",
    "supportedVersions": [names.LATEST_MODERN],
    "capabilities": {"tools": {}},
}
FORM: Final[dict[str, Any]] = {"message": "?", "requestedSchema": {}}
FORM_ASKED: Final = {"method": names.ELICITATION_CREATE, "params": FORM}
URL_ASKED: Final = {
    "method": names.ELICITATION_CREATE,
    "params": {"mode": "url", "url": "https://x", "message": "?"},
}
YES: Final = {"action": "accept", "content": {}}


@asynccontextmanager
async def before_a_modern_server() -> AsyncIterator[Bench]:
    """On stdio: nobody but us looks at HTTP headers."""
    async with bench() as rig:
        rig.era = UpstreamEra(Era.MODERN)
        rig.server.answers[names.DISCOVER] = DISCOVERED
        yield rig


def asks(call: Call, state: str = "s", **requests: Mapping[str, Any]) -> dict[str, Any]:
    """The round ends with these; the result as it was written."""
    result = {"resultType": "input_required", "inputRequests": requests, "requestState": state}
    call.answer(result)
    return result


@pytest.mark.parametrize(
    "declared, asked, missing",
    [
        ({}, FORM_ASKED, {"elicitation": {}}),
        ({"elicitation": {}}, URL_ASKED, {"elicitation": {"url": {}}}),
        ({"elicitation": {}}, {"method": names.ROOTS_LIST}, {"roots": {}}),
    ],
)
async def test_a_task_ends_when_the_server_asks_what_its_client_did_not_declare(
    declared: dict[str, Any], asked: dict[str, Any], missing: dict[str, Any]
) -> None:
    """TX-UPD-010, F15: at once, naming the capability; nothing is made up, and the server is not asked over
    and over."""
    async with before_a_modern_server() as rig:
        client = rig.client(capabilities={**TASKS, **declared})
        task, call = await rig.task(client)
        assert call.params["_meta"][names.META_CLIENT_CAPABILITIES] == {**TASKS, **declared}
        asks(call, a=asked, b=FORM_ASKED)
        await rig.settle()
        told = await client.get(task)
        assert (told["status"], told["error"]["code"]) == ("failed", -32603)
        assert told["error"]["data"] == {"requiredCapabilities": missing}
        assert rig.server.calls_seen == 1


async def test_a_task_ends_when_the_server_asks_too_much_at_once() -> None:
    """Contract section 8: nobody is asked, and the server is not called over and over."""
    async with before_a_modern_server() as rig:
        client = rig.client(capabilities={**TASKS, "elicitation": {}})
        task, call = await rig.task(client)
        asks(call, "s", **{f"q{number}": FORM_ASKED for number in range(MAX_OPEN + 1)})
        await rig.settle()
        told = await client.get(task)
        assert (told["status"], told["error"]["code"]) == ("failed", -32603)
        assert "more than 100 questions of one call would be open" in told["error"]["message"]
        assert rig.server.calls_seen == 1


async def test_before_the_threshold_it_is_between_the_client_and_the_server() -> None:
    """MRTR-020, CACHE-004: also what was not declared; each retry reaches the server as it is."""
    async with before_a_modern_server() as rig:
        client = rig.client(capabilities=TASKS)
        sent = client.call("slow")
        asked = asks(await rig.server.next_call(), who=FORM_ASKED)
        assert await sent.result() == asked
        for number in (2, 3):
            again = client.retry(asked, "slow", {"who": YES})
            call = await rig.server.next_call()
            assert (call.params["requestState"], call.params["inputResponses"]) == ("s", {"who": YES})
            call.answer({**TEXT, "resultType": "complete"})
            assert (await again.result())["content"] == TEXT["content"]
            assert rig.server.calls_seen == number


async def test_a_server_that_only_wants_to_be_asked_again_is_given_time() -> None:
    """MRTR-019: and the task works meanwhile."""
    async with before_a_modern_server() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        for state, pause in (("one", 0.5), ("two", 1.0)):
            call.answer({"resultType": "input_required", "requestState": state})
            await rig.pass_time(pause / 2)
            assert rig.server.calls_seen == (1 if state == "one" else 2)
            assert (await client.get(task))["status"] == "working"
            await rig.pass_time(pause / 2)
            call = await rig.server.next_call()
            assert call.params["requestState"] == state
            assert "inputResponses" not in call.params
        call.answer({**TEXT, "resultType": "complete"})
        await rig.settle()
        assert (await client.get(task))["status"] == "completed"


async def test_rounds_without_end_have_one() -> None:
    """I6."""
    async with before_a_modern_server() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        for number in range(MAX_ROUNDS):
            asks(call, who=FORM_ASKED)
            await rig.settle()
            [key] = (await client.get(task))["inputRequests"]
            assert key == f"input-{number + 1}"
            await client.update(task, {key: YES})
            if number + 1 < MAX_ROUNDS:
                call = await rig.server.next_call()
        await rig.settle()
        told = await client.get(task)
        assert told["status"] == "failed"
        assert f"{MAX_ROUNDS} times in a row" in told["error"]["message"]
        assert rig.server.calls_seen == MAX_ROUNDS


async def test_a_round_that_finds_the_process_dead_is_sent_to_the_next_one() -> None:
    """I2: that round, and not the call from its beginning, of which a part has run."""
    async with before_a_modern_server() as rig:
        client = rig.client()
        task, call = await rig.task(client)
        asks(call, "asked", who=FORM_ASKED)
        await rig.settle()
        rig.server.dies_unseen = True
        [key] = (await client.get(task))["inputRequests"]
        await client.update(task, {key: YES})
        again = await rig.server.next_call()
        assert again.wire is not call.wire
        assert (again.params["requestState"], again.params["inputResponses"]) == ("asked", {"who": YES})
        again.answer({**TEXT, "resultType": "complete"})
        await rig.settle()
        assert (await client.get(task))["status"] == "completed"
        assert rig.server.calls_seen == 2


SCHEMA: Final = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


@pytest.mark.parametrize("header, served", [("eu", True), ("us", False), (None, False)])
async def test_on_stdio_nobody_else_compares_headers_with_their_arguments(
    header: str | None, served: bool
) -> None:
    """HTTP-022: before the call is sent. A modern server over HTTP does that itself."""
    async with before_a_modern_server() as rig:
        rig.server.answers["tools/list"] = {"tools": [{"name": "fast", "inputSchema": SCHEMA}]}
        rig.server.answers["fast"] = {**TEXT, "resultType": "complete"}
        headers = {} if header is None else {"mcp-param-region": header}
        call = {"name": "fast", "arguments": {"region": "eu"}}
        sent = rig.client().start("tools/call", call, headers=headers)
        if served:
            assert (await sent.result())["content"] == TEXT["content"]
        else:
            status, error = await sent.error()
            assert (status, error["code"]) == (400, -32020)
        assert rig.server.calls_seen == served


async def test_a_call_that_is_just_becoming_a_task_is_refused_instead() -> None:
    """TX-UPD-010: no handle was given yet."""
    async with before_a_modern_server() as rig:
        client = rig.client(capabilities=TASKS)
        sent = client.call("slow")
        call = await rig.server.next_call()
        rig.store.gate = anyio.Event()
        await rig.pass_time(THRESHOLD_S)
        asks(call, who=FORM_ASKED)
        await rig.settle()
        rig.store.gate.set()
        status, error = await sent.error()
        assert (status, error["code"]) == (400, -32021)
