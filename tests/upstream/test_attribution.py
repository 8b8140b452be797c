"""Which call a question of the upstream belongs to, rule by rule. Contract section 2; ELIC-008, ELIC-011."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from proxy.errors import UpstreamClosed
from proxy.upstream import questions as questions_module
from proxy.upstream.pending import AskingTools
from proxy.upstream.questions import UNCLAIMED_S
from tests.upstream.fake_transport import FORM, Client, Conversation, conversation, ended, settle, until

pytestmark = pytest.mark.anyio

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
ROOTS = "roots/list"


async def asked(talk: Conversation, *clients: Client, id: Any = "q", on: Client | None = None) -> str | None:
    """The upstream asks; the name of the one client that is asked, None if it is nobody."""
    talk.server.ask(id, ELICIT, FORM, on=on.id if on else None)
    await settle()
    names = [c.name for c in clients if id in c.open]
    assert len(names) <= 1
    return names[0] if names else None


# ----------------------------------------------------------------------- nothing on the wire says whose


async def test_one_call_that_can_carry_input_is_asked() -> None:
    async with conversation() as talk:
        call = await talk.call("train")
        assert await asked(talk, call) == "train"


async def test_calls_that_cannot_carry_input_do_not_count() -> None:
    async with conversation() as talk:
        call = await talk.call("train")
        other = await talk.call("", method="completion/complete")
        assert await asked(talk, call, other) == "train"


@pytest.mark.parametrize("method", ["tools/call", "prompts/get", "resources/read"])
async def test_all_methods_that_carry_input_can_be_asked(method: str) -> None:
    async with conversation() as talk:
        call = await talk.call("x", method=method)
        assert await asked(talk, call) == "x"


async def test_of_several_the_oldest_that_is_known_to_ask_is_asked() -> None:
    async with conversation(known_to_ask=["confirm", "book"]) as talk:
        calls = [await talk.call(tool) for tool in ("echo", "confirm", "book", "train")]
        assert await asked(talk, *calls) == "confirm"


async def test_one_that_waits_already_is_passed_over() -> None:
    async with conversation(known_to_ask=["confirm", "book"]) as talk:
        calls = [await talk.call(tool) for tool in ("confirm", "echo", "book")]
        assert await asked(talk, *calls, id=1) == "confirm"
        assert await asked(talk, *calls, id=2) == "book"
        assert await asked(talk, *calls, id=3) == "echo"


async def test_an_answered_one_waits_no_more() -> None:
    """The next question may come before our own send has returned."""
    async with conversation(known_to_ask=["confirm"]) as talk:
        confirm, echo = await talk.call("confirm"), await talk.call("echo")
        assert await asked(talk, confirm, echo, id=1) == "confirm"
        talk.server.reads = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(confirm.questions[0].answer, b'{"action":"accept"}')
            await talk.server.told(1)
            assert await asked(talk, confirm, echo, id=2) == "confirm"
            talk.server.reads.set()


async def test_where_none_is_known_to_ask_the_newest_that_does_not_wait_is_asked() -> None:
    async with conversation() as talk:
        calls = [await talk.call(tool) for tool in ("a", "b", "c")]
        assert await asked(talk, *calls, id=1) == "c"
        assert await asked(talk, *calls, id=2) == "b"
        assert await asked(talk, *calls, id=3) == "a"


async def test_where_all_wait_the_newest_is_asked() -> None:
    async with conversation(known_to_ask=["a"]) as talk:
        a, b = await talk.call("a"), await talk.call("b")
        assert [await asked(talk, a, b, id=n) for n in (1, 2)] == ["a", "b"]
        assert await asked(talk, a, b, id=3) == "b"


async def test_a_tool_seen_asking_while_alone_is_known_from_then_on() -> None:
    asking = AskingTools(lambda tool: False)
    async with conversation(asking=asking) as talk:
        confirm = await talk.call("confirm")
        assert await asked(talk, confirm) == "confirm"
        await confirm.questions[0].answer(b'{"action":"accept"}')
        await talk.answer(confirm)

        confirm, echo = await talk.call("confirm"), await talk.call("echo")
        assert await asked(talk, confirm, echo) == "confirm"
    async with conversation(asking=asking) as talk:  # also in other sessions with the server
        confirm, echo = await talk.call("confirm"), await talk.call("echo")
        assert await asked(talk, confirm, echo) == "confirm"


async def test_a_guess_teaches_nothing() -> None:
    async with conversation() as talk:
        first, second = await talk.call("first"), await talk.call("second")
        assert await asked(talk, first, second, id=1) == "second"
        await second.questions[0].answer(b'{"action":"accept"}')
        third = await talk.call("third")
        assert await asked(talk, first, second, third, id=2) == "third"


async def test_roots_teach_nothing() -> None:
    """Servers ask for them when the session begins, whatever call is first."""
    async with conversation() as talk:
        echo = await talk.call("echo")
        talk.server.ask("r", ROOTS)
        assert echo.open == ["r"]
        await echo.questions[0].answer(b'{"roots":[]}')
        confirm = await talk.call("confirm")
        assert await asked(talk, echo, confirm) == "confirm"


async def test_a_cancelled_call_is_never_asked() -> None:
    async with conversation(known_to_ask=["confirm"]) as talk:
        confirm, echo = await talk.call("confirm"), await talk.call("echo")
        confirm.hang_up()
        await ended(confirm)
        assert await asked(talk, confirm, echo) == "echo"


async def test_an_answered_call_is_never_asked() -> None:
    """Nor in the same breath: the answer and the question come in one read."""
    async with conversation(known_to_ask=["confirm"]) as talk:
        confirm, echo = await talk.call("confirm"), await talk.call("echo")
        assert confirm.sent is not None
        talk.server.answer(confirm.sent)
        talk.server.ask(1, ELICIT, FORM)
        assert (confirm.open, echo.open) == ([], [1])


# ------------------------------------------------------------------------------------ the wire says whose


async def test_a_question_on_the_stream_of_a_call_is_that_calls() -> None:
    async with conversation(known_to_ask=["confirm"]) as talk:
        confirm, echo = await talk.call("confirm"), await talk.call("echo")
        assert await asked(talk, confirm, echo, id=1, on=echo) == "echo"
        assert await asked(talk, confirm, echo, id=2, on=echo) == "echo"


async def test_a_question_on_the_stream_of_a_call_that_cannot_carry_it_falls_under_the_rule() -> None:
    async with conversation() as talk:
        train = await talk.call("train")
        other = await talk.call("", method="completion/complete")
        assert await asked(talk, train, other, on=other) == "train"


async def test_a_question_on_the_stream_of_a_call_that_has_ended_is_refused() -> None:
    """It is nobody else's, though another call is in flight."""
    async with conversation() as talk:
        first, other = await talk.call("first"), await talk.call("other")
        await talk.answer(first)
        assert await asked(talk, other, on=first) is None
        assert (await talk.server.told("q"))["error"]["code"] == -32603


