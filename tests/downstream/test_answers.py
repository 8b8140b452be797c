"""Large answers on their way share room, which each reader who is slow takes some of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from proxy.downstream.answers import AT_ONCE, Answers
from proxy.errors import LimitReached
from proxy.owners import Owner
from proxy.protocol.envelope import LARGE
from proxy.routing.legacy import Reply
from tests.downstream.http_rig import Rig, http_rig
from tests.downstream.played_legacy import EVENTS, PlayedLegacy, Told

pytestmark = pytest.mark.anyio

OURS = "tpx-" + "A" * 32
EVENT = b"data: " + b"x" * 20_000_000 + b"\n\n"  # more than a socket takes
ASKED = b'{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"%s"}}' % OURS.encode()


def test_one_owner_has_half() -> None:
    answers = Answers(100, has_others=True)
    answers.place(Owner("alice")).grow(AT_ONCE * 50)
    with pytest.raises(LimitReached, match="of yours"):
        answers.place(Owner("alice")).grow(1)
    answers.place(Owner("bob")).grow(AT_ONCE * 50)
    alone = Answers(100, has_others=False)
    alone.place(Owner("alice")).grow(AT_ONCE * 100)


@asynccontextmanager
async def little_room(monkeypatch: pytest.MonkeyPatch, legacy: PlayedLegacy) -> AsyncIterator[Rig]:
    def answers(max_bytes: int, *, has_others: bool) -> Answers:
        return Answers(LARGE // 4, has_others=has_others)

    monkeypatch.setattr("proxy.downstream.http.Answers", answers)
    async with http_rig(legacy=legacy) as rig:
        yield rig


async def test_a_result_that_nobody_reads_keeps_out_further_ones_of_2025(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-003: 503 and a time to come back, until the reader has read it, or is gone."""
    body = Told()
    body.tell(EVENT)
    legacy = PlayedLegacy(Reply(200, EVENTS, body))
    async with little_room(monkeypatch, legacy) as rig:
        with anyio.fail_after(5):
            async with await rig.connect() as slow:
                await slow.send(
                    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(ASKED)
                    + ASKED
                )
                await slow.receive()
                async with rig.session.post(rig.url, data=ASKED) as refused:
                    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
                    assert "limits.result" in (await refused.json())["error"]["message"]
            while legacy.left < 1:
                await anyio.wait_all_tasks_blocked()
            body.tell(b"data: small\n\n")
            body.end()
            async with rig.session.post(rig.url, data=ASKED) as served:
                assert served.status == 200


async def test_the_answer_of_a_call_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ran, and nobody could ask for it again."""
    async with little_room(monkeypatch, PlayedLegacy()) as rig:
        with anyio.fail_after(5):
            sent = rig.send("tools/call", name="slow")
            served = await rig.router.next()
            served.sink.make_room(LARGE + 1)
            with pytest.raises(LimitReached):
                served.sink.make_room(3 * LARGE)
            served.end()
            assert b"complete" in await sent.body()
