"""One server of one legacy client, from its start to its end: what was sent to it, and what it asked.

Above: `passthrough`, which sends what the client says and starts the next server when this one has ended.
Below: `in_flight`, which knows what belongs to which request, a transport, and a `task_line` for the calls of
our tasks. Bodies keep their bytes but for request ids: an HTTP transport needs ours, and so do the requests
of our own. Contract sections 5, 6 and 9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from proxy.aside import aside
from proxy.clock import Pulse
from proxy.eras.attribution import AskingTools
from proxy.eras.to_modern import ServerInfo
from proxy.errors import (
    ErrorCode,
    InternalError,
    ProxyError,
    ServerGone,
    SessionLost,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    only_fault,
)
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names, salvage
from proxy.protocol.envelope import LARGE, RawObject, elements, members, splice
from proxy.protocol.jsonrpc import (
    ErrorResponse,
    Message,
    MessageError,
    Notification,
    Request,
    RequestId,
    ResultResponse,
)
from proxy.routing.in_flight import FIRST_TASK_ID, InFlight, Sent, text_of
from proxy.routing.offers import Channel
from proxy.routing.task_line import TaskLine
from proxy.upstream.base import Position, StartListener, Transport
from proxy.upstream.session import LegacySession

log = get_logger()


class Client(Protocol):
    """Where messages for the client go. Nothing of it blocks.

    `call` is the client's request that a message belongs to, None if it belongs to none: on whose stream it
    came, where the wire tells, else by the contract's rule (section 2).
    """

    def answer(self, rid: RequestId | None, message: bytes) -> None:
        """A response; without an id if the server could not read that of the request."""
        ...

    def fail(self, rid: RequestId, fault: ProxyError) -> None:
        """No response will come: the client's request could not be sent, or its server was lost."""
        ...

    def sends_on(self, rid: RequestId) -> None:
        """The client's request, which seemed to be for our tasks, is for the server after all. Raises
        LimitReached if it may not be sent on."""
        ...

    def ask(self, request: Request, message: bytes, call: RequestId | None) -> None:
        """A request of the server."""
        ...

    def tell(self, notification: Notification, message: bytes, call: RequestId | None) -> None:
        """A notification of the server."""
        ...

    def channel(self, call: RequestId | None) -> Channel | None:
        """Where messages of ours go: before the answer to this request, or (None) besides all answers."""
        ...


Adopt = Callable[[Transport, ServerInfo, int], LegacySession]
"""A session over a transport whose handshake was made by the client: what the server said then, and where
the ids of our calls begin."""

Reword = Callable[[str, bytes], bytes]
"""What the client is told instead of the raw result of a request of this method."""


