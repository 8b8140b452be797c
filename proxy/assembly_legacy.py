"""What legacy clients are served from: sessions that pass through or are held here, and their 2025 tasks.

Above: `assembly`. One of the places where concrete classes are named. Contract sections 5, 6 and 9.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from proxy.assembly_upstream import Upstream
from proxy.clock import Clock
from proxy.config import Config
from proxy.eras import tasks_2025
from proxy.errors import TaskNotFound
from proxy.limits import Gauge
from proxy.owners import Owner
from proxy.protocol import jsonrpc
from proxy.routing.adopted import Adopted, Adoption
from proxy.routing.http_passthrough import HttpPassthrough
from proxy.routing.http_tasks import HttpTasks
from proxy.routing.legacy import LegacyHandler
from proxy.routing.live import Place
from proxy.routing.old_servers import OldServers
from proxy.routing.own_server import Client
from proxy.routing.passed_session import OwnersPart, PassedSession, PassedSessions, credentials_in
from proxy.routing.passthrough import Passthrough, TaskGrant
from proxy.routing.recovery import PlaceOf, Recovery
from proxy.routing.runner import Runner
from proxy.routing.session_layer import SessionLayer
from proxy.routing.task_session import TaskSession, TaskTerms
from proxy.routing.tasks_2025 import Tasks2025
from proxy.stores.base import Store
from proxy.tasks.lost_call import CallTrace
from proxy.tasks.policy import Policy
from proxy.tasks.task import Task
from proxy.upstream.http import AdoptedSession


@dataclass(eq=False, slots=True)
class LegacyParts:
    """`passed` are the sessions that are the upstream's own; `_resumed` those that an earlier process of ours
    opened, and in which calls of its tasks may go on; `_taken_up` its tasks whose calls may go on in those of
    clients, by session."""

    config: Config
    clock: Clock
    secret: bytes
    store: Store
    upstream: Upstream
    runner: Runner
    tasks: Tasks2025
    calls: Gauge
    requests: Gauge
    passed: PassedSessions = field(init=False)
    http_tasks: HttpTasks | None = None
    _resumed: dict[tuple[Owner, str | None], Adopted] = field(default_factory=dict)
    _taken_up: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.passed = PassedSessions(self.store, self._owners_part)

    # -- tasks --------------------------------------------------------------------------------------

    def _terms(self, *, lists: bool) -> TaskTerms:
        ttl = self.config.tasks.ttl
        return TaskTerms(lists, int(ttl.least * 1000), int(ttl.most * 1000), self.secret)

    def task_grant(self, owner: Owner, *, lists: bool) -> TaskGrant | None:
        """What gives a session with a server of its own 2025 tasks; None where they are switched off."""
        if not self.config.tasks.legacy_2025:
            return None
        terms = self._terms(lists=lists)

        def grant(asked: bytes | None, result: bytes, place: Place) -> tuple[bytes, TaskSession | None]:
            granted = tasks_2025.grant(tasks_2025.asked_version(asked), result, lists=lists)
            if granted is None:
                return result, None
            capabilities = tasks_2025.declared_by(asked)
            return granted.result, TaskSession(
                self.tasks, owner, granted.upstream, place, terms, capabilities
            )

        return TaskGrant(grant, self.upstream.adopted)

    def _owners_part(self, session: PassedSession, owner: Owner) -> OwnersPart:
        def adopt() -> Adoption:
            known = AdoptedSession(session.id or None, session.facts.upstream_version)
            return self.upstream.adoption(known, session.info, lambda: self._headers(part, owner), tell)

        def tell(method: str, params: bytes | None) -> None:
            """What comes to a call of a task, and is the client's own matter."""
            if part.tasks.channel is not None:
                part.tasks.channel.send(jsonrpc.notification(method, params))

        adopted = Adopted(adopt, self.runner.spawn)
        terms = self._terms(lists=not owner.is_anonymous)
        part = OwnersPart(
            TaskSession(
                self.tasks, owner, session.facts.upstream, adopted.lease, terms, session.capabilities
            ),
            adopted,
        )
        return part

    def _headers(self, part: OwnersPart, owner: Owner) -> dict[str, str]:
        """The client's own, with the latest of its owner's tokens that may be good, whatever session it came
        in (contract section 8)."""
        latest = {name.lower(): value for name, value in self.upstream.credentials.headers(owner).items()}
        return {**credentials_in(part.headers), **latest}

    # -- clients over HTTP --------------------------------------------------------------------------

    def session_layer(self) -> SessionLayer:
        """Holds the sessions of clients over HTTP, where the server has none of its own."""

        def make_server(owner: Owner, client: Client) -> Passthrough:
            return self.upstream.passthrough(
                owner, client, self.task_grant(owner, lists=not owner.is_anonymous)
            )

        limits = self.config.limits
        return SessionLayer(
            make_server,
            self.clock,
            max_sessions=limits.sessions,
            max_per_owner=limits.per_owner("sessions", has_others=self.config.faces_network),
            calls=self.calls,
            requests=self.requests,
            idle_s=limits.session_idle,
        )

    def handler(self, sessions: SessionLayer) -> LegacyHandler:
        """A server that speaks Streamable HTTP has sessions of its own, and is passed through to."""
        forwarder, limits = self.upstream.forwarder(), self.config.limits
        if forwarder is None:
            return sessions
        upstream = self.upstream
        old = OldServers(sessions, upstream.known, forwarder, upstream.known_era, upstream.probe_params)
        passthrough = HttpPassthrough(forwarder, max_bytes=limits.message, old=old)
        if not self.config.tasks.legacy_2025:
            return passthrough
        self.http_tasks = HttpTasks(
            passthrough,
            self.passed,
            self.runner,
            self.upstream.asking,
            self.clock,
            max_bytes=limits.message,
            max_depth=limits.depth,
        )
        return self.http_tasks

    # -- what an earlier process left -----------------------------------------------------------------

    async def recover(self, policy: Policy) -> None:
        """Take up its tasks, of whatever dialect; then end sessions whose end it put off for them."""
        can_resume = self.config.upstream.url is not None
        place_of: PlaceOf | None = self._place_of if can_resume else None
        recovery = Recovery(
            self.store,
            self.runner,
            policy,
            self.upstream.credentials,
            self.clock,
            place_of,
            self.upstream.metrics,
        )
        await recovery.run()
        if self.http_tasks is not None:
            await self.http_tasks.end_deferred(self._tasks_ended)

    async def _place_of(self, owner: Owner, task: Task, trace: CallTrace) -> Place:
        if not trace.is_ours:
            self._taken_up.setdefault(trace.session_id or "", []).append(task.id)
            session = await self.passed.find(trace.session_id or "")
            return self.passed.part(session, owner).adopted.lease
        known = AdoptedSession(trace.session_id, trace.version, is_ours=True)
        info = self.upstream.info_of(trace.version, task.server_info)

        def adopt() -> Adoption:
            return self.upstream.adoption(known, info, lambda: self.upstream.credentials.headers(owner))

        key = owner, trace.session_id
        return self._resumed.setdefault(key, Adopted(adopt, self.runner.spawn)).lease

    async def _tasks_ended(self, session_id: str) -> None:
        """See `http_tasks.TasksEnded`. Their calls may wait for the owner's token, and use no session yet."""
        for task_id in self._taken_up.pop(session_id, ()):
            with suppress(TaskNotFound):
                await self.tasks.ended(task_id)
