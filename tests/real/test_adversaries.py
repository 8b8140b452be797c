"""Two owners and an anonymous one try each other's tasks, questions, states, cursors, sessions and streams,
in every method of both dialects: nothing is read, nothing is changed, and what is another's looks, byte by
byte, like what never was. Issue 6; contract section 8.
"""

from __future__ import annotations

import itertools
import random
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import pytest
from aiohttp import web

from proxy.owners import owner_of
from proxy.protocol import list_cursor, names
from proxy.protocol.list_cursor import ListPosition
from tests.real.adversaries import (
    ASKABLE,
    RID,
    TASK_PROBES,
    YES,
    Party,
    Probe,
    Told,
    modern_probe,
    unknown_task,
)
from tests.real.owned_http import well
from tests.real.proxy_process import ProxyProcess
from tests.real.stdio_process import StdioProcess, proxied
from tests.real.waiting import asked_until
from tests.setup_tools import TESTS
from tests.upstream.fake_http import FakeHttp, Seen, is_request

pytestmark = pytest.mark.anyio

ASKING: Final = [sys.executable, str(TESTS / "real" / "upstreams" / "asking.py")]
SETTINGS: Final[Mapping[str, Any]] = {
    "tasks": {
        "threshold": "100ms",
        "ttl": {"least": "10ms"},
        "tools": [{"match": "ask_task", "input": "task"}],
    },
    "limits": {"failed_lookups": "100000/s", "polls_per_task": "100000/s"},
}
LONG_S: Final = 600


@dataclass
class Scene:
    """A proxy and those who are before it. What `ada` has is what the others are after."""

    proxy: ProxyProcess
    ada: Party
    bob: Party
    nobody: Party
    tasks: dict[str, list[str]] = field(default_factory=dict)

    @property
    def parties(self) -> list[Party]:
        return [self.ada, self.bob, self.nobody]

    @property
    def attackers(self) -> list[Party]:
        return [self.bob, self.nobody]

    def others(self, party: Party) -> Sequence[tuple[Party, str]]:
        """Each task of the others, and whose it is."""
        return [(one, task) for one in self.parties if one is not party for task in self.tasks[one.name]]


@asynccontextmanager
async def scene(
    home: Path, upstream: str | Sequence[str], settings: Mapping[str, Any] = SETTINGS
) -> AsyncIterator[Scene]:
    """Each party has a session, and tasks of both dialects that run and that have ended."""
    proxy = ProxyProcess(home, upstream, settings)
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    try:
        await proxy.start()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            made = [
                Party(name, proxy.url, http, is_anonymous=name == "nobody")
                for name in ("ada", "bob", "nobody")
            ]
            ada, bob, nobody = made
            it = Scene(proxy, ada, bob, nobody)
            for party in made:
                await party.open_session()
                it.tasks[party.name] = [
                    await party.task(seconds=LONG_S),
                    await party.task(seconds=0.3),
                    await party.task_2025(seconds=LONG_S),
                    await party.task_2025(seconds=0),
                ]
                await ended(party, it.tasks[party.name][1])
                await ended(party, it.tasks[party.name][3])
            yield it
    finally:
        await proxy.stop()
        print(f"--- {proxy.log}\n{proxy.program.tail()}")


async def ended(party: Party, task_id: str) -> None:
    """Wait until it is completed, and see that its owner can read what the others must not."""

    def is_over(state: dict[str, Any]) -> bool:
        return bool(state["status"] == "completed")

    await asked_until(lambda: party.state_of(task_id), is_over, "the task is completed")
    found = await party.modern(names.TASKS_GET, {"taskId": task_id})
    assert party.secret in str(found.result["result"])


async def see_no_difference(scene: Scene, probes: Mapping[str, Probe]) -> None:
    """Each party names each task of each other one, and one that never was."""
    for (name, probe), attacker in itertools.product(probes.items(), scene.parties):
        never = await probe(attacker, unknown_task())
        for victim, task in scene.others(attacker):
            assert await probe(attacker, task) == never, f"{name}: {attacker.name} sees {victim.name}'s"


async def states(scene: Scene) -> dict[str, Any]:
    return {task: await p.state_of(task) for p in scene.parties for task in scene.tasks[p.name]}


