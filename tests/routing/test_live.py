"""One call on its way: the first end stays, keys are spent once, and a flood wakes nobody twice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.eras.capabilities import ClientCapabilities
from proxy.errors import ProxyError
from proxy.protocol.envelope import RawObject
from proxy.protocol.jsonrpc import RequestId
from proxy.routing.base import ClientRequest
from proxy.routing.live import START_GRACE_S, LiveCall
from proxy.tasks.inputs import MAX_BYTES, MAX_OPEN
from proxy.tasks.lost_call import REPEAT_MAX_BYTES, CallTrace, RoundTrace
from proxy.tasks.policy import ToolPolicy
from proxy.upstream.base import Result, StreamPosition, WaitingRound

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Asked:
    """A question of the server; `refused` has the errors that answered it."""

    method: str = "elicitation/create"
    params: bytes | None = b'{"message":"a"}'
    id: RequestId = field(default_factory=lambda: RequestId(b"0", 0))
    refused: list[bytes] = field(default_factory=list)
    answered: list[bytes] = field(default_factory=list)

    async def answer(self, result: bytes) -> None:
        self.answered.append(result)

    async def reject(self, error: bytes) -> None:
        """As `refuse`."""
        self.refuse(error)

    def refuse(self, error: bytes) -> None:
        self.refused.append(error)


async def unchecked(*_: Any) -> None:
    """Nothing is judged."""


@pytest.fixture
async def call(request_of_anybody: ClientRequest) -> LiveCall:
    made = LiveCall(request_of_anybody, "slow", ToolPolicy(), want_progress=True, check=unchecked)
    made.capabilities = ClientCapabilities('{"elicitation":{}}', tasks=True)
    return made


async def test_the_first_end_stays(call: LiveCall) -> None:
    """I4."""
    call.settle(Result(b"{}"))
    call.lose(ProxyError("late"))
    call.stop("later")
    call.pass_limit(ProxyError("latest"))
    assert (call.outcome, call.loss, call.stopped, call.limit_passed) == (Result(b"{}"), None, None, False)


async def test_whatever_ends_a_call_closes_its_questions_and_wakes_who_waits(call: LiveCall) -> None:
    call.on_question(Asked())
    changed, turned = call.changed.event, call.turned.event
    call.stop("enough")
    assert call.questions == {}
    assert changed.is_set()
    assert turned.is_set()


async def test_no_server_piles_up_questions(call: LiveCall) -> None:
    """Contract section 8: what is too much is refused, what was asked before stays; an answer makes room."""
    for number in range(MAX_OPEN):
        call.on_question(Asked(id=RequestId(b"%d" % number, number)))
    call.on_question(one_more := Asked())
    assert len(call.questions) == MAX_OPEN
    assert b"more than 100 questions of one call would be open" in one_more.refused[0]
    call.take(["input-1"])
    call.on_question(Asked())
    assert len(call.questions) == MAX_OPEN


@pytest.mark.parametrize("as_id", [False, True])
async def test_no_server_piles_up_large_questions(call: LiveCall, as_id: bool) -> None:
    half = b'"%s"' % (b"x" * (MAX_BYTES // 2))
    for _ in range(2):
        large = Asked(id=RequestId(half, half.decode())) if as_id else Asked(params=b'{"message":%s}' % half)
        call.on_question(large)
    assert list(call.questions) == ["input-1"]
    assert b"over the limit of 16777216" in large.refused[0]
    call.on_question(Asked())
    assert list(call.questions) == ["input-1", "input-2"]


async def test_what_a_waiting_round_needs_is_kept_under_our_keys_until_it_goes_out(call: LiveCall) -> None:
    """Contract section 9: of a modern server behind a legacy client's session; an answer that was given stays
    a part of it."""
    call.on_question(Asked(id=RequestId(b'"before"', "before")))
    call.on_position(WaitingRound(b"{}", '{"roots":{}}', b'"s"', ((b'"q-1"', "who"), (b'"q-2"', "what"))))
    assert call.round is None, "nothing is asked yet"
    call.on_question(Asked(id=RequestId(b'"q-2"', "q-2")))
    assert call.round == RoundTrace(b"{}", '{"roots":{}}', b'"s"', (("input-2", "what"),))
    call.take(["input-2"])
    call.on_question(Asked(id=RequestId(b'"q-1"', "q-1")))
    assert call.round is not None
    assert call.round.keys == (("input-2", "what"), ("input-3", "who"))
    changed = call.changed.event
    call.is_task = True
    call.on_position(None)
    assert call.round is None
    assert changed.is_set()


async def test_a_question_is_taken_once_and_its_key_never_used_again(call: LiveCall) -> None:
    """TX-UPD-006, MRTR-003."""
    first, second = Asked(), Asked()
    call.on_question(first)
    assert call.take(["input-1", "input-2"]) == {"input-1": first}
    assert call.take(["input-1"]) == {}
    call.on_question(second)
    assert list(call.questions) == ["input-2"]
    call.on_withdrawn(second)
    assert call.questions == {}


async def test_a_question_that_comes_after_the_end_is_let_be(call: LiveCall) -> None:
    """The session has it still, and settles it."""
    call.stop("enough")
    late = Asked()
    call.on_question(late)
    assert (call.questions, late.refused) == ({}, [])


async def test_what_the_latest_request_declares_counts(
    call: LiveCall, request_of_anybody: ClientRequest
) -> None:
    """MRTR-011."""
    call.goes_on_with(request_of_anybody)
    call.on_question(Asked())
    assert call.missing is not None
    assert call.ended


async def test_in_a_task_a_question_that_cannot_be_answered_is_refused(call: LiveCall) -> None:
    """TX-UPD-010."""
    call.is_task = True
    asked = Asked(method="roots/list", params=None)
    call.on_question(asked)
    assert len(asked.refused) == 1
    assert not call.ended


async def test_a_flood_of_progress_wakes_a_follower_once_until_it_has_read(call: LiveCall) -> None:
    """PROG-004."""
    call.is_task = True
    first = call.changed.event
    call.on_notification("notifications/progress", b'{"progress":1}')
    assert first.is_set()
    second = call.changed.event
    for _ in range(1_000):
        call.on_notification("notifications/progress", b'{"progress":2}')
    assert not second.is_set()
    assert call.progress_text() == "2"
    call.on_notification("notifications/progress", b"{}")
    assert second.is_set()
    assert call.progress_text() == "2"


async def test_the_start_of_a_process_moves_the_clock_up_to_its_grace(call: LiveCall) -> None:
    assert call.on_the_clock_since(100.0) == 100.0
    call.wait_for_start()
    assert call.on_the_clock_since(100.0) == 100.0 + START_GRACE_S
    call.sent_at = 103.0
    assert call.on_the_clock_since(100.0) == 103.0
    call.sent_at = 100.0 + 2 * START_GRACE_S
    assert call.on_the_clock_since(100.0) == 100.0 + START_GRACE_S
    assert call.on_the_clock_since(500.0) == 500.0  # a later round


# ------------------------------------------------------------------ questions of an earlier process


async def test_a_restored_question_is_answered_once_its_call_is_found(call: LiveCall) -> None:
    restored, real = call.restored(b'"q-1"'), Asked()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restored.answer, b"{}")
            await anyio.wait_all_tasks_blocked()
            assert real.answered == []
            restored.attach(real)
    assert real.answered == [b"{}"]


async def test_a_restored_question_is_refused_once_its_call_is_found(call: LiveCall) -> None:
    early, late = call.restored(b"1"), call.restored(b"2")
    one, two = Asked(), Asked()
    early.refuse(b"no")
    early.attach(one)
    late.attach(two)
    late.refuse(b"no")
    assert (one.refused, two.refused) == ([b"no"], [b"no"])


@pytest.mark.parametrize("how", ["ends", "falls back"])
async def test_where_the_call_is_not_found_again_no_answer_waits(call: LiveCall, how: str) -> None:
    """I6."""
    restored = call.restored(b"1")
    call.may_repeat = True
    if how == "ends":
        call.lose(ProxyError("gone"))
    else:
        assert call.falls_back()
    with anyio.fail_after(5):
        await restored.answer(b"{}")


async def test_a_call_falls_back_once_and_only_if_it_may_be_repeated(call: LiveCall) -> None:
    assert not call.falls_back()
    call.may_repeat = True
    assert call.falls_back()
    assert not call.falls_back()


async def test_the_last_position_is_kept_with_the_task_of_the_upstreams(call: LiveCall) -> None:
    call.is_upstream_task("before anything was heard")
    assert call.trace is None
    call.on_position(StreamPosition("s", "2025-11-25", 3, ""))
    call.is_upstream_task("theirs")
    call.on_position(StreamPosition("s", "2025-11-25", 4, "e1"))
    assert call.trace == CallTrace("s", "2025-11-25", 4, "e1", is_ours=True, upstream_task="theirs")


def with_arguments(call: LiveCall, size: int, *, repeatable: bool) -> LiveCall:
    raw = b'{"name":"slow","arguments":{"a":"' + b"x" * (size - 36) + b'"}}'
    assert len(raw) == size
    request = replace(call.request, params=RawObject.parse(raw))
    policy = ToolPolicy(repeatable=repeatable)
    return LiveCall(request, "slow", policy, want_progress=True, check=unchecked)


async def test_arguments_that_are_too_large_to_be_stored_again_and_again_are_not_kept(call: LiveCall) -> None:
    """Each second of progress stores the record anew; the log says that the call is not repeated."""
    fits = with_arguments(call, REPEAT_MAX_BYTES, repeatable=True)
    assert fits.repeat is not None
    assert len(fits.repeat.params) == REPEAT_MAX_BYTES
    with capture_logs() as logs:
        assert with_arguments(call, REPEAT_MAX_BYTES + 1, repeatable=False).repeat is None
        assert with_arguments(call, REPEAT_MAX_BYTES + 1, repeatable=True).repeat is None
    [said] = logs
    assert (said["event"], said["tool"], said["size"]) == (
        "task_not_repeatable",
        "slow",
        REPEAT_MAX_BYTES + 1,
    )
