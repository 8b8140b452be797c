"""The audit log: one line for each thing that happens to a task, among the other logs, of a shape that stays.

Above: the store, which tells every change once it is visible, whoever made it and however its write ended
(`assembly` connects the two), and `routing`, which tells what is read and what is denied. Below: `logs`.
docs/audit.md lists the events and their facts for whoever reads them. Contract section 8, "Audit events";
T25-SEC-009, T25-SEC-010.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from typing import Any, Final

from proxy.logs import get_logger, task_hash
from proxy.metrics import Denied
from proxy.owners import ANONYMOUS, Owner
from proxy.tasks.task import Task, TaskStatus, is_task_id

SHAPE: Final = 1
"""The value of the key `audit`, by which these lines are told from others. A later one may have more keys."""

MAX_READ: Final = 100_000  # tasks whose reading is kept in mind: as many as are kept at all, by default
MAX_TOOL_CHARS: Final = 200
_PURPOSE: Final = b"mcp-taskproxy audit owner 1"
_FINGERPRINT_CHARS: Final = 12
_PLAIN: Final = frozenset({ANONYMOUS.key, "local-user"})
"""Owners that are nobody in particular."""

_READABLE: Final = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED})

log = get_logger()


class Audit:
    """`secret` is the store's: an owner has the same fingerprint for as long as the store lives."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._read: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<Audit, {len(self._read)} tasks read>"

    def changed(self, before: Task | None, after: Task) -> None:
        """A task has got this state; `before` is None if it is new."""
        for event, facts in happened(before, after):
            self._tell(event, after, facts)

    def result_read(self, task: Task) -> None:
        """The owner has been given its result, or the error that it ended with. Told once for each task, as
        far as this process remembers."""
        if task.status not in _READABLE or task.id in self._read:
            return
        self._read[task.id] = None
        if len(self._read) > MAX_READ:
            del self._read[next(iter(self._read))]
        self._tell("task_result_read", task, {"status": task.status.value})

    def denied(self, owner: Owner, task_id: str | None, reason: Denied) -> None:
        """This owner has named a task that is not its own. The same is done for each reason, so that nobody
        can tell one from the other by the time it takes."""
        named = task_hash(task_id) if task_id is not None and is_task_id(task_id) else None
        who = self.fingerprint(owner.key)
        log.info("task_access_denied", audit=SHAPE, owner=who, task=named, reason=reason.value)

    def fingerprint(self, owner_key: str) -> str:
        """What stands for an owner: always the same, and of no use to whoever does not know the owner."""
        if owner_key in _PLAIN:
            return owner_key
        digest = hmac.digest(self._secret, _PURPOSE + owner_key.encode(), hashlib.sha256)
        return digest.hex()[:_FINGERPRINT_CHARS]

    def _tell(self, event: str, task: Task, facts: dict[str, Any]) -> None:
        owner, tool = self.fingerprint(task.owner), task.name[:MAX_TOOL_CHARS]
        log.info(event, audit=SHAPE, owner=owner, task=task_hash(task.id), tool=tool, **facts)


def happened(before: Task | None, after: Task) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events between two states of a task, with the facts that belong to each of them."""
    if before is None:
        yield "task_created", {}
    known, given = (set[str](), set[str]()) if before is None else (_asked(before), _given(before))
    if questions := len(_asked(after) - known):
        yield "task_input_asked", {"questions": questions}
    if answers := len(_given(after) - given):
        yield "task_input_given", {"answers": answers, "open": len(after.inputs)}
    if after.status.is_terminal and (before is None or not before.status.is_terminal):
        facts: dict[str, Any] = {"duration_ms": after.updated_at_ms - after.created_at_ms}
        if after.status is TaskStatus.COMPLETED:
            facts["tool_failed"] = after.tool_error is not None
        yield f"task_{after.status.value}", facts


def _asked(task: Task) -> set[str]:
    return {question.key for question in task.inputs}


def _given(task: Task) -> set[str]:
    return {answer.key for answer in task.answers}
