"""What a running proxy tells those who run it: `/metrics`, `/healthz`, `/readyz`, and nothing that is secret.

Holds F41 of the field reports where it is about health, T25-SEC-010 and the contract's sections 8 and 11.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import aiohttp
import anyio
import pytest

from tests.real.bench import Bench
from tests.real.modern_client import ModernClient
from tests.real.processes import free_port
from tests.real.stdio_process import SMALL_SERVER, StdioProcess, proxied
from tests.real.waiting import asked_until
from tests.scrape import Scraped

pytestmark = pytest.mark.anyio

TOKEN: Final = "Bearer-planted-token"
ARGUMENT: Final = "planted-argument"
LAST_WORDS: Final = "planted-last-words"
PATHS: Final = ("/metrics", "/readyz", "/healthz")


async def fetched(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_a_scrape_shows_what_happened_and_nothing_that_is_anybodys(bench: Bench) -> None:
    legacy = await bench.legacy("stdio")
    admin = f"127.0.0.1:{free_port()}"
    settings = {"admin": {"listen": admin}, "tasks": {"threshold": "100ms"}}
    proxy = await bench.proxy(legacy.upstream, settings)
    before = Scraped((await fetched(f"http://{admin}/metrics"))[1].encode())
    assert before.value("upstream_processes") == 0, "looking starts nothing"

    client = await bench.client(proxy, headers={"Authorization": f"Bearer {TOKEN}"})
    task = (await client.call_tool("count_call", {"key": ARGUMENT, "delay": 0.5})).task_id
    other = (await client.call_tool("count_call", {"key": ARGUMENT, "delay": 300})).task_id
    async with client.listen(taskIds=[other]) as stream:
        await anext(stream)
        await client.wait_task(task)
        await refused_lookups(await bench.client(proxy), task)
        status, text = await fetched(f"http://{admin}/metrics")
    scraped = Scraped(text.encode())

    assert status == 200
    expected = {
        "tasks_created_total": 2,
        "calls_in_flight": 1,
        "listen_streams": 1,
        "upstream_processes": 1,
        "upstream_sessions": 1,
        "upstream_sessions_started_total": 1,
        "store_failures_total": 0,
        "task_duration_seconds_count": 1,
    }
    assert {name: scraped.value(name) for name in expected} == expected
    assert scraped.value("tasks", status="completed") == scraped.value("tasks", status="working") == 1
    assert scraped.value("tasks_ended_total", status="completed") == 1
    assert scraped.value("store_commits_total") >= 3
    assert scraped.value("event_loop_lag_seconds_count") > 0
    assert scraped.value("requests_total", era="modern", method="tools_call", outcome="result") == 2
    assert scraped.value("task_lookups_denied_total", reason="foreign") == 1
    assert scraped.value("task_lookups_denied_total", reason="unknown") == 1

    beside = proxy.url.removesuffix("/mcp")
    told = [
        text,
        *[(await fetched(place + path))[1] for place in (beside, f"http://{admin}") for path in PATHS],
    ]
    for planted in (TOKEN, ARGUMENT, task, other, task.removeprefix("tpx-"), "count_call"):
        assert planted not in "".join(told)
    assert (await fetched(f"{beside}/metrics"))[0] == 404
    assert [(await fetched(f"{beside}{path}"))[0] for path in ("/readyz", "/healthz")] == [200, 200]


async def refused_lookups(stranger: ModernClient, task: str) -> None:
    for task_id in (task, "tpx-" + "A" * 32):
        assert "error" in (await stranger.get_task(task_id)).message


async def test_a_sidecar_shows_its_metrics_too_and_a_second_one_works_without(tmp_path: Path) -> None:
    """One client may start the same command twice."""
    admin = f"127.0.0.1:{free_port()}"
    setting = {"MCP_TASKPROXY_ADMIN__LISTEN": admin}
    command = proxied(SMALL_SERVER)
    async with StdioProcess(command, tmp_path, **setting) as first:
        await first.initialize()
        async with StdioProcess(command, tmp_path, **setting) as second:
            await second.initialize()
            assert "metrics_not_served" in second.log()
        scraped = Scraped((await fetched(f"http://{admin}/metrics"))[1].encode())
        assert scraped.value("upstream_processes") == 1
        labels = {"era": "legacy", "method": "session", "outcome": "result"}
        assert scraped.value("requests_total", **labels) == 1
        first.close_stdin()
        await first.exit_code(within_s=10)


async def test_readiness_names_a_server_that_cannot_be_started_and_not_what_it_said(bench: Bench) -> None:
    """F41: liveness stays green, the start does not fail, and looking starts nothing."""
    command = ["sh", "-c", f"echo {LAST_WORDS} >&2; exit 3"]
    proxy = await bench.proxy(command)
    beside = proxy.url.removesuffix("/mcp")
    assert (await fetched(f"{beside}/readyz"))[0] == 200, "nobody has tried yet"

    client = await bench.client(proxy)
    with anyio.fail_after(20):
        answer = await client.call_tool("greet", {"name": "Ada"})
    assert "error" in answer.message
    status, text = await asked_until(
        lambda: fetched(f"{beside}/readyz"), lambda seen: seen[0] == 503, "the proxy is not ready"
    )
    assert status == 503
    assert json.loads(text)["upstream"] in (
        "could not be started or reached",
        "ended, or broke the connection, when it was started",
    )
    assert LAST_WORDS not in text
    assert (await fetched(f"{beside}/healthz"))[0] == 200
