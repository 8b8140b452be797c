"""The seams of the upstream side.

For `routing`: `Session` (one legacy session with a server), `Outcome`, `Question`, `CallListener`.
Between `session` and the transports: `Transport` (moves whole JSON-RPC messages as bytes) and
`Receiver` (is told what came); `TransportChoice` is for transports that stand before others. For pass-through
over HTTP, where nothing is to be understood: `Forwarder`. All of it runs in one event loop; methods that are
not `async` never block and may be called from a reader loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from anyio.abc import TaskStatus as StartStatus

from proxy.eras.era import Era
from proxy.errors import ProxyError, UpstreamError
from proxy.protocol.jsonrpc import RequestId


@dataclass(frozen=True, slots=True)
class Result:
    """The upstream answered with a result: its raw JSON."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """The upstream answered with a JSON-RPC error: the raw error object."""

    error: bytes


Outcome: TypeAlias = Result | Failure
"""How a call ended where the upstream said so. Losses are raised as UpstreamError instead."""


Headers: TypeAlias = Mapping[str, str]
NO_HEADERS: Final[Headers] = MappingProxyType({})


class Question(Protocol):
    """A request that the upstream sent to its client while a call of ours was in flight."""

    @property
    def id(self) -> RequestId: ...

    @property
    def method(self) -> str: ...

    @property
    def params(self) -> bytes | None: ...

    async def answer(self, result: bytes) -> None:
        """Send `result` (raw JSON) to the asker. Only the first answer or refusal is sent.

        Raises UpstreamError if it could not be handed over; then it may be tried again.
        """
        ...

    async def reject(self, error: bytes) -> None:
        """As `answer`, with a JSON-RPC error (raw error object): that is the client's answer."""
        ...

    def refuse(self, error: bytes) -> None:
        """Send such an error, for there will be no answer, soon; does not wait and cannot fail."""
        ...


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Where the rest of a call's stream can be had by whoever comes back, this process or a later one: in
    this session, for the request of this id, behind this event. `session_id` None: the server has none.
    `event_id` is empty as long as the stream has brought no id.
    """

    session_id: str | None
    version: str
    call_id: int
    event_id: str


@dataclass(frozen=True, slots=True)
class WaitingRound:
    """Nothing of a call is in flight: a modern server waits for what a legacy client answers, and this is
    what its next round needs. `params` and `state` are raw, `offered` is what the client declared;
    `questions` pairs the raw id of each question to the client with the server's key.
    """

    params: bytes
    offered: str
    state: bytes | None
    questions: tuple[tuple[bytes, str], ...]


Position: TypeAlias = StreamPosition | WaitingRound | None
"""How a later process goes on with a call. None: it was waiting, and is in flight again."""


class CallListener(Protocol):
    """Who wants to know what happens during a call. Called from the reader loop: must not block."""

    def on_notification(self, method: str, params: bytes | None) -> None:
        """A notification that belongs to this call; progress comes without our token (`params` as sent)."""
        ...

    def on_question(self, question: Question) -> None:
        """The upstream asks, and the question was attributed to this call."""
        ...

    def on_withdrawn(self, question: Question) -> None:
        """The upstream cancelled its question, or it moved to another call; do not answer it."""
        ...

    def on_position(self, position: Position) -> None:
        """The call's stream was read up to here, and what stands there was told, unless it is the answer; or
        what comes next are the questions of a round that waits for answers."""
        ...


class Receiver(Protocol):
    """What a transport tells. Called from its reader loops: must not block, and does not raise."""

    def received(self, message: bytes, call: int | None) -> None:
        """One JSON text came in whole. `call` is the id of the request of ours on whose response stream
        it came, None where the wire does not tell (stdio, an HTTP session's GET stream).

        The text has not been checked: it may be no JSON at all.
        """
        ...

    def lost(self, call: int | None, error: UpstreamError) -> None:
        """No answer will come any more: to the request `call`, or to anything at all if it is None.

        The latter is said exactly once, as the last thing, also after an orderly end.
        """
        ...

    def moved(self, call: int, position: Position) -> None:
        """The stream of `call` has events with ids: it can be resumed from this place on. Or: see
        `WaitingRound`."""
        ...


class Transport(Protocol):
    """Moves messages between us and one upstream process or HTTP session.

    `run` is started once, in a task group that outlives every request. The other methods may be called
    concurrently while it runs.
    """

    async def run(self, receiver: Receiver, *, task_status: StartStatus[None]) -> None:
        """Connect, call `task_status.started()`, and serve until `close` or the upstream's end.

        Raises UpstreamUnavailable before `started` if there is nothing to connect to. Returns, having
        called `receiver.lost(None, ...)`, when the connection has ended for whatever reason and everything
        it held (process group, sockets) is gone. Cancelling it ends everything at once.
        """
        ...

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        """Hand over one message. `call` is its id if it is a request, which may then be answered. `headers`
        go beside it where the transport has such: the mirrored parameters of a modern call.

        Requests: returns once the message is on its way; what becomes of it is told to the receiver.
        Others (notifications, responses): returns when it was accepted. Raises UpstreamError if it
        was not.
        """
        ...

    def abandon(self, call: int) -> None:
        """Nobody waits for the answer to `call` any more: free what is held for it; say nothing upstream."""
        ...

    def established(self, version: str) -> None:
        """The handshake is done at this protocol version; what depends on that (the version header, the
        GET stream) may start."""
        ...

    def leave(self) -> None:
        """A later process of ours will go on with a call that is in flight here: when this ends, what that
        needs of the upstream is not ended."""
        ...

    def close(self) -> None:
        """Begin an orderly end; `run` returns when it is done. May be called more than once."""
        ...

    def describe(self) -> str:
        """For logs and errors: `stdio pid 4711`, `http https://host/mcp`."""
        ...


class TransportChoice:
    """What the transports that choose another one have in common: all but `run` goes to the one in use."""

    def __init__(self, in_use: Transport) -> None:
        self._in_use = in_use
        self._closing = False
        self._is_established = False  # from then on nothing is chosen any more

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        await self._in_use.send(message, call=call, headers=headers)

    def abandon(self, call: int) -> None:
        self._in_use.abandon(call)

    def established(self, version: str) -> None:
        self._is_established = True
        self._in_use.established(version)

    def leave(self) -> None:
        self._in_use.leave()

    def close(self) -> None:
        self._closing = True
        self._in_use.close()

    def describe(self) -> str:
        return self._in_use.describe()


def _nothing() -> None:
    return None


@dataclass(slots=True)  # never changed; to freeze it costs as much as all else about it
class Forwarded:
    """The upstream's HTTP response to a request that was passed on: its head, and its body as it comes.

    Headers are those that are meant for the client. `chunks` raises UpstreamClosed if the body breaks off.
    `at_hand` takes all of the body that is left, if its end has come in already, so that it is small.
    """

    status: int
    headers: Sequence[tuple[str, str]]
    chunks: AsyncIterator[bytes]
    at_hand: Callable[[], bytes | None] = _nothing

    def header(self, name: str) -> str | None:
        """The first value of a header, whatever its spelling."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)

    @property
    def is_encoded(self) -> bool:
        """Whether the body is compressed."""
        return (self.header("Content-Encoding") or "identity").lower() != "identity"

    @property
    def is_event_stream(self) -> bool:
        kind = (self.header("Content-Type") or "").partition(";")[0]
        return self.status == HTTPStatus.OK and kind.strip().lower() == "text/event-stream"


class Forwarder(Protocol):
    """Passes HTTP requests on to an upstream as they are."""

    def forward(
        self,
        method: str,
        headers: Sequence[tuple[str, str]],
        body: bytes | None = None,
        *,
        query: str = "",
        path: str | None = None,
        plain: bool = False,
    ) -> AbstractAsyncContextManager[Forwarded]:
        """One request; the response's body is read inside. Leaving it early breaks the connection.

        `headers` are the client's, all of them. `path` is another one of the same origin, as it stands in a
        URL. `plain`: the body is to be read here, so nothing but `identity` is asked for. Raises
        UpstreamUnavailable if nothing was sent, UpstreamClosed if the connection broke before a response,
        UpstreamProtocolError for what is not HTTP.
        """
        ...


class KnownServer(Protocol):
    """What is known of an HTTP upstream, as old as the process."""

    is_old: bool
    """Whether it speaks HTTP+SSE, the transport of 2024-11-05."""


class KnownEra(Protocol):
    """What is known of the upstream's era, as old as the process."""

    @property
    def serves_legacy(self) -> bool:
        """Whether legacy clients can be passed through; True as long as nothing says otherwise."""
        ...

    def corrected(self, era: Era) -> bool:
        """The server showed itself to be of this era. False where the settings say otherwise."""
        ...


class Verdicts(Protocol):
    """Is told what the server says to the credentials that it gets."""

    @property
    def is_ours(self) -> bool:
        """Whether the credential is our own, so that no client can do anything about its refusal."""
        ...

    @property
    def wants_all(self) -> bool:
        """Whether it wants to be told of every answer, not only of a 401."""
        ...

    def answered(self, authorization: str | None, status: int, challenges: Sequence[str]) -> None:
        """The server answered a request with this `Authorization` with this status."""
        ...

    async def another(self, refused: str | None) -> bool:
        """Whether another credential is there now than the one that was refused, or (None) that was missing.

        May wait for it, bounded. What was refused has not run: it may be sent once more.
        """
        ...

    def held_up_within(self, seconds: float) -> bool:
        """Whether a request has waited for a credential in the last seconds: it was not the server that was
        silent."""
        ...


class StartListener(Protocol):
    """Is told what attempts to start or reach the server have come to."""

    def works(self) -> None: ...

    def failed(self, fault: ProxyError) -> None: ...
