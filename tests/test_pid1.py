"""Process 1: signals reach the proxy, orphans are reaped, the exit code is the proxy's.

Each test runs in a process of its own that adopts orphans, as process 1 of a container does.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Final

import pytest

BOUND_S: Final = 20.0

AS_PROCESS_1: Final = """
import ctypes, os, signal, subprocess, sys, time
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
from proxy.pid1 import run_below

def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(") ")[2][0]
    except FileNotFoundError:
        return "gone"
"""


def start(work: str) -> subprocess.Popen[str]:
    """Run `work` (the body of a function) below a process that acts as process 1."""
    body = "\n".join(f"    {line}" for line in work.strip().splitlines())
    script = f"{AS_PROCESS_1}\ndef work():\n{body}\n\nsys.exit(run_below(work))"
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.parametrize(
    "work, code",
    [("return 0", 0), ("return 7", 7), ("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", 137)],
)
def test_the_exit_code_is_the_childs(work: str, code: int) -> None:
    with start(work) as process:
        assert process.wait(BOUND_S) == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on(number: signal.Signals) -> None:
    work = f"""
signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])
print("ready", flush=True)
signal.sigwait([{int(number)}])
return 1 if signal.sigpending() else 41
"""
    with start(work) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(BOUND_S) == 41


def test_orphans_do_not_stay_as_zombies() -> None:
    """Field report F36. The orphan's parent dies first; the orphan then ends when its stdin does."""
    work = """
script = "exec 3<&0; cat <&3 3<&- & echo $!"
launcher = subprocess.Popen(["sh", "-c", script], stdin=-1, stdout=-1)
orphan = int(launcher.stdout.readline())
launcher.wait()
assert state_of(orphan) not in ("gone", "Z")  # alive, whatever it just waits for
launcher.stdin.close()
while state_of(orphan) != "gone":  # a zombie would stay for ever
    time.sleep(0.01)  # nothing tells that another's child was reaped
return 0
"""
    with start(work) as process:
        assert process.wait(BOUND_S) == 0
