"""What a task's record keeps of its call, so that a later process can find it again or send it again.

PURE. A part of `task.Task`, kept while the task runs. Contract section 9: resumed, repeated, or failed with
the honest words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPEAT_MAX_BYTES: Final = 256 * 1024  # of arguments; they are stored again with each second of progress


@dataclass(frozen=True, slots=True)
class CallTrace:
    """Where the rest of the call's answer can be had: in this session of the upstream, behind this event.

    `session_id` is None where the server has no sessions; `call_id` is the id of our request there.
    `event_id` is empty where its stream has none. `is_ours`: we opened the session, and not a legacy client.
    `upstream_task` is the upstream's own 2025 task that the call has become there.
    """

    session_id: str | None
    version: str
    call_id: int
    event_id: str
    is_ours: bool
    upstream_task: str | None = None

    @property
    def can_be_found(self) -> bool:
        return bool(self.event_id) or self.upstream_task is not None


@dataclass(frozen=True, slots=True)
class Repeat:
    """What is needed to send the call of a `repeatable` tool again: its raw params, and what the client had
    declared (`ClientCapabilities.offered`)."""

    params: bytes
    offered: str


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """A modern upstream waits for answers, and nothing of the call is in flight: what the next round needs.

    `params` are those of the call, raw; `offered` what the client had declared; `state` the raw
    `requestState`, None if there is none; `keys` pairs ours with the upstream's, for each of its questions.
    """

    params: bytes
    offered: str
    state: bytes | None
    keys: tuple[tuple[str, str], ...]
