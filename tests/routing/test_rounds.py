"""Calls that ask before they are tasks: questions out, answers back, by multi round trips.

Contract section 4, "Input before the threshold"; MRTR 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import anyio
import pytest

from tests.routing.bench import ADA, ASKABLE, BOB, TASKS, THRESHOLD_S, Bench, Client, Exchanged, bench
from tests.routing.fake_server import TEXT, Asked, Call, FakeServer, Refused

pytestmark = pytest.mark.anyio

YES: Final = {"action": "accept", "content": {"ok": True}}
NO: Final = {"action": "decline"}
GATHER_S: Final = 0.05
WAIT_S: Final = 600.0


async def asked_by(rig: Bench, client: Client, tool: str = "slow") -> tuple[dict[str, Any], Call, Asked]:
    """A call whose server asks at once: the InputRequiredResult, the call, and the question."""
    sent = client.call(tool)
    call = await rig.server.next_call()
    question = call.elicit()
    await rig.pass_time(GATHER_S)
    return await sent.result(), call, question


def only_key(asked: Mapping[str, Any]) -> str:
    [key] = asked["inputRequests"]
    return str(key)


async def code_of(exchanged: Exchanged) -> tuple[int, int]:
    status, error = await exchanged.error()
    return status, error["code"]


# ------------------------------------------------------------------------------ one round and more


async def test_a_question_goes_out_as_a_result_and_the_retry_brings_the_answer() -> None:
    """MRTR-001, MRTR-005, HTTP-009, ELIC-002, TX-SEC-003: the question as it was asked."""
    async with bench() as rig:
        client = rig.client(capabilities=ASKABLE)
        asked, call, question = await asked_by(rig, client)
        assert asked.keys() == {"resultType", "inputRequests", "requestState", "_meta"}
        assert asked["resultType"] == "input_required"
        assert asked["inputRequests"][only_key(asked)] == {
            "method": "elicitation/create",
            "params": {
                "message": "Go on?",
                "requestedSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
            },
        }
        again = client.retry(asked, "slow", {only_key(asked): YES})
        assert await question.answer() == YES
        call.answer()
        assert (await again.result())["content"] == TEXT["content"]
        assert rig.server.calls_seen == 1


@pytest.mark.parametrize("action", [YES, NO, {"action": "cancel"}])
async def test_every_answer_reaches_the_server_as_given(action: Any) -> None:
    """ELIC-006, ELIC-007."""
    async with bench() as rig:
        client = rig.client()
        asked, _, question = await asked_by(rig, client)
        client.retry(asked, "slow", {only_key(asked): action})
        assert await question.answer() == action


@pytest.mark.parametrize(
    "method, params",
    [
        ("tools/call", {"name": "slow"}),
        ("prompts/get", {"name": "p"}),
        ("resources/read", {"uri": "file:///a"}),
    ],
)
async def test_all_three_methods_that_carry_input_ask_so(method: str, params: dict[str, Any]) -> None:
    """MRTR-001, MRTR-021: without caching hints."""
    async with bench() as rig:
        client = rig.client()
        sent = client.start(method, params)
        call = await rig.server.next_call()
        asks = [
            call.elicit(),
            call.ask("sampling/createMessage", messages=[], maxTokens=1),
            call.ask("roots/list"),
        ]
        await rig.pass_time(GATHER_S)
        asked = await sent.result()
        assert not asked.keys() & {"ttlMs", "cacheScope"}
        kinds = {q["method"]: key for key, q in asked["inputRequests"].items()}
        answers = {
            kinds["elicitation/create"]: NO,
            kinds["sampling/createMessage"]: {"role": "assistant", "content": {"type": "text", "text": "a"}},
            kinds["roots/list"]: {"roots": [{"uri": "file:///r"}]},
        }
        client.start(method, {**params, "requestState": asked["requestState"], "inputResponses": answers})
        assert [await question.answer() for question in asks] == list(answers.values())


async def test_questions_that_come_together_go_out_together() -> None:
    """MRTR-003: under keys of their own."""
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        call.elicit("first")
        await rig.pass_time(GATHER_S / 2)
        assert not sent.done
        call.elicit("second")
        await rig.pass_time(GATHER_S / 2)
        asked = await sent.result()
        messages = [q["params"]["message"] for q in asked["inputRequests"].values()]
        assert messages == ["first", "second"]


async def test_a_call_that_ends_while_questions_are_gathered_is_answered() -> None:
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        call.elicit()
        await rig.pass_time(GATHER_S / 2)
        call.answer()
        assert (await sent.result())["resultType"] == "complete"


async def test_rounds_may_follow_each_other_under_new_keys() -> None:
    """MRTR-013, TX-UPD-006, TX-UPD-008: the same text asked again is another question."""
    async with bench() as rig:
        client = rig.client(capabilities=ASKABLE)
        asked, call, question = await asked_by(rig, client)
        keys, states = [only_key(asked)], [asked["requestState"]]
        for _ in range(2):
            again = client.retry(asked, "slow", {keys[-1]: YES})
            await question.answer()
            question = call.elicit()
            await rig.pass_time(GATHER_S)
            asked = await again.result()
            keys.append(only_key(asked))
            states.append(asked["requestState"])
        last = client.retry(asked, "slow", {keys[-1]: NO})
        assert await question.answer() == NO
        call.answer()
        assert (await last.result())["resultType"] == "complete"
        assert len(set(keys)) == len(set(states)) == 3


async def test_a_retry_without_all_answers_is_asked_for_the_rest() -> None:
    """MRTR-014; a subset is handed on at once."""
    async with bench() as rig:
        client = rig.client()
        sent = client.call("slow")
        call = await rig.server.next_call()
        questions = [call.elicit("first"), call.elicit("second")]
        await rig.pass_time(GATHER_S)
        asked = await sent.result()
        first, second = asked["inputRequests"]
        again = client.retry(asked, "slow", {first: YES})
        await rig.pass_time(GATHER_S)
        rest = await again.result()
        assert list(rest["inputRequests"]) == [second]
        assert rest["requestState"] != asked["requestState"]
        assert await questions[0].answer() == YES
        last = client.retry(rest, "slow", {second: NO})
        assert await questions[1].answer() == NO
        call.answer()
        assert (await last.result())["resultType"] == "complete"
        assert all(len(question.answers) == 1 for question in questions)


async def test_a_retry_without_any_answer_is_asked_again() -> None:
    """MRTR-014."""
    async with bench() as rig:
        client = rig.client()
        asked, _, _ = await asked_by(rig, client)
        again = client.call("slow", {"requestState": asked["requestState"]})
        await rig.pass_time(GATHER_S)
        assert (await again.result())["inputRequests"] == asked["inputRequests"]


async def test_answers_to_what_was_not_asked_are_ignored() -> None:
    """MRTR-015."""
    async with bench() as rig:
        client = rig.client()
        asked, call, question = await asked_by(rig, client)
        again = client.retry(asked, "slow", {"input-99": "nonsense", only_key(asked): YES})
        assert await question.answer() == YES
        call.answer()
        assert (await again.result())["resultType"] == "complete"


@pytest.mark.parametrize(
    "responses", ["text", [], {"input-1": {}}, {"input-1": 1}, {"input-1": {"action": "x"}}]
)
async def test_malformed_answers_are_an_error_and_use_nothing_up(responses: Any) -> None:
    """MRTR-016."""
    async with bench() as rig:
        client = rig.client()
        asked, _, question = await asked_by(rig, client)
        more = {"requestState": asked["requestState"], "inputResponses": responses}
        assert await code_of(client.call("slow", more)) == (200, -32602)
        client.retry(asked, "slow", {only_key(asked): YES})
        assert await question.answer() == YES
        assert len(question.answers) == 1


# ------------------------------------------------------------------------------ whose state, and when


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s[:-1],
        lambda s: "",
        lambda s: s[:20] + ("A" if s[20] != "A" else "B") + s[21:],
        lambda s: "é" + s,
    ],
)
async def test_a_state_that_is_not_as_it_was_given_is_refused(spoil: Any) -> None:
    """MRTR-006: and the parked call is as before."""
    async with bench() as rig:
        client = rig.client()
        asked, _, question = await asked_by(rig, client)
        bad = {**asked, "requestState": spoil(asked["requestState"])}
        assert await code_of(client.retry(bad, "slow", {only_key(asked): YES})) == (200, -32602)
        assert not question.answers
        client.retry(asked, "slow", {only_key(asked): YES})
        assert await question.answer() == YES


async def test_a_state_that_is_no_string_is_refused() -> None:
    async with bench() as rig:
        assert await code_of(rig.client().call("slow", {"requestState": 7})) == (200, -32602)
        assert not rig.server.wires


async def test_a_state_is_its_owners_and_of_its_call_alone() -> None:
    """MRTR-007, MRTR-009, AUTH-009."""
    async with bench() as rig:
        ada = rig.client(owner=ADA)
        sent = ada.call("slow", n=1)
        call = await rig.server.next_call()
        question = call.elicit()
        await rig.pass_time(GATHER_S)
        asked = await sent.result()
        answers = {only_key(asked): YES}
        refused = [
            ada.but(owner=BOB).retry(asked, "slow", answers, n=1),
            ada.retry(asked, "fast", answers, n=1),
            ada.retry(asked, "slow", answers, n=2),
            ada.start(
                "prompts/get",
                {"name": "slow", "requestState": asked["requestState"], "inputResponses": answers},
            ),
        ]
        errors = [(await exchanged.error())[1] for exchanged in refused]
        assert {(error["code"], error["message"]) for error in errors} == {
            (-32602, "requestState is not valid for this request")
        }
        assert not question.answers
        ada.retry(asked, "slow", answers, n=1)
        assert await question.answer() == YES


async def test_a_state_expires_and_its_call_is_cancelled() -> None:
    """MRTR-008, MRTR-012: nobody came back."""
    async with bench() as rig:
        client = rig.client()
        asked, call, _ = await asked_by(rig, client)
        await rig.pass_time(WAIT_S - 1)
        assert not call.cancelled.is_set()
        await rig.pass_time(1)
        assert call.cancelled.is_set()
        assert await code_of(client.retry(asked, "slow", {only_key(asked): YES})) == (200, -32602)
        assert rig.calls.held == 0


async def test_after_a_restart_a_state_is_a_clear_error_and_nothing_runs_again() -> None:
    async with bench() as rig:
        client = rig.client()
        asked, _, _ = await asked_by(rig, client)
        rig.start_over()
        _, error = await client.retry(asked, "slow", {only_key(asked): YES}).error()
        assert error["code"] == -32602
        assert "restarted" in error["message"]
        assert rig.server.calls_seen == 1


# ------------------------------------------------------------------------------ the same retry twice


async def test_the_same_retry_sent_twice_gets_the_same_outcome() -> None:
    """MRTR-010: the upstream is answered once, whether the second comes during the first or after it."""
    async with bench() as rig:
        client = rig.client()
        asked, call, question = await asked_by(rig, client)
        answers = {only_key(asked): YES}
        first, second = client.retry(asked, "slow", answers), client.retry(asked, "slow", answers)
        await question.answer()
        call.answer()
        third = await first.result()
        assert third == await second.result() == await client.retry(asked, "slow", answers).result()
        assert len(question.answers) == 1
        assert rig.server.calls_seen == 1


async def test_the_same_retry_gets_the_same_handle_and_the_same_next_question() -> None:
    """MRTR-010."""
    async with bench() as rig:
        client = rig.client()
        asked, call, _ = await asked_by(rig, client)
        first = client.retry(asked, "slow", {only_key(asked): YES})
        await rig.settle()
        call.elicit("again?")
        await rig.pass_time(GATHER_S)
        rest = await first.result()
        assert rest == await client.retry(asked, "slow", {only_key(asked): YES}).result()
        second = client.retry(rest, "slow", {only_key(rest): YES})
        await rig.pass_time(THRESHOLD_S)
        handle = await second.result()
        assert handle["resultType"] == "task"
        assert handle == await client.retry(rest, "slow", {only_key(rest): YES}).result()


async def test_other_answers_to_a_used_state_are_refused() -> None:
    """MRTR-010."""
    async with bench() as rig:
        client = rig.client()
        asked, _, question = await asked_by(rig, client)
        client.retry(asked, "slow", {only_key(asked): YES})
        await question.answer()
        assert await code_of(client.retry(asked, "slow", {only_key(asked): NO})) == (200, -32602)


async def test_a_retry_that_declares_something_else_is_another_retry() -> None:
    """TX-CAP-003: it must not get the handle that the first one may get."""
    async with bench() as rig:
        client = rig.client()
        asked, _, question = await asked_by(rig, client)
        first = client.retry(asked, "slow", {only_key(asked): YES})
        await question.answer()
        without = client.but(capabilities=ASKABLE).retry(asked, "slow", {only_key(asked): YES})
        assert await code_of(without) == (200, -32602)
        await rig.pass_time(THRESHOLD_S)
        assert (await first.result())["resultType"] == "task"


async def test_of_two_identical_retries_one_may_hang_up() -> None:
    async with bench() as rig:
        client = rig.client()
        asked, call, question = await asked_by(rig, client)
        first = client.but(meta={"progressToken": "a"}).retry(asked, "slow", {only_key(asked): YES})
        second = client.but(meta={"progressToken": "b"}).retry(asked, "slow", {only_key(asked): YES})
        await question.answer()
        call.progress(1)
        first.hang_up()
        await rig.settle()
        assert not call.cancelled.is_set()
        call.progress(2)
        call.answer()
        assert (await second.result())["resultType"] == "complete"
        seen = [[(p["progressToken"], p["progress"]) for _, p in e.told] for e in (first, second)]
        assert seen == [[("a", 1)], [("b", 1), ("b", 2)]]


async def test_when_all_who_retried_hang_up_the_call_is_cancelled() -> None:
    """HTTP-014."""
    async with bench() as rig:
        client = rig.client()
        asked, call, question = await asked_by(rig, client)
        sent = [client.retry(asked, "slow", {only_key(asked): YES}) for _ in range(2)]
        await question.answer()
        for exchanged in sent:
            exchanged.hang_up()
        await call.cancelled.wait()
        _, error = await client.retry(asked, "slow", {only_key(asked): YES}).error()
        assert "hung up" in error["message"]
        assert rig.server.calls_seen == 1


async def test_who_hangs_up_before_the_questions_arrive_has_cancelled() -> None:
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        call.elicit()
        await rig.pass_time(GATHER_S / 2)
        sent.hang_up()
        await call.cancelled.wait()


# ------------------------------------------------------------------------------ while it is parked


async def test_a_call_that_ends_while_parked_gives_its_retry_the_outcome() -> None:
    async with bench() as rig:
        client = rig.client()
        asked, call, question = await asked_by(rig, client)
        call.answer()
        await rig.settle()
        again = client.retry(asked, "slow", {only_key(asked): YES})
        assert (await again.result())["content"] == TEXT["content"]
        assert question.answers[0]["error"]["code"] == -32603  # nobody can answer it any more


async def test_an_upstream_that_dies_while_the_call_is_parked_is_told_at_the_retry() -> None:
    async with bench() as rig:
        client = rig.client()
        asked, _, _ = await asked_by(rig, client)
        rig.server.wire.break_off("upstream 'fake' died; outcome unknown")
        await rig.settle()
        _, error = await client.retry(asked, "slow", {only_key(asked): YES}).error()
        assert (error["code"], error["message"]) == (-32603, "upstream 'fake' died; outcome unknown")
        assert rig.server.calls_seen == 1


async def test_a_question_that_is_withdrawn_while_parked_is_not_answered() -> None:
    async with bench() as rig:
        client = rig.client()
        asked, call, question = await asked_by(rig, client)
        call.withdraw(question)
        await rig.settle()
        again = client.retry(asked, "slow", {only_key(asked): YES})
        await rig.settle()
        assert not question.answers
        call.answer()
        assert (await again.result())["resultType"] == "complete"


async def test_a_question_that_comes_while_parked_is_asked_at_the_retry() -> None:
    async with bench() as rig:
        client = rig.client()
        asked, call, question = await asked_by(rig, client)
        call.elicit("and this?")
        again = client.retry(asked, "slow", {only_key(asked): YES})
        assert await question.answer() == YES
        await rig.pass_time(GATHER_S)
        [left] = (await again.result())["inputRequests"].values()
        assert left["params"]["message"] == "and this?"


async def test_at_the_drain_parked_calls_are_cancelled() -> None:
    async with bench() as rig:
        _, call, _ = await asked_by(rig, rig.client())
        rig.conversion.stop_parked()
        await call.cancelled.wait()
        await rig.settle()
        assert rig.calls.held == 0


# ------------------------------------------------------------------------------ into a task


async def test_what_follows_the_questions_may_be_a_task() -> None:
    """TX-NEW-009, TX-NEW-010: under a fresh threshold; its later questions are the task's."""
    async with bench() as rig:
        client = rig.client()
        asked, call, question = await asked_by(rig, client)
        await rig.pass_time(100)
        again = client.retry(asked, "slow", {only_key(asked): YES})
        await rig.pass_time(THRESHOLD_S - 0.1)
        assert not again.done
        await rig.pass_time(0.1)
        handle = await again.result()
        assert handle["resultType"] == "task"
        assert "requestState" not in handle
        assert await question.answer() == YES
        call.elicit("later?")
        await rig.settle()
        shown = await client.get(handle["taskId"])
        assert shown["status"] == "input_required"
        assert shown["inputRequests"].keys().isdisjoint(asked["inputRequests"])


