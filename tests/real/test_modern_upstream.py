"""Modern servers without tasks of their own, and how the proxy finds out what a server is.

The modern side is the small server of tests/fixtures; contract sections 2 ("Upstream's era") and 4 ("From a
modern upstream").
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.protocol import names
from tests.real.bench import Bench
from tests.real.legacy import Transport
from tests.real.modern_client import ELICITATION, ModernClient
from tests.real.session_client import CAN, connected
from tests.real.waiting import asked_until, until
from tests.setup_tools import TESTS

pytestmark = pytest.mark.anyio

SERVER: Final = TESTS / "fixtures" / "modern_server.py"
SOON: Final[dict[str, Any]] = {"tasks": {"threshold": "300ms"}}
ANSWER: Final = {"action": "accept", "content": {"name": "Ada"}}


class Scene:
    """A client before the proxy before the modern server, whose journal says what it got."""

    def __init__(self, client: ModernClient, journal: Path) -> None:
        self.client = client
        self._journal = journal

    def received(self, method: str) -> list[dict[str, Any]]:
        lines = self._journal.read_text().splitlines() if self._journal.exists() else []
        return [m for m in map(json.loads, lines) if m.get("method") == method]


async def scene(bench: Bench, *switches: str) -> Scene:
    journal = bench.home / "modern.jsonl"
    command = [sys.executable, str(SERVER), "--journal", str(journal), *switches]
    proxy = await bench.proxy(command, SOON)
    return Scene(await bench.client(proxy, capabilities=ELICITATION), journal)


async def test_what_a_modern_server_says_passes_as_it_is(bench: Bench) -> None:
    """MRTR-020, VER-011, VER-012: nothing is added to its results but the extension in discovery."""
    at = await scene(bench)
    discovered = (await at.client.request(names.DISCOVER)).result
    assert discovered["capabilities"]["extensions"].keys() == {"com.example/x", names.TASKS_EXTENSION}
    assert (discovered["ttlMs"], discovered["cacheScope"]) == (7, "public")
    assert [t["name"] for t in (await at.client.request(names.TOOLS_LIST)).result["tools"]] == [
        "echo",
        "slow",
        "ask",
    ]
    asked = (await at.client.call_tool("ask")).result
    assert asked["resultType"] == names.INPUT_REQUIRED
    assert list(asked["inputRequests"]) == ["who"]
    told = await at.client.call_tool("ask", inputs={"who": ANSWER}, state=asked["requestState"])
    assert told.text == "Hello, Ada!"
    assert at.received(names.INITIALIZE) == []
    assert at.received(names.DISCOVER) != []


async def test_a_slow_call_to_a_modern_server_becomes_a_task(bench: Bench) -> None:
    at = await scene(bench)
    handle = (await at.client.call_tool("slow", {"seconds": 1.2})).result
    assert handle["resultType"] == names.TASK
    ended = (await at.client.wait_task(handle["taskId"])).result
    assert (ended["status"], ended["result"]["content"][0]["text"]) == ("completed", "slowly done")
    assert len(at.received(names.TOOLS_CALL)) == 1


async def test_a_question_to_a_task_is_answered_by_the_next_round(bench: Bench) -> None:
    """MRTR-017, MRTR-018: the exact state, only on the retry, under a new id; the server's own keys."""
    at = await scene(bench)
    handle = (await at.client.call_tool("ask", {"seconds": 0.8})).result
    waiting = (await at.client.wait_task(handle["taskId"], {"input_required"})).result
    (key,) = waiting["inputRequests"]
    await at.client.update_task(handle["taskId"], {key: ANSWER})
    ended = (await at.client.wait_task(handle["taskId"])).result
    assert ended["result"]["content"][0]["text"] == "Hello, Ada!"
    first, second = at.received(names.TOOLS_CALL)
    assert first["id"] != second["id"]
    assert "requestState" not in first["params"]
    assert second["params"]["requestState"] == "state-of-ask-1.10"
    assert second["params"]["inputResponses"] == {"who": ANSWER}


