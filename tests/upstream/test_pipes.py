"""Our ends of a server's pipes, over plain pipes: what is written, what is drained (F33, F35)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import IO

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.errors import UpstreamClosed, UpstreamError, UpstreamUnavailable
from proxy.upstream import pipes
from proxy.upstream.pipes import STDERR_LINE_BYTES, STDERR_TAIL_BYTES, ErrorLog, Outbox, drain, printable

pytestmark = pytest.mark.anyio

BIG = b"x" * 1_000_000 + b"\n"  # more than any pipe holds


class Server:
    """The other end of an outbox: reads when it is told to."""

    def __init__(self) -> None:
        ours, theirs = os.pipe()
        self.reading: IO[bytes] = os.fdopen(ours, "rb", buffering=0)
        self.stdin: IO[bytes] = os.fdopen(theirs, "wb", buffering=0)
        for pipe in (self.reading, self.stdin):
            os.set_blocking(pipe.fileno(), False)
        self.outbox = Outbox("search", self.stdin)
        self.fault: str | None = None

    async def write(self) -> None:
        self.fault = await self.outbox.run()

    async def read(self, size: int) -> bytes:
        got = b""
        with anyio.fail_after(5):
            while len(got) < size:
                await anyio.wait_readable(self.reading)
                got += os.read(self.reading.fileno(), size - len(got))
        return got

    async def read_all(self) -> bytes:
        parts: list[bytes] = []
        with anyio.fail_after(5):
            await drain(self.reading, parts.append)
        return b"".join(parts)


class Sender:
    """Somebody who sends one line and remembers how that went."""

    def __init__(self, server: Server, line: bytes) -> None:
        self.server = server
        self.line = line
        self.scope = anyio.CancelScope()
        self.fault: UpstreamError | None = None
        self.sent = False

    async def send(self) -> None:
        with self.scope:
            try:
                await self.server.outbox.send(self.line)
                self.sent = True
            except UpstreamError as exc:
                self.fault = exc


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    yield server
    server.reading.close()
    server.stdin.close()


async def test_lines_arrive_whole_and_in_order(server: Server) -> None:
    lines = [BIG, b"1\n", b"2\n", BIG, b"3\n"]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.write)
        for line in lines:
            tasks.start_soon(Sender(server, line).send)
        assert await server.read(sum(map(len, lines))) == b"".join(lines)
        server.outbox.finish()
    assert server.fault is None


async def test_what_waits_when_the_outbox_is_finished_is_still_written(server: Server) -> None:
    senders = [Sender(server, line) for line in (BIG, b"1\n", b"2\n")]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.write)
        for sender in senders:
            tasks.start_soon(sender.send)
        await anyio.wait_all_tasks_blocked()
        server.outbox.finish()
        with pytest.raises(UpstreamUnavailable):
            await server.outbox.send(b"late\n")
        assert await server.read_all() == BIG + b"1\n2\n"
    assert all(sender.sent for sender in senders)
    assert server.stdin.closed


async def test_a_cancelled_line_is_finished_if_it_was_begun_and_dropped_if_not(server: Server) -> None:
    begun, waiting, wanted = (Sender(server, line) for line in (BIG, b"waiting\n", b"wanted\n"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.write)
        for sender in (begun, waiting, wanted):
            tasks.start_soon(sender.send)
            await anyio.wait_all_tasks_blocked()
        begun.scope.cancel()
        waiting.scope.cancel()
        await anyio.wait_all_tasks_blocked()
        server.outbox.finish()
        assert await server.read_all() == BIG + b"wanted\n"
    assert wanted.sent


async def test_nothing_is_kept_of_lines_that_nobody_waits_for(server: Server) -> None:
    """F33: a server may read nothing for minutes, and callers come and go meanwhile."""
    begun, first, second, third = (Sender(server, line) for line in (BIG, BIG, b"2\n", BIG))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.write)
        for sender in (begun, first, second, third):
            tasks.start_soon(sender.send)
            await anyio.wait_all_tasks_blocked()
        for sender in (begun, first, third):
            sender.scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert repr(server.outbox) == "<Outbox 'search' open, 1 waiting>"
        server.outbox.finish()
        assert await server.read_all() == BIG + b"2\n"


async def test_a_line_cancelled_before_its_first_byte_found_room_is_dropped(server: Server) -> None:
    full = os.write(server.stdin.fileno(), BIG)
    sender = Sender(server, b"waiting\n")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.write)
        tasks.start_soon(sender.send)
        await anyio.wait_all_tasks_blocked()
        sender.scope.cancel()
        server.outbox.finish()
        assert await server.read_all() == BIG[:full]


async def test_a_server_that_takes_nothing_for_too_long_is_at_fault(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: a send is not held up for ever."""
    monkeypatch.setattr(pipes, "STALLED_S", 0.05)
    begun, waiting = Sender(server, BIG), Sender(server, b"waiting\n")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.write)
            tasks.start_soon(begun.send)
            tasks.start_soon(waiting.send)
    assert server.fault == "read nothing from its stdin for 0.05 s"
    assert isinstance(begun.fault, UpstreamClosed)
    assert isinstance(waiting.fault, UpstreamUnavailable)


