"""Our own stdin and stdout as message channels.

Above: `stdio`. Reading and writing block, so each has a thread: a client that does not read, or a stdin
that is a file, never holds up the event loop. Both threads are daemons, for neither a read nor a write
that never returns may keep the process alive. Only messages reach stdout: descriptor 1 itself is turned
to stderr, so that a stray print of any library cannot break the protocol (STDIO-002).
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

import anyio
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token
from anyio.streams.memory import MemoryObjectSendStream

from proxy.clock import Clock, Pulse, SystemClock
from proxy.logs import get_logger
from proxy.protocol.envelope import one_line

CHUNK_BYTES: Final = 64 * 1024
READ_AHEAD: Final = 2  # chunks
MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024  # behind a client that has stopped reading; then it is given up
STOPPED_S: Final = 10.0  # a client that takes nothing for so long has; one at work between two reads has not
MOST_UNREAD: Final = 4  # times that, or the largest message that waits: for one that reads, but too slowly
ROOM_BYTES: Final = 1024 * 1024  # further behind than this, what can wait should wait
STDIN, STDOUT, STDERR = 0, 1, 2

log = get_logger()


def claim_stdout() -> int:
    """A descriptor for messages alone; whatever else is written to stdout goes to stderr from now on."""
    ours = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return ours


async def read_chunks(fd: int) -> AsyncGenerator[bytes, None]:
    """What comes in on `fd`, as it comes, until its end; not read far ahead of who takes it."""
    send, receive = anyio.create_memory_object_stream[bytes](READ_AHEAD)
    may_read = threading.Semaphore(READ_AHEAD)
    pump = threading.Thread(
        target=_pump, args=(fd, may_read, send, current_token()), name="stdin", daemon=True
    )
    pump.start()
    with send, receive:
        async for chunk in receive:
            yield chunk
            may_read.release()


def _pump(
    fd: int, may_read: threading.Semaphore, send: MemoryObjectSendStream[bytes], token: EventLoopToken
) -> None:
    with suppress(RuntimeError, anyio.ClosedResourceError, anyio.BrokenResourceError):  # nobody takes it
        with suppress(OSError):  # stdin is gone: an end like any other
            while may_read.acquire() and (chunk := _read(fd)):
                from_thread.run_sync(send.send_nowait, chunk, token=token)
        from_thread.run_sync(send.close, token=token)


class LineWriter:
    """Messages to `fd`, one a line, in the order they were given. `run` must be running."""

    def __init__(self, fd: int, clock: Clock | None = None) -> None:
        self._fd = fd
        self._clock = SystemClock() if clock is None else clock
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._given = self._taken = 0  # bytes; the second and the next belong to the thread that writes
        self._taken_at = self._clock.monotonic()
        self._largest = 0  # of what waits, in bytes
        self._progress = Pulse()
        self.wrote = False  # the client may have read something
        self.broken = anyio.Event()
        self.done = anyio.Event()  # everything is written, or nothing more can be

    def send(self, message: bytes) -> None:
        """Queue one message. A client that is too far behind, or gone, is `broken`."""
        if self.broken.is_set():
            return
        if not self._unwritten:
            self._taken_at, self._largest = self._clock.monotonic(), 0
        if self._is_too_far_behind():
            log.warning("client_not_reading", queued=self._unwritten)
            self._break()
            return
        line = one_line(message) + b"\n"
        self._given += len(line)
        self._largest = max(self._largest, len(line))
        self._lines.put(line)

    @property
    def _unwritten(self) -> int:
        return self._given - self._taken

    def _is_too_far_behind(self) -> bool:
        """A few large answers are much at once, and no reason to give up a client that reads them."""
        unwritten = self._unwritten
        if unwritten <= MAX_UNREAD_BYTES:
            return False
        has_stopped = self._clock.monotonic() - self._taken_at >= STOPPED_S
        return has_stopped or unwritten > MOST_UNREAD * max(MAX_UNREAD_BYTES, self._largest)

    async def room(self) -> None:
        """Wait until the client has read most of what it was sent, or is `broken`."""
        while self._unwritten > ROOM_BYTES and not self.broken.is_set():
            await self._progress.event.wait()

    async def written(self) -> None:
        """Wait until the client has taken all that it was sent, has stopped reading, or is `broken`."""
        while self._unwritten and not self.broken.is_set():
            taken, progress = self._taken, self._progress.event
            if not await self._clock.wait(progress, STOPPED_S) and self._taken == taken:
                return

    def has_reader(self) -> bool:
        """Whether anybody could still read what is written; in doubt, yes."""
        poll = select.poll()
        poll.register(self._fd, 0)
        return not any(seen & (select.POLLERR | select.POLLHUP) for _, seen in poll.poll(0))

    def close(self) -> None:
        """`done` comes when all that was sent is written. Nothing may be sent any more."""
        self._lines.put(None)

    async def run(self) -> None:
        """Write until closed or broken. Cancelled, it may leave a line unfinished."""
        thread = threading.Thread(target=self._write, args=(current_token(),), name="stdout", daemon=True)
        thread.start()
        try:
            await self.done.wait()
        finally:
            self.done.set()

    def _write(self, token: EventLoopToken) -> None:
        with suppress(RuntimeError):  # the event loop has ended
            try:
                while (line := self._lines.get()) is not None:
                    self._write_line(line)
                    from_thread.run_sync(self._wrote, token=token)
            except OSError:
                from_thread.run_sync(self._break, token=token)
            from_thread.run_sync(self.done.set, token=token)

    def _write_line(self, line: bytes) -> None:
        """In pieces: a write returns only once all of it was taken."""
        view = memoryview(line)
        while view:
            try:
                count = os.write(self._fd, view[:CHUNK_BYTES])
            except BlockingIOError:
                select.select([], [self._fd], [])
                continue
            view = view[count:]
            self._taken += count
            self._taken_at = self._clock.monotonic()

    def _wrote(self) -> None:
        self.wrote = True
        self._progress.beat()

    def _break(self) -> None:
        self.broken.set()
        self.done.set()
        self._progress.beat()


def _read(fd: int) -> bytes:
    """The next bytes, none at the end; also if whoever gave us `fd` made it non-blocking."""
    while True:
        try:
            return os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            select.select([fd], [], [])
