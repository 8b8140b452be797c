"""The seam between the HTTP entrance and whatever serves legacy clients.

`downstream` reads one HTTP request of a legacy client, judges its form, and hands it to a `LegacyHandler`;
what comes back is an HTTP response to be written as it comes. Two handlers exist: `http_passthrough`, before
servers that speak Streamable HTTP, and `session_layer`, before all others. Contract section 6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http import HTTPMethod, HTTPStatus
from typing import Final, Protocol

from proxy.errors import ClientProtocolError, ErrorCode
from proxy.owners import Owner
from proxy.protocol import names
from proxy.protocol.jsonrpc import Message, Request

_SINGLE: Final = frozenset(
    {names.H_SESSION_ID.lower(), names.H_PROTOCOL_VERSION.lower(), names.H_LAST_EVENT_ID.lower()}
)


def _is_good() -> None:
    """Nothing is known against it."""


@dataclass(slots=True)  # never changed; to freeze it costs as much as all else about it
class HttpMessage:
    """One HTTP request of a legacy client.

    `headers` are all of them, as they came. `body` is that of a POST, and `messages` is what is in it: one
    message, or those of a batch, which `is_batch`. GET and DELETE have neither. `query` is what stood after
    the question mark of the URL, as it came. `check_token` is for what asks for nothing, and is served here
    alone: it raises Unauthorized if its token is good for nothing any more (contract section 8).
    """

    method: HTTPMethod
    headers: Sequence[tuple[str, str]]
    owner: Owner
    body: bytes = b""
    messages: Sequence[Message] = ()
    is_batch: bool = False
    query: str = ""
    check_token: Callable[[], None] = field(repr=False, compare=False, default=_is_good)
    _by_name: dict[str, str] | None = field(init=False, repr=False, compare=False, default=None)

    def is_a(self, method: str) -> bool:
        """Whether this is one request of that method, and nothing else."""
        message = self.messages[0] if len(self.messages) == 1 else None
        return isinstance(message, Request) and message.method == method and not self.is_batch

    def header(self, name: str) -> str | None:
        """The first value of a header, whatever its spelling. Raises ClientProtocolError (400) for a message
        of which nobody could say what session it is of, or where in it: we would go by one line, and the
        server maybe by another."""
        if self._by_name is None:  # several look, for several
            by_name = {key.lower(): value for key, value in reversed(self.headers)}
            if len(by_name) < len(self.headers):
                _refuse_ambiguous(self.headers, by_name)
            self._by_name = by_name
        return self._by_name.get(name.lower())


def _refuse_ambiguous(headers: Sequence[tuple[str, str]], by_name: Mapping[str, str]) -> None:
    for key, value in headers:
        if (name := key.lower()) in _SINGLE and value.strip() != by_name[name].strip():
            fault = f"Invalid request: {key} is given more than once"
            raise ClientProtocolError(ErrorCode.INVALID_REQUEST, fault, status=HTTPStatus.BAD_REQUEST)


JSON: Final = ("Content-Type", "application/json")
STREAM_HEADERS: Final = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),  # nginx would hold events back
)


@dataclass(slots=True)
class Reply:
    """An HTTP response. `body` is all of it, or the chunks as they come.

    A chunk may end anywhere; heartbeats are put in by whoever writes, where a block has ended.
    """

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes | AsyncIterator[bytes] = b""


class LegacyHandler(Protocol):
    """Serves legacy clients over HTTP."""

    def serve(self, message: HttpMessage) -> AbstractAsyncContextManager[Reply]:
        """The response, to be written inside the context. Leaving it early means that the client is gone,
        which cancels nothing (HTTP-063). Raises ProxyError on entry.
        """
        ...

    def drain(self) -> None:
        """End the streams that never end by themselves."""
        ...
