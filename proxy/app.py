"""The life of the proxy: starts what `assembly` made, serves, and stops it in the right order.

Who owns what: the root task group here owns the pool, the runner, the sweeper and the server towards
clients; the pool owns sessions, the runner owns calls and tasks. Nothing of those ends with a client's
request. Contract section 9.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from math import ceil
from typing import Final

import anyio
from aiohttp import web
from anyio.abc import TaskStatus as StartStatus

from proxy.addresses import is_loopback_name
from proxy.assembly import Parts, assemble, open_store, policy_of
from proxy.clock import Clock, SystemClock
from proxy.config import Config
from proxy.downstream.connection import ConnectionBounds
from proxy.downstream.guard import Guard
from proxy.downstream.http import HttpEndpoint
from proxy.downstream.pipes import STDIN, LineWriter, claim_stdout, read_chunks
from proxy.downstream.server import served
from proxy.ending import THREADS_S, Deadline
from proxy.errors import ConfigError, StoreError
from proxy.logs import get_logger
from proxy.metrics import Metrics
from proxy.stores.base import TaskStore
from proxy.upstream.http import make_client
from proxy.upstream.process import kill_all

EXPIRE_EVERY_S: Final = 30.0
LOOK_AT_LAG_S: Final = 0.5
FLUSH_S: Final = 1.0  # for the last answers to leave after the drain
END_S: Final = 20.0  # after the drain, for servers, connections and the store; each has bounds of its own
MAX_DESCRIPTORS: Final = 65_536  # servers that we start inherit it, and some walk through them all
EXIT_AT_ONCE: Final = 130
HURRY_S: Final = 0.5  # npm clients send SIGTERM, close stdin, and send SIGKILL a second later

Ready = Callable[[str], None]
"""Told what is served, once it is."""

log = get_logger()


def deadline_of(config: Config) -> Deadline:
    """For `serve`; to be cancelled once the event loop is closed. That waits for threads without a bound, and
    one may be looking up a name."""
    return Deadline(config.drain + END_S, kill_all)


async def serve(config: Config, deadline: Deadline, *, ready: Ready | None = None) -> None:
    """Serve until SIGTERM, SIGINT or (stdio) the client's end, then drain and return.

    `deadline` runs from the drain on, and is short once all is done; it is the caller's to cancel. A second
    signal ends the process at once. Raises ConfigError for the operator's faults: a port in
    use, a store that cannot be opened.
    """
    _raise_descriptor_limit()
    clock, metrics = SystemClock(), Metrics()
    await _serve(config, clock, metrics, deadline, ready)
    log.info("proxy_stopped")
    deadline.hasten(THREADS_S)


async def _serve(
    config: Config, clock: Clock, metrics: Metrics, deadline: Deadline, ready: Ready | None
) -> None:
    stdout = claim_stdout() if config.is_stdio else None  # before anything of anybody's could print
    async with open_store(config, clock, metrics) as store, make_client() as client:
        policy = policy_of(config)
        parts = await assemble(config, policy, store, client, clock, metrics)
        async with anyio.create_task_group() as tasks:
            await tasks.start(parts.upstream.auth.run)
            await tasks.start(parts.pool.run)
            await tasks.start(parts.runner.run)
            tasks.start_soon(_expire_regularly, store, clock)
            if config.admin.listen is not None:
                tasks.start_soon(_look_at_lag, metrics, clock)
            stop = anyio.Event()
            await tasks.start(_watch_signals, stop)
            async with _admin_listening(parts):
                if stdout is not None:
                    await _serve_stdio(parts, stdout, stop, deadline, ready)
                else:
                    await _serve_http(parts, stop, deadline, ready)
            tasks.cancel_scope.cancel()


def _raise_descriptor_limit() -> None:
    """As many descriptors as we may have: each client and each server takes some (contract section 9)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft < wanted:
        with suppress(ValueError, OSError):  # macOS names a hard limit that it does not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve_http(parts: Parts, stop: anyio.Event, deadline: Deadline, ready: Ready | None) -> None:
    sessions = parts.legacy.session_layer()
    endpoint = parts.http_endpoint(sessions)

    async def wait_answered() -> None:
        await endpoint.wait_idle()
        await sessions.wait_idle()

    async with _listening(parts, endpoint) as url, anyio.create_task_group() as tasks:
        await tasks.start(sessions.run)
        tasks.start_soon(endpoint.watch)
        tasks.start_soon(parts.legacy.recover, parts.policy)  # once the sessions' handler is there
        if ready is not None:
            ready(url)
        await stop.wait()
        deadline.begin()
        parts.operations.drain()
        endpoint.drain(retry_after_s=max(1, ceil(parts.config.drain)))
        await _drain(parts, wait_answered)
        async with anyio.create_task_group() as ending:
            ending.start_soon(parts.pool.close)
            ending.start_soon(sessions.close)
        with anyio.move_on_after(FLUSH_S):
            await endpoint.wait_idle()
        tasks.cancel_scope.cancel()


