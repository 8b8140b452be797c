"""What a start finds: tasks that have ended read as before, the others fail and say so.

Contract section 9.
"""

from __future__ import annotations

from typing import Final

import pytest

from proxy.errors import StoreError
from proxy.routing.recovery import OUTCOME_UNKNOWN, settle_unfinished
from tests.routing.bench import bench

pytestmark = pytest.mark.anyio

NO: Final = {"action": "decline"}


async def test_after_a_restart_every_task_answers_and_nothing_runs_again() -> None:
    """TX-STA-007, TX-GET-012, TX-UPD-006, I2, I3, I4."""
    async with bench() as rig:
        client = rig.client()
        done, call = await rig.task(client)
        call.answer()
        running, _ = await rig.task(client)
        asking, call = await rig.task(client)
        call.elicit()
        await rig.settle()
        [key] = (await client.get(asking))["inputRequests"]
        before = await client.get(done)

        rig.start_over()
        assert await settle_unfinished(rig.store, rig.policy, rig.clock) == 2

        assert await client.get(done) == before
        for task in (running, asking):
            told = await client.get(task)
            assert told["status"] == "failed"
            assert told["error"] == {"code": -32603, "message": OUTCOME_UNKNOWN}
            assert told["statusMessage"] == OUTCOME_UNKNOWN
            assert await client.update(task, {key: NO}) == await client.cancel(task)
            assert await client.get(task) == told
        assert rig.server.calls_seen == 3
        assert await settle_unfinished(rig.store, rig.policy, rig.clock) == 0


async def test_a_store_that_cannot_be_read_is_told_to_whoever_starts() -> None:
    async with bench() as rig:
        rig.store.unreadable = True
        with pytest.raises(StoreError):
            await settle_unfinished(rig.store, rig.policy, rig.clock)
