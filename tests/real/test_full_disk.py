"""A proxy that starts while nothing can be written: it serves what it can, says so, and goes on when it may.

Contract section 9, "disk full or store broken"; F41. The limit of the size of files stands in for the disk.
"""

from __future__ import annotations

import resource
from typing import Any, Final

import aiohttp
import pytest

from tests.real.bench import Bench
from tests.real.processes import MARKER, Program, accepts
from tests.real.proxy_process import START_BOUND_S, ProxyProcess
from tests.real.waiting import asked_until, until

pytestmark = pytest.mark.anyio

SETTINGS: Final[dict[str, Any]] = {
    "tasks": {"threshold": "200ms", "tools": [{"match": "greet", "mode": "required"}]}
}
WITHOUT_A_BYTE: Final = ("sh", "-c", 'ulimit -S -f 0; exec "$0" "$@"')


async def start_full(proxy: ProxyProcess) -> None:
    """Nothing that it writes to a file is taken, its log included; it is not ready, but it listens."""
    command = [*WITHOUT_A_BYTE, *proxy.command()]
    proxy._program = Program(command, log=proxy.log, env={MARKER: proxy.marker})
    await until(lambda: accepts(proxy.port), "the proxy listens", within_s=START_BOUND_S)


def make_room(proxy: ProxyProcess) -> None:
    _, hard = resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE, (hard, hard))


async def readiness(proxy: ProxyProcess) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(proxy.url.replace("mcp", "readyz")) as response,
    ):
        return response.status, await response.json()


async def test_a_start_on_a_full_disk_serves_what_it_can(bench: Bench) -> None:
    legacy = await bench.legacy("http")
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    client = await bench.client(proxy)
    finished = (await client.call_tool("count_call", {"key": "finished", "delay": 0.5})).task_id
    before = await client.wait_task(finished)
    cut_off = (await client.call_tool("count_call", {"key": "cut-off", "delay": 4})).task_id
    await proxy.terminate()

    await start_full(proxy)
    status, report = await readiness(proxy)
    assert (status, report["ready"], report["upstream"]) == (503, False, "ok")
    assert report["store"].startswith("the task store cannot be written: ")
    assert (await client.get_task(finished)).result == before.result
    assert (await client.get_task(cut_off)).result["status"] in ("working", "failed")
    blocking = await client.call_tool("count_call", {"key": "blocking", "delay": 0.5})
    assert blocking.text == "blocking executed 1 time(s)"
    refused = await client.call_tool("greet", {"name": "Ada"})
    assert refused.error["code"] == -32603
    assert "not sent" in refused.error["message"]

    make_room(proxy)
    await asked_until(lambda: readiness(proxy), lambda seen: seen[0] == 200, "the proxy is ready")
    assert (await client.call_tool("count_call", {"key": "later", "delay": 0.5})).task_id
    assert (await client.wait_task(cut_off)).result["status"] in ("completed", "failed")
    assert (await client.get_task(finished)).result == before.result
    assert legacy.labels("start")["cut-off"] == 1
