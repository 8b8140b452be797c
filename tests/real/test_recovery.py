"""Calls that outlive the proxy, or their connection: real servers whose streams can be resumed.

Contract section 9: resumed by `Last-Event-ID` or by the upstream's own 2025 task, with the real result,
having run once. Servers: npm server-everything, whose event store replays and then says nothing more on that
stream, and the Python SDK 1.x, whose event store keeps streams of all sessions by the request's id alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from proxy.protocol import names
from tests.faults.relay import Relay
from tests.real.bench import Bench
from tests.real.legacy import Legacy
from tests.real.modern_client import ELICITATION, ModernClient
from tests.real.proxy_process import ProxyProcess
from tests.real.session_client import CAN, SessionClient, connected
from tests.real.test_everything import LONG, everything
from tests.real.waiting import asked_until, together, until
from tests.real.wiretap import messages, relay

pytestmark = pytest.mark.anyio

SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "250ms"}}
RESEARCH: Final = "simulate-research-query"
LONG_DONE: Final = "Long running operation completed. Duration: 5 seconds, Steps: 5."
YES: Final = {"action": "accept", "content": {"confirm": True}}


# ------------------------------------------------------------------------------ npm server-everything


async def test_server_everything_works_on_while_the_proxy_is_killed(bench: Bench) -> None:
    """A call of some seconds, and two of its own 2025 tasks, of which one asks: killed while all run."""
    async with everything("http", bench.home) as (upstream, record):
        proxy = await bench.proxy(upstream, SETTINGS)
        client = await bench.client(proxy, capabilities=ELICITATION)

        async def task(tool: str, **arguments: Any) -> str:
            return (await client.call_tool(tool, arguments)).task_id

        long, plain, asking = await together(
            [
                task(LONG, duration=5, steps=5),
                task(RESEARCH, topic="plain"),
                task(RESEARCH, topic="python", ambiguous=True),
            ]
        )
        asked = (await client.wait_task(asking, {"input_required"})).result["inputRequests"]
        await proxy.kill9()
        await proxy.restart()
        assert (await client.get_task(asking)).result["inputRequests"] == asked
        [key] = asked
        await client.update_task(asking, {key: {"action": "accept", "content": {"interpretation": "snake"}}})
        done = [await client.wait_task(one) for one in (long, plain, asking)]
    assert done[0].text == LONG_DONE
    assert "# Research Report: plain" in done[1].text
    assert "# Research Report: python (snake)" in done[2].text
    assert [m["method"] for m in messages(record) if "method" in m].count(names.TOOLS_CALL) == 3
    said = messages(record)
    polls = [
        m["id"] for m in said if m.get("method") == names.TASKS_GET
    ]  # of no use once the result is there
    cancelled = [m["params"]["requestId"] for m in said if m.get("method") == names.CANCELLED]
    assert set(cancelled) <= set(polls)
    assert names.TASKS_CANCEL not in [m.get("method") for m in said]


# ------------------------------------------------------------------------------ Python SDK 1.x


class Scene:
    """The proxy before the fixture, and a record of what it says there."""

    def __init__(self, legacy: Legacy, proxy: ProxyProcess, record: Path) -> None:
        self.legacy = legacy
        self.proxy = proxy
        self._record = record

    async def kill_and_restart(self) -> None:
        await self.proxy.kill9()
        await self.proxy.restart()

    def said(self) -> bytes:
        return self._record.read_bytes()

    def answered(self, message: str) -> int:
        """How often the fixture got an answer to this question."""
        return sum(r["event"] == "answer" and message in r["message"] for r in self.legacy.journal())


@asynccontextmanager
async def scene(bench: Bench, *switches: str, settings: Mapping[str, Any] = SETTINGS) -> AsyncIterator[Scene]:
    legacy = await bench.legacy("http", *switches)
    record = bench.home / "sent-upstream"
    async with anyio.create_task_group() as relays:
        port = await relays.start(relay, record, legacy.port)
        proxy = await bench.proxy(f"http://127.0.0.1:{port}/mcp", settings)
        yield Scene(legacy, proxy, record)
        relays.cancel_scope.cancel()


async def test_a_question_stays_open_across_the_kill_and_its_answer_arrives_once(bench: Bench) -> None:
    """TX-UPD-006, TX-UPD-009."""
    async with scene(bench, "--pre-delay", "0.4", "--post-delay", "0") as at:
        client = await bench.client(at.proxy, capabilities=ELICITATION)
        task = (await client.call_tool("confirm_delete", {"filename": "a"})).task_id
        asked = (await client.wait_task(task, {"input_required"})).result["inputRequests"]
        for _ in range(2):
            await at.kill_and_restart()
            assert (await client.get_task(task)).result["inputRequests"] == asked
        [key] = asked
        await client.update_task(task, {key: YES})
        assert (await client.wait_task(task)).text == "deleted a"
        assert at.answered("delete a") == 1


async def test_an_owners_call_goes_on_with_the_token_of_its_next_request(bench: Bench) -> None:
    """AUTH: the token is stored nowhere."""
    async with scene(bench) as at:
        async with ModernClient(at.proxy.url, headers={"Authorization": "Bearer ada-1"}) as ada:
            task = (await ada.call_tool("slow_compute", {"seconds": 2, "label": "x"})).task_id
            await at.kill_and_restart()
            before = at.said().count(b"Last-Event-ID")
            async with ModernClient(at.proxy.url, headers={"Authorization": "Bearer bob-1"}) as bob:
                await bob.request(names.TOOLS_LIST)
            await until(lambda: b"task_resumed" in at.proxy.log.read_bytes(), "it was taken up")
            assert at.said().count(b"Last-Event-ID") == before
            assert (await ada.wait_task(task)).text.startswith("computed x")
        assert at.said().count(b"Last-Event-ID") > before
        assert at.legacy.labels("start")["x"] == 1
        for kept in (bench.home / "store").rglob("*"):
            assert kept.is_dir() or b"ada-1" not in kept.read_bytes()


async def test_a_call_survives_sigterm_as_it_survives_a_kill(bench: Bench) -> None:
    """Contract section 9, SIGTERM: what runs on after the drain time is found by the next start."""
    async with scene(bench) as at:
        client = await bench.client(at.proxy)
        task = (await client.call_tool("slow_compute", {"seconds": 3, "label": "long"})).task_id
        await at.proxy.terminate()
        await at.proxy.restart()
        assert (await client.wait_task(task)).text.startswith("computed long")
        assert at.legacy.labels("start")["long"] == 1


async def test_a_broken_stream_is_resumed_and_nobody_notices(bench: Bench) -> None:
    """While the proxy runs: TCP resets in the middle of calls, once while a question is open."""
    legacy = await bench.legacy("http", "--pre-delay", "0.3", "--post-delay", "0.3")
    broken = Relay(legacy.port)
    async with anyio.create_task_group() as relays:
        await relays.start(broken.run)
        proxy = await bench.proxy(f"http://127.0.0.1:{broken.port}/mcp", SETTINGS)
        client = await bench.client(proxy, capabilities=ELICITATION)
        plain = await bench.client(proxy, tasks=False)
        job = {"steps": 6, "delay": 0.25}
        async with anyio.create_task_group() as calls:
            answers: dict[str, Any] = {}

            async def call(kind: str, of: ModernClient, tool: str, arguments: Mapping[str, Any]) -> None:
                answers[kind] = await of.call_tool(tool, arguments, meta={"progressToken": "t"})

            calls.start_soon(call, "blocking", plain, "progress_job", job)
            calls.start_soon(call, "asking", client, "confirm_delete", {"filename": "b"})
            await until(lambda: "asking" in answers, "it is a task")
            task = answers["asking"].task_id
            asked = await client.wait_task(task, {"input_required"})
            broken.reset(1.0)
            [key] = asked.result["inputRequests"]
            await client.update_task(task, {key: YES})
            assert (await client.wait_task(task)).text == "deleted b"
        told = [n["params"]["progress"] for n in answers["blocking"].notifications]
        assert told == sorted(set(told))
        assert told[-1] == job["steps"]
        started = [row["tool"] for row in legacy.journal() if row["event"] == "start"]
        assert sorted(started) == ["confirm_delete", "progress_job"]
        assert proxy.log.read_text().count("upstream_stream_resumed") >= 2
        relays.cancel_scope.cancel()


# ------------------------------------------------------------------------------ 2025 clients


async def task_of(client: SessionClient, tool: str, **arguments: Any) -> str:
    params = {"name": tool, "arguments": arguments, "task": {}}
    [answer] = await client.request(names.TOOLS_CALL, params)
    task_id: str = answer["result"]["task"]["taskId"]
    return task_id


async def status_of(client: SessionClient, task: str) -> str:
    [answer] = await client.request(names.TASKS_GET, {"taskId": task})
    status: str = answer["result"]["status"]
    return status


async def has_status(client: SessionClient, task: str, wanted: str) -> None:
    """Ask until it has."""

    async def ask() -> str:
        return await status_of(client, task)

    await asked_until(ask, lambda status: status == wanted, f"the task is {wanted}")


async def test_a_2025_clients_tasks_go_on_in_the_clients_own_session(bench: Bench) -> None:
    """Also one whose session its client has ended: that ends upstream after the task."""
    async with (
        scene(bench, "--pre-delay", "0.3", "--post-delay", "0") as at,
        connected(at.proxy.url) as client,
    ):
        await client.initialize(**CAN)
        one, two = [await task_of(client, "confirm_delete", filename=name) for name in ("c", "d")]
        for task in (one, two):
            await has_status(client, task, "input_required")
        await at.kill_and_restart()
        heard = await client.request(names.TASKS_RESULT, {"taskId": one})
        assert heard[-1]["result"]["content"][0]["text"] == "deleted c"

        async with client.exchange("DELETE") as ended:
            assert ended.status == 200
        await at.kill_and_restart()
        await client.initialize(**CAN)
        assert b"DELETE /mcp" not in at.said()
        heard = await client.request(names.TASKS_RESULT, {"taskId": two})
        assert heard[-1]["result"]["content"][0]["text"] == "deleted d"
        await until(lambda: at.said().count(b"DELETE /mcp") == 1, "its session is ended upstream")
        assert at.legacy.labels("start") == {"c": 1, "d": 1}
        assert [at.answered(name) for name in ("delete c", "delete d")] == [1, 1]


async def test_a_session_that_its_client_ended_is_ended_upstream_though_we_were_killed(bench: Bench) -> None:
    """With nothing left to be resumed when we start."""
    async with scene(bench) as at, connected(at.proxy.url) as client:
        await client.initialize(**CAN)
        task = await task_of(client, "slow_compute", seconds=600, label="on")
        await at.legacy.happened("start", "on")
        async with client.exchange("DELETE") as ended:
            assert ended.status == 200
        await at.proxy.kill9()
        await at.legacy.restart()
        await at.proxy.restart()
        await client.initialize(**CAN)
        await has_status(client, task, "failed")
        await until(lambda: b"DELETE /mcp" in at.said(), "the upstream is told")