class OwnServer:
    """Implements `upstream.base.Receiver`. `live` must be running.

    `accepted` is told what a later server must know once this one has accepted it; `settled` beats
    whenever a request is answered, or lost.
    """

    def __init__(
        self,
        transport: Transport,
        client: Client,
        *,
        name: str,
        max_depth: int,
        asking: AskingTools,
        accepted: Callable[[Request, ResultResponse], None],
        settled: Pulse,
        reword: Reword,
        adopt: Adopt | None,
        health: StartListener,
    ) -> None:
        self._health = health
        self._greeted = False
        self._transport = transport
        self._client = client
        self._name = name
        self._max_depth = max_depth
        self._accepted = accepted
        self._settled = settled
        self._reword = reword
        self._adopt = adopt
        self._in_flight = InFlight(asking)
        self._info: ServerInfo | None = None
        self._line: TaskLine | None = None
        self._tasks: LegacySession | None = None
        self._tasks_turn = anyio.Lock()
        self._group: TaskGroup | None = None
        self._stale = False
        self._scope = anyio.CancelScope()
        self.ready = anyio.Event()  # started, or could not be: then there is a `fault`
        self.ended = anyio.Event()  # nothing of it is left
        self.fault: ProxyError | None = None

    @property
    def usable(self) -> bool:
        """Whether new requests may go here."""
        return not self._stale

    @property
    def waited_for(self) -> int:
        """How many requests the client waits for."""
        return sum(sent.awaited for sent in self._in_flight)

    async def live(self) -> None:
        """From start to end. A fault of ours in it does not end the client's session."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    self._group = tasks
                    await tasks.start(self._transport.run, self)
                    self.ready.set()
        except* ProxyError as group:
            self.fault = only_fault(group)
        except* Exception:
            log.exception("session_failed", upstream=self._name)
            self.fault = InternalError("the upstream session was ended")
        finally:
            self.lost(None, self.fault or UpstreamClosed(f"upstream '{self._name}' was ended"))
            self.ready.set()
            self.ended.set()

    def close(self) -> None:
        """End it in an orderly way; what it still says is passed on until it has `ended`."""
        self._stale = True
        self._transport.close()

    def stop(self) -> None:
        """End it at once, also while it starts."""
        self._stale = True
        self._scope.cancel()

    def __repr__(self) -> str:
        state = "READY" if self.usable else "ENDED" if self.ended.is_set() else "ENDING"
        return (
            f"<OwnServer '{self._name}' {self._transport.describe()} {state}, {len(self._in_flight)} pending>"
        )

    # -- what goes out ------------------------------------------------------------------------------

    async def request(self, request: Request, raw: bytes) -> bool:
        """Send on a request of the client; it is answered in any case, unless this is False: then the server
        had died, nothing was sent, and another one may take it."""
        sent = self._in_flight.add(request)
        try:
            if len(raw) <= LARGE:
                message = with_values(raw, {"id": b"%d" % sent.id})
            else:
                message = await aside(partial(jsonrpc.with_id, raw, sent.id, self._max_depth))
            await self._transport.send(message, call=sent.id)
        except ServerGone as exc:
            if self._greeted and self._in_flight.pop(sent.id) is not None:
                log.info("call_sent_again", reason=exc.message)
                self._stale = True
                self._settle(sent)
                return False
            self.lost(sent.id, exc)
        except UpstreamError as exc:
            self.lost(sent.id, exc)
        return True

    async def ask(self, method: str, params: bytes | None) -> ResultResponse:
        """A request of our own, whose wait is bounded by the caller. Raises UpstreamError."""
        sent = self._in_flight.add_own(method)
        try:
            await self._transport.send(jsonrpc.request(sent.id, method, params), call=sent.id)
            await sent.done.wait()
        finally:
            self._in_flight.pop(sent.id)
        if not isinstance(sent.answer, ResultResponse):
            raise UpstreamClosed(f"upstream '{self._name}' did not accept {method}")
        return sent.answer

    async def cancel(self, rid: RequestId, raw: bytes, params: bytes) -> None:
        """Send on a cancellation of `rid`, the id translated with the request it names (CANC-006). One that
        names nothing in flight is ignored."""
        if (sent := self._in_flight.named(rid)) is not None:
            sent.cancelled = True
            changed = with_values(params, {"requestId": b"%d" % sent.id})
            await self.pass_on(with_values(raw, {"params": changed}))

    async def answer(self, answer: ResultResponse | ErrorResponse, raw: bytes) -> None:
        """Send on an answer; to what this server never asked, it is ignored (F16)."""
        if answer.id is not None and self._in_flight.take_answered(answer.id.value):
            await self.pass_on(raw)

    async def pass_on(self, raw: bytes) -> None:
        """Send what is not answered. That it could not be delivered is nobody's to know."""
        try:
            await self._transport.send(raw)
        except UpstreamError as exc:
            self._stale = self._stale or isinstance(exc, SessionLost)
            log.warning("message_not_delivered", upstream=self._name, reason=exc.message)

    def established(self, initialized: ResultResponse) -> None:
        """The handshake has come this far."""
        self._greeted = True
        self._health.works()
        with suppress(UpstreamProtocolError):  # the client may like it all the same
            self._info = ServerInfo.parse(initialized.result)
        self._transport.established(version_in(initialized))

    async def for_tasks(self) -> LegacySession:
        """The session that carries our tasks' calls to this server. Raises UpstreamError."""
        async with self._tasks_turn:
            if self._stale or self._info is None or self._group is None:
                raise UpstreamClosed(f"upstream '{self._name}' was ended")
            assert self._adopt is not None  # else the session has no tasks
            if self._tasks is None:
                self._line = TaskLine(self._transport, self._in_flight)
                tasks = self._adopt(self._line, self._info, FIRST_TASK_ID)
                await self._group.start(tasks.run)  # a call that is cancelled meanwhile ends it
                self._tasks = tasks
            return self._tasks

    # -- what comes in (upstream.base.Receiver) -------------------------------------------------------

    def received(self, message: bytes, call: int | None) -> None:
        try:
            self._take(jsonrpc.parse(message, self._max_depth), message, call)
        except MessageError as exc:
            if exc.code is ErrorCode.INVALID_REQUEST and message.lstrip()[:1] == b"[":
                self._take_array(message, call)
            else:
                self._take_invalid(message, exc)

    def _take_array(self, message: bytes, call: int | None) -> None:
        """A batch of 2025-03-26: its messages are passed on one by one (F20)."""
        for element in elements(message):
            try:
                self._take(jsonrpc.parse_checked(element), element, call)
            except MessageError as exc:
                self._take_invalid(element, exc)

    def _take(self, message: Message, raw: bytes, call: int | None) -> None:
        match message:
            case Request():
                asker = self._in_flight.asked(message, call)
                if not self._is_of_task(asker, raw, call):
                    self._client.ask(message, raw, None if asker is None else asker.rid)
            case Notification():
                concerned = self._in_flight.told(message, call)
                if not self._is_of_task(concerned, raw, call):
                    self._client.tell(message, raw, None if concerned is None else concerned.rid)
                    if message.method == names.TOOLS_LIST_CHANGED and self._line is not None:
                        self._line.received(raw, None)  # which tools are the server's own tasks may be new
            case ErrorResponse(None) if call is None:
                self._client.answer(None, raw)  # nobody can tell what it answers
            case ResultResponse() | ErrorResponse():
                self._take_answer(message, raw, call)

    def _is_of_task(self, concerned: Sent | None, raw: bytes, call: int | None) -> bool:
        """Whether a message is part of the call of one of our tasks; then it is told there."""
        if self._line is None or concerned is None or not concerned.of_task:
            return False
        self._line.received(raw, call)
        return True

    def _take_answer(self, answer: ResultResponse | ErrorResponse, raw: bytes, call: int | None) -> None:
        sent = self._in_flight.pop(answer.id.number if answer.id is not None else call)
        if sent is None:
            log.debug("late_answer_dropped", upstream=self._name)
            return
        if self._is_of_task(sent, raw, call):
            return
        sent.answer = answer
        if sent.remembered is not None and isinstance(answer, ResultResponse):
            if sent.remembered.method == names.INITIALIZE:
                self.established(answer)
            self._accepted(sent.remembered, answer)
        if sent.rid is not None:
            changes = {"id": sent.rid.raw}
            if isinstance(answer, ResultResponse):
                result = self._reword(sent.method, answer.result)
                changes |= {"result": result} if result is not answer.result else {}
            self._client.answer(sent.rid, with_values(raw, changes))
        self._settle(sent)

    def _take_invalid(self, raw: bytes, fault: MessageError) -> None:
        """A broken answer ends the request that it names; the rest is noise (F34)."""
        if fault.code is ErrorCode.PARSE_ERROR:
            answered = salvage.answered_by(raw)
        else:
            answered = None if fault.id is None or "method" in RawObject.parse(raw) else fault.id.number
        if answered is not None:
            error = UpstreamProtocolError(f"upstream '{self._name}' sent an invalid response: {fault}")
            self.lost(answered, error)
        else:
            log.warning("upstream_noise_skipped", upstream=self._name, reason=fault.message, bytes=len(raw))

    def lost(self, call: int | None, error: ProxyError) -> None:
        """What was pending is answered at once (contract section 9)."""
        if call is not None or not self._stale:
            log.warning("upstream_failed", reason=error.message)
        if call is None and not self._stale and not self._greeted:
            self._health.failed(error)
        if self._line is not None and (call is None or call >= FIRST_TASK_ID):
            self._line.lost(call, error)
        for sent in self._in_flight:
            if call is None or sent.id == call:
                self._in_flight.pop(sent.id)
                if sent.rid is not None and not sent.cancelled:
                    self._client.fail(sent.rid, error)
                self._settle(sent)
        self._stale = self._stale or call is None or isinstance(error, SessionLost)

    def moved(self, call: int, position: Position) -> None:
        """Of the calls of tasks alone a later process could make use."""
        if self._line is not None and call >= FIRST_TASK_ID:
            self._line.moved(call, position)

    def _settle(self, sent: Sent) -> None:
        sent.done.set()
        self._settled.beat()


def with_values(raw: bytes, values: Mapping[str, bytes]) -> bytes:
    """`raw`, an object, with other values for some members, and else the same bytes; a member that is not
    there is added."""
    found = [m for m in members(raw) if m.key in values]
    if {m.key for m in found} != values.keys():
        return splice(raw, values)
    for m in reversed(found):
        raw = raw[: m.value_start] + values[m.key] + raw[m.end :]
    return raw


def version_in(initialized: ResultResponse) -> str:
    return text_of(initialized.result, "protocolVersion") or ""
