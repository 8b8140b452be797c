"""The upstream's documents below `/.well-known/`, under our own address.

Above: `downstream.well_known`. Below: `upstream.base.Forwarder`. Where a client looks up what belongs to our
endpoint's path, the upstream is asked for what belongs to its own. RFC 8615; RFC 9728 section 3.1; contract
section 6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import unquote

from proxy.errors import AccessDenied
from proxy.routing.http_passthrough import reply_of
from proxy.routing.legacy import Reply
from proxy.upstream.base import Forwarder

PREFIX: Final = "/.well-known/"


class WellKnown:
    """`path` is our endpoint's, `upstream_path` the upstream's, both as they stand in a URL."""

    def __init__(self, upstream: Forwarder, *, path: str, upstream_path: str) -> None:
        self._upstream = upstream
        self._path = path.rstrip("/")
        self._upstream_path = upstream_path.rstrip("/")

    @asynccontextmanager
    async def document(
        self, method: str, path: str, query: str, headers: Sequence[tuple[str, str]]
    ) -> AsyncIterator[Reply]:
        """`path` is what the client asks for, as it stands in the URL. Raises ProxyError."""
        async with self._upstream.forward(
            method, headers, query=query, path=self.upstream_of(path)
        ) as answer:
            yield await reply_of(answer)

    def upstream_of(self, path: str) -> str:
        """Where the upstream has what a client asks for at `path`. Raises AccessDenied for a path that leads
        out of `/.well-known/`."""
        if not {".", ".."}.isdisjoint(unquote(path).replace("\\", "/").split("/")):
            raise AccessDenied("no such document")
        kind, _, of = path.removeprefix(PREFIX).partition("/")
        if f"/{of}".rstrip("/") == self._path and (of or not self._path):
            return f"{PREFIX}{kind}{self._upstream_path}"
        return path
