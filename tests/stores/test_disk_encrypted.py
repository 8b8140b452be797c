"""A disk store that encrypts: what a thief of the disk finds, and what a start with other keys does.

Contract section 8: "arguments, answers and results can be encrypted at rest".
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any, Final

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.errors import StoreError, TaskConflict, TaskNotFound
from proxy.stores import encrypting, opening, place
from proxy.stores.base import Store
from proxy.stores.disk import Durability
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.memos import row_key as memo_key
from proxy.stores.opening import open_store
from proxy.stores.records import Record, encode, row_key, stand_in, stand_in_of_row
from proxy.stores.results import ResultFiles
from proxy.stores.rows import UNREAD_KEPT_S, load_without_writing
from proxy.stores.sharing import GUESTS, open_shared_directory
from proxy.tasks.lost_call import CallTrace, Repeat, RoundTrace
from proxy.tasks.task import Task
from tests.manual_clock import ManualClock
from tests.stores.disks import LARGE, Gate, opened, result_files, sql
from tests.stores.records import TTL_MS, a_task, asked, completed, failed, moved

pytestmark = pytest.mark.anyio

KEY, OTHER = (bytes([number]) * 32 for number in (1, 2))
KEYS: Final = Keys([KEY])
SECRET: Final = "s3cret"
SECRET_RESULT: Final = b'{"content": "' + SECRET.encode() * 100_000 + b'"}'  # in a file of three pieces
SESSION: Final = "session/1"


def states(clock: ManualClock) -> list[Task]:
    """One of every kind, with the secret in each place that holds what clients and servers said."""
    raw = f'{{"x": "{SECRET}"}}'.encode()
    trace = CallTrace(SECRET, "2025-11-25", 7, SECRET, is_ours=True, upstream_task=SECRET)
    running = replace(
        a_task(clock, name=SECRET, status_message=SECRET, owner=SECRET, server_info=raw),
        trace=trace,
        repeat=Repeat(raw, SECRET),
        round=RoundTrace(raw, SECRET, raw, (("input-1", SECRET),)),
    )
    waiting = asked(a_task(clock), clock)
    (question,), (answer,) = waiting.inputs, waiting.answers
    waiting = replace(
        waiting,
        inputs=(replace(question, params=raw, question_id=raw, as_asked=raw),),
        answers=(replace(answer, value=raw),),
    )
    return [
        running,
        waiting,
        replace(completed(a_task(clock), clock, raw), tool_error=SECRET),
        completed(a_task(clock), clock, SECRET_RESULT),
        replace(failed(a_task(clock), clock), error=raw),
    ]


async def fill(directory: Path, clock: ManualClock, keys: Keys) -> list[Task]:
    """A store with all of these, closed."""
    made = states(clock)
    async with opened(directory, clock, keys=keys) as store:
        for state in made:
            await store.create(state)
        await store.remember(SESSION, SECRET.encode(), keep_s=60)
    return made


def whole(directory: Path, files: str = "**/*") -> bytes:
    return b"".join(file.read_bytes() for file in sorted(directory.glob(files)) if file.is_file())


async def test_no_file_shows_what_anybody_said(directory: Path, clock: ManualClock) -> None:
    """While it is open, so that the log of writes is looked at too."""
    (directory.with_name("plain")).mkdir()
    await fill(directory.with_name("plain"), clock, NO_KEYS)
    assert whole(directory.with_name("plain")).count(SECRET.encode()) > 100_000  # what is looked for is found
    made = states(clock)
    async with opened(directory, clock, keys=KEYS) as store:
        for state in made:
            await store.create(state)
        await store.remember(SESSION, SECRET.encode(), keep_s=60)
        task = a_task(clock)
        await store.create(task)
        await store.note(task, moved(task, clock, status_message=SECRET))
        await store.check()
        assert (directory / "cache.db-wal").stat().st_size > 0
        assert SECRET.encode() not in whole(directory)
    for secret in (SECRET.encode(), KEY, *(one.id.encode() for one in (*made, task))):
        assert secret not in whole(directory)  # an id can act as a bearer token, while the task is kept


async def test_after_a_restart_with_its_key_every_task_answers_as_before(
    directory: Path, clock: ManualClock
) -> None:
    made = await fill(directory, clock, KEYS)
    with capture_logs() as logs:
        async with opened(directory, clock, keys=KEYS) as store:
            assert [await store.get(task.id) for task in made] == made
            assert await store.recall(SESSION) == SECRET.encode()
            assert len(await store.unfinished()) == 2
    assert logs == []


@pytest.mark.parametrize("keys", [NO_KEYS, Keys([OTHER])], ids=["none", "another"])
async def test_without_its_key_nothing_is_served_and_nothing_is_lost(
    directory: Path, clock: ManualClock, keys: Keys
) -> None:
    made = await fill(directory, clock, KEYS)
    with capture_logs() as logs:
        async with opened(directory, clock, keys=keys) as store:
            for task in made:
                for asked_for in (
                    partial(store.get, task.id),
                    partial(store.get, task.id, result=False),
                    partial(store.compare_and_set, task, moved(task, clock)),
                    partial(store.owned, "alice", after=task.id),
                ):
                    with pytest.raises(TaskNotFound):  # I5: whose it is cannot be known
                        await asked_for()
                with pytest.raises(TaskConflict):
                    await store.create(task)
            assert await store.unfinished() == await store.owned("alice") == []
            assert await store.recall(SESSION) is None
            await clock.advance(TTL_MS)  # far over the ttl of all that ended: it cannot be known here
            await store.expire()
            await store.create(here := a_task(clock))
            await store.check()
            assert len(result_files(directory)) == 1
    assert [(log["event"], log["log_level"], log["count"]) for log in logs] == [
        ("records_locked", "error", 6)
    ]
    assert logs[0]["key"] in repr(KEYS)
    assert sql(directory, "SELECT count(*) FROM sqlite_master WHERE name = 'Damaged'") == [(0,)]
    clock = ManualClock()
    async with opened(directory, clock, keys=Keys([KEY, OTHER])) as store:
        assert [await store.get(task.id) for task in made] == made
        assert await store.get(here.id) == here
        assert await store.recall(SESSION) == SECRET.encode()


async def test_what_stays_locked_is_removed_a_month_after_nobody_could_want_it(
    directory: Path, clock: ManualClock
) -> None:
    """Not before, so that a key that comes back finds all; not never, so that a lost one does not fill the
    disk."""
    made = await fill(directory, clock, KEYS)
    kept_s = UNREAD_KEPT_S + TTL_MS / 1000

    async def start(age_s: float) -> tuple[int, list[tuple[str, int]]]:
        """With another key, and with every row that many seconds old: how many rows are left, and the log."""
        sql(directory, "UPDATE Cache SET store_time = strftime('%s', 'now') - ?", age_s)
        with capture_logs() as logs:
            async with opened(directory, clock, keys=Keys([OTHER]), wanted_s=TTL_MS / 1000) as store:
                await store.expire()
        ((count,),) = sql(directory, "SELECT count(*) FROM Cache")
        return count, [(log["event"], log["count"]) for log in logs]

    assert await start(kept_s - 60) == (6, [("records_locked", 6)])
    assert len(result_files(directory)) == 1
    assert await start(kept_s + 60) == (0, [("records_locked", 6), ("records_removed_unread", 6)])
    assert result_files(directory) == []
    async with opened(directory, clock, keys=KEYS) as store:
        await store.create(made[0])  # nothing stands in its way


@pytest.mark.parametrize("before", [NO_KEYS, KEYS], ids=["none", "another"])
async def test_what_is_there_is_encrypted_with_a_new_first_key_at_once(
    directory: Path, clock: ManualClock, before: Keys
) -> None:
    """So the old one can be taken away with the next start."""
    made = await fill(directory, clock, before)
    with capture_logs() as logs:
        async with opened(directory, clock, keys=Keys([OTHER, KEY])) as store:
            assert [await store.get(task.id) for task in made] == made
            running = made[0]
            await store.compare_and_set(running, end := completed(running, clock, LARGE))
    assert [(log["event"], log.get("count")) for log in logs] == [
        ("records_being_encrypted", None),
        ("records_encrypted", 6),
    ]
    with capture_logs() as logs:
        async with opened(directory, clock, keys=Keys([OTHER])) as store:
            assert [await store.get(task.id) for task in (end, *made[1:])] == [end, *made[1:]]
            assert await store.recall(SESSION) == SECRET.encode()
            await clock.advance(TTL_MS)
            assert await store.expire() == 4
            assert result_files(directory) == []
    assert logs == []
    left = {key for (key,) in sql(directory, "SELECT key FROM Cache")}
    assert left == {row_key(made[1].id, KEYS)}  # no task has two rows: what is gone does not come back


async def test_once_keys_are_there_no_file_shows_what_anybody_said_before(
    directory: Path, clock: ManualClock
) -> None:
    """Not what is there, nor what was removed, nor the log of writes of a proxy that was killed."""
    killed = directory.with_name("killed")
    made = states(clock)
    async with opened(directory, clock) as store:
        sql(directory, "PRAGMA secure_delete = 0")
        for state in made:
            await store.create(state)
        for _ in range(20):
            await store.create(gone := completed(a_task(clock), clock, SECRET.encode() * 1000))
        await clock.advance(TTL_MS)
        await store.expire()
        await store.create(gone)
        await store.remember(SESSION, SECRET.encode(), keep_s=60)
        copytree(directory, killed)
    assert SECRET.encode() in (killed / "cache.db-wal").read_bytes()
    async with opened(killed, clock, keys=KEYS) as store:
        assert await store.recall(SESSION) == SECRET.encode()
        assert await store.get(made[1].id) == made[1]
        assert SECRET.encode() not in whole(killed)
        assert made[1].id.encode() not in whole(killed)


async def test_damaged_records_that_were_set_aside_are_left_to_people_and_named(
    directory: Path, clock: ManualClock
) -> None:
    await fill(directory, clock, NO_KEYS)
    sql(directory, "CREATE TABLE Damaged AS SELECT * FROM Cache")
    (directory / "damaged-1").mkdir()
    (directory / "results" / "x.damaged").touch()
    with capture_logs() as logs:
        for _ in range(2):
            async with opened(directory, clock, keys=KEYS):
                pass
    assert [log["places"] for log in logs if log["event"] == "damaged_records_not_encrypted"] == [
        "damaged-1, results/*.damaged, table Damaged of cache.db"
    ]


async def test_a_damaged_record_that_a_start_with_keys_sets_aside_is_told_of_by_the_next(
    directory: Path, clock: ManualClock
) -> None:
    """It stands there as it was; nothing else is left of it."""
    made = await fill(directory, clock, NO_KEYS)
    sql(directory, "UPDATE Cache SET value = substr(value, 1, 200) WHERE key = ?", row_key(made[0].id))
    told = []
    for _ in range(3):
        with capture_logs() as logs:
            async with opened(directory, clock, keys=KEYS):
                pass
        told.append([log["event"] for log in logs if "damaged" in log["event"] or "aside" in log["event"]])
    assert told == [["record_set_aside"], ["damaged_records_not_encrypted"], []]
    assert whole(directory).count(made[0].id.encode()) == 2  # the key of the row, and the row
    assert not [task for task in made[1:] if task.id.encode() in whole(directory)]


async def test_where_encryption_was_off_for_a_while_all_is_done_again(
    directory: Path, clock: ManualClock
) -> None:
    async with opened(directory, clock, keys=KEYS):
        pass
    made = await fill(directory, clock, NO_KEYS)
    assert SECRET.encode() in whole(directory)
    async with opened(directory, clock, keys=KEYS) as store:
        assert [await store.get(task.id) for task in made] == made
        assert SECRET.encode() not in whole(directory)


async def test_what_another_key_locks_is_encrypted_once_that_is_there(
    directory: Path, clock: ManualClock
) -> None:
    made = await fill(directory, clock, KEYS)
    async with opened(directory, clock, keys=Keys([OTHER])):
        pass
    async with opened(directory, clock, keys=Keys([OTHER, KEY])):
        pass
    async with opened(directory, clock, keys=Keys([OTHER])) as store:
        assert [await store.get(task.id) for task in made] == made


class Killed(BaseException):
    """The process ended there."""


@contextmanager
def hindered(directory: Path, how: str) -> Iterator[None]:
    """While a start is to encrypt: a full disk, another program that reads, or `kill -9` and a full disk."""
    left = 2

    def fails(*args: Any) -> Any:
        nonlocal left
        if how == "killed" and left:
            left -= 1
            return encrypted(*args)
        raise Killed if how == "killed" else OSError(errno.ENOSPC, "No space left on device")

    encrypted = encrypting._encrypted
    with pytest.MonkeyPatch.context() as patched, closing(sqlite3.connect(directory / "cache.db")) as reader:
        patched.setattr(encrypting, "_AT_ONCE", 1)
        patched.setattr(encrypting, "LOCK_WAIT_S", 0.02)
        if how == "locked":
            reader.execute("BEGIN").execute("SELECT count(*) FROM Cache").fetchone()
        else:
            patched.setattr(encrypting, "_encrypted", fails)
        yield
        reader.rollback()


@pytest.mark.parametrize("meanwhile", ["nothing", "noted", "changed", "ended", "created", "removed"])
@pytest.mark.parametrize("how", ["full", "locked", "killed"])
@pytest.mark.parametrize("before", [NO_KEYS, KEYS], ids=["none", "another"])
async def test_after_a_start_that_could_not_encrypt_a_good_one_leaves_nothing_to_read(
    directory: Path, clock: ManualClock, before: Keys, how: str, meanwhile: str
) -> None:
    """Whatever tasks did in between: neither what anybody said nor an id, which can act as a bearer token."""
    keys = Keys([OTHER, KEY])
    made = await fill(directory, clock, before)
    values = [value for (value,) in sql(directory, "SELECT value FROM Cache")]
    for name in result_files(directory):
        values.append((directory / "results" / name).read_bytes())
    if how == "killed":
        with hindered(directory, how), pytest.raises(Killed):
            open_store(directory, clock, synced=False, keys=keys)
        how = "full"
    with hindered(directory, how):
        async with opened(directory, clock, keys=keys) as store:
            for task in made[:2]:
                now = moved(task, clock, status_message=SECRET)
                if meanwhile == "noted":
                    await store.note(task, now)
                elif meanwhile == "changed":
                    await store.compare_and_set(task, now)
                elif meanwhile == "ended":
                    await store.compare_and_set(task, now := completed(task, clock, SECRET_RESULT))
                elif meanwhile == "created":
                    await store.create(now := completed(a_task(clock), clock, SECRET_RESULT))
                    made.append(now)
                if meanwhile in ("noted", "changed", "ended"):
                    made[made.index(task)] = now
            if meanwhile == "removed":
                await clock.advance(TTL_MS)
                assert await store.expire() == 3
    secrets = [SECRET.encode(), *(task.id.encode() for task in made)]
    for _ in range(2):
        async with opened(directory, clock, keys=keys) as store:
            for task in made[:2] if meanwhile == "removed" else made:
                assert await store.get(task.id) == task
        found = whole(directory)
        assert not [secret for secret in secrets if secret in found]
        assert not [value for value in values if value in found]  # nor what a thief of the old key can read
        keys = Keys([OTHER])


async def test_a_key_that_shows_an_id_is_changed_also_where_all_else_is_done(
    directory: Path, clock: ManualClock
) -> None:
    """As an earlier version left it, whose mark says that nothing is left to do."""
    made = await fill(directory, clock, KEYS)
    for task in made:
        record = encode(Record(task=replace(task, result=None)), KEYS, row_key(task.id))
        sql(
            directory,
            "UPDATE Cache SET key = ?, value = ? WHERE key = ?",
            *(row_key(task.id), record, row_key(task.id, KEYS)),
        )
    assert made[0].id.encode() in whole(directory)
    async with opened(directory, clock, keys=KEYS) as store:
        assert await store.get(made[0].id) == made[0]
    assert not [task for task in made if task.id.encode() in whole(directory)]


@pytest.mark.parametrize("keys", [NO_KEYS, KEYS], ids=["off", "on"])
async def test_a_row_that_stood_under_the_key_of_another_time_is_never_there_twice(
    directory: Path, clock: ManualClock, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal takes it wherever it stands, also while a change of it is on its way."""
    task, gone = a_task(clock), completed(a_task(clock), clock)
    async with opened(directory, clock, keys=NO_KEYS if keys else KEYS) as store:
        await store.create(task)
        await store.create(gone)
    monkeypatch.setattr(opening, "encrypt_rest", lambda *_: None)
    async with opened(directory, clock, keys=Keys([OTHER, KEY]) if keys else Keys([KEY])) as store:
        gate = Gate(monkeypatch)
        gate.shut()
        await store.note(task, noted := moved(task, clock))
        store._changes.flush_notes()
        async with anyio.create_task_group() as group:
            group.start_soon(store.compare_and_set, noted, end := completed(noted, clock))
            await gate.reached()
            gate.open()
        await clock.advance(TTL_MS)
        assert await store.expire() == 2
        with pytest.raises(TaskNotFound):
            await store.get(end.id)
    assert sql(directory, "SELECT key FROM Cache") == []


