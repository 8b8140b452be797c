"""Calls that are resumed after a restart: the rest of their stream is theirs, and they ran once.

Contract section 9; section 4 (a question replayed keeps its key), I2, I4 and I6.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import anyio
import pytest

from proxy.auth.own_credential import OwnCredential
from proxy.errors import SessionLost, UpstreamClosed, UpstreamError
from proxy.owners import Owner
from proxy.routing import recovery
from proxy.routing.recovery import OUTCOME_UNKNOWN, WAITING_FOR_OWNER
from proxy.tasks import lifecycle
from proxy.tasks.task import InputAnswer
from tests.routing.bench import ADA, TASKS
from tests.routing.fake_server import TEXT, Refused
from tests.routing.recovery_bench import YES, restarts
from tests.routing.test_url_elicitations import want_urls

pytestmark = pytest.mark.anyio

NO: Final[dict[str, Any]] = {"action": "decline"}
WITH_TOKEN: Final = Owner("token-1")
GONE: Final = SessionLost("upstream 'fake' no longer knows the session (404)")
REFUSED: Final = UpstreamClosed(
    "upstream 'fake' ended the stream of the call without an answer; outcome unknown"
)


async def test_a_resumed_call_ends_with_its_own_result_and_ran_once() -> None:
    async with restarts() as at:
        task, before = await at.task()
        before.at("e7")
        await at.rig.pass_time(1)
        await at.restart()
        call = await at.server.next_resumed()
        assert (call.id, call.from_event) == (before.id, "e7")
        assert (await at.told(task))["status"] == "working"
        call.answer()
        told = await at.told(task)
        assert (told["status"], told["result"]["content"]) == ("completed", TEXT["content"])
        assert at.server.calls_seen == 1


async def test_what_was_told_last_stays_until_there_is_something_newer() -> None:
    async with restarts() as at:
        task, before = await at.task()
        before.progress(3, total=10, message="rows")
        await at.rig.pass_time(1)
        was = await at.told(task)
        for _ in range(2):
            await at.restart()
            call = await at.server.next_resumed()
            now = await at.told(task)
            assert now["statusMessage"] == was["statusMessage"]
        call.progress(4, total=10, message="rows")
        await at.rig.pass_time(1)
        assert (await at.told(task))["statusMessage"] != was["statusMessage"]


async def test_a_call_is_resumed_from_where_the_last_process_left_it_however_often() -> None:
    """Killed again during recovery, before and after it has brought something."""
    async with restarts() as at:
        task, _ = await at.task()
        froms = []
        for n in range(3):
            await at.restart()
            call = await at.server.next_resumed()
            froms.append(call.from_event)
            await at.restart()
            call = await at.server.next_resumed()
            froms.append(call.from_event)
            call.at(f"e{n + 1}")
            await at.rig.pass_time(1)
        assert froms == ["e0", "e0", "e1", "e1", "e2", "e2"]
        call.answer()
        assert (await at.told(task))["status"] == "completed"
        assert at.server.calls_seen == 1


async def test_that_a_call_can_be_resumed_is_durable_at_once_and_how_far_it_came_is_noted() -> None:
    """A crash in the first second loses nothing that could be resumed; later events cost no commit each."""
    async with restarts() as at:
        _, call = await at.rig.task(at.client())
        at.rig.store.writes.clear()
        call.at("e0")
        await at.rig.settle()
        assert at.rig.store.writes == {"compare_and_set": 1}
        for n in range(10):
            call.at(f"e{n + 1}")
            await at.rig.pass_time(0.01)
        await at.rig.pass_time(1)
        assert at.rig.store.writes["compare_and_set"] == 1
        assert 1 <= at.rig.store.writes["note"] <= 3


@pytest.mark.parametrize("loss", [GONE, REFUSED], ids=["session gone", "refused"])
async def test_a_call_that_cannot_be_resumed_fails_and_says_that_nobody_knows(loss: UpstreamError) -> None:
    async with restarts() as at:
        task, _ = await at.task()
        await at.restart()
        call = await at.server.next_resumed()
        call.wire.lose(call.id, loss)
        told = await at.told(task)
        assert (told["status"], told["error"]["code"]) == ("failed", -32603)
        assert told["error"]["message"] == loss.message
        assert at.server.calls_seen == 1


@pytest.mark.parametrize("loss", [GONE, REFUSED], ids=["session gone", "refused"])
async def test_a_call_that_cannot_be_resumed_is_repeated_if_it_may_be(loss: UpstreamError) -> None:
    """Once; and on a session that was told what its client can, for it may ask."""
    async with restarts() as at:
        task, before = await at.task(tool="again_1")
        await at.restart()
        call = await at.server.next_resumed()
        call.wire.lose(call.id, loss)
        again = await at.server.next_call()
        assert again.params["name"] == "again_1"
        assert again.wire.capabilities == before.wire.capabilities
        again.wire.break_off()
        told = await at.told(task)
        assert told["status"] == "failed"
        assert at.server.calls_seen == 2


async def test_an_upstream_error_after_the_restart_is_the_tasks_own() -> None:
    async with restarts() as at:
        task, _ = await at.task(tool="again_1")
        await at.restart()
        (await at.server.next_resumed()).fail(7, "no such row")
        told = await at.told(task)
        assert (told["status"], told["error"]["code"]) == ("failed", 7)
        assert at.server.calls_seen == 1


async def test_two_tasks_of_one_session_are_resumed_on_one_connection_and_end_each_for_itself() -> None:
    async with restarts() as at:
        one, _ = await at.task()
        two, _ = await at.task()
        await at.restart()
        first, second = await at.server.next_resumed(), await at.server.next_resumed()
        assert first.wire is second.wire
        first.answer({"content": [{"type": "text", "text": "one"}]})
        await at.rig.settle()
        assert first.wire.is_open
        second.answer({"content": [{"type": "text", "text": "two"}]})
        assert (await at.told(one))["result"]["content"][0]["text"] == "one"
        assert (await at.told(two))["result"]["content"][0]["text"] == "two"
        assert not first.wire.is_open


# ------------------------------------------------------------------------------ questions


async def test_an_open_question_keeps_its_key_and_its_answer_reaches_the_asker_once() -> None:
    """TX-UPD-006, TX-UPD-009: by the id of the server's own request."""
    async with restarts() as at:
        client = at.client()
        task, key, asked = await at.asking_task(client)
        before = await at.told(task)
        await at.restart()
        call = await at.server.next_resumed()
        assert await at.told(task) == before
        await client.update(task, {key: YES})
        assert await asked.answer() == YES
        assert (await at.told(task))["status"] == "working"
        call.answer()
        assert (await at.told(task))["status"] == "completed"
        assert len(asked.answers) == 1


