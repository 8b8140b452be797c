"""What a test in this folder builds its scene from; the fixture `bench` takes everything down after it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.real.legacy import START_BOUND_S, Legacy, Transport
from tests.real.modern_client import ModernClient
from tests.real.processes import Program, accepts, free_port
from tests.real.proxy_process import ProxyProcess, Upstream
from tests.real.waiting import until


class Bench:
    """Starts legacy servers, proxies and clients; ends them, last started first, in `aclose`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.stack = AsyncExitStack()
        self._proxies: list[ProxyProcess] = []

    async def legacy(self, transport: Transport, *switches: str) -> Legacy:
        legacy = Legacy(transport, self.home, *switches)
        self.stack.push_async_callback(legacy.stop)
        await legacy.start()
        return legacy

    async def http_server(self, *command: str) -> str:
        """Start a server whose last argument is its port; its URL once it listens."""
        port = free_port()
        server = Program([*command, str(port)], log=self.home / "server.log")
        self.stack.push_async_callback(server.stop)
        await until(lambda: accepts(port), "the server listens", within_s=START_BOUND_S)
        return f"http://127.0.0.1:{port}/mcp"

    async def proxy(self, upstream: Upstream, settings: Mapping[str, Any] | None = None) -> ProxyProcess:
        proxy = ProxyProcess(self.home, upstream, settings)
        self._proxies.append(proxy)
        self.stack.push_async_callback(proxy.stop)
        await proxy.start()
        return proxy

    async def client(self, proxy: ProxyProcess, **options: Any) -> ModernClient:
        return await self.stack.enter_async_context(ModernClient(proxy.url, **options))

    async def aclose(self) -> None:
        await self.stack.aclose()
        for proxy in self._proxies:
            print(f"--- {proxy.log.name}\n{proxy.program.tail()}")  # pytest shows it where the test failed