async def test_where_plain_rows_come_only_once_the_disk_has_room_the_next_start_with_keys_wipes_them(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that could write nothing could not leave word of it either."""
    async with opened(directory, clock, keys=KEYS):
        pass

    def full(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(place, "open_cache", full)
        async with opened(directory, clock) as store:
            patched.undo()
            await store.create(task := completed(a_task(clock), clock, SECRET.encode() * 10))
    async with opened(directory, clock, keys=KEYS) as store:
        assert await store.get(task.id) == task
    found = whole(directory)
    assert SECRET.encode() not in found
    assert task.id.encode() not in found


@pytest.mark.parametrize("stage", ["_encrypted", "_wipe", "_set_mark"])
async def test_a_start_that_cannot_encrypt_what_is_there_serves_it_and_the_next_tries_again(
    directory: Path, clock: ManualClock, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full."""

    def fails(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made = await fill(directory, clock, NO_KEYS)
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(encrypting, stage, fails)
        async with opened(directory, clock, keys=KEYS) as store:
            assert [await store.get(task.id) for task in made] == made
    assert [log["reason"] for log in logs if log["event"] == "store_not_encrypted"] == [
        "no space left on device"
    ]
    async with opened(directory, clock, keys=KEYS) as store:
        assert [await store.get(task.id) for task in made] == made
        assert SECRET.encode() not in whole(directory)


async def test_a_start_that_is_killed_before_it_wipes_is_made_up_for(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where keys were exchanged: what the old one can read is what a thief of it is after."""
    await fill(directory, clock, KEYS)
    ((old,),) = sql(directory, "SELECT value FROM Cache WHERE key = ?", memo_key(SESSION))
    wipe, wiped = encrypting._wipe, list[None]()
    with monkeypatch.context() as patched:
        patched.setattr(encrypting, "_wipe", lambda _: copytree(directory, directory.with_name("killed")))
        async with opened(directory, clock, keys=Keys([OTHER, KEY])):
            pass
    directory = directory.with_name("killed")
    monkeypatch.setattr(encrypting, "_wipe", lambda connection: wiped.append(wipe(connection)))
    for _ in range(2):
        async with opened(directory, clock, keys=Keys([OTHER, KEY])):
            assert old not in whole(directory)
    assert len(wiped) == 1


async def test_a_database_that_is_being_repaired_is_encrypted_after_that(
    directory: Path, clock: ManualClock
) -> None:
    """Killed in between, the repair would add the plain rows again, beside what became of them."""
    made = await fill(directory, clock, NO_KEYS)
    (directory / "damaged-1.unfinished").mkdir()
    (directory / "cache.db").rename(directory / "damaged-1.unfinished" / "cache.db")
    for is_encrypted in (False, True):
        async with opened(directory, clock, keys=KEYS) as store:
            assert [await store.get(task.id) for task in made] == made
            assert (SECRET.encode() in whole(directory, "cache.db*")) != is_encrypted


async def test_a_start_that_is_killed_anywhere_while_it_encrypts_loses_nothing(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract section 9."""
    made = await fill(directory, clock, NO_KEYS)
    copies = [directory.with_name(f"killed-{number}") for number in range(10)]
    left = iter(copies)

    def killed_before(name: str, owner: object = encrypting) -> None:
        real = getattr(owner, name)

        def copy_first(*args: Any) -> Any:
            copytree(directory, next(left))
            return real(*args)

        monkeypatch.setattr(owner, name, copy_first)

    monkeypatch.setattr(encrypting, "_AT_ONCE", 1)
    killed_before("_encrypted")
    killed_before("remove", ResultFiles)
    killed_before("_wipe")
    killed_before("_set_mark")
    async with opened(directory, clock, keys=KEYS):
        monkeypatch.undo()
    assert next(left, None) is None
    for copy in copies:
        async with opened(copy, clock, keys=KEYS) as store:
            assert [await store.get(task.id) for task in made] == made
            assert await store.recall(SESSION) == SECRET.encode()
            assert SECRET.encode() not in whole(copy)
            assert len(result_files(copy)) == 1


async def test_what_cannot_be_encrypted_yet_is_served_and_encrypted_when_it_changes(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await fill(directory, clock, NO_KEYS)
    monkeypatch.setattr(opening, "encrypt_rest", lambda *_: None)
    with capture_logs() as logs:
        async with opened(directory, clock, keys=KEYS) as store:
            assert [await store.get(task.id) for task in made] == made
            running = made[0]
            await store.compare_and_set(running, completed(running, clock, SECRET_RESULT))
    assert [(log["event"], log["count"]) for log in logs] == [("records_not_encrypted", 5)]
    ((row,),) = sql(directory, "SELECT value FROM Cache WHERE key = ?", row_key(running.id, KEYS))
    assert SECRET.encode() not in row
    with_secret = [
        SECRET.encode() in (directory / "results" / f).read_bytes() for f in result_files(directory)
    ]
    assert sorted(with_secret) == [False, True]
    with capture_logs() as logs:
        async with opened(directory, clock, keys=KEYS) as store:
            assert (await store.get(running.id)).result == SECRET_RESULT
            await clock.advance(TTL_MS)
            assert await store.expire() == 4
            assert len(result_files(directory)) == 0
    assert [(log["event"], log["count"]) for log in logs] == [("records_not_encrypted", 4)]
    left = {key for (key,) in sql(directory, "SELECT key FROM Cache")}
    assert left == {row_key(made[1].id)}  # no task has two rows: what is gone does not come back


async def test_what_was_moved_to_another_task_does_not_open_there(
    directory: Path, clock: ManualClock
) -> None:
    """Rows and result files alike."""
    small, large = [a_task(clock) for _ in range(2)], [a_task(clock) for _ in range(2)]
    async with opened(directory, clock, keys=KEYS) as store:
        for number, task in enumerate([*small, *large]):
            result = b'"%d"' % number if task in small else LARGE
            await store.create(task)
            await store.compare_and_set(task, completed(task, clock, result))
        one, other = ((directory / "results" / name) for name in result_files(directory))
        swapped = one.read_bytes(), other.read_bytes()
        for file, content in zip((other, one), swapped, strict=True):
            file.write_bytes(content)
        for task in large:
            with pytest.raises(StoreError, match="not what was encrypted for this place"):
                await store.get(task.id)
    ((own,), (foreign,)) = (
        sql(directory, "SELECT value FROM Cache WHERE key = ?", row_key(task.id, KEYS))[0] for task in small
    )
    for task, value in zip(small, (foreign, own), strict=True):
        sql(directory, "UPDATE Cache SET value = ? WHERE key = ?", value, row_key(task.id, KEYS))
    with capture_logs() as logs:
        async with opened(directory, clock, keys=KEYS) as store:
            for task in small:
                with pytest.raises(TaskNotFound):
                    await store.get(task.id)
    assert [log["reason"] for log in logs] == ["it is not what was encrypted for this place"] * 2


async def test_a_damaged_result_is_an_error_and_no_part_of_it_is_served(
    directory: Path, clock: ManualClock
) -> None:
    """TX-GET-010"""
    task = a_task(clock)
    async with opened(directory, clock, keys=KEYS) as store:
        await store.create(task)
        await store.compare_and_set(task, completed(task, clock, SECRET_RESULT))
        (name,) = result_files(directory)
        file = directory / "results" / name
        sound = file.read_bytes()
        file.write_bytes(sound[:-1] + b"x")
        with pytest.raises(StoreError, match="checksum does not match"):
            await store.get(task.id)
        file.write_bytes(sound)
        assert (await store.get(task.id)).result == SECRET_RESULT
    file.write_bytes(sound[:-1])
    with capture_logs() as logs:
        async with opened(directory, clock, keys=KEYS):
            pass
    assert [log["reason"] for log in logs] == ["its result file is torn"]
    assert result_files(directory) == [f"{name}.damaged"]


async def test_a_store_that_cannot_be_written_is_read_with_its_key_alone(
    directory: Path, clock: ManualClock
) -> None:
    made = await fill(directory, clock, KEYS)
    results = ResultFiles(directory, synced=False, keys=KEYS)
    found = load_without_writing(directory, results, clock, KEYS)
    assert {task.id for task in made} == {task.id for task in made if found.index.get(task.id)}
    assert [memo.value for memo in found.memos] == [SECRET.encode()]
    assert SECRET.encode() not in b"".join(found.kept.values())
    found = load_without_writing(directory, results, clock, NO_KEYS)
    assert len(found.index) == 0
    assert found.unreadable.keys() == {
        *(stand_in(task.id) for task in made),
        stand_in_of_row(memo_key(SESSION)),
    }


async def test_what_a_guest_with_another_key_left_stays_where_it_is(
    directory: Path, clock: ManualClock
) -> None:
    """It is taken over once its key is there; what can be read of it is not taken away from the rest."""

    def shared(*keys: bytes) -> AbstractAsyncContextManager[Store]:
        return open_shared_directory(directory, Durability.PROCESS, "alice", clock, keys=Keys(keys))

    async with shared(), shared(KEY) as guest:
        await guest.create(task := a_task(clock))
    with capture_logs() as logs:
        async with shared(OTHER) as store:
            with pytest.raises(TaskNotFound):
                await store.get(task.id)
    assert [log["reason"] for log in logs if log["event"] == "guest_not_adopted"] == [
        "1 of its records cannot be read"
    ]
    async with shared(OTHER, KEY) as store:
        assert await store.get(task.id) == task
    assert not any((directory / GUESTS).iterdir())
