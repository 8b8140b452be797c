"""What README.md and docs/clients.md tell people to start, started: the clients' entries and the walk."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import pytest

from proxy.protocol import names
from proxy.sources import PREFIX
from tests.documents import CLIENTS, COMMAND, README, ROOT, Entry, command_lines, entries
from tests.real.conversation import conversation
from tests.real.installed import PACKAGE, user_environment
from tests.real.processes import Program, accepts, free_port
from tests.real.waiting import together, until
from tests.setup_tools import venv_python

pytestmark = pytest.mark.anyio

ENTRIES: Final = [entry for entry in entries(CLIENTS) if entry.command == COMMAND]
SLOW_TOOL: Final = "trigger-long-running-operation"
ANSWER_BOUND_S: Final = 60.0
WORK_S: Final = 6
WALK_BOUND_S: Final = 120.0
LISTEN_BOUND_S: Final = 40.0


# -- the clients' entries ----------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return user_environment(tmp_path)


def kept_at(log: Path) -> str:
    """The store that the start-up line names."""
    started = next(line for line in log.read_text().splitlines() if " proxy_started " in line)
    found = re.search(r'store="disk:(\S+) ', started)
    assert found is not None, started
    return found[1]


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
async def test_a_clients_entry_serves_both_eras(
    entry: Entry, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "stderr"
    with anyio.fail_after(ANSWER_BOUND_S):
        async with conversation(
            [entry.command, *entry.args], env={**environment, **entry.env}, log=log
        ) as client:
            discovered = await client.ask_modern(names.DISCOVER)
            initialized = await client.initialize()
            listed = await client.ask(names.TOOLS_LIST)
            variables = await client.ask(names.TOOLS_CALL, {"name": "get-env", "arguments": {}})

    assert names.LATEST_MODERN in discovered["result"]["supportedVersions"]
    assert discovered["result"]["capabilities"]["extensions"] == {names.TASKS_EXTENSION: {}}
    assert initialized["result"]["protocolVersion"] == names.LATEST_LEGACY
    assert initialized["result"]["serverInfo"]["name"] == "mcp-servers/everything"
    assert SLOW_TOOL in [tool["name"] for tool in listed["result"]["tools"]]

    reached = json.loads(variables["result"]["content"][0]["text"])
    theirs = {name: value for name, value in entry.env.items() if not name.startswith(PREFIX)}
    assert {name: value for name, value in reached.items() if name in entry.env} == theirs

    (store,) = (tmp_path / ".local" / "state" / COMMAND).iterdir()
    assert kept_at(log) == str(store)


async def test_tasks_are_kept_in_the_state_directory(environment: dict[str, str], tmp_path: Path) -> None:
    state, log = tmp_path / "state", tmp_path / "stderr"
    env = environment | {"XDG_STATE_HOME": str(state)}
    async with conversation([ENTRIES[0].command, *ENTRIES[0].args], env=env, log=log):
        await until(lambda: b" proxy_started " in log.read_bytes(), "it has started")

    (store,) = (state / COMMAND).iterdir()
    assert kept_at(log) == str(store)


# -- the walk ----------------------------------------------------------------------------------------


def shown(*words: str) -> list[str]:
    """The one command of the README that has all these words."""
    (found,) = (line for line in command_lines(README) if set(words) <= set(line))
    return found


def moved(command: Sequence[str], ports: Mapping[str, int]) -> list[str]:
    """The command with other ports than those that it names."""
    text = "\0".join(command)
    for named, port in ports.items():
        text = text.replace(f":{named}", f":{port}")
    return text.split("\0")


@asynccontextmanager
async def running(
    command: Sequence[str], home: Path, env: Mapping[str, str], port: int
) -> AsyncIterator[Program]:
    """The command, started in `home` by the shell's user, once it listens."""
    log = home / f"{port}.log"
    program = Program(["env", "-C", home, *command], log=log, env=env)
    try:
        await until(lambda: accepts(port), f"{command} listens", within_s=LISTEN_BOUND_S)
        yield program
    finally:
        await program.stop()
        print(f"--- {log.name}\n{program.tail()}")  # pytest shows it where the test failed


@asynccontextmanager
async def served(transport: str, home: Path, env: Mapping[str, str]) -> AsyncIterator[dict[str, int]]:
    """The README's commands for this transport, at ports of their own."""
    ports = {"8080": free_port(), "3001": free_port()}
    if transport == "stdio":
        command = shown(COMMAND, PACKAGE, "stdio")
        async with running(moved(command, ports), home, env, ports["8080"]):
            yield ports
        return
    server, proxy = shown("npx", PACKAGE, "streamableHttp"), shown(COMMAND, "http://127.0.0.1:3001/mcp")
    async with (
        running(server, home, {**env, "PORT": str(ports["3001"])}, ports["3001"]),
        running(moved(proxy, ports), home, env, ports["8080"]),
    ):
        yield ports


async def test_the_walk_of_the_readme(environment: dict[str, str], tmp_path: Path) -> None:
    async def walked(transport: str) -> list[str]:
        _, script, url = shown("python", "examples/walkthrough.py")
        home = tmp_path / transport
        home.mkdir()
        async with served(transport, home, environment) as ports:
            return await walk([str(ROOT / script), *moved([url], ports), str(WORK_S)])

    for said in await together([walked("stdio"), walked("streamableHttp")]):
        assert [line for line in said if not line.startswith("  ")] == [
            f"calling {SLOW_TOOL} for {WORK_S} s",
            "calling a tool that asks its user",
            f"calling {SLOW_TOOL} for 60 s, and cancelling it",
        ]
        done = f"  completed: Long running operation completed. Duration: {WORK_S} seconds, Steps: 5."
        assert done in said
        assert [line for line in said if line.startswith("  working: ") and "/5" in line]
        assert "  the server asks: Please provide inputs for the following fields:" in said
        assert said[-1] == "  cancelled"


async def walk(arguments: Sequence[str]) -> list[str]:
    """The lines that the walk-through prints."""
    environment: dict[str, Any] = {**os.environ, "FASTMCP_CHECK_FOR_UPDATES": "off"}
    run = partial(
        subprocess.run,
        [str(venv_python("fastmcp4")), *arguments],
        capture_output=True,
        text=True,
        timeout=WALK_BOUND_S,
        env=environment,
    )
    ran = await anyio.to_thread.run_sync(run)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr[-4000:]}"
    return list(ran.stdout.splitlines())