# ------------------------------------------------------------------------------------ the call ends first


@pytest.mark.parametrize("how", ["answered", "cancelled", "lost"])
async def test_a_guessed_question_moves_on_when_its_call_ends(how: str) -> None:
    async with conversation() as talk:
        older, newer = await talk.call("older"), await talk.call("newer")
        assert await asked(talk, older, newer) == "newer"
        await end(talk, newer, how)
        assert newer.open == []
        assert older.open == ["q"]

        await older.questions[0].answer(b'{"action":"decline"}')
        assert (await talk.server.told("q"))["result"] == {"action": "decline"}


@pytest.mark.parametrize("how", ["answered", "cancelled", "lost"])
async def test_a_question_of_its_call_alone_is_refused_when_that_ends(how: str) -> None:
    async with conversation() as talk:
        call, other = await talk.call("call"), await talk.call("other")
        assert await asked(talk, call, other, on=call) == "call"
        await end(talk, call, how)
        assert (call.open, other.open) == ([], [])
        assert (await talk.server.told("q"))["error"]["code"] == -32603


@pytest.mark.parametrize("how", ["answered", "cancelled", "lost"])
async def test_a_guessed_question_is_refused_when_no_other_call_can_carry_it(how: str) -> None:
    """It would otherwise meet the user of a later call, who did nothing that led to it."""
    async with conversation() as talk:
        call = await talk.call("call")
        await talk.call("", method="completion/complete")
        assert await asked(talk, call) == "call"
        await end(talk, call, how)
        assert (await talk.server.told("q"))["error"]["code"] == -32603