def see_nothing_read(scene: Scene) -> None:
    """Of no owner anything in what the others were ever told."""
    for reader in scene.parties:
        heard = b"\n".join(reader.heard)
        for victim, task in scene.others(reader):
            assert victim.secret.encode() not in heard, f"{reader.name} has read {victim.name}'s"
            assert task.encode() not in heard, f"{reader.name} was told of {victim.name}'s {task}"


# -- tasks --------------------------------------------------------------------------------------------


async def test_tasks_before_a_stdio_server_are_their_owners_alone(tmp_path: Path) -> None:
    """I5, TX-SEC-002, T25-SEC-001, AUTH-009, SEC-004, TX-NOT-003: with questions, states, cursors, sessions,
    event ids."""
    async with scene(tmp_path, ASKING) as it:
        ada = it.ada
        asking = await ada.task("ask_task")
        it.tasks["ada"].append(asking)
        [key] = (await ada.state_of(asking))["inputRequests"]
        before = await states(it)
        probes = {
            **TASK_PROBES,
            "tasks/update of the key": modern_probe(names.TASKS_UPDATE, inputResponses={key: YES}),
        }
        await see_no_difference(it, probes)
        await _lists_are_ones_own(it)
        await _states_are_ones_own(it)
        await _sessions_are_ones_own(it)
        await _streams_tell_ones_own_alone(it, asking, key)
        after = await states(it)
        assert before.pop(asking)["status"] != after[asking]["status"]  # its owner has answered it
        assert {task: after[task] for task in before} == before
        see_nothing_read(it)
        await it.proxy.terminate()
        await _the_local_user_finds_nothing(it, tmp_path)


async def _lists_are_ones_own(it: Scene) -> None:
    """T25-LST-*: nobody sees another's, also by its cursor, which is no better than one that was made up."""
    secret = (it.proxy.home / "store" / "secret").read_bytes()
    owner = owner_of(it.ada.credential["Authorization"], secret)
    cursor = list_cursor.seal(secret, owner.key, ListPosition(after=it.tasks["ada"][0]))
    shown = (await it.ada.legacy(names.TASKS_LIST, {"cursor": cursor})).result["tasks"]
    assert {task["taskId"] for task in shown} >= {it.tasks["ada"][1]}  # it is a cursor
    for attacker in it.attackers:
        made_up = await attacker.legacy(names.TASKS_LIST, {"cursor": cursor[::-1]})
        assert await attacker.legacy(names.TASKS_LIST, {"cursor": cursor}) == made_up
    listed = (await it.bob.legacy(names.TASKS_LIST)).result["tasks"]
    assert {task["taskId"] for task in listed} == set(it.tasks["bob"])
    assert "error" in (await it.nobody.legacy(names.TASKS_LIST)).message


async def _states_are_ones_own(it: Scene) -> None:
    """MRTR-009: a state of another is like one that was made up, and its owner can still use it."""
    call = {"name": "ask", "arguments": it.ada.arguments()}
    asked = (await it.ada.modern(names.TOOLS_CALL, call, ASKABLE)).result
    answers = dict.fromkeys(asked["inputRequests"], YES)

    async def retry(party: Party, state: str) -> Told:
        retried = {**call, "requestState": state, "inputResponses": answers}
        return await party.modern(names.TOOLS_CALL, retried, ASKABLE)

    state: str = asked["requestState"]
    for attacker in it.attackers:
        assert await retry(attacker, state) == await retry(attacker, state[4:8] + state[:-4])
    assert "Mallory" in str((await retry(it.ada, state)).result)


