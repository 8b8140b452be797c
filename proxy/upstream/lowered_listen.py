"""What a legacy client is told unasked by a modern server: one listen stream, opened anew when its wishes
change.

Above: `lowered`. Below: the session. List changes are asked for as far as the server announces them,
resources as the client subscribes to them. Subscriptions 2026-07-28; contract section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from proxy.clock import Clock, Pulse
from proxy.eras.lowering import modern_params
from proxy.errors import ErrorCode, UpstreamError
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, loads, splice
from proxy.upstream.base import Question, StreamPosition
from proxy.upstream.session import LegacySession

ACKNOWLEDGE_S: Final = 10.0  # a server that never acknowledges has no stream
AGAIN_FIRST_S: Final = 0.5
AGAIN_LAST_S: Final = 30.0

_LISTS: Final = {
    "toolsListChanged": "tools",
    "promptsListChanged": "prompts",
    "resourcesListChanged": "resources",
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
        self._acknowledged = anyio.Event()
        self._changed = Pulse()
        self._lists = [key for key, group in _LISTS.items() if session.info.declares(group, "listChanged")]

    async def run(self) -> None:
        """Raises nothing: without the stream the client hears less, that is all."""
        delay_s = AGAIN_FIRST_S
        while self._session.is_alive:
            changed = self._changed.event
            if not self._lists and not self._uris:
                await changed.wait()
                continue
            ended = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen, ended)
                if await self._either(changed, ended):
                    delay_s = AGAIN_FIRST_S
                tasks.cancel_scope.cancel()
            if ended.is_set() and not changed.is_set():
                await self._clock.wait(changed, delay_s)
                delay_s = min(delay_s * 2, AGAIN_LAST_S)

    async def subscribe(self, uri: str) -> bool:
        """Whether the server tells of changes of this resource from now on."""
        if uri not in self._uris:
            self._uris[uri] = None
            await self._ask_anew()
        if uri in self._granted:
            return True
        self._uris.pop(uri, None)
        return False

    async def unsubscribe(self, uri: str) -> None:
        if self._uris.pop(uri, 0) is None:
            self._acknowledged = anyio.Event()
            self._changed.beat()

    async def _ask_anew(self) -> None:
        self._acknowledged = anyio.Event()
        self._changed.beat()
        with anyio.move_on_after(ACKNOWLEDGE_S):
            await self._acknowledged.wait()

    async def _either(self, changed: anyio.Event, ended: anyio.Event) -> bool:
        """Whether the wishes have changed, rather than the stream ended."""
        async with anyio.create_task_group() as tasks:

            async def wait(event: anyio.Event) -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait, changed)
            tasks.start_soon(wait, ended)
        return changed.is_set()

    async def _listen(self, ended: anyio.Event) -> None:
        wanted: dict[str, object] = dict.fromkeys(self._lists, True)
        if self._uris:
            wanted["resourceSubscriptions"] = list(self._uris)
        params = modern_params(dumps({"notifications": wanted}), self._meta)
        try:
            await self._session.call(names.SUBSCRIPTIONS_LISTEN, params, self, want_progress=False)
        except UpstreamError as exc:
            log.info("listen_stream_lost", reason=exc.message)
        ended.set()

    # -- what the server tells (base.CallListener) ----------------------------------------------------

    def on_notification(self, method: str, params: bytes | None) -> None:
        try:
            if method == names.SUBSCRIPTIONS_ACKNOWLEDGED:
                self._granted = _granted(params)
                self._acknowledged.set()
            else:
                self._told(jsonrpc.notification(method, _without_subscription_id(params)))
        except (JsonError, DuplicateMember):
            return  # nothing that could be told a client

    def on_question(self, question: Question) -> None:
        question.refuse(jsonrpc.error_object(ErrorCode.METHOD_NOT_FOUND, "a listen stream answers nothing"))

    def on_withdrawn(self, question: Question) -> None:
        """Was refused."""

    def on_position(self, position: StreamPosition) -> None:
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