async def test_a_server_that_closes_its_stdin_is_at_fault(server: Server) -> None:
    sender = Sender(server, BIG)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.write)
        tasks.start_soon(sender.send)
        await server.read(10)
        server.reading.close()
    assert server.fault == "closed its stdin"
    assert isinstance(sender.fault, UpstreamClosed)
    with pytest.raises(UpstreamUnavailable):
        await server.outbox.send(b"late\n")


async def test_a_stopped_outbox_tells_each_sender_how_far_it_came(server: Server) -> None:
    begun, waiting = Sender(server, BIG), Sender(server, b"waiting\n")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.write)
            tasks.start_soon(begun.send)
            tasks.start_soon(waiting.send)
            await anyio.wait_all_tasks_blocked()
            server.outbox.stop()
    assert server.fault is None
    assert isinstance(begun.fault, UpstreamClosed)
    assert isinstance(waiting.fault, UpstreamUnavailable)
    assert server.stdin.closed


# -- stderr -------------------------------------------------------------------------------------------


def test_stderr_is_logged_line_by_line() -> None:
    errors = ErrorLog("search")
    with capture_logs() as logs:
        for chunk in (b"one\r\ntwo \x1b[31mre", b"d\x1b[0m\n\n \n", b"\xff\xc3(\n", b"no end"):
            errors.feed(chunk)
        errors.end()
    assert [entry["line"] for entry in logs] == ["one", "two red", "��(", "no end"]
    assert {(entry["event"], entry["upstream"], entry["log_level"]) for entry in logs} == {
        ("upstream_stderr", "search", "info")
    }
    assert errors.last_words() == "one two red ��( no end"


def test_an_endless_line_on_stderr_is_logged_once_and_cut() -> None:
    errors = ErrorLog("search")
    with capture_logs() as logs:
        for _ in range(1_000):
            errors.feed(b"x" * 1_000)
        errors.feed(b"\nnext\n")
    assert [(len(entry["line"]), entry["cut"]) for entry in logs] == [(STDERR_LINE_BYTES, True), (4, False)]


def test_only_the_end_of_stderr_is_kept() -> None:
    errors = ErrorLog("search")
    for number in range(10_000):
        errors.feed(b"line %d\n" % number)
    assert errors.last_words().endswith("line 9998 line 9999")
    assert len(errors.last_words()) <= STDERR_TAIL_BYTES


@pytest.mark.parametrize(
    "text, shown",
    [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b" a\r\n\tb\0c ", "a b c"),
        ("ü \u2028 ünï".encode(), "ü ünï"),
        (b"\xe2\x82", "�"),
        (b"\n", ""),
    ],
)
def test_printable_text_is_one_clean_line(text: bytes, shown: str) -> None:
    assert printable(text) == shown


async def test_a_server_that_reads_as_fast_as_we_write_does_not_keep_the_loop_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I6: a line of 60 MB would take a second; and it is held no longer than it is written."""
    monkeypatch.setattr(os, "write", lambda descriptor, left: min(len(left), 10))
    server, turns = Server(), 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.write)
            tasks.start_soon(take_turns)
            await server.outbox.send(b"x" * 1_000, b"\n")
            tasks.cancel_scope.cancel()
    server.reading.close()
    server.stdin.close()
    assert turns >= 90
