"""HTTP requests passed on to the upstream as they are, and its responses as they come back.

Above: `routing.http_passthrough`, through `base.Forwarder`. Below: the shared `aiohttp.ClientSession`. What
belongs to one hop ends here, and what belongs to a browser: it has been judged by us. Redirects are not
followed, and nothing is sent twice. RFC 9110, "Message Forwarding"; contract section 6.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import UpstreamClosed, UpstreamProtocolError, UpstreamUnavailable
from proxy.upstream.base import Forwarded
from proxy.upstream.endpoint import OUTCOME_UNKNOWN, reason

Header = tuple[str, str]

_AT_ONCE_BYTES: Final = 64 * 1024  # a larger body goes in pieces: it must not hold the loop
_ONE_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_SENT_ON: Final = _ONE_HOP | {
    "accept-encoding",  # is set anew
    "content-length",
    "expect",
    "host",
    "origin",
    "referer",
    *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "sec-fetch-user"),
}
_NOT_PASSED_BACK: Final = _ONE_HOP
_CORS: Final = "access-control-"
_NOT_ADDED: Final = ("Accept", "Content-Type", "User-Agent")  # by aiohttp, where the client sent none


class HttpForwarder:
    """`base.Forwarder` to one URL."""

    def __init__(self, url: str, *, name: str, client: aiohttp.ClientSession) -> None:
        self._url = URL(url)
        self._who = f"upstream {name!r}"
        self._client = client

    @asynccontextmanager
    async def forward(
        self,
        method: str,
        headers: Sequence[Header],
        body: bytes | None = None,
        *,
        query: str = "",
        path: str | None = None,
        plain: bool = False,
    ) -> AsyncIterator[Forwarded]:
        ran = f"; {OUTCOME_UNKNOWN}" if body else ""
        async with await self._open(
            method, self._target(path, query), sent_on(headers, plain), body, ran
        ) as got:
            yield Forwarded(got.status, passed_back(got), _Chunks(got, self._who, ran))

    async def _open(
        self, method: str, url: URL, headers: CIMultiDict[str], body: bytes | None, ran: str
    ) -> aiohttp.ClientResponse:
        data = io.BytesIO(body) if body is not None and len(body) > _AT_ONCE_BYTES else body
        try:
            return await self._client.request(
                method, url, headers=headers, data=data, allow_redirects=False, skip_auto_headers=_NOT_ADDED
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as exc:
            raise UpstreamUnavailable(f"{self._who} could not be reached ({reason(exc)})") from exc
        except aiohttp.ClientResponseError as exc:
            raise UpstreamProtocolError(f"{self._who} sent what is not HTTP{ran}") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise UpstreamClosed(f"{self._who} broke the connection ({reason(exc)}){ran}") from exc
        except ValueError as exc:
            raise UpstreamUnavailable(
                f"{self._who} was sent nothing: a header has characters that no header may have"
            ) from exc

    def _target(self, path: str | None, query: str) -> URL:
        """The query of a client is added where the operator's URL has none: it cannot overrule that."""
        url = self._url if path is None else URL(str(self._url.origin()) + path, encoded=True)
        if query and not url.raw_query_string:
            return URL(f"{url}?{query}", encoded=True)
        return url

    def __repr__(self) -> str:
        return f"<HttpForwarder {self._url.with_query(None)}>"


class _Chunks:
    """A response's body as it comes in. No generator, so that giving it up needs no closing."""

    __slots__ = ("_content", "_ran", "_who")

    def __init__(self, response: aiohttp.ClientResponse, who: str, ran: str) -> None:
        self._content = response.content
        self._who = who
        self._ran = ran

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._content.readany()
        except (aiohttp.ClientError, OSError) as exc:
            raise UpstreamClosed(f"{self._who} broke off its answer ({reason(exc)}){self._ran}") from exc
        if not chunk:
            raise StopAsyncIteration
        return chunk


def sent_on(headers: Sequence[Header], plain: bool) -> CIMultiDict[str]:
    """What the upstream gets of a client's headers. A name that stands several times gets one spelling, else
    aiohttp would keep the last alone."""
    named = _named_by_connection(headers)
    spelling: dict[str, str] = {}
    sent: CIMultiDict[str] = CIMultiDict()
    encodings: list[str] = []
    for key, value in headers:
        name = key.lower()
        if name == "accept-encoding" and not plain:
            encodings.append(value)
        elif name not in _NOT_SENT_ON and name not in named:
            sent.add(spelling.setdefault(name, key), value)
    sent.add("Accept-Encoding", ", ".join(encodings) or "identity")
    return sent


def passed_back(response: aiohttp.ClientResponse) -> list[Header]:
    """What the client gets of the upstream's headers. CORS is ours, towards our own pages (F30)."""
    headers = list(response.headers.items())
    named = _named_by_connection(headers)
    return [
        (key, value)
        for key, value in headers
        if (name := key.lower()) not in _NOT_PASSED_BACK and name not in named and not name.startswith(_CORS)
    ]


def _named_by_connection(headers: Sequence[Header]) -> Collection[str]:
    """RFC 9110, "Connection": fields that it names belong to the hop, too."""
    values = [value for key, value in headers if key.lower() == "connection"]
    return frozenset(_words(values)) if values else ()


def _words(values: Sequence[str]) -> Iterator[str]:
    for value in values:
        yield from (word.strip().lower() for word in value.split(","))
