"""One legacy session with the upstream: handshake, calls and settings, over any transport.

Above: `pool`, which starts and ends sessions, and `routing`, which calls. Below: `inbox` and `questions`
(what comes from the upstream), `pending` (who waits for what), and a `Transport` (bytes). A session
belongs to one owner and one set of declared capabilities. The house style's tree has no module of this
name; it would put this into `stdio` and `http`, but both speak the same protocol. MCP 2025-11-25,
"Lifecycle".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus
from anyio.lowlevel import checkpoint

from proxy.aside import aside
from proxy.clock import Clock
from proxy.eras.capabilities import ClientCapabilities, initialize_params, request_meta
from proxy.eras.era import Era
from proxy.eras.to_legacy import cancelled_params, lower_name, lower_params, with_progress_token
from proxy.eras.to_modern import MODERN_CODES, ServerInfo, error_code, is_discovered
from proxy.errors import (
    ErrorCode,
    ServerGone,
    SessionLost,
    SessionUnknown,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
    only_fault,
)
from proxy.logs import get_logger
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import LARGE, RawObject, dumps, one_line, splice
from proxy.protocol.jsonrpc import Request, RequestId
from proxy.upstream.base import (
    NO_HEADERS,
    CallListener,
    Failure,
    Headers,
    Outcome,
    Position,
    Question,
    Result,
    StreamPosition,
    Transport,
)
from proxy.upstream.catalogue import Catalogue
from proxy.upstream.endpoint import OUTCOME_UNKNOWN, UnexpectedStatus
from proxy.upstream.inbox import ChangeListener, Inbox
from proxy.upstream.pending import AskingTools, PendingCall, PendingTable
from proxy.upstream.posts import Posts
from proxy.upstream.probe import SERVER_ERRORS, UpstreamEra
from proxy.upstream.questions import Questions
from proxy.upstream.settings import LogLevel, WatchedResources

CLIENT_NAME: Final = "mcp-taskproxy"
END_TOLD_S: Final = 1.0  # by a transport whose server has gone, once it knows how that came
ASK_TIMEOUT_S: Final = 10.0  # requests of our own: a server that ignores them must not hold up a call

TakeUp = Callable[[int, str], None]
"""Asked with the id of a call and of the last event of its stream that was read."""

__all__ = ["ChangeListener", "LegacySession"]

log = get_logger()


class LegacySession:
    """A session after `run` has called `started()`; see `base.Transport` for what may be concurrent."""

    def __init__(
        self,
        transport: Transport,
        *,
        name: str,
        capabilities: ClientCapabilities,
        client_version: str,
        asking: AskingTools,
        clock: Clock,
        max_depth: int,
        start_timeout_s: float,
        on_change: ChangeListener,
        era: UpstreamEra | None = None,
        adopted: ServerInfo | None = None,
        first_id: int = 1,
        ids: Iterator[int] | None = None,
        take_up: TakeUp | None = None,
        has_headers: bool = False,
        is_clients: bool = False,
        on_stray: ChangeListener | None = None,
    ) -> None:
        """`era` is what is known of the server's; without it the server is taken as legacy.

        `adopted`: the session exists already, opened by a legacy client, and this is what its server said:
        no handshake then. Ids and tokens count up from `first_id`, away from those of that client, or are
        taken from `ids`, which sessions may share. `take_up`
        has the transport fetch the rest of a stream of such a session. `has_headers`: the transport is HTTP.
        `is_clients`: the session is still that of its client, who uses it, too. `on_stray` is told log lines
        of which nobody knows whose call they belong to: they are for a client that has the session to itself.
        """
        self._era = era if era is not None else UpstreamEra(Era.LEGACY)
        self._transport = transport
        self._name = name
        self._capabilities = capabilities
        self._client_version = client_version
        self._start_timeout_s = start_timeout_s
        self._clock = clock
        self._on_change = on_change
        self._adopted = adopted
        self._take_up = take_up
        self._has_headers = has_headers
        self._info: ServerInfo | None = None
        self._loss: UpstreamError | None = None
        self._stale = anyio.Event()  # no new calls here
        self._gone = anyio.Event()  # nothing of the connection is left
        self._table = PendingTable(ids if ids is not None else itertools.count(first_id))
        self._posts = Posts(self._send, name)
        self._questions = Questions(
            self._table,
            asking,
            capabilities,
            clock,
            send=self._send,
            post=self._posts.post,
            is_clients=is_clients,
        )
        self._inbox = Inbox(
            self._table,
            self._questions,
            name=name,
            max_depth=max_depth,
            post=self._posts.post,
            on_change=self._changed,
            on_stray=on_stray,
        )
        self._log_level = LogLevel(self.ask, name)
        self._resources = WatchedResources(self.ask, name)
        self.catalogue = Catalogue(self.ask, clock)

    # -- life ---------------------------------------------------------------------------------------

    async def run(self, *, task_status: StartStatus[None]) -> None:
        """Connect, shake hands, call `started()`, serve until the end.

        Raises UpstreamError before `started` if that fails. When it returns, every call has been settled
        and nothing of the session is left.
        """
        try:
            async with anyio.create_task_group() as tasks:
                await self._connect(tasks)
                tasks.start_soon(self._posts.deliver)
                tasks.start_soon(self._questions.expire)
                try:
                    await self._meet()
                except UpstreamError:
                    self.close()
                    await self._gone.wait()
                    raise
                task_status.started()
                await self._gone.wait()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise only_fault(group) from None
        finally:
            self.lost(None, UpstreamClosed(f"upstream '{self._name}': the session was ended"))

    async def _connect(self, tasks: TaskGroup) -> None:
        try:
            with anyio.fail_after(self._start_timeout_s):
                await tasks.start(self._run_transport)
        except TimeoutError:
            raise UpstreamTimeout(
                f"upstream '{self._name}' could not be connected within {self._start_timeout_s:g} s"
            ) from None

    async def _run_transport(self, *, task_status: StartStatus[None]) -> None:
        try:
            await self._transport.run(self, task_status=task_status)
        finally:
            self._gone.set()

    async def _meet(self) -> None:
        """Learn what the server is: a legacy one by the handshake, a modern one by discovery.

        A server that turns out to be of the other era is asked again for it by the next session.
        """
        if self._adopted is not None:
            self._info = self._adopted
            return
        method = names.DISCOVER if self._era.known is Era.MODERN else names.INITIALIZE
        try:
            with anyio.fail_after(self._start_timeout_s):
                info = await (self._discover() if method == names.DISCOVER else self._greet_legacy())
        except TimeoutError:
            raise UpstreamTimeout(
                f"upstream '{self._name}' did not answer {method} within {self._start_timeout_s:g} s"
            ) from None
        except UpstreamProtocolError:
            self._era.forget()
            raise
        self._info = info
        where = self._transport.describe()
        log.info("upstream_connected", upstream=self._name, transport=where, version=info.version)

    async def _greet_legacy(self) -> ServerInfo:
        """The handshake; discovery after all where the server refuses it as only modern ones do (VER-011)."""
        try:
            return await self._shake_hands()
        except _ModernServer:
            if not self._era.corrected(Era.MODERN):
                raise
            return await self._discover()

    async def _shake_hands(self) -> ServerInfo:
        """initialize, its answer, initialized: first, in this order, never cancelled (VER-015, VER-017)."""
        params = initialize_params(self._capabilities, CLIENT_NAME, self._client_version)
        info = ServerInfo.parse(await self._greet(names.INITIALIZE, params))
        self._transport.established(info.version)
        await self._send(jsonrpc.notification(names.INITIALIZED))
        return info

    async def _discover(self) -> ServerInfo:
        info = ServerInfo.parse_discovered(
            await self._greet(names.DISCOVER, dumps({names.META: self._own_meta()}))
        )
        self._transport.established(info.version)
        return info

    async def _greet(self, method: str, params: bytes) -> bytes:
        """The raw result of the first request of a session."""
        call = self._table.add(method, None, _Nobody())
        try:
            await self._send(jsonrpc.request(call.id, method, params), call=call.id)
            await call.ended.wait()
        finally:
            self._table.remove(call)
        match call.result():
            case Result(raw):
                return raw
            case Failure(error):
                said = error[:200].decode(errors="replace")
                kind = _ModernServer if error_code(error) in MODERN_CODES else UpstreamProtocolError
                raise kind(f"upstream '{self._name}' refused {method}: {said}")

    def _own_meta(self) -> dict[str, Any]:
        """The `_meta` of a request of our own to a modern server."""
        return request_meta(self._capabilities, CLIENT_NAME, self._client_version)

    def leave(self) -> None:
        """A later process will go on with a call that is in flight here; see `base.Transport`."""
        self._transport.leave()

    def close(self) -> None:
        """End the session in an orderly way; `run` returns when that is done. No new calls from now on."""
        self._stale.set()
        self._transport.close()

    @property
    def mirrors_params(self) -> bool:
        """Whether the server wants some arguments of its tools as headers, too."""
        return self._has_headers and self.info.era is Era.MODERN

    async def wait_delivered(self) -> None:
        """Until what nobody waits for has been handed over, such as the notice that a call is cancelled."""
        if self._loss is None:
            await self._posts.wait_delivered()

    @property
    def info(self) -> ServerInfo:
        assert self._info is not None  # set before `started`
        return self._info

    @property
    def is_alive(self) -> bool:
        """Whether new calls may be sent here."""
        return self._info is not None and not self._stale.is_set()

    @property
    def loss(self) -> UpstreamError | None:
        """Why no answer can come any more, if that is so."""
        return self._loss

    async def wait_ended(self) -> None:
        """Until new calls need another session; those in flight here may still be answered."""
        await self._stale.wait()

    async def wait_gone(self) -> None:
        """Until nothing of the connection is left."""
        await self._gone.wait()

    def __repr__(self) -> str:
        state = "ENDED" if self._stale.is_set() else "STARTING" if self._info is None else "READY"
        where = self._transport.describe()
        era, pending = self._era.known or "unknown", len(self._table)
        return f"<Upstream '{self._name}' {where} {era} {state}, {pending} pending>"

    # -- calls --------------------------------------------------------------------------------------

    @property
    def calls(self) -> list[PendingCall]:
        """Those in flight, oldest first."""
        return list(self._table)

    async def call(
        self,
        method: str,
        params: RawObject | bytes | None,
        listener: CallListener,
        *,
        want_progress: bool,
        task: bytes | None = None,
        upstream_task: str | None = None,
        on_sent: Callable[[int], None] | None = None,
        headers: Headers = NO_HEADERS,
    ) -> Outcome:
        """Send a modern request's method and params, translated, and wait for the upstream's answer.

        Raises UpstreamError if no answer can come. If it is cancelled, the upstream is told with our id
        and nobody waits for its answer. The wait itself has no bound here: whoever calls has one.

        `task` is the raw member that has the upstream make a 2025 task of its own of the call,
        `upstream_task` the one whose result is waited for: that wait ends without a word. `on_sent` is told
        our id. `headers` are mirrored parameters, for a modern server over HTTP.
        """
        await checkpoint()  # who is cancelled already sends nothing (CANC-004)
        member = names.NAME_MEMBER.get(method)
        pending = self._table.add(method, member and lower_name(params, member), listener)
        pending.begun = self._clock.monotonic()
        pending.upstream_task = upstream_task
        try:
            token = pending.id if want_progress else None
            if _is_large(params):
                message = await aside(partial(self._written, pending.id, method, params, token, task))
            else:
                message = self._written(pending.id, method, params, token, task)
            self._questions.begin(pending)
            if on_sent is not None:
                on_sent(pending.id)
            await self._send(message, call=pending.id, headers=headers)
            del message  # which may be large, as the wait may be long
            await pending.ended.wait()
        except anyio.get_cancelled_exc_class():
            self._give_up(pending)
            raise
        finally:
            self._retire(pending)
        return pending.result()

    def _written(
        self,
        id: int,
        method: str,
        params: RawObject | bytes | None,
        token: int | None,
        task: bytes | None,
    ) -> bytes:
        """The request as the server is to get it."""
        translated = self._translated(method, params, token)
        if task is not None:
            translated = splice(translated if translated is not None else b"{}", {"task": task})
        message = jsonrpc.request(id, method, translated)
        return message if self._has_headers else one_line(message)

    def _translated(self, method: str, params: RawObject | bytes | None, token: int | None) -> bytes | None:
        if self.info.era is Era.MODERN:
            return with_progress_token(params, token)
        return lower_params(method, params, token)

    def take_up(
        self, position: StreamPosition, method: str, name: str, listener: CallListener
    ) -> PendingCall:
        """A call that an earlier process sent is in flight again: the rest of its stream is fetched, from
        where it was left. For sessions that are adopted. `answer_to` must be called next."""
        assert self._take_up is not None
        pending = self._table.restore(position.call_id, method, name, listener)
        pending.begun = self._clock.monotonic()
        self._take_up(position.call_id, position.event_id)
        return pending

    async def answer_to(self, pending: PendingCall) -> Outcome:
        """Wait for it. Raises UpstreamError if no answer can come; cancelled, it is cancelled upstream."""
        try:
            await pending.ended.wait()
        except anyio.get_cancelled_exc_class():
            self._give_up(pending)
            raise
        finally:
            self._retire(pending)
        return pending.result()

    def asked_before(
        self, call_id: int, rid: RequestId, method: str, params: bytes | None
    ) -> Question | None:
        """A question that an earlier process was asked during the call, open again; None if that is over."""
        pending = self._table.get(call_id)
        return None if pending is None else self._questions.restore(pending, Request(rid, method, params))

    def _give_up(self, pending: PendingCall) -> None:
        """Nobody waits for it any more: the upstream is told, unless it has answered."""
        if pending in self._table and pending.upstream_task is None:
            self.cancel_call(pending.id)

    def _retire(self, pending: PendingCall) -> None:
        """Nobody waits for it any more."""
        self._table.remove(pending)
        self._transport.abandon(pending.id)
        self._questions.end(pending)

    def cancel_call(self, call_id: int) -> None:
        """Tell the upstream that nobody waits any more for this call, be it of an earlier process."""
        notice = cancelled_params(call_id, "no longer needed")
        self._posts.post(jsonrpc.notification(names.CANCELLED, notice))

    def cancel_task(self, task_id: str) -> None:
        """Have the upstream cancel a 2025 task of its own (T25-CAN-006)."""
        self.post(names.TASKS_CANCEL, dumps({"taskId": task_id}))

    def post(self, method: str, params: bytes) -> None:
        """A request whose answer nobody waits for; `params` go out as they are."""
        self._posts.post(jsonrpc.request(self._table.new_id(), method, params))

    async def ask(self, method: str, params: bytes | None) -> Outcome:
        """A request of our own, bounded by ASK_TIMEOUT_S. Raises UpstreamError, also in time-outs."""
        if self.info.era is Era.MODERN:
            params = splice(params if params is not None else b"{}", {names.META: dumps(self._own_meta())})
        try:
            with anyio.fail_after(ASK_TIMEOUT_S):
                return await self.call(method, params, _Nobody(), want_progress=False)
        except TimeoutError:
            raise UpstreamTimeout(f"upstream '{self._name}' did not answer {method} in time") from None

    async def doubt(self) -> None:
        """The server answered as one of the other era might: ask it again what it is (VER-009). If it has
        changed, say by a new deployment, new calls get a session of the right kind."""
        if not self._has_headers or not self.is_alive or not self._era.may_doubt(self._clock.monotonic()):
            return
        params = dumps({names.META: self._own_meta()})
        try:
            with anyio.fail_after(ASK_TIMEOUT_S):
                outcome = await self.call(names.DISCOVER, params, _Nobody(), want_progress=False)
        except UnexpectedStatus as exc:
            if exc.upstream_status in SERVER_ERRORS:
                return
            outcome = None
        except (UpstreamRefused, UpstreamUnavailable, TimeoutError):
            return  # 401, 403, 5xx and nobody there decide nothing
        except UpstreamError:
            outcome = None
        is_modern = _is_of_modern(outcome)
        if self.info.era is Era.MODERN and not is_modern and self._loss is None:
            self._era.forget()
        elif self.info.era is Era.LEGACY and is_modern:
            self._era.corrected(Era.MODERN)
        else:
            return
        log.warning("upstream_era_changed", upstream=self._name)
        self._stale.set()

    async def ensure_log_level(self, level: str) -> None:
        """Have the upstream log at least from `level` on (LOG-004). A refusal is not told the client."""
        if self.info.era is Era.LEGACY and self.info.declares("logging"):  # else each request says it
            await self._log_level.ensure(level)

    async def watch_resource(self, uri: str) -> None:
        """Subscribe once per URI, however many listen (SUB-010). Raises UpstreamError if that fails."""
        await self._resources.watch(uri)

    async def unwatch_resource(self, uri: str) -> None:
        """The last one to go unsubscribes upstream (SUB-008). Bounded, and cannot fail."""
        if self.is_alive:
            await self._resources.unwatch(uri)

    # -- what goes out --------------------------------------------------------------------------------

    async def _send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        """Raises UpstreamError; SessionUnknown and ServerGone mean that it ran nowhere."""
        if self._loss is not None:
            raise self._unsent(self._loss)
        try:
            await self._transport.send(message, call=call, headers=headers)
        except SessionLost:
            self._stale.set()
            raise
        except ServerGone:
            with anyio.move_on_after(END_TOLD_S):  # so that nobody else comes here
                await self._stale.wait()
            if self._loss is None:
                raise
            raise self._unsent(self._loss) from None

    @staticmethod
    def _unsent(loss: UpstreamError) -> UpstreamError:
        """What becomes of a message that comes after the end. Of what came before, it may not be known."""
        if not isinstance(loss, UpstreamClosed):
            return loss.with_traceback(None)
        words = f"{loss.message.removesuffix(OUTCOME_UNKNOWN).rstrip('; ')}; the message was not sent"
        return SessionUnknown(words) if isinstance(loss, SessionLost) else ServerGone(words)

    # -- what comes in (base.Receiver) ----------------------------------------------------------------

    def received(self, message: bytes, call: int | None) -> None:
        self._inbox.take(message, call)

    def lost(self, call: int | None, error: UpstreamError) -> None:
        if call is None:
            self._loss = self._loss or error
            self._table.lose_all(error)
        elif (pending := self._table.get(call)) is not None:
            self._table.lose(pending, error)
        if call is None or isinstance(error, SessionLost):
            self._stale.set()

    def moved(self, call: int, position: Position) -> None:
        pending = self._table.get(call)
        if pending is not None:
            pending.listener.on_position(position)

    def _changed(self, method: str, params: bytes | None) -> None:
        if method == names.TOOLS_LIST_CHANGED:
            self.catalogue.forget()
        self._on_change(method, params)


def _is_large(params: RawObject | bytes | None) -> bool:
    return params is not None and len(params.raw if isinstance(params, RawObject) else params) > LARGE


def _is_of_modern(outcome: Outcome | None) -> bool:
    """Whether only a modern server answers `server/discover` so."""
    match outcome:
        case Result(raw):
            return is_discovered(raw)
        case Failure(error):
            return error_code(error) in MODERN_CODES
        case None:
            return False


class _ModernServer(UpstreamProtocolError):
    """The handshake was refused with an error that only modern servers send."""


class _Nobody:
    """The listener of requests of our own."""

    def on_notification(self, method: str, params: bytes | None) -> None:
        """Nothing to tell anybody."""

    def on_question(self, question: Question) -> None:
        question.refuse(jsonrpc.error_object(ErrorCode.METHOD_NOT_FOUND, "no client is concerned"))

    def on_withdrawn(self, question: Question) -> None:
        """Was refused already."""

    def on_position(self, position: Position) -> None:
        """A later process has no use for it."""
