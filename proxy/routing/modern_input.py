"""A modern server's questions to a call that is a task: InputRequiredResult, answered by the next round.

Above: `runner`, which sends the rounds. Below: `live`, under whose keys the client sees the questions.
Before the threshold such a result passes to the client unchanged; a task keeps its handle, so there the
proxy gathers the answers and calls again, with a new id and the exact `requestState`. MRTR 2026-07-28,
"Client Requirements"; contract section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import anyio

from proxy.eras.capabilities import missing_capability
from proxy.eras.era import Era
from proxy.errors import UpstreamProtocolError
from proxy.protocol import names
from proxy.protocol.envelope import RawObject, dumps, splice
from proxy.protocol.jsonrpc import RequestId
from proxy.routing.live import LiveCall
from proxy.tasks.inputs import QUESTION_METHODS
from proxy.tasks.lost_call import RoundTrace
from proxy.tasks.task import Task
from proxy.upstream.base import Outcome, Result

_NO_REQUEST: Final = RequestId(b"null", "")


class ServerQuestion:
    """One entry of `inputRequests`. Implements `upstream.base.Question`; its answer is for the next round."""

    id: RequestId = _NO_REQUEST

    def __init__(self, key: str, method: str, params: bytes | None) -> None:
        self.key = key
        self.method = method
        self.params = params
        self.value: bytes | None = None
        self.answered = anyio.Event()

    async def answer(self, result: bytes) -> None:
        self.value = result
        self.answered.set()

    async def reject(self, error: bytes) -> None:
        self.refuse(error)

    def refuse(self, error: bytes) -> None:
        self.answered.set()


@dataclass(frozen=True, slots=True)
class Asked:
    """What the server wants before it goes on. `state` is the raw `requestState`, None if it gave none."""

    questions: tuple[ServerQuestion, ...]
    state: bytes | None


def asked_for(call: LiveCall, outcome: Outcome) -> Asked | None:
    """The questions of this outcome, if it is not final and the call is a task (or is just becoming one).

    Raises UpstreamProtocolError if a task cannot end with such a result (BASE-008, TX-CAP-016).
    """
    modern = call.info is not None and call.info.era is Era.MODERN
    if not modern or not call.becomes_task or not isinstance(outcome, Result):
        return None
    try:
        result = RawObject.parse(outcome.raw)
        kind = result.text("resultType") or names.COMPLETE
        if kind == names.COMPLETE:
            return None
        if kind != names.INPUT_REQUIRED:
            raise UpstreamProtocolError(f"the upstream answered with the unknown resultType {kind!r}")
        requests = result.object("inputRequests")
        found = [_question(requests, m.key) for m in requests.members] if requests is not None else []
        return Asked(tuple(found), result.get("requestState"))
    except ValueError as exc:
        raise UpstreamProtocolError(f"the upstream's InputRequiredResult cannot be used: {exc}") from exc


def _question(requests: RawObject, key: str) -> ServerQuestion:
    request = requests.object(key)
    method = request.text("method") if request is not None else None
    if request is None or method not in QUESTION_METHODS:
        raise ValueError(f"inputRequests[{key!r}] is no question")
    return ServerQuestion(key, method, request.get("params"))


async def next_params(call: LiveCall, asked: Asked) -> bytes:
    """Have the client answer; the params of the next round. The wait is cancelled with the call.

    Meanwhile nothing of the call is in flight, so that a later process can go on with it. Raises
    ClientProtocolError where the client of a task has not declared that it can answer: a modern server takes
    results alone, so that there is no refusing, and the next round would only bring the question again. For
    the same reason too much at once is UpstreamProtocolError.
    """
    if (fault := call.too_much(asked.questions)) is not None:
        raise UpstreamProtocolError(f"the upstream asked for too much: {fault}")
    for question in asked.questions if call.is_task else ():
        missing = call.capabilities.missing_for(question.method, question.params)
        if missing is not None:
            raise missing_capability(missing.required, f"the server asked the client for {question.method}")
    for question in asked.questions:
        call.on_question(question)
    by_question = {id(one.question): key for key, one in call.questions.items()}
    keys = tuple((by_question[id(q)], q.key) for q in asked.questions if id(q) in by_question)
    params, offered = call.request.params.raw, call.request.capabilities.offered
    call.round = RoundTrace(params, offered, asked.state, keys) if keys else None
    return await _answered(call, asked)


async def _answered(call: LiveCall, asked: Asked) -> bytes:
    for question in asked.questions:
        await question.answered.wait()
    call.round = None
    answers = {q.key: q.value for q in asked.questions if q.value is not None}
    responses = b"{" + b",".join(dumps(key) + b":" + value for key, value in answers.items()) + b"}"
    changes = {"inputResponses": responses if asked.questions else None, "requestState": asked.state}
    return splice(call.request.params, changes)


@dataclass(frozen=True, slots=True)
class LeftRound:
    """A round that an earlier process left while it waited for answers. `questions` are those that may be
    answered now, by our key."""

    asked: Asked
    questions: Mapping[str, ServerQuestion]

    async def params(self, call: LiveCall) -> bytes:
        """Those of the next round, once the client has answered."""
        return await _answered(call, self.asked)


def left_round(task: Task, trace: RoundTrace) -> LeftRound:
    """The round that `task` waits in. Answers that were given already are in it."""
    asked = {request.key: request for request in task.inputs}
    given = {answer.key: answer.value for answer in task.answers}
    questions: dict[str, ServerQuestion] = {}
    for ours, theirs in trace.keys:
        request = asked.get(ours)
        method, params = (request.method, request.params) if request is not None else ("", None)
        question = questions[ours] = ServerQuestion(theirs, method, params)
        if request is None:  # answered, or withdrawn
            question.value = given.get(ours)
            question.answered.set()
    return LeftRound(Asked(tuple(questions.values()), trace.state), questions)