async def test_a_question_that_is_replayed_is_not_asked_again() -> None:
    async with restarts() as at:
        client = at.client()
        task, key, asked = await at.asking_task(client)
        await at.restart()
        call = await at.server.next_resumed()
        call.repeat(asked)
        call.at("e1")
        assert list((await at.told(task))["inputRequests"]) == [key]
        await client.update(task, {key: YES})
        assert await asked.answer() == YES
        new = call.elicit()
        [new_key] = (await at.told(task))["inputRequests"]
        assert new_key != key
        await client.update(task, {new_key: NO})
        assert await new.answer() == NO


async def test_a_question_that_is_withdrawn_meanwhile_is_closed() -> None:
    async with restarts() as at:
        task, _, asked = await at.asking_task()
        await at.restart()
        (await at.server.next_resumed()).withdraw(asked)
        assert (await at.told(task))["status"] == "working"
        assert asked.answers == []


async def test_an_answer_that_was_stored_and_not_sent_is_sent_by_the_next_process() -> None:
    """Contract section 4: stored before the ack."""
    async with restarts() as at:
        client = at.client()
        task, key, asked = await at.asking_task(client)
        at.server.reads = anyio.Event()
        await client.update(task, {key: YES})
        await at.kill()
        at.server.reads.set()
        await at.start()
        call = await at.server.next_resumed()
        assert await asked.answer() == YES
        call.answer()
        assert (await at.told(task))["status"] == "completed"
        assert len(asked.answers) == 1


async def test_an_answer_that_reached_the_asker_is_not_sent_again() -> None:
    async with restarts() as at:
        client = at.client()
        task, key, asked = await at.asking_task(client)
        await client.update(task, {key: YES})
        await asked.answer()
        await at.restart()
        await at.server.next_resumed()
        await at.rig.settle()
        assert len(asked.answers) == 1


async def test_an_answer_that_could_not_be_sent_is_kept_for_the_next_process() -> None:
    """Also where the proxy stops in an orderly way while it is on its way."""
    async with restarts() as at:
        client = at.client()
        task, key, asked = await at.asking_task(client)
        at.server.send_fault = UpstreamClosed("upstream 'fake': the session was closed")
        await client.update(task, {key: YES})
        await at.rig.pass_time(5)
        at.server.send_fault = None
        await at.restart()
        await at.server.next_resumed()
        assert await asked.answer() == YES


