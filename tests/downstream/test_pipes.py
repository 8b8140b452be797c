"""Our stdin and stdout, on real pipes: order, bounds, and ends of every kind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from proxy.clock import Clock
from proxy.downstream import pipes
from proxy.downstream.pipes import MOST_UNREAD, STOPPED_S, LineWriter, read_chunks
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

PIPE_HOLDS = 65_536


class Pipe:
    """A pipe whose ends are closed once, and only when no thread of ours is at them any more.

    A number that is closed twice, or read on by a thread that was left behind, may be another test's file.
    """

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self._open = {self.read_end, self.write_end}
        self._others = set(threading.enumerate())

    def close(self, end: int) -> None:
        if end in self._open:
            self._open.remove(end)
            os.close(end)

    def take_down(self) -> None:
        """First for who reads, then for who writes: each sees the end of its pipe and goes."""
        for end in (self.write_end, self.read_end):
            self.close(end)
            for thread in set(threading.enumerate()) - self._others:
                if thread.name in ("stdin", "stdout"):
                    thread.join(0.5)

    async def read(self, count: int) -> bytes:
        """Exactly so many bytes, or fewer at the end."""
        found = b""
        with anyio.fail_after(10):
            while len(found) < count:
                chunk = await anyio.to_thread.run_sync(os.read, self.read_end, count - len(found))
                if not chunk:
                    break
                found += chunk
        return found


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.take_down()


@asynccontextmanager
async def writing(fd: int, clock: Clock | None = None) -> AsyncIterator[LineWriter]:
    writer = LineWriter(fd, clock)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            yield writer
            tasks.cancel_scope.cancel()


async def all_of(fd: int) -> bytes:
    with anyio.fail_after(10):
        return b"".join([chunk async for chunk in read_chunks(fd)])


# ------------------------------------------------------------------------------------------- stdout


async def test_messages_are_written_in_order_one_a_line(pipe: Pipe) -> None:
    """STDIO-001."""
    async with writing(pipe.write_end) as writer:
        for number in range(1_000):
            writer.send(b'{"n":\r\n%d}' % number)
        writer.close()
        written = b"".join(b'{"n":  %d}\n' % number for number in range(1_000))
        assert await pipe.read(len(written)) == written
        await writer.done.wait()
        assert writer.wrote
        assert not writer.broken.is_set()


async def test_a_message_larger_than_the_pipe_is_written_whole(pipe: Pipe) -> None:
    async with writing(pipe.write_end) as writer:
        writer.send(b"x" * 5_000_000)
        writer.send(b"y")
        assert await pipe.read(5_000_003) == b"x" * 5_000_000 + b"\ny\n"


async def test_a_client_that_is_gone_is_told_once_and_nothing_is_kept_for_it(pipe: Pipe) -> None:
    async with writing(pipe.write_end) as writer:
        assert writer.has_reader()
        pipe.close(pipe.read_end)
        assert not writer.has_reader()
        writer.send(b"{}")
        await writer.broken.wait()
        await writer.done.wait()
        writer.send(b"{}")
        await writer.room()
        assert not writer.wrote


async def test_a_client_that_does_not_read_is_given_up_at_the_bound(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes, "MAX_UNREAD_BYTES", 1_000_000)
    clock = ManualClock()
    async with writing(pipe.write_end, clock) as writer:
        for _ in range(11):
            writer.send(b"x" * 100_000)
        await clock.advance(STOPPED_S)
        assert not writer.broken.is_set()
        writer.send(b"x")
        assert writer.broken.is_set()


async def test_a_client_that_reads_however_slowly_is_not_given_up_in_the_middle_of_an_answer(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: that large answers wait for it, is not its fault; that it takes nothing for a while is."""
    monkeypatch.setattr(pipes, "MAX_UNREAD_BYTES", 1_000_000)
    clock = ManualClock()
    async with writing(pipe.write_end, clock) as writer:
        writer.send(b"x" * 2_000_000)
        for _ in range(3):
            await clock.advance(STOPPED_S)
            await pipe.read(4 * PIPE_HOLDS)  # so some of it was written after the clock was moved
            writer.send(b"{}")
            assert not writer.broken.is_set()
        await clock.advance(STOPPED_S)
        writer.send(b"{}")
        assert writer.broken.is_set()


