"""How many tasks may be kept, in all and of each owner, and how fast they are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.errors import LimitReached
from proxy.owners import Owner
from proxy.routing import task_quota
from proxy.routing.task_quota import COUNT_AGAIN_S, TaskQuota
from proxy.stores.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.routing.bench import ADA, BOB, bench
from tests.routing.bench_2025 import bench_2025
from tests.routing.test_conversion import DONE, LONG_S
from tests.tasks import examples

pytestmark = pytest.mark.anyio


class Kept:
    """A quota, and a store into which its tasks go."""

    def __init__(
        self, *, total: int = 100, per_owner: int = 100, creations_per_s: float | None = None
    ) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.quota = TaskQuota(
            self.store, self.clock, total=total, per_owner=per_owner, creations_per_s=creations_per_s
        )
        self._made = 0

    async def make(self, owner: Owner = ADA) -> str:
        """A task that has ended, if it is admitted."""
        await self.quota.take(owner)
        self._made += 1
        now_ms = self.clock.wall_ms()
        ended = examples.completed()
        task = replace(
            ended,
            id=f"tpx-{self._made:032}",
            owner=owner.key,
            created_at_ms=now_ms,
            ttl_ms=60_000,
            revision=0,
        )
        await self.store.create(task)
        return task.id

    async def refusal(self, owner: Owner = ADA) -> LimitReached:
        with pytest.raises(LimitReached) as fault:
            await self.quota.take(owner)
        assert fault.value.http_status == 429
        return fault.value


async def test_an_owner_may_keep_so_many_tasks_and_another_as_many() -> None:
    """T25-SEC-005, SEC-003: those that have ended count until they expire."""
    it = Kept(per_owner=3)
    for _ in range(3):
        await it.make()
    assert "3 tasks of yours are kept (limits.tasks_per_owner)" in (await it.refusal()).message
    await it.make(BOB)
    it.clock.jump(60)
    await it.make()


async def test_all_together_may_keep_so_many() -> None:
    """SEC-003."""
    it = Kept(total=3)
    for owner in (ADA, BOB, ADA):
        await it.make(owner)
    assert "(limits.tasks)" in (await it.refusal(BOB)).message
    it.clock.jump(60)
    await it.store.expire()
    await it.make(BOB)


async def test_what_an_earlier_process_kept_counts() -> None:
    it = Kept(per_owner=2)
    for _ in range(2):
        await it.make()
    it.quota = TaskQuota(it.store, it.clock, per_owner=2)
    await it.refusal()


async def test_who_is_at_the_bound_is_not_counted_anew_for_every_refusal() -> None:
    """SEC-003: to count many tasks is work."""
    it, counted = Kept(per_owner=1), 0
    await it.make()
    owned = it.store.owned

    async def counting(*args: object, **options: object) -> object:
        nonlocal counted
        counted += 1
        return await owned(*args, **options)  # type: ignore[arg-type]

    it.store.owned = counting  # type: ignore[method-assign, assignment]
    it.clock.jump(COUNT_AGAIN_S)
    for _ in range(10):
        await it.refusal()
    assert counted == 1


async def test_few_owners_are_kept_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-003: those forgotten are counted again."""
    monkeypatch.setattr(task_quota, "MAX_OWNERS", 2)
    it = Kept(per_owner=1)
    for owner in (ADA, BOB, Owner("carol")):
        await it.make(owner)
    assert len(it.quota._owners) == 2
    await it.refusal(ADA)


async def test_tasks_may_be_made_only_so_fast_where_that_is_set() -> None:
    """SEC-003: each owner for itself; the answer says when to come back."""
    it = Kept(creations_per_s=0.5)
    await it.make()
    refused = await it.refusal()
    assert ("limits.task_creations" in refused.message, refused.retry_after_s) == (True, 2)
    await it.make(BOB)
    it.clock.jump(2)
    await it.make()


# ------------------------------------------------------------------------------ what a client sees


async def test_a_slow_call_of_an_owner_with_too_many_tasks_blocks_and_has_its_result() -> None:
    """SEC-003: it runs already; as where the store is broken (contract section 9)."""
    async with bench(quota={"per_owner": 1}) as rig:
        await rig.task(rig.client())
        sent = rig.client().call("slow")
        call = await rig.server.next_call()
        await rig.pass_time(LONG_S)
        assert not sent.done
        call.answer()
        assert await sent.result() == DONE


async def test_a_tool_that_is_served_as_a_task_only_is_refused_before_it_is_sent() -> None:
    """SEC-003, T25-SEC-005: 429."""
    async with bench(quota={"per_owner": 1}) as rig:
        await rig.task(rig.client())
        seen = rig.server.calls_seen
        status, error = await rig.client().call("required_this").error()
        assert (status, "limits.tasks_per_owner" in error["message"]) == (429, True)
        await rig.pass_time(LONG_S)
        assert rig.server.calls_seen == seen


async def test_a_2025_task_over_the_bound_is_refused_before_it_is_sent() -> None:
    """T25-SEC-005."""
    async with bench_2025(quota={"per_owner": 2}) as it:
        for _ in range(2):
            await it.client().task()
        code, words = await it.client().call().refused()
        assert (code, "limits.tasks_per_owner" in words) == (-32603, True)
        await it.client(BOB).task()
        assert it.rig.server.calls_seen == 3


async def test_an_owner_whose_calls_are_too_many_leaves_room_for_another() -> None:
    """SEC-003, T25-SEC-005: in both dialects, parked and running ones together."""
    async with bench_2025(calls=(10, 2)) as it:
        await it.client().task()
        ended = (await it.client().task())[1]
        status, error = await it.rig.client(owner=ADA).call("quick").error()
        assert (status, "limits.calls_per_owner" in error["message"]) == (429, True)
        code, words = await it.client().call().refused()
        assert (code, "limits.calls_per_owner" in words) == (-32603, True)
        await it.client(BOB).task()
        ended.answer()
        await it.rig.settle()
        await it.client().task()
