"""What a disk store remembers, over time and in trouble: restarts, damage, a full disk, a slow one.

Contract sections 1 (I3, I6), 5, 6 and 9.
"""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.errors import StoreError
from proxy.stores import disk, memos
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.memos import encode, new_memo, row_key
from proxy.stores.records import FORMAT, seal
from proxy.stores.writer import Change, Writer
from tests.manual_clock import ManualClock
from tests.stores.disks import Gate, opened, sql

pytestmark = pytest.mark.anyio

KEYS = [f"session/{number}" for number in range(8)]


def kept(directory: Path) -> set[bytes]:
    return {key for (key,) in sql(directory, "SELECT key FROM Cache")}


@pytest.mark.parametrize("durability", Durability)
async def test_a_restart_forgets_nothing(directory: Path, clock: ManualClock, durability: Durability) -> None:
    async with opened(directory, clock, durability) as store:
        for key in reversed(KEYS):
            await store.remember(key, key.encode(), keep_s=60)
            await clock.advance(1)
        await store.remember(KEYS[7], b"newest", keep_s=5)
        await store.forget(KEYS[0])
        said = await store.remembered("")
    async with opened(directory, clock, durability) as store:
        assert await store.remembered("") == said
        assert [key for key, _ in said] == [*reversed(KEYS[1:7]), KEYS[7]]
        await clock.advance(5)
        assert await store.recall(KEYS[7]) is None
        assert await store.recall(KEYS[1]) == KEYS[1].encode()


async def test_the_time_goes_on_while_we_are_away_and_the_sweep_clears_the_disk(
    directory: Path, clock: ManualClock
) -> None:
    async with opened(directory, clock) as store:
        await store.remember("short", b"1", keep_s=10)
        await store.remember("long", b"2", keep_s=100)
    await clock.advance(10)
    async with opened(directory, clock) as store:
        assert await store.recall("short") is None
        await store.expire()
        assert kept(directory) == {row_key("long")}


async def test_a_damaged_memo_is_set_aside_and_absent(directory: Path, clock: ManualClock) -> None:
    async with opened(directory, clock) as store:
        for key in KEYS[:4]:
            await store.remember(key, b"x", keep_s=60)
    swapped = encode(new_memo("session/other", b"x", 60, clock.wall_ms()))
    newer = seal(b"new ways", FORMAT + 1) + b"new ways"
    for key, row in zip(KEYS, (b"torn", swapped, newer), strict=False):
        sql(directory, "UPDATE Cache SET value = ? WHERE key = ?", row, row_key(key))
    with capture_logs() as logs:
        async with opened(directory, clock) as store:
            assert await store.remembered("") == [(KEYS[3], b"x")]
            assert await store.recall(KEYS[0]) is None
            for key in KEYS[:2]:
                await store.remember(key, b"again", keep_s=60)
    assert sorted(log["event"] for log in logs) == [
        *["record_set_aside"] * 2,
        "records_of_newer_format",
    ]
    assert [row for (row,) in sql(directory, "SELECT value FROM Damaged")] == [b"torn", swapped]
    assert sql(directory, "SELECT value FROM Cache WHERE key = ?", row_key(KEYS[2])) == [(newer,)]
    with capture_logs() as logs:
        async with opened(directory, clock) as store:
            assert await store.recall(KEYS[0]) == b"again"
    assert [log["event"] for log in logs] == ["records_of_newer_format"]


async def test_what_cannot_be_written_changes_nothing(
    store: DiskStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.remember("session/1", b"before", keep_s=60)
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "_try", lambda writer, changes: "disk i/o error")
        for change in (store.remember("session/1", b"after", keep_s=60), store.forget("session/1")):
            with pytest.raises(StoreError, match="cannot be written: disk i/o error"):
                await change
        assert await store.recall("session/1") == b"before"
        await clock.advance(60)
        with pytest.raises(StoreError, match="disk i/o error"):
            await store.expire()
    assert await store.expire() == 0
    await store.remember("session/1", b"after", keep_s=60)
    assert await store.recall("session/1") == b"after"