async def test_the_threshold_runs_while_the_answer_is_on_its_way() -> None:
    """A server that is slow to take it must not hold up the client."""
    async with bench() as rig:
        client = rig.client()
        asked, call, _ = await asked_by(rig, client)
        rig.server.reads = anyio.Event()
        again = client.retry(asked, "slow", {only_key(asked): YES})
        await rig.pass_time(THRESHOLD_S)
        assert (await again.result())["resultType"] == "task"
        rig.server.reads.set()
        await rig.settle()
        call.answer()


async def test_a_retry_that_declares_no_tasks_gets_none() -> None:
    """TX-CAP-003: each round is judged alone."""
    async with bench() as rig:
        client = rig.client()
        asked, call, _ = await asked_by(rig, client)
        again = client.but(capabilities=ASKABLE).retry(asked, "slow", {only_key(asked): YES})
        await rig.pass_time(1_000)
        assert not again.done
        call.answer()
        assert (await again.result())["resultType"] == "complete"


async def test_a_retry_that_asks_for_logs_gets_them() -> None:
    """LOG-004."""
    async with bench() as rig:
        client = rig.client()
        asked, call, question = await asked_by(rig, client)
        assert rig.server.heard("logging/setLevel") == []
        level = {"io.modelcontextprotocol/logLevel": "info"}
        again = client.but(meta=level).retry(asked, "slow", {only_key(asked): YES})
        await question.answer()
        call.log("info")
        await rig.settle()
        assert rig.server.heard("logging/setLevel") == [{"level": "info"}]
        assert len(again.told) == 1


