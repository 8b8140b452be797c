"""Wires everything, and starts and stops it in the right order.

The one place where concrete classes are named. Who owns what: the root task group here owns the pool,
the runner, the sweeper and the HTTP server; the pool owns sessions, the runner owns calls and tasks.
Nothing of those ends with a client's request. Contract sections 9 and 11.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

import anyio
from aiohttp import ClientSession, web

from proxy import __version__
from proxy.clock import Clock, SystemClock
from proxy.config import Config
from proxy.downstream.guard import Guard
from proxy.downstream.http import HttpEndpoint, HttpSettings
from proxy.downstream.operations import Operations, Report
from proxy.eras.capabilities import ClientCapabilities
from proxy.errors import ConfigError, StoreError
from proxy.limits import Gauge, PollLimit
from proxy.logs import get_logger
from proxy.owners import Credentials, Owner
from proxy.routing.bridge import SUPPORTED_VERSIONS, Bridge
from proxy.routing.conversion import Conversion
from proxy.routing.listen import Listen
from proxy.routing.recovery import settle_unfinished
from proxy.routing.router import Router
from proxy.routing.runner import Runner
from proxy.routing.task_methods import TaskMethods
from proxy.stores.base import TaskStore
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.memory import MemoryStore
from proxy.tasks.policy import InputMode, Policy, Polling, ToolMode, ToolPolicy
from proxy.upstream.base import Transport
from proxy.upstream.http import HttpTransport, make_client
from proxy.upstream.pending import AskingTools
from proxy.upstream.pool import Pool, PoolSettings
from proxy.upstream.session import ChangeListener, LegacySession
from proxy.upstream.stdio import StdioTransport

EXPIRE_EVERY_S: Final = 30.0
FLUSH_S: Final = 1.0  # for the last answers to leave after the drain
SERVER_CLOSE_S: Final = 2.0
EXIT_KILLED: Final = 130

Ready = Callable[[str], None]
"""Told the URL that is served, once it is."""

log = get_logger()


async def serve(config: Config, *, ready: Ready | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return; a second signal ends at once.

    Raises ConfigError for the operator's faults: a port in use, a store that cannot be opened.
    """
    clock = SystemClock()
    async with _open_store(config, clock) as store, make_client() as client:
        policy = policy_of(config)
        settled = await settle_unfinished(store, policy, clock)
        if settled:
            log.info("unfinished_tasks_settled", count=settled)
        parts = await _assemble(config, policy, store, client, clock)
        async with anyio.create_task_group() as tasks:
            await tasks.start(parts.pool.run)
            await tasks.start(parts.runner.run)
            tasks.start_soon(_expire_regularly, store, clock)
            async with _listening(config, parts) as url:
                if ready is not None:
                    ready(url)
                await _wait_for_signal()
                with anyio.CancelScope() as draining:
                    tasks.start_soon(_end_at_second_signal, draining)
                    await _drain(config, parts, clock)
            tasks.cancel_scope.cancel()
    log.info("proxy_stopped")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the life of the proxy has to touch."""

    pool: Pool
    runner: Runner
    conversion: Conversion
    listen: Listen
    endpoint: HttpEndpoint
    operations: Operations


async def _assemble(
    config: Config, policy: Policy, store: TaskStore, client: ClientSession, clock: Clock
) -> Parts:
    secret = await store.secret()
    credentials = Credentials()
    pool = Pool(_session_maker(config, policy, credentials, client, clock), _pool_settings(config), clock)
    runner = Runner(pool, store, policy, clock)
    conversion = Conversion(runner, store, policy, clock, state_key=secret)
    polls = PollLimit(config.limits.polls_per_task, clock)
    listen = Listen(pool, store, policy, clock)
    router = Router(Bridge(pool, conversion), TaskMethods(store, runner, policy, polls, clock), listen)
    endpoint = HttpEndpoint(
        router,
        Guard(config.is_loopback, frozenset(config.allowed_hosts), frozenset(config.allowed_origins)),
        credentials,
        secret,
        calls=Gauge("calls", config.limits.calls, "limits.calls"),
        listens=Gauge("listen streams", config.limits.listens, "limits.listens"),
        settings=HttpSettings(config.path, config.limits.body, config.limits.depth, SUPPORTED_VERSIONS),
        clock=clock,
    )
    return Parts(pool, runner, conversion, listen, endpoint, Operations(_reporter(store, pool)))


def _reporter(store: TaskStore, pool: Pool) -> Report:
    async def report() -> dict[str, str]:
        try:
            await store.check()
            state = "ok"
        except StoreError as exc:
            state = exc.message
        return {"store": state, "upstream": pool.last_fault or "ok"}

    return report


# -- from configuration to parts ---------------------------------------------------------------------


def policy_of(config: Config) -> Policy:
    """The rules about tasks, from the section `tasks` and the result limit."""
    tasks = config.tasks

    def rule(threshold: float | None, mode: str, asks: str, repeatable: bool) -> ToolPolicy:
        wait_s = tasks.threshold if threshold is None else threshold
        return ToolPolicy(wait_s, ToolMode(mode), InputMode(asks), repeatable)

    return Policy(
        default=ToolPolicy(threshold_s=tasks.threshold),
        rules=tuple((t.match, rule(t.threshold, t.mode, t.input, t.repeatable)) for t in tasks.tools),
        retention_ms=int(tasks.retention * 1000),
        runtime_limit_s=tasks.runtime_limit,
        input_limit_s=tasks.input_limit,
        mrtr_wait_s=tasks.mrtr_wait,
        polling=Polling(int(tasks.poll_interval.first * 1000), int(tasks.poll_interval.last * 1000)),
        max_result_bytes=config.limits.result,
    )


def _pool_settings(config: Config) -> PoolSettings:
    upstream = config.upstream
    return PoolSettings(
        processes=upstream.processes,
        share=upstream.share,
        calls_per_process=upstream.calls_per_process,
        isolate_anonymous=not config.is_loopback,
        wait_s=upstream.wait,
        idle_timeout_s=upstream.idle_timeout,
        max_sessions=config.limits.sessions,
    )


def _session_maker(
    config: Config, policy: Policy, credentials: Credentials, client: ClientSession, clock: Clock
) -> Callable[[Owner, ClientCapabilities, ChangeListener], LegacySession]:
    upstream = config.upstream
    asking = AskingTools(lambda tool: policy.for_tool(tool).input is InputMode.TASK)

    def transport(owner: Owner) -> Transport:
        if upstream.command is not None:
            return StdioTransport(
                upstream.command,
                env=upstream.env,
                cwd=Path(upstream.cwd) if upstream.cwd is not None else None,
                name=upstream.name,
                max_bytes=config.limits.message,
            )
        assert upstream.url is not None  # the configuration has one or the other
        return HttpTransport(
            upstream.url,
            name=upstream.name,
            max_bytes=config.limits.message,
            client=client,
            headers=lambda: credentials.headers(owner),
            clock=clock,
            max_depth=config.limits.depth,
        )

    def make(owner: Owner, capabilities: ClientCapabilities, on_change: ChangeListener) -> LegacySession:
        return LegacySession(
            transport(owner),
            name=upstream.name,
            capabilities=capabilities,
            client_version=__version__,
            asking=asking,
            clock=clock,
            max_depth=config.limits.depth,
            start_timeout_s=upstream.start_timeout,
            on_change=on_change,
        )

    return make


def _open_store(config: Config, clock: Clock) -> AbstractAsyncContextManager[TaskStore]:
    directory = config.store.directory
    if directory is None:
        return MemoryStore(clock)
    return DiskStore(directory, durability=Durability(config.store.durability), clock=clock)


# -- life --------------------------------------------------------------------------------------------


@asynccontextmanager
async def _listening(config: Config, parts: Parts) -> AsyncIterator[str]:
    """The HTTP server, and a second one for `admin.listen`; yields the endpoint's URL."""
    app = web.Application(client_max_size=0)
    parts.endpoint.add_to(app)
    parts.operations.add_to(app)
    runners = [await _runner(app, config.limits.header)]
    try:
        host, port = config.listen_host, config.listen_port
        url_port = await _bind(runners[0], host, port, "listen")
        if config.admin.listen is not None:
            admin = web.Application()
            parts.operations.add_to(admin)
            runners.append(await _runner(admin, config.limits.header))
            admin_host, _, admin_port = config.admin.listen.rpartition(":")
            await _bind(runners[1], admin_host.strip("[]"), int(admin_port), "admin.listen")
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{url_port}{config.path}"
    finally:
        with anyio.move_on_after(SERVER_CLOSE_S * 2, shield=True):
            for runner in runners:
                await runner.cleanup()


