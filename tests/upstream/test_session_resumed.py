"""A session of an earlier process: its calls are in flight again, under the ids that they were sent with.

Contract section 9; `test_http_resumed` has the streams below.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from proxy.eras.to_modern import ServerInfo
from proxy.errors import UpstreamClosed, UpstreamError
from proxy.protocol.jsonrpc import RequestId
from proxy.upstream.base import Question, Result, StreamPosition
from tests.manual_clock import ManualClock
from tests.upstream.fake_transport import (
    FORM,
    Client,
    FakeTransport,
    Listener,
    adopted_session,
    ended,
    settle,
)

pytestmark = pytest.mark.anyio

VERSION = "2025-11-25"
LEFT = 70
OTHER = 71
CANCELLED = "notifications/cancelled"


class Left:
    """The session, the server behind it, and what was asked for again."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, is_clients: bool) -> None:
        self.server = FakeTransport(tells=True)
        self.taken_up: list[tuple[int, str]] = []
        self.tasks = tasks
        self.session = adopted_session(
            self.server,
            ServerInfo(VERSION, b"{}", None, None),
            ManualClock(),
            ids=iter(range(500, 600)),
            take_up=lambda call, event: self.taken_up.append((call, event)),
            is_clients=is_clients,
        )

    def resume(self, call_id: int = LEFT, event: str = "e7") -> Client:
        client = Client("left")
        position = StreamPosition("s", VERSION, call_id, event)
        pending = self.session.take_up(position, "tools/call", "left", client)

        async def wait() -> None:
            with client.scope:
                try:
                    client.outcome = await self.session.answer_to(pending)
                except UpstreamError as exc:
                    client.error = exc
            client.done.set()

        self.tasks.start_soon(wait)
        return client

    def restore(self, raw: bytes, call_id: int = LEFT) -> Question | None:
        rid = RequestId.parse(raw)
        assert rid is not None
        return self.session.asked_before(call_id, rid, "elicitation/create", b'{"message":"Sure?"}')

    def says(self, result: str, call_id: int = LEFT) -> None:
        self.server.deliver(b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (call_id, result.encode()), on=call_id)


@asynccontextmanager
async def left(*, is_clients: bool = False) -> AsyncIterator[Left]:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            made = Left(tasks, is_clients=is_clients)
            await tasks.start(made.session.run)
            yield made
            made.session.close()


async def test_a_call_that_was_left_is_answered_and_nothing_is_sent() -> None:
    async with left() as at:
        client = at.resume()
        await settle()
        assert at.taken_up == [(LEFT, "e7")]
        at.says('{"x":1}')
        await ended(client)
        assert client.outcome == Result(b'{"x":1}')
        assert at.server.sent == []
        assert at.server.abandoned == [LEFT]


async def test_its_progress_and_logs_are_told_by_the_old_id() -> None:
    async with left() as at:
        client = at.resume()
        at.server.notify("notifications/progress", {"progressToken": LEFT, "progress": 3}, on=LEFT)
        at.server.notify("notifications/message", {"level": "info", "data": "x"}, on=LEFT)
        assert [method for method, _ in client.notes] == ["notifications/progress", "notifications/message"]


async def test_a_call_that_is_lost_says_why() -> None:
    async with left() as at:
        client = at.resume()
        at.server.lose(LEFT, UpstreamClosed("refused"))
        await ended(client)
        assert client.error is not None
        assert client.error.message == "refused"


async def test_one_that_is_abandoned_is_cancelled_upstream_by_the_old_id() -> None:
    async with left() as at:
        client = at.resume()
        await settle()
        client.hang_up()
        notice = await at.server.asked(CANCELLED)
        assert notice.body["params"]["requestId"] == LEFT


async def test_one_that_was_not_taken_up_can_be_cancelled_all_the_same() -> None:
    async with left() as at:
        at.session.cancel_call(LEFT)
        assert (await at.server.asked(CANCELLED)).body["params"]["requestId"] == LEFT


