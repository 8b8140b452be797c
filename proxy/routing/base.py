"""The seam between the client's side and what happens to its messages.

`downstream` builds a `ClientRequest` from bytes it has validated, hands it to the router together with a
`Sink`, and turns the `Answer` (or the ProxyError raised) back into bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol, TypeAlias

from proxy.eras.capabilities import ClientCapabilities
from proxy.owners import Owner
from proxy.protocol.envelope import RawObject
from proxy.protocol.jsonrpc import RequestId
from proxy.protocol.outline import Pieces, whole


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One modern request. `params` is an object that passed validation; `progress_token` is raw JSON.

    `param_headers` maps what stands after `Mcp-Param-`, in lower case, to the value; None where the
    transport has no headers. `good_for_s` is how long its token is good for what is answered here, where that
    is known: a stream about tasks ends then.
    """

    id: RequestId
    method: str
    params: RawObject
    owner: Owner
    capabilities: ClientCapabilities
    progress_token: bytes | None = None
    log_level: str | None = None
    param_headers: Mapping[str, str] | None = field(default=None)
    good_for_s: float | None = None


class Sink(Protocol):
    """Where the notifications of one request go while it is served."""

    def notify(self, method: str, params: bytes | None) -> None:
        """Tell one. Does not block: a client that is far behind may miss it, or have its request ended."""
        ...

    def lookup_failed(self) -> None:
        """A task that the request named is not there for its owner: counted against enumeration."""
        ...

    def make_room(self, size: int) -> None:
        """Something of so many bytes is about to be made for this client, who can ask for it again. Raises
        LimitReached where it holds too much already that it has not read."""
        ...

    async def ready(self) -> None:
        """Wait until all that was told is on its way to the client; for those who can wait."""
        ...


@dataclass(frozen=True, slots=True, init=False, match_args=False)
class ResultAnswer:
    """The raw result, whole or in pieces; those of a large one need not be put together to be written."""

    pieces: Pieces

    __match_args__ = ("result",)

    def __init__(self, *pieces: bytes | memoryview) -> None:
        object.__setattr__(self, "pieces", pieces)

    @property
    def result(self) -> bytes:
        return whole(self.pieces)


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An upstream's error, made fit for the client: the raw error object, and its HTTP status."""

    error: bytes
    status: HTTPStatus


Answer: TypeAlias = ResultAnswer | ErrorAnswer


class Handler(Protocol):
    """Serves one request; raises ProxyError. Cancelled when the client hangs up."""

    async def __call__(self, request: ClientRequest, sink: Sink) -> Answer: ...
