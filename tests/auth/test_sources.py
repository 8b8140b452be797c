"""A key set in a file: read anew each time, and never waited for without a bound (contract section 1, I6)."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.auth import keys as keys_module
from proxy.auth import sources
from proxy.auth.keys import Keys
from proxy.auth.sources import MAX_BYTES, FileSource, SourceError
from proxy.clock import SystemClock
from proxy.errors import LimitReached
from proxy.files import FoundFile
from tests.auth.issuer import ec, key_set

pytestmark = pytest.mark.anyio


async def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    source = FileSource(file := tmp_path / "keys")
    for text in (b"one", b"two"):
        file.write_bytes(text)
        assert await source.read() == text


@pytest.mark.parametrize(
    "name, reason",
    [("fifo", "is no regular file"), ("none", "cannot be read: No such"), ("large", f"is over {MAX_BYTES}")],
)
async def test_what_cannot_be_had_is_a_reason_to_go_on_without(
    tmp_path: Path, name: str, reason: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(bytes(MAX_BYTES + 1))
    with anyio.fail_after(5), pytest.raises(SourceError, match=reason):
        await FileSource(tmp_path / name).read()


async def test_a_disk_that_hangs_keeps_one_thread_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client is told that there are no keys (503); once the disk answers again, they are there."""
    let_go, threads = threading.Event(), list[int]()

    def hangs(path: Path, max_bytes: int) -> FoundFile:
        threads.append(threading.get_ident())
        let_go.wait(10)
        return FoundFile(key_set(ec("one")), 0o400)

    monkeypatch.setattr(sources, "read_regular", hangs)
    monkeypatch.setattr(sources, "FETCH_TIMEOUT_S", 0.01)
    monkeypatch.setattr(keys_module, "PAUSE_S", 0.01)
    keys = Keys(FileSource(tmp_path / "keys").read, SystemClock())
    with anyio.fail_after(5), capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keys.run)
            for _ in range(2):
                with pytest.raises(LimitReached) as caught:
                    await keys.find("one", "ES256")
                assert caught.value.http_status == 503
            assert len(threads) == 1
            let_go.set()
            while not keys.are_there:
                with suppress(LimitReached):
                    await keys.find("one", "ES256")
            assert [key.kid for key in await keys.find("one", "ES256")] == ["one"]
            tasks.cancel_scope.cancel()
    assert {log["reason"].removeprefix(str(tmp_path)) for log in logs if "reason" in log} == {
        "/keys did not answer within 0.01 s",
        "/keys does not answer",
    }


async def test_the_end_of_the_proxy_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, reached = threading.Event(), threading.Event()

    def hangs(path: Path, max_bytes: int) -> FoundFile:
        reached.set()
        let_go.wait(10)
        return FoundFile(b"", 0)

    monkeypatch.setattr(sources, "read_regular", hangs)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(FileSource(tmp_path).read)
            await anyio.to_thread.run_sync(reached.wait)
            tasks.cancel_scope.cancel()
    let_go.set()
