"""What is known of sessions that are the upstream's own: kept in mind, remembered, and given up.

Contract sections 5 and 9.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from proxy.eras.attribution import AskingTools
from proxy.eras.capabilities import ANY_CAPABILITIES
from proxy.eras.tasks_2025 import NO_TASKS, VERSION, Granted, UpstreamTasks
from proxy.eras.to_modern import ServerInfo
from proxy.owners import Owner
from proxy.protocol import names
from proxy.routing import passed_session as module
from proxy.routing.passed_session import (
    MAX_ASKED,
    OwnersPart,
    PassedSession,
    PassedSessions,
    PlainCall,
    asker_of,
    credentials_in,
)
from proxy.stores.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.routing.bench import ADA, BOB
from tests.routing.bench_2025 import FakeChannel
from tests.routing.http_bench_2025 import TroubledMemory

pytestmark = pytest.mark.anyio

BOTH: Final = UpstreamTasks(tools=True, list=True)


class Tasks:
    """In the place of a `TaskSession`."""

    def __init__(self) -> None:
        self.channel: FakeChannel | None = None
        self.ended = 0

    def end(self) -> None:
        self.ended += 1


class Used:
    """In the place of an `Adopted`."""

    def __init__(self) -> None:
        self.in_use = False
        self.calls: list[PlainCall] = []


def part_of(session: PassedSession, owner: Owner) -> OwnersPart:
    tasks: Any = Tasks()
    adopted: Any = Used()
    return OwnersPart(tasks, adopted)


def plain(tool: str, begun: float) -> PlainCall:
    return PlainCall(names.TOOLS_CALL, b'{"name":"%s"}' % tool.encode(), begun)


def granted(version: str = VERSION, upstream: UpstreamTasks = NO_TASKS) -> Granted:
    result = b'{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}'
    return Granted(result, version, upstream)


def sessions_over(memory: TroubledMemory) -> PassedSessions:
    return PassedSessions(memory, part_of)


@pytest.fixture
def memory() -> TroubledMemory:
    return TroubledMemory(MemoryStore(ManualClock()))


@pytest.fixture
def sessions(memory: TroubledMemory) -> PassedSessions:
    return sessions_over(memory)


async def begun(sessions: PassedSessions, session_id: str = "s", *what: Any) -> PassedSession:
    return await sessions.begin(session_id, granted(*what), ANY_CAPABILITIES)


@pytest.mark.parametrize(
    ("version", "upstream"),
    [(VERSION, NO_TASKS), ("2025-06-18", NO_TASKS), (VERSION, BOTH), (VERSION, UpstreamTasks(list=True))],
)
async def test_after_a_restart_it_is_known_what_a_session_is(
    memory: TroubledMemory, version: str, upstream: UpstreamTasks
) -> None:
    """Contract section 5: its two versions, and what its server serves itself. What is ordinary costs no
    write."""
    before = await begun(sessions_over(memory), "s", version, upstream)
    after = await sessions_over(memory).find("s")
    assert after.facts == before.facts
    assert after.info.version == version
    is_ordinary = (version, upstream) == (VERSION, NO_TASKS)
    assert (await memory.remembered("") == []) is is_ordinary
    assert after.facts.is_held is (version != VERSION)


@pytest.mark.parametrize(("session_id", "is_remembered"), [("s", True), ("", False)])
async def test_that_a_session_has_no_tasks_is_remembered_where_it_is_a_session(
    sessions: PassedSessions, memory: TroubledMemory, session_id: str, is_remembered: bool
) -> None:
    """T25-CAP-002. Without sessions, the server's next `initialize` may say otherwise."""
    await sessions.begin_without_tasks(session_id)
    known = sessions.known(session_id)
    assert known is not None
    assert not known.facts.has_tasks
    again = await sessions_over(memory).find(session_id)
    assert again.facts.has_tasks is not is_remembered
    assert (await begun(sessions, session_id)).facts.has_tasks


async def test_what_an_earlier_version_remembered_is_understood(memory: TroubledMemory) -> None:
    await begun(sessions_over(memory), "s", "2025-06-18", BOTH)
    [(key, _)] = await memory.remembered("")
    await memory.remember(key, b'["2025-06-18",true,false]', keep_s=60)
    facts = (await sessions_over(memory).find("s")).facts
    assert facts == module.SessionFacts("2025-06-18", UpstreamTasks(tools=True), has_tasks=True)


async def test_no_session_id_is_in_a_key(sessions: PassedSessions, memory: TroubledMemory) -> None:
    """It may act as a secret."""
    session = await begun(sessions, "secret-id", "2025-06-18")
    await sessions.defer_end(session)
    keys = [key for key, _ in await memory.remembered("")]
    assert len(keys) == 2
    assert not any("secret-id" in key for key in keys)


async def test_what_is_over_is_remembered_no_more(sessions: PassedSessions, memory: TroubledMemory) -> None:
    session = await begun(sessions, "s", "2025-06-18")
    part = sessions.part(session, ADA)
    await sessions.defer_end(session)
    assert await sessions.deferred() == ["s"]
    await sessions.forget("s")
    assert await memory.remembered("") == []
    assert sessions.known("s") is None
    assert part.tasks.ended == 2  # type: ignore[attr-defined]
    await sessions.forget("unknown")


async def test_with_a_broken_store_sessions_work_until_a_restart(memory: TroubledMemory) -> None:
    """Contract section 9."""
    memory.broken = True
    sessions = sessions_over(memory)
    session = await begun(sessions, "s", "2025-06-18")
    assert session.facts.is_held
    await sessions.defer_end(session)
    assert session.ended
    assert not (await sessions_over(memory).find("s")).facts.is_held
    await sessions.forget("s")


