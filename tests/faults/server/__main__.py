"""Starts the server: JOURNAL stdio | JOURNAL http PORT [plain]. `plain`: no event ids, nothing to resume."""

from __future__ import annotations

import resource
import sys
from functools import partial
from pathlib import Path

import anyio

from tests.faults.journal import Journal


def main(file: str, transport: str, port: str = "0", ids: str = "") -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (hard, hard)
    )  # the proxy's disk is broken so, and that is inherited
    journal = Journal(Path(file))
    if transport == "stdio":
        from tests.faults.server import stdio

        anyio.run(stdio.serve, journal)
        return
    from tests.faults.server import http  # brings aiohttp, which a stdio server starts without

    anyio.run(partial(http.serve, journal, int(port), resumable=ids != "plain"))


if __name__ == "__main__":
    main(*sys.argv[1:])
