"""`tasks/get`, `tasks/update` and `tasks/cancel`, answered from the store alone.

Above: the router. Below: the store, and the runner for what must reach the upstream. Each change is one
compare-and-set, made again from the newer record where somebody else was first. Tasks extension, "Task
Polling", "Task Update Requests", "Task Cancellation".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from proxy.clock import Clock
from proxy.eras.to_modern import lift_error, lift_result
from proxy.errors import ClientProtocolError, ErrorCode, StoreError, TaskConflict, TaskNotFound
from proxy.limits import PollLimit
from proxy.logs import get_logger, task_hash
from proxy.protocol import names
from proxy.protocol.envelope import dumps
from proxy.routing.base import Answer, ClientRequest, ResultAnswer, Sink
from proxy.routing.runner import Runner
from proxy.stores.base import TaskStore
from proxy.tasks import inputs, lifecycle, views
from proxy.tasks.policy import Policy
from proxy.tasks.task import InputAnswer, Task, is_task_id

ACKNOWLEDGED: Final = dumps({"resultType": names.COMPLETE})

log = get_logger()


class TaskMethods:
    """Handlers of the three methods. The extension was declared, or they are not called."""

    def __init__(
        self, store: TaskStore, runner: Runner, policy: Policy, polls: PollLimit, clock: Clock
    ) -> None:
        self._store = store
        self._runner = runner
        self._policy = policy
        self._polls = polls
        self._clock = clock

    async def get(self, request: ClientRequest, sink: Sink) -> Answer:
        """The DetailedTask; a pure read that never touches the upstream."""
        task = await self._owned(request)
        self._polls.take(task.id)
        raw = views.get_task_result(
            task,
            self._policy.polling,
            self._clock.wall_ms(),
            lift_result=lambda result: lift_result(task.method, result, task.server_info),
            lift_error=lift_error,
        )
        return ResultAnswer(raw)

    async def update(self, request: ClientRequest, sink: Sink) -> Answer:
        """Accept answers to open questions; in effect before the acknowledgement."""
        await self._owned(request)  # an unknown task is told before anything else is judged
        responses = inputs.parse_responses(request.params.raw)
        if responses is None:
            raise ClientProtocolError(ErrorCode.INVALID_PARAMS, "Invalid params: inputResponses is missing")
        accepted: dict[str, InputAnswer] = {}

        def apply(task: Task) -> Task:
            accepted.clear()
            for question in task.inputs:
                if question.key in responses:
                    value = responses[question.key]
                    inputs.check_answer(question.key, question.method, value)
                    accepted[question.key] = InputAnswer(question.key, question.question_id, value)
            if not accepted:
                return task
            return lifecycle.answered(task, list(accepted.values()), self._clock.wall_ms())

        task = await self._change(request, apply)
        if accepted:
            log.info("task_input_given", task=task_hash(task.id), answers=len(accepted))
        return ResultAnswer(ACKNOWLEDGED)

    async def cancel(self, request: ClientRequest, sink: Sink) -> Answer:
        """Cancel unless it has ended; acknowledged in either case (TX-CAN-003)."""

        def apply(task: Task) -> Task:
            if task.status.is_terminal:
                return task
            return lifecycle.cancelled(task, self._policy.polling, self._clock.wall_ms())

        await self._change(request, apply)
        return ResultAnswer(ACKNOWLEDGED)

    async def _change(self, request: ClientRequest, apply: Callable[[Task], Task]) -> Task:
        """Store what `apply` makes of the task, again from the newer record after a conflict; carry it out.

        Once begun it is finished, though the client hangs up: what is stored must reach the upstream.
        """
        while True:
            task = await self._owned(request)
            new = apply(task)
            with anyio.CancelScope(shield=True):  # the store has a bound
                if await self._stored(task, new):
                    self._runner.carry_out(new)
                    return new

    async def _stored(self, task: Task, new: Task) -> bool:
        """Whether `new` is what is stored now; False after a conflict. Raises StoreError."""
        if new is task:
            return True
        try:
            await self._store.compare_and_set(task, new)
        except TaskConflict:
            return False
        except StoreError:
            self._runner.look_again(task)  # the client may come again, but need not
            raise
        return True

    async def _owned(self, request: ClientRequest) -> Task:
        """The task that the request names, if it is the client's own. Raises TaskNotFound otherwise."""
        task_id = request.params.text("taskId")
        if task_id is None or not is_task_id(task_id):
            raise TaskNotFound
        task = await self._store.get(task_id)
        if task.owner != request.owner.key:
            log.info("task_access_denied", task=task_hash(task_id))
            raise TaskNotFound
        return task
