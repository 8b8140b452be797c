"""What is told during one request: in order, bounded, and nothing after the final response."""

from __future__ import annotations

import anyio
import pytest

from proxy.downstream import exchange as exchange_module
from proxy.downstream.exchange import Exchange
from proxy.errors import LimitReached, ProxyError
from proxy.protocol import names
from proxy.protocol.envelope import LARGE, loads
from proxy.room import Room
from proxy.routing.base import ResultAnswer

PROGRESS, LOG, TASK = "notifications/progress", "notifications/message", "notifications/tasks"


@pytest.fixture
def exchange() -> Exchange:
    return Exchange()


def told(exchange: Exchange) -> list[str]:
    return [loads(message)["method"] for message in exchange.take()]


def test_notifications_come_out_whole_and_in_order(exchange: Exchange) -> None:
    exchange.notify(PROGRESS, b'{"progress" :1.50}')
    exchange.notify(LOG, None)
    assert exchange.take() == [
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress" :1.50}}',
        b'{"jsonrpc":"2.0","method":"notifications/message"}',
    ]
    assert exchange.take() == []


def test_whoever_waits_is_woken_by_each_change(exchange: Exchange) -> None:
    first = exchange.changed.event
    exchange.notify(PROGRESS, None)
    second = exchange.changed.event
    assert first.is_set()
    assert not second.is_set()
    exchange.finish(ResultAnswer(b"{}"))
    assert second.is_set()


def test_nothing_follows_the_answer(exchange: Exchange) -> None:
    """HTTP-010, PROG-003: neither a notification nor a second end."""
    exchange.notify(PROGRESS, None)
    exchange.finish(ResultAnswer(b"{}"))
    exchange.notify(PROGRESS, None)
    exchange.finish(ResultAnswer(b"[]"))
    exchange.fail(ProxyError("late"))
    assert told(exchange) == [PROGRESS]
    assert exchange.answer == ResultAnswer(b"{}")
    assert exchange.fault is None
    assert exchange.done


def test_nothing_follows_a_fault(exchange: Exchange) -> None:
    """HTTP-010."""
    exchange.fail(ProxyError("first"))
    exchange.finish(ResultAnswer(b"{}"))
    exchange.notify(TASK, None)
    assert exchange.take() == []
    assert exchange.answer is None
    assert exchange.fault is not None
    assert exchange.fault.message == "first"


@pytest.mark.parametrize("method", [PROGRESS, LOG])
def test_progress_and_logs_are_left_out_for_a_slow_reader(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """F40, SEC-003: what is there already is kept, and there is room again once it was taken."""
    monkeypatch.setattr(exchange_module, "MAX_QUEUED", 3)
    for _ in range(9):
        exchange.notify(method, None)
    assert not exchange.done
    assert told(exchange) == [method] * 3
    exchange.notify(method, None)
    assert told(exchange) == [method]


@pytest.mark.parametrize("method", [TASK, "notifications/resources/updated", "com.example/note"])
def test_where_something_else_would_be_lost_the_stream_ends_with_an_error(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """F40: never in silence."""
    monkeypatch.setattr(exchange_module, "MAX_QUEUED", 3)
    for _ in range(4):
        exchange.notify(method, None)
    assert told(exchange) == [method] * 3
    assert isinstance(exchange.fault, LimitReached)


def test_few_but_large_notifications_are_bounded_too(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-003: the bound is passed by one message at most."""
    monkeypatch.setattr(exchange_module, "MAX_QUEUED_BYTES", 1_000)
    for _ in range(9):
        exchange.notify(LOG, b'"' + b"x" * 700 + b'"')
    assert len(exchange.take()) == 2
    exchange.notify(LOG, b'"again"')
    assert len(exchange.take()) == 1


@pytest.mark.anyio
async def test_ready_waits_for_what_is_being_written_and_gives_its_room_back() -> None:
    """SEC-003: whoever makes something large waits for the reader, not only for the queue."""
    room = Room("answers", 3 * LARGE, "limits.result")
    exchange = Exchange(place=room.place({}))
    exchange.make_room(2 * LARGE)
    exchange.notify(names.TASK_NOTIFICATION, b"{}")
    assert len(exchange.take(writing=True)) == 1
    with anyio.move_on_after(0):
        await exchange.ready()
    assert room.held == 2 * LARGE
    with pytest.raises(LimitReached):
        exchange.make_room(2 * LARGE)
    exchange.written()
    with anyio.fail_after(5):
        await exchange.ready()
    assert room.held == 0
    exchange.make_room(LARGE)
    assert room.held == 0


def test_a_large_answer_that_nobody_can_ask_for_again_is_counted_and_not_refused() -> None:
    room = Room("answers", 1, "limits.result")
    exchange = Exchange(place=room.place({}))
    exchange.finish(ResultAnswer(b"x" * (LARGE + 1)))
    assert exchange.answer is not None
    assert room.held == LARGE + 1
