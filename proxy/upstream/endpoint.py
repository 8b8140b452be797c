"""One HTTP endpoint of an upstream: requests go out, foreign failures come back as ours.

Above: the transports that speak HTTP; below: one shared `aiohttp.ClientSession` and `protocol.sse`.
Origins, redirects, credentials, encodings, sizes and the wording of errors are settled here; nothing in
here knows JSON-RPC. RFC 9110; contract section 6 on redirects of what the proxy sends in its own right.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from http import HTTPMethod, HTTPStatus
from typing import Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import (
    NoCredential,
    SessionUnknown,
    UpstreamClosed,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from proxy.protocol.names import H_LAST_EVENT_ID
from proxy.protocol.sse import Event, EventDecoder, EventTooLarge
from proxy.secrecy import masked_url
from proxy.upstream.base import Verdicts

OUTCOME_UNKNOWN: Final = "outcome unknown: whether it ran cannot be told"

TRY_AGAIN: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses that say that the same request may fare better later."""

MAX_REDIRECTS: Final = 5
_REDIRECTS_FOLLOWED: Final = (307, 308)  # the two that keep method and body
_MAX_WORDS: Final = 200  # of an error page, for people
_MAX_WORDS_READ: Final = 4_096

# What `headers()` may not set: it belongs to one hop, to a browser, or to this module.
_NOT_SENT_ON: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "origin",
        "referer",
        "transfer-encoding",
    }
)
_NO_SECRETS: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "content-length",
        "content-type",
        "host",
        "mcp-protocol-version",
        "user-agent",
    }
)
_SHORTEST_SECRET: Final = 8  # shorter ones would blot out ordinary words


class UnexpectedStatus(UpstreamProtocolError):
    """The upstream answered with an HTTP status that the transport has no use for."""

    def __init__(self, message: str, upstream_status: int) -> None:
        super().__init__(message)
        self.upstream_status = upstream_status
        self.is_for_good = 400 <= upstream_status < 500 and upstream_status not in TRY_AGAIN


