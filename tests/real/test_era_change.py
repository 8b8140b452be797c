"""A new version of the server, of the other era, is deployed while we run: on the same port, or as the
command that we start. Issue 7, 5.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.protocol import names
from tests.real.bench import Bench
from tests.real.callers import LegacyOverStdio, ModernOverStdio
from tests.real.modern_client import ModernClient
from tests.real.processes import Program, accepts, free_port
from tests.real.session_client import connected, text
from tests.real.stdio_process import StdioProcess, proxied
from tests.real.waiting import until

pytestmark = pytest.mark.anyio

TRIES: Final = 3  # the first shows that something has changed, the next ones find out what
SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "300ms"}}


async def deployed(era: str, port: int, home: Path) -> Program:
    command = [sys.executable, "-m", "tests.real.upstreams.either_era", era, str(port)]
    program = Program(command, log=home / f"{era}.log")
    await until(lambda: accepts(port), f"the {era} server listens")
    return program


async def works_soon(client: ModernClient, era: str) -> int:
    """How many calls failed before one went to the server of this era."""
    for tries in range(TRIES):
        answer = await client.call_tool("fast")
        if "result" in answer.message and answer.text == f"fast of {era}":
            return tries
    raise AssertionError(f"{TRIES} calls failed, the last with {answer.message}")


async def legacy_works_soon(url: str, era: str) -> None:
    """A new session of a legacy client, after a try or two."""
    for _ in range(TRIES):
        async with connected(url) as client:
            with suppress(KeyError):  # the answer was an error
                await client.initialize()
                assert text(await client.call("fast")) == f"fast of {era}"
                return
    raise AssertionError(f"{TRIES} sessions failed")


@pytest.mark.parametrize("before, after", [("legacy", "modern"), ("modern", "legacy")])
async def test_a_server_of_the_other_era_on_the_same_port_is_noticed(
    bench: Bench, before: str, after: str
) -> None:
    """VER-009: the next calls work within a try or two, and old tasks read as before."""
    port = free_port()
    old = await deployed(before, port, bench.home)
    bench.stack.push_async_callback(old.stop)
    proxy = await bench.proxy(f"http://127.0.0.1:{port}/mcp", SETTINGS)
    client = await bench.client(proxy)
    assert await works_soon(client, before) == 0
    await legacy_works_soon(proxy.url, before)
    task = (await client.call_tool("slow")).task_id
    ended = (await client.wait_task(task)).result
    assert ended["result"]["content"][0]["text"] == f"slow of {before}"

    await old.stop()
    new = await deployed(after, port, bench.home)
    bench.stack.push_async_callback(new.stop)

    await works_soon(client, after)
    await legacy_works_soon(proxy.url, after)
    assert (await client.request(names.TOOLS_LIST)).result["tools"]
    assert (await client.get_task(task)).result == ended


@pytest.mark.parametrize("client", [ModernOverStdio, LegacyOverStdio])
@pytest.mark.parametrize("before, after", [("legacy", "modern"), ("modern", "legacy")])
async def test_a_command_that_starts_a_server_of_the_other_era_is_noticed(
    tmp_path: Path, client: type[ModernOverStdio] | type[LegacyOverStdio], before: str, after: str
) -> None:
    """VER-009: once the old process is gone. A legacy client goes on in the session that it has."""
    installed = tmp_path / "installed"
    installed.write_text(before)
    start = f'exec {sys.executable} -m tests.real.upstreams.either_era "$(cat {installed})" stdio'
    async with StdioProcess(proxied(["sh", "-c", start]), tmp_path) as process:
        party = client(process)
        if isinstance(party, LegacyOverStdio):
            await party.greet()
        assert (await party.call("fast")).text == f"fast of {before}"

        installed.write_text(after)
        assert "outcome unknown" in (await party.call("die")).message["error"]["message"]

        for _ in range(TRIES):
            heard = await party.call("fast")
            if "result" in heard.message:
                assert heard.text == f"fast of {after}"
                return
        raise AssertionError(f"{TRIES} calls failed, the last with {heard.message}")
