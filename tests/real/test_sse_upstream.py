"""Sessions with real servers of the HTTP+SSE transport, found out by being refused Streamable HTTP.

The Python SDK 1.x (405, root-relative address, CRLF) and npm server-everything (404).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from proxy import __version__
from proxy.clock import SystemClock
from proxy.eras.capabilities import ClientCapabilities
from proxy.errors import UpstreamClosed
from proxy.protocol import names
from proxy.upstream.auto import AutoHttpTransport, KnownServer
from proxy.upstream.base import Position, Question, Result
from proxy.upstream.http import make_client
from proxy.upstream.pending import AskingTools
from proxy.upstream.session import LegacySession
from tests.real.legacy import Legacy
from tests.real.processes import Program, accepts, free_port
from tests.real.waiting import until
from tests.setup_tools import EVERYTHING, node, npm_module

pytestmark = pytest.mark.anyio

START_BOUND_S: Final = 40.0
CAPABILITIES: Final = ClientCapabilities.parse(b'{"elicitation":{}}')
ACCEPTED: Final = b'{"action":"accept","content":{"confirm":true}}'


@dataclass
class Heard:
    """A listener that remembers."""

    notifications: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)

    def on_notification(self, method: str, params: bytes | None) -> None:
        self.notifications.append(method)

    def on_question(self, question: Question) -> None:
        self.questions.append(question)

    def on_withdrawn(self, question: Question) -> None:
        """Not asked for here."""

    def on_position(self, position: Position) -> None:
        """HTTP+SSE has none."""


async def call(session: LegacySession, tool: str, heard: Heard | None = None, **arguments: Any) -> Any:
    params = json.dumps({"name": tool, "arguments": arguments}).encode()
    outcome = await session.call(names.TOOLS_CALL, params, heard or Heard(), want_progress=True)
    assert isinstance(outcome, Result)
    return json.loads(outcome.raw)["content"][0]["text"]


@asynccontextmanager
async def session_with(url: str, known: KnownServer) -> AsyncIterator[LegacySession]:
    async with make_client() as client:
        clock = SystemClock()
        transport = AutoHttpTransport(
            url,
            name="old",
            max_bytes=1 << 24,
            client=client,
            headers=dict,
            clock=clock,
            known=known,
        )
        session = LegacySession(
            transport,
            name="old",
            capabilities=CAPABILITIES,
            client_version=__version__,
            asking=AskingTools(lambda tool: False),
            clock=clock,
            max_depth=512,
            start_timeout_s=START_BOUND_S,
            on_change=lambda method, params: None,
        )
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                await tasks.start(lambda task_status: session.run(task_status=task_status))
                assert transport.describe() == f"sse {url}"
                yield session
                session.close()


async def test_a_session_with_a_python_server_is_asked_is_lost_by_a_kill_and_begins_anew(
    tmp_path: Path,
) -> None:
    """VER-014, HTTP-077, F27: a call, a question, a kill in the middle, and a new session by itself."""
    legacy = Legacy("stdio", tmp_path, "--pre-delay", "0", "--max-protocol", "2024-11-05")
    url = f"http://127.0.0.1:{legacy.port}/sse"
    command = [*legacy.command("sse"), "--port", str(legacy.port)]
    known = KnownServer()
    server = Program(command, log=tmp_path / "server.log")
    try:
        await until(lambda: accepts(legacy.port), "the server listens", within_s=START_BOUND_S)
        async with session_with(url, known) as session:
            assert session.info.version == "2024-11-05"
            assert await call(session, "greet", name="you") == "Hello, you!"
            heard = Heard()
            async with anyio.create_task_group() as tasks:

                async def delete() -> None:
                    assert await call(session, "confirm_delete", heard, filename="a") == "deleted a"

                tasks.start_soon(delete)
                (question,) = await until(lambda: heard.questions, "the server asks")
                assert question.method == names.ELICITATION_CREATE
                await question.answer(ACCEPTED)
            async with anyio.create_task_group() as tasks:

                async def compute() -> None:
                    with pytest.raises(UpstreamClosed, match="outcome unknown"):
                        await call(session, "slow_compute", seconds=60, label="lost")

                tasks.start_soon(compute)
                await legacy.happened("start", "lost")
                await server.kill()
            assert not session.is_alive
        server = Program(command, log=tmp_path / "server.log")
        await until(lambda: accepts(legacy.port), "the server listens again", within_s=START_BOUND_S)
        async with session_with(url, known) as session:
            assert await call(session, "greet", name="again") == "Hello, again!"
    finally:
        await server.stop()
    log = (tmp_path / "server.log").read_text()
    assert known.is_old
    assert "Traceback" not in log


async def test_a_session_with_a_typescript_server_gets_answers_and_progress(tmp_path: Path) -> None:
    """VER-014, HTTP-077: it answers on the stream before it accepts the POST."""
    port = free_port()
    server = Program(
        [str(node()), str(npm_module(EVERYTHING)), "sse"],
        log=tmp_path / "server.log",
        env={"PORT": str(port)},
    )
    try:
        await until(lambda: accepts(port), "the server listens", within_s=START_BOUND_S)
        async with session_with(f"http://127.0.0.1:{port}/sse", KnownServer()) as session:
            assert await call(session, "echo", message="hello") == "Echo: hello"
            heard = Heard()
            await call(session, "trigger-long-running-operation", heard, duration=0.2, steps=2)
            assert heard.notifications.count(names.PROGRESS) == 2
    finally:
        await server.stop()
