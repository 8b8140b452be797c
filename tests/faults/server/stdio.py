"""The server over stdio. Its end is that of its stdin, whatever still runs."""

from __future__ import annotations

import os
import sys

import anyio
from anyio import to_thread

from tests.faults.journal import Journal
from tests.faults.server.tools import Session
from tests.real.upstreams.raw_json import flat


async def serve(journal: Journal) -> None:
    async with anyio.create_task_group() as group:
        session = Session(journal, group, _say)
        while line := await to_thread.run_sync(sys.stdin.buffer.readline, abandon_on_cancel=True):
            session.take(line)
        os._exit(0)  # nobody could be told of what still runs, and nothing of it was cancelled


def _say(call: str, text: bytes, last: bool) -> None:
    sys.stdout.buffer.write(flat(text) + b"\n")
    sys.stdout.buffer.flush()
