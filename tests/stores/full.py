"""A process with a disk store while not one byte of a file can be written, and then while it can.

    python -m tests.stores.full DIRECTORY full|open

The disk is full from the start on, or fills up once the store is open, before anything was written. It
says on stdout what it saw, as one JSON object. Where nothing can be written is a process of its own, since
pytest itself writes files. The limit of the size of files stands in for the disk: it needs no rights.
"""

from __future__ import annotations

import base64
import hashlib
import json
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import anyio

from proxy.errors import StoreError, TaskNotFound
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.records import Record, encode
from tests.manual_clock import ManualClock
from tests.stores.child import numbered_task


def digest(record: Any) -> str:
    """Of a whole record, result and all."""
    return hashlib.sha256(encode(Record(task=record))).hexdigest()


def set_limit(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


async def seen(store: DiskStore) -> dict[str, Any]:
    tasks = await store.owned("alice")
    return {
        "tasks": {task.id: digest(await store.get(task.id)) for task in tasks},
        "counts": {status.value: count for status, count in (await store.counts()).items() if count},
        "remembered": [key for key, _ in await store.remembered("")],
        "secret": base64.b64encode(await store.secret()).decode(),
        "check": await said(store.check()),
        "create": await said(store.create(numbered_task(900))),
        "known": await said(store.get(numbered_task(900).id)),
        "expire": await said(store.expire()),
    }


async def said(doing: Any) -> str:
    try:
        await doing
    except (StoreError, TaskNotFound) as exc:
        return exc.message
    return "ok"


async def main(directory: str, begin: str) -> None:
    if begin == "full":
        set_limit(0)
    shown: dict[str, Any] = {}
    async with DiskStore(Path(directory), durability=Durability.POWER, clock=ManualClock()) as store:
        set_limit(0)
        shown["full"] = await seen(store)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        set_limit(hard)
        shown["free"] = await seen(store)
    print(json.dumps(shown))


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    anyio.run(main, sys.argv[1], sys.argv[2])
