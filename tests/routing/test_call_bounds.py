"""The bound on calls: whatever they are and wherever they run, counted once and together, and given back.

Contract section 8, "Bounds"; docs/limits.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any, Final

import anyio
import pytest

from proxy.errors import UpstreamClosed
from proxy.owners import Owner
from proxy.protocol import names
from tests.routing.bench import ADA, ASKABLE, BOB, Bench, Client
from tests.routing.bench_2025 import YES, Bench2025, bench_2025
from tests.routing.fake_server import TEXT
from tests.routing.piped_2025 import layered
from tests.routing.session_bench import IDLE_S, STREAM, HttpClient, SessionBench
from tests.upstream.fake_transport import FakeTransport, Sent

pytestmark = pytest.mark.anyio

EVE: Final = Owner("eve")
OWN_TOOLS: Final[dict[str, Any]] = {"requests": {"tools": {"call": {}}}}


@dataclass(eq=False)
class Held:
    """A call in progress. `end` has the server answer it, `die` has the server die; `task` is its id."""

    end: Callable[[], None]
    die: Callable[[], None]
    hang_up: Callable[[], None] | None = None
    id: Any = None
    task: str = ""


@dataclass(eq=False)
class Caller:
    """One owner, with a modern client and a session that we hold, before `server`."""

    at: Scene
    owner: Owner
    http: HttpClient
    server: FakeTransport

    @property
    def modern(self) -> Client:
        return self.at.rig.client(owner=self.owner)

    async def hold(self, kind: str) -> Held:
        return await getattr(self, f"_hold_{kind}")()  # type: ignore[no-any-return]

    async def refused(self, kind: str) -> tuple[int, str]:
        """Status and words of the refusal of one more. Nothing reaches the server."""
        seen = self.at.rig.server.calls_seen, len(self.server.sent)
        if kind in ("task", "blocking", "parked", "list"):
            method, params = self._modern(kind)
            status, error = await self._modern_client(kind).start(method, params).error()
            told = int(status), str(error["message"])
        else:
            answer = await self.http.request(*self._legacy(kind)).refused()
            told = answer[0], answer[2]
        assert (self.at.rig.server.calls_seen, len(self.server.sent)) == seen
        return told

    def _modern_client(self, kind: str) -> Client:
        return self.modern if kind == "task" else self.modern.but(capabilities=ASKABLE)

    @staticmethod
    def _modern(kind: str) -> tuple[str, dict[str, Any]]:
        return (names.TOOLS_LIST, {}) if kind == "list" else (names.TOOLS_CALL, {"name": "slow"})

    @staticmethod
    def _legacy(kind: str) -> tuple[str, dict[str, Any]]:
        if kind == "held_list":
            return names.TOOLS_LIST, {}
        return names.TOOLS_CALL, {"name": "slow", **({"task": {}} if kind == "held_task" else {})}

    async def _hold_task(self) -> Held:
        task, call = await self.at.rig.task(self.modern)
        return Held(call.answer, call.wire.break_off, None, None, task)

    async def _hold_blocking(self) -> Held:
        sent = self._modern_client("blocking").call("slow")
        call = await self.at.rig.server.next_call()
        return Held(call.answer, call.wire.break_off, sent.hang_up)

    async def _hold_parked(self) -> Held:
        sent = self._modern_client("parked").call("slow")
        call = await self.at.rig.server.next_call()
        call.elicit()
        await self.at.rig.pass_time(0.05)
        assert (await sent.result())["resultType"] == "input_required"
        return Held(call.answer, call.wire.break_off)

    async def _hold_held(self) -> Held:
        sent, response = await self._at_server("held")
        return Held(lambda: self.server.answer(sent), self._die, response.hang_up, self.http.next_id)

    async def _hold_held_task(self) -> Held:
        """Its call runs on the session's own server."""
        sent, response = await self._at_server("held_task")
        made = (await response.ended()).messages[-1]["result"]["task"]
        return Held(lambda: self.server.answer(sent, TEXT), self._die, None, None, made["taskId"])

    async def _at_server(self, kind: str) -> tuple[Sent, Any]:
        before = len(self.server.of(names.TOOLS_CALL))
        response = self.http.request(*self._legacy(kind))
        return await self.server.asked(names.TOOLS_CALL, before + 1), response

    def _die(self) -> None:
        self.server.die(UpstreamClosed("upstream 'fake' died"))


@dataclass(eq=False)
class Scene:
    it: Bench2025
    layer: SessionBench
    callers: dict[Owner, Caller] = field(default_factory=dict)

    @property
    def rig(self) -> Bench:
        return self.it.rig

    @property
    def held(self) -> tuple[int, int]:
        """Calls, and requests whose HTTP client has gone."""
        return self.rig.calls.held, self.layer.layer._requests.held

    async def caller(self, owner: Owner, **capabilities: Any) -> Caller:
        http = await self.layer.client(owner=owner).initialize(tools={}, **capabilities)
        return Caller(self, owner, http, self.layer.server)


