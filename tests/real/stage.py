"""One proxy for many tests, each of which comes as an owner of its own: what one does to its server, its
session and its back-off is no other test's matter."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.real.modern_client import ModernClient
from tests.real.proxy_process import ProxyProcess, Upstream


class Stage:
    """A running proxy, and clients with credentials that nobody had before."""

    def __init__(self, proxy: ProxyProcess) -> None:
        self.proxy = proxy
        self._owners = itertools.count(1)

    def new_owner(self) -> str:
        """A value for `Authorization`."""
        return f"Bearer owner-{next(self._owners)}"

    @asynccontextmanager
    async def client(self, owner: str | None = None, **options: Any) -> AsyncIterator[ModernClient]:
        headers = {"Authorization": owner or self.new_owner()}
        async with ModernClient(self.proxy.url, headers=headers, **options) as client:
            yield client


@asynccontextmanager
async def stage(
    home: Path, upstream: Upstream, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[Stage]:
    proxy = ProxyProcess(home, upstream, settings)
    try:
        await proxy.start()
        yield Stage(proxy)
    finally:
        await proxy.stop()
        print(f"--- {proxy.log}\n{proxy.program.tail()}")  # pytest shows it where the test failed
