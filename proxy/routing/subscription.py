"""What one listen stream was asked for, what was granted of it, and what is to be told next.

Above: `listen`, which feeds it. Below: the client's `Sink`. Subscriptions 2026-07-28, "Notification Filter",
"Acknowledgement".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy.clock import Pulse
from proxy.eras.to_modern import ServerInfo, with_subscription_id
from proxy.errors import ClientProtocolError, ErrorCode
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, elements, loads, splice
from proxy.routing.base import ClientRequest, Sink

MAX_TASK_IDS: Final = 1_000
MAX_RESOURCES: Final = 1_000
MAX_PENDING: Final = 1_000  # changes that are noted for a slow client

_LISTS: Final = {
    "toolsListChanged": (names.TOOLS_LIST_CHANGED, "tools"),
    "promptsListChanged": (names.PROMPTS_LIST_CHANGED, "prompts"),
    "resourcesListChanged": (names.RESOURCES_LIST_CHANGED, "resources"),
}
"""Filter member -> the notification it asks for, and the capability group that must declare listChanged."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a client asked for, or what was granted of it. `task_ids` None: not asked for; those that have not
    the form of ours are `upstream_ids`, which a modern server with tasks of its own may know."""

    lists: tuple[str, ...]
    resources: tuple[str, ...]
    task_ids: tuple[str, ...] | None
    upstream_ids: tuple[str, ...] = ()

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
        return bool(self.lists or self.resources or self.upstream_ids)

    def granted(self, info: ServerInfo) -> Filter:
        """Without what this server does not declare (SUB-003)."""
        lists = tuple(n for n in self.lists if info.declares(_LISTS[n][1], "listChanged"))
        resources = self.resources if info.declares("resources", "subscribe") else ()
        return Filter(lists, resources, self.task_ids)

    def wants(self, method: str, params: bytes | None) -> bool:
        """Whether a list change or resource update was asked for (SUB-001)."""
        if method == names.RESOURCES_UPDATED:
            return _names_resource(params, self.resources)
        return any(_LISTS[name][0] == method for name in self.lists)

    @property
    def list_methods(self) -> tuple[str, ...]:
        return tuple(_LISTS[name][0] for name in self.lists)

    def raw(self) -> bytes:
        body: dict[str, object] = dict.fromkeys(self.lists, True)
        if self.resources:
            body["resourceSubscriptions"] = list(self.resources)
        if self.task_ids is not None:
            body["taskIds"] = list(self.task_ids)
        return dumps(body)


class Subscription:
    """One listen request. List changes and updates are noted, and told by `flush`; task states go at once.

    `changed` beats when there is news to flush. Nothing is told before the acknowledgement (SUB-002).
    """

    def __init__(self, request: ClientRequest, sink: Sink, filter: Filter) -> None:
        self.request = request
        self.filter = filter
        self.changed = Pulse()
        self._sink = sink
        self._acknowledged = False
        self._pending: dict[tuple[str, bytes | None], None] = {}
        self._early: list[bytes | None] = []

    def grant(self, granted: Filter) -> None:
        """Narrow the filter to what the server serves; what came before the acknowledgement, too."""
        self.filter = granted
        self._pending = {change: None for change in self._pending if granted.wants(*change)}

    def acknowledge(self) -> None:
        self._tell(names.SUBSCRIPTIONS_ACKNOWLEDGED, splice(b"{}", {"notifications": self.filter.raw()}))
        self._acknowledged = True
        for params in self._early:
            self._tell(names.TASK_NOTIFICATION, params)
        self._early.clear()
        self.changed.beat()

    def on_upstream_task(self, params: bytes | None) -> None:
        """The state of a task of the upstream's own; each is told, in their order."""
        if self._acknowledged:
            self._tell(names.TASK_NOTIFICATION, params)
        elif len(self._early) < MAX_PENDING:
            self._early.append(params)

    async def notify_task(self, detailed: bytes) -> None:
        """Tell the state of a task, which the client is ready for."""
        self._tell(names.TASK_NOTIFICATION, detailed)

    def on_change(self, method: str, params: bytes | None) -> None:
        """Note a change of the owner's sessions if the client asked for it; the same one once."""
        if self.filter.wants(method, params):
            self._pending[method, params] = None
            self.changed.beat()
            if len(self._pending) > MAX_PENDING and self._acknowledged:
                self._flush_now()  # the sink has a bound of its own

    def mark_all(self) -> None:
        """All that was granted of lists may have changed."""
        for method in self.filter.list_methods:
            self._pending[method, None] = None
        self.changed.beat()

    @property
    def has_news(self) -> bool:
        return self._acknowledged and bool(self._pending)

    async def flush(self) -> None:
        """Tell what was noted, when the client has read what was told before."""
        await self._sink.ready()
        self._flush_now()

    def _flush_now(self) -> None:
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