# ------------------------------------------------------------------------------ who cannot be asked


@pytest.mark.parametrize(
    "declared, method, params, required",
    [
        ({}, "elicitation/create", {"message": "a", "requestedSchema": {}}, {"elicitation": {}}),
        (
            {"elicitation": {}},
            "elicitation/create",
            {"mode": "url", "url": "https://a", "message": "b"},
            {"elicitation": {"url": {}}},
        ),
        ({"elicitation": {}}, "sampling/createMessage", {"messages": []}, {"sampling": {}}),
        (
            {"sampling": {}},
            "sampling/createMessage",
            {"messages": [], "tools": []},
            {"sampling": {"tools": {}}},
        ),
        ({"sampling": {}}, "roots/list", {}, {"roots": {}}),
    ],
)
async def test_a_question_that_the_client_cannot_answer_ends_the_call(
    declared: Any, method: str, params: Any, required: Any
) -> None:
    """MRTR-011, ELIC-001, ELIC-010, BASE-021, TX-UPD-010: cancelled upstream first, then refused there."""
    async with bench() as rig:
        sent = rig.client(capabilities={**TASKS, **declared}).call("slow")
        call = await rig.server.next_call()
        assert call.wire.capabilities == declared
        question = call.ask(method, **params)
        status, error = await sent.error()
        assert (status, error["code"]) == (400, -32021)
        assert error["data"] == {"requiredCapabilities": required}
        with pytest.raises(Refused):
            await question.answer()
        heard = [m.get("method", "an answer") for m in call.wire.heard]
        assert heard.index("notifications/cancelled") < heard.index("an answer")


