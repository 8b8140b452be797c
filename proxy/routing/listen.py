"""`subscriptions/listen`: list changes, resource updates and task states on one stream.

Above: the router; the handler returns only when the proxy ends the stream, as it does when the token of its
client expires. Below: a leased session that
list changes and resource updates come from, the store's watch for tasks, and the `Subscription` that both
feed. Subscriptions 2026-07-28; Tasks extension, "Task Status Notifications".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.abc import TaskStatus as StartStatus

from proxy.audit import Audit
from proxy.clock import Clock, Pauses
from proxy.eras.capabilities import TASKS_REQUIRED, missing_capability
from proxy.eras.era import Era
from proxy.eras.stored import lift_stored
from proxy.eras.to_modern import lift_error, with_subscription_id
from proxy.errors import LimitReached, TaskNotFound, UpstreamError, only_fault
from proxy.logs import get_logger
from proxy.metrics import UNSERVED, Denied, Metrics
from proxy.protocol import names
from proxy.protocol.envelope import dumps, splice
from proxy.routing.base import Answer, ClientRequest, ResultAnswer, Sink
from proxy.routing.listen_upstream import listening_upstream
from proxy.routing.subscription import Filter, Subscription
from proxy.stores.base import TaskStore, Watch
from proxy.tasks import views
from proxy.tasks.policy import Policy
from proxy.tasks.task import Task, is_task_id, result_size
from proxy.upstream.pool import Pool
from proxy.upstream.session import LegacySession

COALESCE_S: Final = 0.05  # several sessions of one owner tell the same list change at the same time
RECONNECT_FIRST_S: Final = 0.5
RECONNECT_LAST_S: Final = 30.0
UNSUBSCRIBE_TIMEOUT_S: Final = 10.0  # all of them together; a server that ignores it must not hold us up

log = get_logger()


@dataclass(frozen=True, slots=True)
class _Told:
    """What the client knows of a task, from the last notification or since before the acknowledgement."""

    revision: int
    shown: tuple[object, ...]

    @classmethod
    def of(cls, task: Task) -> _Told:
        return cls(task.revision, (task.status, task.status_message, task.inputs))

    def is_passed_by(self, task: Task) -> bool:
        """Whether `task` is newer, and differs in what is told of (TX-NOT-001)."""
        return task.revision > self.revision and _Told.of(task).shown != self.shown


_NOTHING: Final = _Told(-1, ())


class Listen:
    """The handler, and the orderly end of all its streams, of which `streams` are open."""

    def __init__(
        self,
        pool: Pool,
        store: TaskStore,
        policy: Policy,
        clock: Clock,
        audit: Audit,
        metrics: Metrics = UNSERVED,
        upstream_era: Callable[[], Era | None] = lambda: Era.LEGACY,
    ) -> None:
        """`upstream_era`: what is known of it now."""
        self._metrics = metrics
        self._audit = audit
        self._upstream_era = upstream_era
        self._pool = pool
        self._store = store
        self._policy = policy
        self._clock = clock
        self._shutdown = anyio.Event()
        self.streams = 0

    def shut_down(self) -> None:
        """End every stream with its result (SUB-006)."""
        self._shutdown.set()

    async def listen(self, request: ClientRequest, sink: Sink) -> Answer:
        asked = Filter.parse(request.params)
        if asked.task_ids is not None and not request.capabilities.tasks:
            raise missing_capability(TASKS_REQUIRED, "taskIds in subscriptions/listen")
        named = [i for i in asked.task_ids or () if is_task_id(i)]
        async with self._store.watch(named) as watch:  # from before the owner is checked: no change is missed
            own = await self._own_tasks(request, named, sink)
            granted_ids = None if asked.task_ids is None else tuple(own)
            others = tuple(i for i in asked.task_ids or () if not is_task_id(i))
            if self._upstream_era() is Era.LEGACY:
                self._deny(request, others, Denied.UNKNOWN, sink)
                others = ()
            wanted = Filter(asked.lists, asked.resources, granted_ids, others)
            subscription = Subscription(request, sink, wanted)
            self.streams += 1
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._serve, subscription, watch, own, sink)
                    await self._end_of(request)
                    tasks.cancel_scope.cancel()
            except BaseExceptionGroup as group:
                raise only_fault(group) from None
            finally:
                self.streams -= 1
        result = splice(b"{}", {"resultType": dumps(names.COMPLETE)})
        return ResultAnswer(with_subscription_id(result, request.id.raw))

    async def _end_of(self, request: ClientRequest) -> None:
        if request.good_for_s is None:
            await self._shutdown.wait()
        else:
            await self._clock.wait(self._shutdown, request.good_for_s)

    async def _serve(
        self, subscription: Subscription, watch: Watch, own: dict[str, _Told], sink: Sink
    ) -> None:
        async with anyio.create_task_group() as tasks:
            if subscription.filter.wants_upstream:
                await tasks.start(self._feed_from_upstream, subscription, sink)
            subscription.acknowledge()
            await self._tell_tasks(subscription, watch, own, sink)

    # -- tasks --------------------------------------------------------------------------------------

    async def _own_tasks(self, request: ClientRequest, ids: list[str], sink: Sink) -> dict[str, _Told]:
        """The client's own among these. Of those that have ended already nothing counts as told.

        Foreign and unknown ids are left out, and cannot be told apart (TX-NOT-003).
        """
        own: dict[str, _Told] = {}
        for task_id in ids:
            try:
                task = await self._store.get(task_id, result=False)
            except TaskNotFound:
                self._deny(request, [task_id], Denied.UNKNOWN, sink)
                continue
            if task.owner == request.owner.key:
                own[task_id] = _NOTHING if task.status.is_terminal else _Told.of(task)
            else:
                self._deny(request, [task_id], Denied.FOREIGN, sink)
        return own

    def _deny(self, request: ClientRequest, ids: Iterable[str], reason: Denied, sink: Sink) -> None:
        for task_id in ids:
            self._metrics.lookup_denied(reason)
            self._audit.denied(request.owner, task_id, reason)
            sink.lookup_failed()

    async def _tell_tasks(
        self, subscription: Subscription, watch: Watch, own: dict[str, _Told], sink: Sink
    ) -> None:
        """Every later state, once and in order. Never returns.

        A task that has ended already will not change again, and might be waited for: it is told at once.
        """
        for task_id in [task_id for task_id, told in own.items() if told is _NOTHING]:
            with suppress(TaskNotFound):  # expired since
                own[task_id] = await self._tell(
                    subscription, await self._store.get(task_id, result=False), sink
                )
        while True:
            task = await watch.receive()
            if task.id in own and own[task.id].is_passed_by(task):
                own[task.id] = await self._tell(subscription, task, sink)

    async def _tell(self, subscription: Subscription, task: Task, sink: Sink) -> _Told:
        """The whole task as `tasks/get` would tell it, when the client has read what was told before."""
        await sink.ready()
        await self._make_room(task, sink)
        if task.status.is_terminal and task.result is None:  # a watch hands records out without results
            with suppress(TaskNotFound):  # expired this very moment: told as it was, without its result
                task = await self._store.get(task.id)
        detailed = views.detailed_task(
            task,
            self._policy.polling,
            self._clock.wall_ms(),
            lift_result=lambda raw: lift_stored(task.method, raw, task.result_outline, task.server_info),
            lift_error=lift_error,
        )
        await subscription.notify_task(detailed)
        self._audit.result_read(task)
        return _Told.of(task)

    async def _make_room(self, task: Task, sink: Sink) -> None:
        """Wait for it, if the client holds too much elsewhere: it may poll, and what it does not read is cut
        after a while."""
        while True:
            try:
                sink.make_room(result_size(task))
                return
            except LimitReached as exc:
                await self._clock.sleep(exc.retry_after_s)

    # -- lists and resources ------------------------------------------------------------------------

    async def _feed_from_upstream(
        self, subscription: Subscription, sink: Sink, *, task_status: StartStatus[None]
    ) -> None:
        """Keep a session for the stream, and a new one when it is lost; started when the first is there.

        After a loss the client is told once that its lists may have changed: what happened in between is
        not known (F38).
        """
        request = subscription.request
        pauses, first = Pauses(RECONNECT_FIRST_S, RECONNECT_LAST_S), True
        self._pool.listen(request.owner, subscription.on_change)
        try:
            while True:
                try:
                    async with (
                        self._pool.lease(request.owner, request.capabilities, for_call=False) as session,
                        _fed(session, subscription) as granted,
                    ):
                        if first:
                            if not session.info.has_tasks:
                                self._deny(request, subscription.filter.upstream_ids, Denied.UNKNOWN, sink)
                            subscription.grant(granted)
                            first = False
                            task_status.started()
                        else:
                            subscription.mark_all()
                        pauses.over()
                        await self._flush_until_lost(session, subscription)
                except UpstreamError as exc:
                    if first:
                        raise
                    log.info("listen_session_lost", reason=exc.message)
                await pauses.one(self._clock)
        finally:
            self._pool.unlisten(request.owner, subscription.on_change)

    async def _flush_until_lost(self, session: LegacySession, subscription: Subscription) -> None:
        async with anyio.create_task_group() as tasks:

            async def flush() -> None:
                while True:
                    changed = subscription.changed.event
                    if subscription.has_news:
                        await self._clock.sleep(COALESCE_S)
                        await subscription.flush()
                    else:
                        await changed.wait()

            tasks.start_soon(flush)
            await session.wait_ended()
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _fed(session: LegacySession, subscription: Subscription) -> AsyncIterator[Filter]:
    """Have the session tell what was asked for; yields what the server grants of it."""
    if session.info.era is Era.MODERN:
        async with listening_upstream(session, subscription) as granted:
            yield granted
    else:
        async with _subscribed(session, subscription.filter.granted(session.info)) as granted:
            yield granted


@asynccontextmanager
async def _subscribed(session: LegacySession, granted: Filter) -> AsyncIterator[Filter]:
    """Subscribe to the filter's resources; yields the filter with those that the server accepted."""
    accepted: list[str] = []
    try:
        for uri in granted.resources:
            try:
                await session.watch_resource(uri)
                accepted.append(uri)
            except UpstreamError as exc:
                if not session.is_alive:
                    raise
                log.info("resource_not_subscribed", reason=exc.message)
        yield Filter(granted.lists, tuple(accepted), granted.task_ids)
    finally:
        with anyio.move_on_after(UNSUBSCRIBE_TIMEOUT_S, shield=True):
            for uri in accepted:
                await session.unwatch_resource(uri)
