"""Servers of HTTP+SSE alone: found out at the handshake, served by another handler from then on.

Contract section 2; Transports 2025-11-25, "Backwards Compatibility".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPMethod
from typing import Any

import anyio
import pytest

from proxy.errors import UpstreamClosed, UpstreamUnavailable
from proxy.owners import ANONYMOUS
from proxy.protocol import jsonrpc, names
from proxy.routing import old_servers
from proxy.routing.http_passthrough import HttpPassthrough
from proxy.routing.legacy import HttpMessage, Reply
from proxy.routing.old_servers import OldServers
from proxy.sessions.table import SessionTable
from tests.routing.fake_forwarder import EVENTS, JSON, Body, FakeForwarder, Headers, body_of

pytestmark = pytest.mark.anyio

HEADERS: Headers = [
    ("Authorization", "Bearer x"),
    ("Accept", "application/json, text/event-stream"),
    ("Content-Type", "application/json"),
]
ENDPOINT = b": hello\n\nevent: endpoint\r\ndata: /messages?sid=1\r\n\r\n"
MODERN = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"no","data":{"supported":[]}}}'


@dataclass
class Known:
    is_old: bool = False


@dataclass
class SessionLayer:
    """Records what it is given."""

    seen: list[HttpMessage] = field(default_factory=list)
    drained: bool = False

    @asynccontextmanager
    async def serve(self, message: HttpMessage) -> AsyncIterator[Reply]:
        self.seen.append(message)
        yield Reply(200, [], b"by the session layer")

    def drain(self) -> None:
        self.drained = True


@dataclass
class Scene:
    upstream: FakeForwarder = field(default_factory=FakeForwarder)
    layer: SessionLayer = field(default_factory=SessionLayer)
    known: Known = field(default_factory=Known)

    def __post_init__(self) -> None:
        old = OldServers(self.layer, self.known, self.upstream)
        self.passthrough = HttpPassthrough(self.upstream, max_bytes=1_000, old=old)

    async def ask(self, message: HttpMessage) -> tuple[int, bytes]:
        with anyio.fail_after(5):
            async with self.passthrough.serve(message) as reply:
                assert isinstance(reply.body, bytes)
                return reply.status, reply.body


def post(method: str = "initialize") -> HttpMessage:
    body = b'{"jsonrpc":"2.0","id":1,"method":"' + method.encode() + b'","params":{}}'
    return HttpMessage(HTTPMethod.POST, HEADERS, ANONYMOUS, body, (jsonrpc.parse(body, 64),))


BY_LAYER = (200, b"by the session layer")


def refused(status: int, body: bytes = b"no") -> tuple[int, Headers, bytes]:
    return status, [*JSON, ("Content-Length", str(len(body)))], body


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_server_that_refuses_the_handshake_and_opens_the_old_stream_is_an_old_one(
    status: int,
) -> None:
    """VER-014: the very same message goes on; and from then on every message does."""
    scene = Scene()
    scene.upstream.will(*refused(status))
    scene.upstream.will(200, EVENTS, Body(ENDPOINT[:20], ENDPOINT[20:], ended=False))
    message = post()

    assert await scene.ask(message) == BY_LAYER

    _, asked = scene.upstream.asked
    assert (asked.method, asked.plain, asked.left) == ("GET", True, True)
    assert asked.headers == [HEADERS[0], ("Accept", "text/event-stream")]
    assert scene.layer.seen == [message]
    later = [post("tools/call"), HttpMessage(HTTPMethod.GET, HEADERS, ANONYMOUS)]
    for message in later:
        assert await scene.ask(message) == BY_LAYER
    assert scene.layer.seen[1:] == later
    assert len(scene.upstream.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        (405, [("Allow", "POST")], b""),
        (200, JSON, b"{}"),
        (200, EVENTS, b"data: {}\n\n"),
        (200, EVENTS, b""),
        (200, [*EVENTS, ("Content-Encoding", "gzip")], ENDPOINT),
        (500, [], b""),
    ],
)
async def test_a_refusal_stands_where_there_is_no_old_stream(answer: tuple[int, Headers, bytes]) -> None:
    scene = Scene()
    scene.upstream.will(*refused(400))
    scene.upstream.will(*answer)
    assert await scene.ask(post()) == (400, b"no")
    assert not scene.known.is_old
    assert scene.layer.seen == []


@pytest.mark.parametrize("error", [UpstreamUnavailable("not there"), UpstreamClosed("gone")])
async def test_a_refusal_stands_where_nobody_can_be_asked(error: UpstreamUnavailable) -> None:
    scene = Scene()
    scene.upstream.will(*refused(404))
    scene.upstream.answers.append(error)
    assert await scene.ask(post()) == (404, b"no")


async def test_a_stream_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6."""
    monkeypatch.setattr(old_servers, "ENDPOINT_TIMEOUT_S", 0.01)
    scene = Scene()
    scene.upstream.will(*refused(400))
    scene.upstream.will(200, EVENTS, Body(ended=False))
    assert await scene.ask(post()) == (400, b"no")
    assert all(asked.left for asked in scene.upstream.asked)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_challenge_to_the_question_is_the_answer(status: int) -> None:
    """An old server may ask for credentials there alone."""
    scene = Scene()
    scene.upstream.will(*refused(405))
    scene.upstream.will(status, [("WWW-Authenticate", "Bearer x")], b"who?")
    with anyio.fail_after(5):
        async with scene.passthrough.serve(post()) as reply:
            assert (reply.status, reply.headers) == (status, [("WWW-Authenticate", "Bearer x")])


