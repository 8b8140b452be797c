"""The questions of one task as 2025 clients get them: real requests, each on one stream at a time.

Above: `companion`, which knows the client's streams and what is open in the task. Nothing in here waits. A
question goes out on the first stream that may carry it, and again on another when that one breaks
unanswered; the first answer counts, by whichever offer it came. MCP 2025-11-25, "Tasks", "Input Required
Status"; contract section 5.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from proxy.eras.tasks_2025 import with_related_task
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import dumps
from proxy.protocol.jsonrpc import RequestId
from proxy.tasks.task import InputRequest

ID_PREFIX: Final = "tpx-ask-"
_ID_BYTES: Final = 12  # nobody else's request in any session has such an id, and nobody guesses one
_ID: Final = re.compile(re.escape(ID_PREFIX) + r"[A-Za-z0-9_-]{16}\Z")


class Channel(Protocol):
    """One way to a client: its stdio pipe, or an event stream of its session."""

    @property
    def is_open(self) -> bool:
        """Whether somebody reads it, as far as is known."""
        ...

    def send(self, message: bytes) -> bool:
        """Tell one JSON-RPC message. Does not block. Whether it was taken: it is not where nobody reads, or
        the reader is too far behind."""
        ...


@dataclass(slots=True, eq=False)
class _Offer:
    """A question, on which stream it is now, and every id under which it was sent."""

    request: InputRequest
    channel: Channel | None = None
    ids: list[str] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """Whether nobody who could answer has it."""
        return self.channel is None or not self.channel.is_open


class Offers:
    """What is open in the task, and who was asked."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._open: dict[str, _Offer] = {}
        self._answered: set[str] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def ids(self) -> set[str]:
        """The ids of all requests that an answer may name."""
        return {rid for offer in self._open.values() for rid in offer.ids}

    def set_open(self, inputs: Iterable[InputRequest]) -> None:
        """These questions are open in the record now. What is open no more is taken back from the client.

        One whose answer is on its way into the record is not put to the client again.
        """
        wanted = {request.key: request for request in inputs}
        self._answered &= wanted.keys()
        for key in self._open.keys() - wanted.keys():
            self._take_back(self._open.pop(key))
        for key, request in wanted.items():
            if key not in self._open and key not in self._answered:
                self._open[key] = _Offer(request)

    def send_on(self, channels_for: Callable[[InputRequest], Iterable[Channel]]) -> None:
        """Send what waits, each question on the first of the channels that it may go on and that takes it."""
        for offer in self._open.values():
            if not offer.waits:
                continue
            rid = ID_PREFIX + secrets.token_urlsafe(_ID_BYTES)
            message = self._message(offer.request, rid)
            channels = channels_for(offer.request)
            offer.channel = next((c for c in channels if c.is_open and c.send(message)), None)
            if offer.channel is not None:
                offer.ids.append(rid)

    def take(self, rid: str) -> str | None:
        """The key of the question that an answer to the request `rid` is for; None if it was answered
        before, or never asked. It is closed here, and stays so."""
        for key, offer in self._open.items():
            if rid in offer.ids:
                del self._open[key]
                self._answered.add(key)
                return key
        return None

    def lost(self, channel: Channel) -> None:
        """This one reaches nobody any more, whatever it says of itself: what was asked on it waits again."""
        for offer in self._open.values():
            if offer.channel is channel:
                offer.channel = None

    def take_back_all(self) -> None:
        """Nobody waits for answers any more."""
        for offer in self._open.values():
            self._take_back(offer)
        self._open.clear()

    def _take_back(self, offer: _Offer) -> None:
        if offer.channel is not None and not offer.waits:
            params = dumps({"requestId": offer.ids[-1], "reason": "the answer is no longer needed"})
            related = with_related_task(params, self._task_id)
            offer.channel.send(jsonrpc.notification(names.CANCELLED, related))

    def _message(self, request: InputRequest, rid: str) -> bytes:
        asked = request.as_asked if request.as_asked is not None else request.params
        params = with_related_task(asked, self._task_id)
        return jsonrpc.request(RequestId(dumps(rid), rid), request.method, params)


def is_offer(rid: RequestId) -> bool:
    """Whether it has the form of an id under which we ask; no server's own question has."""
    return isinstance(rid.value, str) and _ID.match(rid.value) is not None
