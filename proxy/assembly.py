"""From the configuration to the parts: the one place where concrete classes are named.

Above: `app`, which starts and stops what is assembled here. The house style has `app.py` alone wire
everything; that is two nouns by now, the parts and their life, so the parts stand here. Contract
section 11.
"""

from __future__ import annotations

import secrets
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import ClientSession

from proxy import __version__
from proxy.clock import Clock
from proxy.config import Config
from proxy.downstream.guard import Guard
from proxy.downstream.http import HttpEndpoint, HttpSettings
from proxy.downstream.operations import Operations, Report, Scrape
from proxy.downstream.pipes import LineWriter
from proxy.downstream.stdio import LOCAL_USER, StdioEndpoint, StdioSettings
from proxy.eras import tasks_2025
from proxy.eras.capabilities import ANY_CAPABILITIES, ClientCapabilities, request_meta
from proxy.eras.era import Era
from proxy.eras.to_modern import ServerInfo
from proxy.errors import StoreError
from proxy.limits import Gauge, PollLimit
from proxy.metrics import Metrics
from proxy.owners import Credentials, Owner
from proxy.protocol import names
from proxy.protocol.envelope import dumps
from proxy.routing.adopted import Adopted, Adoption
from proxy.routing.bridge import Bridge
from proxy.routing.conversion import Conversion
from proxy.routing.http_passthrough import HttpPassthrough
from proxy.routing.http_tasks import HttpTasks
from proxy.routing.in_flight import FIRST_TASK_ID
from proxy.routing.legacy import LegacyHandler
from proxy.routing.listen import Listen
from proxy.routing.live import Place
from proxy.routing.old_servers import OldServers
from proxy.routing.own_server import Client
from proxy.routing.passed_session import OwnersPart, PassedSession, PassedSessions, credentials_in
from proxy.routing.passthrough import Passthrough, TaskGrant
from proxy.routing.router import Router
from proxy.routing.runner import Runner
from proxy.routing.session_layer import SessionLayer
from proxy.routing.task_changes import TaskChanges
from proxy.routing.task_methods import TaskMethods
from proxy.routing.task_session import TaskSession, TaskTerms
from proxy.routing.tasks_2025 import Tasks2025
from proxy.routing.well_known import WellKnown
from proxy.stores.base import SessionMemory, Store, TaskStore
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.memory import MemoryStore
from proxy.stores.sharing import open_shared_directory
from proxy.tasks.policy import InputMode, Policy, Polling, ToolMode, ToolPolicy
from proxy.upstream.auto import AutoHttpTransport, KnownServer
from proxy.upstream.base import Transport
from proxy.upstream.forward import HttpForwarder
from proxy.upstream.http import AdoptedSession, HttpTransport
from proxy.upstream.pending import AskingTools
from proxy.upstream.pool import Pool, PoolSettings
from proxy.upstream.probe import ProbingTransport, UpstreamEra
from proxy.upstream.session import CLIENT_NAME, ChangeListener, LegacySession
from proxy.upstream.stdio import StdioTransport