class Answer:
    """The head of an HTTP response; its body is yet to be read, inside the `async with` that gave it.

    `is_to_us`: the request had a credential of our own.
    """

    def __init__(self, who: str, response: aiohttp.ClientResponse, *, is_to_us: bool = False) -> None:
        self._who = who
        self._is_to_us = is_to_us
        self._response = response
        self.status = response.status

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """In lower case, without parameters; empty where the upstream names none."""
        return self._response.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def is_event_stream(self) -> bool:
        return self.status == HTTPStatus.OK and self.media_type == "text/event-stream"

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    @property
    def is_encoded(self) -> bool:
        """Whether the body is compressed although we asked for `identity`."""
        return self._response.headers.get("Content-Encoding", "identity").strip().lower() not in (
            "",
            "identity",
        )

    def require_plain(self) -> None:
        """Raises UpstreamProtocolError if the body is in an encoding that we did not ask for."""
        if self.is_encoded:
            encoding = self._response.headers["Content-Encoding"][:40]
            raise UpstreamProtocolError(
                f"{self._who} answered with Content-Encoding {encoding!r}, which was not asked for; "
                f"{OUTCOME_UNKNOWN}"
            )

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes in."""
        return self._response.content.iter_any()

    async def body(self, max_bytes: int) -> bytes:
        """The whole body. Raises UpstreamProtocolError if it is over `max_bytes`."""
        parts: list[bytes] = []
        size = self._response.content_length or 0
        if size <= max_bytes:
            size = 0
            async for chunk in self.chunks():
                size += len(chunk)
                if size > max_bytes:
                    break
                parts.append(chunk)
        if size > max_bytes:
            raise self.over_limit(max_bytes)
        return b"".join(parts)

    async def read_events(self, max_bytes: int, take: Callable[[Iterable[Event]], None]) -> None:
        """An event stream, given to `take` as it comes in. Raises UpstreamProtocolError, once those before
        it were given, if an event is over `max_bytes`."""
        decoder = EventDecoder(max_bytes)
        async for chunk in self.chunks():
            try:
                take(decoder.feed(chunk))
            except EventTooLarge as exc:
                take(exc.events)
                raise self.over_limit(max_bytes) from exc

    def over_limit(self, max_bytes: int) -> UpstreamProtocolError:
        return UpstreamProtocolError(f"{self._who} sent an answer over the limit of {max_bytes} bytes")

    def refusal(self) -> UpstreamRefused:
        """For a 401 or a 403: with every challenge as it came, unless it is our own matter."""
        status = HTTPStatus(self.status)
        if self._is_to_us:
            words = (
                f"{self._who} refused the proxy's own credential: {status} {status.phrase} (auth.upstream)"
            )
            return UpstreamRefused(words, status=None, challenges=())
        challenges = tuple(self._response.headers.getall("WWW-Authenticate", ()))
        return UpstreamRefused(
            f"{self._who} refused the request: {status} {status.phrase}", status=status, challenges=challenges
        )

    def gone(self, said: str) -> SessionUnknown:
        """For a 404 that means the session."""
        return SessionUnknown(f"{self._who} no longer knows the session (404: {said})")

    def unexpected(self, said: str, *, ran_nothing: bool = False) -> UnexpectedStatus:
        """For any other status; `said` are the upstream's words, made presentable by `words`.

        `ran_nothing`: the request carried no message.
        """
        tail = f": {said}" if said else ""
        ran = f"; {OUTCOME_UNKNOWN}" if (self.ok or self.status >= 500) and not ran_nothing else ""
        kind = f" and {self.media_type or 'no content type'}" if self.ok else ""
        return UnexpectedStatus(
            f"{self._who} answered with status {self.status}{kind}{tail}{ran}", self.status
        )

    def words(self, body: bytes) -> str:
        """The first words of `body`, printable, without what we sent as a credential."""
        text = body[:_MAX_WORDS_READ].decode("utf-8", "replace")
        for name, value in self._response.request_info.headers.items():
            if name.lower() not in _NO_SECRETS:
                for secret in (value, *value.split()):
                    if len(secret) >= _SHORTEST_SECRET:
                        text = text.replace(secret, "[redacted]")
        printable = "".join(c if c.isprintable() else " " for c in text)
        return " ".join(printable.split())[:_MAX_WORDS]


class Endpoint:
    """Where an upstream listens. `headers()` gives the credentials; it is asked for every request, and may
    raise UpstreamUnavailable. `verdicts` is told what the server says to them: to those of a POST, and, where
    `gets_count`, of a GET, too. Some servers answer 401 to a GET that they have no use for (F25). What the
    server refused with 401 has not run: it is sent once more if `verdicts` has another credential (I2)."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        client: aiohttp.ClientSession,
        headers: Callable[[], Mapping[str, str]],
        verdicts: Verdicts | None = None,
        gets_count: bool = False,
    ) -> None:
        self._verdicts = verdicts
        self._gets_count = gets_count
        self._url = URL(url)
        self._name = name
        self._who = f"upstream {name!r}"
        self._client = client
        self._headers = headers

    def __str__(self) -> str:
        """Without what may be secret in it."""
        return _shown(self._url)

    def named_by(self, reference: str, prefix: str | None = None) -> Endpoint:
        """The endpoint that this one means by `reference`, a URL or a part of one (RFC 3986, section 5).

        `prefix` is the operator's word for a server that does not know how it is reached: its path begins
        so, and the host that it names is not looked at. Raises UpstreamProtocolError for another origin.
        """
        try:
            target, same_origin = _resolved(self._url, reference)
        except ValueError as exc:
            raise UpstreamProtocolError(
                f"{self._who} announced an address for messages that is no URL"
            ) from exc
        if prefix is not None:
            target = self._url.with_path(_below(prefix, target.raw_path), encoded=True).with_query(
                target.raw_query_string
            )
        elif not same_origin:
            raise UpstreamProtocolError(
                f"{self._who} announced {_shown(target)} as the address for messages, which is of another "
                f"origin than {_shown(self._url)}: nothing is sent there"
            )
        return Endpoint(
            str(target), name=self._name, client=self._client, headers=self._headers, verdicts=self._verdicts
        )

    @asynccontextmanager
    async def open(
        self, method: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[Answer]:
        """Send one request; the answer's body is read inside. A redirect within the origin is followed
        and remembered.

        Raises UpstreamUnavailable if nothing was sent, UpstreamClosed if the connection broke before the
        answer or (inside) in the middle of it, UpstreamProtocolError for any other redirect and for what is
        not HTTP. Answers of every other status are given.
        """
        url, left, may_renew = self._url, MAX_REDIRECTS, True
        try:
            while left >= 0:
                async with await self._request(method, url, headers, body) as response:
                    if may_renew and await self._is_renewed(self._counts(method, headers), response):
                        may_renew = False
                        continue
                    target = self._redirect(response)
                    if target is None:
                        self._url = url
                        is_to_us = self._verdicts is not None and self._verdicts.is_ours
                        yield Answer(self._who, response, is_to_us=is_to_us)
                        return
                url, left = target, left - 1
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as exc:
            raise UpstreamUnavailable(f"{self._who} could not be reached ({reason(exc)})") from exc
        except aiohttp.ClientResponseError as exc:
            raise UpstreamProtocolError(f"{self._who} sent what is not HTTP; {OUTCOME_UNKNOWN}") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise UpstreamClosed(
                f"{self._who} broke the connection ({reason(exc)}); {OUTCOME_UNKNOWN}"
            ) from exc
        raise UpstreamProtocolError(f"{self._who} redirected more than {MAX_REDIRECTS} times")

    async def _request(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        try:
            given = self._headers()
        except NoCredential:
            if self._verdicts is None or not await self._verdicts.another(None):
                raise
            given = self._headers()
        sent = CIMultiDict((k, v) for k, v in given.items() if k.lower() not in _NOT_SENT_ON)
        sent.update(headers)
        data = None if body is None else io.BytesIO(body)  # in pieces: a large one must not hold the loop
        try:
            response = await self._client.request(method, url, headers=sent, data=data, allow_redirects=False)
        except aiohttp.ClientError:
            raise
        except ValueError as exc:
            raise UpstreamUnavailable(
                f"{self._who} was sent nothing: a header has characters that no header may have"
            ) from exc
        if self._verdicts is not None and self._counts(method, headers):
            challenges = response.headers.getall("WWW-Authenticate", ())
            self._verdicts.answered(sent.get("Authorization"), response.status, challenges)
        return response

    def _counts(self, method: str, headers: Mapping[str, str]) -> bool:
        """Whether an answer says anything of the credential. A stream that is resumed had events, so that the
        server has a use for a GET."""
        is_resumed = H_LAST_EVENT_ID in headers and self._verdicts is not None and self._verdicts.is_ours
        return method == HTTPMethod.POST or self._gets_count or is_resumed

    async def _is_renewed(self, counts: bool, response: aiohttp.ClientResponse) -> bool:
        """Whether the credential was refused, and there is another one now."""
        if response.status != HTTPStatus.UNAUTHORIZED or self._verdicts is None or not counts:
            return False
        sent = response.request_info.headers.get("Authorization")
        return sent is not None and await self._verdicts.another(sent)

    def _redirect(self, response: aiohttp.ClientResponse) -> URL | None:
        """Where to go instead, None if this is the answer. Raises UpstreamProtocolError for a way that
        would change the method or take credentials elsewhere."""
        location = response.headers.get("Location")
        if not 300 <= response.status < 400 or location is None:
            return None
        try:
            target, same_origin = _resolved(response.url, location)
        except ValueError as exc:
            raise UpstreamProtocolError(f"{self._who} redirected to what is not a URL") from exc
        if response.status in _REDIRECTS_FOLLOWED and same_origin:
            return target
        raise UpstreamProtocolError(
            f"{self._who} redirected ({response.status}) to {_shown(target)}, which is not followed"
        )


def _resolved(base: URL, reference: str) -> tuple[URL, bool]:
    """Where `reference` leads from `base`, and whether that is the same origin. ValueError: nowhere."""
    target = base.join(URL(reference)).with_user(None).with_fragment(None)
    return target, target.origin() == base.origin()


def _below(prefix: str, path: str) -> str:
    prefix = prefix.rstrip("/")
    return path if path.startswith(f"{prefix}/") else prefix + path


def _shown(url: URL) -> str:
    return masked_url(str(url.with_user(None).with_query(None).with_fragment(None)))


def reason(exc: Exception) -> str:
    """What happened, in a few words; the text of a foreign exception can hold addresses and headers."""
    strerror = exc.strerror if isinstance(exc, OSError) else None
    return strerror or type(exc).__name__
