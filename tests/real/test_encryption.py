"""A proxy that encrypts its store, through kills and keys: nothing is lost by a wrong one.

Contract section 8 ("can be encrypted at rest"), and section 9 for restarts.
"""

from __future__ import annotations

import base64
import os

import aiohttp
import anyio
import pytest

from proxy.logs import task_hash
from proxy.routing.recovery import OUTCOME_UNKNOWN
from tests.real.adversaries import TASK_PROBES, Party, unknown_task
from tests.real.bench import Bench
from tests.real.stdio_process import SMALL_SERVER

pytestmark = pytest.mark.anyio


async def test_tasks_wait_for_their_key_and_are_all_there_once_it_is_back(bench: Bench) -> None:
    """I5, TX-SEC-002, T25-SEC-001: meanwhile, byte by byte, they look like tasks that never were."""
    first, second = (base64.b64encode(os.urandom(32)).decode() for _ in range(2))
    keys = bench.home / "keys"
    keys.write_text(first)
    settings = {"store": {"encryption": {"key_file": str(keys)}}, "tasks": {"threshold": "0s"}}
    proxy = await bench.proxy(SMALL_SERVER, settings)
    client = await bench.client(proxy)
    with anyio.fail_after(60):
        ended = (await client.call_tool("nap", {"seconds": 0})).task_id
        running = (await client.call_tool("nap", {"seconds": 300})).task_id
        told = (await client.wait_task(ended)).result
        await proxy.kill9()

        keys.write_text(second)
        await proxy.start()
        async with aiohttp.ClientSession() as http:
            owner = Party("nobody", proxy.url, http, is_anonymous=True)
            await owner.open_session()
            for name, probe in TASK_PROBES.items():
                never = await probe(owner, unknown_task())
                for task in (ended, running):
                    assert await probe(owner, task) == never, name
        logged = proxy.log.read_text().splitlines()
        denied = [line for line in logged if "task_access_denied" in line and task_hash(running) in line]
        assert len(denied) == len(TASK_PROBES)
        assert all("unknown" in line for line in denied)
        meanwhile = (await client.call_tool("nap", {"seconds": 0})).task_id
        also_told = (await client.wait_task(meanwhile)).result
        assert b"records_locked" in proxy.log.read_bytes()
        await proxy.kill9()

        keys.write_text(f"# the new one first\n{second}\n{first}\n")
        await proxy.start()
        assert (await client.get_task(ended)).result == told
        assert (await client.get_task(meanwhile)).result == also_told
        assert (await client.wait_task(running)).result["statusMessage"] == OUTCOME_UNKNOWN
