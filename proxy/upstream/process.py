"""A subprocess and all that it starts: one process group, begun, watched and ended as one.

Above: `stdio`, which moves messages over the three pipes. MCP 2026-07-28 "stdio", "Shutdown".

Launchers (`npx`, `uv run`, `sh -c`) die before the servers that they start, so every signal goes to the
group, also when its leader is gone. What leaves the group by itself (a daemon) is out of reach.

If we are killed with -9 nothing of this runs; the pipes then close, and a server that reads its stdin
sees the end of it and exits. Linux could send it a signal on our death (PR_SET_PDEATHSIG), but that
needs code between fork and exec, which is not safe where there are threads, and fires when the thread
that forked ends.

asyncio's own subprocesses are not used: their stdin does not close while it holds unsent bytes, and
they wait for the end of pipes that a grandchild may hold open.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import anyio

GRACE_S: Final = 2.0  # for a server to see that its stdin ended, finish and exit
TERM_S: Final = 2.0  # the same after SIGTERM
KILL_S: Final = 2.0  # nobody refuses SIGKILL, but the kernel may be slow to let go
FIRST_LOOK_S: Final = 0.01  # the last member of a group leaves without notice, so we look,
LAST_LOOK_S: Final = 0.16  # less and less often
EXIT_POLL_S: Final = 0.1  # where the system has no pidfd (macOS)


_begun: Final[set[ProcessGroup]] = set()


def kill_all() -> None:
    """SIGKILL to every group that was begun and not seen off: for a proxy that has to go at once."""
    for group in list(_begun):  # groups begin and end meanwhile, if another thread calls
        group.kill()


class ProcessGroup:
    """A running command, leader of its own session and group. `end` must be called, then `close_pipes`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> None:
        """Start it. Raises OSError, or ValueError for a NUL in what it is given."""
        self._leader = subprocess.Popen(  # noqa: S603 - the operator's command, no shell
            list(command),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        for pipe in self._pipes():
            os.set_blocking(pipe.fileno(), False)
        _begun.add(self)

    @property
    def pid(self) -> int:
        """Of the leader, and the id of the group."""
        return self._leader.pid

    @property
    def stdin(self) -> IO[bytes]:
        assert self._leader.stdin is not None
        return self._leader.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._leader.stdout is not None
        return self._leader.stdout

    @property
    def stderr(self) -> IO[bytes]:
        assert self._leader.stderr is not None
        return self._leader.stderr

    @property
    def code(self) -> int | None:
        """The leader's exit code, negative for a signal, None while it runs (as far as we have looked)."""
        return self._leader.returncode

    def last_act(self) -> str | None:
        """How the leader ended, in words; None while it runs."""
        code = self.code
        if code is None:
            return None
        if code >= 0:
            return f"exited with code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:  # a real-time signal has no name
            return f"was killed by signal {-code}"

    async def exited(self) -> None:
        """Wait until the leader has exited, and reap it."""
        if self._leader.poll() is not None:
            return
        with _exit_notice(self.pid) as notice:
            while self._leader.poll() is None:
                await (anyio.sleep(EXIT_POLL_S) if notice is None else anyio.wait_readable(notice))

    async def end(self) -> bool:
        """See the whole group off: first by itself, as its stdin is closed, then by TERM, then by KILL.

        Takes as long as the three bounds together at most. False if something was left that we may not
        or cannot end.
        """
        for sign, bound_s in ((None, GRACE_S), (signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            if sign is not None:
                self._signal(sign)
            with anyio.move_on_after(bound_s):
                pause_s = FIRST_LOOK_S
                while self._alive():
                    await anyio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LAST_LOOK_S)
                return True
        return False

    def close_pipes(self) -> None:
        """Close our ends; harmless if some are closed. Nobody may be waiting on them."""
        _begun.discard(self)
        for pipe in self._pipes():
            pipe.close()

    def _pipes(self) -> tuple[IO[bytes], ...]:
        return self.stdin, self.stdout, self.stderr

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, sign: int) -> None:
        # Another user's processes (sudo) are not ours to signal; the end of stdin must do for them.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, sign)

    def _alive(self) -> bool:
        """Whether anything of the group lives.

        The group's id cannot be given to others while a member is left, and is not used after the last.
        """
        if self._leader.poll() is None:
            return True
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's; on macOS also if all that is left are zombies
            return sys.platform != "darwin"
        return not _only_zombies(self.pid)

    def __repr__(self) -> str:
        return f"<ProcessGroup {self.pid} {self.last_act() or 'running'}>"


def _only_zombies(group: int) -> bool:
    """Whether what is left of the group is dead and waits for process 1, which not everywhere reaps soon."""
    states = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone meanwhile
            state, _parent, its_group = entry.read_bytes().rpartition(b")")[2].split()[:3]
            if int(its_group) == group:
                states.append(state)
    return bool(states) and all(state in b"ZX" for state in states)


@contextmanager
def _exit_notice(pid: int) -> Iterator[int | None]:
    """A descriptor that becomes readable when our child `pid` exits, or None where there is no such thing."""
    notice = None
    if sys.platform == "linux":
        with suppress(OSError):  # an old kernel, or no descriptors left
            notice = os.pidfd_open(pid)
    try:
        yield notice
    finally:
        if notice is not None:
            os.close(notice)
