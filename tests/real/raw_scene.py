"""The echo server behind one transport and two proxies before it, and what their tests ask of tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxy.eras.era import Era
from proxy.protocol import names
from tests.real.processes import Program, accepts, free_port
from tests.real.proxy_process import ProxyProcess, Upstream
from tests.real.raw_links import http_link, stdio_link
from tests.real.raw_pair import Pair, echo_command, stdio_proxy
from tests.real.upstreams.raw_json import Members, value
from tests.real.upstreams.record import Record
from tests.real.waiting import asked_until, until

TOOLS: Final = [{"match": "kept*", "threshold": "0s"}]
SETTINGS: Final = {"tasks": {"tools": TOOLS}}
INVISIBLE: Final = {"tasks": {"tools": TOOLS, "legacy_2025": False}}
"""Legacy clients get nothing that the server did not say."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One proxy on HTTP, one on stdio, and their clients."""

    transport: str
    upstream: Upstream
    modern_http: Pair
    modern_stdio: Pair
    legacy_stdio: Pair


@asynccontextmanager
async def open_scene(home: Path, transport: str) -> AsyncIterator[Scene]:
    """`transport` is one that the echo server knows. On stdio there are no 2025 tasks of ours."""
    async with AsyncExitStack() as stack:
        record = Record(home / "record")
        upstream = await started_upstream(home, transport, stack)
        proxy = await started_proxy(home, upstream, stack)
        http = await stack.enter_async_context(http_link(proxy.url))
        command = stdio_proxy(home, upstream, INVISIBLE)
        stdio = await stack.enter_async_context(stdio_link(command, home / "stdio.log"))
        yield Scene(
            transport,
            upstream,
            Pair(Era.MODERN, http, record),
            Pair(Era.MODERN, stdio, record),
            Pair(Era.LEGACY, stdio, record),
        )


async def started_upstream(home: Path, transport: str, stack: AsyncExitStack) -> Upstream:
    """Where the server is; over stdio it is the proxy that starts it."""
    if transport.endswith("stdio"):
        return echo_command(home / "record", transport)
    port = free_port()
    server = Program(echo_command(home / "record", transport, port), log=home / "server.log")
    stack.push_async_callback(server.stop)
    await until(lambda: accepts(port), "the echo server listens")
    return f"http://127.0.0.1:{port}/mcp"


async def started_proxy(home: Path, upstream: Upstream, stack: AsyncExitStack) -> ProxyProcess:
    """On HTTP."""
    proxy = ProxyProcess(home, upstream, SETTINGS)
    stack.push_async_callback(proxy.stop)
    await proxy.start()
    return proxy


async def kept(pair: Pair, directions: Members) -> bytes:
    """Call the tool that is a task at once; the raw id of the task."""
    exchange = await pair.ask(names.TOOLS_CALL, [(b'"name"', b'"kept"')], directions)
    task_id = value(exchange.result, "taskId")
    assert task_id is not None, f"no task: {exchange.answer[:500]!r}"
    return task_id


async def task_with(pair: Pair, task_id: bytes, *statuses: bytes) -> bytes:
    """The result of `tasks/get` once the task has one of these statuses."""

    async def get() -> bytes:
        return (await pair.ask(names.TASKS_GET, [(b'"taskId"', task_id)], [])).result

    what = f"{task_id!r} is one of {statuses!r}"
    return await asked_until(get, lambda task: value(task, "status") in statuses, what, every_s=0.02)


async def ended(pair: Pair, task_id: bytes) -> bytes:
    """The result of `tasks/get` at the end, whichever it is."""
    return await task_with(pair, task_id, b'"completed"', b'"failed"')
