"""Which request of a legacy client a message of its server belongs to.

Holds the contract's section 2, "Which call does a server-initiated request belong to?".
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.eras.attribution import AskingTools
from proxy.protocol import names
from proxy.protocol.jsonrpc import Notification, Request, RequestId
from proxy.routing.in_flight import FIRST_TASK_ID, MAX_ASKED, InFlight, Sent

ASK = names.ELICITATION_CREATE


def request(id: int | str, method: str = names.TOOLS_CALL, params: Any = None) -> Request:
    raw = json.dumps(id).encode()
    return Request(RequestId(raw, id), method, None if params is None else json.dumps(params).encode())


def table(asking: AskingTools | None = None) -> InFlight:
    return InFlight(asking or AskingTools(lambda tool: tool == "confirm"))


def call(it: InFlight, tool: str, id: int | str | None = None, **meta: Any) -> Sent:
    return it.add(request(tool if id is None else id, params={"name": tool, "_meta": meta}))


def told(it: InFlight, method: str, params: Any = None, *, on: int | None = None) -> Sent | None:
    return it.told(Notification(method, None if params is None else json.dumps(params).encode()), on)


def test_where_the_wire_tells_that_is_whose_it_is() -> None:
    """HTTP: the call on whose stream it came, whatever it is."""
    it = table()
    listed = it.add(request(1, names.TOOLS_LIST))
    call(it, "a")
    assert it.asked(request("q", ASK), listed.id) is listed
    assert told(it, names.LOG_MESSAGE, on=listed.id) is listed
    assert told(it, "notifications/x", on=999) is None


@pytest.mark.parametrize(
    ("calls", "asker"),
    [
        ([], None),
        (["a"], "a"),
        (["a", "b"], "b"),
        (["confirm", "b"], "confirm"),
        (["a", "confirm", "b"], "confirm"),
    ],
)
def test_else_the_rule_of_the_contract_decides(calls: list[str], asker: str | None) -> None:
    it = table()
    it.add(request(0, names.TOOLS_LIST))
    for tool in calls:
        call(it, tool)
    found = it.asked(request("q", ASK), None)
    assert (found and found.name) == asker


def test_a_call_that_waits_for_an_answer_is_not_the_next_to_ask() -> None:
    it = table()
    a, b = call(it, "a"), call(it, "b")
    assert it.asked(request("q1", ASK), None) is b
    assert it.asked(request("q2", ASK), None) is a
    assert it.take_answered("q1")
    assert it.asked(request("q3", ASK), None) is b


def test_neither_a_cancelled_call_nor_a_request_of_our_own_asks() -> None:
    it = table()
    a = call(it, "a")
    call(it, "b").cancelled = True
    it.add_own(names.TOOLS_CALL)
    assert it.asked(request("q", ASK), None) is a


def test_a_tool_that_asks_while_it_is_alone_is_known_to_ask_but_not_by_roots_or_pings() -> None:
    asking = AskingTools(lambda tool: False)
    it = table(asking)
    a = call(it, "a")
    it.asked(request("r", names.ROOTS_LIST), None)
    it.asked(request("p", names.PING), None)
    assert not asking.know(a)
    it.asked(request("q", ASK), None)
    assert asking.know(a)


def test_a_question_of_a_task_of_the_servers_own_goes_with_who_waits_for_its_result() -> None:
    """2025 tasks: related-task comes first."""
    it = table()
    call(it, "confirm")
    waits = it.add(request(1, names.TASKS_RESULT, {"taskId": "x"}))
    meta = {"_meta": {names.META_RELATED_TASK: {"taskId": "x"}}}
    other = {"_meta": {names.META_RELATED_TASK: {"taskId": "y"}}}
    assert it.asked(request("q", ASK, meta), None) is waits
    assert it.asked(request("q", ASK, other), None) is None


def test_progress_belongs_to_its_token_which_has_a_type() -> None:
    """F02."""
    it = table()
    text, number = call(it, "a", progressToken="1"), call(it, "b", progressToken=1)
    assert told(it, names.PROGRESS, {"progressToken": "1"}) is text
    assert told(it, names.PROGRESS, {"progressToken": 1}) is number
    odd: list[Any] = [2, "2", None, 1.0, True, []]
    assert [told(it, names.PROGRESS, {"progressToken": token}) for token in odd] == [None] * len(odd)
    it.pop(text.id)
    assert told(it, names.PROGRESS, {"progressToken": "1"}) is None


def test_a_log_line_belongs_to_what_is_alone() -> None:
    it = table()
    a = call(it, "a")
    assert told(it, names.LOG_MESSAGE, {}) is a
    b = call(it, "b")
    assert told(it, names.LOG_MESSAGE, {}) is None
    a.cancelled = True
    assert told(it, names.LOG_MESSAGE, {}) is b


def test_a_withdrawal_goes_where_the_question_went() -> None:
    it = table()
    a = call(it, "a")
    it.asked(request("q", ASK), None)
    call(it, "b")
    assert told(it, names.CANCELLED, {"requestId": "q"}) is a
    assert told(it, names.CANCELLED, {"requestId": "other"}) is None


@pytest.mark.parametrize("method", [names.TOOLS_LIST_CHANGED, names.RESOURCES_UPDATED, "notifications/x"])
def test_all_else_belongs_to_no_call(method: str) -> None:
    it = table()
    call(it, "a")
    assert told(it, method, {"progressToken": 1}) is None


@pytest.mark.parametrize(
    "params", [None, [], "x", 0, {"_meta": []}, {"_meta": {"progressToken": {}}}, {"name": 1}]
)
def test_params_of_any_shape_are_harmless(params: Any) -> None:
    """F19."""
    it = table()
    sent = it.add(request(1, params=params))
    assert (sent.name, sent.token, sent.task) == (None, None, None)
    assert told(it, names.PROGRESS, params) is None
    assert told(it, names.CANCELLED, params) is None
    assert it.asked(request("q", ASK, params), None) is sent


def test_what_was_asked_is_bounded() -> None:
    """F16: a server that asks and asks fills no memory; the oldest are forgotten."""
    it = table()
    a = call(it, "a")
    for n in range(MAX_ASKED + 10):
        it.asked(request(n, ASK), None)
    assert len(a.questions) == MAX_ASKED
    assert not it.take_answered(9)
    assert it.take_answered(10)
    assert not it.take_answered(10)


# -- calls of our tasks among the client's --------------------------------------------------------------


def task_call(it: InFlight, tool: str = "t", number: int = 0) -> Sent:
    it.add_of_task(FIRST_TASK_ID + number, names.TOOLS_CALL, tool)
    found = [sent for sent in it if sent.id == FIRST_TASK_ID + number]
    return found[0]


def test_the_rule_holds_among_calls_of_both_kinds() -> None:
    """Contract section 2: the one known to ask, else the newest; nobody waits for a task's call here."""
    it = table()
    ours = task_call(it, "confirm")
    call(it, "a")
    assert it.asked(request("q", ASK), None) is ours
    assert not ours.awaited
    assert ours.may_ask