@asynccontextmanager
async def scene(total: int, per_owner: int | None = None) -> AsyncIterator[Scene]:
    async with bench_2025(calls=(total, per_owner)) as it, layered(it) as layer:
        yield Scene(it, layer)


KINDS: Final = ("task", "blocking", "parked", "held", "held_task")
MORE: Final = (*KINDS, "list", "held_list")


@pytest.mark.parametrize("mixture", list(combinations_with_replacement(KINDS, 2)), ids="+".join)
async def test_an_owner_at_its_bound_is_refused_whatever_comes_next_and_another_is_served(
    mixture: tuple[str, str],
) -> None:
    """SEC-003, TOOL-004, T25-SEC-005: 429, in the status also where an event stream would be answered."""
    async with scene(total=10, per_owner=2) as at:
        ada = await at.caller(ADA)
        held = [await ada.hold(kind) for kind in mixture]
        for kind in MORE:
            status, words = await ada.refused(kind)
            assert (kind, status, "2 calls of yours" in words) == (kind, 429, True)
            assert "(limits.calls_per_owner)" in words
        bob = await at.caller(BOB)
        for kind in ("task", "held"):
            held.append(await bob.hold(kind))
        assert at.held == (4, 0)
        held.pop(0).end()
        await at.rig.settle()
        held.append(await ada.hold("held"))
        for one in held:
            one.end()
        await at.rig.settle()
        assert at.held == (0, 0)


async def test_all_owners_together_are_refused_what_is_over_the_total() -> None:
    """SEC-003."""
    async with scene(total=3) as at:
        for owner, kind in ((ADA, "task"), (BOB, "held"), (BOB, "held_task")):
            at.callers.setdefault(owner, await at.caller(owner))
            await at.callers[owner].hold(kind)
        eve = await at.caller(EVE)
        for kind in MORE:
            status, words = await eve.refused(kind)
            assert (kind, status, "3 calls are in progress (limits.calls)" in words) == (kind, 429, True)


async def test_who_has_as_many_calls_as_may_be_still_looks_after_tasks() -> None:
    """SEC-003, I6: in both dialects, in a new session, too, and with more waits than there may be calls."""
    async with scene(total=10, per_owner=2) as at:
        ada = await at.caller(ADA)
        mine, asking = (await ada.hold("held_task")).task, ada.modern.call("ask_first")
        call = await at.rig.server.next_call()
        question = call.elicit()
        await at.rig.settle()
        task = (await asking.result())["taskId"]
        assert (await ada.modern.get(mine))["status"] == "working"
        [key] = (await ada.modern.get(task))["inputRequests"]
        again = await at.caller(ADA)
        for one in (ada.http, again.http):
            assert (await one.request(names.TASKS_GET, {"taskId": mine}).ended()).status == 200
            listed = (await one.request(names.TASKS_LIST, {}).ended()).messages[-1]["result"]["tasks"]
            assert {shown["taskId"] for shown in listed} == {mine, task}
        waiting = [again.http.request(names.TASKS_RESULT, {"taskId": task}) for _ in range(3)]
        await at.rig.settle()
        assert (await ada.refused("held"))[0] == 429
        await ada.modern.update(task, {key: YES})
        assert await question.answer() == YES
        call.answer(TEXT)
        for response in waiting:
            assert (await response.ended()).messages[-1]["result"]["content"] == TEXT["content"]
        await ada.modern.cancel(mine)
        await at.rig.settle()
        assert at.held == (0, 0)


# ----------------------------------------------------------------------------------- given back


async def cancel(ada: Caller, held: Held) -> None:
    if held.task:
        await ada.modern.cancel(held.task)
    else:
        await ada.http.post({"method": names.CANCELLED, "params": {"requestId": held.id}}).ended()


async def hang_up(ada: Caller, held: Held) -> None:
    assert held.hang_up is not None
    held.hang_up()


async def die(ada: Caller, held: Held) -> None:
    held.die()


async def delete(ada: Caller, held: Held) -> None:
    assert (await ada.http.delete().ended()).status == 200


async def wait(ada: Caller, held: Held) -> None:
    await ada.at.rig.pass_time(600)  # mrtr_wait


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *((kind, die) for kind in KINDS),
        ("task", cancel),
        ("held_task", cancel),
        ("held", cancel),
        ("held", delete),
        ("blocking", hang_up),
        ("parked", wait),
    ],
)
async def test_a_place_is_given_back_however_the_call_ends(
    kind: str, how: Callable[[Caller, Held], Awaitable[None]]
) -> None:
    """I6."""
    async with scene(total=10, per_owner=1) as at:
        ada = await at.caller(ADA)
        held = await ada.hold(kind)
        assert at.held == (1, 0)
        await how(ada, held)
        await at.rig.settle()
        assert at.held == (0, 0)
        await ada.hold("task")