async def test_one_that_comes_while_others_are_gathered_does_so_too() -> None:
    async with bench() as rig:
        sent = rig.client(capabilities={"elicitation": {}}).call("slow")
        call = await rig.server.next_call()
        call.elicit()
        await rig.pass_time(GATHER_S / 2)
        call.ask("roots/list")
        _, error = await sent.error()
        assert error["data"] == {"requiredCapabilities": {"roots": {}}}
        await call.cancelled.wait()


async def test_one_that_comes_while_the_call_is_parked_is_told_at_the_retry() -> None:
    async with bench() as rig:
        client = rig.client(capabilities={"elicitation": {}})
        asked, call, _ = await asked_by(rig, client)
        call.ask("roots/list")
        await call.cancelled.wait()
        assert await code_of(client.retry(asked, "slow", {only_key(asked): YES})) == (400, -32021)


async def test_one_that_comes_while_the_task_is_stored_is_told_instead_of_the_handle() -> None:
    async with bench() as rig:
        sent = rig.client(capabilities=TASKS).call("slow")
        call = await rig.server.next_call()
        rig.store.gate = anyio.Event()
        await rig.pass_time(THRESHOLD_S)
        call.elicit()
        await rig.settle()
        rig.store.gate.set()
        assert await code_of(sent) == (400, -32021)
        await rig.settle()
        [task] = await rig.memory.owned("anonymous")
        assert task.status == "cancelled"