async def test_roots_still_wait_when_the_call_that_was_asked_for_them_has_ended() -> None:
    """The first call after the handshake is often too short for its client to answer."""
    async with conversation() as talk:
        short = await talk.call("short")
        talk.server.ask("r", ROOTS)
        assert short.open == ["r"]
        await talk.answer(short)
        assert short.open == []

        longer = await talk.call("longer")
        assert longer.open == ["r"]
        await longer.questions[0].answer(b'{"roots":[]}')
        assert (await talk.server.told("r"))["result"] == {"roots": []}


async def test_a_question_whose_answer_could_not_be_sent_is_refused_at_the_end_of_its_call() -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        assert await asked(talk, call) == "call"
        (question,) = call.questions
        talk.server.refusal = UpstreamClosed("broken pipe")
        with pytest.raises(UpstreamClosed):
            await question.answer(b"{}")
        talk.server.refusal = None
        await talk.answer(call)
        assert (await talk.server.told("q"))["error"]["code"] == -32603


async def end(talk: Conversation, client: Client, how: str) -> None:
    if how == "answered":
        await talk.answer(client)
    elif how == "cancelled":
        client.hang_up()
    else:
        talk.server.lose(client.id, UpstreamClosed("the stream broke"))
    await ended(client)


# --------------------------------------------------------------------------------- no call can carry it


async def test_a_question_without_a_call_waits_for_the_next_one_that_can_carry_it() -> None:
    async with conversation() as talk:
        assert await asked(talk) is None
        other = await talk.call("", method="completion/complete")
        assert other.open == []
        call = await talk.call("train")
        assert call.open == ["q"]


async def test_a_question_without_a_call_gets_an_error_in_the_end() -> None:
    """ELIC-011."""
    async with conversation() as talk:
        talk.server.ask(1, ELICIT, FORM)
        await talk.clock.advance(UNCLAIMED_S / 2)
        talk.server.ask(2, ELICIT, FORM)
        await talk.clock.advance(UNCLAIMED_S / 2 - 1)
        assert talk.server.answers_to(1) == []
        await talk.clock.advance(1)
        assert talk.server.answers_to(1)[0]["error"]["code"] == -32603
        assert talk.server.answers_to(2) == []
        await talk.clock.advance(UNCLAIMED_S / 2)
        assert talk.server.answers_to(2)[0]["error"]["code"] == -32603


async def test_a_call_that_cannot_carry_it_does_not_prolong_the_wait() -> None:
    async with conversation() as talk:
        talk.server.ask(1, ELICIT, FORM)
        await talk.clock.advance(UNCLAIMED_S - 1)
        await talk.call("", method="completion/complete")
        await talk.clock.advance(1)
        assert talk.server.answers_to(1)[0]["error"]["code"] == -32603


async def test_a_question_that_found_its_call_does_not_expire() -> None:
    async with conversation() as talk:
        talk.server.ask(1, ELICIT, FORM)
        call = await talk.call("train")
        await talk.clock.advance(UNCLAIMED_S * 2)
        assert call.open == [1]
        assert talk.server.answers_to(1) == []


async def test_roots_that_are_known_are_answered_at_once() -> None:
    async with conversation() as talk:
        call = await talk.call("train")
        talk.server.ask(1, ROOTS)
        await call.questions[0].answer(b'{"roots":[{"uri":"file:///a"}]}')
        await talk.answer(call)

        talk.server.ask(2, ROOTS)
        assert (await talk.server.told(2))["result"] == {"roots": [{"uri": "file:///a"}]}


async def test_roots_that_were_refused_are_not_known() -> None:
    async with conversation() as talk:
        call = await talk.call("train")
        talk.server.ask(1, ROOTS)
        call.questions[0].refuse(b'{"code":-32603,"message":"not now"}')
        await talk.answer(call)
        talk.server.ask(2, ROOTS)
        await settle()
        assert talk.server.answers_to(2) == []


# -------------------------------------------------------------------------------- what nobody can answer


@pytest.mark.parametrize(
    ("declared", "method", "params", "code"),
    [
        ({}, ELICIT, FORM, -32601),
        ({}, SAMPLE, {"messages": [], "maxTokens": 1}, -32601),
        ({}, ROOTS, None, -32601),
        ({"elicitation": {}}, ELICIT, {"mode": "url", "url": "https://x/", "message": "m"}, -32602),
        ({"elicitation": {"url": {}}}, ELICIT, FORM, -32602),
        ({"sampling": {}}, SAMPLE, {"messages": [], "maxTokens": 1, "tools": []}, -32602),
    ],
)
async def test_what_the_session_did_not_offer_is_refused_at_once(
    declared: dict[str, Any], method: str, params: Any, code: int
) -> None:
    """ELIC-001, ELIC-010, ELIC-011: no call is in flight, and none is waited for."""
    async with conversation(declared=declared) as talk:
        talk.server.ask("q", method, params)
        assert (await talk.server.told("q"))["error"]["code"] == code


