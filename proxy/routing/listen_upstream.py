"""A listen stream of our own with a modern server, which feeds one of a client.

Above: `listen`. Below: the session, whose call ends only with the server or with us. Subscriptions
2026-07-28.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from proxy.errors import (
    ClientProtocolError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    only_fault,
)
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, splice
from proxy.protocol.jsonrpc import error_object
from proxy.routing.subscription import Filter, Subscription
from proxy.upstream.base import Position, Question
from proxy.upstream.session import LegacySession

ACKNOWLEDGE_TIMEOUT_S: Final = 10.0  # a server that never acknowledges has no stream


class _Ear:
    """Listens to the server's stream. Implements `upstream.base.CallListener`."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self.acknowledged = anyio.Event()
        self.granted: Filter | None = None

    def on_notification(self, method: str, params: bytes | None) -> None:
        try:
            if method == names.SUBSCRIPTIONS_ACKNOWLEDGED:
                self.granted = Filter.parse(RawObject.parse(params or b"{}"))
                self.acknowledged.set()
            elif method == names.TASK_NOTIFICATION:
                self._subscription.on_upstream_task(_without_subscription_id(params))
            else:
                self._subscription.on_change(method, _without_subscription_id(params))
        except (ClientProtocolError, JsonError, DuplicateMember):
            return  # nothing that could be told a client

    def on_question(self, question: Question) -> None:
        question.refuse(error_object(-32601, "a listen stream answers no questions"))

    def on_withdrawn(self, question: Question) -> None:
        """Was refused."""

    def on_position(self, position: Position) -> None:
        """A listen stream is not resumed."""


@asynccontextmanager
async def listening_upstream(session: LegacySession, subscription: Subscription) -> AsyncIterator[Filter]:
    """Listen for what the client asked for; yields what the server grants of it.

    Raises UpstreamError if it grants nothing in time, or ends the stream.
    """
    asked, ear = subscription.filter, _Ear(subscription)
    theirs = asked.upstream_ids if session.info.has_tasks else ()
    wanted = Filter(asked.lists, asked.resources, theirs or None)
    params = splice(subscription.request.params.raw, {"notifications": wanted.raw()})

    async def listen() -> None:
        await session.call(names.SUBSCRIPTIONS_LISTEN, params, ear, want_progress=False)
        raise UpstreamProtocolError("the upstream ended its listen stream")

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            with anyio.move_on_after(ACKNOWLEDGE_TIMEOUT_S):
                await ear.acknowledged.wait()
            if ear.granted is None:
                raise UpstreamTimeout("the upstream did not acknowledge subscriptions/listen in time")
            task_ids = asked.task_ids
            if task_ids is not None:
                task_ids = (*task_ids, *(i for i in ear.granted.task_ids or () if i in theirs))
            yield Filter(ear.granted.lists, ear.granted.resources, task_ids)
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        fault = only_fault(group)
        raise fault if isinstance(fault, UpstreamError) else UpstreamError(fault.message) from None


def _without_subscription_id(params: bytes | None) -> bytes | None:
    """The id is between the server and us."""
    if params is None or names.META_SUBSCRIPTION_ID.encode() not in params:
        return params
    meta = RawObject.parse(params).object(names.META)
    left = splice(meta.raw if meta is not None else b"{}", {names.META_SUBSCRIPTION_ID: None})
    return splice(params, {names.META: None if left == b"{}" else left})
