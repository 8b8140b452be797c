"""Who can talk to whom: the table of contract section 2, each cell before a real server.

Every era of the client and of the server, over every pair of transports, and each of seven ways for a call to
go. All rows of one pair share a proxy.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.eras.era import Era
from proxy.protocol import names
from tests.real.callers import LegacyOverHttp, LegacyOverStdio, ModernOverHttp, ModernOverStdio, Party
from tests.real.legacy import Transport
from tests.real.modern_client import ELICITATION, ModernClient
from tests.real.processes import Program, accepts, free_port
from tests.real.proxy_process import ProxyProcess, Upstream
from tests.real.session_client import connected
from tests.real.stdio_process import StdioProcess, proxied
from tests.real.waiting import until

pytestmark = pytest.mark.anyio

TRANSPORTS: Final[tuple[Transport, ...]] = ("http", "stdio")
THRESHOLD: Final = "500ms"
SLOW_S: Final = {Era.MODERN: 1.2, Era.LEGACY: 0.3}  # over the threshold, where that means something
DEATH_BOUND_S: Final = 10.0
EXIT_S: Final = 10.0
TRIES: Final = 3  # the next call after a death may meet the back-off, or a session that is gone


@dataclass
class Row:
    """A server of one era behind one transport, and the proxy before it, for clients over another."""

    downstream: Transport
    upstream: Transport
    server_era: Era
    home: Path
    stack: AsyncExitStack
    port: int = field(default_factory=free_port)
    server: Program | None = None

    @property
    def journal(self) -> Path:
        return self.home / "journal"

    def _server(self, where: str) -> list[str]:
        module = ["-m", "tests.real.upstreams.either_era"]
        return [sys.executable, *module, self.server_era, where, str(self.journal)]

    @property
    def target(self) -> Upstream:
        return f"http://127.0.0.1:{self.port}/mcp" if self.upstream == "http" else self._server("stdio")

    async def start_server(self) -> None:
        """At first, and again after it died. Over stdio that is the proxy's business."""
        if self.upstream == "stdio":
            return
        if self.server is not None:
            await self.server.wait(within_s=DEATH_BOUND_S)
        self.server = Program(self._server(str(self.port)), log=self.home / "server.log")
        await until(lambda: accepts(self.port), "the server listens")

    async def open(self) -> None:
        await self.start_server()
        self.stack.push_async_callback(self._stop_server)
        if self.downstream == "http":
            self.proxy = ProxyProcess(self.home, self.target, {"tasks": {"threshold": THRESHOLD}})
            self.stack.push_async_callback(self.proxy.stop)
            await self.proxy.start()
        else:
            self.process = await self.stack.enter_async_context(self.stdio_proxy("shared"))
            self._legacy = LegacyOverStdio(self.process)

    async def _stop_server(self) -> None:
        if self.server is not None and self.server.exit_code is None:
            await self.server.stop()

    def stdio_proxy(self, name: str) -> StdioProcess:
        """Another proxy, for one client, with a state of its own."""
        home = self.home / name
        home.mkdir()
        return StdioProcess(proxied(self.target, "--threshold", THRESHOLD), home)

    @asynccontextmanager
    async def party(self, era: Era) -> AsyncIterator[Party]:
        """A client over HTTP, or the one on stdio."""
        if self.downstream == "stdio" and era is Era.LEGACY:
            await self._legacy.greet()
            yield self._legacy
        elif self.downstream == "stdio":
            yield ModernOverStdio(self.process)
        elif era is Era.MODERN:
            async with ModernClient(self.proxy.url, capabilities=ELICITATION) as modern:
                yield ModernOverHttp(modern)
        else:
            async with connected(self.proxy.url) as legacy:
                await legacy.initialize(**ELICITATION)
                yield LegacyOverHttp(legacy)

    def _noted(self, event: str, label: str) -> bool:
        return self.journal.exists() and f"{event} {label}\n" in self.journal.read_text()

    async def began(self, label: str) -> None:
        await until(partial(self._noted, "began", label), f"the server works on {label}")

    async def cancelled(self, label: str) -> None:
        await until(partial(self._noted, "cancelled", label), f"the server is told that {label} is cancelled")


