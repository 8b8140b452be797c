"""The calls in flight in one session, without a session. The rule of attribution: see `test_attribution`."""

from __future__ import annotations

import traceback

import pytest

from proxy.errors import UpstreamClosed
from proxy.protocol.jsonrpc import RequestId
from proxy.upstream.base import Result
from proxy.upstream.pending import AskingTools, PendingCall, PendingTable
from tests.upstream.fake_transport import Listener


def add(table: PendingTable, name: str = "train", method: str = "tools/call") -> PendingCall:
    return table.add(method, name, Listener(name))


def rid(raw: bytes) -> RequestId | None:
    return RequestId.parse(raw)


def test_ids_are_integers_and_never_used_twice() -> None:
    """BASE-004, PROG-002: the id is the progress token, too."""
    table = PendingTable()
    ids = []
    for _ in range(50):
        call = add(table)
        ids.append(call.id)
        table.remove(call)
    assert len(set(ids)) == 50
    assert {type(i) for i in ids} == {int}


def test_what_is_settled_lost_or_removed_is_in_the_table_no_more() -> None:
    table = PendingTable()
    settled, lost, removed, left = (add(table) for _ in range(4))
    table.settle(settled, Result(b"{}"))
    table.lose(lost, UpstreamClosed("gone"))
    table.remove(removed)
    assert [c in table for c in (settled, lost, removed, left)] == [False, False, False, True]
    assert len(table) == 1
    assert settled.result() == Result(b"{}")
    with pytest.raises(UpstreamClosed, match="gone"):
        lost.result()
    assert not removed.ended.is_set()


def test_one_loss_raised_by_many_calls_does_not_gather_their_frames() -> None:
    table, loss = PendingTable(), UpstreamClosed("gone")
    calls = [add(table) for _ in range(20)]
    table.lose_all(loss)
    for call in calls:
        with pytest.raises(UpstreamClosed):
            call.result()
    assert len(traceback.extract_tb(loss.__traceback__)) <= 2
    assert len(table) == 0


@pytest.mark.parametrize("raw", [b"1", b'"1"'])
def test_a_response_may_spell_our_id_as_a_string_of_digits(raw: bytes) -> None:
    """F17."""
    table = PendingTable()
    call = add(table)
    assert table.answered_by(rid(raw)) is call


@pytest.mark.parametrize(
    "raw",
    [
        b"2",
        b"-1",
        b'"01"',
        b'"1.0"',
        b'" 1"',
        b'"1\\n"',
        b'"+1"',
        b'""',
        b'"server-error"',
        b'"\xd9\xa1"',
        b"1.0",
    ],
)
def test_other_ids_are_not_taken_for_ours(raw: bytes) -> None:
    """F17: also not the digits of other alphabets."""
    table = PendingTable()
    add(table)
    assert table.answered_by(rid(raw)) is None


def test_huge_ids_are_harmless() -> None:
    table = PendingTable()
    add(table)
    assert table.answered_by(rid(b"9" * 900)) is None
    assert table.answered_by(rid(b'"' + b"1" * 100_000 + b'"')) is None


def test_alone_is_the_only_one_in_flight_of_any_kind() -> None:
    table = PendingTable()
    assert table.alone() is None
    train = add(table)
    assert table.alone() is train
    listing = add(table, method="tools/list")
    assert table.alone() is None
    table.settle(train, Result(b"{}"))
    assert table.alone() is listing


def test_a_listen_stream_leaves_the_others_alone_and_is_no_call() -> None:
    """SUB-009."""
    table = PendingTable()
    add(table, method="subscriptions/listen")
    assert table.alone() is None
    train = add(table)
    assert table.alone() is train


@pytest.mark.parametrize(
    ("values", "passed"),
    [
        ([b"1", b"2", b"3"], [True, True, True]),
        ([b"2", b"1", b"2", b"3"], [True, False, False, True]),
        ([b"0", b"-1", b"0.5", b"0.50"], [True, False, True, False]),
        ([b'"1"', b"true", b"null", b"{}", b"[1]", b"1"], [False, False, False, False, False, True]),
        ([b"1e400", b"1e500", b"7"], [True, False, False]),
        ([b"-1e400", b"1"], [False, True]),
        ([b"9" * 5_000, b"1"], [True, False]),
    ],
)
def test_only_rising_progress_is_passed_on(values: list[bytes], passed: list[bool]) -> None:
    """PROG-003. Numbers of any size are harmless."""
    call = add(PendingTable())
    assert [call.rises(v) for v in values] == passed


# ---------------------------------------------------------------------------------------- asking tools


def test_a_tool_is_known_to_ask_by_setting_or_by_sight() -> None:
    table, asking = PendingTable(), AskingTools(lambda tool: tool == "confirm")
    confirm, train = add(table, "confirm"), add(table, "train")
    assert (asking.know(confirm), asking.know(train)) == (True, False)
    asking.saw(train)
    assert asking.know(train)


def test_prompts_and_resources_are_no_tools() -> None:
    """The settings of tools match by glob, and a prompt may have the name of a tool."""
    table, asking = PendingTable(), AskingTools(lambda tool: True)
    prompt = add(table, "confirm", "prompts/get")
    asking.saw(prompt)
    assert not asking.know(prompt)
    assert not asking.know(table.add("tools/call", None, Listener("nameless")))


def test_what_was_seen_is_bounded() -> None:
    table, asking = PendingTable(), AskingTools(lambda tool: False)
    calls = [add(table, f"tool-{n}") for n in range(AskingTools.MAX_SEEN + 10)]
    for call in calls:
        asking.saw(call)
    assert sum(asking.know(c) for c in calls) == AskingTools.MAX_SEEN


@pytest.mark.parametrize(
    ("in_flight", "chosen"),
    [
        # method or tool name, "*" where it waits already, "!" where it is known to ask
        ([], None),
        (["completion/complete"], None),
        (["a"], "a"),
        (["a*"], "a*"),
        (["completion/complete", "a", "tools/list"], "a"),
        (["a", "b", "c"], "c"),
        (["a", "b", "c*"], "b"),
        (["a!", "b", "c"], "a!"),
        (["a", "b!", "c!", "d"], "b!"),
        (["a", "b!*", "c!", "d"], "c!"),
        (["a", "b!*", "d"], "d"),
        (["a*", "b!*", "c*"], "c*"),
        (["a", "b!*"], "a"),
    ],
)
def test_the_rule_of_attribution(in_flight: list[str], chosen: str | None) -> None:
    """Contract section 2."""
    table, asking = PendingTable(), AskingTools(lambda tool: "!" in tool)
    for name in in_flight:
        call = add(table, name, name if "/" in name else "tools/call")
        if "*" in name:
            call.questions.append(None)  # type: ignore[arg-type]  # that there is one is all that counts
    found = table.attribute(asking)
    assert (found and found.name) == chosen


def test_calls_of_an_earlier_process_stand_in_the_order_in_which_they_came_back() -> None:
    """Their ids say nothing of it; a question is put to none that was begun after it came."""
    table = PendingTable()
    old = table.restore(1_000_000, "tools/call", "old", Listener("old"))
    up_to = table.newest
    new = add(table, "new")
    asking = AskingTools(lambda tool: False)
    assert list(table) == [old, new]
    assert table.attribute(asking, up_to) is old
    assert table.attribute(asking) is new
    assert table.get(1_000_000) is old


def test_ids_may_be_shared_between_sessions() -> None:
    ids = iter([5, 6, 7])
    one, two = PendingTable(ids), PendingTable(ids)
    assert [add(table).id for table in (one, two, one)] == [5, 6, 7]
