"""From the configuration to the parts: where concrete classes are named.

Above: `app`, which starts and stops what is assembled here. Below: `assembly_upstream` and `assembly_legacy`,
with the parts of the server's side and of legacy clients. The house style has `app.py` alone wire everything;
that is several nouns by now. Contract section 11.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

from aiohttp import ClientSession

from proxy.assembly_auth import assemble_auth
from proxy.assembly_legacy import LegacyParts
from proxy.assembly_upstream import Upstream
from proxy.audit import Audit
from proxy.clock import Clock
from proxy.config import Config
from proxy.downstream.guard import Guard
from proxy.downstream.http import HttpEndpoint, HttpSettings
from proxy.downstream.operations import Operations, Report, Scrape
from proxy.downstream.peers import Peers
from proxy.downstream.pipes import LineWriter
from proxy.downstream.stdio import LOCAL_USER, StdioEndpoint, StdioSettings
from proxy.errors import StoreError
from proxy.limits import Gauge, LookupLimit, PollLimit
from proxy.metrics import Metrics
from proxy.routing.bridge import Bridge
from proxy.routing.conversion import Conversion
from proxy.routing.listen import Listen
from proxy.routing.router import Router
from proxy.routing.runner import Runner
from proxy.routing.session_layer import SessionLayer
from proxy.routing.task_changes import TaskChanges
from proxy.routing.task_methods import TaskMethods
from proxy.routing.task_quota import TaskQuota
from proxy.routing.tasks_2025 import Tasks2025
from proxy.stores.base import Store, TaskStore
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.encryption import Keys
from proxy.stores.memory import MemoryStore
from proxy.stores.sharing import open_shared_directory
from proxy.tasks.policy import InputMode, Policy, Polling, ToolMode, ToolPolicy
from proxy.upstream.pool import Pool, PoolSettings


@dataclass(frozen=True, slots=True)
class Parts:
    """What both kinds of client are served from; `app` starts and stops them."""

    config: Config
    policy: Policy
    clock: Clock
    secret: bytes
    upstream: Upstream
    pool: Pool
    runner: Runner
    conversion: Conversion
    listen: Listen
    router: Router
    operations: Operations
    tasks_2025: Tasks2025
    legacy: LegacyParts
    requests: Gauge

    def http_endpoint(self, sessions: SessionLayer) -> HttpEndpoint:
        """`sessions` must be running."""
        config, limits, metrics = self.config, self.config.limits, self.upstream.metrics
        share = partial(limits.per_owner, has_others=config.faces_network)
        listens = Gauge("listen streams", limits.listens, "limits.listens", per_owner=share("listens"))
        metrics.show("http_requests", lambda: self.requests.held)
        metrics.show("http_streams", lambda: listens.held)
        metrics.show("legacy_sessions", lambda: len(sessions))
        return HttpEndpoint(
            self.router,
            Guard(config.is_loopback, frozenset(config.allowed_hosts), frozenset(config.allowed_origins)),
            self.upstream.credentials,
            self.secret,
            requests=self.requests,
            listens=listens,
            lookups=LookupLimit(limits.failed_lookups, self.clock),
            peers=Peers(config.trusted_proxies),
            settings=HttpSettings(
                config.path,
                limits.body,
                limits.depth,
                self.upstream.supported_versions(),
                limits.request_body,
                limits.result,
                has_others=config.faces_network,
            ),
            clock=self.clock,
            legacy=self.legacy.handler(sessions),
            well_known=self.upstream.well_known(),
            admission=self.upstream.auth.admission,
            metrics=metrics,
        )

    def stdio_endpoint(self, writer: LineWriter) -> StdioEndpoint:
        limits = self.config.limits
        settings = StdioSettings(
            limits.message, limits.depth, self.upstream.supported_versions, limits.requests
        )
        tasks = self.legacy.task_grant(LOCAL_USER, lists=True)
        return StdioEndpoint(
            self.router,
            lambda client: self.upstream.passthrough(LOCAL_USER, client, tasks),
            writer,
            settings,
            self.clock,
            self.upstream.metrics,
        )


async def assemble(
    config: Config, policy: Policy, store: Store, client: ClientSession, clock: Clock, metrics: Metrics
) -> Parts:
    secret = await store.secret()
    audit = Audit(secret)
    store.observe(audit.changed)
    auth = assemble_auth(config, secret, client, clock, store)
    upstream = Upstream(config, policy, client, clock, metrics, auth)
    pool = Pool(upstream.session, _pool_settings(config), clock, metrics, upstream.health)
    limits, share = config.limits, partial(config.limits.per_owner, has_others=config.faces_network)
    calls = Gauge("calls", limits.calls, "limits.calls", per_owner=share("calls"))
    requests = Gauge("requests", limits.requests, "limits.requests", per_owner=share("requests"))
    runner = Runner(pool, store, policy, clock, metrics, calls, auth.credentials)
    quota = TaskQuota(
        store, clock, total=limits.tasks, per_owner=share("tasks"), creations_per_s=limits.task_creations
    )
    conversion = Conversion(
        runner,
        store,
        policy,
        clock,
        state_key=secret,
        upstream_era=upstream.era,
        quota=quota,
    )
    listen = Listen(pool, store, policy, clock, audit, metrics, upstream.era)
    polls = PollLimit(config.limits.polls_per_task, clock)
    bridge = Bridge(pool, conversion, upstream.era, upstream.supported_versions)
    changes = TaskChanges(store, runner, policy, clock, audit, metrics)
    router = Router(bridge, TaskMethods(changes, policy, polls, clock), listen, metrics, clock)
    metrics.show("calls_in_flight", lambda: calls.held)
    metrics.show("calls_parked", lambda: conversion.parked)
    metrics.show("listen_streams", lambda: listen.streams)
    metrics.show("upstream_sessions", lambda: pool.sessions)
    metrics.show("upstream_waiting", lambda: pool.waiting)
    operations = Operations(_reporter(store, upstream), _scraper(store, metrics))
    tasks_2025 = Tasks2025(store, runner, changes, policy, polls, clock, quota)
    return Parts(
        config,
        policy,
        clock,
        secret,
        upstream,
        pool,
        runner,
        conversion,
        listen,
        router,
        operations,
        tasks_2025,
        LegacyParts(config, clock, secret, store, upstream, runner, tasks_2025, calls, requests),
        requests,
    )


def _reporter(store: TaskStore, upstream: Upstream) -> Report:
    async def report() -> dict[str, str]:
        try:
            await store.check()
            state = "ok"
        except StoreError as exc:
            state = exc.message
        return {"store": state, "upstream": upstream.health.words(), **upstream.auth.report()}

    return report


def _scraper(store: TaskStore, metrics: Metrics) -> Scrape:
    async def scrape() -> bytes:
        try:
            metrics.stored({status.value: count for status, count in (await store.counts()).items()})
        except StoreError:
            metrics.stored(None)
        return metrics.text()

    return scrape


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
        isolate_anonymous=config.faces_network,
        wait_s=upstream.wait,
        idle_timeout_s=upstream.idle_timeout,
        max_sessions=config.limits.sessions,
        max_sessions_per_owner=config.limits.per_owner("sessions", has_others=config.faces_network),
    )


def open_store(config: Config, clock: Clock, metrics: Metrics) -> AbstractAsyncContextManager[Store]:
    directory, durability = config.store.directory, Durability(config.store.durability)
    if directory is None:
        return MemoryStore(clock)
    keys = Keys(config.store.encryption.read_keys(directory))
    wanted_s = config.tasks.longest
    if config.is_stdio:
        return open_shared_directory(directory, durability, LOCAL_USER.key, clock, metrics, keys, wanted_s)
    return DiskStore(
        directory, durability=durability, clock=clock, metrics=metrics, keys=keys, wanted_s=wanted_s
    )
