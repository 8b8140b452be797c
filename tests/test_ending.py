"""The process ends, whatever hangs in it. Each case is a process of its own, for it is ended."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from typing import Final

import pytest

BOUND_S: Final = 20.0  # far above what it takes, far below for ever


def ended(script: str) -> subprocess.CompletedProcess[str]:
    """A Python process that has threads which never end, unless somebody ends it."""
    begin = """
    import sys, threading, time
    from proxy import logs
    from proxy.ending import Deadline, leave_hanging_threads
    hang = threading.Thread(target=threading.Event().wait)
    """
    command = [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S)


def test_what_does_not_end_in_time_is_ended_with_code_0_and_a_line_in_the_log() -> None:
    """F41, I6."""
    done = ended(
        """
        logs.configure("info", "text")
        Deadline(0.1, lambda: print("killed", flush=True)).begin()
        hang.start()
        """
    )
    assert (done.returncode, done.stdout) == (0, "killed\n")
    assert "shutdown_overran waited_s=0.1" in done.stderr


def test_an_end_in_time_is_nobodys_business() -> None:
    done = ended(
        """
        deadline = Deadline(0.2, lambda: print("killed", flush=True))
        deadline.begin()
        deadline.cancel()
        time.sleep(0.5)  # past it
        print("left")
        """
    )
    assert (done.returncode, done.stdout) == (0, "left\n")


def test_a_last_act_that_fails_does_not_hold_the_process() -> None:
    done = ended(
        """
        def fails():
            raise RuntimeError
        Deadline(0.1, fails).begin()
        hang.start()
        """
    )
    assert done.returncode == 0


def test_a_lookup_that_hangs_does_not_hold_the_process() -> None:
    """I6: the event loop, as it closes, waits for the threads that it lent."""
    done = ended(
        """
        import asyncio, os
        from proxy import app, cli

        async def serve(*parts):
            asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)

        app._serve = serve
        sys.exit(cli.run(["--listen", "127.0.0.1:0", "--upstream", "http://host.example/mcp"], os.environ))
        """
    )
    assert done.returncode == 0
    assert "proxy_stopped" in done.stderr
    assert "shutdown_overran" in done.stderr


@pytest.mark.parametrize("hangs", [False, True])
def test_a_thread_that_hangs_does_not_hold_the_process(hangs: bool) -> None:
    """As a disk that hangs holds the store's writer."""
    began = time.monotonic()
    done = ended(
        f"""
        daemon = threading.Thread(target=time.sleep, args=[1000], daemon=True)
        daemon.start()
        threading.Thread(target=time.sleep, args=[0.1]).start()
        {"hang.start()" if hangs else ""}
        leave_hanging_threads(7)
        sys.exit(3)
        """
    )
    assert done.returncode == (7 if hangs else 3)
    assert time.monotonic() - began < BOUND_S