async def test_a_refusal_that_comes_before_the_call_is_found_again_reaches_the_asker() -> None:
    """A 2025 client's error answers the question, also while the owner's token is still waited for."""
    async with restarts() as at:
        client = at.client(owner=WITH_TOKEN)
        task, key, asked = await at.asking_task(client)
        await at.restart()
        at.rig.runner.refuse(task, key, b'{"code":-1,"message":"no"}')
        at.credentials.note(WITH_TOKEN, "Bearer t")
        await at.server.next_resumed()
        with pytest.raises(Refused):
            await asked.answer()
        assert (await at.told(task, client))["status"] == "working"


async def test_of_two_resumed_calls_one_is_asked_what_comes_on_no_stream() -> None:
    """Contract section 2: a question on the session's GET stream, with calls in flight that were sent by an
    earlier process, under whatever ids."""
    async with restarts() as at:
        one, _ = await at.task()
        two, _ = await at.task()
        await at.restart()
        call, _ = await at.server.next_resumed(), await at.server.next_resumed()
        at.server.tells_calls = False
        asked = call.elicit()
        told = {(await at.told(task))["status"]: task for task in (one, two)}
        assert set(told) == {"working", "input_required"}
        waiting = told["input_required"]
        [key] = (await at.told(waiting))["inputRequests"]
        await at.client().update(waiting, {key: YES})
        assert await asked.answer() == YES


async def test_a_url_that_was_to_be_visited_is_nothing_that_can_be_resumed() -> None:
    """The server has answered (-32042), and nobody there waits."""
    async with restarts() as at:
        client = at.client(capabilities={**TASKS, "elicitation": {"form": {}, "url": {}}})
        task, before = await at.task(client)
        want_urls(before, "https://a")
        before.at("e1")
        assert (await at.told(task))["status"] == "input_required"
        await at.restart()
        told = await at.told(task)
        assert (told["status"], told["error"]["message"]) == ("failed", OUTCOME_UNKNOWN)


async def test_a_visited_url_is_nobodys_answer_after_a_restart() -> None:
    """Its answer was for us; the next step of the call is resumed like any other."""
    async with restarts() as at:
        client = at.client(capabilities={**TASKS, "elicitation": {"form": {}, "url": {}}})
        task, before = await at.task(client)
        want_urls(before, "https://a")
        [key] = (await at.told(task))["inputRequests"]
        await client.update(task, {key: {"action": "accept"}})
        second = await at.server.next_call()
        second.at("e5")
        await at.rig.pass_time(1)
        await at.kill()
        current = await at.rig.stored(task)  # as it is before the answer is noted as used
        unused = (InputAnswer(key, b"null", b'{"action":"accept"}'),)
        left = replace(current, answers=unused, revision=current.revision + 1)
        await at.rig.memory.compare_and_set(current, left)
        await at.start()
        call = await at.server.next_resumed()
        assert (call.id, call.from_event) == (second.id, "e5")
        call.answer()
        assert (await at.told(task))["status"] == "completed"


# ------------------------------------------------------------------------------ cancelled


async def test_a_resumed_call_that_is_cancelled_is_cancelled_upstream() -> None:
    """TX-CAN-004."""
    async with restarts() as at:
        task, _ = await at.task()
        await at.restart()
        call = await at.server.next_resumed()
        await at.client().cancel(task)
        await call.cancelled.wait()
        call.answer()
        assert (await at.told(task))["status"] == "cancelled"


@pytest.mark.parametrize("asks", [False, True])
async def test_a_call_that_is_cancelled_before_it_is_found_again_is_cancelled_upstream(asks: bool) -> None:
    """The upstream works on it; the cancel may be the owner's first word after the restart."""
    async with restarts() as at:
        client = at.client(owner=WITH_TOKEN)
        task = (await at.asking_task(client))[0] if asks else (await at.task(client))[0]
        await at.restart()
        assert (await at.told(task, client))["status"] != "cancelled"
        await client.cancel(task)
        await at.rig.pass_time(1)
        [notice] = at.server.heard("notifications/cancelled")
        [sent] = [m for w in at.server.wires for m in w.heard if m.get("method") == "tools/call"]
        assert notice["requestId"] == sent["id"]
        assert at.rig.calls.held == 0
        assert not at.server.wire.is_open