def rows() -> list[Any]:
    """Client's transport > server's transport and era."""
    return [
        pytest.param((down, up, era), id=f"{down}>{up}-{era}")
        for down in TRANSPORTS
        for up in TRANSPORTS
        for era in Era
    ]


@pytest.fixture(scope="module", params=rows())
async def row(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Row]:
    downstream, upstream, era = request.param
    async with AsyncExitStack() as stack:
        made = Row(downstream, upstream, era, tmp_path_factory.mktemp("row"), stack)
        await made.open()
        yield made


@pytest.fixture(params=list(Era))
def era(request: pytest.FixtureRequest) -> Era:
    """The client's."""
    found: Era = request.param
    return found


@pytest.fixture
async def client(row: Row, era: Era) -> AsyncIterator[Party]:
    async with row.party(era) as party:
        yield party


async def test_fast(row: Row, client: Party) -> None:
    heard = await client.call("fast")
    assert (heard.text, heard.was_task) == (f"fast of {row.server_era}", False)


async def test_slow(row: Row, client: Party, era: Era) -> None:
    """A task for those who can have one."""
    heard = await client.call("slow", seconds=SLOW_S[era])
    assert (heard.text, heard.was_task) == (f"slow of {row.server_era}", era is Era.MODERN)


async def test_asks(client: Party) -> None:
    """Within a call: the user is asked once, whatever the server means by asking."""
    heard = await client.call("ask")
    assert (heard.text, heard.asked) == ("Hello, Ada", (names.ELICITATION_CREATE,))


async def test_fails(client: Party, era: Era) -> None:
    result = (await client.call("fail")).result
    assert result["isError"]
    assert ("resultType" in result) == (era is Era.MODERN)


async def test_cancelled(row: Row, client: Party, era: Era) -> None:
    label = f"{era}-cancelled"
    await client.cancel(label, partial(row.began, label))
    await row.cancelled(label)
    assert (await client.call("fast")).text == f"fast of {row.server_era}"


async def test_client_gone(row: Row, era: Era) -> None:
    """Over HTTP a hang-up is a cancellation in the modern era, and none in the legacy one, whose session is
    there for whoever comes back. On stdio nothing is left of the proxy."""
    label = f"{era}-gone"
    began = partial(row.began, label)
    if row.downstream == "stdio":
        async with row.stdio_proxy(label) as process:
            legacy = LegacyOverStdio(process)
            if era is Era.LEGACY:
                await legacy.greet()
            await (legacy if era is Era.LEGACY else ModernOverStdio(process)).leave(label, began)
            assert await process.exit_code(within_s=EXIT_S) == 0, process.log()
            await process.nothing_is_left(within_s=EXIT_S)
        return
    async with row.party(era) as client:
        await client.leave(label, began)
        if era is Era.MODERN:
            await row.cancelled(label)
        assert (await client.call("fast")).text == f"fast of {row.server_era}"


async def test_upstream_gone(row: Row, era: Era) -> None:
    """Told at once; the next calls get the server that is there then."""
    await works(row, era)  # the session may be of a server that died before
    async with row.party(era) as client:
        died = (await client.call("die")).message
        assert "outcome unknown" in died["error"]["message"]
    await row.start_server()
    await works(row, era)


async def works(row: Row, era: Era) -> None:
    """Soon, if not at once."""
    for _ in range(TRIES):
        async with row.party(era) as client:
            heard = await client.call("fast")
            if "result" in heard.message:
                assert heard.text == f"fast of {row.server_era}"
                return
    raise AssertionError(f"the last answer: {heard.message}")
