"""Who can talk to whom, and what becomes of a call: the table of contract section 2, over HTTP on both sides.

Each cell is a client of one era before a server of one era, and one way that a call can go. Questions and
the other transports are in test_legacy_before_modern.py, test_modern_upstream.py and test_stdio_life.py.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import pytest

from proxy.protocol import names
from tests.real.modern_client import ModernClient
from tests.real.processes import Program, accepts, free_port
from tests.real.proxy_process import ProxyProcess
from tests.real.session_client import connected, text
from tests.real.waiting import until

pytestmark = pytest.mark.anyio

Era = Literal["legacy", "modern"]
ERAS: Final[tuple[Era, ...]] = ("legacy", "modern")
SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "300ms"}}
DEATH_BOUND_S: Final = 10.0
HANG_UP_S: Final = 0.15  # long before `slow` answers


@dataclass
class Row:
    """A server of one era, and the proxy before it."""

    era: Era
    proxy: ProxyProcess
    port: int
    home: Path
    server: Program | None = None

    @property
    def journal(self) -> Path:
        return self.home / "journal"

    async def start(self) -> None:
        """At first, and again after it died."""
        if self.server is not None:
            await self.server.wait(within_s=DEATH_BOUND_S)
        module = ["-m", "tests.real.upstreams.either_era"]
        command = [sys.executable, *module, self.era, str(self.port), str(self.journal)]
        self.server = Program(command, log=self.home / "server.log")
        await until(lambda: accepts(self.port), "the server listens")

    async def stop(self) -> None:
        if self.server is not None and self.server.exit_code is None:
            await self.server.stop()

    async def noted(self, event: str, label: str) -> None:
        """Wait until the server has: `began` or `cancelled`."""
        line = f"{event} {label}\n"

        def seen() -> bool:
            return self.journal.exists() and line in self.journal.read_text()

        await until(seen, f"{line!r} in the server's journal")


@pytest.fixture(scope="module", params=ERAS)
async def row(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Row]:
    home, port = tmp_path_factory.mktemp(request.param), free_port()
    async with AsyncExitStack() as stack:
        proxy = ProxyProcess(home, f"http://127.0.0.1:{port}/mcp", SETTINGS)
        made = Row(request.param, proxy, port, home)
        await made.start()
        stack.push_async_callback(made.stop)
        stack.push_async_callback(proxy.stop)
        await proxy.start()
        yield made


# -- a modern client ------------------------------------------------------------------------------------


@pytest.fixture
async def modern(row: Row) -> AsyncIterator[ModernClient]:
    async with ModernClient(row.proxy.url) as client:
        yield client


async def test_modern_fast(row: Row, modern: ModernClient) -> None:
    assert (await modern.call_tool("fast")).text == f"fast of {row.era}"


async def test_modern_slow(row: Row, modern: ModernClient) -> None:
    task = (await modern.call_tool("slow")).task_id
    assert (await modern.wait_task(task)).text == f"slow of {row.era}"


async def test_modern_fails(row: Row, modern: ModernClient) -> None:
    result = (await modern.call_tool("fail")).result
    assert (result["isError"], result["resultType"]) == (True, names.COMPLETE)


async def test_modern_cancelled(row: Row, modern: ModernClient) -> None:
    task = (await modern.call_tool("hang", {"label": "modern-task"})).task_id
    await modern.cancel_task(task)
    assert (await modern.get_task(task)).result["status"] == "cancelled"
    await row.noted("cancelled", "modern-task")


async def test_modern_client_gone(row: Row) -> None:
    """Before the answer, a hang-up is a cancellation."""
    async with ModernClient(row.proxy.url, tasks=False) as client, anyio.create_task_group() as calls:
        calls.start_soon(client.call_tool, "hang", {"label": "modern-gone"})
        await row.noted("began", "modern-gone")
        calls.cancel_scope.cancel()
    await row.noted("cancelled", "modern-gone")


async def test_modern_upstream_gone(row: Row, modern: ModernClient) -> None:
    """Told at once; the next call gets the server that is there then."""
    answer = await modern.call_tool("die")
    assert "outcome unknown" in answer.error["message"]
    await row.start()
    await until_fast(modern, row)


async def until_fast(client: ModernClient, row: Row) -> None:
    for _ in range(3):
        answer = await client.call_tool("fast")
        if "result" in answer.message:
            assert answer.text == f"fast of {row.era}"
            return
    raise AssertionError(f"the last answer: {answer.message}")


# -- a legacy client ------------------------------------------------------------------------------------


async def test_legacy_fast_slow_and_failing(row: Row) -> None:
    async with connected(row.proxy.url) as client:
        await client.initialize()
        assert text(await client.call("fast")) == f"fast of {row.era}"
        assert text(await client.call("slow")) == f"slow of {row.era}"
        assert (await client.call("fail"))[-1]["result"]["isError"]


async def test_legacy_cancelled(row: Row) -> None:
    async with connected(row.proxy.url) as client:
        await client.initialize()
        params = {"name": "hang", "arguments": {"label": "legacy"}}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.request(names.TOOLS_CALL, params, rid="doomed"))
            await row.noted("began", "legacy")
            await client.tell({"method": names.CANCELLED, "params": {"requestId": "doomed"}})
            await row.noted("cancelled", "legacy")
            tasks.cancel_scope.cancel()
        assert text(await client.call("fast")) == f"fast of {row.era}"


async def test_legacy_client_gone(row: Row) -> None:
    """The session is there for whoever comes back."""
    async with connected(row.proxy.url) as client:
        await client.initialize()
        with anyio.move_on_after(HANG_UP_S):
            await client.call("slow")
        assert text(await client.call("fast")) == f"fast of {row.era}"


async def test_legacy_upstream_gone(row: Row) -> None:
    async with connected(row.proxy.url) as client:
        await client.initialize()
        async with client.asking(names.TOOLS_CALL, {"name": "die"}) as exchange:
            answers = await exchange.all()
        assert "outcome unknown" in answers[-1]["error"]["message"]
    await row.start()
    async with connected(row.proxy.url) as client:
        await client.initialize()
        assert text(await client.call("fast")) == f"fast of {row.era}"