async def _serve_stdio(
    parts: Parts, stdout: int, signalled: anyio.Event, deadline: Deadline, ready: Ready | None
) -> None:
    """One client. When it closes our stdin its running calls are cancelled; tasks get the drain time, unless
    it sends a signal, too: then nobody waits for anything, and what does not go at once is made to."""
    endpoint = parts.stdio_endpoint(LineWriter(stdout))
    stop, gone, drained = anyio.Event(), anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def chunks() -> AsyncIterator[bytes]:
            async for chunk in read_chunks(STDIN):
                yield chunk
            gone.set()

        async def serve_client() -> None:
            await endpoint.serve(chunks(), wait_drained)

        async def wait_drained() -> None:
            stop.set()
            await drained.wait()

        async def obey_signal() -> None:
            await signalled.wait()
            stop.set()
            await gone.wait()
            await anyio.sleep(HURRY_S)
            kill_all()
            os._exit(0)

        tasks.start_soon(parts.legacy.recover, parts.policy)
        tasks.start_soon(serve_client)
        tasks.start_soon(obey_signal)
        if ready is not None:
            ready("stdio")
        await stop.wait()
        deadline.begin()
        parts.operations.drain()
        endpoint.drain()
        await _drain(parts, endpoint.wait_idle)
        await parts.pool.close()
        drained.set()
        await endpoint.end()
        tasks.cancel_scope.cancel()


async def _drain(parts: Parts, wait_answered: Callable[[], Awaitable[None]]) -> None:
    """End listen streams, give running calls their time.

    What still runs as a task is left as it is stored; the next start settles it.
    """
    parts.listen.shut_down()
    parts.conversion.stop_parked()
    with anyio.move_on_after(parts.config.drain):
        await parts.runner.wait_idle()
        await wait_answered()
    parts.runner.give_up_waiting()
    parts.tasks_2025.give_up_waiting()
    with anyio.move_on_after(FLUSH_S):
        await wait_answered()
    parts.runner.freeze()


async def _watch_signals(stop: anyio.Event, *, task_status: StartStatus[None]) -> None:
    """The first signal begins the end; a second one is the end."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("signal_received", signal=number.name)
            if stop.is_set():
                kill_all()
                os._exit(EXIT_AT_ONCE)
            stop.set()


async def _expire_regularly(store: TaskStore, clock: Clock) -> None:
    while True:
        await clock.sleep(EXPIRE_EVERY_S)
        try:
            await store.expire()
        except StoreError as exc:
            log.error("store_not_swept", reason=exc.message)


async def _look_at_lag(metrics: Metrics, clock: Clock) -> None:
    """How late the event loop wakes who sleeps: whatever holds it up, all clients wait for."""
    while True:
        due = clock.monotonic() + LOOK_AT_LAG_S
        await clock.sleep(LOOK_AT_LAG_S)
        metrics.lagged(clock.monotonic() - due)


# -- the HTTP servers --------------------------------------------------------------------------------


@asynccontextmanager
async def _listening(parts: Parts, endpoint: HttpEndpoint) -> AsyncIterator[str]:
    """The server towards clients; yields the endpoint's URL."""
    config = parts.config
    app = web.Application(client_max_size=0)
    endpoint.add_to(app)
    parts.operations.add_to(app, _guard_of_operations(config, config.listen))
    host, port = config.listen_host, config.listen_port
    bounds = _connection_bounds(config)
    async with served(app, host, port, bounds, endpoint.guard, setting="listen") as bound:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{bound}{config.path}"


def _guard_of_operations(config: Config, address: str) -> Guard:
    """Load balancers on a network ask by address; who asks at a loopback address does so by its name."""
    is_loopback = is_loopback_name(address)
    return Guard(is_loopback, frozenset(config.allowed_hosts if is_loopback else ()), frozenset())


def _connection_bounds(config: Config) -> ConnectionBounds:
    """Servers, files and our own connections upstream need descriptors, too."""
    limits, (soft, _) = config.limits, resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.connections if soft == resource.RLIM_INFINITY else min(limits.connections, soft // 2)
    return ConnectionBounds(limits.header, most, limits.connection_idle, limits.request_head)


@asynccontextmanager
async def _admin_listening(parts: Parts) -> AsyncIterator[None]:
    """The server of `admin.listen`, if that is set.

    On stdio, one client may start us twice with the same settings: the second one works without.
    """
    config = parts.config
    async with AsyncExitStack() as servers:
        if config.admin.listen is not None:
            app, guard = web.Application(), _guard_of_operations(config, config.admin.listen)
            parts.operations.add_to(app, guard)
            parts.operations.add_metrics_to(app, guard)
            host, _, port = config.admin.listen.rpartition(":")
            bounds = _connection_bounds(config)
            made = served(app, host.strip("[]"), int(port), bounds, setting="admin.listen")
            try:
                await servers.enter_async_context(made)
            except ConfigError as exc:
                if not config.is_stdio:
                    raise
                log.warning("metrics_not_served", reason=exc.message)
        yield
