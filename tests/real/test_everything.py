"""The main job on a server that nobody here wrote: npm server-everything, before a FastMCP 4 client.

Holds TX-CAP-002, TX-RES-001, MRTR-001 in the field: neither end was written for the other.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

from proxy.protocol import names
from tests.real.bench import Bench
from tests.real.legacy import Transport
from tests.real.processes import Program, accepts, free_port
from tests.real.proxy_process import Upstream
from tests.real.waiting import until
from tests.real.wiretap import messages, relay, wiretapped
from tests.setup_tools import EVERYTHING, TESTS, node, npm_module, venv_python

pytestmark = pytest.mark.anyio

WALKTHROUGH: Final = TESTS / "real" / "clients" / "fastmcp_walkthrough.py"
WORK_S: Final = 6.0
WALK_BOUND_S: Final = 120.0
LONG: Final = "trigger-long-running-operation"
ASKS: Final = "trigger-elicitation-request"

BY_MRTR: Final[dict[str, Any]] = {"threshold": "1s"}
BY_TASK: Final[dict[str, Any]] = {"threshold": "1s", "tools": [{"match": ASKS, "input": "task"}]}


@asynccontextmanager
async def everything(transport: Transport, home: Path) -> AsyncIterator[tuple[Upstream, Path]]:
    """Server-everything, and the record of all that the proxy sends to it."""
    record = home / "sent-upstream"
    command = [str(node()), str(npm_module(EVERYTHING))]
    if transport == "stdio":
        yield wiretapped(record, [*command, "stdio"]), record
        return
    port = free_port()
    server = Program([*command, "streamableHttp"], log=home / "everything.log", env={"PORT": str(port)})
    try:
        await until(lambda: accepts(port), "server-everything listens", within_s=40)
        async with anyio.create_task_group() as relays:
            tapped = await relays.start(relay, record, port)
            yield f"http://127.0.0.1:{tapped}/mcp", record
            relays.cancel_scope.cancel()
    finally:
        await server.stop()


async def walk(url: str) -> dict[str, dict[str, Any]]:
    """Run the walk-through; what it said, by step."""
    command = [str(venv_python("fastmcp4")), str(WALKTHROUGH), url, str(WORK_S)]

    def run() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "FASTMCP_CHECK_FOR_UPDATES": "off"}
        return subprocess.run(command, capture_output=True, text=True, timeout=WALK_BOUND_S, env=environment)

    ran = await anyio.to_thread.run_sync(run)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr[-4000:]}"
    steps = [json.loads(line) for line in ran.stdout.splitlines()]
    return {said["step"]: said for said in steps}


@pytest.mark.parametrize("tasks", [pytest.param(BY_MRTR, id="mrtr"), pytest.param(BY_TASK, id="task")])
async def test_a_fastmcp_client_gets_tasks_from_server_everything(
    bench: Bench, transport: Transport, tasks: dict[str, Any]
) -> None:
    async with everything(transport, bench.home) as (upstream, record):
        proxy = await bench.proxy(upstream, {"tasks": tasks})
        steps = await walk(proxy.url)
        await proxy.stop()

    assert steps["connected"]["version"] == names.LATEST_MODERN
    assert steps["connected"]["extensions"][names.TASKS_EXTENSION] == {}
    assert {LONG, ASKS} <= set(steps["connected"]["tools"])

    done = "Long running operation completed. Duration: 6 seconds, Steps: 6."
    assert steps["watched"]["status"] == "completed"
    assert len([message for message in steps["watched"]["messages"] if "/6" in (message or "")]) >= 3
    assert steps["watched"]["text"] == steps["unaware"]["text"] == done

    assert steps["asked"]["message"] == "Please provide inputs for the following fields:"
    assert "- Name: Ada Lovelace" in steps["answered"]["text"]

    assert steps["cancelled"]["status"] == "cancelled"
    assert steps["echoed"]["text"] == "Echo: still here"
    assert cancelled_calls(record) == [{"duration": 60, "steps": 60}]


def cancelled_calls(record: Path) -> list[dict[str, Any]]:
    """The arguments of the tool calls that the proxy cancelled upstream."""
    calls: dict[Any, dict[str, Any]] = {}
    cancelled = []
    for message in messages(record):
        if message.get("method") == names.TOOLS_CALL:
            calls[message["id"]] = message["params"]["arguments"]
        elif message.get("method") == names.CANCELLED:
            cancelled.append(calls[message["params"]["requestId"]])
    return cancelled
