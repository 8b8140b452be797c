"""Answers that the upstream does not take at once: sent until it does, or the call ends with a clear error.

I6; contract section 4, "An answer is stored before the ack", and section 8, "its owner's latest token".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import pytest

from proxy.eras.era import Era
from proxy.errors import (
    SessionUnknown,
    UpstreamClosed,
    UpstreamError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.owners import ANONYMOUS, Owner
from proxy.protocol import names
from proxy.routing.delivery import BOUND_S, HEARD_FIRST_S, LAST_PAUSE_S, STILL_RUNNING, WAITING_FOR_TOKEN
from proxy.tasks.policy import Policy
from proxy.upstream.endpoint import UnexpectedStatus
from proxy.upstream.probe import UpstreamEra
from tests.routing.bench import ADA, ASKABLE, Bench, Client, Exchanged, bench
from tests.routing.bench_2025 import bench_2025
from tests.routing.fake_server import TEXT, Asked, Call
from tests.routing.recovery_bench import restarts
from tests.routing.test_recovery_rounds import DISCOVERED

pytestmark = pytest.mark.anyio

YES: Final[dict[str, Any]] = {"action": "accept", "content": {"ok": True}}
OWNER: Final = Owner("token-1")
CHALLENGES: Final = ('Bearer error="invalid_token"',)
TOKEN_REFUSED: Final = UpstreamRefused("refused: 401", status=HTTPStatus.UNAUTHORIZED, challenges=CHALLENGES)
BUSY: Final = UnexpectedStatus("status 503", 503)
FOR_A_TIME: Final = [
    *(BUSY, UnexpectedStatus("status 429", 429), UpstreamUnavailable("no connection")),
    *(UpstreamClosed("broken"), UpstreamTimeout("not accepted in time")),
    UpstreamRefused("the proxy's own credential", status=None, challenges=()),
]
FOR_GOOD: Final = [
    *(SessionUnknown("no longer knows the session (404)"), UnexpectedStatus("status 404", 404)),
    *(UnexpectedStatus("status 400", 400), UnexpectedStatus("status 413", 413)),
    UpstreamRefused("refused: 403", status=HTTPStatus.FORBIDDEN, challenges=()),
]


def words(fault: UpstreamError) -> str:
    return fault.message


async def answered(
    rig: Bench, fault: UpstreamError | None, owner: Owner = ADA
) -> tuple[Client, str, Call, Asked]:
    """A task whose answer is acknowledged, and which meets this fault."""
    client = rig.client(owner=owner)
    rig.credentials.note(owner, "Bearer one")
    task, call = await rig.task(client)
    question = call.elicit()
    await rig.settle()
    [key] = (await client.get(task))["inputRequests"]
    rig.server.answer_fault = fault
    await client.update(task, {key: YES})
    await rig.settle()
    return client, task, call, question


async def parked(rig: Bench, owner: Owner = ADA) -> tuple[Client, dict[str, Any], Call, Asked]:
    """A client without tasks is asked."""
    client = rig.client(owner=owner, capabilities=ASKABLE)
    sent = client.call("slow")
    call = await rig.server.next_call()
    question = call.elicit()
    await rig.pass_time(0.1)
    return client, await sent.result(), call, question


def retry(client: Client, asked: dict[str, Any]) -> Exchanged:
    return client.retry(asked, "slow", dict.fromkeys(asked["inputRequests"], YES))


# -- while the server cannot take it -------------------------------------------------------------------


@pytest.mark.parametrize("fault", FOR_A_TIME, ids=words)
async def test_an_answer_is_sent_until_the_server_takes_it_and_then_no_more(fault: UpstreamError) -> None:
    """TX-UPD-009: under the same id. The record keeps it as long."""
    async with bench() as rig:
        client, task, call, question = await answered(rig, fault)
        await rig.pass_time(100)
        assert question.answers == []
        assert 10 < rig.server.answers_refused < 20  # neither given up, nor a flood
        assert (await client.get(task))["status"] == "working"
        assert len((await rig.stored(task)).answers) == 1
        rig.server.answer_fault = None
        await rig.pass_time(LAST_PAUSE_S)
        assert await question.answer() == YES
        assert (await rig.stored(task)).answers == ()
        call.answer()
        await rig.pass_time(BOUND_S)
        assert (await client.get(task))["status"] == "completed"
        assert len(question.answers) == 1


async def test_a_short_fault_costs_little_time() -> None:
    async with bench() as rig:
        _, _, _, question = await answered(rig, BUSY)
        rig.server.answer_fault = None
        await rig.pass_time(0.5)
        assert await question.answer() == YES


@pytest.mark.parametrize("fault", [*FOR_A_TIME, TOKEN_REFUSED], ids=words)
async def test_what_is_never_taken_ends_the_task_with_a_clear_error_and_the_server_is_told(
    fault: UpstreamError,
) -> None:
    async with bench() as rig:
        client, task, call, _ = await answered(rig, fault, OWNER)
        await rig.pass_time(BOUND_S - 1)
        assert (await client.get(task))["status"] == "working"
        await rig.pass_time(LAST_PAUSE_S + 1)
        told = await client.get(task)
        assert (told["status"], told["error"]["code"]) == ("failed", -32603)
        assert (
            told["error"]["message"] == f"the answer could not be delivered: {fault.message}; {STILL_RUNNING}"
        )
        await call.cancelled.wait()
        assert rig.calls.held == 0


@pytest.mark.parametrize("fault", FOR_GOOD, ids=words)
async def test_what_the_server_will_never_take_ends_the_task_at_once(fault: UpstreamError) -> None:
    async with bench() as rig:
        client, task, call, _ = await answered(rig, fault)
        told = await client.get(task)
        assert told["status"] == "failed"
        assert (
            told["error"]["message"] == f"the answer could not be delivered: {fault.message}; {STILL_RUNNING}"
        )
        if not isinstance(fault, SessionUnknown):  # else there is nobody to be told
            await call.cancelled.wait()
        assert (rig.calls.held, rig.server.answers_refused) == (0, 1)


# -- while the token is not good --------------------------------------------------------------------------


async def test_a_refused_token_is_not_tried_again_before_its_owner_has_come_with_another() -> None:
    """Who polls sees what is waited for."""
    async with bench() as rig:
        client, task, call, question = await answered(rig, TOKEN_REFUSED, OWNER)
        await rig.pass_time(100)
        told = await client.get(task)
        assert (told["status"], told["statusMessage"]) == ("working", WAITING_FOR_TOKEN)
        rig.credentials.note(OWNER, "Bearer one", is_doubtful=True)
        rig.credentials.note(Owner("token-2"), "Bearer of somebody else")
        await rig.settle()
        assert rig.server.answers_refused == 1
        rig.server.answer_fault = None
        rig.credentials.note(OWNER, "Bearer two")
        await rig.pass_time(HEARD_FIRST_S)
        assert await question.answer() == YES
        await rig.pass_time(1)
        assert (await client.get(task))["statusMessage"] != WAITING_FOR_TOKEN
        call.answer()
        await rig.settle()
        assert (await client.get(task))["status"] == "completed"


async def test_another_token_that_is_refused_too_is_waited_for_a_third() -> None:
    async with bench() as rig:
        _, _, _, question = await answered(rig, TOKEN_REFUSED, OWNER)
        rig.credentials.note(OWNER, "Bearer two")
        await rig.pass_time(HEARD_FIRST_S)
        assert rig.server.answers_refused == 2
        rig.server.answer_fault = None
        rig.credentials.note(OWNER, "Bearer three")
        await rig.pass_time(HEARD_FIRST_S)
        assert await question.answer() == YES


async def test_a_cancel_that_comes_with_the_next_token_is_heard_before_the_answer_goes_on() -> None:
    """Contract section 4: who takes back a yes must not set it going thereby."""
    async with bench() as rig:
        client, task, _, question = await answered(rig, TOKEN_REFUSED, OWNER)
        rig.server.answer_fault = None
        rig.credentials.note(OWNER, "Bearer two")
        await client.cancel(task)
        await rig.pass_time(2 * BOUND_S)
        assert not any("result" in answer for answer in question.answers)


async def test_who_has_no_token_of_which_we_know_is_tried_again() -> None:
    """A key in a header of another name, say."""
    async with bench() as rig:
        _, _, _, question = await answered(rig, TOKEN_REFUSED, ANONYMOUS)
        await rig.pass_time(30)
        rig.server.answer_fault = None
        await rig.pass_time(LAST_PAUSE_S)
        assert await question.answer() == YES


# -- what ends it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [BUSY, TOKEN_REFUSED], ids=words)
@pytest.mark.parametrize("end", ["cancel", "result", "death", "withdrawn"])
async def test_nothing_is_sent_any_more_once_nobody_waits_for_it(end: str, fault: UpstreamError) -> None:
    async with bench() as rig:
        client, task, call, question = await answered(rig, fault, OWNER)
        match end:
            case "cancel":
                await client.cancel(task)
                status = "cancelled"
            case "result":
                call.answer()
                status = "completed"
            case "death":
                call.wire.break_off("upstream 'fake' died")
                status = "failed"
            case _:
                call.withdraw(question)
                status = "working"
        await rig.settle()
        rig.server.answer_fault = None
        rig.credentials.note(OWNER, "Bearer two")
        await rig.pass_time(2 * BOUND_S)
        told = await client.get(task)
        assert told["status"] == status
        assert "error" not in told or "died" in told["error"]["message"]
        assert not any("result" in answer for answer in question.answers)  # at most that nobody waits


async def test_a_call_that_is_repeated_is_not_ended_by_an_answer_of_its_first_run() -> None:
    async with restarts() as at:
        client = at.client()
        task, key, _ = await at.asking_task(client, "again_1")
        await at.restart()
        resumed = await at.server.next_resumed()
        at.server.answer_fault = BUSY
        await client.update(task, {key: YES})
        await at.rig.settle()
        resumed.wire.lose(resumed.id, UpstreamClosed("ended without an answer"))
        again = await at.server.next_call()
        await at.rig.pass_time(2 * BOUND_S)
        assert (await at.told(task))["status"] == "working"
        again.answer()
        assert (await at.told(task))["status"] == "completed"


# -- a restart ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [BUSY, TOKEN_REFUSED], ids=words)
async def test_after_a_restart_an_answer_that_was_not_taken_is_sent_until_it_is(fault: UpstreamError) -> None:
    """TX-UPD-006: what was acknowledged is not lost."""
    async with restarts() as at:
        client = at.client(owner=OWNER)
        task, key, question = await at.asking_task(client)
        at.server.answer_fault = fault
        await client.update(task, {key: YES})
        await at.rig.pass_time(20)
        await at.restart()
        at.credentials.note(OWNER, "Bearer one")
        call = await at.server.next_resumed()
        await at.rig.pass_time(20)
        assert question.answers == []
        at.server.answer_fault = None
        at.credentials.note(OWNER, "Bearer two")
        await at.rig.pass_time(LAST_PAUSE_S)
        assert await question.answer() == YES
        call.answer()
        assert (await at.told(task, client))["status"] == "completed"
        assert len(question.answers) == 1


# -- clients without tasks -------------------------------------------------------------------------------


async def test_a_client_that_waits_for_its_call_gets_it_once_the_server_has_taken_the_answer() -> None:
    async with bench() as rig:
        client, asked, call, question = await parked(rig)
        rig.server.answer_fault = BUSY
        sent = retry(client, asked)
        await rig.pass_time(30)
        assert not sent.done
        rig.server.answer_fault = None
        await rig.pass_time(LAST_PAUSE_S)
        assert await question.answer() == YES
        call.answer()
        assert (await sent.result())["resultType"] == "complete"


@pytest.mark.parametrize("fault", [BUSY, FOR_GOOD[0]], ids=words)
async def test_a_client_that_waits_for_its_call_is_told_that_its_answer_was_not_taken(
    fault: UpstreamError,
) -> None:
    async with bench() as rig:
        client, asked, call, _ = await parked(rig)
        rig.server.answer_fault = fault
        sent = retry(client, asked)
        await rig.pass_time(BOUND_S + LAST_PAUSE_S)
        _, error = await sent.error()
        assert error["message"] == f"the answer could not be delivered: {fault.message}; {STILL_RUNNING}"
        assert call.cancelled.is_set() or isinstance(fault, SessionUnknown)
        assert rig.calls.held == 0


async def test_a_client_whose_token_is_refused_is_told_at_once_and_goes_on_with_another() -> None:
    """As without us: the 401 has the server's challenges, and the same retry is good with a new token."""
    async with bench() as rig:
        client, asked, call, question = await parked(rig, OWNER)
        rig.server.answer_fault = TOKEN_REFUSED
        for _ in range(2):
            refusal = await retry(client, asked).answer()
            assert isinstance(refusal, UpstreamRefused)
            assert (refusal.status, refusal.challenges) == (401, CHALLENGES)
        assert not call.cancelled.is_set()
        rig.server.answer_fault = None
        sent = retry(client, asked)
        assert await question.answer() == YES
        call.answer()
        assert (await sent.result())["resultType"] == "complete"
        assert (len(question.answers), rig.server.answers_refused) == (1, 2)


