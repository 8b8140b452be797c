"""Process groups: begun, watched, ended whole (F36; STDIO-009)."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence

import anyio
import pytest

from proxy.upstream import process as process_module
from proxy.upstream.process import ProcessGroup, kill_all
from tests.upstream.servers import MARKER, script, survivors

pytestmark = pytest.mark.anyio


@pytest.fixture
def marker() -> Iterator[str]:
    marker = uuid.uuid4().hex
    yield marker
    assert survivors(marker) == []


@pytest.fixture
def short_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("GRACE_S", "TERM_S"):
        monkeypatch.setattr(process_module, bound, 0.15)


def start(command: Sequence[str], marker: str) -> ProcessGroup:
    return ProcessGroup(command, {**os.environ, MARKER: marker}, None)


async def said(group: ProcessGroup) -> bytes:
    await anyio.wait_readable(group.stdout)
    return os.read(group.stdout.fileno(), 65_536)


async def everything_said(group: ProcessGroup) -> bytes:
    parts = []
    with anyio.fail_after(5):
        while part := await said(group):
            parts.append(part)
    return b"".join(parts)


async def test_a_group_that_heeds_the_end_of_its_stdin_gets_no_signal(marker: str) -> None:
    group = start(script("echo"), marker)
    group.stdin.close()
    with anyio.fail_after(5):
        assert await group.end()
    assert (group.code, group.last_act()) == (0, "exited with code 0")
    group.close_pipes()


@pytest.mark.usefixtures("short_bounds")
async def test_the_ladder_is_end_of_stdin_then_term_then_kill(marker: str) -> None:
    """STDIO-009."""
    group = start(script("stubborn"), marker)
    assert b"ready" in await said(group)
    group.stdin.close()
    with anyio.fail_after(5):
        assert await group.end()
    steps = await everything_said(group)
    assert steps.startswith(b'{"parent ignores the end":1}\n')
    assert sorted(steps.splitlines()[1:]) == [b'{"child ignores TERM":1}', b'{"parent ignores TERM":1}']
    assert group.last_act() == "was killed by SIGKILL"
    group.close_pipes()


@pytest.mark.usefixtures("short_bounds")
async def test_members_are_ended_also_when_their_leader_is_gone(marker: str) -> None:
    group = start(["sh", "-c", '"$@" & exit 7', "sh", *script("stubborn")], marker)
    with anyio.fail_after(5):
        await group.exited()
        assert group.code == 7
        assert await group.end()
    assert group.last_act() == "exited with code 7"
    group.close_pipes()


async def test_all_that_runs_can_be_killed_at_once(marker: str) -> None:
    groups = [start(script("stubborn"), marker) for _ in range(2)]
    for group in groups:
        assert b"ready" in await said(group)
    process_module.kill_all()
    for group in groups:
        with anyio.fail_after(5):
            assert await group.end()
        assert group.last_act() == "was killed by SIGKILL"
        group.close_pipes()


@pytest.mark.parametrize("has_pidfd", [True, False])
async def test_an_exit_is_noticed(marker: str, monkeypatch: pytest.MonkeyPatch, has_pidfd: bool) -> None:
    if not has_pidfd:
        monkeypatch.setattr(sys, "platform", "darwin")
    group = start(["sh", "-c", "read line; exit 5"], marker)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(group.exited)
        await anyio.wait_all_tasks_blocked()
        assert group.last_act() is None
        os.write(group.stdin.fileno(), b"go\n")
        with anyio.fail_after(5):
            await group.exited()
    assert group.code == 5
    assert await group.end()
    group.close_pipes()


@pytest.mark.parametrize(
    "sign, words",
    [(signal.SIGSEGV, "was killed by SIGSEGV"), (40, "was killed by signal 40")],
)
async def test_a_death_by_signal_is_told_by_its_name(marker: str, sign: int, words: str) -> None:
    group = start(["sh", "-c", f"kill -{int(sign)} $$"], marker)
    with anyio.fail_after(5):
        await group.exited()
        assert group.last_act() == words
        assert await group.end()
    group.close_pipes()


async def test_what_may_not_be_signalled_is_admitted(marker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs as another user, started with sudo."""
    for bound in ("GRACE_S", "TERM_S", "KILL_S"):
        monkeypatch.setattr(process_module, bound, 0.05)

    def refuse(_pid: int, _sign: int) -> None:
        raise PermissionError

    group = start(script("echo"), marker)
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", refuse)
        assert not await group.end()
        assert group.last_act() is None
    group.stdin.close()
    assert await group.end()
    group.close_pipes()


async def test_all_are_killed_also_while_others_end(marker: str) -> None:
    """It is called from a thread of its own, where the process has to go."""

    class Leaving:
        def kill(self) -> None:
            begun.discard(self)

    begun: set[Leaving] = {Leaving() for _ in range(5)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_module, "_begun", begun)
        kill_all()
    assert begun == set()
