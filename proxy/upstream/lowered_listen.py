"""What a legacy client is told unasked by a modern server: one listen stream, opened anew when its wishes
change.

Above: `lowered`. Below: the session. List changes are asked for as far as the server announces them,
resources as the client subscribes to them. Subscriptions 2026-07-28; contract section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from proxy.clock import Clock, Pauses, Pulse
from proxy.eras.lowering import modern_params
from proxy.errors import ErrorCode, UpstreamError
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, loads, splice
from proxy.upstream.base import Position, Question
from proxy.upstream.session import LegacySession

ACKNOWLEDGE_S: Final = 10.0  # a server that never acknowledges has no stream
AGAIN_FIRST_S: Final = 0.5
AGAIN_LAST_S: Final = 30.0

_LISTS: Final = {
    "toolsListChanged": "tools",
    "promptsListChanged": "prompts",
    "resourcesListChanged": "resources",
}
_TOLD: Final = {
    "toolsListChanged": names.TOOLS_LIST_CHANGED,
    "promptsListChanged": names.PROMPTS_LIST_CHANGED,
    "resourcesListChanged": names.RESOURCES_LIST_CHANGED,
}

log = get_logger()


class LoweredListen:
    """`run` keeps the stream as long as the session. Implements `base.CallListener`."""

    def __init__(
        self, session: LegacySession, meta: Mapping[str, Any], clock: Clock, told: Callable[[bytes], None]
    ) -> None:
        self._session = session
        self._meta = meta
        self._clock = clock
        self._told = told
        self._uris: dict[str, None] = {}
        self._granted: frozenset[str] = frozenset()
        self._settled: frozenset[str] = frozenset()  # those of which the stream in use has shown what it does
        self._in_stream: frozenset[str] = frozenset()
        self._is_granted = False
        self._was_lost = False
        self._changed = Pulse()  # what is wanted
        self._answered = Pulse()  # what is granted, or that nothing is
        self._lists = [key for key, group in _LISTS.items() if session.info.declares(group, "listChanged")]

    async def run(self) -> None:
        """Raises nothing: without the stream the client hears less, that is all."""
        pauses = Pauses(AGAIN_FIRST_S, AGAIN_LAST_S)
        while self._session.is_alive:
            changed = self._changed.event
            if not self._lists and not self._uris:
                await changed.wait()
                continue
            ended = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen, tuple(self._uris), ended)
                await self._either(changed, ended)
                tasks.cancel_scope.cancel()
            if changed.is_set() or self._is_granted:
                pauses.over()
            if not changed.is_set():
                self._was_lost = True
                await pauses.one(self._clock, until=changed)

    async def subscribe(self, uri: str) -> bool:
        """Whether the server tells of changes of this resource from now on."""
        if uri not in self._uris:
            self._uris[uri] = None
            self._changed.beat()
        with anyio.move_on_after(ACKNOWLEDGE_S):
            while uri not in self._settled:
                await self._answered.event.wait()
        if uri in self._granted:
            return True
        self._uris.pop(uri, None)
        return False

    async def unsubscribe(self, uri: str) -> None:
        if uri in self._uris:
            del self._uris[uri]
            self._changed.beat()

    async def _either(self, changed: anyio.Event, ended: anyio.Event) -> None:
        """Until the wishes have changed, or the stream has ended."""
        async with anyio.create_task_group() as tasks:

            async def wait(event: anyio.Event) -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait, changed)
            tasks.start_soon(wait, ended)

    async def _listen(self, uris: tuple[str, ...], ended: anyio.Event) -> None:
        wanted: dict[str, object] = dict.fromkeys(self._lists, True)
        if uris:
            wanted["resourceSubscriptions"] = list(uris)
        params = modern_params(dumps({"notifications": wanted}), self._meta)
        self._in_stream, self._is_granted = frozenset(uris), False
        self._granted = self._settled = frozenset()
        try:
            await self._session.call(names.SUBSCRIPTIONS_LISTEN, params, self, want_progress=False)
        except UpstreamError as exc:
            log.info("listen_stream_lost", reason=exc.message)
        self._settle(self._granted)
        ended.set()

    def _settle(self, granted: frozenset[str]) -> None:
        self._granted, self._settled = granted, self._in_stream
        self._answered.beat()

    # -- what the server tells (base.CallListener) ----------------------------------------------------

    def on_notification(self, method: str, params: bytes | None) -> None:
        try:
            if method == names.SUBSCRIPTIONS_ACKNOWLEDGED:
                self._acknowledged(_granted(params))
                return
            if method == names.TOOLS_LIST_CHANGED:
                self._session.catalogue.forget()
            self._told(jsonrpc.notification(method, _without_subscription_id(params)))
        except (JsonError, DuplicateMember):
            return  # nothing that could be told a client

    def _acknowledged(self, granted: frozenset[str]) -> None:
        """After a loss nobody knows what happened in between (F38)."""
        was_lost, self._was_lost, self._is_granted = self._was_lost, False, True
        self._settle(granted)
        for key in self._lists if was_lost else ():
            self._told(jsonrpc.notification(_TOLD[key]))

    def on_question(self, question: Question) -> None:
        question.refuse(jsonrpc.error_object(ErrorCode.METHOD_NOT_FOUND, "a listen stream answers nothing"))

    def on_withdrawn(self, question: Question) -> None:
        """Was refused."""

    def on_position(self, position: Position) -> None:
        """A listen stream is not resumed."""


def _granted(params: bytes | None) -> frozenset[str]:
    """The resources that the server acknowledged."""
    told = RawObject.parse(params or b"{}").object("notifications")
    raw = told.get("resourceSubscriptions") if told is not None else None
    uris = loads(raw) if raw is not None else []
    return frozenset(uri for uri in uris if isinstance(uri, str)) if isinstance(uris, list) else frozenset()


def _without_subscription_id(params: bytes | None) -> bytes | None:
    """The id is between the server and us."""
    if params is None or names.META_SUBSCRIPTION_ID.encode() not in params:
        return params
    meta = RawObject.parse(params).object(names.META)
    left = splice(meta.raw if meta is not None else b"{}", {names.META_SUBSCRIPTION_ID: None})
    return splice(params, {names.META: None if left == b"{}" else left})