@pytest.mark.parametrize(
    "answer",
    [refused(400, MODERN), refused(401), refused(500), (400, [*JSON, ("Content-Encoding", "br")], b"?")],
)
async def test_a_modern_error_and_other_refusals_pass_without_a_question(
    answer: tuple[int, Headers, bytes],
) -> None:
    """VER-011, VER-013."""
    scene = Scene()
    scene.upstream.will(*answer)
    status, _, body = answer
    with anyio.fail_after(5):
        async with scene.passthrough.serve(post()) as reply:
            assert (reply.status, await body_of(reply)) == (status, body)
    assert len(scene.upstream.asked) == 1


async def test_only_a_refused_handshake_shows_an_old_server() -> None:
    scene = Scene()
    scene.upstream.will(*refused(404))
    assert await scene.ask(post("tools/call")) == (404, b"no")
    assert len(scene.upstream.asked) == 1


async def test_a_server_that_accepted_a_handshake_is_not_asked_again() -> None:
    scene = Scene()
    scene.upstream.will(*refused(200, b"{}"))
    scene.upstream.will(*refused(400))
    assert await scene.ask(post()) == (200, b"{}")
    assert await scene.ask(post()) == (400, b"no")
    assert len(scene.upstream.asked) == 2


async def test_what_proves_wrong_is_found_out_anew() -> None:
    scene = Scene(known=Known(is_old=True))
    assert await scene.ask(post()) == BY_LAYER
    scene.known.is_old = False  # as the transport does that found nothing there
    scene.upstream.will(*refused(200, b"{}"))
    assert await scene.ask(post()) == (200, b"{}")


async def test_an_id_of_our_own_sessions_is_not_passed_on_also_after_a_restart() -> None:
    """F39: the server has not shown yet that it is an old one, and would say something else than 404."""
    scene = Scene()
    ours = (names.H_SESSION_ID, SessionTable[Any].new_id())
    message = HttpMessage(HTTPMethod.GET, [*HEADERS, ours], ANONYMOUS)
    assert await scene.ask(message) == BY_LAYER
    assert scene.upstream.asked == []
    scene.upstream.will(*refused(200, b"{}"))
    theirs = HttpMessage(HTTPMethod.DELETE, [*HEADERS, (names.H_SESSION_ID, "786512e2")], ANONYMOUS)
    assert await scene.ask(theirs) == (200, b"{}")


async def test_a_drain_reaches_the_session_layer() -> None:
    scene = Scene()
    scene.passthrough.drain()
    assert scene.layer.drained