async def test_an_old_question_is_answered_by_its_id_and_its_repetition_is_none() -> None:
    """TX-UPD-009."""
    async with left() as at:
        client = at.resume()
        question = at.restore(b'"q-1"')
        assert question is not None
        at.server.ask("q-1", "elicitation/create", FORM, on=LEFT)
        assert client.questions == []
        await question.answer(b'{"action":"accept"}')
        assert (await at.server.told("q-1"))["result"] == {"action": "accept"}
        await question.answer(b'{"action":"decline"}')
        assert len(at.server.answers_to("q-1")) == 1


@pytest.mark.parametrize("first", ["it is restored", "it is repeated"])
async def test_an_old_question_that_another_calls_stream_repeats_is_no_second_one(first: str) -> None:
    """Some servers repeat on a resumed stream what came on others of the session."""
    async with left() as at:
        its, other = at.resume(), at.resume(OTHER, "e9")
        asked = {"message": "Sure?"}
        if first == "it is repeated":
            at.server.ask("q-1", "elicitation/create", asked, on=OTHER)
            assert other.open == ["q-1"]
        question = at.restore(b'"q-1"')
        assert question is not None
        if first == "it is restored":
            at.server.ask("q-1", "elicitation/create", asked, on=OTHER)
        assert its.questions == []
        assert [q.id.value for q in other.withdrawn] == [q.id.value for q in other.questions]
        await question.answer(b'{"action":"accept"}')
        await settle()
        assert len(at.server.answers_to("q-1")) == 1


async def test_a_question_that_was_answered_in_vain_is_asked_of_no_other_call() -> None:
    """Its call ends for that; the user has answered, and another one would not know what is meant."""
    async with left() as at:
        its, other = at.resume(), at.resume(OTHER, "e9")
        question = at.restore(b'"q-1"')
        assert question is not None
        at.server.refusal = UpstreamClosed("the session is gone")
        with pytest.raises(UpstreamClosed):
            await question.answer(b'{"action":"accept"}')
        at.server.refusal = None
        at.says("{}")
        await ended(its)
        assert other.questions == []


async def test_a_question_of_a_task_that_the_client_has_asked_of_the_server_is_left_to_it() -> None:
    """Contract section 2: in a client's own session the server may have tasks of its own."""
    async with left(is_clients=True) as at:
        client = at.resume()
        related = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "786512e2"}}}
        at.server.ask("q-1", "elicitation/create", {**FORM, **related}, on=None)
        await settle()
        assert client.questions == []
        assert at.server.answers_to("q-1") == []


async def test_an_old_question_can_be_withdrawn_and_ends_with_its_call() -> None:
    async with left() as at:
        client = at.resume()
        withdrawn, open_ = at.restore(b"1"), at.restore(b"2")
        at.server.notify("notifications/cancelled", {"requestId": 1}, on=LEFT)
        assert client.withdrawn == [withdrawn]
        at.says("{}")
        await ended(client)
        assert client.withdrawn == [withdrawn, open_]


async def test_a_question_of_a_call_that_has_ended_is_not_restored() -> None:
    async with left() as at:
        client = at.resume()
        at.says("{}")
        await ended(client)
        assert at.restore(b"1") is None


async def test_new_calls_in_the_session_have_ids_of_their_own() -> None:
    """2025 clients' tasks share the session with those that were left."""
    async with left() as at:
        old = at.resume()
        at.tasks.start_soon(a_new_call, at)
        sent = await at.server.asked("tools/call")
        assert sent.id == 500
        at.server.ask("q", "elicitation/create", FORM, on=LEFT)
        assert old.open == ["q"]
        at.says("{}")
        await ended(old)
        at.server.answer(sent)


async def a_new_call(at: Left) -> None:
    await at.session.call("tools/call", b'{"name":"new"}', Listener("new"), want_progress=False)
