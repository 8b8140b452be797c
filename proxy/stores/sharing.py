"""One store directory for the many short lives of a sidecar.

Above: `assembly`, for stdio. Below: `disk`. Two windows of one editor start the same command twice, and
some clients start a second process just to ask what we are; but a directory has one process. So whoever
finds it taken works in a sub-directory of its own, and the next start that finds the directory free
takes over those tasks, and what is remembered of their sessions. Whoever takes over a sub-directory removes
its lock before letting go of it, so that nobody can hold what is about to be removed. Contract section 9.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from anyio import to_thread

from proxy.clock import Clock
from proxy.errors import ConfigError, StoreError, TaskConflict, TaskNotFound
from proxy.logs import get_logger
from proxy.metrics import UNSERVED, Metrics
from proxy.stores.base import Store, TaskStore
from proxy.stores.directory import LOCK_NAME, DirectoryInUse
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.faults import reason_of

GUESTS: Final = "guests"
"""Below the directory: a sub-directory for each process that found it taken."""

_ATTEMPTS: Final = 3  # the next start may take a guest's directory over before the guest has locked it
_ALL: Final = 1 << 62

log = get_logger()


@asynccontextmanager
async def open_shared_directory(
    directory: Path,
    durability: Durability,
    owner: str,
    clock: Clock,
    metrics: Metrics = UNSERVED,
    keys: Keys = NO_KEYS,
    wanted_s: float = 0,
) -> AsyncIterator[Store]:
    """The store in `directory`, with what guests have left; a guest's own store if it is taken.

    `owner` is whose tasks are taken over: on stdio there is only one. The rest is as with DiskStore.
    """
    disk_store = partial(DiskStore, durability=durability, clock=clock, keys=keys, wanted_s=wanted_s)
    try:
        async with disk_store(directory, metrics=metrics) as store:
            await _adopt_guests(store, directory / GUESTS, disk_store, owner, clock)
            yield store
        return
    except DirectoryInUse as exc:
        taken = exc
    for attempt in range(1, _ATTEMPTS + 1):
        guest = directory / GUESTS / f"{os.getpid()}-{secrets.token_hex(4)}"
        log.info("store_taken", reason=taken.message, instead=str(guest))
        try:
            async with disk_store(guest, metrics=metrics) as store:
                yield store
            return
        except DirectoryInUse:
            if attempt == _ATTEMPTS:
                raise


async def _adopt_guests(
    store: Store, guests: Path, disk_store: Callable[[Path], DiskStore], owner: str, clock: Clock
) -> None:
    """Take over what every guest that has gone has left. If not all can be read, it is left where it is."""
    for guest in await to_thread.run_sync(_left, guests):
        try:
            async with disk_store(guest) as left:
                if left.unreadable:
                    raise StoreError(f"{left.unreadable} of its records cannot be read")
                count = await _adopt(store, left, owner)
                await _adopt_memos(store, left, clock)
                await to_thread.run_sync(partial((guest / LOCK_NAME).unlink, missing_ok=True))
        except DirectoryInUse:
            continue
        except (ConfigError, StoreError) as exc:
            log.warning("guest_not_adopted", guest=guest.name, reason=exc.message)
            continue
        except OSError as exc:
            log.warning("guest_not_adopted", guest=guest.name, reason=reason_of(exc))
            continue
        await to_thread.run_sync(partial(shutil.rmtree, guest, ignore_errors=True))
        if count:
            log.info("guest_adopted", guest=guest.name, tasks=count)


def _left(guests: Path) -> list[Path]:
    """What guests may have left. A directory that is still empty is just being made."""
    try:
        return [guest for guest in sorted(guests.iterdir()) if not _is_empty(guest)]
    except FileNotFoundError:
        return []
    except OSError as exc:
        log.warning("guests_not_adopted", reason=reason_of(exc))
        return []


def _is_empty(guest: Path) -> bool:
    with suppress(OSError):  # whoever opens it is told why that cannot be done
        return guest.is_dir() and not any(guest.iterdir())
    return False


async def _adopt(store: TaskStore, left: TaskStore, owner: str) -> int:
    """Copy every task of `left`, result and all; one that is here already was copied before."""
    count = 0
    for task in await left.owned(owner, limit=_ALL):
        try:
            await store.create(await left.get(task.id))
            count += 1
        except (TaskConflict, TaskNotFound):  # its time was over meanwhile
            continue
    return count


async def _adopt_memos(store: Store, left: DiskStore, clock: Clock) -> None:
    """Also what an adopted task needs in order to go on. What is here already was copied before."""
    for memo in left.memos():
        if await store.recall(memo.key) is None:
            left_s = (memo.expires_at_ms - clock.wall_ms()) / 1000
            await store.remember(memo.key, memo.value, keep_s=left_s)
