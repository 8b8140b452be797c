"""A disk store in a test's hands: opened, looked at from outside, slowed down, locked by another."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from proxy.metrics import UNSERVED, Metrics
from proxy.stores import writer
from proxy.stores.changes import RESULT_IN_ROW_MAX
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.records import decode, row_key
from proxy.stores.writer import Writer
from proxy.tasks.task import Task
from tests.manual_clock import ManualClock

LARGE = b'"' + b"x" * RESULT_IN_ROW_MAX + b'"'


@asynccontextmanager
async def opened(
    directory: Path,
    clock: ManualClock,
    durability: Durability = Durability.PROCESS,
    metrics: Metrics = UNSERVED,
    keys: Keys = NO_KEYS,
    wanted_s: float = 0,
) -> AsyncIterator[DiskStore]:
    store = DiskStore(
        directory, durability=durability, clock=clock, metrics=metrics, keys=keys, wanted_s=wanted_s
    )
    with anyio.fail_after(20):
        async with store:
            yield store


def sql(directory: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """What another program does to the database."""
    with closing(sqlite3.connect(directory / "cache.db", timeout=10)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def on_disk(directory: Path, task_id: str) -> Task | None:
    rows = sql(directory, "SELECT value FROM Cache WHERE key = ?", task_id.encode())
    return decode(row_key(task_id), rows[0][0]).task if rows else None


def result_files(directory: Path) -> list[str]:
    return sorted(file.name for file in (directory / "results").iterdir())


class Gate:
    """Stops the writer before its next commit, to make the disk as slow as a test needs it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()
        commit = Writer._commit

        def commit_when_open(writer: Writer, changes: list[writer.Change]) -> list[str | None]:
            self._reached.set()
            assert self._open.wait(10)
            return commit(writer, changes)

        monkeypatch.setattr(Writer, "_commit", commit_when_open)

    def shut(self) -> None:
        self._reached.clear()
        self._open.clear()

    async def reached(self) -> None:
        await to_thread.run_sync(self._reached.wait, 5)

    def open(self) -> None:
        self._open.set()


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Another program writes to the database meanwhile."""
    with closing(sqlite3.connect(directory / "cache.db", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")
