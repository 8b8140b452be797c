"""2025 tasks: made, read, waited for, cancelled and answered in the dialect of 2025-11-25.

Above: `task_session`, one for each legacy client. Below: the store and the runner, as for modern tasks; so an
owner reaches a task by either dialect. Nothing in here knows how a client is connected. MCP 2025-11-25,
"Tasks"; contract section 5.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import anyio

from proxy.clock import Clock, Pauses
from proxy.eras.capabilities import any_capabilities
from proxy.eras.stored import relate_stored
from proxy.eras.tasks_2025 import without_related_task
from proxy.errors import (
    ClientProtocolError,
    ErrorCode,
    IllegalTransition,
    ProxyError,
    StoreError,
    TaskNotFound,
    UpstreamUnavailable,
)
from proxy.limits import PollLimit
from proxy.logs import get_logger, task_hash
from proxy.owners import Owner
from proxy.protocol import names
from proxy.protocol.envelope import RawObject
from proxy.protocol.jsonrpc import RequestId, error_object
from proxy.routing.base import Answer, ClientRequest, ErrorAnswer, ResultAnswer
from proxy.routing.companion import Client, Companion, Relay
from proxy.routing.live import LiveCall, Place
from proxy.routing.offers import Channel, is_offer
from proxy.routing.runner import Runner
from proxy.routing.task_changes import TaskChanges
from proxy.routing.task_quota import TaskQuota
from proxy.stores.base import TaskStore
from proxy.tasks import inputs, lifecycle, views_2025
from proxy.tasks.policy import Policy, ToolPolicy
from proxy.tasks.task import ID_PREFIX, ID_RANDOM_BYTES, InputAnswer, Task, TaskStatus
from proxy.upstream.session import LegacySession

PAGE: Final = 100
HOLD_S: Final = 0.5  # for the answer that has the task's id to arrive, if its client says nothing sooner
RETRY_FIRST_S: Final = 0.2
RETRY_LAST_S: Final = 10.0

log = get_logger()


class Tasks2025:
    """What all 2025 sessions share. Every method raises TaskNotFound for what is not the owner's."""

    def __init__(
        self,
        store: TaskStore,
        runner: Runner,
        changes: TaskChanges,
        policy: Policy,
        polls: PollLimit,
        clock: Clock,
        quota: TaskQuota | None = None,
    ) -> None:
        self._store = store
        self._runner = runner
        self._changes = changes
        self.policy = policy
        self._polls = polls
        self._clock = clock
        self._quota = quota or TaskQuota(store, clock)
        self._companions: dict[str, Companion] = {}
        self._waits: set[anyio.CancelScope] = set()

    def __repr__(self) -> str:
        return f"<Tasks2025 {len(self._companions)} companions>"

    # -- making one ---------------------------------------------------------------------------------

    async def create(
        self,
        owner: Owner,
        client: Client,
        params: RawObject,
        *,
        rid: RequestId,
        tool: ToolPolicy,
        place: Place,
        offered: str,
        retention_ms: int,
    ) -> Answer:
        """Store the task, send its call, answer CreateTaskResult. `offered` is what the server was told of
        the client. Raises LimitReached or StoreError; then nothing was sent upstream."""
        name = params.text("name") or ""
        request = ClientRequest(rid, names.TOOLS_CALL, params, owner, any_capabilities(offered))
        call = LiveCall(request, name, tool, want_progress=True, check=_unchecked, place=place)
        task = lifecycle.created(
            id=ID_PREFIX + secrets.token_urlsafe(ID_RANDOM_BYTES),
            owner=owner.key,
            method=names.TOOLS_CALL,
            name=name,
            now_ms=self._clock.wall_ms(),
            retention_ms=retention_ms,
            repeat=call.repeat,
        )
        call.converting = True
        with self._runner.admitted(call):
            await self._quota.take(owner)
            with anyio.CancelScope(shield=True):  # what is stored has its call sent, whoever still listens
                try:
                    await self._store.create(task)
                except StoreError as exc:
                    log.error("task_not_stored", tool=name, reason=exc.message)
                    raise StoreError("the task could not be stored; the call was not sent") from exc
                self._runner.follow(call, task)
                companion = self._companion(task, owner)
                companion.join(client)
                companion.maker, companion.held = client, True
                self._runner.spawn(self._release, companion)
                call.listen(Relay(companion, _progress_token(params)))
                self._runner.start(call)
        return ResultAnswer(views_2025.create_task_result(task, self.policy.polling, self._clock.wall_ms()))

    # -- reading ------------------------------------------------------------------------------------

    async def get(self, owner: Owner, client: Client, task_id: str | None) -> Answer:
        task = await self._changes.owned(owner, task_id)
        self._polls.take(task.id)
        self._attend(task, owner, client)
        return ResultAnswer(self._shown(task))

    async def result(
        self, owner: Owner, client: Client, task_id: str | None, stream: Channel | None
    ) -> Answer:
        """What the call would have returned; waits until the task is terminal, however long that is.

        Meanwhile the task's questions come on `stream`. The wait may be cancelled at any time, and made
        again: the task does not notice.
        """
        task = await self._changes.owned(owner, task_id)
        companion = self._attend(task, owner, client)
        if companion is not None and stream is not None:
            companion.open_stream(client, stream)
        try:
            await self.ended(task.id)
        finally:
            if companion is not None and stream is not None:
                companion.close_stream(client, stream)
        return _outcome_of(await self._changes.with_result(await self._changes.owned(owner, task_id)))

    async def ended(self, task_id: str) -> None:
        """Wait until it is terminal. Raises TaskNotFound, StoreError, and UpstreamUnavailable if we stop."""
        with anyio.CancelScope() as wait:
            self._waits.add(wait)
            try:
                async with self._store.watch([task_id]) as watch:
                    task = await self._store.get(task_id, result=False)
                    while not task.status.is_terminal:
                        task = await watch.receive()
            finally:
                self._waits.discard(wait)
        if wait.cancelled_caught:
            raise UpstreamUnavailable("the proxy shuts down; the task is kept: ask for its result again")

    def give_up_waiting(self) -> None:
        """At the end of the drain: who waits for a result is told to come back."""
        for wait in self._waits:
            wait.cancel()

    async def page(self, owner: Owner, after: str | None) -> tuple[Sequence[bytes], str | None]:
        """Some of the owner's tasks, oldest first, from behind `after`; and behind which the next ones are.

        Raises TaskNotFound if `after` is gone.
        """
        tasks = await self._store.owned(owner.key, after=after, limit=PAGE + 1)
        page = tasks[:PAGE]
        return [self._shown(task) for task in page], page[-1].id if len(tasks) > PAGE else None

    def _shown(self, task: Task) -> bytes:
        return views_2025.task_object(task, self.policy.polling, self._clock.wall_ms())

    # -- changing -----------------------------------------------------------------------------------

    async def cancel(self, owner: Owner, task_id: str | None) -> Answer:
        """The task, cancelled. Raises ClientProtocolError -32602 if it has ended (T25-CAN-001)."""
        try:
            task = await self._changes.change(owner, task_id, self._changes.cancelled)
        except IllegalTransition:
            ended = await self._changes.owned(owner, task_id)
            raise ClientProtocolError(
                ErrorCode.INVALID_PARAMS,
                f"Cannot cancel the task: it is {views_2025.status_of(ended)} already",
            ) from None
        return ResultAnswer(self._shown(task))

    def take_answer(self, owner: Owner, rid: RequestId, result: bytes | None, error: bytes | None) -> bool:
        """Take an answer to a question of ours; False if it answers one of the upstream's. It is stored
        before it goes upstream, and goes there once, whoever answers first; what comes too late, or from
        another owner, is dropped (F16)."""
        if not is_offer(rid) or not isinstance(rid.value, str):
            return False
        for companion in self._companions.values():
            if companion.owner == owner and (key := companion.offers.take(rid.value)) is not None:
                if result is not None:
                    self._runner.spawn(self._answer, companion, key, without_related_task(result))
                else:
                    assert error is not None  # a response is one or the other
                    self._runner.refuse(companion.task_id, key, error)
                return True
        log.debug("late_answer_dropped")
        return True

    async def _answer(self, companion: Companion, key: str, value: bytes) -> None:
        """Store the answer. While the store is broken it is kept here: the user is not asked twice."""

        def apply(task: Task) -> Task:
            given = [InputAnswer(q.key, q.question_id, value) for q in task.inputs if q.key == key]
            inputs.check_room(task.answers, given)
            return lifecycle.answered(task, given, self._clock.wall_ms())

        pauses = Pauses(RETRY_FIRST_S, RETRY_LAST_S)
        while True:
            try:
                await self._changes.change(companion.owner, companion.task_id, apply)
                return
            except TaskNotFound:
                return
            except ClientProtocolError as exc:  # who answers gets no answer; so the asker is told
                refusal = error_object(ErrorCode.INTERNAL_ERROR, exc.message)
                self._runner.refuse(companion.task_id, key, refusal)
                return
            except StoreError as exc:
                log.error("answer_not_stored", task=task_hash(companion.task_id), reason=exc.message)
                await pauses.one(self._clock)

    # -- who is told --------------------------------------------------------------------------------

    def channels_changed(self, client: Client) -> None:
        """A way to this client was opened or has closed."""
        for companion in list(self._companions.values()):
            if client in companion.clients:
                companion.offer()

    def leave(self, client: Client) -> None:
        """The client's session is over. Its tasks go on."""
        for companion in list(self._companions.values()):
            companion.leave(client)
            companion.offer()

    def _attend(self, task: Task, owner: Owner, client: Client) -> Companion | None:
        """Tell this client from now on what becomes of the task; None if it has ended."""
        if task.status.is_terminal:
            return None
        companion = self._companion(task, owner)
        companion.join(client)
        companion.release()
        return companion

    async def _release(self, companion: Companion) -> None:
        """Some clients answer questions of a task that they do not know yet by themselves."""
        await self._clock.sleep(HOLD_S)
        companion.release()

    def _companion(self, task: Task, owner: Owner) -> Companion:
        companion = self._companions.get(task.id)
        if companion is None:
            companion = self._companions[task.id] = Companion(task.id, owner)
            self._runner.spawn(self._accompany, companion)
        return companion

    async def _accompany(self, companion: Companion) -> None:
        pauses = Pauses(RETRY_FIRST_S, RETRY_LAST_S)
        try:
            while True:
                try:
                    await companion.run(self._store, self.policy, self._clock)
                    return
                except TaskNotFound:
                    return
                except StoreError:
                    await pauses.one(self._clock)
        finally:
            del self._companions[companion.task_id]


async def _unchecked(request: ClientRequest, session: LegacySession) -> None:
    """The server judges what a client of its own era asks."""


def _progress_token(params: RawObject) -> bytes | None:
    meta = params.object(names.META)
    return None if meta is None else meta.get(names.META_PROGRESS_TOKEN)


def _outcome_of(task: Task) -> Answer:
    """Of a task that is terminal (T25-RES-001, T25-RES-004 to T25-RES-006)."""
    if task.status is TaskStatus.CANCELLED:
        raise ProxyError("The task was cancelled")
    if task.error is not None:
        return ErrorAnswer(task.error, HTTPStatus.OK)
    assert task.result is not None  # it is completed
    outline, info = task.result_outline, task.server_info
    return ResultAnswer(*relate_stored(task.method, task.result, outline, info, task.id))
