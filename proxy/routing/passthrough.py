"""One legacy client's session with the upstream, message by message and unchanged.

Above: `downstream.stdio` and `session_layer`. Below: `own_server`, one at a time. If the
server dies, or an HTTP server forgets the session, what was pending is answered with an error at once, and
the next request gets a new server that is told what the old one knew: handshake, log level, subscriptions.
Contract sections 6 and 9; field report F38.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.abc import TaskGroup

from proxy.clock import Clock, Pulse
from proxy.eras.attribution import AskingTools
from proxy.errors import ProxyError, UpstreamError, UpstreamTimeout, UpstreamUnavailable
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
from proxy.routing.in_flight import rid_in, text_of
from proxy.routing.own_server import Client, OwnServer, version_in
from proxy.upstream.base import Transport

BACK_OFF_S: Final = (0.0, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # before the n-th start in a row
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
    ) -> None:
        """`asking` has the tools known to ask, of all sessions with this upstream."""
        self._make_transport = make_transport
        self._client = client
        self._name = name
        self._clock = clock
        self._max_depth = max_depth
        self._start_timeout_s = start_timeout_s
        self._asking = asking
        self._waiting: deque[tuple[Message, bytes]] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._changed = Pulse()
        self._server: OwnServer | None = None
        self._memory = _Memory()
        self._version = ""
        self._starts = 0
        self._last_start = float("-inf")
        self._closing = False
        self._forwarding = anyio.CancelScope()
        self._ended = anyio.Event()

    async def run(self) -> None:
        """Own the client's servers, and send on what the client says, in its order; until closed."""
        try:
            async with anyio.create_task_group() as tasks:
                with self._forwarding:
                    await self._forward_all(tasks)
                for message, _ in self._waiting:
                    self._refuse(message, UpstreamUnavailable(SHUTTING_DOWN))
                if self._server is not None:
                    self._server.close()
                    await self._server.ended.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Send on what waits, within bounds, and end the server in an orderly way."""
        self._closing = True
        self._forwarding.deadline = min(self._forwarding.deadline, anyio.current_time() + LAST_MESSAGES_S)
        self._changed.beat()
        await self._ended.wait()

    async def wait_answered(self) -> None:
        """Until the client waits for nothing."""
        while self._waiting or self._busy or (self._server is not None and self._server.waited_for):
            await self._changed.event.wait()

    @property
    def has_batches(self) -> bool:
        """Whether the client may send arrays of messages."""
        return self._version == BATCHES_IN

    def __repr__(self) -> str:
        return f"<Passthrough '{self._name}' {self._server}, {len(self._waiting)} waiting>"

    # -- from the client ----------------------------------------------------------------------------

    def from_client(self, message: Message, raw: bytes) -> None:
        """Take one message. What a server that does not read cannot take is refused, so that the client's
        other messages, and its end, are still seen."""
        if self._waiting and self._waiting_bytes + len(raw) > MAX_WAITING_BYTES:
            self._refuse(message, UpstreamUnavailable(f"upstream '{self._name}' does not read its messages"))
            return
        self._waiting.append((message, raw))
        self._waiting_bytes += len(raw)
        self._changed.beat()

    def _refuse(self, message: Message, fault: ProxyError) -> None:
        if isinstance(message, Request):
            self._client.fail(message.id, fault)
        else:
            log.warning("message_not_delivered", upstream=self._name, reason=fault.message)

    async def _forward_all(self, tasks: TaskGroup) -> None:
        while True:
            changed = self._changed.event
            if self._waiting:
                message, raw = self._waiting.popleft()
                self._waiting_bytes -= len(raw)
                self._busy = True
                await self._forward(message, raw, tasks)
                self._busy = False
                self._changed.beat()
            elif self._closing:
                return
            else:
                await changed.wait()

    async def _forward(self, message: Message, raw: bytes, tasks: TaskGroup) -> None:
        if isinstance(message, Request):
            try:
                server = await self._server_for(message, tasks)
            except ProxyError as exc:
                self._refuse(message, exc)
                return
            except anyio.get_cancelled_exc_class():
                self._refuse(message, UpstreamUnavailable(SHUTTING_DOWN))
                raise
            await server.request(message, raw)
        elif self._server is not None and self._server.usable:
            await _tell(self._server, message, raw)

    # -- the server ---------------------------------------------------------------------------------

    async def _server_for(self, request: Request, tasks: TaskGroup) -> OwnServer:
        """The running server, or a new one that is told what the old one knew. Raises ProxyError."""
        if self._server is None or not self._server.usable:
            if self._server is not None:
                self._server.close()
            self._server = None
            server = await self._start(tasks)
            if self._memory.initialize is not None and request.method != names.INITIALIZE:
                await self._tell_what_was(server, self._memory.initialize)
            self._server = server
        return self._server

    async def _start(self, tasks: TaskGroup) -> OwnServer:
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
        )
        tasks.start_soon(server.live)
        with anyio.move_on_after(self._start_timeout_s):
            await server.ready.wait()
        if not server.ready.is_set():
            server.stop()
            raise UpstreamTimeout(f"upstream '{self._name}' was not there within {self._start_timeout_s:g} s")
        if server.fault is not None:
            raise server.fault
        return server

    async def _tell_what_was(self, server: OwnServer, initialize: bytes) -> None:
        """The handshake in the client's own words, its log level and its subscriptions.

        Then the client is told once that lists may have changed: what happened in between is not known.
        Raises UpstreamError if there is no handshake; the server is then ended.
        """
        try:
            with anyio.fail_after(self._start_timeout_s):
                initialized = await server.ask(names.INITIALIZE, initialize)
        except TimeoutError:
            server.close()
            raise UpstreamTimeout(f"upstream '{self._name}' did not answer initialize in time") from None
        except UpstreamError:
            server.close()
            raise
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
