"""Which requests are answered from the store alone, so that no server judges whose token they come with.

Above: `downstream`, which then asks whether the token is still good for anything. Contract section 8.
"""

from __future__ import annotations

from typing import Final

from proxy.protocol import names
from proxy.protocol.envelope import RawObject
from proxy.routing.in_flight import text_of
from proxy.tasks.task import is_task_id

OF_TASKS: Final = names.TASK_METHODS | names.TASK_METHODS_2025
_OF_SEVERAL: Final = frozenset({names.TASKS_LIST, names.SUBSCRIPTIONS_LISTEN})
MAY_BE_OURS: Final = OF_TASKS | _OF_SEVERAL
"""Methods of both eras that may be about tasks of ours."""


def concerns_our_tasks(method: str, params: RawObject | bytes | None) -> bool:
    """Whether a request of one of MAY_BE_OURS is about a task that is ours, or may be."""
    return method in _OF_SEVERAL or (params is not None and is_task_id(text_of(params, "taskId") or ""))
