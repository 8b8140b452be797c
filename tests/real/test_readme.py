"""What README.md and docs/clients.md tell people to start, started: the clients' entries and the walk."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import pytest

from proxy.protocol import names
from tests.documents import CLIENTS, COMMAND, README, ROOT, Entry, command_lines, entries
from tests.real.conversation import conversation
from tests.real.installed import PACKAGE, user_environment
from tests.real.processes import Program, accepts, free_port
from tests.real.waiting import until
from tests.setup_tools import venv_python

pytestmark = pytest.mark.anyio

ENTRIES: Final = [entry for entry in entries(CLIENTS) if entry.command == COMMAND]
SLOW_TOOL: Final = "trigger-long-running-operation"
ANSWER_BOUND_S: Final = 30.0
WORK_S: Final = 6
WALK_BOUND_S: Final = 60.0
LISTEN_BOUND_S: Final = 20.0


# -- the clients' entries ----------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return user_environment(tmp_path)


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
async def test_a_clients_entry_serves_both_eras(
    entry: Entry, environment: dict[str, str], tmp_path: Path
) -> None:
    env = environment | entry.env
    command = [entry.command, *entry.args]
    with anyio.fail_after(ANSWER_BOUND_S):
        async with conversation(command, env=env, log=tmp_path / "stderr") as client:
            discovered = await client.ask_modern(names.DISCOVER)
            initialized = await client.initialize()
            listed = await client.ask(names.TOOLS_LIST)

    assert names.LATEST_MODERN in discovered["result"]["supportedVersions"]
    assert discovered["result"]["capabilities"]["extensions"] == {names.TASKS_EXTENSION: {}}
    assert initialized["result"]["protocolVersion"] == names.LATEST_LEGACY
    assert initialized["result"]["serverInfo"]["name"] == "mcp-servers/everything"
    assert SLOW_TOOL in [tool["name"] for tool in listed["result"]["tools"]]


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.env], ids=str)
async def test_the_variables_of_an_entry_reach_the_server_and_our_settings_do_not(
    entry: Entry, environment: dict[str, str], tmp_path: Path
) -> None:
    env = environment | entry.env
    command = [entry.command, *entry.args]
    with anyio.fail_after(ANSWER_BOUND_S):
        async with conversation(command, env=env, log=tmp_path / "stderr") as client:
            answer = await client.ask_modern(names.TOOLS_CALL, {"name": "get-env", "arguments": {}})

    reached = json.loads(answer["result"]["content"][0]["text"])
    assert reached["API_KEY"] == entry.env["API_KEY"]
    assert not [name for name in reached if name.startswith("MCP_TASKPROXY_")]


@pytest.mark.parametrize("variable, place", [(None, ".local/state"), ("XDG_STATE_HOME", "elsewhere")])
async def test_tasks_are_kept_where_the_page_says(
    variable: str | None, place: str, environment: dict[str, str], tmp_path: Path
) -> None:
    env = environment | ({variable: str(tmp_path / place)} if variable else {})
    log = tmp_path / "stderr"
    with anyio.fail_after(ANSWER_BOUND_S):
        async with conversation([ENTRIES[0].command, *ENTRIES[0].args], env=env, log=log) as client:
            await client.ask_modern(names.DISCOVER)

    (store,) = (tmp_path / place / "mcp-taskproxy").iterdir()
    started = next(line for line in log.read_text().splitlines() if "proxy_started" in line)
    assert f"disk:{store} " in started


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


@pytest.mark.parametrize("transport", ["stdio", "streamableHttp"])
async def test_the_walk_of_the_readme(transport: str, environment: dict[str, str], tmp_path: Path) -> None:
    _, script, url = shown("python", "examples/walkthrough.py")
    async with served(transport, tmp_path, environment) as ports:
        said = await walk([str(ROOT / script), *moved([url], ports), str(WORK_S)])

    assert said == [
        f"calling {SLOW_TOOL} for {WORK_S} s",
        *(line for line in said if line.startswith("  working: ")),
        f"  completed: Long running operation completed. Duration: {WORK_S} seconds, Steps: 5.",
        "calling a tool that asks its user",
        *(line for line in said if line.startswith("  the server asks: ")),
        *answered(said),
        f"calling {SLOW_TOOL} for 60 s, and cancelling it",
        "  cancelled",
    ]
    assert any("/5" in line for line in said)
    assert any("Ada Lovelace" in line for line in answered(said))


def answered(said: Sequence[str]) -> Iterator[str]:
    """What the tool said after its user had answered."""
    asked = next(place for place, line in enumerate(said) if line.startswith("  the server asks: "))
    last = next(place for place, line in enumerate(said) if line.endswith("and cancelling it"))
    yield from said[asked + 1 : last]


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
