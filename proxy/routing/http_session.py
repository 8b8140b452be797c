"""One session of a legacy client over HTTP, before a server that has none of its own: stdio, HTTP+SSE.

Above: `session_layer`. Below: a `Passthrough`, whose `Client` this is, and the session's event streams. What
the server says goes on the stream of the POST that it belongs to, else on the one that GET listens to; a
message goes on one stream only (HTTP-065). Transports 2025-11-25, "Session Management"; contract section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, Protocol

import anyio

from proxy.clock import Clock, Pulse
from proxy.eras.tasks_2025 import related_task
from proxy.errors import ClientProtocolError, ErrorCode, ProxyError, UpstreamClosed
from proxy.limits import Gauge
from proxy.logs import get_logger
from proxy.owners import Owner
from proxy.protocol import jsonrpc, names
from proxy.protocol.jsonrpc import (
    ErrorResponse,
    Message,
    Notification,
    Request,
    RequestId,
    ResultResponse,
)
from proxy.routing.http_posts import Post
from proxy.routing.in_flight import rid_in
from proxy.routing.offers import Channel
from proxy.routing.own_server import Client, version_in
from proxy.routing.session_questions import SessionQuestions
from proxy.sessions.stream import Stream
from proxy.sessions.streams import Streams

ABANDONED_S: Final = 86_400.0  # a call that nobody reads the answer of keeps its session no longer

_CANCELLED: Final = jsonrpc.error_object(ErrorCode.INTERNAL_ERROR, "Request cancelled")

log = get_logger()


class Server(Protocol):
    """What the client's messages go to: a `Passthrough`, or what stands before one."""

    async def run(self) -> None: ...

    async def close(self, *, after_tasks: bool = False) -> None: ...

    def from_client(self, message: Message, raw: bytes) -> None: ...

    def keeps(self, request: Request) -> bool: ...

    def channels_changed(self) -> None: ...

    @property
    def runs_tasks(self) -> bool: ...


