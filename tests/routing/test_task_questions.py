"""What the server asks during a 2025 task: who is asked, where, how often, and whose answer counts.

Contract section 5, "input"; MCP 2025-11-25, "Input Required Status". Holds T25-INP-001 to T25-INP-005, F08.
"""

from __future__ import annotations

from typing import Any, Final

import anyio
import pytest

from proxy.protocol import names
from proxy.routing.tasks_2025 import HOLD_S
from proxy.tasks import inputs
from tests.routing.bench import BOB
from tests.routing.bench_2025 import RELATED, YES, Bench2025, Client2025, FakeChannel, bench_2025
from tests.routing.fake_server import Asked, Call, Refused

pytestmark = pytest.mark.anyio

NO: Final = {"action": "decline"}


async def asked(it: Bench2025, client: Client2025) -> tuple[str, Call, Asked]:
    """A task that waits for its user."""
    task, call = await client.task()
    question = call.elicit()
    await it.rig.settle()
    return task, call, question


def ids(channel: FakeChannel) -> list[Any]:
    return [question["id"] for question in channel.questions]


# -- there and back -----------------------------------------------------------------------------------


async def test_a_question_reaches_the_client_and_its_answer_the_asker() -> None:
    """T25-INP-001, T25-INP-002, T25-INP-003, F14: as the server asked it, and answered under its own id."""
    async with bench_2025() as it:
        client = it.client()
        task, call, question = await asked(it, client)
        told = await client.get(task)
        assert (told["status"], told["statusMessage"]) == ("input_required", "Waiting for input.")
        [request] = client.channel.questions
        assert request["method"] == names.ELICITATION_CREATE
        assert request["params"].pop("_meta") == {RELATED: {"taskId": task}}
        assert request["params"]["message"] == "Go on?"
        related = {"_meta": {RELATED: {"taskId": task}, "k": 1}}
        assert client.answer(request, {**YES, **related})
        await it.rig.settle()
        assert (await client.get(task))["status"] == "working"
        assert await question.answer() == {**YES, "_meta": {"k": 1}}
        call.answer()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "completed"


async def test_all_kinds_of_questions_come_in_their_order() -> None:
    """F14: what a 2025 client gets is the server's own request, `elicitationId` and `task` included."""
    async with bench_2025() as it:
        client = it.client()
        _, call = await client.task()
        call.ask(names.ELICITATION_CREATE, mode="url", url="https://x", elicitationId="e", message="m")
        call.ask(names.SAMPLING_CREATE_MESSAGE, messages=[], maxTokens=1, task={"ttl": 5})
        call.ask(names.ROOTS_LIST)
        await it.rig.settle()
        elicitation, sampling, roots = client.channel.questions
        assert elicitation["params"]["elicitationId"] == "e"
        assert sampling["params"]["task"] == {"ttl": 5}
        assert roots["method"] == names.ROOTS_LIST


@pytest.mark.parametrize("code", [-1, -32601, -32603])
async def test_a_refusal_reaches_the_asker_and_the_tool_goes_on(code: int) -> None:
    """T25-INP-003."""
    async with bench_2025() as it:
        client = it.client()
        task, call, question = await asked(it, client)
        assert client.refuse(client.channel.questions[0], code)
        with pytest.raises(Refused) as refused:
            await question.answer()
        assert refused.value.code == code
        await it.rig.settle()
        assert (await client.get(task))["status"] == "working"
        call.answer()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "completed"


