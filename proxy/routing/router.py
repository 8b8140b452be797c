"""What is treated specially, as a table; a method without a row goes upstream.

Above: `downstream`, with requests it has validated. Below: the handlers. What became of each request is
counted here, for both transports. Contract section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from proxy.clock import Clock
from proxy.eras.capabilities import TASKS_REQUIRED, missing_capability
from proxy.errors import ProxyError, TaskNotFound
from proxy.metrics import Metrics, Outcome
from proxy.protocol import names
from proxy.routing.base import Answer, ClientRequest, ErrorAnswer, Handler, Sink
from proxy.routing.bridge import Bridge, unknown_method
from proxy.routing.counted import counted
from proxy.routing.listen import Listen
from proxy.routing.task_methods import TaskMethods
from proxy.tasks.task import is_task_id

REMOVED: Final = frozenset(
    {
        names.INITIALIZE,
        names.PING,
        names.LOGGING_SET_LEVEL,
        names.RESOURCES_SUBSCRIBE,
        names.RESOURCES_UNSUBSCRIBE,
        names.TASKS_RESULT,
        names.TASKS_LIST,
    }
)
"""Methods of older revisions that a modern server does not have (HTTP-018, TX-CAP-013)."""


class Router:
    """Serves one validated request."""

    def __init__(
        self, bridge: Bridge, tasks: TaskMethods, listen: Listen, metrics: Metrics, clock: Clock
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._forward = bridge.forward
        self._forward_task = bridge.forward_task
        self._rows: Mapping[str, Handler] = {
            names.DISCOVER: bridge.discover,
            names.SUBSCRIPTIONS_LISTEN: listen.listen,
            names.TASKS_GET: tasks.get,
            names.TASKS_UPDATE: tasks.update,
            names.TASKS_CANCEL: tasks.cancel,
        }

    async def handle(self, request: ClientRequest, sink: Sink) -> Answer:
        """Raises ProxyError for whatever is not answered."""
        with counted(request.method, "modern", self._metrics, self._clock) as ending:
            try:
                answer = await self._serve(request, sink)
            except ProxyError as exc:
                self._metrics.refused(exc)
                raise
            ending.outcome = Outcome.ERROR if isinstance(answer, ErrorAnswer) else Outcome.RESULT
            return answer

    async def _serve(self, request: ClientRequest, sink: Sink) -> Answer:
        if request.method in REMOVED:
            raise unknown_method(request.method)
        if request.method in names.TASK_METHODS and not request.capabilities.tasks:  # TX-CAP-005
            raise missing_capability(TASKS_REQUIRED, f"{request.method} is part of the Tasks extension")
        if request.method in names.TASK_METHODS and not is_task_id(request.params.text("taskId") or ""):
            return await self._serve_foreign_task(request, sink)
        return await self._rows.get(request.method, self._forward)(request, sink)

    async def _serve_foreign_task(self, request: ClientRequest, sink: Sink) -> Answer:
        """One that cannot be ours is the server's, where it has tasks. Else it is looked up here all the
        same, in vain, and told of like any other that is not there."""
        with suppress(TaskNotFound):
            return await self._forward_task(request, sink)
        return await self._rows[request.method](request, sink)
