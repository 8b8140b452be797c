"""What every store remembers beside the tasks: each sentence of `SessionMemory`, run over every store.

Contract sections 5 and 6: what must be remembered of a session is stored, so that our restart breaks none.
"""

from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.stores import memos
from proxy.stores.base import Store
from proxy.stores.memos import KEY_MAX_CHARS, VALUE_MAX_BYTES
from tests.manual_clock import ManualClock
from tests.stores.records import a_task

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(each_store: Store) -> Store:
    return each_store


async def test_what_is_remembered_is_recalled_byte_for_byte(store: Store) -> None:
    for key, value in [
        ("", b""),
        ("Größe/\0\u2603", b"\xff\0\n"),
        ("k" * KEY_MAX_CHARS, b"v" * VALUE_MAX_BYTES),
    ]:
        await store.remember(key, value, keep_s=60)
        assert await store.recall(key) == value


async def test_what_was_never_remembered_is_absent(store: Store) -> None:
    assert await store.recall("session/1") is None
    assert await store.remembered("") == []
    await store.forget("session/1")


async def test_the_latest_value_counts(store: Store) -> None:
    await store.remember("session/1", b"old", keep_s=60)
    await store.remember("session/1", b"new", keep_s=60)
    assert await store.recall("session/1") == b"new"
    assert await store.remembered("") == [("session/1", b"new")]


async def test_what_is_forgotten_is_gone(store: Store) -> None:
    for key in ("session/1", "session/2"):
        await store.remember(key, b"x", keep_s=60)
    await store.forget("session/1")
    assert await store.recall("session/1") is None
    assert await store.remembered("") == [("session/2", b"x")]
    await store.remember("session/1", b"again", keep_s=60)
    assert await store.recall("session/1") == b"again"


async def test_keys_are_listed_by_their_beginning_oldest_first(store: Store, clock: ManualClock) -> None:
    for key in ("session/b", "delete/x", "session/a", "session"):
        await store.remember(key, key.encode(), keep_s=60)
        await clock.advance(1)
    await store.remember("session/b", b"newest", keep_s=60)
    assert await store.remembered("session/") == [("session/a", b"session/a"), ("session/b", b"newest")]
    assert [key for key, _ in await store.remembered("")] == ["delete/x", "session/a", "session", "session/b"]
    assert await store.remembered("other") == []


async def test_a_time_that_is_over_is_over_before_and_after_the_sweep(
    store: Store, clock: ManualClock
) -> None:
    await store.remember("short", b"1", keep_s=10)
    await store.remember("long", b"2", keep_s=20)
    await clock.advance(9.999)
    assert await store.recall("short") == b"1"
    await clock.advance(0.001)
    for _ in range(2):
        assert await store.recall("short") is None
        assert await store.remembered("") == [("long", b"2")]
        assert await store.expire() == 0  # tasks are counted, not these
    await store.remember("short", b"3", keep_s=10)
    assert await store.recall("short") == b"3"


async def test_remembering_again_prolongs(store: Store, clock: ManualClock) -> None:
    await store.remember("session/1", b"1", keep_s=10)
    await clock.advance(9)
    await store.remember("session/1", b"1", keep_s=10)
    await clock.advance(9)
    await store.expire()
    assert await store.recall("session/1") == b"1"


async def test_many_that_are_over_go_together(store: Store, clock: ManualClock) -> None:
    async with anyio.create_task_group() as group:
        for number in range(600):
            group.start_soon(remember_shortly, store, f"session/{number}")
    assert len(await store.remembered("session/")) == 600
    await clock.advance(2)
    await store.expire()
    assert await store.remembered("") == []


async def remember_shortly(store: Store, key: str) -> None:
    await store.remember(key, b"x", keep_s=1)


async def test_the_oldest_go_when_there_are_too_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the log says so once."""
    monkeypatch.setattr(memos, "MAX_MEMOS", 3)
    with capture_logs() as logs:
        for number in (1, 2, 3):
            await store.remember(f"session/{number}", b"x", keep_s=60)
        await store.remember("session/1", b"used again", keep_s=60)
        assert logs == []
        for number in (4, 5):
            await store.remember(f"session/{number}", b"x", keep_s=60)
        await store.check()  # behind the removals
    assert [key for key, _ in await store.remembered("")] == ["session/1", "session/4", "session/5"]
    assert [(log["event"], log["log_level"], log["limit"]) for log in logs] == [("memory_full", "warning", 3)]


@pytest.mark.parametrize(
    "key, value",
    [
        ("k" * (KEY_MAX_CHARS + 1), b""),
        ("k", b"v" * (VALUE_MAX_BYTES + 1)),
        ("cut \ud83d", b""),
    ],
)
async def test_what_is_too_large_or_no_text_is_refused_and_changes_nothing(
    store: Store, key: str, value: bytes
) -> None:
    await store.remember("k", b"before", keep_s=60)
    with pytest.raises(ValueError):
        await store.remember(key, value, keep_s=60)
    assert await store.remembered("") == [("k", b"before")]


async def test_of_many_at_once_the_last_one_counts(store: Store) -> None:
    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(remember_number, store, number)
    assert await store.recall("session/1") == b"49"


async def remember_number(store: Store, number: int) -> None:
    await store.remember("session/1", b"%d" % number, keep_s=60)


async def test_tasks_and_memory_do_not_meet(store: Store, clock: ManualClock) -> None:
    task = a_task(clock)
    await store.remember(task.id, b"not the task", keep_s=60)
    await store.create(task)
    assert await store.get(task.id) == task
    assert await store.recall(task.id) == b"not the task"
    await store.forget(task.id)
    assert await store.get(task.id) == task
    assert await store.owned("alice") == [task]