async def test_an_answer_that_is_too_large_to_be_kept_is_told_to_the_asker_and_the_tool_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Contract section 8: nobody answers an answer."""
    monkeypatch.setattr(inputs, "MAX_BYTES", 1_000)
    async with bench_2025() as it:
        client = it.client()
        task, call, question = await asked(it, client)
        large = {"action": "accept", "content": {"text": "x" * 1_000}}
        assert client.answer(client.channel.questions[0], large)
        with pytest.raises(Refused, match="over the limit of 1000"):
            await question.answer()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "working"
        call.answer()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "completed"


async def test_while_one_question_is_open_the_task_waits() -> None:
    """T25-INP-003: all needed input."""
    async with bench_2025() as it:
        client = it.client()
        task, call, _ = await asked(it, client)
        call.elicit("And now?")
        await it.rig.settle()
        first, second = client.channel.questions
        client.answer(second)
        await it.rig.settle()
        assert (await client.get(task))["status"] == "input_required"
        client.answer(first)
        await it.rig.settle()
        assert (await client.get(task))["status"] == "working"


async def test_a_question_that_the_server_withdraws_is_taken_back() -> None:
    async with bench_2025() as it:
        client = it.client()
        task, call, question = await asked(it, client)
        call.withdraw(question)
        await it.rig.settle()
        assert client.channel.open_questions == []
        assert (await client.get(task))["status"] == "working"
        assert client.answer(client.channel.questions[0])  # it comes too late, and is nobody's
        await it.rig.settle()
        assert question.answers == []


@pytest.mark.parametrize("end", ["cancel", "answer", "death"])
async def test_what_is_open_at_the_end_of_the_task_is_taken_back(end: str) -> None:
    async with bench_2025() as it:
        client = it.client()
        task, call, _ = await asked(it, client)
        match end:
            case "cancel":
                await client.cancel(task).result()
            case "answer":
                call.answer()
            case _:
                call.wire.break_off()
        await it.rig.settle()
        assert client.channel.open_questions == []
        assert len(client.channel.questions) == 1


# -- not too early ------------------------------------------------------------------------------------


async def test_a_client_is_not_asked_before_it_can_know_of_the_task() -> None:
    """Clients answer questions of tasks that they do not know by themselves (field report 9)."""
    async with bench_2025() as it:
        client = it.client()
        await client.call().result()
        (await it.rig.server.next_call()).elicit()
        await it.rig.pass_time(HOLD_S - 0.001)
        assert client.channel.questions == []
        await it.rig.pass_time(0.001)
        assert len(client.channel.questions) == 1


@pytest.mark.parametrize("method", [names.TASKS_GET, names.TASKS_RESULT])
async def test_a_client_that_names_the_task_is_asked_at_once(method: str) -> None:
    async with bench_2025() as it:
        client = it.client()
        made = await client.call().result()
        (await it.rig.server.next_call()).elicit()
        await it.rig.settle()
        assert client.channel.questions == []
        client.start(method, {"taskId": made["task"]["taskId"]})
        await it.rig.settle()
        assert len(client.channel.questions) == 1
        await it.rig.pass_time(HOLD_S)
        assert len(client.channel.questions) == 1


async def test_a_task_that_ends_while_its_questions_are_held_asks_nobody() -> None:
    async with bench_2025() as it:
        client = it.client()
        await client.call().result()
        call = await it.rig.server.next_call()
        call.elicit()
        await it.rig.settle()
        call.answer()
        await it.rig.pass_time(HOLD_S)
        assert client.channel.questions == []


# -- on one stream at a time --------------------------------------------------------------------------


async def test_it_comes_on_the_stream_of_tasks_result_where_one_is_open() -> None:
    """T25-INP-004; of several on one of them."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        streams = [FakeChannel(), FakeChannel()]
        for stream in streams:
            client.result(task, stream)
        await it.rig.settle()
        call.elicit()
        await it.rig.settle()
        assert sorted(len(stream.questions) for stream in streams) == [0, 1]
        assert client.channel.questions == []


async def test_a_question_that_was_asked_stays_where_it_is_when_a_better_stream_opens() -> None:
    """T25-INP-004."""
    async with bench_2025() as it:
        client = it.client()
        task, _, _ = await asked(it, client)
        stream = FakeChannel()
        client.result(task, stream)
        client.listen()
        await it.rig.settle()
        assert stream.questions == []
        assert len(client.channel.questions) == 1  # its own stream had to be given up


