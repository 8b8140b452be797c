"""The processes under test: started on a core of their own, their CPU time read, and ended.

The load generator takes the other core, so that what it does is not paid for by them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from yarl import URL

from tests.real.processes import Program, accepts, free_port
from tests.real.proxy_process import ProxyProcess
from tests.real.waiting import until

START_S: Final = 20.0


class Servers:
    """Starts servers in the directory `home`; all end with the context of `on_one_core`."""

    def __init__(self, home: Path, core: int, stack: AsyncExitStack) -> None:
        self._home = home
        self._core = core
        self._stack = stack

    async def proxy(self, upstream_url: str, settings: dict[str, Any] | None = None) -> Server:
        """The proxy of this project."""
        proxy = ProxyProcess(self._home, upstream_url, settings)
        self._stack.push_async_callback(proxy.stop)
        await proxy.start()
        return self._pinned(Server("proxy", proxy.url, proxy.program))

    async def module(self, name: str, *arguments: str) -> Server:
        """A server of `benchmarks.rig`, whose first argument is its port."""
        port = free_port()
        command = [sys.executable, "-m", f"benchmarks.rig.{name}", str(port), *arguments]
        program = Program(command, log=self._home / f"{name}.log")
        self._stack.push_async_callback(program.stop)
        await until(lambda: accepts(port), f"{name} is there", within_s=START_S)
        return self._pinned(Server(name, f"http://127.0.0.1:{port}/mcp", program))

    def client(self, name: str, server: Server, *arguments: str) -> Program:
        """A client of `benchmarks.rig` on this process's core, to be waited for by the caller.

        Its first argument is the server's port, the second tells it from the others.
        """
        command = [sys.executable, "-m", f"benchmarks.rig.{name}", str(URL(server.url).port), *arguments]
        return Program(command, log=self._home / f"{name}-{arguments[0]}.log")

    def _pinned(self, server: Server) -> Server:
        for thread in os.listdir(f"/proc/{server.program.pid}/task"):
            os.sched_setaffinity(int(thread), {self._core})
        return server


class Server:
    """A process that serves MCP at `url`."""

    def __init__(self, name: str, url: str, program: Program) -> None:
        self.name = name
        self.url = url
        self.program = program
        self._cpu_clock = cpu_clock_of(program.pid)

    def cpu_s(self) -> float:
        """User and system time of the process so far, all threads."""
        return time.clock_gettime(self._cpu_clock)


def cpu_clock_of(pid: int) -> int:
    """The clock that /proc/PID/stat shows as utime and stime, in nanoseconds instead of ticks of 10 ms."""
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    assert error == 0, f"process {pid} has no CPU clock: {os.strerror(error)}"
    return clock.value


@asynccontextmanager
async def on_one_core(home: Path) -> AsyncIterator[Servers]:
    """Servers on the first core that we may use, this process on the last."""
    cores = sorted(os.sched_getaffinity(0))
    async with AsyncExitStack() as stack:
        os.sched_setaffinity(0, {cores[-1]})
        stack.callback(os.sched_setaffinity, 0, cores)
        yield Servers(home, cores[0], stack)