async def test_a_session_that_is_opened_again_keeps_what_its_clients_do(sessions: PassedSessions) -> None:
    """As before a server without sessions. Of another kind, or after its end, it is another session."""
    session = await begun(sessions, "")
    part = sessions.part(session, ADA)
    assert await begun(sessions, "") is session
    assert sessions.part(session, ADA) is part
    assert await begun(sessions, "", "2025-06-18") is not session
    ended = await begun(sessions, "x")
    await sessions.defer_end(ended)
    assert await begun(sessions, "x") is not ended


async def test_of_the_sessions_in_mind_those_that_nobody_uses_go_first(
    sessions: PassedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lesson 21: bounded; work in flight is never swept."""
    monkeypatch.setattr(module, "MAX_SESSIONS", 4)
    used = await begun(sessions, "used")
    sessions.part(used, ADA).adopted.in_use = True  # type: ignore[misc]
    listens = await begun(sessions, "listens")
    sessions.part(listens, ADA).tasks.channel = FakeChannel()  # type: ignore[misc]
    calls = await begun(sessions, "calls")
    calls.plain[plain("a", 0.0)] = None
    await begun(sessions, "idle-1")
    assert sessions.known("idle-1")
    await begun(sessions, "idle-2")
    assert sessions.known("idle-1") is None
    assert all(sessions.known(one) for one in ("used", "listens", "calls", "idle-2"))
    busy = await begun(sessions, "idle-3")
    busy.plain[plain("a", 0.0)] = None
    await begun(sessions, "idle-4")
    assert sessions.known("idle-4")  # more than there should be, but nobody's work is lost


async def test_of_a_sessions_owners_those_that_do_nothing_go_first(
    sessions: PassedSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OWNERS", 3)
    session = await begun(sessions)
    sessions.part(session, ADA).adopted.in_use = True  # type: ignore[misc]
    sessions.part(session, BOB)
    sessions.part(session, Owner("c"))
    sessions.part(session, BOB)
    sessions.part(session, Owner("d"))
    assert [owner.key for owner in session.parts] == ["ada", "bob", "d"]
    for part in session.parts.values():
        part.adopted.in_use = True  # type: ignore[misc]
    kept = sessions.part(session, Owner("e"))
    assert Owner("e") not in session.parts  # served all the same
    assert isinstance(kept, OwnersPart)


# -- whose question it is -----------------------------------------------------------------------------


async def test_a_question_is_a_tasks_by_the_rule_alone(sessions: PassedSessions) -> None:
    """Contract section 2."""
    asking = AskingTools(lambda tool: tool == "confirm")
    session = await begun(sessions)
    assert asker_of(session, ADA, asking) is None
    part = sessions.part(session, ADA)
    assert asker_of(session, ADA, asking) is None
    ours, newer, older = _Call(begun=5.0), plain("plain", 7.0), plain("plain", 3.0)
    part.adopted.calls.append(ours)  # type: ignore[attr-defined]
    assert asker_of(session, ADA, asking) is ours
    assert asker_of(session, BOB, asking) is None
    session.plain[newer] = None
    assert asker_of(session, ADA, asking) is newer
    session.note_asked("q", newer)
    assert newer.waiting
    assert asker_of(session, ADA, asking) is ours
    session.note_answered("q")
    session.note_answered("q")
    assert not newer.waiting
    session.plain.clear()
    session.plain[older] = None
    assert asker_of(session, ADA, asking) is ours
    known = plain("confirm", 2.0)
    session.plain[known] = None
    assert asker_of(session, ADA, asking) is known


async def test_of_questions_that_plain_calls_wait_with_so_many_are_kept_in_mind(
    sessions: PassedSessions,
) -> None:
    session, call = await begun(sessions), plain("a", 0.0)
    for number in range(MAX_ASKED + 5):
        session.note_asked(number, call)
        session.note_asked(number, call)
    assert call.questions == len(session.asked) == MAX_ASKED


class _Call:
    """Of a task, as the session in which it runs sees it."""

    method = names.TOOLS_CALL
    name = "ours"
    waiting = False
    id = 1

    def __init__(self, begun: float) -> None:
        self.begun = begun


def test_only_so_many_questions_are_kept_in_mind() -> None:
    part = part_of(PassedSession("s", module.SessionFacts(), ServerInfo("", b"{}", None, None)), ADA)
    for number in range(MAX_ASKED + 5):
        part.note_asked(number)
    assert len(part.asked) == MAX_ASKED
    assert 4 not in part.asked
    assert MAX_ASKED + 4 in part.asked


# -- credentials --------------------------------------------------------------------------------------


def test_a_call_in_the_clients_name_carries_what_its_own_messages_carry() -> None:
    """Credentials of whatever name, but nothing of one message or one hop."""
    headers = [
        ("Authorization", "Bearer t"),
        ("Cookie", "a=1"),
        ("cookie", "b=2"),
        ("X-Api-Key", "k"),
        ("X-Many", "1"),
        ("x-many", "2"),
        ("User-Agent", "u"),
        ("Accept", "application/json"),
        ("Accept-Encoding", "gzip"),
        ("Content-Type", "application/json"),
        ("Content-Length", "5"),
        ("Host", "proxy"),
        ("Origin", "https://x"),
        ("Mcp-Session-Id", "s"),
        ("MCP-Protocol-Version", "2025-11-25"),
        ("Mcp-Param-Region", "eu"),
        ("Last-Event-ID", "1"),
        ("Connection", "keep-alive"),
        ("Transfer-Encoding", "chunked"),
    ]
    assert credentials_in(headers) == {
        "authorization": "Bearer t",
        "cookie": "a=1; b=2",
        "x-api-key": "k",
        "x-many": "1, 2",
        "user-agent": "u",
    }