async def _sessions_are_ones_own(it: Scene) -> None:
    """SEC-004, HTTP-070: another's session is one that never was, for every method."""
    ada, never = it.ada, "mcp-taskproxy-" + secrets.token_urlsafe(24)
    async with ada.events("GET", headers=ada.in_session(Accept="text/event-stream")) as stream:
        question_task = await ada.task_2025("ask_task")
        question = await stream.until(names.ELICITATION_CREATE)
        event_id = stream.ids[-1] if stream.ids else "0" * 12 + "-0-1"
        for attacker in it.attackers:

            async def probe(session: str, attacker: Party = attacker) -> list[Told]:
                said = attacker.in_session(session)
                listen = {**said, "Accept": "text/event-stream"}
                return [
                    await attacker.legacy(names.TOOLS_LIST, None, session),
                    await attacker.legacy(names.TOOLS_CALL, {"name": "nap"}, session),
                    await attacker.legacy(names.TASKS_LIST, None, session),
                    await attacker.legacy(names.TASKS_GET, {"taskId": it.tasks["ada"][0]}, session),
                    await attacker.legacy(names.PING, None, session),
                    await attacker.tell({"method": names.CANCELLED, "params": {"requestId": RID}}, session),
                    await attacker.tell({"id": question["id"], "result": YES}, session),
                    await attacker.say("GET", None, listen),
                    await attacker.say("GET", None, {**listen, names.H_LAST_EVENT_ID: event_id}),
                    await attacker.say("DELETE", None, said),
                ]

            assert await probe(ada.session_id) == await probe(never)

            # In the attacker's own session, what names something of another's is what names nothing.
            def own(event: str, attacker: Party = attacker) -> dict[str, str]:
                return attacker.in_session(Accept="text/event-stream", Last_Event_ID=event)

            strange = event_id[:-1] + chr(ord(event_id[-1]) ^ 1)
            assert await attacker.say("GET", None, own(event_id)) == await attacker.say(
                "GET", None, own(strange)
            )
            offer = str(question["id"])
            guess = offer[:-1] + ("A" if offer[-1] != "A" else "B")
            answered = [await attacker.tell({"id": one, "result": YES}) for one in (offer, guess)]
            assert answered[0] == answered[1]
        assert (await ada.state_of(question_task))["status"] == "input_required"
        assert (await ada.tell({"id": question["id"], "result": {"action": "decline"}})).status == 202
        result = await ada.legacy(names.TASKS_RESULT, {"taskId": question_task})
        assert "decline" in str(result.result)
    it.tasks["ada"].append(question_task)
    assert (await ada.legacy(names.TOOLS_LIST)).status == 200


async def _streams_tell_ones_own_alone(it: Scene, asking: str, key: str) -> None:
    """TX-NOT-003: what happens to another's task is not told to who listens for it."""
    for attacker in it.attackers:
        own = await attacker.task(seconds=LONG_S)
        it.tasks[attacker.name].append(own)
        async with attacker.listening(asking, own) as events:
            await events.next()  # acknowledged
            if attacker is it.bob:
                async with it.ada.listening(asking) as hers:
                    await hers.next()
                    await it.ada.modern(names.TASKS_UPDATE, {"taskId": asking, "inputResponses": {key: YES}})
                    assert (await hers.until("notifications/tasks"))["params"]["taskId"] == asking
            await attacker.modern(names.TASKS_CANCEL, {"taskId": own})
            while (told := await events.next())["params"]["status"] != "cancelled":
                assert told["params"]["taskId"] == own
            assert told["params"]["taskId"] == own
    await ended(it.ada, asking)


async def _the_local_user_finds_nothing(it: Scene, home: Path) -> None:
    """I5: a client at stdin, on the store that the others' tasks are in."""
    async with StdioProcess(proxied(ASKING, "--store", f"disk:{home / 'store'}"), home) as local:
        asked: dict[str, dict[str, Any]] = {
            names.TASKS_GET: {},
            names.TASKS_UPDATE: {"inputResponses": {}},
            names.TASKS_CANCEL: {},
        }
        for method, more in asked.items():
            ids = [unknown_task(), *itertools.chain.from_iterable(it.tasks.values())]
            told = [await local.ask_modern(method, {"taskId": one, **more}) for one in ids]
            assert len({str(answer["error"]) for answer in told}) == 1


async def napping(seen: Seen) -> web.StreamResponse:
    """A legacy server with sessions, whose tool repeats what it was given."""
    if is_request(seen) and seen.message["method"] == names.TOOLS_CALL:
        arguments = seen.message["params"]["arguments"]
        await anyio.sleep(arguments.get("seconds", 0))
        text = {"type": "text", "text": arguments.get("secret", "")}
        answer = {"jsonrpc": "2.0", "id": seen.message["id"], "result": {"content": [text]}}
        return web.json_response(answer)
    return await well(seen)


async def test_tasks_before_an_http_server_are_their_owners_alone(tmp_path: Path) -> None:
    """I5, TX-SEC-002, T25-SEC-001, SEC-004: also in a session of the upstream's, which it lets others use."""
    async with FakeHttp().serving() as http:
        http.handlers["POST"] = napping
        async with scene(tmp_path, http.url) as it:
            before = await states(it)
            await see_no_difference(it, TASK_PROBES)
            for attacker in it.attackers:
                own = attacker.session_id
                attacker.session_id = it.ada.session_id
                await see_no_difference(it, {k: p for k, p in TASK_PROBES.items() if "2025" in k})
                listed = await attacker.legacy(names.TASKS_LIST)
                assert it.tasks["ada"][2] not in listed.body.decode()
                attacker.session_id = own
            assert await states(it) == before
            see_nothing_read(it)


