"""Calls of tasks on a client's own connection: what goes out on it, and what comes back for them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from proxy.eras.attribution import AskingTools
from proxy.errors import InternalError, UpstreamClosed, UpstreamUnavailable
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import dumps
from proxy.routing.in_flight import FIRST_TASK_ID, InFlight
from proxy.routing.task_line import TaskLine
from proxy.upstream.base import Position, StreamPosition
from tests.routing.test_passthrough import Server
from tests.upstream.fake_transport import settle

pytestmark = pytest.mark.anyio

CALL = dumps({"jsonrpc": "2.0", "id": FIRST_TASK_ID, "method": "tools/call", "params": {"name": "a"}})


class Receiver:
    """Writes down what it is told. Implements `upstream.base.Receiver`."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, int | None]] = []
        self.losses: list[tuple[int | None, str]] = []
        self.positions: list[int] = []

    def received(self, message: bytes, call: int | None) -> None:
        self.messages.append((message, call))

    def lost(self, call: int | None, error: Any) -> None:
        self.losses.append((call, f"{type(error).__name__}: {error.message}"))

    def moved(self, call: int, position: Position) -> None:
        self.positions.append(call)


async def test_a_call_is_in_flight_from_when_it_is_sent_until_it_is_given_up() -> None:
    transport, in_flight = Server(), InFlight(AskingTools(lambda tool: False))
    transport.refusal = None
    line = TaskLine(transport, in_flight)
    async with anyio.create_task_group() as tasks:
        await tasks.start(transport.run, Receiver())
        await line.send(CALL, call=FIRST_TASK_ID)
        [sent] = in_flight
        assert (sent.id, sent.method, sent.name, sent.of_task) == (FIRST_TASK_ID, names.TOOLS_CALL, "a", True)
        line.abandon(FIRST_TASK_ID)
        assert len(in_flight) == 0
        assert transport.abandoned == [FIRST_TASK_ID]
        tasks.cancel_scope.cancel()


async def test_what_could_not_be_sent_is_not_in_flight() -> None:
    transport, in_flight = Server(), InFlight(AskingTools(lambda tool: False))
    transport.refusal = UpstreamUnavailable("no")
    with pytest.raises(UpstreamUnavailable):
        await TaskLine(transport, in_flight).send(CALL, call=FIRST_TASK_ID)
    assert len(in_flight) == 0


async def test_it_is_told_until_it_has_ended_and_ends_once() -> None:
    """Before it runs, and after its end, nobody is there to be told; the connection is the client's, and
    stays."""
    transport = Server()
    line, receiver = TaskLine(transport, InFlight(AskingTools(lambda tool: False))), Receiver()
    line.received(b"early", None)
    line.lost(None, UpstreamClosed("early"))
    async with anyio.create_task_group() as tasks:
        await tasks.start(line.run, receiver)
        line.received(b"x", 5)
        line.moved(5, StreamPosition(None, "2025-11-25", 5, ""))
        line.lost(5, UpstreamClosed("this one"))
        line.lost(6, InternalError())
        line.close()
        await settle()
    line.received(b"late", None)
    line.lost(None, UpstreamClosed("late"))
    line.moved(5, StreamPosition(None, "2025-11-25", 5, ""))
    assert receiver.messages == [(b"x", 5)]
    assert receiver.positions == [5]
    assert receiver.losses == [
        (5, "UpstreamClosed: this one"),
        (6, "UpstreamClosed: internal error of the proxy"),
        (None, "UpstreamClosed: the session of the client was ended"),
    ]
    assert transport.closed == 0


async def test_when_the_server_is_lost_so_is_everything_on_it() -> None:
    line, receiver = TaskLine(Server(), InFlight(AskingTools(lambda tool: False))), Receiver()
    async with anyio.create_task_group() as tasks:
        await tasks.start(line.run, receiver)
        line.lost(None, UpstreamClosed("it died"))
        await settle()
    assert receiver.losses == [(None, "UpstreamClosed: it died")]


async def test_answers_go_out_as_the_tasks_own() -> None:
    """F16: the client has not answered that question, and cannot."""
    transport, in_flight = Server(), InFlight(AskingTools(lambda tool: False))
    line = TaskLine(transport, in_flight)
    async with anyio.create_task_group() as tasks:
        await tasks.start(transport.run, Receiver())
        await line.send(CALL, call=FIRST_TASK_ID)
        asked = jsonrpc.parse_checked(dumps({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create"}))
        assert isinstance(asked, jsonrpc.Request)
        in_flight.asked(asked, None)
        await line.send(dumps({"jsonrpc": "2.0", "id": "q", "result": {}}))
        assert not in_flight.take_answered("q", by_task=True)
        tasks.cancel_scope.cancel()
