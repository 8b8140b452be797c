"""Our own stdin and stdout as message channels.

Above: `stdio`. Reading and writing block, so each has a thread: a client that does not read, or a stdin
that is a file, never holds up the event loop. Only messages reach stdout: descriptor 1 itself is turned
to stderr, so that a stray print of any library cannot break the protocol (STDIO-002).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from typing import Final

import anyio
from anyio import from_thread, to_thread
from anyio.lowlevel import EventLoopToken, current_token
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from proxy.logs import get_logger
from proxy.protocol.envelope import one_line

CHUNK_BYTES: Final = 64 * 1024
MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024  # behind a client that has stopped reading; then it is given up
STDIN, STDOUT, STDERR = 0, 1, 2

log = get_logger()


def claim_stdout() -> int:
    """A descriptor for messages alone; whatever else is written to stdout goes to stderr from now on."""
    ours = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    return ours


def read_chunks(fd: int) -> MemoryObjectReceiveStream[bytes]:
    """What comes in on `fd`, as it comes; the stream ends with it.

    The thread is a daemon: a read that never returns must not keep the process alive.
    """
    send, receive = anyio.create_memory_object_stream[bytes](1)
    token = current_token()
    thread = threading.Thread(target=_pump, args=(fd, send, token), name="stdin-reader", daemon=True)
    thread.start()
    return receive


def _pump(fd: int, send: MemoryObjectSendStream[bytes], token: EventLoopToken) -> None:
    try:
        while chunk := os.read(fd, CHUNK_BYTES):
            from_thread.run(send.send, chunk, token=token)
    except (OSError, anyio.BrokenResourceError, RuntimeError):
        pass  # stdin is gone, nobody takes it any more, or the event loop has ended: the end in each case
    finally:
        with suppress(RuntimeError):  # the event loop has ended
            from_thread.run_sync(send.close, token=token)


class LineWriter:
    """Messages to `fd`, one a line, in the order they were given. `run` must be running."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._more = anyio.Event()
        self._closing = False
        self.broken = anyio.Event()
        self.done = anyio.Event()  # everything is written, or nothing more can be

    def send(self, message: bytes) -> None:
        """Queue one message. A client that is too far behind, or gone, is `broken`."""
        if self.broken.is_set():
            return
        line = one_line(message) + b"\n"
        self._lines.append(line)
        self._bytes += len(line)
        self._more.set()
        if self._bytes > MAX_UNREAD_BYTES + len(line):
            log.warning("client_not_reading", queued=self._bytes)
            self.broken.set()

    def close(self) -> None:
        """Let `run` end when everything is written."""
        self._closing = True
        self._more.set()

    async def run(self) -> None:
        try:
            await self._write_lines()
        finally:
            self.done.set()

    async def _write_lines(self) -> None:
        while not self.broken.is_set():
            if not self._lines:
                if self._closing:
                    return
                self._more = anyio.Event()
                await self._more.wait()
                continue
            line = self._lines.popleft()
            self._bytes -= len(line)
            try:
                await to_thread.run_sync(_write_all, self._fd, line, abandon_on_cancel=True)
            except OSError:
                self.broken.set()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