async def test_a_client_that_does_not_come_back_after_the_refusal_ends_its_call() -> None:
    """MRTR-012: in the time that it had, and also where that was over when it was refused."""
    async with bench(policy=Policy(mrtr_wait_s=60)) as rig:
        for late_s in (0, 70):
            client, asked, call, _ = await parked(rig, OWNER)
            rig.server.answer_fault = BUSY
            sent = retry(client, asked)
            await rig.pass_time(late_s)
            rig.server.answer_fault = TOKEN_REFUSED
            await rig.pass_time(LAST_PAUSE_S)
            assert isinstance(await sent.answer(), UpstreamRefused)
            await rig.pass_time(60)
            await call.cancelled.wait()
            assert rig.calls.held == 0


# -- 2025 tasks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_error", [False, True], ids=["result", "error"])
async def test_an_answer_in_the_2025_dialect_is_sent_until_it_is_taken(is_error: bool) -> None:
    """An error that the client answers with is an answer, too."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        question = call.elicit()
        await it.rig.settle()
        it.rig.server.answer_fault = BUSY
        refusal = it.rig.server.refusal
        if is_error:
            assert client.refuse(client.channel.questions[0])
        else:
            assert client.answer(client.channel.questions[0])
        await it.rig.pass_time(100)
        assert (await client.get(task))["status"] == "working"
        it.rig.server.answer_fault = None
        await it.rig.pass_time(LAST_PAUSE_S)
        [answer] = question.answers
        assert (answer.get("result"), answer.get("error")) == ((None, refusal) if is_error else (YES, None))
        call.answer()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "completed"


# -- before a modern server ---------------------------------------------------------------------------------


@asynccontextmanager
async def round_refused(fault: UpstreamError, **how: Any) -> AsyncIterator[tuple[Bench, Client, str]]:
    """A task of OWNER before a modern server, which meets this fault with the answers in its next round."""
    async with bench(**how) as rig:
        rig.era = UpstreamEra(Era.MODERN)
        rig.server.answers[names.DISCOVER] = DISCOVERED
        client = rig.client(owner=OWNER)
        task, call = await rig.task(client)
        asked = {"method": names.ELICITATION_CREATE, "params": {"message": "?", "requestedSchema": {}}}
        call.answer({"resultType": "input_required", "inputRequests": {"a": asked}, "requestState": "s"})
        await rig.settle()
        [key] = (await client.get(task))["inputRequests"]
        rig.server.call_fault = fault
        await client.update(task, {key: YES})
        await rig.pass_time(100)
        yield rig, client, task


async def test_a_modern_server_gets_the_answers_with_the_owners_next_token() -> None:
    """Contract I2: what was refused has not run."""
    async with round_refused(TOKEN_REFUSED) as (rig, client, task):
        assert (await client.get(task))["statusMessage"] == WAITING_FOR_TOKEN
        assert rig.server.calls_refused == 1
        rig.server.call_fault = None
        rig.credentials.note(OWNER, "Bearer two")
        await rig.pass_time(HEARD_FIRST_S)
        call = await rig.server.next_call()
        assert call.params["inputResponses"] == {"a": YES}
        call.answer({**TEXT, "resultType": "complete"})
        await rig.settle()
        assert (await client.get(task))["status"] == "completed"
        assert rig.calls.held == 0


@pytest.mark.parametrize("fault", [BUSY, FOR_GOOD[-1]], ids=words)
async def test_a_round_that_may_have_run_or_will_never_be_taken_is_sent_once(fault: UpstreamError) -> None:
    async with round_refused(fault) as (rig, client, task):
        told = await client.get(task)
        assert told["status"] == "failed"
        assert fault.message in told["error"]["message"]
        assert rig.server.calls_refused == 1


async def test_a_modern_server_gets_the_answers_with_our_next_credential() -> None:
    """Nobody else could bring one."""
    refused = UpstreamRefused("refused our own", status=None, challenges=())
    async with round_refused(refused) as (rig, client, task):
        assert (await client.get(task))["status"] == "working"
        rig.server.call_fault = None
        await rig.pass_time(LAST_PAUSE_S)
        call = await rig.server.next_call()
        assert call.params["inputResponses"] == {"a": YES}


async def test_a_cancel_that_comes_with_the_next_token_is_heard_before_the_round_goes_out() -> None:
    async with round_refused(TOKEN_REFUSED) as (rig, client, task):
        rig.server.call_fault = None
        rig.credentials.note(OWNER, "Bearer two")
        await client.cancel(task)
        await rig.pass_time(2 * BOUND_S)
        assert (rig.calls.held, rig.server.calls_seen) == (0, 1)


async def test_an_owner_who_does_not_come_back_ends_the_round() -> None:
    async with round_refused(TOKEN_REFUSED) as (rig, client, task):
        await rig.pass_time(BOUND_S)
        told = await client.get(task)
        assert told["error"]["message"] == f"the answer could not be delivered: {TOKEN_REFUSED.message}"
        assert rig.calls.held == 0


async def test_a_task_that_is_cancelled_while_its_token_is_waited_for_has_ended() -> None:
    async with round_refused(TOKEN_REFUSED) as (rig, client, task):
        await client.cancel(task)
        rig.server.call_fault = None
        rig.credentials.note(OWNER, "Bearer two")
        await rig.settle()
        assert (rig.calls.held, rig.server.calls_seen) == (0, 1)
