"""Headers that stand once in a request: where we go by one line, nobody behind us may go by another.

Above: `http`, `well_known`, `admission`. Those that HTTP itself has once (Host, Content-Type, Content-Length,
Transfer-Encoding) are judged by aiohttp, those of modern requests by `validation`, those of legacy ones by
`routing.legacy`. RFC 9110, "Field Order"; contract section 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from aiohttp import web

from proxy.errors import ClientProtocolError, ErrorCode


def host_of(http: web.Request) -> str | None:
    """For `Guard`. Of a target in absolute form the authority counts, not the header (RFC 9112, 3.2.2); one
    that is neither that nor a path names nobody."""
    target: str = http._message.path
    return http.headers.get("Host") if target[:1] == "/" else urlsplit(target).netloc


def origins_of(http: web.Request) -> Sequence[str]:
    """For `Guard`, which refuses several."""
    return http.headers.getall("Origin", ())


def authorization_of(http: web.Request) -> str | None:
    """Raises ClientProtocolError (400), as RFC 6750 has it, where there are two: the owner would be that of
    one, and the server might look at the other."""
    given = http.headers.getall("Authorization", ())
    if len(given) > 1:
        fault = "Invalid request: Authorization is given more than once"
        raise ClientProtocolError(ErrorCode.INVALID_REQUEST, fault, status=HTTPStatus.BAD_REQUEST)
    return given[0] if given else None
