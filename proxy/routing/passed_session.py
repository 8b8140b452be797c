"""What the proxy knows of a legacy session that is the upstream's own, for the sake of 2025 tasks.

Above: `http_tasks`. Below: `task_session` (one for each owner that uses the session), `adopted`, and the
memory of the store, for what a restart must not lose. A session of which nothing is remembered is an ordinary
one: at 2025-11-25 on both sides, before an upstream without tasks. Contract section 5.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from proxy.eras.attribution import AskingTools, attribute
from proxy.eras.capabilities import ANY_CAPABILITIES, ClientCapabilities
from proxy.eras.tasks_2025 import NO_TASKS, VERSION, Granted, UpstreamTasks
from proxy.eras.to_modern import ServerInfo
from proxy.errors import StoreError
from proxy.logs import get_logger
from proxy.owners import Owner
from proxy.protocol import names
from proxy.protocol.envelope import RawObject, dumps, loads
from proxy.routing.adopted import Adopted, CallInFlight
from proxy.routing.in_flight import text_of
from proxy.routing.task_session import TaskSession
from proxy.stores.base import SessionMemory

MAX_SESSIONS: Final = 10_000  # in memory; a session costs little, and clients seldom end them
MAX_OWNERS: Final = 100  # of one session, that are kept in mind; a client has several as its token is renewed
MAX_ASKED: Final = 1_000  # the newest; of older ones no withdrawal is understood
KEEP_S: Final = 30 * 86_400.0  # in the store; no server keeps a session longer
_MCP: Final = "mcp-"
_OF_ONE_MESSAGE: Final = frozenset(
    {
        *("accept", "accept-encoding", "content-type", "content-length", "content-encoding", "expect"),
        *("host", "origin", "referer", "last-event-id", "range", "date"),
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "sec-fetch-user"),
    }
)
_KEY: Final = "session-2025 "
_END: Final = "session-end "

log = get_logger()


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """`upstream_version` is older than VERSION where we hold that towards the client. `has_tasks`: it was
    granted tasks; else it passes, though its version has them."""

    upstream_version: str = VERSION
    upstream: UpstreamTasks = NO_TASKS
    has_tasks: bool = True

    @property
    def is_held(self) -> bool:
        return self.upstream_version != VERSION


_ORDINARY: Final = SessionFacts()
_WITHOUT_TASKS: Final = SessionFacts(has_tasks=False)


@dataclass(eq=False, slots=True)
class PlainCall:
    """A call that passes through, as the rule for questions sees it."""

    method: str
    params: RawObject | bytes | None
    begun: float
    questions: int = 0
    id: int = -1

    @property
    def waiting(self) -> bool:
        """Whether it waits for the answer to a question already."""
        return self.questions > 0

    @property
    def name(self) -> str | None:
        """Looked for when a question comes: most calls are never asked about."""
        return None if self.params is None else text_of(self.params, names.NAME_MEMBER[self.method])


@dataclass(eq=False, slots=True)
class OwnersPart:
    """What one owner does in the session.

    `headers` are those of the owner's last message: its credentials, whatever their name. `asked` are the ids
    of questions on the GET stream that were taken for a task.
    """

    tasks: TaskSession
    adopted: Adopted
    headers: Sequence[tuple[str, str]] = ()
    asked: OrderedDict[int | str, None] = field(default_factory=OrderedDict)

    def is_of(self, headers: Sequence[tuple[str, str]]) -> bool:
        """Whether a message with these headers has the same credentials."""
        return not self.headers or credentials_in(self.headers) == credentials_in(headers)

    @property
    def is_idle(self) -> bool:
        return not self.adopted.in_use and self.tasks.channel is None

    def note_asked(self, id: int | str) -> None:
        """A question was taken for a task."""
        self.asked[id] = None
        if len(self.asked) > MAX_ASKED:
            self.asked.popitem(last=False)


@dataclass(eq=False, slots=True)
class PassedSession:
    """`id` is empty where the server has no sessions. `ended`: its client has sent DELETE. `capabilities` are
    what its client declared; any where that is not known, after a restart, or where it is no single client.
    `asked` are the open questions that came on the GET stream, with the calls that they were taken for.
    """

    id: str
    facts: SessionFacts
    info: ServerInfo
    parts: dict[Owner, OwnersPart] = field(default_factory=dict)
    plain: dict[PlainCall, None] = field(default_factory=dict)
    asked: OrderedDict[int | str, PlainCall] = field(default_factory=OrderedDict)
    ended: bool = False
    capabilities: ClientCapabilities = ANY_CAPABILITIES

    @property
    def has_calls(self) -> bool:
        """Whether a call of a task of ours runs here."""
        return any(part.adopted.in_use for part in self.parts.values())

    @property
    def is_idle(self) -> bool:
        return not self.plain and all(part.is_idle for part in self.parts.values())

    def note_asked(self, id: int | str, call: PlainCall) -> None:
        """A question on the GET stream was passed on, as one of this call."""
        self.note_answered(id)
        self.asked[id] = call
        call.questions += 1
        if len(self.asked) > MAX_ASKED:
            self.note_answered(next(iter(self.asked)))

    def note_answered(self, id: int | str) -> None:
        """Or withdrawn."""
        call = self.asked.pop(id, None)
        if call is not None:
            call.questions -= 1

    async def wait_unused(self) -> None:
        """Until no call of a task of ours runs here any more. It must have `ended`, so that none is added."""
        for part in list(self.parts.values()):
            await part.adopted.wait_unused()


class PassedSessions:
    """All that are known, by id. `make_part` begins an owner's part of a session."""

    def __init__(
        self, memory: SessionMemory, make_part: Callable[[PassedSession, Owner], OwnersPart]
    ) -> None:
        self._memory = memory
        self._make_part = make_part
        self._sessions: OrderedDict[str, PassedSession] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PassedSessions {len(self._sessions)}>"

    def known(self, session_id: str) -> PassedSession | None:
        """What is in memory."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._sessions.move_to_end(session_id)
        return session

    async def find(self, session_id: str) -> PassedSession:
        """What is known of it, maybe from before a restart. While the store is broken: it is ordinary."""
        session = self.known(session_id)
        if session is not None:
            return session
        try:
            facts = _facts_in(await self._memory.recall(_key(session_id)))
        except StoreError as exc:
            log.error("session_not_recalled", reason=exc.message)
            facts = _ORDINARY
        info = ServerInfo(facts.upstream_version, b"{}", None, None)  # what it said else is lost
        return self.known(session_id) or self._add(PassedSession(session_id, facts, info))

    async def begin(
        self, session_id: str, granted: Granted, capabilities: ClientCapabilities
    ) -> PassedSession:
        """A session that was just opened by a client that declared `capabilities`. What is not ordinary is
        remembered before the client is told."""
        facts = SessionFacts(granted.upstream_version, granted.upstream)
        info = replace(ServerInfo.parse(granted.result), version=granted.upstream_version)
        await self._remember(session_id, facts)
        known = self.known(session_id)
        if known is not None and known.facts == facts and not known.ended:  # as with servers without sessions
            return known
        session = PassedSession(session_id, facts, info)
        if session_id:
            session.capabilities = capabilities
        return self._add(session)

    async def begin_without_tasks(self, session_id: str) -> None:
        """One that was just opened, and not granted any: its client is none of ours."""
        await self._remember(session_id, _WITHOUT_TASKS)
        self._add(PassedSession(session_id, _WITHOUT_TASKS, ServerInfo(VERSION, b"{}", None, None)))

    async def _remember(self, session_id: str, facts: SessionFacts) -> None:
        """What is not ordinary. Where the server has no sessions, its next `initialize` may say otherwise."""
        if facts == _ORDINARY or not (session_id or facts.has_tasks):
            return
        try:
            await self._memory.remember(_key(session_id), _written(facts), keep_s=KEEP_S)
        except StoreError as exc:  # it works until we are restarted
            log.error("session_not_remembered", reason=exc.message)

    async def forget(self, session_id: str) -> None:
        """It is over. Nothing is lost if the store is broken: what it remembers expires."""
        session = self._sessions.pop(session_id, None)
        for part in session.parts.values() if session is not None else ():
            part.tasks.end()
        if session is not None and session.facts == _ORDINARY and not session.ended:
            return
        try:
            await self._memory.forget(_key(session_id))
            await self._memory.forget(_key(session_id, _END))
        except StoreError as exc:
            log.error("session_not_forgotten", reason=exc.message)

    async def defer_end(self, session: PassedSession) -> None:
        """Its client has ended it; the upstream is to be told later, maybe by the next process of ours."""
        session.ended = True
        for part in session.parts.values():
            part.tasks.end()
        try:
            await self._memory.remember(_key(session.id, _END), dumps(session.id), keep_s=KEEP_S)
        except StoreError as exc:  # then a restart leaves it to the upstream to end it
            log.error("session_end_not_remembered", reason=exc.message)

    async def deferred(self) -> list[str]:
        """The ids of sessions whose end an earlier process put off. Raises StoreError."""
        return [loads(value) for _, value in await self._memory.remembered(_END)]

    def part(
        self, session: PassedSession, owner: Owner, headers: Sequence[tuple[str, str]] | None = None
    ) -> OwnersPart:
        """The owner's; `headers` are those of a message of it that has come.

        Where the server has no sessions, messages of the anonymous owner may be those of several people with
        keys of their own: the calls of one must not be sent with the key of another.
        """
        parts = session.parts
        part = known = parts.get(owner)
        if part is None or (not session.id and headers is not None and not part.is_of(headers)):
            part = self._make_part(session, owner)
        if part is not known or len(parts) > 1:
            parts.pop(owner, None)
            parts[owner] = part  # the one that was used last goes last
        if headers is not None:
            part.headers = headers
        if len(parts) > MAX_OWNERS:
            del parts[next((other for other, one in parts.items() if one.is_idle and one is not part), owner)]
        return part

    def _add(self, session: PassedSession) -> PassedSession:
        self._sessions[session.id] = session
        while len(self._sessions) > MAX_SESSIONS:
            idle = next((s for s in self._sessions.values() if s.is_idle and s is not session), None)
            if idle is None:
                break
            del self._sessions[idle.id]
        return session


def asker_of(session: PassedSession, owner: Owner, asking: AskingTools) -> CallInFlight | None:
    """The call that a question on the GET stream of `owner` belongs to, by the contract's rule (section 2):
    that of a task of ours, or a `PlainCall`, which passes through."""
    part = session.parts.get(owner)
    ours = part.adopted.calls if part is not None else ()
    calls: list[CallInFlight] = sorted([*session.plain, *ours], key=lambda call: call.begun)
    return attribute(calls, asking)


def credentials_in(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """What a client's own messages carry and a call in its name needs, too: `Authorization`, cookies, keys of
    whatever name. What describes one message, or one hop, is left out."""
    found: dict[str, list[str]] = {}
    for key, value in headers:
        name = key.lower()
        if name not in _OF_ONE_MESSAGE and not name.startswith(_MCP):
            found.setdefault(name, []).append(value)
    return {name: ("; " if name == "cookie" else ", ").join(values) for name, values in found.items()}


def _key(session_id: str, kind: str = _KEY) -> str:
    return kind + hashlib.sha256(session_id.encode("utf-8", "surrogateescape")).hexdigest()


def _written(facts: SessionFacts) -> bytes:
    return dumps([facts.upstream_version, facts.upstream.tools, facts.upstream.list, facts.has_tasks])


def _facts_in(value: bytes | None) -> SessionFacts:
    if value is None:
        return _ORDINARY
    version, tools, lists, *more = loads(value)  # earlier versions wrote three
    return SessionFacts(version, UpstreamTasks(tools, lists), *more)