async def test_who_guesses_ids_is_soon_not_let_look_in_either_dialect(tmp_path: Path) -> None:
    """T25-SEC-004, T25-SEC-010: before a server whose sessions are held here; others are not hindered."""
    settings = {**SETTINGS, "limits": {"failed_lookups": "1/s"}}
    async with scene(tmp_path, ASKING, settings) as it:
        guesses = [await it.bob.modern(names.TASKS_GET, {"taskId": unknown_task()}) for _ in range(5)]
        guesses += [await it.bob.legacy(names.TASKS_GET, {"taskId": unknown_task()}) for _ in range(15)]
        statuses = [told.status for told in guesses]
        assert statuses[:10] == [200] * 10
        assert statuses[-1] == 429
        assert dict(guesses[-1].headers)["retry-after"] == "1"
        for task in it.tasks["ada"]:
            await it.ada.state_of(task)
        assert "task_lookups_limited" in it.proxy.log.read_text()


# -- time ---------------------------------------------------------------------------------------------

SAMPLES: Final = 120
MOST_OFTEN_SLOWER: Final = 0.63
"""How often an answer of one kind may be slower than one of another: by chance in half of the pairs, with a
standard deviation of 0.04 for so many samples of each."""


async def test_what_is_anothers_what_is_over_and_what_never_was_take_the_same_time(tmp_path: Path) -> None:
    """I5; contract section 8: by rank (Mann-Whitney), which a pause of the machine does not move. Measured in
    turn, in random order, on one connection; a difference must be there in each of three rounds to count."""
    async with scene(tmp_path, ASKING) as it:
        gone = await it.bob.task_2025(ttl=10)
        await asked_until(
            lambda: it.bob.modern(names.TASKS_GET, {"taskId": gone}),
            lambda told: "error" in told.message,
            "its time is over",
        )
        named = {"another's": it.tasks["ada"][0], "another's, ended": it.tasks["ada"][1], "over": gone}
        for name in ("tasks/get", "tasks/cancel", "tasks/get of 2025"):
            for _ in range(3):
                slower = await _how_often_slower(TASK_PROBES[name], it.bob, named)
                off = {
                    kind: share
                    for kind, share in slower.items()
                    if abs(share - 0.5) > MOST_OFTEN_SLOWER - 0.5
                }
                if not off:
                    break
            assert not off, f"{name}: {off}"


async def _how_often_slower(probe: Probe, attacker: Party, named: Mapping[str, str]) -> dict[str, float]:
    """Than an unknown one."""
    took: dict[str, list[float]] = {"unknown": [], **{kind: [] for kind in named}}
    for _ in range(SAMPLES):
        turn = [("unknown", unknown_task()), *named.items()]
        random.shuffle(turn)
        for kind, task_id in turn:
            began = time.perf_counter()
            await probe(attacker, task_id)
            took[kind].append(time.perf_counter() - began)
    unknown = took.pop("unknown")
    return {kind: _share_above(times, unknown) for kind, times in took.items()}


def _share_above(some: Sequence[float], others: Sequence[float]) -> float:
    """How often one of `some` is above one of `others`: U of Mann and Whitney over all pairs."""
    ranked = sorted([(one, True) for one in some] + [(one, False) for one in others])
    below, above = 0, 0
    for _, is_some in ranked:
        if is_some:
            above += below
        else:
            below += 1
    return above / (len(some) * len(others))


def test_the_measure_sees_a_small_difference_and_none_where_there_is_none() -> None:
    """Else the test above could not fail."""
    rng = random.Random(1)
    base = [rng.gauss(1.0, 0.1) for _ in range(SAMPLES)]
    same = [rng.gauss(1.0, 0.1) for _ in range(SAMPLES)]
    slow = [rng.gauss(1.09, 0.1) for _ in range(SAMPLES)]
    assert abs(_share_above(same, base) - 0.5) < MOST_OFTEN_SLOWER - 0.5
    assert _share_above(slow, base) > MOST_OFTEN_SLOWER
    assert 1 - _share_above(base, slow) > MOST_OFTEN_SLOWER