async def test_what_the_session_did_not_offer_is_refused_on_the_stream_of_any_call() -> None:
    async with conversation(declared={}) as talk:
        call = await talk.call("", method="completion/complete")
        talk.server.ask("q", ROOTS, on=call.id)
        assert (await talk.server.told("q"))["error"]["code"] == -32601


async def test_a_call_is_told_what_it_cannot_answer_and_its_cancel_goes_before_the_refusal() -> None:
    """MRTR-011: the listener decides, here by hanging up. Not the next call: it could answer as little."""
    async with conversation(declared={}) as talk:
        other, call = await talk.call("other"), await talk.call("call")
        assert await asked(talk, other, call) == "call"
        call.hang_up()
        assert (await talk.server.told("q"))["error"]["code"] == -32601
        assert other.open == []
        kinds = [m.method or "refusal" for m in talk.server.sent[-2:]]
        assert kinds == ["notifications/cancelled", "refusal"]


async def test_a_listener_may_refuse_at_once() -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        assert await asked(talk, call) == "call"
        call.questions[0].refuse(b'{"code":-32601,"message":"no"}')
        assert (await talk.server.told("q"))["error"] == {"code": -32601, "message": "no"}
        await talk.answer(call)
        assert call.withdrawn == []
        assert len(talk.server.answers_to("q")) == 1


@pytest.mark.parametrize("method", ["tasks/get", "sampling/invented", "ping2"])
async def test_unknown_methods_are_refused_at_once(method: str) -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask("q", method, {})
        assert (await talk.server.told("q"))["error"]["code"] == -32601
        assert call.open == []


@pytest.mark.parametrize("params", [None, [], [1], "x", 3])
async def test_a_question_without_usable_params_is_refused(params: Any) -> None:
    """Not asked: what clients make of it is unknown."""
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask("q", ELICIT, params)
        assert (await talk.server.told("q"))["error"]["code"] == -32602
        assert call.open == []


async def test_roots_need_no_params() -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask(1, ROOTS)
        talk.server.ask(2, ROOTS, {})
        assert call.open == [1, 2]


async def test_open_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """F16: a server that asks without waiting gets errors, and room again when some are answered."""
    monkeypatch.setattr(questions_module, "MAX_OPEN", 2)
    async with conversation() as talk:
        call = await talk.call("call")
        for number in (1, 2, 3):
            talk.server.ask(number, ELICIT, FORM)
        assert call.open == [1, 2]
        assert (await talk.server.told(3))["error"]["code"] == -32603
        await call.questions[0].answer(b"{}")
        talk.server.ask(4, ELICIT, FORM)
        assert 4 in call.open


# ------------------------------------------------------------------------------------- ids and answers


async def test_answers_go_back_by_the_questions_own_id() -> None:
    """F16, ELIC-008: 0 and "0" are two questions."""
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask(0, ELICIT, FORM)
        talk.server.ask("0", ELICIT, FORM)
        number, text = call.questions
        await text.answer(b'{"action":"cancel"}')
        await number.answer(b'{"action":"accept"}')
        assert (await talk.server.told("0"))["result"] == {"action": "cancel"}
        assert (await talk.server.told(0))["result"] == {"action": "accept"}


async def test_only_the_first_answer_or_refusal_is_sent() -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask(1, ELICIT, FORM)
        (question,) = call.questions
        await question.answer(b'{"n":1}')
        await question.answer(b'{"n":2}')
        question.refuse(b'{"code":1,"message":""}')
        await settle()
        assert [a["result"] for a in talk.server.answers_to(1)] == [{"n": 1}]


async def test_an_answer_that_could_not_be_sent_may_be_sent_again() -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask(1, ELICIT, FORM)
        (question,) = call.questions
        talk.server.refusal = UpstreamClosed("the POST broke")
        with pytest.raises(UpstreamClosed):
            await question.answer(b'{"n":1}')
        talk.server.refusal = None
        await question.answer(b'{"n":1}')
        assert [a["result"] for a in talk.server.answers_to(1)] == [{"n": 1}]


