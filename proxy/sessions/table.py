"""Which sessions there are: found by id and owner, bounded in number, ended when they are idle.

Above: `routing.session_layer`. Contract section 8, "Bounds"; Transports 2025-11-25, "Session Management";
field report F39.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final, Generic, Protocol, TypeVar

from proxy.errors import ClientProtocolError, ErrorCode, LimitReached
from proxy.owners import Owner

ID_PREFIX: Final = "mcp-taskproxy-"  # tells our ids from an upstream's, also after a restart
ID_BYTES: Final = 24  # 192 random bits (HTTP-069)
MAKES_ROOM_AFTER_S: Final = 10.0  # a session that was opened just now is about to be used
UNREAD_MAKES_ROOM_AFTER_S: Final = 300.0  # with calls in flight: as long as `stream.KEPT_S`, within minutes
FULL_RETRY_S: Final = 5


class Session(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def owner(self) -> Owner: ...

    @property
    def idle_since(self) -> float | None:
        """Since when nothing of it is in flight or open; None if something is."""
        ...

    @property
    def unread_since(self) -> float | None:
        """Since when nobody was there, whatever is in flight; None if somebody is, or it must not end yet."""
        ...

    @property
    def has_calls(self) -> bool:
        """Whether calls at the server are in flight."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether its client is told that there is no such session."""
        ...


S = TypeVar("S", bound=Session)


class SessionTable(Generic[S]):
    """All that take up room: those in use, and those that are over and whose server has not ended yet."""

    def __init__(self, max_sessions: int, max_per_owner: int | None = None) -> None:
        self._max_sessions = max_sessions
        self._max_per_owner = max_sessions if max_per_owner is None else max_per_owner
        self._sessions: dict[str, S] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._sessions.values()))

    @staticmethod
    def new_id() -> str:
        """Visible ASCII, never seen before, and nobody guesses it."""
        return ID_PREFIX + secrets.token_urlsafe(ID_BYTES)

    def add(self, session: S) -> None:
        self._sessions[session.id] = session

    def remove(self, session: S) -> None:
        self._sessions.pop(session.id, None)

    def find(self, session_id: str, owner: Owner) -> S:
        """Raises ClientProtocolError 404, the same for one that is over, another's, or never was (I5)."""
        session = self._sessions.get(session_id)
        if session is None or session.is_over or session.owner != owner:
            raise ClientProtocolError(
                ErrorCode.INVALID_REQUEST, "Invalid request: no such session", status=HTTPStatus.NOT_FOUND
            )
        return session

    def to_make_room(self, owner: Owner, now: float) -> S | None:
        """The session that has to end before this owner gets another one: the one that is idle for longest,
        one of the owner's own if there is one, or the owner has as many as one may. None if there is room.
        Where none is idle, one goes whose calls nobody has waited for for minutes.

        Raises LimitReached (503) if nobody's can be ended, or too many are still ending.
        """
        in_use = [session for session in self._sessions.values() if not session.is_over]
        own = [session for session in in_use if session.owner == owner]
        has_share = len(own) >= self._max_per_owner
        if has_share:
            in_use = own
        elif len(in_use) < self._max_sessions and len(self._sessions) < 2 * self._max_sessions:
            return None
        idle = [
            (session.owner != owner, since, session)
            for session in in_use
            if (since := session.idle_since) is not None and now - since >= MAKES_ROOM_AFTER_S
        ] or self._unread(in_use, owner, now)
        if not idle or len(self._sessions) >= 2 * self._max_sessions:
            in_use_text = (
                f"{self._max_per_owner} sessions of yours are in use (limits.sessions_per_owner)"
                if has_share
                else f"{self._max_sessions} sessions are in use (limits.sessions)"
            )
            raise LimitReached(
                f"{in_use_text}; try again later",
                retry_after_s=FULL_RETRY_S,
                status=HTTPStatus.SERVICE_UNAVAILABLE,
            )
        return min(idle, key=lambda one: one[:2])[2]

    def to_end_calls(self, owner: Owner, now: float, *, own_alone: bool) -> S | None:
        """The session whose calls nobody has waited for for longest, of the owner's own if there is one, or
        `own_alone`; None if there is none of minutes."""
        in_use = [
            session
            for session in self
            if not session.is_over and session.has_calls and (session.owner == owner or not own_alone)
        ]
        unread = self._unread(in_use, owner, now)
        return min(unread, key=lambda one: one[:2])[2] if unread else None

    @staticmethod
    def _unread(sessions: list[S], owner: Owner, now: float) -> list[tuple[bool, float, S]]:
        return [
            (session.owner != owner, since, session)
            for session in sessions
            if (since := session.unread_since) is not None and now - since >= UNREAD_MAKES_ROOM_AFTER_S
        ]

    def idle(self, now: float, after_s: float) -> list[S]:
        """Those that nobody has used for so long."""
        return [
            session
            for session in self
            if not session.is_over and (since := session.idle_since) is not None and now - since >= after_s
        ]
