"""The misbehaving stdio server as a test sees it: how it is to start, and what it wrote into its journal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from proxy.protocol import names
from tests.real.waiting import until

SCRIPT: Final = Path(__file__).parent / "upstreams" / "unruly.py"
TOLD_BOUND_S: Final = 8.0


class Unruly:
    """All processes that one proxy starts. What was before the last `forget` is not shown."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._skip = 0
        self.start_as("")

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-IS", str(SCRIPT), str(self._home)]

    def start_as(self, mode: str) -> None:
        """How processes behave that start from now on; empty: well."""
        (self._home / "mode").write_text(mode)

    def forget(self) -> None:
        self._skip = len(self._journal())

    def _journal(self) -> list[dict[str, Any]]:
        file = self._home / "journal"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [json.loads(line) for line in lines]

    def starts(self) -> list[int]:
        """The pids of its processes, oldest first."""
        return [event["pid"] for event in self._journal()[self._skip :] if event["event"] == "start"]

    def got(self, method: str | None = None) -> list[dict[str, Any]]:
        """The requests and notifications of this method that it read; None: the answers to its own."""
        messages = [event["message"] for event in self._journal()[self._skip :] if event["event"] == "got"]
        return [message for message in messages if message.get("method") == method]

    async def was_called(self, times: int = 1) -> list[int]:
        """Wait for its n-th tool call; the ids of all."""
        calls = await until(
            lambda: self.got(names.TOOLS_CALL)[times - 1 :] and self.got(names.TOOLS_CALL), "called"
        )
        return [call["id"] for call in calls]

    async def was_cancelled(self, call: int) -> None:
        """Wait until it was told that nobody waits for this call."""

        def told() -> bool:
            return call in [notice["params"]["requestId"] for notice in self.got(names.CANCELLED)]

        await until(told, f"the server is told that {call} is cancelled", within_s=TOLD_BOUND_S)

    async def has_asked(self, question: str) -> None:
        def asked() -> bool:
            return any(event.get("question") == question for event in self._journal()[self._skip :])

        await until(asked, f"{question!r} is asked", within_s=TOLD_BOUND_S)

    async def was_answered(self, question: str) -> dict[str, Any]:
        """Wait for the one answer to this question of its own."""

        def answers() -> list[dict[str, Any]]:
            return [message for message in self.got() if message["id"] == question]

        found = await until(answers, f"{question!r} is answered", within_s=TOLD_BOUND_S)
        assert len(found) == 1
        return found[0]
