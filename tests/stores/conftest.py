"""Fixtures of the store tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import anyio
import pytest

from proxy.stores.base import Store
from proxy.stores.disk import DiskStore, Durability
from proxy.stores.encryption import NO_KEYS, Keys
from proxy.stores.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.stores.disks import Gate, opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(directory: Path, clock: ManualClock) -> AsyncIterator[DiskStore]:
    async with opened(directory, clock) as store:
        yield store


KEYS: Final = {"disk": NO_KEYS, "encrypted": Keys([b"k" * 32])}


@pytest.fixture(params=["memory", *KEYS])
async def each_store(
    request: pytest.FixtureRequest, directory: Path, clock: ManualClock
) -> AsyncIterator[Store]:
    """One of every kind, for the contract suites."""
    entered = (
        MemoryStore(clock)
        if request.param == "memory"
        else DiskStore(directory, durability=Durability.PROCESS, clock=clock, keys=KEYS[request.param])
    )
    with anyio.fail_after(10):
        async with entered as store:
            yield store


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()
