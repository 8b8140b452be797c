"""The body of a POST: all of it, or the fault that it is.

Above: `http`. Contract section 8, "Bounds".
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import anyio
from aiohttp import web

from proxy.errors import ClientProtocolError, ErrorCode, LimitReached

AT_ONCE: Final = 8  # bodies of the largest size that may be on their way at the same time
BUSY_RETRY_S: Final = 1
_PLAIN: Final = frozenset({"", "identity"})


class Bodies:
    """Reads them: each of at most `max_bytes`, within `within_s`. All that are on their way share room."""

    def __init__(self, max_bytes: int, within_s: float) -> None:
        self._max_bytes = max_bytes
        self._within_s = within_s
        self._room = AT_ONCE * max_bytes

    def __repr__(self) -> str:
        return f"<Bodies {AT_ONCE * self._max_bytes - self._room} bytes on their way>"

    async def read(self, http: web.Request) -> bytes:
        """Raises ClientProtocolError, and LimitReached (503) where too much is on its way already."""
        encodings = http.headers.getall("Content-Encoding", ())
        if encodings and not {encoding.lower() for encoding in encodings} <= _PLAIN:
            raise _bad_body("a body with Content-Encoding is not accepted", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        try:
            if http.content.is_eof():  # a small body comes with its head: a timer would cost more than it
                return self._bounded(http.content.read_nowait())
            if http.content_length is not None and http.content_length > self._max_bytes:
                raise self._too_large()
            with anyio.fail_after(self._within_s):
                return await self._read(http)
        except TimeoutError:
            fault = "the body did not arrive in time (limits.request_body)"
            raise _bad_body(fault, HTTPStatus.REQUEST_TIMEOUT) from None
        except web.RequestPayloadError:
            raise _bad_body("the body is not what its headers say", HTTPStatus.BAD_REQUEST) from None

    def _bounded(self, body: bytes) -> bytes:
        if len(body) > self._max_bytes:
            raise self._too_large()
        return body

    async def _read(self, http: web.Request) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async for part in http.content.iter_any():
                size += len(part)
                self._room -= len(part)
                if size > self._max_bytes:
                    raise self._too_large()
                if self._room < 0:
                    raise LimitReached(
                        f"bodies of {AT_ONCE * self._max_bytes} bytes are on their way ({AT_ONCE} times"
                        " limits.body); try again later",
                        retry_after_s=BUSY_RETRY_S,
                        status=HTTPStatus.SERVICE_UNAVAILABLE,
                    )
                parts.append(part)
            return b"".join(parts)
        finally:
            self._room += size

    def _too_large(self) -> ClientProtocolError:
        fault = f"the body is over {self._max_bytes} bytes (limits.body)"
        return _bad_body(fault, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _bad_body(message: str, status: HTTPStatus) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.INVALID_REQUEST, f"Invalid request: {message}", status=status)
