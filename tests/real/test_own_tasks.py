"""FastMCP 4 with fastmcp-tasks as the server: its clients see no difference through the proxy. Issue 7, 2."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

from tests.real.bench import Bench
from tests.setup_tools import TESTS, venv_python

pytestmark = pytest.mark.anyio

CLIENT: Final = TESTS / "real" / "clients" / "fastmcp_own_tasks.py"
SERVER: Final = TESTS / "fixtures" / "fastmcp_tasks_server.py"
SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "100ms"}}  # ours would come between, if they could
BOUND_S: Final = 60.0


async def said(url: str) -> list[dict[str, Any]]:
    """What a client said of the server there."""
    command = [str(venv_python("fastmcp4")), str(CLIENT), url]
    run = partial(subprocess.run, command, capture_output=True, text=True, timeout=BOUND_S, cwd=TESTS.parent)
    ran = await anyio.to_thread.run_sync(run)
    print(ran.stdout, ran.stderr[-6_000:])
    assert ran.returncode == 0
    return [json.loads(line) for line in ran.stdout.splitlines()]


async def test_a_client_of_the_servers_own_tasks_sees_no_difference(bench: Bench) -> None:
    """TX-CAP-015: ids, statuses, results, questions; nothing is converted twice."""
    url = await bench.http_server(str(venv_python("fastmcp4")), str(SERVER))
    proxy = await bench.proxy(url, SETTINGS)
    direct = await said(url)
    through = await said(proxy.url)
    assert through == direct
    steps = {step["step"]: step for step in direct}
    assert steps["made"]["form"] == "theirs"
    assert steps["slow"]["text"] == "slowly done"
    assert steps["answered"]["text"] == "Hello, Ada!"
    assert (steps["parked"]["form"], steps["parked"]["questions"]) == (False, 1)
    assert steps["task answered"] == {"step": "task answered", "text": "Hello, Ada!", "status": "completed"}
    assert steps["task failed"]["status"] == "completed", "with isError, as the extension has it"
    assert steps["cancelled"]["status"] == "cancelled"
