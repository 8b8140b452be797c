"""Legacy SDK clients before a server that is spoken to in the modern way alone; contract section 7.

The Python SDK 1.x and npm's 1.x, over stdio and HTTP, before a server of the Python SDK 2.x. What each
says is in tests/real/clients/legacy_*.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import anyio.to_thread
import pytest

from tests.real.bench import Bench
from tests.real.legacy import Transport
from tests.real.processes import MARKER, marked_processes
from tests.real.raw_pair import stdio_proxy
from tests.real.waiting import until
from tests.setup_tools import NPM, TESTS, node, npm_module, venv_python

pytestmark = pytest.mark.anyio

Kind = Literal["sdk1", "npm1"]
CLIENTS: Final = TESTS / "real" / "clients"
SERVER: Final = TESTS / "fixtures" / "modern_sdk2.py"
MODERN: Final[dict[str, Any]] = {"upstream": {"era": "modern"}}  # for this SDK serves both
CLIENT_BOUND_S: Final = 60.0


def command(kind: Kind, target: Mapping[str, Any], mark: Path) -> list[str]:
    if kind == "sdk1":
        return [str(venv_python("sdk1")), str(CLIENTS / "legacy_sdk1.py"), json.dumps(target), str(mark)]
    npm_module("@modelcontextprotocol/sdk/package.json")
    script = str(CLIENTS / "legacy_npm1.mjs")
    return [str(node()), script, str(NPM / "node_modules"), json.dumps(target), str(mark)]


async def served(bench: Bench, transport: Transport) -> Mapping[str, Any]:
    """Where a client finds the server: over one transport on both sides of the proxy."""
    server = [str(venv_python("sdk2")), str(SERVER)]
    if transport == "stdio":
        return {"command": stdio_proxy(bench.home, server, MODERN)}
    return {"url": (await bench.proxy(await bench.http_server(*server), MODERN)).url}


@pytest.mark.parametrize("kind", ["sdk1", "npm1"])
async def test_a_legacy_client_uses_all_of_a_modern_server(
    bench: Bench, transport: Transport, kind: Kind
) -> None:
    """HTTP-040, HTTP-041, HTTP-045, MRTR-019, VER-012: issue 7, part 4."""
    mark, marker = bench.home / "mark", uuid.uuid4().hex
    run = partial(
        subprocess.run,
        command(kind, await served(bench, transport), mark),
        env={**os.environ, MARKER: marker},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=CLIENT_BOUND_S,
    )
    ran = await anyio.to_thread.run_sync(run)
    print(ran.stdout, ran.stderr[-6_000:])
    assert ran.returncode == 0
    steps = {said["step"]: said for said in map(json.loads, ran.stdout.splitlines())}
    assert steps["greeted"]["server"] == "modern-sdk2"
    assert {"greet", "numbers", "ask"} <= set(steps["tools"]["names"])
    assert steps["called"]["text"] == "Hello, Ada!"
    assert "1" in steps["numbers"]["text"]
    seen = steps["progress"]["seen"]  # the npm client defers each, so that a result may overtake the last
    assert seen == [1, 2, 3] or (kind == "npm1" and seen == [1, 2])
    assert steps["elicited"]["message"] == "Name?"
    assert steps["asked"]["text"] == "Ada: 42"
    assert steps["failed"]["is_error"]
    assert steps["prompted"]["names"] == ["hello"]
    assert steps["prompted"]["text"] == "Say hello to Ada"
    assert steps["read"]["text"] == "the note"
    assert steps["missing"]["code"] == -32002
    assert "updated" in steps
    assert steps["still there"]["text"] == "Hello, Ada!"
    assert "ended" in steps
    await until(lambda: mark.read_text() == "cancelled", "the server was told")
    await until(lambda: not marked_processes(marker), "nothing is left")
