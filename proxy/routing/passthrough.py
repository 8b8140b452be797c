"""One legacy client's session with the upstream, message by message and unchanged.

Above: `downstream.stdio` and `session_layer`. Below: `own_server`, one at a time. If the
server dies, or an HTTP server forgets the session, what was pending is answered with an error at once, and
the next request gets a new server that is told what the old one knew: handshake, log level, subscriptions.
Contract sections 6 and 9; field report F38.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, assert_never

import anyio
from anyio.abc import TaskGroup

from proxy.clock import Clock, Pulse
from proxy.eras.attribution import AskingTools
from proxy.eras.tasks_2025 import with_marks
from proxy.errors import InternalError, ProxyError, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import RawObject
from proxy.protocol.jsonrpc import (
    ErrorResponse,
    Message,
    Notification,
    Request,
    ResultResponse,
)
from proxy.routing.base import ErrorAnswer, ResultAnswer
from proxy.routing.in_flight import rid_in, text_of
from proxy.routing.live import Place
from proxy.routing.own_server import Adopt, Client, OwnServer, version_in
from proxy.routing.task_session import TaskSession
from proxy.upstream.base import StartListener, Transport
from proxy.upstream.session import LegacySession

BACK_OFF_S: Final = (0.0, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # before the n-th start in a row
DEAD_SERVERS: Final = 3  # that one request may find; each comes after a longer pause
STABLE_S: Final = 60.0  # a server that lived this long starts a new count
SETTINGS_S: Final = 10.0  # for a new server to take level and subscriptions; the client waits meanwhile
LAST_MESSAGES_S: Final = 5.0  # for the server to take what the client said before it closed
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024  # in front of a server that does not read; more is refused

SHUTTING_DOWN: Final = "the proxy is shutting down; nothing was sent to the server"

BATCHES_IN: Final = "2025-03-26"
"""The one revision that has JSON-RPC batches."""

_LIST_CHANGES: Final = {
    "tools": names.TOOLS_LIST_CHANGED,
    "prompts": names.PROMPTS_LIST_CHANGED,
    "resources": names.RESOURCES_LIST_CHANGED,
}

log = get_logger()


@dataclass(slots=True)
class _Memory:
    """What a new server must be told to stand where the old one stood; raw params."""

    initialize: bytes | None = None
    log_level: bytes | None = None
    subscriptions: dict[str, bytes] = field(default_factory=dict)

    def note(self, request: Request) -> None:
        """Called when the server has accepted the request."""
        params = request.params
        if request.method == names.INITIALIZE:
            self.initialize, self.log_level = params, None
            self.subscriptions.clear()
        elif request.method == names.LOGGING_SET_LEVEL:
            self.log_level = params
        elif params is not None and (uri := text_of(params, "uri")) is not None:
            if request.method == names.RESOURCES_SUBSCRIBE:
                self.subscriptions[uri] = params
            else:
                self.subscriptions.pop(uri, None)

    def settings(self) -> Iterator[tuple[str, bytes]]:
        if self.log_level is not None:
            yield names.LOGGING_SET_LEVEL, self.log_level
        for params in list(self.subscriptions.values()):
            yield names.RESOURCES_SUBSCRIBE, params


@dataclass(frozen=True, slots=True)
class _Message:
    """Of the client. `is_upstreams`: it looked like one for a task of ours, and is for one of upstream's."""

    message: Message
    raw: bytes
    is_upstreams: bool = False


@dataclass(frozen=True, slots=True)
class TaskGrant:
    """What gives a session 2025 tasks. `grant` makes of the params of `initialize`, its raw result and the
    place for task calls: what the client is told, and its tasks, if it has any."""

    grant: Callable[[bytes | None, bytes, Place], tuple[bytes, TaskSession | None]]
    adopt: Adopt


