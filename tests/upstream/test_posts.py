"""Messages that nobody waits for: in order, bounded in number and time."""

from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.errors import UpstreamClosed
from proxy.upstream import posts as posts_module
from proxy.upstream.posts import Posts
from tests.upstream.fake_transport import settle, until

pytestmark = pytest.mark.anyio


class Server:
    """Reads while `reads` is set; fails on the messages in `refuses`."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.reads = anyio.Event()
        self.refuses: set[bytes] = set()

    async def send(self, message: bytes) -> None:
        await self.reads.wait()
        if message in self.refuses:
            raise UpstreamClosed("no")
        self.got.append(message)


async def test_they_go_out_one_after_the_other_as_they_were_posted() -> None:
    server = Server()
    posts = Posts(server.send, "fake")
    posts.post(b"cancel")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(posts.deliver)
        posts.post(b"refusal")
        await settle()
        server.reads.set()
        posts.post(b"pong")
        await until(lambda: len(server.got) == 3)
        tasks.cancel_scope.cancel()
    assert server.got == [b"cancel", b"refusal", b"pong"]


async def test_one_that_cannot_be_handed_over_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posts_module, "COURTESY_TIMEOUT_S", 0.02)
    server = Server()
    server.refuses = {b"refused"}
    posts = Posts(server.send, "fake")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(posts.deliver)
        posts.post(b"stuck")
        await until(lambda: "0 waiting" in repr(posts))
        posts.post(b"refused")
        posts.post(b"last")
        await until(lambda: "1 waiting" in repr(posts))
        server.reads.set()
        await until(lambda: server.got == [b"last"])
        tasks.cancel_scope.cancel()


async def test_more_than_the_bound_are_dropped_and_told_once_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that asks or pings without reading costs no memory."""
    monkeypatch.setattr(posts_module, "MAX_WAITING", 3)
    server = Server()
    posts = Posts(server.send, "fake")
    with capture_logs() as logs:
        for n in range(10):
            posts.post(b"%d" % n)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(posts.deliver)
            server.reads.set()
            await until(lambda: len(server.got) == 3)
            assert [e["event"] for e in logs] == ["upstream_messages_dropped"]
            for n in range(10, 20):
                posts.post(b"%d" % n)
            await until(lambda: len(server.got) == 6)
            tasks.cancel_scope.cancel()
    assert server.got == [b"0", b"1", b"2", b"10", b"11", b"12"]
    assert [e["event"] for e in logs] == ["upstream_messages_dropped"] * 2
