"""HTTP requests passed on to the upstream as they are, and its responses as they come back.

Above: `routing.http_passthrough`, through `base.Forwarder`. Below: the shared `aiohttp.ClientSession`. What
belongs to one hop ends here, and what belongs to a browser: it has been judged by us. Redirects are not
followed, and nothing is sent twice. RFC 9110, "Message Forwarding"; contract section 6.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPMethod
from types import TracebackType
from typing import Final

import aiohttp
from multidict import CIMultiDict, MultiMapping
from yarl import URL

from proxy.errors import UpstreamClosed, UpstreamProtocolError, UpstreamUnavailable
from proxy.upstream.base import Forwarded, StartListener, Verdicts
from proxy.upstream.endpoint import OUTCOME_UNKNOWN, reason

Header = tuple[str, str]

_POST: Final = HTTPMethod.POST  # to name one of this enum takes a microsecond each time

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
_OF_BOTH_ENDS: Final = frozenset(
    {"accept", "authorization", "content-encoding", "content-type", "last-event-id", "www-authenticate"}
)
_CORS: Final = "access-control-"
_ADDED: Final = ("Accept", "Content-Type", "User-Agent")  # by aiohttp, unless it is told not to


class HttpForwarder:
    """`base.Forwarder` to one URL."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        client: aiohttp.ClientSession,
        health: StartListener,
        verdicts: Verdicts | None = None,
    ) -> None:
        self._health = health
        self._verdicts = verdicts
        self._url = URL(url)
        self._who = f"upstream {name!r}"
        self._client = client

    def forward(
        self,
        method: str,
        headers: Sequence[Header],
        body: bytes | None = None,
        *,
        query: str = "",
        path: str | None = None,
        plain: bool = False,
    ) -> AbstractAsyncContextManager[Forwarded]:
        # Not of documents, which anybody may read, nor of GET, for which some have but a 401 (F25).
        verdicts = self._verdicts if path is None and method == _POST else None
        return _Forwarding(self, method, self._target(path, query), sent_on(headers, plain), body, verdicts)

    async def open(
        self, method: str, url: URL, headers: CIMultiDict[str], body: bytes | None, ran: str
    ) -> aiohttp.ClientResponse:
        """The response to one request, to be released by the caller. Raises UpstreamError."""
        data = None if body is None else _payload(body)
        not_added = [name for name in _ADDED if name not in headers] or None
        try:
            response = await self._client.request(
                method, url, headers=headers, data=data, allow_redirects=False, skip_auto_headers=not_added
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as exc:
            fault = UpstreamUnavailable(f"{self._who} could not be reached ({reason(exc)})")
            self._health.failed(fault)
            raise fault from exc
        except aiohttp.ClientResponseError as exc:
            raise UpstreamProtocolError(f"{self._who} sent what is not HTTP{ran}") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise UpstreamClosed(f"{self._who} broke the connection ({reason(exc)}){ran}") from exc
        except ValueError as exc:
            raise UpstreamUnavailable(
                f"{self._who} was sent nothing: a header has characters that no header may have"
            ) from exc
        self._health.works()
        return response

    def _target(self, path: str | None, query: str) -> URL:
        """The query of a client is added where the operator's URL has none: it cannot overrule that."""
        url = self._url if path is None else URL(str(self._url.origin()) + path, encoded=True)
        if query and not url.raw_query_string:
            return URL(f"{url}?{query}", encoded=True)
        return url

    def __repr__(self) -> str:
        return f"<HttpForwarder {self._url.with_query(None)}>"

    @property
    def who(self) -> str:
        """The upstream, in errors."""
        return self._who


class _Forwarding:
    """One request on its way. No generator: every message of a legacy client comes through here."""

    __slots__ = ("_body", "_forwarder", "_headers", "_method", "_response", "_url", "_verdicts")

    def __init__(
        self,
        forwarder: HttpForwarder,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        body: bytes | None,
        verdicts: Verdicts | None,
    ) -> None:
        self._forwarder = forwarder
        self._method = method
        self._url = url
        self._headers = headers
        self._body = body
        self._verdicts = verdicts

    async def __aenter__(self) -> Forwarded:
        ran = f"; {OUTCOME_UNKNOWN}" if self._body else ""
        response = await self._forwarder.open(self._method, self._url, self._headers, self._body, ran)
        self._response = response
        if (verdicts := self._verdicts) is not None and (response.status == 401 or verdicts.wants_all):
            challenges = response.headers.getall("WWW-Authenticate", ())
            verdicts.answered(self._headers.get("Authorization"), response.status, challenges)
        body = _Body(response, self._forwarder.who, ran)
        return Forwarded(response.status, passed_back(response), body, body.at_hand)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._response.__aexit__(kind, exc, trace)


class _Body:
    """A response's body as it comes in. No generator, so that giving it up needs no closing."""

    __slots__ = ("_content", "_ran", "_who")

    def __init__(self, response: aiohttp.ClientResponse, who: str, ran: str) -> None:
        self._content = response.content
        self._who = who
        self._ran = ran

    def at_hand(self) -> bytes | None:
        """See `Forwarded`."""
        content = self._content
        return content.read_nowait() if content.is_eof() and content.exception() is None else None

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


def _payload(body: bytes) -> aiohttp.BytesPayload | io.BytesIO:
    return aiohttp.BytesPayload(body) if len(body) <= _AT_ONCE_BYTES else io.BytesIO(body)


def sent_on(headers: Sequence[Header], plain: bool) -> CIMultiDict[str]:
    """What the upstream gets of a client's headers."""
    sent: CIMultiDict[str] = CIMultiDict(headers)
    names = set(map(str.lower, sent))
    if len(names) < len(sent):
        sent = _in_one_spelling(sent)
    encodings = sent.getall("Accept-Encoding", ())
    for name in names & _NOT_SENT_ON | names.intersection(_named_by_connection(sent)):
        del sent[name]
    sent.add("Accept-Encoding", "identity" if plain else ", ".join(encodings) or "identity")
    return sent


def _in_one_spelling(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """Of each name that stands several times; else aiohttp would keep the last of them alone."""
    spelling: dict[str, str] = {}
    return CIMultiDict([(spelling.setdefault(key.lower(), key), value) for key, value in headers.items()])


def passed_back(response: aiohttp.ClientResponse) -> list[Header]:
    """What the client gets of the upstream's headers. CORS is ours, towards our own pages (F30)."""
    dropped = _NOT_PASSED_BACK.union(_named_by_connection(response.headers))
    return [
        (key, value)
        for key, value in response.headers.items()
        if (name := key.lower()) not in dropped and not name.startswith(_CORS)
    ]


def _named_by_connection(headers: MultiMapping[str]) -> Collection[str]:
    """RFC 9110, "Connection": fields that it names belong to the hop, too, but for those that never do:
    else a client could have us count a call to an owner of whom the server sees nothing."""
    values = headers.getall("Connection", ())
    return frozenset(word for word in _words(values) if not _is_of_both_ends(word)) if values else ()


def _is_of_both_ends(name: str) -> bool:
    return name in _OF_BOTH_ENDS or name.startswith("mcp-")


def _words(values: Sequence[str]) -> Iterator[str]:
    for value in values:
        yield from (word.strip().lower() for word in value.split(","))