async def test_two_wait_for_the_result_and_the_one_that_was_asked_leaves() -> None:
    """T25-INP-004, F08: asked again on the other; one answer counts, whichever way it comes."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        streams = [FakeChannel(), FakeChannel()]
        waiting = [client.result(task, stream) for stream in streams]
        await it.rig.settle()
        question = call.elicit()
        await it.rig.settle()
        asked_on, other = sorted(zip(streams, waiting, strict=True), key=lambda one: -len(one[0].questions))
        asked_on[0].is_open = False
        asked_on[1].hang_up()
        await it.rig.settle()
        [first], [again] = asked_on[0].questions, other[0].questions
        assert first["id"] != again["id"]
        assert client.answer(again)
        assert client.answer(first, NO)  # it was on its way already
        await it.rig.settle()
        assert [answer["result"] for answer in question.answers] == [YES]
        call.answer()
        assert "content" in await other[1].result()


async def test_dropped_and_called_again_it_is_asked_again_on_the_new_stream() -> None:
    """F08, T25-GET-007: a client without any other stream."""
    async with bench_2025() as it:
        client = it.client(listens=False)
        task, call = await client.task()
        first, second = FakeChannel(), FakeChannel()
        waiting = client.result(task, first)
        await it.rig.settle()
        question = call.elicit()
        await it.rig.settle()
        first.is_open = False
        waiting.hang_up()
        await it.rig.settle()
        waiting = client.result(task, second)
        await it.rig.settle()
        assert len(first.questions) == len(second.questions) == 1
        client.answer(second.questions[0])
        assert await question.answer() == YES
        call.answer()
        assert "content" in await waiting.result()


async def test_a_stream_whose_request_is_over_is_not_counted_on() -> None:
    """Its client leaves, and the transport notices only afterwards."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        stream = FakeChannel()
        waiting = client.result(task, stream)
        await it.rig.settle()
        call.elicit()
        await it.rig.settle()
        assert len(stream.questions) == 1
        waiting.hang_up()
        await it.rig.settle()
        assert len(client.channel.questions) == 1


async def test_on_a_pipe_it_is_not_asked_twice_because_a_wait_was_given_up() -> None:
    """T25-INP-004: on stdio the stream of `tasks/result` is the pipe itself, which is still there."""
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        waiting = client.result(task, client.channel)
        await it.rig.settle()
        call.elicit()
        await it.rig.settle()
        waiting.hang_up()
        await it.rig.settle()
        client.result(task, client.channel)
        await it.rig.settle()
        assert len(client.channel.questions) == 1


async def test_when_the_sessions_stream_breaks_it_is_asked_again_on_the_next() -> None:
    """T25-INP-004."""
    async with bench_2025() as it:
        client = it.client()
        task, _, question = await asked(it, client)
        client.stop_listening()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "input_required"
        stream = client.listen()
        assert len(stream.questions) == 1
        client.answer(stream.questions[0])
        assert await question.answer() == YES


async def test_a_client_that_only_polls_and_listens_is_asked_there() -> None:
    """Field report 9: ext-tasks never calls `tasks/result` while a task runs."""
    async with bench_2025() as it:
        client = it.client(listens=False)
        task, call = await client.task()
        call.elicit()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "input_required"
        assert len(client.listen().questions) == 1


async def test_another_session_of_the_owner_is_asked_where_the_first_has_left() -> None:
    """F06."""
    async with bench_2025() as it:
        client, other = it.client(), it.client()
        task, _, question = await asked(it, client)
        await other.get(task)
        assert other.channel.questions == []
        client.channel.is_open = False
        client.session.end()
        await it.rig.settle()
        assert len(other.channel.questions) == 1
        other.answer(other.channel.questions[0])
        assert await question.answer() == YES


