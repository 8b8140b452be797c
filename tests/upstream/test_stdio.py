"""A stdio server as the proxy meets it: real processes that behave well, badly, and die (F33 to F36)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.errors import ServerGone, UpstreamClosed, UpstreamError, UpstreamUnavailable
from proxy.metrics import Metrics
from proxy.protocol.envelope import JsonError, check
from proxy.upstream import pipes
from proxy.upstream import process as process_module
from proxy.upstream.base import Position
from proxy.upstream.stdio import StdioTransport
from tests.scrape import Scraped
from tests.upstream.servers import MARKER, descriptors, script, survivors

pytestmark = pytest.mark.anyio

MEBIBYTE = 1 << 20


class Inbox:
    """A receiver that lets a test wait for what it was told."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.losses: list[UpstreamError] = []
        self.lost_calls: list[tuple[int, str]] = []
        self._told = anyio.Event()

    def received(self, message: bytes, call: int | None) -> None:
        assert call is None
        assert not self.losses, "something came after the last thing"
        self.messages.append(message)
        self._tell()

    def lost(self, call: int | None, error: UpstreamError) -> None:
        if call is None:
            self.losses.append(error)
        else:
            self.lost_calls.append((call, error.message))
        self._tell()

    def moved(self, call: int, position: Position) -> None:
        raise AssertionError("there are no event ids on stdio")

    async def first(self, count: int) -> list[bytes]:
        """The first `count` messages."""
        await self.until(lambda: len(self.messages) >= count)
        return self.messages[:count]

    async def loss(self) -> UpstreamError:
        await self.until(lambda: bool(self.losses))
        return self.losses[0]

    def _tell(self) -> None:
        self._told.set()
        self._told = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(20):
            while not condition():
                await self._told.wait()


class Server:
    """A running transport, and what it said so far."""

    def __init__(self, command: Sequence[str], marker: str, **options: Any) -> None:
        self.inbox = Inbox()
        env = {MARKER: marker, **options.pop("env", {})}
        options = {"cwd": None, "max_bytes": 64 * MEBIBYTE, "tells_last_words": True, **options}
        self.transport = StdioTransport(command, env=env, name="search", **options)

    @property
    def pid(self) -> int:
        return int(self.transport.describe().removeprefix("stdio pid "))


