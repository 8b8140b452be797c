"""`subscriptions/listen`: list changes, resource updates and task states on one stream.

Above: the router; the handler returns only when the proxy ends the stream. Below: a leased session that
list changes and resource updates come from, and the store's watch for tasks. Subscriptions 2026-07-28;
Tasks extension, "Task Status Notifications".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock, Pulse
from proxy.eras.capabilities import TASKS_REQUIRED, missing_capability
from proxy.eras.to_modern import ServerInfo, lift_error, lift_result, with_subscription_id
from proxy.errors import ClientProtocolError, ErrorCode, TaskNotFound, UpstreamError, only_fault
from proxy.logs import get_logger
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, elements, loads, splice
from proxy.routing.base import Answer, ClientRequest, ResultAnswer, Sink
from proxy.stores.base import TaskStore, Watch
from proxy.tasks import views
from proxy.tasks.policy import Policy
from proxy.tasks.task import Task, is_task_id
from proxy.upstream.pool import Pool
from proxy.upstream.session import LegacySession

COALESCE_S: Final = 0.05  # several sessions of one owner tell the same list change at the same time
RECONNECT_FIRST_S: Final = 0.5
RECONNECT_LAST_S: Final = 30.0
MAX_TASK_IDS: Final = 1_000
MAX_RESOURCES: Final = 1_000

_LISTS: Final = {
    "toolsListChanged": (names.TOOLS_LIST_CHANGED, "tools"),
    "promptsListChanged": (names.PROMPTS_LIST_CHANGED, "prompts"),
    "resourcesListChanged": (names.RESOURCES_LIST_CHANGED, "resources"),
}
"""Filter member -> the notification it asks for, and the capability group that must declare listChanged."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class Filter:
    """What a client asked for, or what was granted of it. `task_ids` None: not asked for."""

    lists: tuple[str, ...]
    resources: tuple[str, ...]
    task_ids: tuple[str, ...] | None

    @classmethod
    def parse(cls, params: RawObject) -> Filter:
        """Raises ClientProtocolError -32602 naming what is wrong. Unknown members are ignored."""
        try:
            asked = params.object("notifications")
            if asked is None:
                raise _invalid("notifications is not an object")
            lists = tuple(name for name in _LISTS if asked.get(name) == b"true")
            return cls(
                lists,
                _strings(asked, "resourceSubscriptions", MAX_RESOURCES) or (),
                _strings(asked, "taskIds", MAX_TASK_IDS),
            )
        except (JsonError, DuplicateMember) as exc:
            raise _invalid(str(exc)) from exc

    @property
    def wants_upstream(self) -> bool:
        return bool(self.lists or self.resources)

    def granted(self, info: ServerInfo) -> Filter:
        """Without what this server does not declare (SUB-003)."""
        lists = tuple(n for n in self.lists if info.declares(_LISTS[n][1], "listChanged"))
        resources = self.resources if info.declares("resources", "subscribe") else ()
        return Filter(lists, resources, self.task_ids)

    def raw(self) -> bytes:
        body: dict[str, object] = dict.fromkeys(self.lists, True)
        if self.resources:
            body["resourceSubscriptions"] = list(self.resources)
        if self.task_ids is not None:
            body["taskIds"] = list(self.task_ids)
        return dumps(body)


