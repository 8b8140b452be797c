"""The legacy fixture as an upstream, over stdio or over HTTP, and its journal: what really happened there."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final, Literal

from tests.real.processes import Program, accepts, free_port
from tests.real.waiting import until
from tests.setup_tools import TESTS, venv_python

Transport = Literal["stdio", "http"]

SCRIPT: Final = TESTS / "fixtures" / "legacy_server.py"
START_BOUND_S: Final = 40.0


class Legacy:
    """One legacy server. Over stdio whoever wants it starts `upstream` as a command; over HTTP it is a URL.

    The journal is one file for all its processes and survives their ends.
    """

    def __init__(self, transport: Transport, home: Path, *switches: str) -> None:
        self.transport = transport
        self.home = home
        self.port = free_port()
        self._journal = home / "journal.jsonl"
        self._switches = switches
        self._program: Program | None = None

    @property
    def upstream(self) -> str | list[str]:
        if self.transport == "http":
            return f"http://127.0.0.1:{self.port}/mcp"
        return self.command("stdio")

    def command(self, transport: str) -> list[str]:
        python = str(venv_python("sdk1"))
        journal = str(self._journal)
        return [python, str(SCRIPT), "--transport", transport, "--journal", journal, *self._switches]

    async def start(self) -> None:
        """Over HTTP: start it and wait until it listens. Over stdio it is the proxy that starts it."""
        if self.transport == "stdio":
            return
        command = [*self.command("streamable-http"), "--port", str(self.port)]
        self._program = Program(command, log=self.home / "legacy.log")
        await until(lambda: accepts(self.port), "the legacy server listens", within_s=START_BOUND_S)

    async def stop(self) -> None:
        if self._program is not None and self._program.exit_code is None:
            await self._program.stop()

    async def restart(self) -> None:
        """Over HTTP: start it again after it ended."""
        await self.stop()
        await self.start()

    def journal(self) -> list[dict[str, Any]]:
        """All events so far, oldest first."""
        if not self._journal.exists():
            return []
        lines = self._journal.read_text().split("\n")[:-1]  # what follows the last line end is being written
        return [json.loads(line) for line in lines]

    def labels(self, event: str) -> Counter[str]:
        """How often `event` happened, by the label, key or file name of the call."""
        return Counter(row["label"] for row in self.journal() if row["event"] == event and row.get("label"))

    async def happened(self, event: str, label: str, *, within_s: float = 30.0) -> None:
        """Wait until the journal has it."""
        what = f"{event} of {label!r} in the journal"
        await until(lambda: self.labels(event)[label] > 0, what, within_s=within_s)

    def __repr__(self) -> str:
        return f"<Legacy {self.transport} {len(self.journal())} events>"