async def _runner(app: web.Application, max_header_bytes: int) -> web.AppRunner:
    runner = web.AppRunner(
        app,
        handler_cancellation=True,  # a hang-up must reach the call
        access_log=None,
        max_field_size=max_header_bytes,
        max_line_size=max_header_bytes,
        shutdown_timeout=SERVER_CLOSE_S,
    )
    await runner.setup()
    return runner


async def _bind(runner: web.AppRunner, host: str, port: int, setting: str) -> int:
    """Returns the port that is served. Raises ConfigError if it cannot be had."""
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as exc:
        reason = (
            "is in use by another program"
            if exc.errno == errno.EADDRINUSE
            else f"cannot be bound: {exc.strerror}"
        )
        raise ConfigError(f"{setting}: {host}:{port} {reason}") from exc
    return int(runner.addresses[0][1])


async def _wait_for_signal() -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("signal_received", signal=number.name)
            return


async def _end_at_second_signal(draining: anyio.CancelScope) -> None:
    await _wait_for_signal()
    draining.cancel()


async def _drain(config: Config, parts: Parts, clock: Clock) -> None:
    """Refuse new calls, end listen streams, give running calls their time, end the upstreams.

    What still runs as a task is left as it is stored; the next start settles it.
    """
    parts.endpoint.drain(retry_after_s=max(1, ceil(config.drain)))
    parts.listen.shut_down()
    parts.conversion.stop_parked()
    with anyio.move_on_after(config.drain):
        await parts.runner.wait_idle()
    parts.runner.give_up_waiting()
    with anyio.move_on_after(FLUSH_S):
        await parts.endpoint.wait_idle()
    await parts.pool.close()


async def _expire_regularly(store: TaskStore, clock: Clock) -> None:
    while True:
        await clock.sleep(EXPIRE_EVERY_S)
        try:
            await store.expire()
        except StoreError as exc:
            log.error("store_not_swept", reason=exc.message)