class Listen:
    """The handler, and the orderly end of all its streams."""

    def __init__(self, pool: Pool, store: TaskStore, policy: Policy, clock: Clock) -> None:
        self._pool = pool
        self._store = store
        self._policy = policy
        self._clock = clock
        self._shutdown = anyio.Event()

    def shut_down(self) -> None:
        """End every stream with its result (SUB-006)."""
        self._shutdown.set()

    async def listen(self, request: ClientRequest, sink: Sink) -> Answer:
        asked = Filter.parse(request.params)
        if asked.task_ids is not None and not request.capabilities.tasks:
            raise missing_capability(TASKS_REQUIRED, "taskIds in subscriptions/listen")
        named = [i for i in asked.task_ids or () if is_task_id(i)]
        async with self._store.watch(named) as watch:  # from before the owner is checked: no change is missed
            own = await self._own_tasks(request, named)
            granted_ids = None if asked.task_ids is None else tuple(own)
            stream = _Stream(request, sink, Filter(asked.lists, asked.resources, granted_ids))
            try:
                await self._serve(stream, watch, own)
            except BaseExceptionGroup as group:
                raise only_fault(group) from None
        result = splice(b"{}", {"resultType": dumps(names.COMPLETE)})
        return ResultAnswer(with_subscription_id(result, request.id.raw))

    async def _serve(self, stream: _Stream, watch: Watch, own: dict[str, Task]) -> None:
        """Until the proxy shuts down, or the client goes (then this is cancelled)."""
        async with anyio.create_task_group() as tasks:

            async def tell_tasks() -> None:
                for task in own.values():
                    if task.status.is_terminal:  # it will not change again, and might be waited for
                        stream.notify_task(await self._render(task))
                while True:
                    task = await watch.receive()
                    if task.id in own:
                        stream.notify_task(await self._render(task))

            if stream.filter.wants_upstream:
                await tasks.start(self._feed_from_upstream, stream)
            stream.acknowledge()
            tasks.start_soon(tell_tasks)
            await self._shutdown.wait()
            tasks.cancel_scope.cancel()

    async def _own_tasks(self, request: ClientRequest, ids: list[str]) -> dict[str, Task]:
        """Foreign and unknown ids are left out, and cannot be told apart (TX-NOT-003)."""
        own: dict[str, Task] = {}
        for task_id in ids:
            with suppress(TaskNotFound):
                task = await self._store.get(task_id)
                if task.owner == request.owner.key:
                    own[task_id] = task
        return own

    async def _render(self, task: Task) -> bytes:
        """The whole task as `tasks/get` would tell it now; a watch hands records out without results."""
        if task.status.is_terminal:
            with suppress(TaskNotFound):  # expired this very moment: told as it was, without its result
                task = await self._store.get(task.id)
        return views.detailed_task(
            task,
            self._policy.polling,
            self._clock.wall_ms(),
            lift_result=lambda result: lift_result(task.method, result, task.server_info),
            lift_error=lift_error,
        )

    async def _feed_from_upstream(self, stream: _Stream, *, task_status: StartStatus[None]) -> None:
        """Keep a session for the stream, and a new one when it is lost; started when the first is there.

        After a loss the client is told once that its lists may have changed: what happened in between is
        not known (F38).
        """
        request = stream.request
        delay_s, first = RECONNECT_FIRST_S, True
        self._pool.listen(request.owner, stream.on_change)
        try:
            while True:
                try:
                    async with (
                        self._pool.lease(request.owner, request.capabilities, for_call=False) as session,
                        _subscribed(session, stream.filter.granted(session.info)) as granted,
                    ):
                        if first:
                            stream.filter, first = granted, False
                            task_status.started()
                        else:
                            stream.mark_all()
                        delay_s = RECONNECT_FIRST_S
                        await self._flush_until_lost(session, stream)
                except UpstreamError as exc:
                    if first:
                        raise
                    log.info("listen_session_lost", reason=exc.message)
                await self._clock.sleep(delay_s)
                delay_s = min(delay_s * 2, RECONNECT_LAST_S)
        finally:
            self._pool.unlisten(request.owner, stream.on_change)

    async def _flush_until_lost(self, session: LegacySession, stream: _Stream) -> None:
        async with anyio.create_task_group() as tasks:

            async def flush() -> None:
                while True:
                    changed = stream.changed.event
                    if not stream.has_news:
                        await changed.wait()
                        await self._clock.sleep(COALESCE_S)
                    stream.flush()

            tasks.start_soon(flush)
            await session.wait_ended()
            tasks.cancel_scope.cancel()


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
        with anyio.CancelScope(shield=True):  # each has its own bound (session.SETTING_TIMEOUT_S)
            for uri in accepted:
                await session.unwatch_resource(uri)


class _Stream:
    """One listen request: what it was granted, and what is to be told next."""

    def __init__(self, request: ClientRequest, sink: Sink, filter: Filter) -> None:
        self.request = request
        self.filter = filter
        self.changed = Pulse()
        self._sink = sink
        self._pending: dict[tuple[str, bytes | None], None] = {}

    def acknowledge(self) -> None:
        params = splice(b"{}", {"notifications": self.filter.raw()})
        self._tell(names.SUBSCRIPTIONS_ACKNOWLEDGED, params)

    def notify_task(self, detailed: bytes) -> None:
        self._tell(names.TASK_NOTIFICATION, detailed)

    def on_change(self, method: str, params: bytes | None) -> None:
        """Note a change of the owner's sessions if the client asked for it (SUB-001)."""
        if method == names.RESOURCES_UPDATED:
            wanted = _names_resource(params, self.filter.resources)
        else:
            wanted = any(_LISTS[name][0] == method for name in self.filter.lists)
        if wanted:
            self._pending[method, params] = None
            self.changed.beat()

    def mark_all(self) -> None:
        for name in self.filter.lists:
            self._pending[_LISTS[name][0], None] = None
        self.changed.beat()

    @property
    def has_news(self) -> bool:
        return bool(self._pending)

    def flush(self) -> None:
        pending, self._pending = self._pending, {}
        for method, params in pending:
            self._tell(method, params)

    def _tell(self, method: str, params: bytes | None) -> None:
        self._sink.notify(method, with_subscription_id(params, self.request.id.raw))


def _names_resource(params: bytes | None, uris: tuple[str, ...]) -> bool:
    """Whether an update names a subscribed resource, or a part of one (2026-07-28, `resources/updated`)."""
    try:
        uri = RawObject.parse(params or b"{}").text("uri")
    except (JsonError, DuplicateMember):
        return False
    return uri is not None and any(uri == u or uri.startswith(u.rstrip("/") + "/") for u in uris)


def _strings(obj: RawObject, name: str, most: int) -> tuple[str, ...] | None:
    raw = obj.get(name)
    if raw is None or raw == b"null":
        return None
    if raw[:1] != b"[":
        raise _invalid(f"notifications.{name} is not an array of strings")
    parts = elements(raw)
    if len(parts) > most or any(p[:1] != b'"' for p in parts):
        raise _invalid(f"notifications.{name} is not an array of at most {most} strings")
    return tuple(dict.fromkeys(str(loads(p)) for p in parts))


def _invalid(message: str) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.INVALID_PARAMS, f"Invalid params: {message}")