async def test_tasks_get_is_only_answered_while_input_is_awaited() -> None:
    """T25-INP-005: it has no stream of its own."""
    async with bench_2025() as it:
        client = it.client(listens=False)
        task, _, _ = await asked(it, client)
        assert (await client.get(task))["status"] == "input_required"
        assert client.channel.said == []


# -- whose answer counts ------------------------------------------------------------------------------


async def test_an_answer_counts_once() -> None:
    """T25-INP-004, F16: what comes again is nobody's, and never the server's."""
    async with bench_2025() as it:
        client = it.client()
        task, _, question = await asked(it, client)
        [request] = client.channel.questions
        assert client.answer(request)
        assert client.answer(request, NO)
        assert client.refuse(request)
        await it.rig.settle()
        assert [answer["result"] for answer in question.answers] == [YES]
        assert (await client.get(task))["status"] == "working"


async def test_an_answer_of_another_owner_is_no_answer() -> None:
    """I5: it is not sent to its server either."""
    async with bench_2025() as it:
        client, stranger = it.client(), it.client(BOB)
        task, _, question = await asked(it, client)
        [request] = client.channel.questions
        assert stranger.answer(request, NO)
        assert stranger.refuse(request)
        await it.rig.settle()
        assert question.answers == []
        assert (await client.get(task))["status"] == "input_required"
        assert client.answer(request)
        assert await question.answer() == YES


@pytest.mark.parametrize("id", [0, 1, "1", "q", "tpx-ask-1"])
async def test_answers_to_the_servers_own_questions_are_left_to_it(id: Any) -> None:
    """F16."""
    async with bench_2025() as it:
        client = it.client()
        await asked(it, client)
        assert not client.answer({"id": id})
        assert not client.refuse({"id": id})


async def test_another_session_of_the_owner_may_answer() -> None:
    async with bench_2025() as it:
        client, other = it.client(), it.client()
        _, _, question = await asked(it, client)
        assert other.answer(client.channel.questions[0])
        assert await question.answer() == YES


async def test_an_answer_by_a_modern_client_takes_the_question_back_from_the_2025_one() -> None:
    """Contract section 5: an owner reaches a task by either dialect; one answer counts."""
    async with bench_2025() as it:
        client = it.client()
        modern = it.rig.client(owner=client.owner)
        task, _, question = await asked(it, client)
        [request] = client.channel.questions
        [key] = (await modern.get(task))["inputRequests"]
        await modern.update(task, {key: NO})
        await it.rig.settle()
        assert client.channel.open_questions == []
        assert client.answer(request)
        await it.rig.settle()
        assert [answer["result"] for answer in question.answers] == [NO]
        assert (await client.get(task))["status"] == "working"


async def test_a_question_of_a_modern_task_is_put_to_a_2025_client_that_asks_for_it() -> None:
    async with bench_2025() as it:
        client = it.client()
        modern = it.rig.client(owner=client.owner)
        task, call = await it.rig.task(modern)
        question = call.elicit()
        await it.rig.settle()
        assert client.channel.questions == []
        client.result(task)
        await it.rig.settle()
        client.answer(client.channel.questions[0])
        assert await question.answer() == YES
        assert "inputRequests" not in await modern.get(task)


@pytest.mark.parametrize(
    ("declared", "is_asked"),
    [
        ({}, False),
        ({"sampling": {}, "roots": {}}, False),
        ({"elicitation": {"url": {}}}, False),
        ({"elicitation": {}}, True),
        ({"elicitation": {"form": {}}}, True),
        (None, True),
    ],
)
async def test_a_2025_client_is_not_asked_for_a_modern_one_what_it_cannot_answer(
    declared: dict[str, Any] | None, is_asked: bool
) -> None:
    """F15: its error would be the answer. The modern client still can, and so can the next 2025 session."""
    async with bench_2025() as it:
        client = it.client(capabilities=declared)
        task, call = await it.rig.task(it.rig.client(owner=client.owner))
        question = call.elicit()
        stream = FakeChannel()
        client.result(task, stream)
        await it.rig.settle()
        assert len(stream.questions) == is_asked
        assert (await client.get(task))["status"] == "input_required"
        able = client if is_asked else it.client(capabilities={"elicitation": {}})
        await able.get(task)
        await it.rig.settle()
        able.answer((able.channel.questions + stream.questions)[0])
        assert await question.answer() == YES


