"""A server as our subprocess: one JSON-RPC message a line on its stdin and stdout.

Above: `session`, through `base.Transport`. Below: `process` (the process group), `pipes` (its stdin and
stderr) and `protocol.lines` (the framing). MCP 2026-07-28 "stdio".

What stands on stdout and cannot be a message is noise, counted and skipped. stderr is drained whatever
happens; what is said there is no failure.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskStatus as StartStatus
from anyio.lowlevel import checkpoint

from proxy.errors import ServerGone, UpstreamClosed, UpstreamProtocolError, UpstreamUnavailable
from proxy.logs import get_logger
from proxy.metrics import UNSERVED, Metrics
from proxy.protocol.envelope import LARGE, JsonError, check, one_line
from proxy.protocol.lines import Line, LineSplitter, Oversized, Tail
from proxy.protocol.salvage import EDGE_BYTES, answered_at_beginning, answered_at_end, may_answer_at_end
from proxy.secrecy import masked_program
from proxy.upstream.base import NO_HEADERS, Headers, Receiver
from proxy.upstream.endpoint import OUTCOME_UNKNOWN
from proxy.upstream.pipes import ErrorLog, Outbox, drain, printable
from proxy.upstream.process import ProcessGroup

PRIVATE_PREFIX: Final = "MCP_TASKPROXY_"  # our own settings, keys among them: no server's business
LAST_WORDS_S: Final = 0.2  # to learn how it died; the calls on it wait for their errors meanwhile
NOISE_LOGGED: Final = 5  # so many one by one, then at every power of ten
SAMPLE_BYTES: Final = 200
DEEPEST: Final = 900  # no message is nested more deeply, whatever the settings

_BOM: Final = b"\xef\xbb\xbf"  # some runtimes begin their output with it

log = get_logger()


class StdioTransport:
    """One process of a stdio server: a `Transport`.

    `env` is added to our own environment, less our own settings. `name` is the upstream's, for logs and
    errors. A line of more than `max_bytes` is skipped, and the call that it would have answered is lost;
    whose answer it was stands where servers write it, at the beginning or at the end. `tells_last_words`:
    who called is told what the server said on stderr as it died, which may be of anybody's calls; so only
    where one client has the proxy to itself. They are logged in any case.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: Path | None,
        name: str,
        max_bytes: int,
        metrics: Metrics = UNSERVED,
        tells_last_words: bool = False,
    ) -> None:
        self._metrics = metrics
        self._command = tuple(command)
        self._env = dict(env or {})
        self._cwd = cwd
        self._name = name
        self._max_bytes = max_bytes
        self._tells_last_words = tells_last_words
        self._stdout = LineSplitter(max_bytes, head_bytes=EDGE_BYTES, tail_bytes=EDGE_BYTES)
        self._id_may_follow = False  # behind the oversized answer that is being skipped
        self._stderr = ErrorLog(name)
        self._noise = 0
        self._process: ProcessGroup | None = None
        self._outbox: Outbox | None = None
        self._receiver: Receiver | None = None  # None again when it was told that all is lost
        self._closing = False
        self._established = False
        self._cause: str | None = None  # what the server did, if that was the end
        self._over = anyio.Event()
        self._silent = anyio.Event()  # the leader is reaped, stdout and stderr have ended

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        """See `Transport`. Whatever ends it, that takes six seconds at most (`ProcessGroup.end`)."""
        await checkpoint()  # who is cancelled already starts no process
        process = self._start()
        self._process, self._receiver = process, receiver
        outbox = self._outbox = Outbox(self._name, process.stdin)
        self._metrics.process_started()
        log.info("upstream_started", upstream=self._name, pid=process.pid)
        try:
            async with anyio.create_task_group() as tasks:
                # A server that is stuck in a write sees neither the end of its stdin nor SIGTERM, so
                # its output is drained until nothing is left of it, also when we are cancelled.
                pumps = anyio.CancelScope(shield=True)
                tasks.start_soon(self._move_bytes, process, outbox, pumps)
                try:
                    task_status.started()
                    await self._over.wait()
                    if not self._closing:
                        await self._hear_last_words()
                finally:
                    with anyio.CancelScope(shield=True):  # bounded by `ProcessGroup.end`
                        if self._closing:
                            outbox.finish()
                        else:
                            outbox.stop()
                            self._say_lost()
                        if not await process.end():
                            log.warning("upstream_left_behind", upstream=self._name, pid=process.pid)
                    self._say_lost()
                    pumps.cancel()
        finally:
            process.close_pipes()
            self._metrics.process_ended()
        log.info("upstream_ended", upstream=self._name, pid=process.pid, code=process.code, noise=self._noise)

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        """See `Transport`. Returns when the whole line is in the pipe; waits while the server does not read.

        If cancelled, the message is dropped, unless it was begun: then the rest of it follows.
        ServerGone means that not a byte was written; it may come before the receiver is told of the end.
        """
        if self._outbox is None or self._over.is_set():
            raise ServerGone(f"upstream {self._name!r} is not running")
        line = one_line(message)
        await (self._outbox.send(line + b"\n") if len(line) <= LARGE else self._outbox.send(line, b"\n"))

    def abandon(self, call: int) -> None:
        """See `Transport`. Nothing is held here for a call."""

    def established(self, version: str) -> None:
        """See `Transport`. From now on calls run, and what became of them may not be known."""
        self._established = True

    def leave(self) -> None:
        """See `Transport`. A process ends with its proxy, and its calls with it."""

    def close(self) -> None:
        """See `Transport`. What waits is still written; what the server then says is still received."""
        if not self._over.is_set():
            self._closing = True
            self._over.set()

    def describe(self) -> str:
        return f"stdio {self._command[0]}" if self._process is None else f"stdio pid {self._process.pid}"

    def _start(self) -> ProcessGroup:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(PRIVATE_PREFIX)}
        try:
            return ProcessGroup(self._command, inherited | self._env, self._cwd)
        except (OSError, ValueError) as exc:
            reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
            program, cwd = masked_program(self._command[0]), None if self._cwd is None else str(self._cwd)
            log.error("server_not_started", server=self._name, program=program, cwd=cwd, reason=reason)
            raise UpstreamUnavailable(f"upstream {self._name!r} could not be started: {reason}") from exc

    async def _move_bytes(self, process: ProcessGroup, outbox: Outbox, pumps: anyio.CancelScope) -> None:
        with pumps:
            async with anyio.create_task_group() as writing:
                writing.start_soon(self._write_stdin, outbox)
                async with anyio.create_task_group() as listening:
                    listening.start_soon(self._read_stdout, process)
                    listening.start_soon(self._read_stderr, process)
                    listening.start_soon(self._watch_exit, process)
                self._silent.set()

    async def _write_stdin(self, outbox: Outbox) -> None:
        fault = await outbox.run()
        if fault is not None:
            self._end(fault)

    async def _read_stdout(self, process: ProcessGroup) -> None:
        await drain(process.stdout, lambda chunk: self._receive(self._stdout.feed(chunk)))
        self._receive([line for line in self._stdout.end() if not _is_cut_off(line)])
        self._end("closed its stdout")

    async def _read_stderr(self, process: ProcessGroup) -> None:
        await drain(process.stderr, self._stderr.feed)
        self._stderr.end()

    async def _watch_exit(self, process: ProcessGroup) -> None:
        await process.exited()
        self._end("exited")

    def _end(self, cause: str) -> None:
        if not self._over.is_set():
            self._cause = cause
            self._over.set()

    async def _hear_last_words(self) -> None:
        with anyio.move_on_after(LAST_WORDS_S):
            await self._silent.wait()

    def _say_lost(self) -> None:
        if self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            unknown = f"; {OUTCOME_UNKNOWN}" if self._established else ""
            receiver.lost(None, UpstreamClosed(f"upstream {self._name!r} {self._how_it_ended()}{unknown}"))

    def _how_it_ended(self) -> str:
        if self._cause is None:
            return "was closed"
        how = (self._process.last_act() if self._process else None) or self._cause
        words = self._stderr.last_words()
        if words and self._tells_last_words:  # then they are logged with the error
            return f"{how}; its last words: {words}"
        if words:
            log.warning("upstream_died", upstream=self._name, how=how, last_words=words)
        return how

    def _receive(self, lines: list[Line | Oversized | Tail]) -> None:
        for line in lines:
            if self._receiver is None:
                return
            match line:
                case Line(text):
                    text = text.removeprefix(_BOM)
                    if _may_be_message(text):
                        self._receiver.received(text, None)
                    elif text.strip():
                        self._skip_noise(text)
                case Oversized(head, size):
                    if _may_be_message(head.removeprefix(_BOM)):
                        log.warning("upstream_line_oversized", upstream=self._name, size=size)
                        self._lose_answered(answered_at_beginning(head))
                        self._id_may_follow = may_answer_at_end(head)
                    else:
                        self._id_may_follow = False
                        self._skip_noise(head)
                case Tail(text):
                    if self._id_may_follow:
                        self._lose_answered(answered_at_end(text))

    def _skip_noise(self, text: bytes) -> None:
        self._noise += 1
        if self._noise <= NOISE_LOGGED or str(self._noise).rstrip("0") == "1":
            log.warning(
                "upstream_noise_skipped",
                upstream=self._name,
                count=self._noise,
                sample=printable(text[:SAMPLE_BYTES]),
            )

    def _lose_answered(self, call: int | None) -> None:
        """The call that an oversized line answers, if that is known: nothing is lost that is not pending."""
        if call is not None and self._receiver is not None:
            limit = f"over the limit of {self._max_bytes} bytes (limits.message)"
            error = UpstreamProtocolError(f"upstream {self._name!r} sent an answer {limit}")
            self._receiver.lost(call, error)

    def __repr__(self) -> str:
        state = "ENDED" if self._over.is_set() else "NEW" if self._process is None else "READY"
        return f"<StdioTransport {self._name!r} {self.describe()} {state}, {self._noise} noisy lines>"


def _is_cut_off(line: Line | Oversized | Tail) -> bool:
    """Whether the server died while it wrote the line: that answers nothing, and is no noise."""
    if not isinstance(line, Line):
        return False
    try:
        check(line.text.removeprefix(_BOM), DEEPEST)
    except JsonError:
        return _may_be_message(line.text.removeprefix(_BOM))
    return False


def _may_be_message(text: bytes) -> bool:
    """Whether it begins as a JSON object or array does; whether it is a message, the receiver judges."""
    return text.lstrip()[:1] in (b"{", b"[")
