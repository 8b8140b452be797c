"""The body of a POST: all of it, or the fault that it is.

Above: `http`. Below: the room that all large bodies share. Contract section 8, "Bounds".
"""

from __future__ import annotations

from http import HTTPStatus
from io import BytesIO
from typing import Final

import anyio
from aiohttp import web

from proxy.errors import ClientProtocolError, ErrorCode
from proxy.owners import Owner
from proxy.room import Place, Room

AT_ONCE: Final = 8  # bodies of the largest size that may be held at the same time
_PLAIN: Final = frozenset({"", "identity"})


class Bodies:
    """Reads them: each of at most `max_bytes`, within `within_s`. All that are on their way share room, with
    those whose requests are still being served if they are large.

    `has_others`: there is something left for others. `knows_owners`: nobody can make up an owner; else a
    peer gets half of all, and each of its owners a quarter, so that nobody takes all of an address's share.
    """

    def __init__(
        self, max_bytes: int, within_s: float, *, has_others: bool = False, knows_owners: bool = True
    ) -> None:
        self._max_bytes = max_bytes
        self._within_s = within_s
        self._has_others = has_others
        self._knows_owners = knows_owners
        self._room = Room("bodies", AT_ONCE * max_bytes, f"{AT_ONCE} times limits.body")

    def __repr__(self) -> str:
        return f"<Bodies {self._room}>"

    def place(self, owner: Owner, peer: str) -> Place:
        """For a body that is not there yet; to be left when nothing of it is held any more."""
        half = self._room.total // 2
        if not self._has_others:
            return self._room.place({})
        if self._knows_owners:
            return self._room.place({owner.key: half})
        of_peer = {f"peer {peer}": half}
        return self._room.place(of_peer if owner.is_anonymous else of_peer | {owner.key: half // 2})

    def at_hand(self, http: web.Request) -> bytes | None:
        """A small body that came with its head: nothing else is to be asked. Raises ClientProtocolError."""
        encodings = http.headers.getall("Content-Encoding", ())
        if encodings and not {encoding.lower() for encoding in encodings} <= _PLAIN:
            raise _bad_body("a body with Content-Encoding is not accepted", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        try:
            if http.content.is_eof():
                return self._bounded(http.content.read_nowait())
        except web.RequestPayloadError:
            raise _malformed() from None
        return None

    async def read(self, http: web.Request, place: Place) -> bytes:
        """One that is still to come, which takes so much of `place`. Raises ClientProtocolError, and
        LimitReached where too much is held already."""
        try:
            if http.content_length is not None and http.content_length > self._max_bytes:
                raise self._too_large()
            with anyio.fail_after(self._within_s):
                return await self._read(http, place)
        except TimeoutError:
            fault = "the body did not arrive in time (limits.request_body)"
            raise _bad_body(fault, HTTPStatus.REQUEST_TIMEOUT) from None
        except web.RequestPayloadError:
            raise _malformed() from None

    def _bounded(self, body: bytes) -> bytes:
        if len(body) > self._max_bytes:
            raise self._too_large()
        return body

    async def _read(self, http: web.Request, place: Place) -> bytes:
        whole = BytesIO()  # not to be copied at the end in one long step
        async for part in http.content.iter_any():
            if whole.tell() + len(part) > self._max_bytes:
                raise self._too_large()
            place.grow(len(part))
            whole.write(part)
        return whole.getvalue()

    def _too_large(self) -> ClientProtocolError:
        fault = f"the body is over {self._max_bytes} bytes (limits.body)"
        return _bad_body(fault, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _malformed() -> ClientProtocolError:
    return _bad_body("the body is not what its headers say", HTTPStatus.BAD_REQUEST)


def _bad_body(message: str, status: HTTPStatus) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.INVALID_REQUEST, f"Invalid request: {message}", status=status)
