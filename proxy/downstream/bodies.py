"""The body of a POST: all of it, or the fault that it is.

Above: `http`. Contract section 8, "Bounds".
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import anyio
from aiohttp import web

from proxy.errors import ClientProtocolError, ErrorCode

BODY_TIMEOUT_S: Final = 60.0  # a body that trickles in holds memory
_PLAIN: Final = ("", "identity")


async def read_body(http: web.Request, max_bytes: int) -> bytes:
    """At most `max_bytes`, within BODY_TIMEOUT_S. Raises ClientProtocolError."""
    if http.headers.get("Content-Encoding", "").lower() not in _PLAIN:
        raise _bad_body("a body with Content-Encoding is not accepted", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    try:
        if http.content.is_eof():  # a small body comes along with its head: a timer would cost more than it
            return _bounded(http.content.read_nowait(), max_bytes)
        if http.content_length is not None and http.content_length > max_bytes:
            raise _too_large(max_bytes)
        with anyio.fail_after(BODY_TIMEOUT_S):
            return await _read(http, max_bytes)
    except TimeoutError:
        raise _bad_body("the body did not arrive in time", HTTPStatus.REQUEST_TIMEOUT) from None
    except web.RequestPayloadError:
        raise _bad_body("the body is not what its headers say", HTTPStatus.BAD_REQUEST) from None


def _bounded(body: bytes, max_bytes: int) -> bytes:
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    return body


async def _read(http: web.Request, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in http.content.iter_any():
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
    return b"".join(parts)


def _too_large(max_bytes: int) -> ClientProtocolError:
    return _bad_body(f"the body is over {max_bytes} bytes (limits.body)", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _bad_body(message: str, status: HTTPStatus) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.INVALID_REQUEST, f"Invalid request: {message}", status=status)