Serve = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`async with serve(command) as server`: closed in order at the end of the block, and nothing left."""
    markers: list[str] = []

    @asynccontextmanager
    async def serve(command: Sequence[str], **options: Any) -> AsyncIterator[Server]:
        marker = uuid.uuid4().hex
        markers.append(marker)
        server = Server(command, marker, **options)
        with anyio.fail_after(40):
            async with anyio.create_task_group() as tasks:
                await tasks.start(
                    lambda task_status: server.transport.run(server.inbox, task_status=task_status)
                )
                yield server
                server.transport.close()
        assert len(server.inbox.losses) == 1
        assert survivors(marker) == []

    yield serve
    assert [survivors(marker) for marker in markers] == [[]] * len(markers)


@pytest.fixture
def short_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("GRACE_S", "TERM_S"):
        monkeypatch.setattr(process_module, bound, 0.15)


# -- what is counted -----------------------------------------------------------------------------------


async def test_a_process_counts_from_its_start_until_nothing_of_it_is_left(
    serve: Serve, short_bounds: None
) -> None:
    """However it ends. One that could not be started was none."""
    metrics = Metrics()

    def counted() -> list[float]:
        scraped = Scraped.of(metrics)
        names = ("processes", "processes_started_total", "processes_ended_total")
        return [scraped.value(f"upstream_{name}") for name in names]

    async with serve(script("stubborn"), metrics=metrics):
        assert counted() == [1, 1, 0]
    assert counted() == [0, 1, 1]
    async with serve(script("echo"), metrics=metrics) as server:
        os.kill(server.pid, signal.SIGKILL)
        await server.inbox.loss()
    assert counted() == [0, 2, 2]
    missing = StdioTransport(
        ["/no/such/program"], env=None, cwd=None, name="search", max_bytes=1, metrics=metrics
    )
    with pytest.raises(UpstreamUnavailable):
        await missing.run(Inbox(), task_status=anyio.TASK_STATUS_IGNORED)
    assert counted() == [0, 2, 2]


# -- messages ------------------------------------------------------------------------------------------


async def test_every_message_is_one_line_in_both_directions(serve: Serve) -> None:
    """STDIO-001."""
    pretty = '{\r\n "text": "\u2028 \\n",\n "n": 1.10\r}'.encode()
    async with serve(script("echo")) as server:
        await server.transport.send(pretty)
        await server.transport.send(b'{"n":2}', call=2)
        assert await server.inbox.first(2) == [
            '{   "text": "\u2028 \\n",  "n": 1.10 }'.encode(),
            b'{"n":2}',
        ]


@pytest.mark.parametrize(
    "size, step",
    [
        (100_000, 1),
        (65_535, 65_535),
        (65_536, 65_536),
        (65_537, 65_537),
        (5_000_000, MEBIBYTE),
        (64 * MEBIBYTE, MEBIBYTE),
    ],
)
async def test_a_line_up_to_the_limit_comes_whole_however_it_is_written(
    serve: Serve, size: int, step: int
) -> None:
    """F33."""
    async with serve(script("long_line", str(size), str(step))) as server:
        long, short = await server.inbox.first(2)
        assert len(long) == size
        assert long.startswith('{"text":"üx'.encode())
        assert long.endswith(b'x"}')
        assert short == b'{"next":1}'
    assert server.inbox.lost_calls == []


OVER_THE_LIMIT = "upstream 'search' sent an answer over the limit of 100000 bytes (limits.message)"


@pytest.mark.parametrize(
    "beginning, end, lost",
    [
        ('{"jsonrpc":"2.0","id":7,"result":{"text":"', '"}}', [(7, OVER_THE_LIMIT)]),
        ('{ "id": "7" , "result":{"text":"', '"}}', [(7, OVER_THE_LIMIT)]),
        ('{"result":{"text":"', '"},"jsonrpc":"2.0","id":7}', [(7, OVER_THE_LIMIT)]),
        ('{"error":{"message":"', '"},"id":7,"jsonrpc":"2.0"}', [(7, OVER_THE_LIMIT)]),
        ('{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":"', '"}}', []),
        ('{"method":"x","params":{"message":"', '"},"jsonrpc":"2.0","id":7}', []),
        ('{"result":{"text":"', '","id":7}', [(7, OVER_THE_LIMIT)]),
        ('progress: {"id":7,"result":"', "", []),
    ],
)
async def test_the_call_that_a_line_over_the_limit_answers_is_lost(
    serve: Serve, beginning: str, end: str, lost: list[tuple[int, str]]
) -> None:
    """F33: messages before it in the same write are delivered, and the process goes on."""
    async with serve(script("too_long", beginning, "200000", end), max_bytes=100_000) as server:
        await server.inbox.until(lambda: bool(server.inbox.messages))
        assert server.inbox.messages == [b'{"good":1}']
        await server.transport.send(b"go on")
        assert await server.inbox.first(2) == [b'{"good":1}', b'{"good":2}']
    assert server.inbox.lost_calls == lost


async def test_what_ends_noise_over_the_limit_is_noise_also_after_an_answer_over_it(serve: Serve) -> None:
    """F34."""
    print_all = (
        "import sys; long = 'x' * 200_000; print('{\"result\":\"' + long + '\",\"id\":1}');"
        " print('dump ' + long + '\",\"id\":7}'); print('{}', flush=True); sys.stdin.read()"
    )
    async with serve([sys.executable, "-c", print_all], max_bytes=100_000) as server:
        await server.inbox.first(1)
    assert server.inbox.lost_calls == [(1, OVER_THE_LIMIT)]


async def test_the_last_message_needs_no_line_end(serve: Serve) -> None:
    """F33."""
    async with serve(script("dying", "unfinished")) as server:
        await server.transport.send(b"go")
        assert await server.inbox.first(2) == [b'{"first":1}', b'{"last":1}']


async def test_noise_is_skipped_counted_and_logged_a_few_times(serve: Serve) -> None:
    """F34."""
    with capture_logs() as logs:
        async with serve(script("noisy")) as server:
            await server.inbox.first(19)
    real = [json.loads(message) for message in server.inbox.messages if _is_json(message)]
    assert real[:14] == [{"real": n} for n in range(14)]
    assert real[14:] == [[{"real": "batch"}], [], {}, {"jsonrpc": "2.0"}]
    assert server.inbox.messages[18:] == [b"[INFO] no JSON"]  # may be a message; the receiver sees that not
    skipped = [entry for entry in logs if entry["event"] == "upstream_noise_skipped"]
    assert [entry["count"] for entry in skipped] == [1, 2, 3, 4, 5, 10, 100, 1_000]
    assert [entry["sample"] for entry in skipped[:4]] == [
        "Server listening...",
        "🚀 ready",
        "INFO started",
        "123",
    ]
    assert {entry["upstream"] for entry in skipped} == {"search"}
    (ended,) = [entry for entry in logs if entry["event"] == "upstream_ended"]
    assert ended["noise"] == 1_009


def _is_json(message: bytes) -> bool:
    try:
        check(message, 10)
    except JsonError:
        return False
    return True


# -- stderr --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lines", "no newline", "invalid UTF-8"])
async def test_a_flood_on_stderr_delays_nobody(serve: Serve, kind: str) -> None:
    """STDIO-004, F35."""
    with capture_logs() as logs:
        async with serve(script("talkative", kind)) as server:
            await server.transport.send(b'{"n":1}', call=1)
            assert await server.inbox.first(1) == [b'{"n":1}']
    said = [entry for entry in logs if entry["event"] == "upstream_stderr"]
    assert said
    assert all(len(entry["line"]) <= pipes.STDERR_LINE_BYTES for entry in said)
    assert (said[-1]["line"] == "the very last words") == (kind != "no newline")


# -- the start -----------------------------------------------------------------------------------------


async def test_the_server_leads_its_own_session_and_has_what_was_configured(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SEC-006, SEC-007."""
    monkeypatch.setenv("MCP_TASKPROXY_STORE_KEY", "secret")
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.setenv("REPLACED", "no")
    configured = {"REPLACED": "yes", "MCP_TASKPROXY_FOR_THE_SERVER": "yes"}
    with capture_logs() as logs:
        async with serve(script("report", "-x", "a b"), env=configured, cwd=tmp_path) as server:
            pid = server.pid
            (said,) = await server.inbox.first(1)
    facts = json.loads(said)
    assert facts["argv"] == ["-x", "a b"]
    assert _is_same_place(facts["cwd"], tmp_path)
    assert facts["leads"]
    assert facts["piped"] == [True, True, True]
    assert facts["env"]["INHERITED"] == facts["env"]["REPLACED"] == "yes"
    assert [name for name in facts["env"] if name.startswith("MCP_")] == ["MCP_TASKPROXY_FOR_THE_SERVER"]
    assert "secret" not in facts["env"].values()
    life = [entry for entry in logs if entry["event"] in ("upstream_started", "upstream_ended")]
    assert [(entry["event"], entry["upstream"], entry["pid"]) for entry in life] == [
        ("upstream_started", "search", pid),
        ("upstream_ended", "search", pid),
    ]
    assert life[1]["code"] == 0


