"""Clients that nobody here wrote, each starting the proxy from its configuration before a stdio server.

FastMCP 4 (with its Tasks extension), the Python SDK 2.x and npm @modelcontextprotocol/client 2.x. What each
one says is in tests/real/clients; here it is judged, with the server's journal as the witness.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

from proxy.protocol import names
from tests.real.legacy import Legacy
from tests.real.processes import MARKER, marked_processes
from tests.real.stdio_process import proxied
from tests.real.waiting import until
from tests.real.wiretap import messages, wiretapped
from tests.setup_tools import EVERYTHING, NPM, TESTS, node, npm_module, venv_python

pytestmark = pytest.mark.anyio

CLIENTS: Final = TESTS / "real" / "clients"
NPM_CLIENT: Final = "@modelcontextprotocol/client"
THRESHOLD: Final = ("--threshold", "300ms")
CLIENT_BOUND_S: Final = 120.0
LEFT_BOUND_S: Final = 8.0

Steps = dict[str, dict[str, Any]]


async def run(command: Sequence[str | Path], home: Path) -> Steps:
    """What the client said, by step. It ended by itself, and nothing that it started is left."""
    marker = uuid.uuid4().hex
    env = {
        **os.environ,
        MARKER: marker,
        "XDG_STATE_HOME": str(home / "state"),
        "FASTMCP_CHECK_FOR_UPDATES": "off",
    }

    def client() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=env, cwd=TESTS.parent, capture_output=True, text=True, timeout=CLIENT_BOUND_S
        )

    ran = await anyio.to_thread.run_sync(client)
    print(ran.stdout, ran.stderr[-6_000:])
    assert ran.returncode == 0
    await until(lambda: not marked_processes(marker), "nothing is left", within_s=LEFT_BOUND_S)
    steps = [json.loads(line) for line in ran.stdout.splitlines()]
    return {said["step"]: said for said in steps}


def assert_served(steps: Mapping[str, Any], legacy: Legacy) -> None:
    """What every client can do, was done; each call ran once."""
    assert {"greet", "slow_compute", "confirm_delete"} <= set(steps["listed"]["tools"])
    assert steps["called"]["text"] == "Hello, Ada!"
    assert steps["slow"]["text"] == "computed watched in 1 s"
    assert steps["asked"]["message"]
    assert steps["answered"]["text"] == "deleted f"
    assert steps["still there"]["text"] == "Hello, Ada!"
    assert "ended" in steps
    once = {label: count for label, count in legacy.labels("start").items() if label != "unaware"}
    assert once == {"watched": 1, "f": 1, "job": 1}
    assert legacy.labels("cancelled") == {"job": 1}


async def test_fastmcp_has_tasks_over_stdio(tmp_path: Path) -> None:
    """TX-CAP-002, TX-RES-001."""
    legacy = Legacy("stdio", tmp_path, "--pre-delay", "0")
    client: list[str | Path] = [venv_python("fastmcp4"), CLIENTS / "stdio_fastmcp.py", "fixture"]

    steps = await run([*client, *proxied(legacy.command("stdio"), *THRESHOLD)], tmp_path)

    assert_served(steps, legacy)
    assert steps["listed"]["version"] == names.LATEST_MODERN
    assert steps["slow"]["as_task"] == "working"
    assert steps["unaware"]["text"] == "computed unaware in 1 s"
    assert legacy.labels("start")["unaware"] == 1
    assert steps["cancelled"]["status"] == "cancelled"


@pytest.mark.parametrize("mode, version", [("auto", names.LATEST_MODERN), ("legacy", names.LATEST_LEGACY)])
async def test_the_python_sdk_2_is_served_in_both_eras(tmp_path: Path, mode: str, version: str) -> None:
    """VER-004; MRTR-001 where it is modern, the server's own question where it is not."""
    legacy = Legacy("stdio", tmp_path, "--pre-delay", "0")
    client: list[str | Path] = [venv_python("sdk2"), CLIENTS / "stdio_sdk2.py", mode]

    steps = await run([*client, *proxied(legacy.command("stdio"), *THRESHOLD)], tmp_path)

    assert_served(steps, legacy)
    assert steps["listed"]["version"] == version
    assert steps["progress"]["seen"] == [0, 1, 2, 3]
    assert steps["cancelled"]["gave_up"]


async def test_the_npm_client_in_mode_auto_is_served(tmp_path: Path) -> None:
    """It starts a process just to ask `server/discover`, ends that with SIGTERM, and starts another."""
    legacy = Legacy("stdio", tmp_path, "--pre-delay", "0")
    package = NPM / "node_modules" / NPM_CLIENT
    assert npm_module(f"{NPM_CLIENT}/dist/index.mjs").is_relative_to(package)
    client: list[str | Path] = [node(), CLIENTS / "stdio_npm.mjs", package, "auto"]

    steps = await run([*client, *proxied(legacy.command("stdio"), *THRESHOLD)], tmp_path)

    assert_served(steps, legacy)
    assert steps["listed"]["version"] == names.LATEST_MODERN
    # It defers notifications, and a result that comes in the same chunk as the last of them overtakes it
    # there, also without us.
    assert steps["progress"]["seen"] in ([0, 1, 2], [0, 1, 2, 3])
    assert steps["cancelled"]["gave_up"]


async def test_fastmcp_has_tasks_before_server_everything(tmp_path: Path) -> None:
    """Neither end was written for the other, and both are at the end of a pipe."""
    record = tmp_path / "sent"
    everything = wiretapped(record, [str(node()), str(npm_module(EVERYTHING)), "stdio"])
    client = [str(venv_python("fastmcp4")), str(CLIENTS / "stdio_fastmcp.py"), "everything"]

    steps = await run([*client, *proxied(everything, *THRESHOLD)], tmp_path)

    assert steps["listed"]["version"] == names.LATEST_MODERN
    assert steps["called"]["text"] == steps["still there"]["text"] == "Echo: Ada"
    assert steps["slow"]["as_task"] == "working"
    assert steps["slow"]["text"] == "Long running operation completed. Duration: 2 seconds, Steps: 2."
    assert steps["unaware"]["text"] == "Long running operation completed. Duration: 2 seconds, Steps: 1."
    assert "- Name: Ada Lovelace" in steps["answered"]["text"]
    assert steps["cancelled"]["status"] == "cancelled"
    [cancelled] = [m for m in messages(record) if m.get("method") == names.CANCELLED]
    [call] = [m for m in messages(record) if m.get("id") == cancelled["params"]["requestId"]]
    assert call["params"]["arguments"] == {"duration": 60, "steps": 60}
