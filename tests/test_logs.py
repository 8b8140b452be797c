"""Logs: one line an event, nothing secret in it, and nobody waits for a slow reader."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator

import pytest
import structlog
from aiohttp.http_exceptions import LineTooLong

from proxy import logs
from tests.restored_logging import restored_logging

SECRET = "Bearer s3cret"


class Pipe:
    """A descriptor to log to, and its other end."""

    def __init__(self) -> None:
        self.reader, self.fd = os.pipe()
        self.writer: logs.LineWriter | None = None

    def configure(self, level: str = "info", line_format: logs.LineFormat = "text") -> None:
        self.writer = logs.configure(level, line_format, self.fd)

    def lines(self) -> list[str]:
        """Everything that was logged; the end of logging to this pipe."""
        assert self.writer is not None
        self.writer.close(timeout_s=5)
        os.close(self.fd)
        with os.fdopen(self.reader, "rb") as reader:
            return reader.read().decode().splitlines()

    def line(self) -> str:
        (line,) = self.lines()
        return line

    def facts(self) -> dict[str, object]:
        facts = json.loads(self.line())
        assert isinstance(facts, dict)
        return facts


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with restored_logging():
        yield Pipe()


# What a line looks like.


def test_a_text_line_is_time_level_event_and_facts(pipe: Pipe) -> None:
    pipe.configure()
    logs.get_logger().info("task_created", task="1f2e3d", tool="train all", count=3, none=None)
    time, rest = pipe.line().split(" ", 1)
    assert time.endswith("Z")
    assert rest == 'info    task_created task=1f2e3d tool="train all" count=3 none=None'


def test_a_json_line_is_one_object(pipe: Pipe) -> None:
    pipe.configure(line_format="json")
    logs.get_logger().warning("upstream_failed", reason="é\n", count=3, path=[1])
    facts = pipe.facts()
    assert facts.pop("timestamp")
    assert facts == {
        "event": "upstream_failed",
        "level": "warning",
        "reason": "é\n",
        "count": 3,
        "path": "[1]",
    }


def test_facts_bound_to_the_request_are_in_every_line(pipe: Pipe) -> None:
    pipe.configure()
    structlog.contextvars.bind_contextvars(method="tools/call")
    logs.get_logger().info("call_started")
    assert pipe.line().endswith("call_started method=tools/call")


def test_lines_below_the_level_are_not_written(pipe: Pipe) -> None:
    pipe.configure("warning")
    logs.get_logger().info("call_started")
    logs.get_logger().warning("call_lost")
    assert "call_lost" in pipe.line()


@pytest.mark.parametrize(
    "evil", ["a\nforged_event x=1", "\x1b[2J", "\x9b2J", "\u202e", "\u2028", "\ud800", '" x="']
)
def test_what_a_peer_sent_neither_forges_lines_nor_moves_the_cursor(pipe: Pipe, evil: str) -> None:
    pipe.configure()
    logs.get_logger().info("upstream_said", text=evil)
    line = pipe.line()
    assert line.isprintable()
    assert line.split(" text=", 1)[1].startswith('"')


def test_a_traceback_follows_its_line_and_is_harmless(pipe: Pipe) -> None:
    pipe.configure()
    try:
        raise RuntimeError("\x1b[2J")
    except RuntimeError:
        logs.get_logger().exception("call_broke")
    head, *traceback = pipe.lines()
    assert "error   call_broke" in head
    assert traceback[0].startswith("Traceback")
    assert traceback[-1] == r"RuntimeError: \u001b[2J"


def test_a_flood_in_one_fact_is_cut(pipe: Pipe) -> None:
    pipe.configure()
    logs.get_logger().info("upstream_said", text="x" * 1_000_000)
    line = pipe.line()
    assert len(line) < logs.MAX_FACT_CHARS + 200
    assert "(1000000 characters)" in line


# What is never in it.


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "Authorization",
        "token",
        "progress_token",
        "client_secret",
        "arguments",
        "result",
        "content",
    ],
)
@pytest.mark.parametrize("line_format", ["text", "json"])
def test_facts_named_after_secrets_are_dropped(pipe: Pipe, name: str, line_format: logs.LineFormat) -> None:
    pipe.configure(line_format=line_format)
    logs.get_logger().info("call_started", **{name: SECRET}, result_bytes=3)
    line = pipe.line()
    assert SECRET not in line
    assert "result_bytes" in line


def test_a_task_is_logged_by_its_hash() -> None:
    task_id = "tpx-" + "a" * 32
    assert logs.task_hash(task_id) == logs.task_hash(task_id)
    assert logs.task_hash(task_id) != logs.task_hash(task_id + "b")
    assert len(logs.task_hash(task_id)) == 12
    assert "aaa" not in logs.task_hash(task_id)


def test_a_header_that_was_too_long_does_not_reach_the_log(pipe: Pipe) -> None:
    """Field report F23: aiohttp logs the start of the value, which may be a bearer token."""
    pipe.configure(line_format="json")
    try:
        raise LineTooLong(f"Authorization: {SECRET}", 8190, "9000")
    except LineTooLong:
        logging.getLogger("aiohttp.server").exception("Error handling request from %s", SECRET)
    facts = pipe.facts()
    assert facts["message"] == "Error handling request from %s"
    assert (facts["fault"], facts["level"]) == ("LineTooLong", "warning")
    assert SECRET not in str(facts)


# The libraries' lines.


def test_our_own_fault_in_a_handler_keeps_its_traceback(pipe: Pipe) -> None:
    pipe.configure()
    try:
        raise KeyError("ours")
    except KeyError:
        logging.getLogger("aiohttp.server").exception("Error handling request")
    lines = pipe.lines()
    assert "error   library_logged logger=aiohttp.server" in lines[0]
    assert lines[-1] == "KeyError: 'ours'"


@pytest.mark.parametrize(
    "say",
    [
        lambda: logging.getLogger("asyncio").warning("slow %s", "callback"),
        lambda: logging.getLogger("asyncio").warning("slow %d", "x"),
        lambda: logging.getLogger("x").log(35, "between two levels"),
        lambda: logging.getLogger("x").error("no exception here", exc_info=True),
    ],
)
def test_a_library_is_logged_as_one_kind_of_event(pipe: Pipe, say: Callable[[], None]) -> None:
    pipe.configure()
    say()
    assert " library_logged logger=" in pipe.line()


def test_requests_and_chatter_of_libraries_are_not_logged(pipe: Pipe) -> None:
    pipe.configure("debug")
    logging.getLogger("aiohttp.access").error("GET /mcp")
    logging.getLogger("asyncio").info("Using selector")
    assert pipe.lines() == []


def test_python_warnings_go_to_the_log(pipe: Pipe) -> None:
    pipe.configure()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", stacklevel=1)
    assert "logger=py.warnings" in pipe.lines()[0]


# A reader that is slow, gone or odd.


def test_a_reader_that_reads_nothing_holds_nobody_up_and_later_hears_what_it_missed(pipe: Pipe) -> None:
    """Field report F35: our own stderr may be a pipe that nobody reads."""
    pipe.configure()
    count = 2 * logs.MAX_QUEUED_BYTES // 10_000
    for _ in range(count):
        logs.get_logger().info("flood", text="x" * 10_000)
    raw = b""
    while b"log_lines_dropped" not in raw:
        raw += os.read(pipe.reader, 1 << 20)
    pipe.lines()
    dropped = int(raw.rsplit(b"count=", 1)[1])
    assert dropped > count // 4
    assert raw.count(b" flood ") + dropped == count


def test_the_exit_does_not_wait_for_a_reader_that_reads_nothing(pipe: Pipe) -> None:
    writer = logs.LineWriter(pipe.fd, on_dropped=lambda _: None)
    for _ in range(1000):
        writer.write("x" * 999)
    writer.close(timeout_s=0.05)
    assert " 0 bytes queued" not in repr(writer)
    os.close(pipe.reader)  # lets the thread end


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.fd, False)
    writer = pipe.writer = logs.LineWriter(pipe.fd, on_dropped=lambda _: None)
    for number in range(200):
        writer.write(f"{number} {'x' * 999}")
    with os.fdopen(os.dup(pipe.reader), "rb", buffering=0) as reader:
        raw = b""
        while raw.count(b"\n") < 200:
            raw += reader.read(65536)
    assert [int(line.split()[0]) for line in raw.splitlines()] == list(range(200))
    pipe.lines()


def test_a_reader_that_is_gone_stops_nothing(pipe: Pipe) -> None:
    os.close(pipe.reader)
    writer = logs.LineWriter(pipe.fd, on_dropped=lambda _: None)
    writer.write("to nobody")
    writer.close(timeout_s=5)
    assert " 0 bytes queued" in repr(writer)
    os.close(pipe.fd)
