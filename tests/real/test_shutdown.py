"""SIGTERM, SIGINT, a second SIGTERM, `kill -9`: what the proxy leaves behind when it goes.

Holds F36 and F41 of the field reports and the row SIGTERM of the contract's section 9.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import anyio
import pytest

from proxy.protocol import names
from tests.real.bench import Bench
from tests.real.legacy import Legacy
from tests.real.modern_client import Answer, ModernClient
from tests.real.proxy_process import DRAIN_S, EXIT_BOUND_S, ProxyProcess
from tests.real.waiting import asked_until, together

pytestmark = pytest.mark.anyio

SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "0s"}}
LONG_DRAIN: Final[dict[str, Any]] = {**SETTINGS, "drain": "60s"}
AT_ONCE_S: Final = 2.0
ORPHAN_BOUND_S: Final = 10.0


async def start_tasks(client: ModernClient, legacy: Legacy, seconds: float = 300) -> list[str]:
    """Three tasks whose calls have started upstream."""
    labels = ("one", "two", "three")
    calls = (client.call_tool("cancellable_job", {"seconds": seconds, "label": label}) for label in labels)
    tasks = [answer.task_id for answer in await together(calls)]
    for label in labels:
        await legacy.happened("start", label)
    return tasks


async def test_sigterm_ends_streams_and_children_and_exits_0(bench: Bench) -> None:
    legacy = await bench.legacy("stdio")
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy)
    tasks = await start_tasks(client, legacy)
    assert proxy.children(), "the upstream runs"

    async with (
        client.listen(taskIds=tasks) as of_tasks,
        client.listen(toolsListChanged=True) as of_lists,
        anyio.create_task_group() as group,
    ):
        for stream in (of_tasks, of_lists):
            first = await anext(stream)
            assert first["method"] == "notifications/subscriptions/acknowledged"
        with anyio.fail_after(EXIT_BOUND_S):
            group.start_soon(proxy.terminate)
            for stream in (of_tasks, of_lists):
                *_, last = [message async for message in stream]
                assert last["id"] == stream.request_id
                assert last["result"]["resultType"] == "complete"

    assert proxy.children() == []


async def test_tasks_that_sigterm_cut_off_are_failed_after_the_restart(bench: Bench) -> None:
    legacy = await bench.legacy("stdio")
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy)
    tasks = await start_tasks(client, legacy)

    await proxy.terminate()
    await proxy.restart()

    for answer in await together(client.wait_task(task) for task in tasks):
        assert answer.result["status"] == "failed"
    assert legacy.labels("start") == {"one": 1, "two": 1, "three": 1}


async def test_calls_that_end_within_the_drain_time_are_kept(bench: Bench) -> None:
    legacy = await bench.legacy("stdio")
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy)
    tasks = await start_tasks(client, legacy, seconds=DRAIN_S / 2)

    await proxy.terminate()
    await proxy.restart()

    for answer in await together(client.get_task(task) for task in tasks):
        assert answer.result["status"] == "completed"
        assert answer.text.startswith("finished ")


async def test_sigint_lets_what_runs_end_and_says_when_others_may_come_back(bench: Bench) -> None:
    legacy = await bench.legacy("stdio")
    proxy = await bench.proxy(legacy.upstream, {"tasks": {"threshold": "5s"}, "drain": "30s"})
    client = await bench.client(proxy, tasks=False)
    parameters = {"seconds": 3, "label": "runs"}

    answers: list[Answer] = []

    async def call() -> None:
        answers.append(await client.call_tool("cancellable_job", parameters))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await legacy.happened("start", "runs")
        proxy.program.send(signal.SIGINT)
        status, headers, ready = await asked_until(
            lambda: looked_at(proxy), lambda seen: seen[0] == HTTPStatus.SERVICE_UNAVAILABLE, "it drains"
        )
    assert (status, headers["Retry-After"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "30")
    assert ready == {"ready": False, "store": "ok", "upstream": "ok", "proxy": "shutting down"}
    assert [answer.text for answer in answers] == ["finished runs"]
    assert await proxy.program.wait(within_s=EXIT_BOUND_S) == 0
    assert proxy.children() == []


async def looked_at(proxy: ProxyProcess) -> tuple[int, Mapping[str, str], dict[str, Any]]:
    """Status and headers of a new request, and the report of `/readyz`."""
    async with aiohttp.ClientSession() as session:
        meta: dict[str, Any] = {names.META_PROTOCOL_VERSION: "2026-07-28", names.META_CLIENT_CAPABILITIES: {}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
        headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
        async with session.post(proxy.url, json=body, headers=headers) as refused:
            await refused.read()
        async with session.get(proxy.url.replace("/mcp", "/readyz")) as report:
            return refused.status, refused.headers, await report.json()


@pytest.mark.alone
async def test_a_second_sigterm_ends_it_at_once(bench: Bench) -> None:
    legacy = await bench.legacy("stdio")
    proxy = await bench.proxy(legacy.upstream, LONG_DRAIN)
    client = await bench.client(proxy)
    await start_tasks(client, legacy)

    proxy.program.send(signal.SIGTERM)
    refused = await asked_until(
        lambda: client.call_tool("greet", {"name": "too late"}),
        lambda answer: answer.status == HTTPStatus.SERVICE_UNAVAILABLE,
        "new calls are refused",
    )
    assert "error" in refused.message
    proxy.program.send(signal.SIGTERM)
    await proxy.program.wait(within_s=AT_ONCE_S)

    await proxy.children_end(within_s=ORPHAN_BOUND_S)


async def test_kill_9_leaves_no_upstream_process(bench: Bench) -> None:
    legacy = await bench.legacy("stdio")
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy)
    await start_tasks(client, legacy)
    assert proxy.children(), "the upstream runs"

    await proxy.kill9()

    await proxy.children_end(within_s=ORPHAN_BOUND_S)