class HttpSession:
    """Implements `own_server.Client`. `run` must be running; it returns when nothing of the session is left.

    `answered` beats whenever the client waits for less. Each request has a place of `calls` until it is
    answered, whether its client still waits or not: but for the handshake, since each has a session, and for
    what the server `keeps` for tasks, which must be served also where calls have taken all places. That has
    one of `requests`, like each HTTP request, also when its client has gone.
    """

    def __init__(
        self,
        id: str,
        owner: Owner,
        make_server: Callable[[Owner, Client], Server],
        clock: Clock,
        answered: Pulse,
        calls: Gauge,
        requests: Gauge,
    ) -> None:
        self.id = id
        self.owner = owner
        self.version: str | None = None  # negotiated; None as long as there was no handshake
        self._over = anyio.Event()
        self._at_once = anyio.Event()
        self._clock = clock
        self._answered = answered
        self._calls = calls
        self._requests = requests
        self._used = clock.monotonic()
        self._posts: dict[int | str, Post] = {}
        self._sent: dict[int | str, Callable[[], None]] = {}  # each gives back its place
        self._left: dict[int | str, Callable[[], None]] = {}
        self._streams = Streams(clock, self._readers_changed)
        self._server = make_server(owner, self)
        self._questions = SessionQuestions(clock, self._server.from_client)

    def __repr__(self) -> str:
        state = "OVER" if self.is_over else self.version or "NEW"
        return f"<HttpSession {state}, {len(self._posts)} open, {self._streams}, {self._server}>"

    # -- life ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is over, and its server has ended. A fault of ours in it is not the others'."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._server.run)
                tasks.start_soon(self._questions.expire)
                await self._over.wait()
                tasks.start_soon(self._hurry)
                await self._server.close(after_tasks=not self._at_once.is_set())
                tasks.cancel_scope.cancel()
        except* Exception:
            log.exception("session_failed")
        finally:
            self.end("the session was ended")

    async def _hurry(self) -> None:
        await self._at_once.wait()
        await self._server.close()

    def end(self, reason: str, *, at_once: bool = False) -> None:
        """The session is over for its client, and what it waits for is answered with an error. Its server
        ends after the tasks that run there, or `at_once`."""
        if not self.is_over:
            log.info("session_ended", reason=reason)
        self._over.set()
        if at_once:
            self._at_once.set()
        fault = UpstreamClosed(f"{reason} while the request was in flight; outcome unknown")
        for post in set(self._posts.values()):
            for request in list(post.open.values()):
                self._settle(request.id, post, _error(request.id, fault))
        self._streams.end()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @property
    def idle_since(self) -> float | None:
        """Since when nobody has used it; None if a call, a task or a stream is there."""
        since = self.unread_since
        if since is None or not self._posts:
            return since
        return since if self._clock.monotonic() - since >= ABANDONED_S else None

    @property
    def unread_since(self) -> float | None:
        """As `idle_since`, but whether calls are in flight or not: their client is not there."""
        return None if self._server.runs_tasks or self._streams.any_open else self._used

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for an answer."""
        return bool(self._posts)

    @property
    def has_calls(self) -> bool:
        """Whether any of `calls` are held."""
        return bool(self._sent)

    def forget(self, left_s: float) -> None:
        """Drop what nobody comes back for, and give up waiting for what tasks bring where nobody has listened
        for `left_s`; to be called now and then. A task does not notice, and can be asked again."""
        self._streams.forget()
        now = self._clock.monotonic()
        for value in list(self._left):
            post = self._posts[value]
            if (left_at := post.stream.left_at) is not None and now - left_at >= left_s:
                self._give_up(post.open[value].id)

    def _give_up(self, rid: RequestId) -> None:
        params = b'{"requestId":' + rid.raw + b"}"
        cancelled = jsonrpc.notification(names.CANCELLED, params)
        self._take_one(Notification(names.CANCELLED, params), cancelled)

    # -- streams ------------------------------------------------------------------------------------

    @property
    def listening(self) -> Stream:
        """What a GET listens to."""
        return self._streams.listening

    def find(self, event_id: str) -> tuple[Stream, int]:
        """The stream of an event, and its number. Raises ClientProtocolError for what is none of this
        session's, or is known no more (F24)."""
        found = self._streams.find(event_id)
        if found is None:
            raise ClientProtocolError(ErrorCode.INVALID_REQUEST, "Invalid request: no such event id")
        return found

    def _readers_changed(self) -> None:
        self._used = self._clock.monotonic()
        if self.listening.is_open:
            self._questions.claim(self.listening)
        self._server.channels_changed()

    # -- from the client ----------------------------------------------------------------------------

    def take(
        self, messages: Sequence[tuple[Message, bytes]], *, takes_stream: bool, is_batch: bool
    ) -> Post | None:
        """The messages of one POST. None if nothing of it is to be answered.

        Raises ClientProtocolError for an id that is in flight already, and LimitReached if there are too many
        calls; then nothing was sent on.
        """
        self._used = self._clock.monotonic()
        requests = [message for message, _ in messages if isinstance(message, Request)]
        self._refuse_known_ids(requests)
        kept = [request for request in requests if self._server.keeps(request)]
        if self.version is not None:  # else it is the handshake: nobody can send anything before
            self._sent |= self._hold_places([request for request in requests if request not in kept])
        post: Post | None = None
        if requests:
            post = Post(
                requests,
                self._streams.open(),
                takes_stream=takes_stream,
                is_batch=is_batch,
                is_kept=bool(kept),
            )
            for request in requests:
                self._posts[request.id.value] = post
            if post.carries_input and post.can_be_told:
                self._questions.claim(post.stream)
        for message, raw in messages:
            self._take_one(message, raw)
        return post

    def _refuse_known_ids(self, requests: Sequence[Request]) -> None:
        known = set(self._posts)
        for request in requests:
            if request.id.value in known:
                raise ClientProtocolError(
                    ErrorCode.INVALID_REQUEST, "Invalid request: the id is that of a request in flight"
                )
            known.add(request.id.value)

    def _hold_places(self, requests: Sequence[Request]) -> dict[int | str, Callable[[], None]]:
        """One for each, or none."""
        places: dict[int | str, Callable[[], None]] = {}
        with ExitStack() as taken:
            for request in requests:
                places[request.id.value] = taken.callback(self._calls.take(self.owner))
            taken.pop_all()
        return places

    def _take_one(self, message: Message, raw: bytes) -> None:
        self._server.from_client(message, raw)
        match message:
            case ResultResponse(rid, result):
                self._questions.answered(rid, result)
            case ErrorResponse(rid) if rid is not None:
                self._questions.answered(rid, None)
            case Notification(names.ROOTS_LIST_CHANGED):
                self._questions.roots_changed()
            case Notification(names.CANCELLED, params) if (rid := rid_in(params, "requestId")) is not None:
                self._cancel(rid)
            case _:
                pass

    def _cancel(self, rid: RequestId) -> None:
        """The server need not answer what was cancelled, but the POST has to end; and a client that can come
        back to its stream would do so until there is an answer. One that comes late is dropped (F04)."""
        post = self._posts.get(rid.value)
        if post is not None and post.open[rid.value].method != names.INITIALIZE:
            request = post.open[rid.value]
            self._settle(request.id, post, jsonrpc.error_response(request.id, _CANCELLED))

    def leave(self, post: Post) -> None:
        """The client of this POST reads no more. That cancels nothing (HTTP-063)."""
        post.leave()
        for value in post.open.keys() - self._sent.keys() - self._left.keys():
            self._left[value] = self._requests.count(self.owner)  # that of the HTTP request is given back now
        if not post.stream.has_ids:
            self._streams.drop(post.stream)

    # -- from the server (own_server.Client) ----------------------------------------------------------

    def answer(self, rid: RequestId | None, message: bytes) -> None:
        post = None if rid is None else self._posts.get(rid.value)
        if rid is None or post is None:
            log.debug("late_answer_dropped")
            return
        if post.open[rid.value].method == names.INITIALIZE:
            self._note_initialized(message)
        self._settle(rid, post, message)

    def fail(self, rid: RequestId, fault: ProxyError) -> None:
        if (post := self._posts.get(rid.value)) is not None:
            post.fault = fault
        self.answer(rid, _error(rid, fault))

    def sends_on(self, rid: RequestId) -> None:
        if rid.value in self._posts:
            self._sent[rid.value] = self._calls.take(self.owner)

    def ask(self, request: Request, message: bytes, call: RequestId | None) -> None:
        if request.method == names.PING:  # also with no client there (PING-001)
            self._questions.answer(request, b"{}")
        else:
            listening = self.listening if self.listening.is_open else None
            self._questions.ask(request, message, self._stream_of(call) or listening)

    def channel(self, call: RequestId | None) -> Channel | None:
        return self.listening if call is None else self._stream_of(call)

    def tell(self, notification: Notification, message: bytes, call: RequestId | None) -> None:
        stream = self._stream_of(call)
        match notification:
            case Notification(names.CANCELLED, params) if (rid := rid_in(params, "requestId")) is not None:
                self._questions.withdraw(rid, message, self.listening)
            case Notification(names.PROGRESS, params) if stream is None and related_task(params) is None:
                log.debug("progress_dropped")  # of nothing that is in flight, or that nobody reads (PROG-001)
            case _:
                (stream or self.listening).send(message)

    def _stream_of(self, call: RequestId | None) -> Stream | None:
        """That of a request in flight, if its client can be told anything but the answer."""
        post = None if call is None else self._posts.get(call.value)
        return post.stream if post is not None and post.can_be_told else None

    def _settle(self, rid: RequestId, post: Post, message: bytes) -> None:
        """One request of a POST is answered; with the last one its stream ends (HTTP-062)."""
        del self._posts[rid.value]
        for places in (self._sent, self._left):
            if (give_back := places.pop(rid.value, None)) is not None:
                give_back()
        del post.open[rid.value]
        post.stream.answer(message)
        if not post.open:
            post.stream.end()
            if not post.stream.is_read and not post.stream.has_ids:
                self._streams.drop(post.stream)
        self._used = self._clock.monotonic()
        self._answered.beat()

    def _note_initialized(self, message: bytes) -> None:
        answer = jsonrpc.parse_checked(message)
        if isinstance(answer, ResultResponse):
            self.version = version_in(answer)


def _error(rid: RequestId, fault: ProxyError) -> bytes:
    return jsonrpc.error_response(rid, jsonrpc.error_object(fault.code, fault.message, fault.data))
