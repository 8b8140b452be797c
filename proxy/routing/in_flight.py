"""What one legacy client waits for from its server, and which of it a message of the server belongs to.

Above: `own_server`. Below: `eras.attribution`, the rule where the wire does not tell. Nothing in here waits
or sends. Contract section 2, "Which call does a server-initiated request belong to?".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import anyio

from proxy.eras.attribution import AskingTools, attribute
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject
from proxy.protocol.jsonrpc import ErrorResponse, Notification, Request, RequestId, ResultResponse

REMEMBERED: Final = frozenset(
    {
        names.INITIALIZE,
        names.LOGGING_SET_LEVEL,
        names.RESOURCES_SUBSCRIBE,
        names.RESOURCES_UNSUBSCRIBE,
    }
)
"""Requests that a later server is told again, once this one has accepted them."""

MAX_ASKED: Final = 1_000  # questions without an answer; a server that asks more does not wait for answers

_OURS_AS_TEXT: Final = re.compile(r"[1-9][0-9]{0,17}\Z", re.ASCII)


@dataclass(eq=False, slots=True)
class Sent:
    """A request that was sent on. `id` is ours; `rid` is the client's, None if the request is our own.

    `name` is the tool, prompt or resource that it names, `token` its progress token, `task` the 2025 task.
    `questions` are the ids of what the server has asked during it and not been told.
    """

    id: int
    method: str
    rid: RequestId | None
    name: str | None = None
    token: int | str | None = None
    task: str | None = None
    remembered: Request | None = None
    cancelled: bool = False
    questions: set[int | str] = field(default_factory=set)
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: ResultResponse | ErrorResponse | None = None

    @property
    def waiting(self) -> bool:
        return bool(self.questions)

    @property
    def awaited(self) -> bool:
        """Whether the client waits for its answer."""
        return self.rid is not None and not self.cancelled


class InFlight:
    """The requests in flight to one server, oldest first, and the questions that it waits with."""

    def __init__(self, asking: AskingTools) -> None:
        self._asking = asking
        self._ids = itertools.count(1)
        self._sent: dict[int, Sent] = {}
        self._asked: dict[int | str, Sent | None] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[Sent]:
        return iter(list(self._sent.values()))

    def add(self, request: Request) -> Sent:
        """A request of the client."""
        sent = Sent(next(self._ids), request.method, request.id)
        if request.method in REMEMBERED:
            sent.remembered = request
        if request.params is not None:
            sent.name = text_of(request.params, names.NAME_MEMBER.get(request.method, "name"))
            sent.token = _token_in(request.params, names.META)
            sent.task = text_of(request.params, "taskId")
        self._sent[sent.id] = sent
        return sent

    def add_own(self, method: str) -> Sent:
        """A request of ours."""
        sent = Sent(next(self._ids), method, None)
        self._sent[sent.id] = sent
        return sent

    def pop(self, id: int | None) -> Sent | None:
        """It is in flight no more."""
        return None if id is None else self._sent.pop(id, None)

    def named(self, rid: RequestId) -> Sent | None:
        """The request that the client calls so."""
        return next((s for s in self._sent.values() if s.rid is not None and s.rid.value == rid.value), None)

    # -- what the server says -----------------------------------------------------------------------

    def asked(self, question: Request, on: int | None) -> RequestId | None:
        """The server asks: the request of the client that it asks during. `on` is the one on whose stream
        the question came, where the wire tells."""
        asker = None if question.method == names.PING else self._asker(question, on)
        if len(self._asked) >= MAX_ASKED:
            self.take_answered(next(iter(self._asked)))
        self._asked[question.id.value] = asker
        if asker is not None:
            asker.questions.add(question.id.value)
        return None if asker is None else asker.rid

    def _asker(self, question: Request, on: int | None) -> Sent | None:
        if on is not None:
            return self._sent.get(on)
        if (task := _related_task(question.params)) is not None:
            results = (s for s in self._awaited() if s.method == names.TASKS_RESULT)
            return next((s for s in results if s.task == task), None)
        asker = attribute(self._awaited(), self._asking)
        if asker is not None and asker is self._alone() and question.method not in _ASKED_AT_ANY_TIME:
            self._asking.saw(asker)
        return asker

    def take_answered(self, id: int | str) -> bool:
        """The client answers a question. False if it was never asked, or is answered already."""
        if id not in self._asked:
            return False
        if (asker := self._asked.pop(id)) is not None:
            asker.questions.discard(id)
        return True

    def told(self, notification: Notification, on: int | None) -> RequestId | None:
        """The server says something: the request of the client that it belongs to, None if to none.

        Progress by its token, a log line to the request that is alone in flight, and a question that is
        withdrawn to where it was asked.
        """
        if on is not None:
            concerned = self._sent.get(on)
        else:
            concerned = self._concerned(notification.method, notification.params)
        return None if concerned is None else concerned.rid

    def _concerned(self, method: str, params: bytes | None) -> Sent | None:
        match method:
            case names.PROGRESS if params is not None:
                token = _token_in(params)
                return next((s for s in self._sent.values() if token is not None and s.token == token), None)
            case names.LOG_MESSAGE:
                return self._alone()
            case names.CANCELLED if (rid := rid_in(params, "requestId")) is not None:
                return self._asked.get(rid.value)
            case _:
                return None

    def _awaited(self) -> Iterator[Sent]:
        return (s for s in self._sent.values() if s.awaited)

    def _alone(self) -> Sent | None:
        """The request that is alone in flight, if one is."""
        awaited = list(self._awaited())
        return awaited[0] if len(awaited) == 1 else None


_ASKED_AT_ANY_TIME: Final = frozenset({names.PING, names.ROOTS_LIST})
"""Servers ask these when the session begins, whatever call is first; the tool has nothing to do with it."""


def ours(rid: RequestId) -> int | None:
    """The id of ours that an answer has; servers may have made a string of it (F17)."""
    if isinstance(rid.value, int):
        return rid.value
    return int(rid.value) if _OURS_AS_TEXT.match(rid.value) else None


def text_of(raw: bytes, member: str) -> str | None:
    """A member of an object that is a string; None if there is no such."""
    try:
        return RawObject.parse(raw).text(member)
    except (JsonError, DuplicateMember):
        return None


def rid_in(params: bytes | None, *path: str) -> RequestId | None:
    """The id, or the token, that stands there in `params`; None if none does."""
    try:
        at: RawObject | None = RawObject.parse(params or b"{}")
        for member in path[:-1]:
            at = at.object(member) if at is not None else None
        raw = at.get(path[-1]) if at is not None else None
    except (JsonError, DuplicateMember):
        return None
    return None if raw is None else RequestId.parse(raw)


def _token_in(params: bytes, *path: str) -> int | str | None:
    token = rid_in(params, *path, names.META_PROGRESS_TOKEN)
    return None if token is None else token.value


def _related_task(params: bytes | None) -> str | None:
    task = rid_in(params, names.META, names.META_RELATED_TASK, "taskId")
    return None if task is None or isinstance(task.value, int) else task.value