async def test_who_asked_for_the_task_is_asked_whatever_its_server_asks() -> None:
    """Contract section 6: as without us. It answers with an error, if so, itself."""
    async with bench_2025() as it:
        client = it.client(capabilities={})
        await asked(it, client)
        assert len(client.channel.questions) == 1


@pytest.mark.parametrize("turns", range(6))
async def test_two_answers_at_once_in_two_dialects_leave_one(turns: int, capsys: Any) -> None:
    """I4, F16, T25-SEC-009: one answer was given, and one line says so."""
    async with bench_2025() as it:
        client = it.client()
        modern = it.rig.client(owner=client.owner)
        task, call, question = await asked(it, client)
        [key] = (await modern.get(task))["inputRequests"]
        params = {"taskId": task, "inputResponses": {key: NO}}
        update = modern.start("tasks/update", params)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        client.answer(client.channel.questions[0])
        await it.rig.settle()
        assert await update.result() == {"resultType": "complete"}
        assert len(question.answers) == 1
        assert question.answers[0]["result"] in (YES, NO)
        call.answer()
        await it.rig.settle()
        assert (await client.get(task))["status"] == "completed"
    assert "".join(capsys.readouterr()).count("task_input_given") == 1


# -- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["broken", "unsure", "unreadable"])
async def test_an_answer_is_kept_while_the_store_is_broken_and_the_user_not_asked_again(fault: str) -> None:
    """Contract section 9: stored before it is sent, and sent once."""
    async with bench_2025() as it:
        client = it.client()
        task, _, question = await asked(it, client)
        setattr(it.rig.store, fault, True)
        client.answer(client.channel.questions[0])
        await it.rig.pass_time(5)
        stream = client.listen()
        await it.rig.pass_time(5)
        assert stream.questions == []
        if fault != "unsure":  # there it was stored all the same
            assert question.answers == []
        setattr(it.rig.store, fault, False)
        await it.rig.pass_time(20)
        assert [answer["result"] for answer in question.answers] == [YES]
        assert (await client.get(task))["status"] == "working"
        assert stream.questions == []


async def test_a_task_that_is_cancelled_while_an_answer_waits_for_the_store_stays_cancelled() -> None:
    """I4."""
    async with bench_2025() as it:
        client = it.client()
        task, _, question = await asked(it, client)
        it.rig.store.gate = anyio.Event()
        client.answer(client.channel.questions[0])
        await it.rig.settle()
        sent = client.cancel(task)
        await it.rig.settle()
        it.rig.store.gate.set()
        assert (await sent.result())["status"] == "cancelled"
        await it.rig.pass_time(20)
        assert (await client.get(task))["status"] == "cancelled"
        assert len(question.answers) <= 1


async def test_an_answer_to_a_server_that_has_died_is_nobodys() -> None:
    async with bench_2025() as it:
        client = it.client()
        task, call, question = await asked(it, client)
        call.wire.break_off()
        client.answer(client.channel.questions[0])
        await it.rig.settle()
        assert (await client.get(task))["status"] == "failed"
        assert question.answers == []


async def test_that_the_user_answered_is_told_and_not_what(capsys: Any) -> None:
    """T25-SEC-009."""
    async with bench_2025() as it:
        client = it.client()
        await asked(it, client)
        client.answer(client.channel.questions[0], {"action": "accept", "content": {"name": "Lovelace"}})
        await it.rig.settle()
    told = "".join(capsys.readouterr())
    assert told.count("task_input_given") == 1
    assert "Lovelace" not in told
