"""The store's directory after all that was done to it: nothing damaged, and no file that no task needs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from proxy.clock import SystemClock
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.records import decode
from proxy.stores.results import RESULTS_NAME
from proxy.tasks.task import is_task_id
from tests.faults.violation import Violation, What


async def store_faults(store: Path) -> list[Violation]:
    """To be asked when nobody has the store open. What a crash left half written the next sweep removes."""
    async with DiskStore(store, durability=Durability.PROCESS, clock=SystemClock()) as opened:
        await opened.expire()
    return [Violation(What.LEFT_OVER, "store", words) for words in _look(store)]


def _look(store: Path) -> list[str]:
    with closing(sqlite3.connect(store / "cache.db")) as database:
        said = [row[0] for row in database.execute("PRAGMA integrity_check")]
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        rows = database.execute("SELECT key, value FROM Cache").fetchall()
    found = []
    if said != ["ok"]:
        found.append(f"integrity_check: {said[:3]}")
    if "Damaged" in tables:
        found.append("records were set aside as damaged")
    tasks = [decode(key, row) for key, row in rows if is_task_id(key.decode())]
    named = {record.result_file for record in tasks} - {None}
    files = {file.name for file in (store / RESULTS_NAME).iterdir()}
    if named != files:
        found.append(f"{len(files - named)} result files of no task, {len(named - files)} missing")
    return found
