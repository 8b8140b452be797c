"""The pipes of a stdio server from our end: what waits for its stdin, and what it says on stderr.

Above: `stdio`. Pipes are non-blocking descriptors, read and written here without any buffer of ours, so
that it is known what is in the pipe, and closing one is closing it.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Final

import anyio
from anyio.lowlevel import checkpoint

from proxy.errors import ServerGone, UpstreamClosed
from proxy.logs import get_logger
from proxy.protocol.lines import Line, LineSplitter, Oversized, Tail

CHUNK_BYTES: Final = 65_536  # what a pipe of Linux holds
STALLED_S: Final = 600.0  # a server busy in a slow tool may read nothing for minutes; this long is broken
STDERR_LINE_BYTES: Final = 4_096
STDERR_TAIL_BYTES: Final = 2_048

_UNPRINTABLE: Final = re.compile(r"(?:\x1b\[[0-9;]*[A-Za-z]|[\s\x00-\x1f\x7f-\x9f])+")

log = get_logger()


async def drain(pipe: IO[bytes], take: Callable[[bytes], None]) -> None:
    """Give what comes through `pipe` to `take`, chunk by chunk, until its other end is closed."""
    while True:
        await anyio.wait_readable(pipe)
        try:
            chunk = os.read(pipe.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            continue
        if not chunk:
            return
        take(chunk)


def printable(text: bytes) -> str:
    """`text` for a log line or an error message: one line, no control characters, invalid UTF-8 replaced."""
    return _UNPRINTABLE.sub(" ", text.decode("utf-8", "replace")).strip()


@dataclass(eq=False, slots=True)
class _Outgoing:
    pieces: tuple[bytes, ...]
    written: int = 0
    wanted: bool = True
    settled: anyio.Event = field(default_factory=anyio.Event)


class Outbox:
    """Lines on their way to the stdin of the server `name`: whole, one after the other.

    `send` may be called concurrently; `run` is the only one who writes, and closes the pipe at its end.
    """

    def __init__(self, name: str, pipe: IO[bytes]) -> None:
        self._name = name
        self._pipe = pipe
        self._queue: deque[_Outgoing] = deque()
        self._changed = anyio.Event()
        self._writing = anyio.CancelScope()
        self._open = True

    async def send(self, *line: bytes) -> None:
        """Return when all pieces of `line` are in the pipe. Waits while the server does not read.

        If cancelled, the line is dropped, unless a part of it was written: then `run` finishes it.
        Raises ServerGone if no byte was written, UpstreamClosed if not all were.
        """
        if not self._open:
            raise ServerGone(f"upstream {self._name!r} takes no messages any more")
        outgoing, size = _Outgoing(line), sum(map(len, line))
        del line  # which may be large, as the server may be slow
        self._queue.append(outgoing)
        self._changed.set()
        try:
            await outgoing.settled.wait()
        finally:
            outgoing.wanted = False
            if (
                not outgoing.settled.is_set() and outgoing in self._queue
            ):  # a server may read nothing for long
                self._queue.remove(outgoing)
        if not outgoing.written:
            raise ServerGone(f"upstream {self._name!r} ended before it took the message")
        if outgoing.written < size:
            raise UpstreamClosed(f"upstream {self._name!r} ended in the middle of the message")

    async def run(self) -> str | None:
        """Write until `finish` or `stop`. Returns what the server did to its stdin, if that was the end."""
        fault = None
        try:
            with self._writing:
                while (outgoing := await self._next()) is not None:
                    await self._write(outgoing)
        except TimeoutError:
            fault = f"read nothing from its stdin for {STALLED_S:g} s"
        except BrokenPipeError:
            fault = "closed its stdin"
        finally:
            self._open = False
            self._pipe.close()
            for outgoing in self._queue:
                outgoing.settled.set()
            self._queue.clear()
        return fault

    def finish(self) -> None:
        """Take no more lines; `run` returns when those that wait are written."""
        self._open = False
        self._changed.set()

    def stop(self) -> None:
        """End `run` where it stands."""
        self._open = False
        self._writing.cancel()

    async def _next(self) -> _Outgoing | None:
        """The next line; None after `finish` and the last of them."""
        while True:
            if self._queue:
                return self._queue.popleft()
            if not self._open:
                return None
            self._changed = anyio.Event()
            await self._changed.wait()

    async def _write(self, outgoing: _Outgoing) -> None:
        try:
            for piece in outgoing.pieces:
                left = memoryview(piece)
                while left and (outgoing.wanted or outgoing.written):
                    try:
                        count = os.write(self._pipe.fileno(), left)
                    except BlockingIOError:
                        with anyio.fail_after(STALLED_S):
                            await anyio.wait_writable(self._pipe)
                    else:
                        outgoing.written += count
                        left = left[count:]
                        if left:  # one that reads as fast as we write must not keep the loop busy
                            await checkpoint()
        finally:
            outgoing.pieces = ()  # whoever waits for the next line need not hold this one
            outgoing.settled.set()

    def __repr__(self) -> str:
        return f"<Outbox {self._name!r} {'open' if self._open else 'closed'}, {len(self._queue)} waiting>"


class ErrorLog:
    """What the server `name` says on stderr: logged line by line, and its end kept."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines = LineSplitter(STDERR_LINE_BYTES, head_bytes=STDERR_LINE_BYTES)
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        self._tail = (self._tail + chunk)[-STDERR_TAIL_BYTES:]
        self._log(self._lines.feed(chunk))

    def end(self) -> None:
        """Log what came after the last line end."""
        self._log(self._lines.end())

    def last_words(self) -> str:
        """The last of it, as one line; empty if there was nothing."""
        return printable(self._tail)

    def _log(self, lines: list[Line | Oversized | Tail]) -> None:
        for line in lines:
            match line:
                case Line(text):
                    words, cut = printable(text), False
                case Oversized(head):
                    words, cut = printable(head), True
                case Tail():
                    continue
            if words:
                log.info("upstream_stderr", upstream=self._name, line=words, cut=cut)
