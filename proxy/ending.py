"""The end of the process, which comes in any case: whatever hangs by then, mostly a disk, is left behind.

Above: `app` and `cli`. All that clients were told was stored before it was said, so nothing is lost thereby.
Contract section 1 (I6) and section 9, SIGTERM; field report F41.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from proxy.logs import get_logger

LAST_WORDS_S: Final = 0.2  # for the thread that writes the log
THREADS_S: Final = 1.0  # for threads that only have to notice that all is over

log = get_logger()


class Deadline:
    """Ends the process `seconds` after `begin`, unless `cancel` is called before; first `last` is called."""

    def __init__(self, seconds: float, last: Callable[[], None]) -> None:
        self._seconds = seconds
        self._last = last
        self._timer = self._timer_for(seconds)

    def begin(self) -> None:
        """Once."""
        self._timer.start()

    def hasten(self, seconds: float) -> None:
        """The work is done: so long from now on, for what is left of the process itself."""
        self._timer.cancel()
        self._seconds = seconds
        self._timer = self._timer_for(seconds)
        self._timer.start()

    def cancel(self) -> None:
        """Harmless before `begin`."""
        self._timer.cancel()

    def _timer_for(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        return timer

    def _end(self) -> None:
        try:
            log.error("shutdown_overran", waited_s=self._seconds)
            self._last()
            time.sleep(LAST_WORDS_S)
        finally:  # whatever fails in here: nobody else would end the process
            os._exit(0)


def leave_hanging_threads(exit_code: int) -> None:
    """End the process if a thread of it does not end: Python would wait for it without a bound."""
    until = time.monotonic() + THREADS_S
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                os._exit(exit_code)