def test_what_is_no_question_is_the_clients_to_answer_also_while_a_task_of_ours_runs() -> None:
    """T25-CAP-008: tasks that the client hosts; wherever the wire says that it came."""
    it = table()
    ours = task_call(it)
    for method in (names.TASKS_GET, names.TASKS_RESULT, names.TASKS_CANCEL, names.TASKS_LIST, "x/y"):
        assert it.asked(request(method, method), None) is None
        assert it.asked(request(method + "2", method), ours.id) is None
        assert it.take_answered(method)
    assert it.asked(request("q", ASK), ours.id) is ours
    plain = call(it, "a")
    assert it.asked(request("g", names.TASKS_GET), None) is plain


def test_what_is_said_of_the_session_is_no_part_of_a_task() -> None:
    """The client gets it as it is; what nobody knows may well be the task's."""
    it = table()
    ours, plain = task_call(it), call(it, "a")
    of_session = [
        names.TOOLS_LIST_CHANGED,
        names.PROMPTS_LIST_CHANGED,
        names.RESOURCES_LIST_CHANGED,
        names.RESOURCES_UPDATED,
        names.ELICITATION_COMPLETE,
    ]
    for method in of_session:
        assert told(it, method, {}, on=ours.id) is None
        assert told(it, method, {}, on=plain.id) is plain
    assert told(it, "notifications/new", {}, on=ours.id) is ours


def test_an_answer_is_taken_from_whom_the_question_was_put_to() -> None:
    """F16: the client does not answer for the task, nor the task for the client; and each once."""
    it = table()
    task_call(it)
    it.asked(request("ours", ASK), None)
    call(it, "a")
    it.asked(request("theirs", ASK), None)
    assert not it.take_answered("ours")
    assert not it.take_answered("theirs", by_task=True)
    assert it.take_answered("ours", by_task=True)
    assert it.take_answered("theirs")
    assert not it.take_answered("ours", by_task=True)


def test_progress_of_a_task_is_known_by_our_id_and_by_no_token_of_the_clients() -> None:
    it = table()
    ours = task_call(it)
    same = call(it, "a", progressToken=str(ours.id))
    assert told(it, names.PROGRESS, {"progressToken": ours.id}) is ours
    assert told(it, names.PROGRESS, {"progressToken": str(ours.id)}) is same
    it.pop(ours.id)
    assert told(it, names.PROGRESS, {"progressToken": ours.id}) is None
