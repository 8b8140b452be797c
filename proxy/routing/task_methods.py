"""`tasks/get`, `tasks/update` and `tasks/cancel`, answered from the store alone.

Above: the router. Below: `task_changes`. Tasks extension, "Task Polling", "Task Update Requests", "Task
Cancellation".
"""

from __future__ import annotations

from typing import Final

from proxy.clock import Clock
from proxy.eras.stored import lift_stored
from proxy.eras.to_modern import lift_error
from proxy.errors import ClientProtocolError, ErrorCode
from proxy.limits import PollLimit
from proxy.protocol import names
from proxy.protocol.envelope import dumps
from proxy.routing.base import Answer, ClientRequest, ResultAnswer, Sink
from proxy.routing.task_changes import TaskChanges
from proxy.tasks import inputs, lifecycle, views
from proxy.tasks.policy import Policy
from proxy.tasks.task import InputAnswer, Task, result_size

ACKNOWLEDGED: Final = dumps({"resultType": names.COMPLETE})


class TaskMethods:
    """Handlers of the three methods. The extension was declared, or they are not called."""

    def __init__(self, changes: TaskChanges, policy: Policy, polls: PollLimit, clock: Clock) -> None:
        self._changes = changes
        self._policy = policy
        self._polls = polls
        self._clock = clock

    async def get(self, request: ClientRequest, sink: Sink) -> Answer:
        """The DetailedTask; a pure read that never touches the upstream."""
        found = await self._owned(request)
        self._polls.take(found.id)
        sink.make_room(result_size(found))
        task = await self._changes.with_result(found)
        pieces = views.get_task_result(
            task,
            self._policy.polling,
            self._clock.wall_ms(),
            lift_result=lambda raw: lift_stored(task.method, raw, task.result_outline, task.server_info),
            lift_error=lift_error,
        )
        return ResultAnswer(*pieces)

    async def update(self, request: ClientRequest, sink: Sink) -> Answer:
        """Accept answers to open questions; in effect before the acknowledgement."""
        await self._owned(request)  # an unknown task is told before anything else is judged
        responses = inputs.parse_responses(request.params)
        if responses is None:
            raise ClientProtocolError(ErrorCode.INVALID_PARAMS, "Invalid params: inputResponses is missing")

        def apply(task: Task) -> Task:
            accepted: dict[str, InputAnswer] = {}
            for question in task.inputs:
                if question.key in responses:
                    value = responses[question.key]
                    inputs.check_answer(question.key, question.method, value)
                    accepted[question.key] = InputAnswer(question.key, question.question_id, value)
            if not accepted:
                return task
            inputs.check_room(task.answers, accepted.values())
            return lifecycle.answered(task, list(accepted.values()), self._clock.wall_ms())

        await self._changes.change(request.owner, request.params.text("taskId"), apply)
        return ResultAnswer(ACKNOWLEDGED)

    async def cancel(self, request: ClientRequest, sink: Sink) -> Answer:
        """Cancel unless it has ended; acknowledged in either case (TX-CAN-003)."""

        def apply(task: Task) -> Task:
            if task.status.is_terminal:
                return task
            return self._changes.cancelled(task)

        await self._changes.change(request.owner, request.params.text("taskId"), apply)
        return ResultAnswer(ACKNOWLEDGED)

    async def _owned(self, request: ClientRequest) -> Task:
        return await self._changes.owned(request.owner, request.params.text("taskId"))
