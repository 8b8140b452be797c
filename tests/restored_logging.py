"""For tests that configure logging: puts everything back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    access = logging.getLogger("aiohttp.access")
    before = root.handlers, root.level, access.disabled
    try:
        yield
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
        logging.captureWarnings(False)
        root.handlers, access.disabled = before[0], before[2]
        root.setLevel(before[1])
