"""The clients of a round: each call lives as its plan says, and what it is told is kept.

A client that is cut off comes back, as real ones do: it polls its tasks until they end, and sends a retry
(MRTR) again. A `tools/call` is sent again only where nobody listened.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import aiohttp
import anyio

from tests.faults.moments import Moments
from tests.faults.plan import OWNERS, CallPlan, Kind, Moment
from tests.faults.seen import CallSeen, TaskSeen
from tests.faults.violation import What
from tests.real.modern_client import ELICITATION, TERMINAL, Answer, ModernClient

READ_ID: Final = 7
"""The same request id for every read, so that whole responses can be compared."""

ANSWER_BOUND_S: Final = 25.0  # the runtime limit, and the longest stops of a round
TOLD_WITHIN_S: Final = 10.0  # of the end of a task, on a stream; a stop of the proxy comes in between
BACK_AFTER_S: Final = 0.1
RETRIES: Final = 100
GONE: Final = (aiohttp.ClientError, OSError, AssertionError, anyio.EndOfStream)
"""How the end of the other side looks; the AssertionError is of a stream without an answer."""


class Cut(Enum):
    """How a request ended without an answer."""

    REFUSED = auto()  # nobody listened: it was not sent
    BROKEN = auto()


class Clients:
    """One client for each owner, with input and without: each has a session with the server of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stack = AsyncExitStack()
        self._clients: dict[tuple[int, bool], ModernClient] = {}

    async def __aenter__(self) -> Clients:
        for owner in range(OWNERS):
            for asked in (False, True):
                headers = {"Authorization": f"Bearer owner-{owner}"} if owner else {}
                client = ModernClient(self._url, capabilities=ELICITATION if asked else {}, headers=headers)
                self._clients[owner, asked] = await self._stack.enter_async_context(client)
        self.stranger = await self._stack.enter_async_context(
            ModernClient(self._url, headers={"Authorization": "Bearer stranger"})
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def of(self, plan: CallPlan) -> ModernClient:
        return self._clients[plan.owner, plan.questions > 0]


class Callers:
    """Of one round."""

    def __init__(self, clients: Clients, moments: Moments, retention_s: float) -> None:
        self._clients = clients
        self._moments = moments
        self._retention_s = retention_s

    async def live(self, call: CallSeen) -> None:
        """A call's life. Returns when its client has seen its end, or never will."""
        plan = call.plan
        await anyio.sleep(plan.at_s)
        client = self._clients.of(plan)
        call.sent_at = time.monotonic()
        self._moments.beat(Moment.SENT)
        with anyio.move_on_after(plan.hang_up_after_s):
            await self._call(client, call)
        if call.task is not None:
            async with anyio.create_task_group() as group:
                if plan.watch:
                    group.start_soon(self._watch, client, call, call.task)
                await self._follow(client, call, call.task)
        call.over = True

    # -- until there is an answer or a handle -----------------------------------------------------------

    async def _call(self, client: ModernClient, call: CallSeen) -> None:
        plan = call.plan
        arguments = {
            "label": plan.label, "seconds": plan.seconds, "steps": plan.steps, "questions": plan.questions,
            "size": plan.size, "ending": plan.ending.value,
        }  # fmt: skip
        inputs: dict[str, Any] | None = None
        state: str | None = None
        cuts = 0
        while cuts < RETRIES:
            ask = partial(client.call_tool, plan.tool, arguments, inputs=inputs, state=state)
            answer = await self._said(call, ask)
            if isinstance(answer, Cut):
                if state is None and answer is Cut.BROKEN:
                    call.cut_at = time.monotonic()
                    return
                cuts += 1  # the same retry again: the same answer or a clear error, never a second run
                await anyio.sleep(BACK_AFTER_S)
                continue
            result = answer.message.get("result") or {}
            match result.get("resultType"):
                case "input_required":
                    self._moments.beat(Moment.ASKED)
                    if plan.kind is Kind.MUTE:
                        return
                    inputs, state = _answers(result["inputRequests"]), result["requestState"]
                    call.retried = True
                case "task":
                    now = time.monotonic()
                    call.task = TaskSeen(result["taskId"], plan, self._retention_s, now, result)
                    self._moments.beat(Moment.HANDLE)
                    return
                case _:
                    call.answer, call.answered_at = answer, time.monotonic()
                    return

    async def _said(self, call: CallSeen, ask: Callable[[], Awaitable[Answer]]) -> Answer | Cut:
        """The answer to one request, or how the connection ended without one."""
        with anyio.move_on_after(ANSWER_BOUND_S):
            try:
                answer = await ask()
                json.loads(answer.raw)  # a body cut short is no answer
            except aiohttp.ClientConnectorError:
                return Cut.REFUSED
            except (*GONE, json.JSONDecodeError):
                return Cut.BROKEN
            return answer
        call.complain(What.NO_ANSWER, f"a request was not answered within {ANSWER_BOUND_S:g} s")
        return Cut.BROKEN

    # -- the task ---------------------------------------------------------------------------------------

    async def _follow(self, client: ModernClient, call: CallSeen, task: TaskSeen) -> None:
        plan = call.plan
        while True:
            await self.read(call, task)
            if task.over:
                break
            if task.questions:
                self._moments.beat(Moment.ASKED)
                if plan.kind is not Kind.MUTE:
                    await self._answer(client, call, task)
            due_s = float("inf") if task.cancelled_at is not None else self._cancel_due_s(call)
            if due_s <= 0:
                await self._cancel(client, call, task)
            await anyio.sleep(min(plan.poll_s, due_s) if due_s > 0 else plan.poll_s)
        self._moments.beat(Moment.ENDED)

    async def read(self, call: CallSeen, task: TaskSeen) -> None:
        client = self._clients.of(call.plan)
        answer = await self._said(call, lambda: client.get_task(task.id, request_id=READ_ID))
        if not isinstance(answer, Cut):
            task.read(answer, time.monotonic(), time.time() * 1000)

    async def _answer(self, client: ModernClient, call: CallSeen, task: TaskSeen) -> None:
        inputs = _answers(task.questions)
        answer = await self._said(call, lambda: client.update_task(task.id, inputs))
        if self._acknowledged("tasks/update", call, task, answer):
            task.answered |= dict.fromkeys(inputs, time.monotonic())
            self._moments.beat(Moment.ANSWERED)

    async def _cancel(self, client: ModernClient, call: CallSeen, task: TaskSeen) -> None:
        call.cancel_sent = True
        answer = await self._said(call, lambda: client.cancel_task(task.id))
        if self._acknowledged("tasks/cancel", call, task, answer):
            task.cancelled_at = time.monotonic()
            self._moments.beat(Moment.CANCELLED)

    @staticmethod
    def _acknowledged(method: str, call: CallSeen, task: TaskSeen, answer: Answer | Cut) -> bool:
        if isinstance(answer, Cut):
            return False
        if (error := answer.message.get("error")) is not None:
            task.refusals.append((time.monotonic(), f"{method}: {error['message']}"))
            return False
        if answer.result.keys() - {"_meta"} != {"resultType"}:
            call.complain(What.MALFORMED, f"{method} was answered {answer.raw[:300]!r}")
        return True

    @staticmethod
    def _cancel_due_s(call: CallSeen) -> float:
        after_s = call.plan.cancel_after_s
        if after_s is None or call.sent_at is None:
            return float("inf")
        return call.sent_at + after_s - time.monotonic()

    async def _watch(self, client: ModernClient, call: CallSeen, task: TaskSeen) -> None:
        """Listen until the task's end is told, or the stream ends; the polls go on anyway."""
        ended = False
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                nonlocal ended
                with suppress(*GONE, json.JSONDecodeError):
                    async with client.listen(taskIds=[task.id]) as stream:
                        async for message in stream:
                            if message.get("method") == "notifications/tasks":
                                task.notified(message["params"])
                                if message["params"].get("status") in TERMINAL:
                                    break
                ended = True
                group.cancel_scope.cancel()

            group.start_soon(listen)
            while not task.over:  # noqa: ASYNC110 - another's poll tells
                await anyio.sleep(call.plan.poll_s)
            await anyio.sleep(TOLD_WITHIN_S)
            group.cancel_scope.cancel()
        if not ended:
            call.complain(
                What.NO_ANSWER, f"its end was not told on an open stream within {TOLD_WITHIN_S:g} s"
            )


def _answers(questions: dict[str, Any]) -> dict[str, Any]:
    """To whichever call the question belongs: what it asks for stands in it."""
    return {
        key: {"action": "accept", "content": {"nonce": question["params"]["message"]}}
        for key, question in questions.items()
    }