def _is_same_place(said: str, configured: Path) -> bool:
    return Path(said).samefile(configured)


@pytest.mark.parametrize(
    "command, cwd, reason",
    [
        (["no-such-command", "--key=secret"], None, "No such file or directory"),
        ([__file__, "--key=secret"], None, "Permission denied"),
        (["cat"], Path("/no/such/place"), "No such file or directory"),
        (["cat", "a\0b"], None, "embedded null byte"),
    ],
)
async def test_a_command_that_cannot_be_started_is_named_in_the_log_alone(
    command: list[str], cwd: Path | None, reason: str
) -> None:
    """Where something lies on this machine is no business of clients."""
    server = Server(command, "unused", cwd=cwd)
    open_before = descriptors()
    with capture_logs() as logs, pytest.raises(UpstreamUnavailable) as caught:
        await server.transport.run(server.inbox, task_status=anyio.TASK_STATUS_IGNORED)
    assert caught.value.message == f"upstream 'search' could not be started: {reason}"
    told = [(log["event"], log["program"], log["cwd"], log["reason"]) for log in logs]
    assert told == [("server_not_started", command[0], None if cwd is None else str(cwd), reason)]
    assert server.inbox.losses == []
    assert descriptors() == open_before
    with pytest.raises(UpstreamUnavailable, match="is not running"):
        await server.transport.send(b"{}")


async def test_who_is_cancelled_already_starts_nothing(serve: Serve) -> None:
    server = Server(script("echo"), "unused")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await server.transport.run(server.inbox, task_status=anyio.TASK_STATUS_IGNORED)
    assert "pid" not in server.transport.describe()


