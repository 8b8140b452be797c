"""What process 1 of a container owes its kernel: passing signals on, and reaping every orphan.

Above: `cli`, which comes here only as process 1. Servers that we start have children of their own; when
those outlive their parents they become ours, and a proxy that waits for its own children alone would
leave them as zombies (field report F36). So the proxy runs in a child, and this process does nothing else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

PASSED_ON: Final = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
_WATCHED: Final = PASSED_ON | {signal.SIGCHLD}
_FROM_TERMINAL: Final = 0x80  # SI_KERNEL: a terminal's Ctrl-C, which the child has got as well


def run_below(work: Callable[[], int]) -> int:
    """Do `work` in a child and return its exit code, 128 + N if signal N killed it.

    Must be called before any thread is started. In the child it does not return.
    """
    # Blocked before the fork, so that none is lost between it and the first wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        raise SystemExit(work())
    while True:
        told = signal.sigwaitinfo(_WATCHED)
        if told.si_signo == signal.SIGCHLD:
            code = _reap_all(child)
            if code is not None:
                return code
        elif told.si_code != _FROM_TERMINAL:
            os.kill(child, told.si_signo)


def _reap_all(child: int) -> int | None:
    """Reap whoever has died; the exit code of `child` if it was among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if pid == 0:
            return None