async def test_a_retry_is_asked_only_what_it_declares_itself() -> None:
    """MRTR-011: the first request declared more."""
    async with bench() as rig:
        client = rig.client(capabilities=ASKABLE)
        asked, call, question = await asked_by(rig, client)
        again = client.but(capabilities={}).retry(asked, "slow", {only_key(asked): YES})
        await question.answer()
        call.ask("roots/list")
        _, error = await again.error()
        assert error["data"] == {"requiredCapabilities": {"roots": {}}}


async def test_of_two_calls_on_one_pipe_only_the_asking_one_is_ended() -> None:
    """ELIC-008."""
    async with bench(FakeServer(tells_calls=False)) as rig:
        client = rig.client(capabilities=TASKS)
        sent = [client.call("slow"), client.call("slow")]
        calls = [await rig.server.next_call() for _ in sent]
        calls[1].elicit()
        assert await code_of(sent[1]) == (400, -32021)
        await rig.settle()
        assert [call.cancelled.is_set() for call in calls] == [False, True]
        calls[0].answer()
        assert (await sent[0].result())["resultType"] == "complete"


async def test_questions_during_other_methods_reach_nobody() -> None:
    """MRTR-002: `tools/list` and completion carry none; the question waits, bounded, and is refused."""
    async with bench() as rig:
        for method in ("tools/list", "completion/complete"):
            rig.server.answers.pop(method, None)
            sent = rig.client().start(method)
            call = await rig.server.next_call()
            question = call.elicit()
            await rig.pass_time(60)
            with pytest.raises(Refused):
                await question.answer()
            assert not sent.done
            call.answer({"tools": []})
            assert (await sent.result())["resultType"] == "complete"


async def test_other_requests_of_the_upstream_reach_nobody() -> None:
    """MRTR-004: ping is answered here, whatever else is refused."""
    async with bench() as rig:
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        assert await call.ask("ping").answer() == {}
        with pytest.raises(Refused) as refused:
            await call.ask("sampling/other").answer()
        assert refused.value.code == -32601
        call.answer()
        assert (await sent.result())["resultType"] == "complete"
        assert sent.told == []