async def test_a_client_is_given_up_once_it_is_a_few_times_the_bound_behind(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: no time passes here."""
    monkeypatch.setattr(pipes, "MAX_UNREAD_BYTES", 1_000)
    async with writing(pipe.write_end, ManualClock()) as writer:
        sent = 0
        while not writer.broken.is_set():
            writer.send(b"x" * 999_999)
            sent += 1
        assert sent == MOST_UNREAD + 2  # the pipe holds some, and the last one was not taken


async def test_one_message_over_the_bound_is_no_reason_to_give_up(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes, "MAX_UNREAD_BYTES", 1_000_000)
    async with writing(pipe.write_end) as writer:
        writer.send(b"x" * 3_000_000)
        assert len(await pipe.read(3_000_001)) == 3_000_001
        assert not writer.broken.is_set()


async def test_there_is_room_again_when_the_client_has_read(pipe: Pipe) -> None:
    there_was = anyio.Event()
    async with writing(pipe.write_end) as writer, anyio.create_task_group() as tasks:
        await writer.room()
        writer.send(b"x" * 2_000_000)

        async def wait() -> None:
            await writer.room()
            there_was.set()

        tasks.start_soon(wait)
        assert len(await pipe.read(1_000_000)) == 1_000_000
        assert not there_was.is_set()
        await pipe.read(1_000_001)
        await there_was.wait()


async def test_what_was_sent_is_waited_for_as_long_as_the_client_reads(pipe: Pipe) -> None:
    clock, read = ManualClock(), 4 * PIPE_HOLDS
    async with writing(pipe.write_end, clock) as writer, anyio.create_task_group() as tasks:

        def waiting() -> anyio.Event:
            waited = anyio.Event()

            async def wait() -> None:
                await writer.written()
                waited.set()

            tasks.start_soon(wait)
            return waited

        await writer.written()  # nothing was sent
        writer.send(b"x" * 2 * read)
        waited = waiting()
        await pipe.read(read)
        await clock.advance(STOPPED_S)
        assert not waited.is_set()
        while not waited.is_set():  # it has stopped; the pipe took the last of it maybe a turn ago
            await clock.advance(STOPPED_S)
        waited = waiting()
        await pipe.read(read + 1)
        await waited.wait()


async def test_a_blocked_write_holds_up_nobody(pipe: Pipe) -> None:
    async with writing(pipe.write_end) as writer:
        writer.send(b"x" * (PIPE_HOLDS * 2))
        writer.close()
    assert writer.done.is_set()


async def test_nothing_waits_for_an_end_that_came_before_the_writing() -> None:
    writer = LineWriter(-1)
    writer.send(b"{}")
    writer.close()
    with anyio.fail_after(10):
        await writer.run()
    assert writer.broken.is_set()


# -------------------------------------------------------------------------------------------- stdin


async def test_what_comes_in_is_read_to_its_end(pipe: Pipe) -> None:
    text = os.urandom(300_000)

    def write() -> None:
        view = memoryview(text)
        while view:
            view = view[os.write(pipe.write_end, view[:7_777]) :]
        pipe.close(pipe.write_end)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, write)
        assert await all_of(pipe.read_end) == text


async def test_a_file_is_read_like_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / "messages"
    file.write_bytes(b"{}\n" * 50_000)
    fd = os.open(file, os.O_RDONLY)
    try:
        assert await all_of(fd) == b"{}\n" * 50_000
    finally:
        os.close(fd)


async def test_a_descriptor_that_is_closed_is_an_end() -> None:
    assert await all_of(-1) == b""


async def test_a_non_blocking_descriptor_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.read_end, False)
    async with aclosing(read_chunks(pipe.read_end)) as chunks, anyio.create_task_group() as tasks:

        async def write_late() -> None:
            await checkpoint()
            os.write(pipe.write_end, b"late")
            pipe.close(pipe.write_end)

        tasks.start_soon(write_late)
        with anyio.fail_after(10):
            assert [chunk async for chunk in chunks] == [b"late"]


async def test_a_non_blocking_stdout_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_end, False)
    async with writing(pipe.write_end) as writer:
        writer.send(b"x" * (PIPE_HOLDS * 4))
        assert len(await pipe.read(PIPE_HOLDS * 4 + 1)) == PIPE_HOLDS * 4 + 1
        assert not writer.broken.is_set()


async def test_what_comes_after_the_last_reader_is_let_be(pipe: Pipe) -> None:
    before = threading.enumerate()
    with anyio.fail_after(10):
        async with aclosing(read_chunks(pipe.read_end)) as chunks:
            os.write(pipe.write_end, b"one")
            assert await anext(chunks) == b"one"
    os.write(pipe.write_end, b"two")
    pipe.close(pipe.write_end)
    for thread in threading.enumerate():
        if thread.name == "stdin" and thread not in before:  # or it reads another test's descriptor
            await anyio.to_thread.run_sync(thread.join, 10)
            assert not thread.is_alive()


async def test_no_more_is_read_than_somebody_takes(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_end, False)

    def fill() -> int:
        """How much more the pipe takes."""
        taken = 0
        with suppress(BlockingIOError):
            while True:
                taken += os.write(pipe.write_end, b"x" * PIPE_HOLDS)
        return taken

    async with aclosing(read_chunks(pipe.read_end)) as chunks:
        with anyio.fail_after(10):
            fill()
            assert len(await anext(chunks)) == PIPE_HOLDS
            while fill():
                await checkpoint()


# ---------------------------------------------------------------------------------- a whole process


PRINTS = """
import os, sys
from proxy.downstream.pipes import claim_stdout
fd = claim_stdout()
os.write(fd, b"message\\n")
print("after")
os.write(1, b"raw\\n")
os.system("echo from a child")
"""


def test_whatever_else_is_printed_goes_to_stderr() -> None:
    """STDIO-002."""
    ran = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, timeout=30)
    assert ran.stdout == b"message\n", ran.stderr
    assert sorted(ran.stderr.split()) == sorted(b"after raw from a child".split())


STUCK = """
import os, anyio
from proxy.downstream.pipes import LineWriter, read_chunks
async def main():
    writer = LineWriter(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        writer.send(b"x" * 1_000_000)
        with anyio.move_on_after(0.2):
            await anext(read_chunks(os.pipe()[0]))
        tasks.cancel_scope.cancel()
anyio.run(main)
"""


def test_neither_a_blocked_read_nor_a_blocked_write_keeps_the_process_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE) as process:
        try:
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