async def test_a_call_in_a_session_keeps_its_place_when_its_client_hangs_up() -> None:
    """HTTP-063: it goes on at the server."""
    async with scene(total=10, per_owner=1) as at:
        ada = await at.caller(ADA)
        held = await ada.hold("held")
        await hang_up(ada, held)
        await at.rig.settle()
        assert (await ada.refused("task"))[0] == 429
        held.end()
        await at.rig.settle()
        assert at.held == (0, 0)


@pytest.mark.parametrize("kind", ["modern", "2025"])
async def test_a_task_that_could_not_be_stored_has_no_place(kind: str) -> None:
    async with scene(total=10, per_owner=1) as at:
        ada = await at.caller(ADA)
        at.rig.store.broken = True
        if kind == "modern":
            await ada.modern.call("required_this").error()
        else:
            await ada.http.request(*ada._legacy("held_task")).ended()
        assert at.held == (0, 0)


async def test_calls_that_come_at_once_do_not_pass_the_bound_while_they_are_stored() -> None:
    """Each is counted from when it is let in, not from when it is sent."""
    async with scene(total=10, per_owner=2) as at:
        ada = await at.caller(ADA)
        at.rig.store.gate = anyio.Event()
        sent = [ada.modern.call("at_once") for _ in range(4)]
        sent_2025 = ada.http.request(*ada._legacy("held_task"))
        await at.rig.settle()
        at.rig.store.gate.set()
        await at.rig.settle()
        assert sorted(one.answered for one in sent) == [False, False, True, True]
        assert (await sent_2025.refused())[0] == 429


async def test_modern_calls_also_take_the_place_of_what_nobody_has_waited_for_for_minutes() -> None:
    """I6: it is one bound for all."""
    async with scene(total=1) as at:
        bob = await at.caller(BOB)
        await hang_up(bob, await bob.hold("held"))
        await at.rig.pass_time(300)
        held = await (await at.caller(ADA)).hold("task")
        assert at.held == (1, 0)
        held.end()


# -------------------------------------------------------------------------------- what is no call


async def wait_for_result(ada: Caller, task: str) -> Any:
    """A wait for its result in a session of its own, whose client hangs up."""
    waiting = ada.http.request(names.TASKS_RESULT, {"taskId": task})
    await ada.at.rig.pass_time(10)  # until the stream begins
    assert waiting.headers["content-type"] == STREAM
    waiting.hang_up()
    await ada.at.rig.settle()
    return waiting


async def test_a_wait_whose_client_has_gone_counts_as_a_request_until_it_has_its_answer() -> None:
    """HTTP-063, F24: the client may come back for it."""
    async with scene(total=10, per_owner=1) as at:
        ada = await at.caller(ADA)
        held = await ada.hold("held_task")
        waiting = await wait_for_result(ada, held.task)
        assert at.held == (1, 1)
        back = ada.http.get(waiting.last_id)
        await at.rig.pass_time(2 * IDLE_S)
        assert at.held == (1, 1)
        held.end()
        assert (await back.ended()).messages[-1]["result"]["content"] == TEXT["content"]
        assert at.held == (0, 0)


async def test_a_wait_that_nobody_has_listened_to_for_long_ends_and_the_task_goes_on() -> None:
    """I6: who asks again and again, and hangs up each time, does not run out of requests."""
    async with scene(total=10, per_owner=1) as at:
        ada = await at.caller(ADA)
        held = await ada.hold("held_task")
        waiting = await wait_for_result(ada, held.task)
        await at.rig.pass_time(IDLE_S / 2)
        assert at.held == (1, 1)
        await at.rig.pass_time(IDLE_S)
        assert at.held == (1, 0)
        assert ada.server.of(names.CANCELLED) == []
        told = (await ada.http.get(waiting.last_id).ended()).messages[-1]
        assert told["error"]["message"] == "Request cancelled"
        held.end()
        told = (await ada.http.request(names.TASKS_RESULT, {"taskId": held.task}).ended()).messages[-1]
        assert told["result"]["content"] == TEXT["content"]


async def test_what_seemed_to_be_for_our_tasks_and_is_for_the_server_is_a_call() -> None:
    """Contract section 2: a tool that the server runs as a task of its own."""
    async with scene(total=10, per_owner=1) as at:
        ada = await at.caller(ADA, tasks=OWN_TOOLS)
        first = ada.http.request(*ada._legacy("held_task"))
        listing = await ada.server.asked(names.TOOLS_LIST)
        tool = {"name": "slow", "execution": {"taskSupport": "required"}}
        ada.server.answer(listing, {"tools": [tool]})
        call = await ada.server.asked(names.TOOLS_CALL)
        assert at.held == (1, 0)
        assert (await ada.refused("task"))[0] == 429
        assert (await ada.refused("held_task"))[0] == 429
        ada.server.answer(call, {"task": {"taskId": "theirs"}})
        await first.ended()
        assert at.held == (0, 0)
