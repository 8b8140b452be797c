"""Fixtures of the store tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proxy.stores.disk import DiskStore
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


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()
