"""What every store promises: each sentence of `proxy.stores.base`, run over every store.

Holds TX-NEW-001, TX-GET-009, TX-GET-012, T25-GET-004 and T25-SEC-007 where they concern the store, and the
contract's section 4 (a task that runs never expires).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from proxy.errors import TaskConflict, TaskNotFound
from proxy.stores.base import Store, TaskStore, Watch
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.memory import MemoryStore
from proxy.stores.watching import BACKLOG
from proxy.tasks.task import Task, TaskStatus
from tests.manual_clock import ManualClock
from tests.stores.records import (
    RESULT,
    TTL_MS,
    a_task,
    asked,
    cancelled,
    completed,
    failed,
    moved,
    progressed,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(each_store: Store) -> TaskStore:
    return each_store


async def test_a_created_task_is_found_as_it_was_given(store: TaskStore, clock: ManualClock) -> None:
    task = a_task(clock, status_message="3/10 \ud83d rows", server_info=b'{"name": "x"}', next_key=7)
    await store.create(task)
    assert await store.get(task.id) == task


async def test_an_id_is_given_out_once(store: TaskStore, clock: ManualClock) -> None:
    task = a_task(clock)
    await store.create(task)
    with pytest.raises(TaskConflict):
        await store.create(replace(task, owner="mallory"))
    assert await store.get(task.id) == task


async def test_of_many_creations_with_one_id_one_succeeds(store: TaskStore, clock: ManualClock) -> None:
    first = a_task(clock)
    taken: list[str] = []

    async def create(name: str) -> None:
        try:
            await store.create(replace(first, name=name))
            taken.append(name)
        except TaskConflict:
            pass

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(create, f"tool-{number}")
    assert [(await store.get(first.id)).name] == taken


async def test_an_unknown_task_is_not_found_by_any_method(store: TaskStore, clock: ManualClock) -> None:
    task = a_task(clock)
    await assert_gone(store, clock, task)
    assert await store.owned(task.owner) == []


@pytest.mark.parametrize("end", [completed, failed, cancelled])
async def test_the_end_is_stored_with_its_outcome(store: TaskStore, clock: ManualClock, end: object) -> None:
    task = a_task(clock)
    await store.create(task)
    await clock.advance(3)
    ended = end(asked(task, clock), clock) if callable(end) else task
    await store.compare_and_set(task, question := asked(task, clock))
    await store.compare_and_set(question, ended)
    assert await store.get(task.id) == ended


@pytest.mark.parametrize("size", [0, 32 * 1024, 32 * 1024 + 1, 3_000_000])
async def test_results_come_back_byte_for_byte(store: TaskStore, clock: ManualClock, size: int) -> None:
    task, result = a_task(clock), b'{"blob": "' + b"\\u00e9" * (size // 6) + b'", "n": 1.0}'
    await store.create(task)
    await store.compare_and_set(task, done := completed(task, clock, result))
    assert await store.get(task.id) == done
    assert done.result == result


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_task_is_read_without_its_result_where_nobody_needs_it(
    store: TaskStore, clock: ManualClock, size: int
) -> None:
    task = a_task(clock)
    await store.create(task)
    assert await store.get(task.id, result=False) == task
    await store.compare_and_set(task, done := completed(task, clock, b"1" * size))
    assert await store.get(task.id, result=False) == replace(done, result=None)
    assert await store.get(task.id, result=True) == done


async def test_a_change_from_an_old_state_is_refused(store: TaskStore, clock: ManualClock) -> None:
    task = a_task(clock)
    await store.create(task)
    await store.compare_and_set(task, done := completed(task, clock))
    with pytest.raises(TaskConflict):
        await store.compare_and_set(task, cancelled(task, clock))
    with pytest.raises(TaskConflict):
        await store.note(task, progressed(task, clock, "late"))
    assert await store.get(task.id) == done


async def test_of_two_changes_from_one_state_one_wins(store: TaskStore, clock: ManualClock) -> None:
    """F07: an answer of the upstream and a cancellation that come at the same moment."""
    for _ in range(20):
        task = a_task(clock)
        await store.create(task)
        won: list[Task] = []

        async def change(old: Task, new: Task, won: list[Task] = won) -> None:
            try:
                await store.compare_and_set(old, new)
                won.append(new)
            except TaskConflict:
                pass

        async with anyio.create_task_group() as group:
            group.start_soon(change, task, completed(task, clock))
            group.start_soon(change, task, cancelled(task, clock))
        assert [await store.get(task.id)] == won


async def test_callers_that_read_again_after_a_conflict_all_get_through(
    store: TaskStore, clock: ManualClock
) -> None:
    task = a_task(clock)
    await store.create(task)

    async def add_one() -> None:
        while True:
            old = await store.get(task.id)
            try:
                return await store.compare_and_set(old, moved(old, clock, next_key=old.next_key + 1))
            except TaskConflict:
                continue

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(add_one)
    final = await store.get(task.id)
    assert (final.next_key, final.revision) == (21, 20)


async def test_a_note_is_seen_at_once_and_can_be_built_upon(store: TaskStore, clock: ManualClock) -> None:
    task = a_task(clock)
    await store.create(task)
    await store.note(task, first := progressed(task, clock, "1/3"))
    await store.note(first, second := progressed(first, clock, "2/3"))
    assert await store.get(task.id) == second
    await store.compare_and_set(second, done := completed(second, clock))
    assert await store.get(task.id) == done


async def test_reading_changes_nothing(store: TaskStore, clock: ManualClock) -> None:
    """TX-GET-009: a hundred readers at once get the same."""
    task = a_task(clock)
    await store.create(task)
    await store.compare_and_set(task, done := completed(task, clock))
    seen: list[Task] = []

    async def read() -> None:
        seen.append(await store.get(task.id))

    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(read)
    assert seen == [done] * 100


async def test_an_owner_sees_its_own_tasks_oldest_first(store: TaskStore, clock: ManualClock) -> None:
    same_time = [a_task(clock) for _ in range(3)]
    await clock.advance(1)
    later = a_task(clock)
    for task in [later, *reversed(same_time), a_task(clock, owner="bob")]:
        await store.create(task)
    assert await store.owned("alice") == [*same_time, later]
    assert await store.owned("alice", limit=2) == same_time[:2]
    assert await store.owned("alice", after=same_time[1].id) == [same_time[2], later]
    assert await store.owned("alice", after=same_time[0].id, limit=1) == [same_time[1]]
    assert await store.owned("alice", after=later.id) == []
    assert await store.owned("nobody") == []


async def test_an_owner_owns_what_has_not_failed_and_is_not_over(
    store: TaskStore, clock: ManualClock
) -> None:
    """Told at once: it is asked for every token that a server refuses."""
    assert not store.owns("alice")
    await store.create(task := a_task(clock))
    assert store.owns("alice")
    assert not store.owns("bob")
    await store.compare_and_set(task, failed(task, clock))
    assert not store.owns("alice")
    await store.create(task := a_task(clock))
    await store.compare_and_set(task, completed(task, clock))
    assert store.owns("alice")
    await clock.advance(TTL_MS / 1000)
    assert not store.owns("alice")


async def test_lists_follow_the_changes_and_leave_results_out(store: TaskStore, clock: ManualClock) -> None:
    task = a_task(clock)
    await store.create(task)
    await store.compare_and_set(task, done := completed(task, clock))
    assert await store.owned("alice") == [replace(done, result=None)]


async def test_a_page_does_not_continue_from_a_task_that_is_gone_or_anothers(
    store: TaskStore, clock: ManualClock
) -> None:
    mine, theirs = a_task(clock), a_task(clock, owner="bob")
    await store.create(mine)
    await store.create(theirs)
    with pytest.raises(TaskNotFound):
        await store.owned("alice", after=theirs.id)
    await store.compare_and_set(mine, cancelled(mine, clock))
    await clock.advance(TTL_MS / 1000)
    with pytest.raises(TaskNotFound):
        await store.owned("alice", after=mine.id)


async def test_tasks_are_counted_by_status_until_they_are_removed(
    store: TaskStore, clock: ManualClock
) -> None:
    first, second, third = tasks = [a_task(clock, owner=owner) for owner in ("alice", "alice", "bob")]
    for task in tasks:
        await store.create(task)
    await store.compare_and_set(first, asked(first, clock))
    await store.compare_and_set(second, end := completed(second, clock))
    for _ in range(3):
        await store.note(third, third := progressed(third, clock, "on its way"))
    with pytest.raises(TaskConflict):
        await store.compare_and_set(second, end)
    none = dict.fromkeys(TaskStatus, 0)
    one_each = dict.fromkeys((TaskStatus.WORKING, TaskStatus.INPUT_REQUIRED, TaskStatus.COMPLETED), 1)
    assert await store.counts() == none | one_each
    clock.jump(TTL_MS)
    await store.expire()
    assert await store.counts() == none | one_each | {TaskStatus.COMPLETED: 0}


async def test_unfinished_tasks_of_all_owners_are_listed(store: TaskStore, clock: ManualClock) -> None:
    tasks = [a_task(clock, owner=owner) for owner in ("alice", "bob", "carol", "dave")]
    for task in tasks:
        await store.create(task)
    await store.compare_and_set(tasks[0], completed(tasks[0], clock))
    await store.compare_and_set(tasks[1], question := asked(tasks[1], clock))
    await store.compare_and_set(tasks[2], failed(tasks[2], clock))
    assert sorted(await store.unfinished(), key=lambda task: task.id) == [question, tasks[3]]


async def test_an_expired_task_is_gone_before_and_after_it_is_removed(
    store: TaskStore, clock: ManualClock
) -> None:
    """T25-GET-004, T25-SEC-007: result and task go together."""
    small, large = a_task(clock), a_task(clock)
    for task, result in ((small, RESULT), (large, b"1" * 100_000)):
        await store.create(task)
        await store.compare_and_set(task, completed(task, clock, result))
    await clock.advance(TTL_MS / 1000 - 0.001)
    assert await store.expire() == 0
    assert (await store.get(large.id)).result == b"1" * 100_000
    await clock.advance(0.001)
    for task in (small, large):
        await assert_gone(store, clock, task, revision=1)
    assert await store.owned("alice") == []
    assert await store.expire() == 2
    assert await store.expire() == 0
    await assert_gone(store, clock, small, revision=1)


async def test_while_many_expire_others_have_their_turn(store: TaskStore, clock: ManualClock) -> None:
    many = 600
    async with anyio.create_task_group() as group:
        for _ in range(many):
            group.start_soon(store.create, cancelled(a_task(clock), clock))
    clock.jump(TTL_MS)
    seen: set[int] = set()
    removed = 0

    async def expire() -> None:
        nonlocal removed
        removed = await store.expire()

    async with anyio.create_task_group() as group:
        group.start_soon(expire)
        while not removed:
            seen.add(sum((await store.counts()).values()))
            await checkpoint()
    assert removed == many
    assert len(seen - {0, many}) >= 2, "in between"


async def test_the_id_of_an_expired_task_is_free(store: TaskStore, clock: ManualClock) -> None:
    task = a_task(clock)
    await store.create(task)
    await store.compare_and_set(task, completed(task, clock, b"1" * 100_000))
    await clock.advance(TTL_MS / 1000)
    await store.create(again := replace(task, created_at_ms=clock.wall_ms(), updated_at_ms=clock.wall_ms()))
    assert await store.expire() == 0
    assert await store.get(task.id) == again


async def test_a_task_that_runs_never_expires(store: TaskStore, clock: ManualClock) -> None:
    task = a_task(clock)
    await store.create(task)
    await clock.advance(30 * 86_400)
    assert await store.expire() == 0
    await store.compare_and_set(task, done := completed(task, clock))
    assert await store.get(task.id) == done


async def test_a_task_that_runs_is_not_removed_whatever_its_ttl_says(
    store: TaskStore, clock: ManualClock
) -> None:
    await store.create(task := a_task(clock, ttl_ms=1_000))
    await clock.advance(10)
    assert await store.expire() == 0
    assert await store.get(task.id) == task
    assert await store.owned("alice") == [task]


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
async def test_a_jump_of_the_wall_clock_neither_ends_nor_prolongs_what_is_kept(
    store: TaskStore, clock: ManualClock, jump_s: int
) -> None:
    """How long a result is kept is a duration; whether it began before or after the jump."""
    before = a_task(clock)
    await store.create(before)
    await store.compare_and_set(before, before := completed(before, clock))
    clock.set_wall_ms(clock.wall_ms() + jump_s * 1000)
    after = a_task(clock)
    await store.create(after)
    await store.compare_and_set(after, after := completed(after, clock))
    await clock.advance(TTL_MS / 1000 - 0.001)
    assert await store.expire() == 0
    assert [await store.get(task.id) for task in (before, after)] == [before, after]
    await clock.advance(0.002)
    for task in (before, after):
        with pytest.raises(TaskNotFound):
            await store.get(task.id)
    assert await store.expire() == 2


async def test_many_tasks_expire_together(store: TaskStore, clock: ManualClock) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(600):
            group.start_soon(store.create, cancelled(a_task(clock), clock))
    await clock.advance(TTL_MS / 1000)
    assert await store.expire() == 600


async def test_a_watcher_is_told_each_state_in_order_without_results(
    store: TaskStore, clock: ManualClock
) -> None:
    task, other = a_task(clock), a_task(clock)
    await store.create(task)
    async with store.watch([task.id, "tpx-unknown"]) as watch:
        await store.create(other)
        await store.note(task, noted := progressed(task, clock, "1/2"))
        await store.compare_and_set(noted, question := asked(noted, clock))
        await store.compare_and_set(question, done := completed(question, clock))
        told = [await watch.receive() for _ in range(3)]
        assert told == [noted, question, replace(done, result=None)]
        await assert_silent(watch)


async def test_a_watcher_may_wait_first_and_is_told_of_a_creation(
    store: TaskStore, clock: ManualClock
) -> None:
    task = a_task(clock)
    told: list[Task] = []
    listening = anyio.Event()

    async def listen() -> None:
        async with store.watch([task.id]) as watch:
            listening.set()
            told.append(await watch.receive())

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        await listening.wait()
        await store.create(task)
    assert told == [task]


async def test_a_failed_change_is_not_told(store: TaskStore, clock: ManualClock) -> None:
    task = a_task(clock)
    await store.create(task)
    async with store.watch([task.id]) as watch:
        with pytest.raises(TaskConflict):
            await store.create(task)
        with pytest.raises(TaskConflict):
            await store.compare_and_set(moved(task, clock), moved(moved(task, clock), clock))
        await assert_silent(watch)


async def test_a_slow_watcher_misses_states_but_neither_order_nor_end(
    store: TaskStore, clock: ManualClock
) -> None:
    busy, quiet = a_task(clock), a_task(clock)
    await store.create(busy)
    await store.create(quiet)
    async with store.watch([busy.id, quiet.id]) as slow, store.watch([busy.id]) as other:
        state = busy
        for number in range(10 * BACKLOG):
            await store.note(state, state := progressed(state, clock, str(number)))
        await store.compare_and_set(state, cancelled(state, clock))
        await store.compare_and_set(quiet, end := cancelled(quiet, clock))
        told = [await slow.receive() for _ in range(BACKLOG + 1)]
        assert end in told[:2]  # the busy task does not keep the quiet one waiting
        revisions = [task.revision for task in told if task.id == busy.id]
        assert revisions == list(range(state.revision + 2 - BACKLOG, state.revision + 2))
        await assert_silent(slow)
        assert (await other.receive()).id == busy.id


async def test_a_watch_that_was_left_costs_nothing(store: TaskStore, clock: ManualClock) -> None:
    task = a_task(clock)
    async with store.watch([task.id]), store.watch([task.id]) as inner:
        pass
    await store.create(task)
    await assert_silent(inner)


async def test_the_secret_is_32_random_bytes_and_stays(store: TaskStore) -> None:
    secret = await store.secret()
    assert len(secret) == 32
    assert await store.secret() == secret
    assert len(set(secret)) > 8


async def test_a_store_in_order_passes_its_check(store: TaskStore, clock: ManualClock) -> None:
    await store.check()
    await store.check()
    assert await store.unfinished() == []


async def test_an_error_of_the_caller_leaves_the_store_as_it_was_raised(
    tmp_path: Path, clock: ManualClock
) -> None:
    with pytest.raises(LookupError):
        async with DiskStore(tmp_path / "d", durability=Durability.PROCESS, clock=clock):
            raise LookupError
    with pytest.raises(LookupError):
        async with MemoryStore(clock):
            raise LookupError


async def assert_gone(store: TaskStore, clock: ManualClock, task: Task, revision: int = 0) -> None:
    """No method knows `task` any more."""
    known = replace(task, revision=revision)
    for result in (True, False):
        with pytest.raises(TaskNotFound):
            await store.get(task.id, result=result)
    with pytest.raises(TaskNotFound):
        await store.compare_and_set(known, moved(known, clock))
    with pytest.raises(TaskNotFound):
        await store.note(known, moved(known, clock))
    with pytest.raises(TaskNotFound):
        await store.owned(task.owner, after=task.id)
    assert task.id not in {unfinished.id for unfinished in await store.unfinished()}


async def assert_silent(watch: Watch) -> None:
    """Nothing is told, though every task that could tell something has its turn."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_later, scope)
            told = await watch.receive()
            pytest.fail(f"told of {told!r}")


async def _cancel_later(scope: anyio.CancelScope) -> None:
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    scope.cancel()