class Upstream:
    """Makes transports and sessions with the configured server."""

    def __init__(
        self, config: Config, policy: Policy, client: ClientSession, clock: Clock, metrics: Metrics
    ) -> None:
        self.metrics = metrics
        self._config = config
        self._client = client
        self._clock = clock
        self.asking = AskingTools(lambda tool: policy.for_tool(tool).input is InputMode.TASK)
        self.known = KnownServer()
        self._era = UpstreamEra(None if config.upstream.era == "auto" else Era(config.upstream.era))
        meta = request_meta(ClientCapabilities("{}", tasks=False), CLIENT_NAME, __version__)
        self._probe_params = dumps({names.META: meta})
        self.credentials = Credentials()

    def era(self) -> Era | None:
        """What is known of the server's era."""
        return self._era.known

    def supported_versions(self) -> tuple[str, ...]:
        """Modern ones, and legacy ones where such clients can be passed through."""
        if self._era.serves_legacy:
            return (*names.LEGACY_VERSIONS, *names.MODERN_VERSIONS)
        return names.MODERN_VERSIONS

    def transport(self, owner: Owner) -> Transport:
        """A transport that knows the upstream's era, or finds it out before it is started."""
        return ProbingTransport(lambda: self._plain_transport(owner), self._era, self._probe_params)

    def _plain_transport(self, owner: Owner) -> Transport:
        upstream, limits = self._config.upstream, self._config.limits
        if upstream.command is not None:
            return StdioTransport(
                upstream.command,
                env=upstream.env,
                cwd=Path(upstream.cwd) if upstream.cwd is not None else None,
                name=upstream.name,
                max_bytes=limits.message,
                metrics=self.metrics,
            )
        assert upstream.url is not None  # the configuration has one or the other
        return AutoHttpTransport(
            upstream.url,
            name=upstream.name,
            max_bytes=limits.message,
            max_depth=limits.depth,
            client=self._client,
            headers=lambda: self.credentials.headers(owner),
            clock=self._clock,
            known=self.known,
            endpoint_prefix=upstream.endpoint_prefix,
        )

    def session(
        self, owner: Owner, capabilities: ClientCapabilities, on_change: ChangeListener
    ) -> LegacySession:
        return LegacySession(
            self.transport(owner),
            name=self._config.upstream.name,
            capabilities=capabilities,
            client_version=__version__,
            asking=self.asking,
            clock=self._clock,
            max_depth=self._config.limits.depth,
            start_timeout_s=self._config.upstream.start_timeout,
            on_change=on_change,
            era=self._era,
        )

    def adoption(self, session: PassedSession, part: OwnersPart) -> Adoption:
        """For the tasks of a legacy client whose session is the upstream's own."""
        url, limits = self._config.upstream.url, self._config.limits
        assert url is not None  # such sessions are passed through to one
        transport = HttpTransport(
            url,
            name=self._config.upstream.name,
            max_bytes=limits.message,
            max_depth=limits.depth,
            client=self._client,
            headers=lambda: credentials_in(part.headers),
            clock=self._clock,
            adopted=AdoptedSession(session.id or None, session.facts.upstream_version),
        )
        first_id = FIRST_TASK_ID + secrets.randbelow(FIRST_TASK_ID)  # away from the ids of the client's own
        return Adoption(self.adopted(transport, session.info, first_id), transport.listen)

    def adopted(self, transport: Transport, info: ServerInfo, first_id: int) -> LegacySession:
        """For the tasks of a legacy client: a session that was opened by that client itself."""
        return LegacySession(
            transport,
            name=self._config.upstream.name,
            capabilities=ANY_CAPABILITIES,
            client_version=__version__,
            asking=self.asking,
            clock=self._clock,
            max_depth=self._config.limits.depth,
            start_timeout_s=self._config.upstream.start_timeout,
            on_change=lambda method, params: None,
            adopted=info,
            first_id=first_id,
        )

    def forwarder(self) -> HttpForwarder | None:
        """Passes requests on to an HTTP server as they are."""
        upstream = self._config.upstream
        if upstream.url is None:
            return None
        return HttpForwarder(upstream.url, name=upstream.name, client=self._client)

    def well_known(self) -> WellKnown | None:
        """The documents that belong to an HTTP server."""
        forwarder, url = self.forwarder(), self._config.upstream.url
        if forwarder is None or url is None:
            return None
        return WellKnown(forwarder, path=self._config.path, upstream_path=urlsplit(url).path)

    def passthrough(self, owner: Owner, client: Client, tasks: TaskGrant | None) -> Passthrough:
        """The session of one legacy client with a server of its own."""
        return Passthrough(
            lambda: self._plain_transport(owner),
            client,
            name=self._config.upstream.name,
            clock=self._clock,
            max_depth=self._config.limits.depth,
            start_timeout_s=self._config.upstream.start_timeout,
            asking=self.asking,
            tasks_2025=tasks,
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """What both kinds of client are served from; `app` starts and stops them."""

    config: Config
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
    memory: SessionMemory

    def task_grant(self, owner: Owner, *, lists: bool) -> TaskGrant | None:
        """What gives a legacy client's session 2025 tasks; None where they are switched off."""
        if not self.config.tasks.legacy_2025:
            return None
        terms = self._task_terms(lists=lists)

        def grant(asked: bytes | None, result: bytes, place: Place) -> tuple[bytes, TaskSession | None]:
            granted = tasks_2025.grant(tasks_2025.asked_version(asked), result, lists=lists)
            if granted is None:
                return result, None
            return granted.result, TaskSession(self.tasks_2025, owner, granted.upstream, place, terms)

        return TaskGrant(grant, self.upstream.adopted)

    def session_layer(self) -> SessionLayer:
        """Holds the sessions of legacy clients over HTTP, where the server has none of its own."""

        def make_server(owner: Owner, client: Client) -> Passthrough:
            tasks = self.task_grant(owner, lists=not owner.is_anonymous)
            return self.upstream.passthrough(owner, client, tasks)

        limits = self.config.limits
        return SessionLayer(make_server, self.clock, max_sessions=limits.sessions, idle_s=limits.session_idle)

    def http_endpoint(self, sessions: SessionLayer) -> HttpEndpoint:
        """`sessions` must be running."""
        config, limits = self.config, self.config.limits
        return HttpEndpoint(
            self.router,
            Guard(config.is_loopback, frozenset(config.allowed_hosts), frozenset(config.allowed_origins)),
            self.upstream.credentials,
            self.secret,
            calls=Gauge("calls", limits.calls, "limits.calls"),
            listens=Gauge("listen streams", limits.listens, "limits.listens"),
            settings=HttpSettings(config.path, limits.body, limits.depth, self.upstream.supported_versions),
            clock=self.clock,
            legacy=self._legacy_handler(sessions),
            well_known=self.upstream.well_known(),
            metrics=self.upstream.metrics,
        )

    def _legacy_handler(self, sessions: SessionLayer) -> LegacyHandler:
        """A server that speaks Streamable HTTP has sessions of its own, and is passed through to."""
        forwarder = self.upstream.forwarder()
        if forwarder is None:
            return sessions
        old = OldServers(sessions, self.upstream.known, forwarder)
        passthrough = HttpPassthrough(forwarder, max_bytes=self.config.limits.message, old=old)
        return self._with_tasks(passthrough) if self.config.tasks.legacy_2025 else passthrough

    def _with_tasks(self, passthrough: HttpPassthrough) -> HttpTasks:
        """Adds 2025 tasks to sessions that are the upstream's own."""

        def make_part(session: PassedSession, owner: Owner) -> OwnersPart:
            def adopt() -> Adoption:
                return self.upstream.adoption(session, part)

            adopted = Adopted(adopt, self.runner.spawn)
            terms = self._task_terms(lists=not owner.is_anonymous)
            part = OwnersPart(
                TaskSession(self.tasks_2025, owner, session.facts.upstream, adopted.lease, terms), adopted
            )
            return part

        limits = self.config.limits
        tasks = HttpTasks(
            passthrough,
            PassedSessions(self.memory, make_part),
            self.runner,
            self.upstream.asking,
            self.clock,
            max_bytes=limits.message,
            max_depth=limits.depth,
        )
        self.runner.spawn(tasks.end_deferred)
        return tasks

    def _task_terms(self, *, lists: bool) -> TaskTerms:
        ttl = self.config.tasks.ttl
        return TaskTerms(lists, int(ttl.least * 1000), int(ttl.most * 1000), self.secret)

    def stdio_endpoint(self, writer: LineWriter) -> StdioEndpoint:
        limits = self.config.limits
        settings = StdioSettings(limits.message, limits.depth, self.upstream.supported_versions, limits.calls)
        tasks = self.task_grant(LOCAL_USER, lists=True)
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
    upstream = Upstream(config, policy, client, clock, metrics)
    pool = Pool(upstream.session, _pool_settings(config), clock, metrics)
    runner = Runner(pool, store, policy, clock, metrics)
    conversion = Conversion(
        runner,
        store,
        policy,
        clock,
        state_key=secret,
        upstream_era=upstream.era,
        max_calls=config.limits.calls,
    )
    listen = Listen(pool, store, policy, clock, metrics)
    polls = PollLimit(config.limits.polls_per_task, clock)
    bridge = Bridge(pool, conversion, upstream.era, upstream.supported_versions)
    changes = TaskChanges(store, runner, policy, clock, metrics)
    router = Router(bridge, TaskMethods(changes, policy, polls, clock), listen, metrics, clock)
    metrics.show("calls_in_flight", lambda: runner.in_flight)
    metrics.show("calls_parked", lambda: conversion.parked)
    metrics.show("listen_streams", lambda: listen.streams)
    metrics.show("upstream_sessions", lambda: pool.sessions)
    metrics.show("upstream_waiting", lambda: pool.waiting)
    operations = Operations(_reporter(store, pool), _scraper(store, metrics))
    tasks_2025 = Tasks2025(store, runner, changes, policy, polls, clock, max_calls=config.limits.calls)
    return Parts(
        config,
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
        memory=store,
    )


def _reporter(store: TaskStore, pool: Pool) -> Report:
    async def report() -> dict[str, str]:
        try:
            await store.check()
            state = "ok"
        except StoreError as exc:
            state = exc.message
        return {"store": state, "upstream": pool.health.words()}

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
    )


def open_store(config: Config, clock: Clock, metrics: Metrics) -> AbstractAsyncContextManager[Store]:
    directory, durability = config.store.directory, Durability(config.store.durability)
    if directory is None:
        return MemoryStore(clock)
    if config.is_stdio:
        return open_shared_directory(directory, durability, LOCAL_USER.key, clock, metrics)
    return DiskStore(directory, durability=durability, clock=clock, metrics=metrics)
