"""Large texts are worked on one at a time, and whoever is gone before the turn comes costs nothing."""

from __future__ import annotations

from threading import Event

import anyio
import pytest
from anyio import from_thread

from proxy.aside import aside

pytestmark = pytest.mark.anyio


async def test_one_at_a_time_and_the_loop_goes_on() -> None:
    """I6: a flood waits, and its clients may leave."""
    release, running, most = Event(), 0, 0
    begun = anyio.Event()

    def work() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        from_thread.run_sync(begun.set)
        release.wait(5)
        running -= 1
        return "done"

    async def wait_for_it() -> None:
        assert await aside(work) == "done"
        ended.append("first")

    async def be_cancelled() -> None:
        await aside(lambda: ended.append("never"))

    ended: list[str] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_it)
            await begun.wait()
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(be_cancelled)
                await anyio.wait_all_tasks_blocked()
                leaving.cancel_scope.cancel()
            tasks.start_soon(wait_for_it)
            release.set()
    assert ended == ["first", "first"]
    assert most == 1


async def test_a_fault_comes_back() -> None:
    def fail() -> None:
        raise ValueError("no JSON")

    with pytest.raises(ValueError, match="no JSON"):
        await aside(fail)
