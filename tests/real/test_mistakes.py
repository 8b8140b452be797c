"""What a person gets wrong in the first five minutes, and the one line that says so.

Before it serves: exit code 2 and one line on stderr. While it serves: one line in the log, and a JSON-RPC
error that says the same to the client. The words of each are held by `tests/test_cli.py` and its likes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from proxy.cli import EXIT_OPERATOR
from proxy.errors import ErrorCode
from proxy.protocol import names
from tests.documents import COMMAND
from tests.real.bench import Bench
from tests.real.conversation import Conversation, conversation
from tests.real.installed import user_environment
from tests.real.processes import free_port

pytestmark = pytest.mark.anyio

ANY_PORT: Final = ("--listen", "127.0.0.1:0")
SERVER: Final = ("--", sys.executable, "-c", "pass")
EXIT_BOUND_S: Final = 40.0
ANSWER_BOUND_S: Final = 40.0
ROOT_UID: Final = 0
AS_OTHERS: Final = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
"""Takes from root what lets it write where the mode forbids it."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return user_environment(tmp_path)


def complaint(environment: dict[str, str], *arguments: str, before: Sequence[str] = ()) -> str:
    """The one line of a command that must end at once with exit code 2."""
    ran = subprocess.run(
        [*before, COMMAND, *arguments],
        env=environment,
        cwd=environment["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=EXIT_BOUND_S,
    )
    assert (ran.returncode, ran.stdout) == (EXIT_OPERATOR, ""), ran.stderr
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"{COMMAND}: error: ")
    return line.removeprefix(f"{COMMAND}: error: ")


# -- before it serves --------------------------------------------------------------------------------


def test_a_mistyped_flag(environment: dict[str, str]) -> None:
    line = complaint(environment, "--treshold", "2s", *SERVER)
    assert line == "No such option '--treshold'. Did you mean '--threshold'?"


@pytest.mark.parametrize("listen", [(), ANY_PORT], ids=["stdio", "http"])
def test_a_command_that_does_not_exist(environment: dict[str, str], listen: Sequence[str]) -> None:
    line = complaint(environment, *listen, "--", "npxx", "-y", "some-server")
    assert line == "upstream.command: no program 'npxx' that can be run"


def test_a_port_in_use(environment: dict[str, str]) -> None:
    with web_page() as port:
        line = complaint(environment, "--listen", f"127.0.0.1:{port}", *SERVER)
    assert line == f"listen: 127.0.0.1:{port} is in use by another program"


@pytest.mark.parametrize("listen", [(), ANY_PORT], ids=["stdio", "http"])
def test_a_store_directory_that_cannot_be_written(
    environment: dict[str, str], tmp_path: Path, listen: Sequence[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    before = AS_OTHERS if os.geteuid() == ROOT_UID else ()
    line = complaint(environment, *listen, "--store", f"disk:{closed / 'tasks'}", *SERVER, before=before)
    assert line == f"store directory {closed / 'tasks'} cannot be used: Permission denied"


async def test_a_store_that_another_proxy_uses(environment: dict[str, str], bench: Bench) -> None:
    proxy = await bench.proxy([sys.executable, "-c", "pass"])
    store = proxy.home / "store"
    line = complaint(environment, *ANY_PORT, "--store", f"disk:{store}", *SERVER)
    assert line == f"store directory {store} is in use by another mcp-taskproxy (pid {proxy.pid})"


# -- while it serves ---------------------------------------------------------------------------------


class WebPage(BaseHTTPRequestHandler):
    """Answers everything with a page, as a web server does that knows nothing of MCP."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        page = b"<!doctype html>\n<html>\n<head><title>Welcome</title></head>\n</html>\n" * 100
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def web_page() -> Iterator[int]:
    """Its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), WebPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def in_front_of(url: str, environment: dict[str, str], log: Path) -> AsyncIterator[Conversation]:
    """A stdio client of a proxy before this URL."""
    with anyio.fail_after(ANSWER_BOUND_S):
        async with conversation([COMMAND, "--upstream", url], env=environment, log=log) as client:
            yield client


@dataclass(frozen=True, slots=True)
class Failure:
    """What the client is told, and what the log says beside its lines of information."""

    message: str
    logged: tuple[str, ...]


async def failures(url: str, environment: dict[str, str], home: Path) -> tuple[Failure, Failure]:
    """The first request of a modern client and that of a legacy one, each with a proxy of its own."""
    async with in_front_of(url, environment, home / "modern.log") as client:
        modern = await client.ask_modern(names.DISCOVER)
    async with in_front_of(url, environment, home / "legacy.log") as client:
        legacy = await client.ask(names.INITIALIZE, {"protocolVersion": names.LATEST_LEGACY})
    return failure(modern, home / "modern.log"), failure(legacy, home / "legacy.log")


def failure(answer: dict[str, Any], log: Path) -> Failure:
    assert answer["error"]["code"] == ErrorCode.INTERNAL_ERROR
    logged = tuple(line for line in log.read_text().splitlines() if " info " not in line)
    assert all(" warning upstream_failed reason=" in line for line in logged)
    return Failure(answer["error"]["message"], logged)


async def test_a_url_that_answers_with_a_web_page(environment: dict[str, str], tmp_path: Path) -> None:
    with web_page() as port:
        modern, legacy = await failures(f"http://127.0.0.1:{port}/", environment, tmp_path)

    fault = f"upstream '127.0.0.1:{port}' answered with status 200 and text/html"
    assert modern.message.startswith(fault)
    assert legacy.message == modern.message
    assert "\n" not in modern.message
    assert [fault in line for line in modern.logged] == [True]


async def test_a_url_where_nothing_listens(environment: dict[str, str], tmp_path: Path) -> None:
    port = free_port()
    modern, legacy = await failures(f"http://127.0.0.1:{port}/mcp", environment, tmp_path)

    fault = f"upstream '127.0.0.1:{port}' could not be reached"
    assert modern.message.startswith(fault)
    assert legacy.message == modern.message
    assert [fault in line for line in modern.logged] == [True]


async def test_a_server_that_ends_at_once_leaves_its_words_in_the_log(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """As `npx` does with the name of a package that does not exist."""
    log = tmp_path / "log"
    server = ("sh", "-c", "echo 'npm error 404' >&2; exit 1")
    with anyio.fail_after(ANSWER_BOUND_S):
        async with conversation([COMMAND, "--", *server], env=environment, log=log) as client:
            answer = await client.ask_modern(names.DISCOVER)

    (logged,) = failure(answer, log).logged
    assert answer["error"]["message"] in logged
    assert 'upstream_stderr upstream=sh line="npm error 404"' in log.read_text()
