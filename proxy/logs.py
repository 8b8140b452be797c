"""Logs: structured events on stderr, never in anybody's way, never with a secret.

Every layer may import this module for `get_logger` and `task_hash`; `cli` calls `configure`. An event
is a stable name, `task_created`, and its facts are keys. Lines go through a bounded queue to a thread
of their own, since a pipe that nobody reads would otherwise hold the event loop (field report F35).
House style, "Logs and metrics".
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import re
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

LineFormat: TypeAlias = Literal["text", "json"]

STDERR_FD: Final = 2
MAX_QUEUED_BYTES: Final = 4 << 20  # some 20,000 lines: more than a reader that is alive falls behind
MAX_FACT_CHARS: Final = 16_384  # a traceback fits
FLUSH_TIMEOUT_S: Final = 1.0  # at exit; a reader that is gone must not keep us

SECRET_WORDS: Final = frozenset({"authorization", "token", "secret", "arguments", "result", "content"})
"""A fact whose name is, or ends in, one of these words is dropped."""

_BARE: Final = re.compile(r"[\w.:/@%+*,~-]+", re.ASCII)


def get_logger() -> FilteringBoundLogger:
    return cast(FilteringBoundLogger, structlog.get_logger())


def task_hash(task_id: str) -> str:
    """What stands for a task in logs: its id can act as a bearer token and is never logged itself."""
    return hashlib.sha256(task_id.encode()).hexdigest()[:12]


def configure(level: str, line_format: LineFormat, fd: int = STDERR_FD) -> LineWriter:
    """Send all logs, the libraries' too, to `fd`; call it once, before anything runs."""
    writer = LineWriter(fd, on_dropped=lambda count: get_logger().warning("log_lines_dropped", count=count))
    atexit.register(writer.close)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            drop_secrets,
            as_json if line_format == "json" else as_text,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: writer,
    )
    _route_libraries(max(threshold, logging.WARNING))
    return writer


def drop_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Without the facts that may be bearer tokens or anybody's data."""
    return {key: fact for key, fact in event.items() if key.lower().rpartition("_")[2] not in SECRET_WORDS}


def as_text(_: WrappedLogger, __: str, event: EventDict) -> str:
    """`2026-07-28T10:00:00Z info    task_created task=1f2e3d tool=train`, a traceback below it."""
    facts = {key: _shortened(fact) for key, fact in event.items()}
    traceback = str(facts.pop("exception", ""))
    head = f"{facts.pop('timestamp')} {facts.pop('level'):<7} {_quoted(facts.pop('event'))}"
    line = " ".join([head, *(f"{key}={_quoted(fact)}" for key, fact in facts.items())])
    return "\n".join([line, *map(_harmless, traceback.splitlines())])


def as_json(_: WrappedLogger, __: str, event: EventDict) -> str:
    return json.dumps({key: _shortened(fact) for key, fact in event.items()})


def _shortened(fact: object) -> str | int | float | None:
    """The fact as JSON can hold it; a flood in one fact is cut."""
    if fact is None or isinstance(fact, int | float):
        return fact
    text = str(fact)
    return text if len(text) <= MAX_FACT_CHARS else f"{text[:MAX_FACT_CHARS]}… ({len(text)} characters)"


def _quoted(fact: object) -> str:
    """Bare where that is unmistakable, else in quotes."""
    text = str(fact)
    return text if _BARE.fullmatch(text) else _harmless(json.dumps(text, ensure_ascii=False))


def _harmless(text: str) -> str:
    """Nothing in it moves a terminal's cursor or starts another line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


class LineWriter:
    """Writes lines to a descriptor from a thread of its own; the caller never waits.

    While the reader is slow, lines beyond `max_queued_bytes` are dropped and counted; `on_dropped` is
    told how many once the queue is empty again. This is structlog's logger: each level is a method.
    """

    def __init__(
        self,
        fd: int,
        *,
        on_dropped: Callable[[int], None],
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self._fd = fd
        self._on_dropped = on_dropped
        self._max_queued_bytes = max_queued_bytes
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        raw = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._queued_bytes + len(raw) > self._max_queued_bytes:
                self._dropped += 1
                return
            self._lines.append(raw)
            self._queued_bytes += len(raw)
            self._changed.notify()

    debug = info = warning = error = critical = write

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Write what is queued, for so long at most; then nothing more. May be called more than once."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def __repr__(self) -> str:
        return f"<LineWriter fd {self._fd}, {self._queued_bytes} bytes queued, {self._dropped} lines dropped>"

    def _run(self) -> None:
        while (raw := self._next()) is not None:
            self._write_out(raw)
            if not self._lines and self._dropped:
                self._report_dropped()

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._lines:
                if self._closing:
                    return None
                self._changed.wait()
            raw = self._lines.popleft()
            self._queued_bytes -= len(raw)
            return raw

    def _write_out(self, raw: bytes) -> None:
        while raw:
            try:
                raw = raw[os.write(self._fd, raw) :]
            except BlockingIOError:  # somebody who shares our stderr made it non-blocking
                select.select([], [self._fd], [])
            except OSError:
                return  # stderr is gone, and with it anybody who could be told

    def _report_dropped(self) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, 0
        self._on_dropped(dropped)


def _route_libraries(threshold: int) -> None:
    logging.captureWarnings(True)
    logging.getLogger("aiohttp.access").disabled = True
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    root.setLevel(threshold)


class _ToStructlog(logging.Handler):
    """What the libraries log, as one kind of event.

    aiohttp's messages and exceptions may hold what a peer sent, the start of an over-long
    `Authorization` among it; of those only the unformatted message and the exception's type are kept.
    """

    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info[1] if record.exc_info else None
        from_aiohttp = record.name.startswith("aiohttp")
        facts: dict[str, Any] = {
            "logger": record.name,
            "message": str(record.msg) if from_aiohttp else _message(record),
        }
        level = min(record.levelno // 10 * 10, logging.CRITICAL)
        if fault is not None:
            facts["fault"] = type(fault).__name__
            if type(fault).__module__.startswith("aiohttp"):
                level = logging.WARNING  # a peer's fault, not ours
            else:
                facts["exc_info"] = fault
        get_logger().log(level, "library_logged", **facts)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # its arguments do not fit; that must not hit who logs
        return str(record.msg)