# -- the end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way, before, told",
    [
        ("exit", [], "exited with code 3; its last words: Fatal: no database"),
        ("signal", [], "was killed by SIGKILL"),
        ("close stdout", [], "closed its stdout"),
        ("leave a child", [b'{"last":1}'], "exited with code 4"),
    ],
)
async def test_an_end_of_its_own_is_told_at_once_with_its_cause(
    serve: Serve, way: str, before: list[bytes], told: str
) -> None:
    """STDIO-010, F36; contract section 9. Also where it lives on, or a child of it holds its pipes."""
    async with serve(script("dying", way)) as server:
        start = time.monotonic()
        await server.transport.send(b"go", call=1)
        loss = await server.inbox.loss()
        assert time.monotonic() - start < process_module.GRACE_S
        assert isinstance(loss, UpstreamClosed)
        assert loss.message == f"upstream 'search' {told}"
        assert server.inbox.messages == before
        with pytest.raises(ServerGone, match="is not running"):
            await server.transport.send(b"late")


async def test_what_it_said_as_it_died_is_told_nobody_who_may_be_a_stranger(serve: Serve) -> None:
    """I5: those who share a process would read what it said of the calls of others. The log has it."""
    with capture_logs() as logs:
        async with serve(script("dying", "exit"), tells_last_words=False) as server:
            await server.transport.send(b"go", call=1)
            assert (await server.inbox.loss()).message == "upstream 'search' exited with code 3"
    (died,) = [entry for entry in logs if entry["event"] == "upstream_died"]
    assert (died["how"], died["last_words"]) == ("exited with code 3", "Fatal: no database")


async def test_once_calls_run_its_end_says_that_their_outcome_is_unknown(serve: Serve) -> None:
    """Contract section 1 (I2): where it cannot be known whether a call ran, the error says so."""
    async with serve(script("dying", "exit")) as server:
        server.transport.established("2025-11-25")
        await server.transport.send(b"go", call=1)
        told = "exited with code 3; its last words: Fatal: no database; outcome unknown: whether it ran"
        assert (await server.inbox.loss()).message.startswith(f"upstream 'search' {told}")


@pytest.mark.usefixtures("short_bounds")
async def test_a_server_that_closes_its_stdin_is_of_no_use(serve: Serve) -> None:
    async with serve(script("dying", "close stdin")) as server:
        await server.transport.send(b"go")
        await server.inbox.first(1)
        with pytest.raises(UpstreamError):
            await server.transport.send(b"can you hear me?")
        assert (await server.inbox.loss()).message == "upstream 'search' closed its stdin"