async def test_a_task_that_waits_for_its_user_survives_kill_9_of_the_proxy(bench: Bench) -> None:
    """Contract sections 4 and 9: nothing is in flight meanwhile. The server is asked each round once."""
    journal = bench.home / "modern.jsonl"
    proxy = await bench.proxy([sys.executable, str(SERVER), "--journal", str(journal)], SOON)
    at = Scene(await bench.client(proxy, capabilities=ELICITATION), journal)
    task = (await at.client.call_tool("ask", {"seconds": 0.6})).result["taskId"]
    (key,) = (await at.client.wait_task(task, {"input_required"})).result["inputRequests"]
    await proxy.kill9()
    await proxy.restart()
    waiting = (await at.client.get_task(task)).result
    assert (waiting["status"], list(waiting["inputRequests"])) == ("input_required", [key])
    await at.client.update_task(task, {key: ANSWER})
    done = (await at.client.wait_task(task, {"completed"})).result
    assert done["result"]["content"][0]["text"] == "Hello, Ada!"
    first, second = at.received(names.TOOLS_CALL)
    assert "requestState" not in first["params"]
    assert second["params"]["inputResponses"] == {"who": ANSWER}


async def test_a_2025_clients_task_that_waits_for_its_user_survives_it_too(bench: Bench) -> None:
    """Contract sections 7 and 9: its session is gone, its task is not; each round reaches the server once."""
    journal = bench.home / "modern.jsonl"
    command = [sys.executable, str(SERVER), "--journal", str(journal)]
    proxy = await bench.proxy(command, {"upstream": {"era": "modern"}})
    at = Scene(await bench.client(proxy), journal)
    async with connected(proxy.url, {"Authorization": "Bearer ada"}) as client:
        await client.initialize(**CAN)
        params = {"name": "ask", "arguments": {"seconds": 0.1}, "task": {}}
        [made] = await client.request(names.TOOLS_CALL, params)
        task = {"taskId": made["result"]["task"]["taskId"]}

        async def status() -> str:
            found: str = (await client.request(names.TASKS_GET, task))[0]["result"]["status"]
            return found

        await asked_until(status, lambda found: found == "input_required", "it asks")
        await proxy.kill9()
        await proxy.restart()
        await client.initialize(**CAN)
        assert await status() == "input_required"
        question, answer = await client.request(names.TASKS_RESULT, task)
    assert question["params"]["message"] == "Your name?"
    related = {names.META_RELATED_TASK: task}
    assert answer["result"] == {"content": [{"type": "text", "text": "Hello, Ada!"}], "_meta": related}
    first, second = at.received(names.TOOLS_CALL)
    assert "requestState" not in first["params"]
    assert second["params"]["inputResponses"]["who"]["content"]["name"] == "Ada"


async def test_a_modern_server_with_tasks_of_its_own_is_not_given_ours(bench: Bench) -> None:
    """Contract section 2: tasks that upstream offers itself stay upstream's."""
    at = await scene(bench, "--tasks")
    told = (await at.client.call_tool("slow", {"seconds": 0.8})).result
    assert told["resultType"] == names.COMPLETE


async def test_cancelling_a_task_tells_the_modern_server(bench: Bench) -> None:
    at = await scene(bench)
    handle = (await at.client.call_tool("slow", {"seconds": 30})).result
    await at.client.cancel_task(handle["taskId"])
    (cancelled,) = await until(lambda: at.received(names.CANCELLED), "the server is told")
    (call,) = at.received(names.TOOLS_CALL)
    assert cancelled["params"]["requestId"] == call["id"]


async def test_list_changes_of_a_modern_server_reach_who_listens(bench: Bench) -> None:
    """STDIO-012, SUB-011."""
    at = await scene(bench)
    async with at.client.listen(toolsListChanged=True) as listening:
        acknowledged = await anext(listening)
        assert acknowledged["params"]["notifications"] == {"toolsListChanged": True}
        assert (await anext(listening))["method"] == names.TOOLS_LIST_CHANGED


async def test_a_legacy_server_is_probed_once_and_then_greeted(bench: Bench, transport: Transport) -> None:
    """VER-009, VER-010: the fixture refuses the probe in its own ways; a second session does not probe."""
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SOON)
    for capabilities in ({}, ELICITATION):
        client = await bench.client(proxy, capabilities=capabilities)
        assert (await client.call_tool("greet", {"name": "Ada"})).text == "Hello, Ada!"
    log = proxy.log.read_text()
    assert log.count("upstream_era_found") == 1
    assert log.count("upstream_connected") == 2
