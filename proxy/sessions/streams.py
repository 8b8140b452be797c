"""The event streams of one session, and what their event ids mean.

Above: `routing.http_session`. Below: `stream`. An id names the session, the stream and the event, so that
it means nothing anywhere else. Transports 2025-11-25, "Resumability and Redelivery"; HTTP-067, F24.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Final

from proxy.clock import Clock
from proxy.sessions.stream import KEPT_S, Stream

ENDED_STREAMS: Final = 100  # answers that may be read again
ENDED_BYTES: Final = 16 * 1024 * 1024

_TAG_BYTES: Final = 6
_EVENT_ID: Final = re.compile(r"([0-9a-f]{12}-[0-9]{1,15})-([0-9]{1,15})", re.ASCII)


class Streams:
    """`listening` is what a GET without an event id reads. `readers_changed`: see `Stream`."""

    def __init__(self, clock: Clock, readers_changed: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._readers_changed = readers_changed
        self._tag = secrets.token_hex(_TAG_BYTES)
        self._made = 0
        self._tidy_at = ENDED_STREAMS
        self._streams: dict[str, Stream] = {}
        self.listening = self.open()

    def __repr__(self) -> str:
        return f"<Streams {len(self._streams)}, {sum(s.is_read for s in self._streams.values())} open>"

    @property
    def any_open(self) -> bool:
        """Whether anybody reads anything of this session."""
        return any(stream.is_read for stream in self._streams.values())

    def open(self) -> Stream:
        """A new one, for the answer to a POST."""
        if len(self._streams) >= self._tidy_at:
            self.forget()
            self._tidy_at = len(self._streams) + ENDED_STREAMS
        stream = Stream(f"{self._tag}-{self._made}", self._clock, self._readers_changed)
        self._made += 1
        self._streams[stream.name] = stream
        return stream

    def drop(self, stream: Stream) -> None:
        """Nobody will come back to it."""
        self._streams.pop(stream.name, None)

    def find(self, event_id: str) -> tuple[Stream, int] | None:
        """The stream of an event, and its number; None if it is of another session, or is known no more."""
        match = _EVENT_ID.fullmatch(event_id)
        stream = self._streams.get(match.group(1)) if match is not None else None
        if match is None or stream is None or not stream.knows(int(match.group(2))):
            return None
        return stream, int(match.group(2))

    def forget(self) -> None:
        """Drop what nobody comes back for: what is old, and of what has ended all that is too much. The
        stream that ended last stays, however large its answer is."""
        now = self._clock.monotonic()
        ended = [s for s in self._streams.values() if s.ended_at is not None and not s.is_read]
        kept_bytes = 0
        for nth, stream in enumerate(sorted(ended, key=_ended_at, reverse=True)):
            kept_bytes += stream.kept_bytes
            is_too_much = nth >= ENDED_STREAMS or (nth > 0 and kept_bytes > ENDED_BYTES)
            if is_too_much or now - _ended_at(stream) >= KEPT_S or not stream.has_ids:
                self.drop(stream)
        for stream in self._streams.values():
            stream.forget()

    def end(self) -> None:
        """The session is over."""
        for stream in list(self._streams.values()):
            stream.end()


def _ended_at(stream: Stream) -> float:
    assert stream.ended_at is not None  # those that are sorted have ended
    return stream.ended_at
