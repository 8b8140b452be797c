"""The proxies that are fuzzed, and what is looked at before and after."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import yaml

from tests.fuzz.entrances import StdioEntrance, Tally, Wrong, complaints_in, fuzz_http, fuzz_stdio
from tests.real.processes import descriptors, rss_kib
from tests.real.proxy_process import ProxyProcess
from tests.real.stdio_process import proxied
from tests.real.waiting import until
from tests.setup_tools import TESTS

SERVER: Final = [sys.executable, str(TESTS / "real" / "upstreams" / "asking.py")]
SESSIONS: Final = 8
OF_SERVERS: Final = 2 * SESSIONS * 4
"""Descriptors of the servers that there may be, for modern clients and for legacy ones."""

FIRST: Final = 60  # descriptors of a proxy that serves nobody, and of connections that end just now
SETTINGS: Final[Mapping[str, Any]] = {
    "upstream": {"wait": "1s", "processes": 2},
    "tasks": {
        "threshold": "100ms",
        "retention": "2s",
        "runtime_limit": "2s",
        "input_limit": "2s",
        "mrtr_wait": "2s",
        "ttl": {"least": "1s", "most": "2s"},
        "tools": [{"match": "ask_task", "input": "task"}],
    },
    "limits": {"sessions": SESSIONS, "request_head": "3s", "request_body": "3s", "message": "1MiB"},
    "store": {"durability": "process"},
}
WARM_UP: Final = 0.2  # of all requests, before anything is measured
MAY_GROW_KIB: Final = (
    48 * 1024
)  # the allocator's; what is kept for each request would be far more in a long run


@dataclass(frozen=True)
class Measured:
    """Memory in KiB and descriptors, warm and at the end."""

    tally: Tally
    rss: tuple[int, int]
    descriptors: tuple[int, int]

    def __str__(self) -> str:
        statuses = dict(sorted(self.tally.statuses.items()))
        errors = dict(self.tally.errors.most_common())
        words = dict(self.tally.words.most_common(30))
        return (
            f"{self.tally.sent} sent; {words=}; {statuses=}; {errors=}; {self.rss=} KiB; {self.descriptors=}"
        )


@contextmanager
def http_proxy(home: Path) -> Iterator[ProxyProcess]:
    """Ends orderly, whatever was sent to it."""
    proxy = ProxyProcess(home, SERVER, SETTINGS)
    try:
        anyio.run(proxy.start)
        yield proxy
        anyio.run(proxy.terminate)
    finally:
        anyio.run(proxy.stop)
        print("\n".join(complaints_in(proxy.log)[:20]))
    if found := complaints_in(proxy.log):
        raise Wrong("\n".join(found[:20]))


def measured(proxy: ProxyProcess, requests: int, seed: int) -> Measured:
    """Raises Wrong."""
    whole = fuzz_http(proxy.port, int(requests * WARM_UP), seed)
    rss, files = rss_kib(proxy.pid), descriptors(proxy.pid)
    whole.add(fuzz_http(proxy.port, requests - int(requests * WARM_UP), seed + 1))

    async def settle() -> None:
        most = max(files, FIRST + OF_SERVERS)
        await until(lambda: descriptors(proxy.pid) <= most, "connections are closed")

    anyio.run(settle)
    found = Measured(whole, (rss, rss_kib(proxy.pid)), (files, descriptors(proxy.pid)))
    if found.rss[1] - found.rss[0] > MAY_GROW_KIB:
        raise Wrong(f"it has grown: {found}")
    return found


def stdio_proxy(home: Path, lines: int, seed: int) -> Measured:
    """As `measured`, of a proxy of its own. Raises Wrong."""
    config, log = home / "stdio.yaml", home / "stdio.log"
    config.write_text(yaml.safe_dump({"listen": "stdio", "drain": "500ms", **SETTINGS}))
    entrance = StdioEntrance(
        proxied(SERVER, "--config", str(config)), log, {"XDG_STATE_HOME": str(home / "state")}
    )
    try:
        fuzz_stdio(entrance, int(lines * WARM_UP), seed)
        rss, files = rss_kib(entrance.process.pid), descriptors(entrance.process.pid)
        tally = fuzz_stdio(entrance, lines - int(lines * WARM_UP), seed + 1)
        end = rss_kib(entrance.process.pid), descriptors(entrance.process.pid)
        if (code := entrance.end()) != 0:
            raise Wrong(f"exit code {code}")
    finally:
        entrance.close()
    if found := complaints_in(log):
        raise Wrong("\n".join(found[:20]))
    if end[0] - rss > MAY_GROW_KIB:
        raise Wrong(f"it has grown from {rss} to {end[0]} KiB")
    return Measured(tally, (rss, end[0]), (files, end[1]))
