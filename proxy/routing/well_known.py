"""Documents below `/.well-known/`: the upstream's under our own address, or those of a resource that we are.

Above: `downstream.well_known`. Below: `upstream.base.Forwarder`. Where a client looks up what belongs to our
endpoint's path, the upstream is asked for what belongs to its own. RFC 8615; RFC 9728, section 3.1; contract
sections 6 and 8.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from proxy.auth.challenges import METADATA, UrlMap
from proxy.errors import AccessDenied
from proxy.protocol.envelope import dumps
from proxy.routing.http_passthrough import reply_of
from proxy.routing.legacy import JSON, Reply
from proxy.routing.rewording import whole
from proxy.upstream.base import Forwarded, Forwarder

PREFIX: Final = "/.well-known/"
MAX_METADATA_BYTES: Final = 1024 * 1024
_OF_THE_BODY: Final = frozenset({"content-length", "content-md5", "digest", "content-digest", "repr-digest"})

Headers = Sequence[tuple[str, str]]


class Documents(Protocol):
    """What clients may look up without a credential."""

    def document(
        self, method: str, path: str, query: str, headers: Headers
    ) -> AbstractAsyncContextManager[Reply]:
        """`path` is what the client asks for, as it stands in the URL. Raises ProxyError."""
        ...


class WellKnown:
    """The upstream's. `path` is our endpoint's, `upstream_path` the upstream's, as they stand in a URL.

    With `urls`, the metadata of the protected resource name it as clients do, and are found by the path that
    clients know, wherever the upstream has them.
    """

    def __init__(
        self, upstream: Forwarder, *, path: str, upstream_path: str, urls: UrlMap | None = None
    ) -> None:
        self._upstream = upstream
        self._paths = {path.rstrip("/")}
        self._urls = urls
        if urls is not None:
            self._paths.add(urlsplit(urls.public_url).path.rstrip("/"))
        self._upstream_path = upstream_path.rstrip("/")
        self._metadata_path = METADATA + self._upstream_path

    @asynccontextmanager
    async def document(self, method: str, path: str, query: str, headers: Headers) -> AsyncIterator[Reply]:
        """See `Documents`."""
        target = self.upstream_of(path)
        is_metadata = self._urls is not None and target.rstrip("/") in (METADATA, self._metadata_path)
        async with self._upstream.forward(
            method, headers, query=query, path=target, plain=is_metadata
        ) as answer:
            may_be_elsewhere = is_metadata and target.rstrip("/") != METADATA
            if not (may_be_elsewhere and answer.status == HTTPStatus.NOT_FOUND):
                yield await (self._metadata(answer) if is_metadata else reply_of(answer))
                return
        async with self._upstream.forward(method, headers, query=query, path=METADATA, plain=True) as answer:
            yield await self._metadata(answer)

    async def _metadata(self, answer: Forwarded) -> Reply:
        reply = await reply_of(answer)
        if self._urls is None or answer.status != HTTPStatus.OK or answer.is_encoded:
            return reply
        body = await whole(reply.body, MAX_METADATA_BYTES)
        kept = [(key, value) for key, value in reply.headers if key.lower() not in _OF_THE_BODY]
        return Reply(reply.status, kept, self._urls.document(body))

    def upstream_of(self, path: str) -> str:
        """Where the upstream has what a client asks for at `path`. Raises AccessDenied for a path that leads
        out of `/.well-known/`."""
        if not {".", ".."}.isdisjoint(unquote(path).replace("\\", "/").split("/")):
            raise AccessDenied("no such document")
        kind, _, of = path.removeprefix(PREFIX).partition("/")
        ours = f"/{of}".rstrip("/")
        if ours in self._paths and (of or "" in self._paths):
            return f"{PREFIX}{kind}{self._upstream_path}"
        return path


class OwnMetadata:
    """The one document of a resource that we are ourselves, at the paths where clients look for it."""

    def __init__(self, resource: str, *, path: str, authorization_server: str, scopes: Sequence[str]) -> None:
        said = {
            "resource": resource,
            "authorization_servers": [authorization_server],
            "bearer_methods_supported": ["header"],
            **({"scopes_supported": [*scopes]} if scopes else {}),
        }
        self._reply = Reply(HTTPStatus.OK, [JSON], dumps(said))
        of = ("", path.rstrip("/"), urlsplit(resource).path.rstrip("/"))
        self._paths = frozenset(METADATA + one for one in of)

    @asynccontextmanager
    async def document(self, method: str, path: str, query: str, headers: Headers) -> AsyncIterator[Reply]:
        """See `Documents`. What else the server behind us may have is not for our clients."""
        yield self._reply if path.rstrip("/") in self._paths else Reply(HTTPStatus.NOT_FOUND, [], b"")
