"""From the configuration to what speaks with the server: transports, sessions, what is known of it.

Above: `assembly` and `assembly_legacy`. One of the places where concrete classes are named. Contract
sections 2 and 11.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import ClientSession

from proxy import __version__
from proxy.assembly_auth import AuthParts
from proxy.clock import Clock
from proxy.config import Config
from proxy.eras.capabilities import ANY_CAPABILITIES, ClientCapabilities, request_meta
from proxy.eras.era import Era
from proxy.eras.to_modern import ServerInfo
from proxy.metrics import Metrics
from proxy.owners import Owner
from proxy.protocol import names
from proxy.protocol.envelope import dumps
from proxy.routing.adopted import Adoption
from proxy.routing.in_flight import FIRST_TASK_ID
from proxy.routing.own_server import Client
from proxy.routing.passthrough import Passthrough, TaskGrant
from proxy.routing.well_known import Documents, WellKnown
from proxy.tasks.policy import InputMode, Policy
from proxy.upstream.auto import AutoHttpTransport, KnownServer
from proxy.upstream.base import Transport
from proxy.upstream.forward import HttpForwarder
from proxy.upstream.health import Health
from proxy.upstream.http import AdoptedSession, HttpTransport
from proxy.upstream.lowered import LoweredTransport
from proxy.upstream.matching import MatchingTransport
from proxy.upstream.pending import AskingTools
from proxy.upstream.probe import ProbingTransport, UpstreamEra
from proxy.upstream.session import CLIENT_NAME, ChangeListener, LegacySession, TakeUp
from proxy.upstream.stdio import StdioTransport


class Upstream:
    """Makes transports and sessions with the configured server."""

    def __init__(
        self,
        config: Config,
        policy: Policy,
        client: ClientSession,
        clock: Clock,
        metrics: Metrics,
        auth: AuthParts,
    ) -> None:
        self.auth = auth
        self.metrics = metrics
        self.health = Health(clock)
        self._config = config
        self._client = client
        self._clock = clock
        self.asking = AskingTools(lambda tool: policy.for_tool(tool).input is InputMode.TASK)
        self.known = KnownServer()
        self.known_era = UpstreamEra(None if config.upstream.era == "auto" else Era(config.upstream.era))
        meta = request_meta(ClientCapabilities("{}", tasks=False), CLIENT_NAME, __version__)
        self.probe_params = dumps({names.META: meta})
        self.credentials = auth.credentials
        # No two requests to an HTTP server have the same id, whatever their sessions: some keep all streams
        # by the request's id alone (Python SDK 1.x with one event store), and would replay another's answer.
        self._ids = itertools.count(1 + secrets.randbelow(FIRST_TASK_ID // 2))
        self._task_ids = itertools.count(FIRST_TASK_ID + secrets.randbelow(FIRST_TASK_ID // 2))

    def era(self) -> Era | None:
        """What is known of the server's era."""
        return self.known_era.known

    def supported_versions(self) -> tuple[str, ...]:
        """Legacy clients are served before servers of either era."""
        return (*names.LEGACY_VERSIONS, *names.MODERN_VERSIONS)

    def transport(self, owner: Owner) -> Transport:
        """A transport that knows the upstream's era, or finds it out before it is started."""
        return ProbingTransport(
            lambda: self._plain_transport(owner),
            self.known_era,
            self.probe_params,
            self.auth.verdicts.held_up_within,
        )

    def _matching_transport(self, owner: Owner) -> Transport:
        """For one legacy client: plain before a legacy server, lowered before a modern one."""

        def make_session(capabilities: ClientCapabilities, on_stray: ChangeListener) -> LegacySession:
            return self.session(owner, capabilities, lambda method, params: None, on_stray)

        def make_lowered() -> Transport:
            return LoweredTransport(
                make_session,
                name=self._config.upstream.name,
                clock=self._clock,
                max_depth=self._config.limits.depth,
            )

        return MatchingTransport(
            lambda: self._plain_transport(owner),
            make_lowered,
            self.known_era,
            self.probe_params,
            self._config.limits.depth,
        )

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
                tells_last_words=self._config.is_stdio,
            )
        assert upstream.url is not None  # the configuration has one or the other
        return AutoHttpTransport(
            upstream.url,
            name=upstream.name,
            max_bytes=limits.message,
            max_depth=limits.depth,
            client=self._client,
            headers=lambda: self.credentials.headers(owner),
            verdicts=self.auth.verdicts,
            clock=self._clock,
            known=self.known,
            endpoint_prefix=upstream.endpoint_prefix,
        )

    def session(
        self,
        owner: Owner,
        capabilities: ClientCapabilities,
        on_change: ChangeListener,
        on_stray: ChangeListener | None = None,
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
            era=self.known_era,
            ids=self._ids if self._config.upstream.url is not None else None,
            has_headers=self._config.upstream.url is not None,
            on_stray=on_stray,
        )

    @staticmethod
    def info_of(version: str, server_info: bytes | None) -> ServerInfo:
        """What is still known of a server after a restart."""
        return ServerInfo(version, b"{}", server_info, None)

    def adoption(
        self,
        known: AdoptedSession,
        info: ServerInfo,
        headers: Callable[[], Mapping[str, str]],
        on_change: ChangeListener | None = None,
    ) -> Adoption:
        """For calls of tasks on a session over HTTP that a client, or an earlier process, has opened.
        `on_change` is told list changes and resource updates that come to them."""
        url, limits = self._config.upstream.url, self._config.limits
        assert url is not None  # such sessions are passed through to one
        transport = HttpTransport(
            url,
            name=self._config.upstream.name,
            max_bytes=limits.message,
            max_depth=limits.depth,
            client=self._client,
            headers=headers,
            verdicts=self.auth.verdicts,
            clock=self._clock,
            adopted=known,
        )
        session = self.adopted(
            transport,
            info,
            FIRST_TASK_ID,
            transport.take_up,
            self._task_ids,
            on_change=on_change,
            is_clients=not known.is_ours,
        )
        return Adoption(session, transport.listen)

    def adopted(
        self,
        transport: Transport,
        info: ServerInfo,
        first_id: int,
        take_up: TakeUp | None = None,
        ids: Iterator[int] | None = None,
        on_change: ChangeListener | None = None,
        is_clients: bool = True,
    ) -> LegacySession:
        """A session over a transport whose handshake is done, by its client or by an earlier process."""
        return LegacySession(
            transport,
            name=self._config.upstream.name,
            capabilities=ANY_CAPABILITIES,
            client_version=__version__,
            asking=self.asking,
            clock=self._clock,
            max_depth=self._config.limits.depth,
            start_timeout_s=self._config.upstream.start_timeout,
            on_change=on_change or (lambda method, params: None),
            adopted=info,
            first_id=first_id,
            ids=ids,
            take_up=take_up,
            is_clients=is_clients,
        )

    def forwarder(self) -> HttpForwarder | None:
        """Passes requests on to an HTTP server as they are; None where there is none, or where what clients
        send is for us alone. Then sessions are held here, too: to the server all clients are one."""
        upstream = self._config.upstream
        if upstream.url is None or self.auth.verdicts.is_ours:
            return None
        return HttpForwarder(
            upstream.url,
            name=upstream.name,
            client=self._client,
            health=self.health,
            verdicts=self.auth.verdicts,
        )

    def well_known(self) -> Documents | None:
        """The documents that belong to an HTTP server, or to us."""
        forwarder, url = self.forwarder(), self._config.upstream.url
        if forwarder is None or url is None:
            return self.auth.metadata
        urls = self.auth.admission.urls
        return WellKnown(forwarder, path=self._config.path, upstream_path=urlsplit(url).path, urls=urls)

    def passthrough(self, owner: Owner, client: Client, tasks: TaskGrant | None) -> Passthrough:
        """The session of one legacy client with a server of its own."""
        return Passthrough(
            lambda: self._matching_transport(owner),
            client,
            name=self._config.upstream.name,
            clock=self._clock,
            max_depth=self._config.limits.depth,
            start_timeout_s=self._config.upstream.start_timeout,
            asking=self.asking,
            health=self.health,
            tasks_2025=tasks,
        )
