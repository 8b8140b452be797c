"""HTTP+SSE of 2024-11-05 towards a legacy upstream: one instance is one of its sessions.

Above: `session`, through `base.Transport`, by way of `auto`; below: `endpoint`, `acceptance`. Whatever the
server says comes on one event stream, opened by GET; its first event, `endpoint`, names the address to
which our messages go by POST. Transports 2024-11-05, "HTTP with SSE".

The stream is the session: if it ends, everything in flight is lost, and a new one needs a new handshake.
Nothing on it says which call an event belongs to. A POST is never sent twice, but for one that was refused
for our own credential (`endpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPMethod, HTTPStatus
from typing import Final

import aiohttp
import anyio
from anyio.abc import TaskGroup
from anyio.abc import TaskStatus as StartStatus

from proxy.clock import Clock
from proxy.errors import UpstreamClosed, UpstreamError, UpstreamUnavailable
from proxy.protocol.names import H_PROTOCOL_VERSION, LEGACY_VERSIONS
from proxy.protocol.sse import MESSAGE, Event
from proxy.upstream import replies
from proxy.upstream.acceptance import REFUSED, Handovers, error_body, fault
from proxy.upstream.base import NO_HEADERS, Headers, Receiver, Verdicts
from proxy.upstream.endpoint import OUTCOME_UNKNOWN, Answer, Endpoint

ENDPOINT_TIMEOUT_S: Final = 10.0  # from the start to the endpoint event; a slow host takes three of them
DRAIN_TIMEOUT_S: Final = 2.0  # between the answer and the 202, so that connections are reused

_ENDPOINT: Final = "endpoint"
_WITHOUT_VERSION_HEADER: Final = LEGACY_VERSIONS[0]  # the one revision that this transport is of


@dataclass(slots=True, eq=False)
class _Post:
    """A request that the server has not accepted yet."""

    call: int
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    told: bool = False  # its answer came first, or nobody waits for it any more

    def note_answer(self) -> None:
        self.told = True
        self.scope.deadline = anyio.current_time() + DRAIN_TIMEOUT_S


class SseTransport:
    """`base.Transport` over HTTP+SSE. `max_depth` is the nesting that the receiver takes, too.

    `run` raises any UpstreamError before `started`, and then tells the receiver nothing. `endpoint_prefix`
    is for a server that does not know its place behind a reverse proxy: see `Endpoint.named_by`.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        max_bytes: int,
        client: aiohttp.ClientSession,
        headers: Callable[[], Mapping[str, str]],
        verdicts: Verdicts | None = None,
        clock: Clock,
        max_depth: int = 512,
        endpoint_prefix: str | None = None,
    ) -> None:
        self._stream = Endpoint(
            url, name=name, client=client, headers=headers, verdicts=verdicts, gets_count=True
        )
        self._address: Endpoint | None = None  # of the messages
        self._endpoint_prefix = endpoint_prefix
        self._who = f"upstream {name!r}"
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        self._clock = clock
        self._version: str | None = None
        self._posts: dict[int, _Post] = {}
        self._handovers = Handovers(self._who)
        self._receiver: Receiver
        self._group: TaskGroup | None = None
        self._settled = anyio.Event()  # the address is known, or will never be
        self._ending = anyio.Event()
        self._error: UpstreamError | None = None

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        self._receiver = receiver
        started = False
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._listen)
                if not await self._clock.wait(self._settled, ENDPOINT_TIMEOUT_S):
                    self._end(self._no_endpoint(f"within {ENDPOINT_TIMEOUT_S:.0f} s"))
                if self._error is None:
                    started = True
                    task_status.started()
                    await self._ending.wait()
                group.cancel_scope.cancel()
        finally:
            self._end(UpstreamClosed(f"{self._who}: the session was stopped; {OUTCOME_UNKNOWN}"))
            self._handovers.end()
            assert self._error is not None
            if started:
                receiver.lost(None, self._error)
        if not started:
            raise self._error

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        if self._group is None or self._address is None or self._ending.is_set():
            raise UpstreamClosed(f"{self._who}: the session is closed, nothing was sent")
        if call is None:
            with self._handovers.one():
                await self._post(message, self._address)
            return
        assert call not in self._posts, "ids are used once"
        self._posts[call] = _Post(call)
        self._group.start_soon(self._serve, self._posts[call], message, self._address)

    def abandon(self, call: int) -> None:
        post = self._posts.get(call)
        if post is not None and not post.told:  # then it ends soon, and its connection is kept
            post.told = True
            post.scope.cancel()

    def established(self, version: str) -> None:
        self._version = version

    def leave(self) -> None:
        """See `Transport`. The session is its stream, and ends with it."""

    def close(self) -> None:
        self._end(UpstreamClosed(f"{self._who}: the session was closed; {OUTCOME_UNKNOWN}"))

    def describe(self) -> str:
        return f"sse {self._stream}"

    def __repr__(self) -> str:
        return f"<SseTransport {self._stream} {len(self._posts)} on their way>"

    def _end(self, error: UpstreamError) -> None:
        if self._error is None:
            self._error = error
        self._ending.set()
        self._settled.set()

    # The stream, and what comes on it.

    async def _listen(self) -> None:
        """The life of the stream; its end is that of the session."""
        try:
            async with self._stream.open(HTTPMethod.GET, {"Accept": "text/event-stream"}) as answer:
                await self._require_stream(answer)
                await answer.read_events(self._max_bytes, self._take)
        except UpstreamClosed as exc:
            self._end(self._no_endpoint("and broke the connection") if self._address is None else exc)
        except UpstreamError as exc:
            self._end(exc)
        else:
            closed = UpstreamClosed(f"{self._who} ended the event stream; {OUTCOME_UNKNOWN}")
            self._end(self._no_endpoint("and ended the stream") if self._address is None else closed)

    def _no_endpoint(self, how: str) -> UpstreamUnavailable:
        return UpstreamUnavailable(f"{self._who} sent no endpoint event {how}")

    async def _require_stream(self, answer: Answer) -> None:
        """Raises UpstreamError, with the server's words, if this is no event stream."""
        if answer.status in REFUSED:
            raise answer.refusal()
        if not answer.is_event_stream:
            body = await error_body(answer, self._max_bytes)
            raise answer.unexpected(answer.words(body), ran_nothing=True)
        answer.require_plain()

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.event == _ENDPOINT and event.data:
                reference = event.data.decode("utf-8", "replace").strip()
                self._address = self._stream.named_by(reference, self._endpoint_prefix)
                self._settled.set()
            elif event.event == MESSAGE and event.data:
                self._deliver(event.data)

    def _deliver(self, raw: bytes) -> None:
        for message in replies.messages(raw, self._max_depth):
            if self._posts:
                self._note_answer(message)
            self._receiver.received(message, None)

    def _note_answer(self, message: bytes) -> None:
        """An answer can come before the 202 of its request; the rest of that POST is of no interest then."""
        reply = replies.response_in(message, self._max_depth)
        if reply is not None:
            for post in self._posts.values():
                if replies.is_for(reply, post.call):
                    post.note_answer()

    # What goes out.

    async def _serve(self, post: _Post, message: bytes, address: Endpoint) -> None:
        """A request's way to the server. The session's own end is told by `run`."""
        with post.scope:
            try:
                await self._post(message, address)
            except UpstreamError as exc:
                if not post.told:
                    self._receiver.lost(post.call, exc)
        del self._posts[post.call]

    async def _post(self, message: bytes, address: Endpoint) -> None:
        """Returns once the server has accepted it. Raises UpstreamError if it has not."""
        headers = {"Content-Type": "application/json"}
        if self._version not in (None, _WITHOUT_VERSION_HEADER):
            headers[H_PROTOCOL_VERSION] = self._version
        async with address.open(HTTPMethod.POST, headers, message) as answer:
            if not answer.ok:
                body = await error_body(answer, self._max_bytes)
                raise fault(answer, body, self._max_depth, gone=answer.status == HTTPStatus.NOT_FOUND)
