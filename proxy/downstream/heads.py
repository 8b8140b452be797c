"""The head of a request that is never handed on: how large it is, which page sent it, how it is answered.

Above: `connection`, which has its bytes. Nothing here is on the way of a request that is served. Contract
section 8, "Bounds"; field report F30.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage

from proxy.downstream.base import message_of_fault
from proxy.errors import ClientProtocolError, ErrorCode

BUSY_RETRY_S: Final = 5
_REQUEST_LINE: Final = len("  HTTP/1.1\r\n")  # beside method and target
_FIELD_LINE: Final = len(": \r\n")
_END: Final = len("\r\n")
_ORIGIN: Final = re.compile(rb"(?im)^origin:[ \t]*([^\r\n]*?)[ \t]*\r?$")


class HeadTooLarge(HttpProcessingError):
    """All of it together."""

    code = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


def size_of(message: RawRequestMessage) -> int:
    """In bytes, as it is on the wire without needless spaces."""
    target = message.path.encode("utf-8", "surrogateescape")
    fields = sum(len(name) + len(value) + _FIELD_LINE for name, value in message.raw_headers)
    return len(message.method) + len(target) + _REQUEST_LINE + fields + _END


def origins_in(head: bytes | bytearray) -> Sequence[str]:
    """The different values of `Origin` that can be read in it, whole or not."""
    return [value.decode("latin-1") for value in sorted(set(_ORIGIN.findall(head)))]


def body_of(said: str) -> bytes:
    return message_of_fault(None, ClientProtocolError(ErrorCode.INVALID_REQUEST, said))


def raw_refusal(status: HTTPStatus, said: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """The answer where there is no request to answer."""
    body = body_of(said)
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append(f"Retry-After: {BUSY_RETRY_S}")
    return "\r\n".join([*lines, "", ""]).encode() + body