class Passthrough:
    """A session of one client. `run` must be running; `from_client` takes what the client says."""

    def __init__(
        self,
        make_transport: Callable[[], Transport],
        client: Client,
        *,
        name: str,
        clock: Clock,
        max_depth: int,
        start_timeout_s: float,
        asking: AskingTools,
        health: StartListener,
        tasks_2025: TaskGrant | None = None,
    ) -> None:
        """`asking` has the tools known to ask, of all sessions with this upstream. `tasks_2025`
        None: the session has none."""
        self._make_transport = make_transport
        self._client = client
        self._name = name
        self._clock = clock
        self._max_depth = max_depth
        self._start_timeout_s = start_timeout_s
        self._asking = asking
        self._health = health
        self._tasks_2025 = tasks_2025
        self._tasks: TaskSession | None = None
        self._serving: dict[int | str, anyio.CancelScope] = {}
        self._task_calls = 0
        self._waiting: deque[_Message] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._changed = Pulse()
        self._group: TaskGroup | None = None
        self._server: OwnServer | None = None
        self._server_turn = anyio.Lock()
        self._memory = _Memory()
        self._version = ""
        self._starts = 0
        self._last_start = float("-inf")
        self._closing = False
        self._outlived_by_tasks = False
        self._forwarding = anyio.CancelScope()
        self._ended = anyio.Event()

    async def run(self) -> None:
        """Own the client's servers, and send on what the client says, in its order; until closed."""
        try:
            async with anyio.create_task_group() as tasks:
                self._group = tasks
                with self._forwarding:
                    await self._forward_all()
                for waiting in self._waiting:
                    self._refuse(waiting.message, UpstreamUnavailable(SHUTTING_DOWN))
                while self._outlived_by_tasks and self._task_calls:
                    await self._changed.event.wait()
                if self._server is not None:
                    self._server.close()
                    await self._server.ended.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._ended.set()
            if self._tasks is not None:
                self._tasks.end()

    async def close(self, *, after_tasks: bool = False) -> None:
        """Send on what waits, within bounds, and end the server in an orderly way; with `after_tasks` only
        once the tasks whose calls run there have ended (contract section 5), or this is called again."""
        self._closing, self._outlived_by_tasks = True, after_tasks
        self._forwarding.deadline = min(self._forwarding.deadline, anyio.current_time() + LAST_MESSAGES_S)
        self._changed.beat()
        await self._ended.wait()

    async def wait_answered(self) -> None:
        """Until the client waits for nothing."""
        while (
            self._waiting
            or self._busy
            or self._serving
            or (self._server is not None and self._server.waited_for)
        ):
            await self._changed.event.wait()

    @property
    def has_batches(self) -> bool:
        """Whether the client may send arrays of messages."""
        return self._version == BATCHES_IN

    @property
    def runs_tasks(self) -> bool:
        """Whether calls of the client's tasks are in flight on its server."""
        return bool(self._task_calls)

    def keeps(self, request: Request) -> bool:
        """Whether a request of the client is for its tasks, and as a rule not sent on."""
        return self._tasks is not None and self._tasks.claims(request)

    def channels_changed(self) -> None:
        """A way to the client was opened, or has closed."""
        if self._tasks is not None:
            self._tasks.set_channel(self._client.channel(None))

    def __repr__(self) -> str:
        return f"<Passthrough '{self._name}' {self._server}, {len(self._waiting)} waiting>"

    # -- from the client ----------------------------------------------------------------------------

    def from_client(self, message: Message, raw: bytes) -> None:
        """Take one message. What a server that does not read cannot take is refused, so that the client's
        other messages, and its end, are still seen."""
        if self._waiting and self._waiting_bytes + len(raw) > MAX_WAITING_BYTES:
            self._refuse(message, UpstreamUnavailable(f"upstream '{self._name}' does not read its messages"))
            return
        self._wait(_Message(message, raw))

    def _wait(self, waiting: _Message) -> None:
        self._waiting.append(waiting)
        self._waiting_bytes += len(waiting.raw)
        self._changed.beat()

    def _refuse(self, message: Message, fault: ProxyError) -> None:
        if isinstance(message, Request):
            self._client.fail(message.id, fault)
        else:
            log.warning("message_not_delivered", upstream=self._name, reason=fault.message)

    async def _forward_all(self) -> None:
        while True:
            changed = self._changed.event
            if self._waiting:
                waiting = self._waiting.popleft()
                self._waiting_bytes -= len(waiting.raw)
                self._busy = True
                if waiting.is_upstreams or not self._take_for_tasks(waiting):
                    await self._forward(waiting.message, waiting.raw)
                self._busy = False
                self._changed.beat()
            elif self._closing:
                return
            else:
                await changed.wait()

    async def _forward(self, message: Message, raw: bytes) -> None:
        if isinstance(message, Request):
            for _ in range(DEAD_SERVERS):
                try:
                    server = await self._server_now(is_new=message.method == names.INITIALIZE)
                except ProxyError as exc:
                    self._refuse(message, exc)
                    return
                except anyio.get_cancelled_exc_class():
                    self._refuse(message, UpstreamUnavailable(SHUTTING_DOWN))
                    raise
                if await server.request(message, raw):
                    return
            fault = f"upstream '{self._name}' dies before it takes the request; nothing was sent"
            self._refuse(message, UpstreamUnavailable(fault))
        elif self._server is not None and self._server.usable:
            await _tell(self._server, message, raw)

    # -- 2025 tasks ---------------------------------------------------------------------------------

    def _take_for_tasks(self, waiting: _Message) -> bool:
        """Whether the message is for a task of ours, and was taken."""
        tasks, message = self._tasks, waiting.message
        if tasks is None:
            return False
        match message:
            case Request() if self.keeps(message):
                assert self._group is not None  # `run` is running
                self._group.start_soon(self._serve_task_request, tasks, message, waiting.raw)
                return True
            case ResultResponse() | ErrorResponse():
                return tasks.take_answer(message)
            case Notification(names.CANCELLED, params) if rid := rid_in(params, "requestId"):
                scope = self._serving.get(rid.value)
                if scope is not None:
                    scope.cancel()
                return scope is not None
            case _:
                return False

    async def _serve_task_request(self, tasks: TaskSession, request: Request, raw: bytes) -> None:
        """Answer it; nothing more is sent for it once the client has cancelled it."""
        with anyio.CancelScope() as scope:
            self._serving[request.id.value] = scope
            try:
                answer = await tasks.serve(request, self._client.channel(request.id))
                match answer:
                    case ResultAnswer(result):
                        self._client.answer(request.id, jsonrpc.result_response(request.id, result))
                    case ErrorAnswer(error):
                        self._client.answer(request.id, jsonrpc.error_response(request.id, error))
                    case None:
                        self._client.sends_on(request.id)
                        self._wait(_Message(request, raw, is_upstreams=True))
                    case _:
                        assert_never(answer)
            except ProxyError as exc:
                self._client.fail(request.id, exc)
            except Exception:
                log.exception("request_failed", method=request.method)
                self._client.fail(request.id, InternalError())
            finally:
                self._serving.pop(request.id.value, None)
                self._changed.beat()

    @asynccontextmanager
    async def _task_place(self) -> AsyncIterator[LegacySession]:
        """The session on which the calls of this client's tasks run. Raises ProxyError."""
        if self._closing:
            raise UpstreamUnavailable(SHUTTING_DOWN)
        self._task_calls += 1
        try:
            server = await self._server_now()
            yield await server.for_tasks()
        finally:
            self._task_calls -= 1
            self._changed.beat()

    def _reword(self, method: str, result: bytes) -> bytes:
        """An upstream's result as the client is told it: with what 2025 tasks add (contract section 5)."""
        if method == names.TOOLS_LIST and self._tasks is not None:
            return with_marks(result, self._tasks.mark)
        if method != names.INITIALIZE or self._tasks_2025 is None:
            return result
        if self._tasks is not None:
            self._tasks.end()
        asked = self._memory.initialize
        granted, self._tasks = self._tasks_2025.grant(asked, result, self._task_place)
        self._version = text_of(granted, "protocolVersion") or ""
        if self._tasks is not None:
            self._tasks.set_channel(self._client.channel(None))
        return granted

    # -- the server ---------------------------------------------------------------------------------

    async def _server_now(self, *, is_new: bool = False) -> OwnServer:
        """The running server, or one that is told what the last one knew; not if the client itself is just
        about to (`is_new`). Raises ProxyError."""
        async with self._server_turn:
            if self._server is None or not self._server.usable:
                if self._server is not None:
                    self._server.close()
                self._server = None
                server = await self._start()
                try:
                    if self._memory.initialize is not None and not is_new:
                        await self._tell_what_was(server, self._memory.initialize)
                except BaseException:
                    server.close()
                    raise
                self._server = server
            return self._server

    async def _start(self) -> OwnServer:
        now = self._clock.monotonic()
        self._starts = 1 if now - self._last_start >= STABLE_S else self._starts + 1
        await self._clock.sleep(BACK_OFF_S[min(self._starts, len(BACK_OFF_S)) - 1])
        self._last_start = self._clock.monotonic()
        server = OwnServer(
            self._make_transport(),
            self._client,
            name=self._name,
            max_depth=self._max_depth,
            asking=self._asking,
            accepted=self._note,
            settled=self._changed,
            reword=self._reword,
            adopt=None if self._tasks_2025 is None else self._tasks_2025.adopt,
            health=self._health,
        )
        assert self._group is not None  # `run` is running
        self._group.start_soon(server.live)
        try:
            with anyio.move_on_after(self._start_timeout_s):
                await server.ready.wait()
        finally:
            if not server.ready.is_set():  # too slow, or whoever waits for it has given up
                server.stop()
        if not server.ready.is_set():
            fault = UpstreamTimeout(
                f"upstream '{self._name}' was not there within {self._start_timeout_s:g} s"
            )
            self._health.failed(fault)
            raise fault
        if server.fault is not None:
            raise server.fault
        return server

    async def _tell_what_was(self, server: OwnServer, initialize: bytes) -> None:
        """The handshake in the client's own words, its log level and its subscriptions.

        Then the client is told once that lists may have changed: what happened in between is not known.
        Raises UpstreamError if there is no handshake.
        """
        try:
            with anyio.fail_after(self._start_timeout_s):
                initialized = await server.ask(names.INITIALIZE, initialize)
        except TimeoutError:
            raise UpstreamTimeout(f"upstream '{self._name}' did not answer initialize in time") from None
        server.established(initialized)
        await server.pass_on(jsonrpc.notification(names.INITIALIZED))
        await self._tell_settings(server)
        capabilities = RawObject.parse(initialized.result).object("capabilities")
        for group, method in _LIST_CHANGES.items():
            declared = capabilities.object(group) if capabilities is not None else None
            if declared is not None and declared.get("listChanged") == b"true":
                self._client.tell(Notification(method, None), jsonrpc.notification(method), None)

    async def _tell_settings(self, server: OwnServer) -> None:
        """A server that refuses or ignores one works without it."""
        with anyio.move_on_after(SETTINGS_S) as bound:
            for method, params in self._memory.settings():
                try:
                    await server.ask(method, params)
                except UpstreamError as exc:
                    log.warning("upstream_setting_failed", upstream=self._name, reason=exc.message)
        if bound.cancelled_caught:
            log.warning(
                "upstream_setting_failed", upstream=self._name, reason=f"{SETTINGS_S:g} s have passed"
            )

    def _note(self, request: Request, answer: ResultResponse) -> None:
        self._memory.note(request)
        if request.method == names.INITIALIZE:
            self._version = version_in(answer)


async def _tell(server: OwnServer, message: Message, raw: bytes) -> None:
    """Send on what is not answered."""
    match message:
        case Notification(names.CANCELLED, params):
            if params is not None and (rid := rid_in(params, "requestId")) is not None:
                await server.cancel(rid, raw, params)
        case ResultResponse() | ErrorResponse():
            await server.answer(message, raw)
        case _:
            await server.pass_on(raw)