async def test_nothing_is_shown_before_its_commit_and_the_last_caller_wins(
    store: DiskStore, gate: Gate
) -> None:
    await store.remember("session/1", b"before", keep_s=60)
    gate.shut()
    async with anyio.create_task_group() as group:
        group.start_soon(remember, store, "session/1", b"after")
        await gate.reached()
        group.start_soon(store.forget, "session/1")
        group.start_soon(remember, store, "session/2", b"x")
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert await store.remembered("") == [("session/1", b"before")]
        gate.open()
    assert await store.remembered("") == [("session/2", b"x")]


async def remember(store: DiskStore, key: str, value: bytes) -> None:
    await store.remember(key, value, keep_s=60)


async def test_memos_share_commits_and_forgetting_nothing_costs_none(store: DiskStore) -> None:
    commits = store.commits
    async with anyio.create_task_group() as group:
        for number in range(500):
            group.start_soon(remember, store, f"session/{number}", b"x")
    assert store.commits - commits <= 10
    commits = store.commits
    await store.forget("session/unknown")
    assert store.commits == commits


async def test_a_disk_that_hangs_is_an_error_within_a_bound(
    store: DiskStore, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: and what was queued is done all the same."""
    gate.shut()
    with monkeypatch.context() as patched:
        patched.setattr(disk, "WRITE_TIMEOUT_S", 0.05)
        for _ in range(2):  # the second does not even have its turn
            with pytest.raises(StoreError, match=r"did not answer within 0\.05 s"):
                await store.remember("session/1", b"x", keep_s=60)
        with pytest.raises(StoreError, match="did not answer"):
            await store.forget("session/1")
    gate.open()
    await store.check()
    assert await store.remembered("") == [("session/1", b"x")]


async def test_what_must_go_stays_gone_after_a_restart(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memos, "MAX_MEMOS", 3)
    async with opened(directory, clock) as store:
        async with anyio.create_task_group() as group:
            for key in KEYS:
                group.start_soon(remember, store, key, b"x")
        await store.check()
        said = await store.remembered("")
        assert len(said) == 3
        assert {row_key(key) for key, _ in said} == {key for key in kept(directory) if b"memo" in key}
    async with opened(directory, clock) as store:
        assert await store.remembered("") == said


async def test_a_full_memory_does_not_hold_up_the_end(
    directory: Path, clock: ManualClock, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is settled after the close removes nothing any more; the next start does."""
    monkeypatch.setattr(memos, "MAX_MEMOS", 1)
    async with opened(directory, clock) as store, anyio.create_task_group() as group:
        await store.remember(KEYS[0], b"x", keep_s=60)
        gate.shut()
        group.start_soon(remember, store, KEYS[1], b"x")
        await gate.reached()
        store._writer.close()
        gate.open()
    with pytest.raises(StoreError, match="closed"):
        await store.remember(KEYS[2], b"x", keep_s=60)
    async with opened(directory, clock) as store:
        await store.remember(KEYS[2], b"x", keep_s=60)
        await store.check()
        assert await store.remembered("") == [(KEYS[2], b"x")]


@pytest.mark.parametrize("seed", range(4))
async def test_a_restart_finds_what_the_store_said(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Many callers, random faults, lost waiters, more keys than there is room for."""
    attempt, chance = Writer._try, random.Random(seed)
    monkeypatch.setattr(memos, "MAX_MEMOS", 6)

    def fail_sometimes(writer: Writer, changes: list[Change]) -> str | None:
        return "disk i/o error" if chance.random() < 0.15 else attempt(writer, changes)

    async def act(store: DiskStore, own: random.Random) -> None:
        for _ in range(40):
            key = own.choice(KEYS)
            try:
                with anyio.move_on_after(own.choice([1.0, 1.0, 0.001])):
                    match own.randrange(8):
                        case 0 | 1:
                            await store.forget(key)
                        case 2:
                            await clock.advance(1)
                            await store.expire()
                        case _:
                            await store.remember(key, own.randbytes(8), keep_s=own.choice([0.5, 60]))
            except StoreError:
                pass
            await anyio.lowlevel.checkpoint()

    async with opened(directory, clock) as store:
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "_try", fail_sometimes)
            async with anyio.create_task_group() as group:
                for number in range(10):
                    group.start_soon(act, store, random.Random(100 * seed + number))
        for _ in range(2):  # behind all changes that lost their waiters, then behind the removals they caused
            await store.check()
        said = await store.remembered("")
    async with opened(directory, clock) as store:
        assert sorted(await store.remembered("")) == sorted(said)
        assert said
