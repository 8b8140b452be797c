"""The section `limits`: how much one client, one owner, and all together may take.

Above: `config`. Contract section 8, "Bounds".
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from proxy.sections import AtLeastOne, Section
from proxy.units import Bytes, Count, PerSecond, SomeSeconds

_DEEPEST: Final = 900  # what the standard library's JSON parser manages


class LimitsConfig(Section):
    """The bounds. Each has a clear error."""

    message: Bytes = 64 << 20
    result: Bytes = 64 << 20
    body: Bytes = Field(default_factory=lambda limits: limits["message"])
    header: Bytes = 64 << 10
    depth: Annotated[Count, Field(ge=1, le=_DEEPEST)] = 512
    polls_per_task: PerSecond = 100.0
    failed_lookups: PerSecond = 10.0
    task_creations: PerSecond | None = None
    tasks: AtLeastOne = 100_000
    tasks_per_owner: AtLeastOne | None = None
    requests: AtLeastOne = 2_000  # more than calls: who waits for all of those can still look after tasks
    requests_per_owner: AtLeastOne | None = None
    calls: AtLeastOne = 1_000
    calls_per_owner: AtLeastOne | None = None
    listens: AtLeastOne = 1_000
    listens_per_owner: AtLeastOne | None = None
    sessions: AtLeastOne = 256
    sessions_per_owner: AtLeastOne | None = None
    session_idle: SomeSeconds = 1_800.0
    connections: AtLeastOne = 10_000
    connection_idle: SomeSeconds = 660.0
    request_head: SomeSeconds = 30.0
    request_body: SomeSeconds = 60.0

    def per_owner(
        self, what: Literal["tasks", "requests", "calls", "listens", "sessions"], *, has_others: bool
    ) -> int:
        """The share of one owner: as set, else half of all, so that there is something left for others; all
        of it where there are none."""
        total: int = getattr(self, what)
        given: int | None = getattr(self, f"{what}_per_owner")
        return given or (max(1, total // 2) if has_others else total)