@pytest.mark.usefixtures("short_bounds")
async def test_a_server_that_never_reads_is_broken_after_a_bound(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6."""
    monkeypatch.setattr(pipes, "STALLED_S", 0.1)
    async with serve(script("late_reader")) as server:
        await server.inbox.first(1)
        with pytest.raises(UpstreamClosed, match="in the middle of the message"):
            await server.transport.send(b"x" * MEBIBYTE, call=1)
        assert (
            await server.inbox.loss()
        ).message == "upstream 'search' read nothing from its stdin for 0.1 s"


async def test_close_lets_the_server_finish(serve: Serve) -> None:
    """STDIO-009: what waits is written, what is answered until its end is received, then all is lost."""
    async with serve(script("echo")) as server:
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(server.transport.send, b'{"n":%d}' % number)
            await anyio.lowlevel.checkpoint()
            server.transport.close()
            server.transport.close()
        with pytest.raises(UpstreamUnavailable):
            await server.transport.send(b"{}")
    assert server.inbox.messages == [b'{"n":%d}' % number for number in range(100)]
    assert server.inbox.losses[0].message == "upstream 'search' was closed"


async def test_who_is_closed_before_it_runs_ends_at_once(serve: Serve) -> None:
    server = Server(script("echo"), "unused")
    server.transport.close()
    with anyio.fail_after(process_module.GRACE_S):
        await server.transport.run(server.inbox, task_status=anyio.TASK_STATUS_IGNORED)
    assert len(server.inbox.losses) == 1


async def test_what_is_sent_while_the_server_dies_arrives_whole_or_fails(serve: Serve) -> None:
    outcomes: list[type[Exception] | None] = []

    async def send(server: Server, message: bytes) -> None:
        try:
            await server.transport.send(message)
            outcomes.append(None)
        except UpstreamError as exc:
            outcomes.append(type(exc))

    long = b'{"x":"' + b"x" * 100_000 + b'"}'
    async with serve(script("echo")) as server, anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(send, server, long)
        await server.inbox.first(5)
        os.kill(server.pid, signal.SIGKILL)
    assert len(outcomes) == 50
    assert set(outcomes) <= {None, UpstreamClosed, ServerGone}
    assert outcomes.count(UpstreamClosed) <= 1
    assert set(server.inbox.messages) == {long}  # of the one that it died in, nothing
    assert server.inbox.losses[0].message == "upstream 'search' was killed by SIGKILL"


@pytest.mark.parametrize(
    ("last", "is_heard"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{}}', True),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"result":{}} ', True),
        (b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"it was a dar', False),
        (b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"it was a dark"}', False),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1', False),
    ],
)
async def test_a_line_that_the_server_died_in_answers_nothing(
    serve: Serve, last: bytes, is_heard: bool
) -> None:
    """The call that it would have answered is lost like all others: whether it ran cannot be told."""
    command = [sys.executable, "-c", f"import os; os.write(1, {last!r})"]
    with capture_logs() as logs:
        async with serve(command) as server:
            await server.inbox.loss()
    assert server.inbox.messages == ([last.removeprefix(b"\xef\xbb\xbf")] if is_heard else [])
    assert server.inbox.lost_calls == []
    assert not [entry for entry in logs if entry["event"] == "upstream_noise_skipped"]


@pytest.mark.usefixtures("short_bounds")
@pytest.mark.parametrize(
    "command",
    [script("stubborn"), ["sh", "-c", '"$@" & wait', "sh", *script("stubborn")], script("late_reader")],
    ids=["itself", "under a shell", "heeds TERM"],
)
async def test_close_ends_also_who_ignores_it(serve: Serve, command: list[str]) -> None:
    """STDIO-009, F36 (a)."""
    async with serve(command) as server:
        await server.inbox.first(1)


@pytest.mark.usefixtures("short_bounds")
@pytest.mark.parametrize(
    "command", [script("stubborn"), ["sh", "-c", '"$@" & wait', "sh", *script("stubborn")], script("echo")]
)
@pytest.mark.parametrize("wait_for_it", [True, False])
async def test_cancelling_ends_everything_and_says_so(
    serve: Serve, command: list[str], wait_for_it: bool
) -> None:
    """F36 (b), (d): also in the moment of its start."""
    async with anyio.create_task_group() as tasks, serve(command) as server:
        if wait_for_it and command != script("echo"):
            await server.inbox.first(1)
        tasks.cancel_scope.cancel()
    assert [loss.message for loss in server.inbox.losses] == ["upstream 'search' was closed"]


async def test_fifty_crashes_leave_nothing(serve: Serve) -> None:
    """F36 (e)."""
    open_before = descriptors()
    for _ in range(50):
        async with serve(["sh", "-c", "exit 1"]) as server:
            assert (await server.inbox.loss()).message == "upstream 'search' exited with code 1"
    assert descriptors() == open_before


# -- back-pressure -------------------------------------------------------------------------------------


async def test_a_slow_reader_gets_a_long_request_and_holds_up_nobody_else(serve: Serve) -> None:
    """F33."""
    long = b"x" * 5_000_000
    async with serve(script("slow_reader")) as slow, serve(script("echo")) as quick:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow.transport.send, long)
            for number in range(20):
                await quick.transport.send(b'{"n":%d}' % number)
                await quick.inbox.first(number + 1)
            assert slow.inbox.messages == []
        assert await slow.inbox.first(1) == [b'{"length":5000000}']


async def test_a_cancelled_message_is_whole_or_not_there(serve: Serve) -> None:
    """STDIO-003: half a line would spoil the next one."""
    async with serve(script("late_reader")) as server:
        await server.inbox.first(1)
        async with anyio.create_task_group() as cancelled:
            cancelled.start_soon(server.transport.send, b"x" * MEBIBYTE)
            await anyio.wait_all_tasks_blocked()
            cancelled.start_soon(server.transport.send, b"never begun")
            await anyio.wait_all_tasks_blocked()
            cancelled.cancel_scope.cancel()
        os.kill(server.pid, signal.SIGUSR1)
        await server.transport.send(b"after it")
        assert [json.loads(message) for message in (await server.inbox.first(3))[1:]] == [
            ["x" * 40, MEBIBYTE + 1],
            ["after it\n", 9],
        ]


async def test_it_tells_what_it_is(serve: Serve) -> None:
    async with serve(script("echo")) as server:
        assert (
            repr(server.transport) == f"<StdioTransport 'search' stdio pid {server.pid} READY, 0 noisy lines>"
        )
        server.transport.abandon(1)
        server.transport.established("2025-11-25")
    assert "ENDED" in repr(server.transport)
