"""Waiting for a server's word. What its refusals mean is tested with the transports, on real answers."""

from __future__ import annotations

import anyio
import pytest

from proxy.errors import UpstreamClosed, UpstreamTimeout
from proxy.upstream import acceptance
from proxy.upstream.acceptance import Handovers

pytestmark = pytest.mark.anyio

WHO = "upstream 'search'"


async def test_a_server_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6."""
    monkeypatch.setattr(acceptance, "ACCEPT_TIMEOUT_S", 0.01)
    with pytest.raises(UpstreamTimeout, match="upstream 'search' did not accept"), Handovers(WHO).one():
        await anyio.sleep_forever()


async def test_the_end_of_the_session_ends_every_wait() -> None:
    handovers = Handovers(WHO)
    ended: list[str] = []

    async def hand_over() -> None:
        try:
            with handovers.one():
                await anyio.sleep_forever()
        except UpstreamClosed as exc:
            ended.append(exc.message)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hand_over)
            tasks.start_soon(hand_over)
            await anyio.wait_all_tasks_blocked()
            handovers.end()
    assert ended == ["upstream 'search': the session was closed while a message was sent"] * 2


async def test_a_fault_inside_is_passed_on_and_what_succeeds_stays_so() -> None:
    handovers = Handovers(WHO)
    with handovers.one():
        pass
    with pytest.raises(KeyError), handovers.one():
        raise KeyError
    handovers.end()