async def test_a_cancel_between_the_reading_and_the_taking_up_stays() -> None:
    async with restarts() as at:
        task, _ = await at.task()
        await at.kill()
        at.rig.store.read_gate = anyio.Event()
        await at.start()
        current = await at.rig.stored(task)
        await at.rig.memory.compare_and_set(current, lifecycle.cancelled(current, at.rig.policy.polling, 0))
        at.rig.store.read_gate.set()
        assert (await at.told(task))["status"] == "cancelled"
        assert at.server.heard("notifications/cancelled") == []


async def test_an_answer_between_the_reading_and_the_taking_up_is_delivered() -> None:
    async with restarts() as at:
        task, key, asked = await at.asking_task()
        await at.kill()
        at.rig.store.read_gate = anyio.Event()
        await at.start()
        current = await at.rig.stored(task)
        answer = InputAnswer(key, current.inputs[0].question_id, b'{"action":"decline"}')
        await at.rig.memory.compare_and_set(current, lifecycle.answered(current, [answer], 0))
        at.rig.store.read_gate.set()
        assert await asked.answer() == NO
        await at.server.next_resumed()
        assert (await at.told(task))["status"] == "working"


# ------------------------------------------------------------------------------ the owner's token


async def test_where_the_owners_token_is_needed_its_next_request_is_waited_for() -> None:
    """Until then `working`, saying so; and then with that token."""
    async with restarts() as at:
        client = at.client(owner=WITH_TOKEN)
        task, before = await at.task(client)
        before.progress(3, total=10, message="rows")
        await at.rig.pass_time(1)
        said = (await at.told(task, client))["statusMessage"]
        await at.restart()
        wires = len(at.server.wires)
        await at.rig.pass_time(1)
        told = await at.told(task, client)
        assert (told["status"], told["statusMessage"]) == ("working", WAITING_FOR_OWNER)
        at.credentials.note(Owner("token-2"), "Bearer other")
        assert (await at.told(task, client))["statusMessage"] == WAITING_FOR_OWNER
        assert len(at.server.wires) == wires
        at.credentials.note(WITH_TOKEN, "Bearer t")
        call = await at.server.next_resumed()
        await at.rig.pass_time(1)
        assert (await at.told(task, client))["statusMessage"] == said
        call.answer()
        assert (await at.told(task, client))["status"] == "completed"


async def test_the_words_for_a_wait_do_not_outlive_it() -> None:
    """Killed again while the token is waited for."""
    async with restarts() as at:
        client = at.client(owner=WITH_TOKEN)
        task, _ = await at.task(client)
        await at.restart()
        await at.rig.pass_time(1)
        await at.restart()
        at.credentials.note(WITH_TOKEN, "Bearer t")
        await at.server.next_resumed()
        await at.rig.pass_time(1)
        assert (await at.told(task, client))["statusMessage"] == lifecycle.WORKING_MESSAGE


@pytest.mark.parametrize("tool", ["slow", "again_1"])
async def test_an_owner_who_does_not_come_back_is_waited_for_within_bounds(
    tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "TOKEN_WAIT_S", 0.0)
    async with restarts() as at:
        client = at.client(owner=WITH_TOKEN)
        task, _ = await at.task(client, tool)
        await at.restart()
        told = await at.told(task, client)
        assert told["status"] == "failed"
        assert told["error"]["message"].startswith(OUTCOME_UNKNOWN)
        assert "token" in told["error"]["message"]
        assert at.server.calls_seen == 1


async def test_an_owner_without_a_token_is_not_waited_for() -> None:
    async with restarts() as at:
        task, _ = await at.task(at.client(owner=ADA))
        await at.restart()
        (await at.server.next_resumed()).answer()
        assert (await at.told(task, at.client(owner=ADA)))["status"] == "completed"


async def test_with_a_credential_of_our_own_no_owner_is_waited_for() -> None:
    """Contract section 8, own resource: what clients bring along is not for the upstream."""
    async with restarts() as at:
        client = at.client(owner=WITH_TOKEN)
        task, _ = await at.task(client)
        at.credentials = OwnCredential({"X-Key": "k"}, None)
        await at.restart()
        (await at.server.next_resumed()).answer()
        assert (await at.told(task, client))["status"] == "completed"


# ------------------------------------------------------------------------------ nothing is left waiting


async def test_an_answer_to_a_call_that_is_never_found_again_waits_for_nothing() -> None:
    """I6."""
    async with restarts() as at:
        client = at.client(owner=WITH_TOKEN)
        task, key, asked = await at.asking_task(client)
        await at.restart()
        await client.update(task, {key: YES})
        await at.rig.settle()
        assert at.work("_deliver") == 1
        await client.cancel(task)
        await at.rig.pass_time(10)
        assert at.work("_deliver") == 0
        assert asked.answers == []
