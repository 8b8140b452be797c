"""What one legacy client waits for from its server, and which of it a message of the server belongs to.

Above: `own_server`. Below: `eras.attribution`, the rule where the wire does not tell. Nothing in here waits
or sends. Contract section 2, "Which call does a server-initiated request belong to?".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import anyio

from proxy.eras.attribution import AskingTools, attribute
from proxy.eras.tasks_2025 import related_task
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject
from proxy.protocol.jsonrpc import ErrorResponse, Notification, Request, RequestId, ResultResponse
from proxy.tasks.inputs import QUESTION_METHODS

REMEMBERED: Final = frozenset(
    {
        names.INITIALIZE,
        names.LOGGING_SET_LEVEL,
        names.RESOURCES_SUBSCRIBE,
        names.RESOURCES_UNSUBSCRIBE,
    }
)
"""Requests that a later server is told again, once this one has accepted them."""

FIRST_TASK_ID: Final = 1_000_000_001
"""Where the ids of task calls begin: out of the way of others, and within what any server takes."""

MAX_ASKED: Final = 1_000  # questions without an answer; a server that asks more does not wait for answers


@dataclass(eq=False, slots=True)
class Sent:
    """A request that was sent on. `id` is ours; `rid` is the client's, None if the request is our own.

    `name` is the tool, prompt or resource that it names, `token` its progress token, `task` the 2025 task of
    the server's that it names. `of_task`: it is the call of a task of ours. `questions` are the ids of what
    the server has asked during it and not been told.
    """

    id: int
    method: str
    rid: RequestId | None
    name: str | None = None
    token: int | str | None = None
    task: str | None = None
    of_task: bool = False
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

    @property
    def may_ask(self) -> bool:
        """Whether a question of the server could be part of it."""
        return self.awaited or self.of_task


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
        if (params := request.readable) is not None:
            sent.name = text_of(params, names.NAME_MEMBER.get(request.method, "name"))
            sent.token = _token_in(params, names.META)
            sent.task = text_of(params, "taskId")
        self._sent[sent.id] = sent
        return sent

    def add_own(self, method: str) -> Sent:
        """A request of ours."""
        sent = Sent(next(self._ids), method, None)
        self._sent[sent.id] = sent
        return sent

    def add_of_task(self, id: int, method: str, name: str | None) -> None:
        """A request of the session that carries our tasks; `id`, of its own counting, is FIRST_TASK_ID at
        least."""
        self._sent[id] = Sent(id, method, None, name, of_task=True)

    def pop(self, id: int | None) -> Sent | None:
        """It is in flight no more."""
        return None if id is None else self._sent.pop(id, None)

    def named(self, rid: RequestId) -> Sent | None:
        """The request that the client calls so."""
        return next((s for s in self._sent.values() if s.rid is not None and s.rid.value == rid.value), None)

    # -- what the server says -----------------------------------------------------------------------

    def asked(self, question: Request, on: int | None) -> Sent | None:
        """The server asks: the request that it asks during. `on` is the one on whose stream the question
        came, where the wire tells."""
        asker = None if question.method == names.PING else self._asker(question, on)
        if len(self._asked) >= MAX_ASKED:
            self._forget(next(iter(self._asked)))
        self._asked[question.id.value] = asker
        if asker is not None:
            asker.questions.add(question.id.value)
        return asker

    def _asker(self, question: Request, on: int | None) -> Sent | None:
        """What is no question (a task that the client hosts, say) never is part of a task of ours: the client
        itself has to answer it (T25-CAP-008)."""
        is_question = question.method in QUESTION_METHODS
        if on is not None:
            sent = self._sent.get(on)
            return None if sent is not None and sent.of_task and not is_question else sent
        if (task := related_task(question.params)) is not None:
            results = (s for s in self._may_ask() if s.method == names.TASKS_RESULT)
            return next((s for s in results if s.task == task), None)
        asker = attribute((s for s in self._may_ask() if is_question or not s.of_task), self._asking)
        if asker is not None and asker is self._alone() and question.method not in _ASKED_AT_ANY_TIME:
            self._asking.saw(asker)
        return asker

    def take_answered(self, id: int | str, *, by_task: bool = False) -> bool:
        """A question is answered: by the client, or by the task that it was part of. False if whoever answers
        was never asked it, or it is answered already."""
        asker = self._asked.get(id)
        if id not in self._asked or (asker is not None and asker.of_task) is not by_task:
            return False
        self._forget(id)
        return True

    def _forget(self, id: int | str) -> None:
        if (asker := self._asked.pop(id)) is not None:
            asker.questions.discard(id)

    def told(self, notification: Notification, on: int | None) -> Sent | None:
        """The server says something: the request that it belongs to, None if to none.

        Progress by its token, a log line to the request that is alone in flight, and a question that is
        withdrawn to where it was asked. What is said of the session is no part of a task of ours, on
        whatever stream it comes.
        """
        if on is not None:
            sent = self._sent.get(on)
            return None if sent is not None and sent.of_task and notification.method in _OF_SESSION else sent
        return self._concerned(notification.method, notification.params)

    def _concerned(self, method: str, params: bytes | None) -> Sent | None:
        match method:
            case names.PROGRESS if params is not None:
                return self._with_token(_token_in(params))
            case names.LOG_MESSAGE:
                return self._alone()
            case names.CANCELLED if (rid := rid_in(params, "requestId")) is not None:
                return self._asked.get(rid.value)
            case _:
                return None

    def _with_token(self, token: int | str | None) -> Sent | None:
        """The request of this progress token: the client's, or, of the calls of tasks, our id."""
        if isinstance(token, int) and (of_task := self._sent.get(token)) is not None and of_task.of_task:
            return of_task
        return next((s for s in self._sent.values() if token is not None and s.token == token), None)

    def _may_ask(self) -> Iterator[Sent]:
        return (s for s in self._sent.values() if s.may_ask)

    def _alone(self) -> Sent | None:
        """The request that is alone in flight, if one is."""
        found = list(self._may_ask())
        return found[0] if len(found) == 1 else None


_OF_SESSION: Final = frozenset(
    {
        names.TOOLS_LIST_CHANGED,
        names.PROMPTS_LIST_CHANGED,
        names.RESOURCES_LIST_CHANGED,
        names.RESOURCES_UPDATED,
        names.ELICITATION_COMPLETE,
    }
)

_ASKED_AT_ANY_TIME: Final = frozenset({names.PING, names.ROOTS_LIST})
"""Servers ask these when the session begins, whatever call is first; the tool has nothing to do with it."""


def text_of(obj: RawObject | bytes, member: str) -> str | None:
    """A member of an object that is a string; None if there is no such."""
    try:
        return (RawObject.parse(obj) if isinstance(obj, bytes) else obj).text(member)
    except (JsonError, DuplicateMember):
        return None


def rid_in(params: RawObject | bytes | None, *path: str) -> RequestId | None:
    """The id, or the token, that stands there in `params`; None if none does."""
    try:
        at: RawObject | None = params if isinstance(params, RawObject) else RawObject.parse(params or b"{}")
        for member in path[:-1]:
            at = at.object(member) if at is not None else None
        raw = at.get(path[-1]) if at is not None else None
    except (JsonError, DuplicateMember):
        return None
    return None if raw is None else RequestId.parse(raw)


def _token_in(params: RawObject | bytes, *path: str) -> int | str | None:
    token = rid_in(params, *path, names.META_PROGRESS_TOKEN)
    return None if token is None else token.value
