"""What an earlier process left unfinished.

Above: `app`, before anything is served. A call that was in flight when the proxy stopped is lost to us:
whether it ran to its end nobody can know, and it is never sent again. So its task fails, and says so.
Contract section 9.
"""

from __future__ import annotations

from typing import Final

from proxy.clock import Clock
from proxy.errors import ErrorCode
from proxy.logs import get_logger, task_hash
from proxy.protocol.jsonrpc import error_object
from proxy.stores.base import TaskStore
from proxy.tasks import lifecycle
from proxy.tasks.lifecycle import TaskEvent
from proxy.tasks.policy import Policy

OUTCOME_UNKNOWN: Final = "outcome unknown: the proxy stopped while the call was running"

log = get_logger()


async def settle_unfinished(store: TaskStore, policy: Policy, clock: Clock) -> int:
    """Fail every task that is not terminal; returns how many. Raises StoreError."""
    unfinished = await store.unfinished()
    error = error_object(ErrorCode.INTERNAL_ERROR, OUTCOME_UNKNOWN)
    for task in unfinished:
        now_ms = clock.wall_ms()
        failed = lifecycle.failed(task, TaskEvent.CALL_LOST, error, OUTCOME_UNKNOWN, policy.polling, now_ms)
        await store.compare_and_set(task, failed)
        log.warning("task_failed", task=task_hash(task.id), tool=task.name, reason=OUTCOME_UNKNOWN)
    return len(unfinished)