async def test_an_answer_that_was_cancelled_leaves_the_question_open() -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask(1, ELICIT, FORM)
        talk.server.reads = anyio.Event()
        with anyio.move_on_after(0):
            await call.questions[0].answer(b'{"n":1}')
        talk.server.reads = None
        call.questions[0].refuse(b'{"code":-32603,"message":"no"}')
        await until(lambda: len(talk.server.answers_to(1)) == 2)


async def test_a_question_withdrawn_while_its_answer_is_sent_is_not_asked_again() -> None:
    async with conversation() as talk:
        call, other = await talk.call("call"), await talk.call("other")
        assert await asked(talk, call, other, on=call) == "call"
        talk.server.reads = anyio.Event()
        with anyio.CancelScope() as sending:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call.questions[0].answer, b"{}")
                await talk.server.told("q")
                talk.server.notify("notifications/cancelled", {"requestId": "q"})
                sending.cancel()
        talk.server.reads = None
        await talk.answer(call)
        await settle()
        assert len(talk.server.answers_to("q")) == 1
        assert other.open == []


async def test_a_withdrawn_question_is_open_no_more() -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask("q", ELICIT, FORM)
        talk.server.notify("notifications/cancelled", {"requestId": "q", "reason": "changed my mind"})
        assert call.open == []
        await call.questions[0].answer(b"{}")
        await talk.answer(call)
        await settle()
        assert talk.server.answers_to("q") == []


async def test_a_question_withdrawn_before_a_call_came_is_not_asked() -> None:
    async with conversation() as talk:
        talk.server.ask("q", ELICIT, FORM)
        talk.server.notify("notifications/cancelled", {"requestId": "q"})
        call = await talk.call("call")
        assert call.open == []


async def test_a_withdrawal_names_the_question_of_its_own_stream_first() -> None:
    """Servers that are one instance for each request count their questions for each of them."""
    async with conversation() as talk:
        first, second = await talk.call("first"), await talk.call("second")
        assert await asked(talk, first, id=0, on=first) == "first"
        assert await asked(talk, second, id=0, on=second) == "second"
        talk.server.notify("notifications/cancelled", {"requestId": 0}, on=second.id)
        assert (first.open, second.open) == ([0], [])


@pytest.mark.parametrize(
    "params", [None, {}, [], {"requestId": None}, {"requestId": 1.5}, {"requestId": "?"}]
)
async def test_withdrawals_of_nothing_are_ignored(params: Any) -> None:
    """CANC-002."""
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask("q", ELICIT, FORM)
        talk.server.notify("notifications/cancelled", params)
        assert call.open == ["q"]


async def test_a_question_replayed_after_a_resume_is_not_asked_twice() -> None:
    """Contract section 4: it keeps its key."""
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask("q", ELICIT, FORM, on=call.id)
        talk.server.ask("q", ELICIT, FORM, on=call.id)
        assert call.open == ["q"]


async def test_params_reach_the_client_as_they_came() -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        raw = b'{"b":1.10, "message":"\\u00e9", "a":1E400}'
        talk.server.deliver(b'{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":' + raw + b"}")
        (question,) = call.questions
        assert question.params == raw
        assert question.method == ELICIT


async def test_nothing_is_said_about_questions_of_a_dead_session() -> None:
    async with conversation() as talk:
        call = await talk.call("call")
        talk.server.ask("q", ELICIT, FORM)
        talk.server.lose_all(UpstreamClosed("died"))
        await ended(call)
        assert call.open == []
        await settle()
        assert talk.server.answers_to("q") == []


async def test_a_question_of_a_cancelled_call_is_not_put_to_one_that_was_sent_after_it_came() -> None:
    """ELIC-008: what was sent later did not ask; what came while its call was alone is that call's."""
    async with conversation() as talk:
        asker = await talk.call("confirm")
        assert await asked(talk, asker) == "confirm"
        later = await talk.call("train")
        asker.hang_up()
        await settle()
        assert "q" not in later.open
        assert "error" in await talk.server.told("q")


async def test_of_several_calls_only_those_that_were_in_flight_may_get_a_question_that_moves_on() -> None:
    async with conversation() as talk:
        first, second = await talk.call("echo"), await talk.call("confirm")
        assert await asked(talk, first, second) == "confirm"
        later = await talk.call("train")
        second.hang_up()
        await settle()
        assert "q" in first.open
        assert "q" not in later.open
