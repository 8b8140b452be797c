"""One POST of a legacy client that has requests in it: what it waits for, and how it is answered.

Above: `http_session`, which has those of a session, and `session_layer`, which writes the reply. Below: a
stream of the session. Plain JSON where the answers come soon and nothing else is to be said; else an event
stream. Transports 2025-11-25, "Sending Messages to the Server".
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from proxy.clock import Clock
from proxy.errors import LimitReached, NoCredential, ProxyError, UpstreamRefused
from proxy.protocol import names, sse
from proxy.protocol.jsonrpc import Request
from proxy.routing.legacy import JSON, STREAM_HEADERS, Reply
from proxy.sessions.stream import Reader, Stream

QUIET_S: Final = 10.0  # a stream begins: whatever is in the middle cuts at 20 or more
PRIMED_IN: Final = "2025-11-25"
"""The revision that primes a stream, and whose clients come back to it."""

_OF_HTTP: Final = (UpstreamRefused, NoCredential, LimitReached)

Headers = Sequence[tuple[str, str]]


class Post:
    """Its requests are open until each is answered. It is read from the start; `leave` when it is not."""

    def __init__(
        self,
        requests: Sequence[Request],
        stream: Stream,
        *,
        takes_stream: bool,
        is_batch: bool,
        is_kept: bool = False,
    ) -> None:
        """`is_kept`: it is for tasks of ours."""
        self.open = {r.id.value: Request(r.id, r.method, None) for r in requests}
        self.stream = stream
        self.fault: ProxyError | None = None
        self._methods = frozenset(request.method for request in requests)
        self._takes_stream = takes_stream
        self._is_batch = is_batch
        self._is_kept = is_kept
        self._is_stream = False
        self._reader = stream.attach()

    def __repr__(self) -> str:
        return f"<Post {sorted(self._methods)}, {len(self.open)} open, {self.stream}>"

    @property
    def can_be_told(self) -> bool:
        """Whether its client sees what is said on the stream, or may come back for it. Nothing but the
        answer belongs to a handshake (VER-023)."""
        return (
            self._takes_stream
            and (self.stream.is_read or self.stream.has_ids)
            and names.INITIALIZE not in self._methods
        )

    @property
    def carries_input(self) -> bool:
        return bool(self._methods & names.CARRIES_INPUT)

    async def begin(self, version: str | None, clock: Clock) -> None:
        """Until it is known what the reply is. Raises UpstreamRefused for the server's own 401 or 403,
        NoCredential where it was not even asked, and LimitReached for a bound of ours: the client has to see
        them as such."""
        self._is_stream = await self._becomes_stream(version, clock)
        if isinstance(self.fault, _OF_HTTP) and not self._is_stream and not self._is_batch:
            raise self.fault

    async def _becomes_stream(self, version: str | None, clock: Clock) -> bool:
        if self._takes_stream and version == PRIMED_IN and self.carries_input and not self._is_kept:
            return True  # a client that drops it early can come back; a task is made, or refused, soon
        while not self.stream.has_ended:
            changed = self.stream.changed.event
            if not self._takes_stream:
                await changed.wait()
            elif self.stream.has_news or not await clock.wait(changed, QUIET_S):
                return True
        return self._takes_stream and self.stream.has_news

    def reply(self, version: str | None, headers: Headers) -> Reply:
        """The reply, once it has begun."""
        if self._is_stream:
            return stream_reply(self._reader, version, headers)
        return Reply(HTTPStatus.OK, [JSON, *headers], self._as_json())

    def _as_json(self) -> bytes:
        answers = self.stream.messages
        return b"[" + b",".join(answers) + b"]" if self._is_batch else answers[0]

    def leave(self) -> None:
        """Its client reads no more."""
        self._reader.leave()


def stream_reply(reader: Reader, version: str | None, headers: Headers) -> Reply:
    """An event stream. Its first block comes at once: some hold back even the status until then (F03)."""
    first = reader.priming() if version == PRIMED_IN else sse.comment()
    return Reply(HTTPStatus.OK, [*STREAM_HEADERS, *headers], _Blocks(first, reader))


class _Blocks:
    """The blocks of a stream. No generator: one that is cancelled while it is written needs no clean-up."""

    def __init__(self, first: bytes, reader: Reader) -> None:
        self._first: bytes | None = first
        self._reader = reader

    def __aiter__(self) -> _Blocks:
        return self

    async def __anext__(self) -> bytes:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        blocks = await self._reader.blocks()
        if blocks is None:
            raise StopAsyncIteration
        return blocks
