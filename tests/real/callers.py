"""Clients of either era over either transport, of whom the same things can be asked.

What differs is settled here: a modern one polls its tasks and answers questions by asking again, a legacy one
gets questions as requests in the middle of its call; over HTTP a client hangs up, over stdio it closes stdin.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import anyio

from proxy.protocol import names
from tests.real.modern_client import ELICITATION, ModernClient, tool_text
from tests.real.session_client import ANSWERS, SessionClient
from tests.real.stdio_process import StdioProcess, meta
from tests.real.waiting import asked_until

POLL_S: Final = 0.05
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
DOOMED: Final = "doomed"

Began = Callable[[], Awaitable[None]]
"""Waits until the server has begun to work on the call."""


@dataclass(frozen=True, slots=True)
class Heard:
    """How a call ended: with the `result` or `error` of its answer, or of its task. `asked`: the methods of
    the questions on the way."""

    message: Mapping[str, Any]
    was_task: bool = False
    asked: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return tool_text(self.result)

    @property
    def result(self) -> Mapping[str, Any]:
        assert "result" in self.message, self.message
        found: Mapping[str, Any] = self.message["result"]
        return found


class Party(Protocol):
    async def call(self, tool: str, **arguments: Any) -> Heard: ...

    async def cancel(self, label: str, began: Began) -> None:
        """Call `hang`, and cancel that once it has begun."""
        ...

    async def leave(self, label: str, began: Began) -> None:
        """Call `hang` without wanting a task, and go away without a word once it has begun."""
        ...


# ------------------------------------------------------------------------------ modern


class Modern(ABC):
    """Over whatever `_ask` sends a request."""

    @abstractmethod
    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The response message."""

    async def call(self, tool: str, **arguments: Any) -> Heard:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        message, asked = await self._ask(names.TOOLS_CALL, params), list[str]()
        while (kind := message.get("result", {}).get("resultType")) == names.INPUT_REQUIRED:
            questions = message["result"]["inputRequests"]
            asked += [question["method"] for question in questions.values()]
            answers = {key: ANSWERS[question["method"]] for key, question in questions.items()}
            again = {"inputResponses": answers, "requestState": message["result"]["requestState"]}
            message = await self._ask(names.TOOLS_CALL, {**params, **again})
        if kind == names.TASK:
            ended = await self.end_of(message["result"]["taskId"], asked)
            return Heard(ended, True, tuple(asked))
        return Heard(message, asked=tuple(asked))

    async def end_of(self, task_id: str, asked: list[str] | None = None) -> dict[str, Any]:
        """The task once it has ended; its questions are answered, and their methods added to `asked`."""

        async def get() -> dict[str, Any]:
            found: dict[str, Any] = (await self._ask(names.TASKS_GET, {"taskId": task_id}))["result"]
            if questions := found.get("inputRequests"):
                methods = {key: question["method"] for key, question in questions.items()}
                answers = {key: ANSWERS[method] for key, method in methods.items()}
                await self._ask(names.TASKS_UPDATE, {"taskId": task_id, "inputResponses": answers})
                if asked is not None:
                    asked.extend(methods.values())
            return found

        return await asked_until(get, lambda t: t["status"] in TERMINAL, "the task ends", every_s=POLL_S)

    async def cancel(self, label: str, began: Began) -> None:
        handle = await self._ask(names.TOOLS_CALL, {"name": "hang", "arguments": {"label": label}})
        await began()
        task_id = handle["result"]["taskId"]
        assert (await self._ask(names.TASKS_CANCEL, {"taskId": task_id}))["result"][
            "resultType"
        ] == "complete"
        assert (await self.end_of(task_id))["status"] == "cancelled"


class ModernOverHttp(Modern):
    def __init__(self, client: ModernClient) -> None:
        self._client = client

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return (await self._client.request(method, params)).message

    async def leave(self, label: str, began: Began) -> None:
        async with ModernClient(self._client.url, tasks=False) as client, anyio.create_task_group() as calls:
            calls.start_soon(client.call_tool, "hang", {"label": label})
            await began()
            calls.cancel_scope.cancel()


class ModernOverStdio(Modern):
    def __init__(self, process: StdioProcess) -> None:
        self._process = process

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return await self._process.ask_modern(method, params, **ELICITATION)

    async def leave(self, label: str, began: Began) -> None:
        await self.call("fast")  # who was told nothing yet may have been piped in, and reads on
        hang = {"name": "hang", "arguments": {"label": label}, names.META: meta(tasks=False)}
        await self._process.request(names.TOOLS_CALL, hang)
        await began()
        self._process.close_stdin()


# ------------------------------------------------------------------------------ legacy


@dataclass
class LegacyOverHttp:
    """In a session of its own, once there was a handshake."""

    client: SessionClient

    async def call(self, tool: str, **arguments: Any) -> Heard:
        async with self.client.asking(names.TOOLS_CALL, {"name": tool, "arguments": arguments}) as exchange:
            asked = []
            while (message := await exchange.message()) is not None and "method" in message:
                if "id" in message:
                    asked.append(message["method"])
                    await self.client.answer(message)
        assert message is not None, "the response ended without an answer"
        return Heard(message, asked=tuple(asked))

    async def cancel(self, label: str, began: Began) -> None:
        params = {"name": "hang", "arguments": {"label": label}}
        async with anyio.create_task_group() as calls:
            calls.start_soon(lambda: self.client.request(names.TOOLS_CALL, params, rid=DOOMED))
            await began()
            await self.client.tell({"method": names.CANCELLED, "params": {"requestId": DOOMED}})
            calls.cancel_scope.cancel()

    async def leave(self, label: str, began: Began) -> None:
        async with anyio.create_task_group() as calls:
            calls.start_soon(lambda: self.client.call("hang", label=label))
            await began()
            calls.cancel_scope.cancel()


@dataclass
class LegacyOverStdio:
    """The process's one session."""

    process: StdioProcess
    _greeted: bool = field(default=False)

    async def greet(self) -> None:
        if not self._greeted:
            await self.process.initialize(**ELICITATION)
            self._greeted = True

    async def call(self, tool: str, **arguments: Any) -> Heard:
        params = {"name": tool, "arguments": arguments}
        rid, asked = await self.process.request(names.TOOLS_CALL, params), list[str]()
        while "method" in (message := await self.process.message()) or message["id"] != rid:
            if "method" in message and "id" in message:
                asked.append(message["method"])
                await self.process.send({"id": message["id"], "result": ANSWERS[message["method"]]})
        return Heard(message, asked=tuple(asked))

    async def cancel(self, label: str, began: Began) -> None:
        hang = {"name": "hang", "arguments": {"label": label}}
        rid = await self.process.request(names.TOOLS_CALL, hang)
        await began()
        await self.process.send({"method": names.CANCELLED, "params": {"requestId": rid}})

    async def leave(self, label: str, began: Began) -> None:
        await self.process.request(names.TOOLS_CALL, {"name": "hang", "arguments": {"label": label}})
        await began()
        self.process.close_stdin()
