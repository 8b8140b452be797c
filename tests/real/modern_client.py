"""A modern MCP client with nothing in between: it writes headers and `_meta` itself and keeps the raw text.

Deliberately no SDK: what a test compares is what was on the wire. MCP 2026-07-28, Streamable HTTP, MRTR and
the Tasks extension.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from proxy.protocol import names
from tests.real.waiting import asked_until

TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
ELICITATION: Final[Mapping[str, Any]] = {"elicitation": {}}
ALL_INPUT: Final[Mapping[str, Any]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
EVENT_STREAM: Final = "text/event-stream"
POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered request. `raw` is the response message as it was on the wire."""

    status: int
    content_type: str
    raw: bytes
    notifications: tuple[dict[str, Any], ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw)
        return found

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] | None = self.message.get("result")
        assert found is not None, f"no result: {self.status} {self.raw[:500]!r}"
        return found

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] | None = self.message.get("error")
        assert found is not None, f"no error: {self.status} {self.raw[:500]!r}"
        return found

    @property
    def task_id(self) -> str:
        """The id of the task that the call became."""
        assert self.result["resultType"] == "task", f"no task: {self.raw[:500]!r}"
        return str(self.result["taskId"])

    @property
    def text(self) -> str:
        """The text of the tool result, whether the call or a task brought it."""
        return tool_text(self.result.get("result", self.result))


def tool_text(result: Mapping[str, Any]) -> str:
    """The text of a tool result's content, joined."""
    return "".join(block.get("text", "") for block in result["content"])


def raw_members(text: bytes) -> dict[str, bytes]:
    """The members of a JSON object, each as it was written."""
    return {name: bytes(raw) for name, raw in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items()}


class Listening:
    """An open `subscriptions/listen` stream; iterate over it for its messages, first the acknowledgment."""

    def __init__(self, request_id: int, response: aiohttp.ClientResponse) -> None:
        self.request_id = request_id
        self._messages = _event_data(response)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await anext(self._messages))
        return message

    async def aclose(self) -> None:
        await self._messages.aclose()


class ModernClient:
    """One client; use it as an async context manager.

    `tasks` and `capabilities` are what its requests declare, unless a request says otherwise.
    """

    def __init__(
        self,
        url: str,
        *,
        tasks: bool = True,
        capabilities: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        address: str | None = None,
    ) -> None:
        """`address`: where its connections come from."""
        self.url = url
        self._from = None if address is None else (address, 0)
        self.tasks = tasks
        self.capabilities = dict(capabilities or {})
        self._headers = dict(headers or {})
        self._ids = itertools.count(1)

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, local_addr=self._from),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        request_id: int | str | None = None,
        meta: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request and read its answer to the end, JSON or event stream."""
        async with self._post(method, params or {}, request_id, meta, headers) as (_, response):
            if response.content_type != EVENT_STREAM:
                return Answer(response.status, response.content_type, await response.read())
            received = [data async for data in _event_data(response)]
        assert received, f"the event stream of {method} ended without an answer"
        *notifications, raw = received
        seen = tuple(json.loads(data) for data in notifications)
        return Answer(response.status, response.content_type, raw, seen)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        state: str | None = None,
        **options: Any,
    ) -> Answer:
        """`tools/call`; with `inputs` and `state` the retry that an InputRequiredResult asked for."""
        params: dict[str, Any] = {"name": name, "arguments": dict(arguments or {})}
        if inputs is not None:
            params["inputResponses"] = inputs
        if state is not None:
            params["requestState"] = state
        return await self.request(names.TOOLS_CALL, params, **options)

    async def get_task(self, task_id: str, **options: Any) -> Answer:
        return await self.request(names.TASKS_GET, {"taskId": task_id}, **options)

    async def update_task(self, task_id: str, inputs: Mapping[str, Any]) -> Answer:
        return await self.request(names.TASKS_UPDATE, {"taskId": task_id, "inputResponses": inputs})

    async def cancel_task(self, task_id: str) -> Answer:
        return await self.request(names.TASKS_CANCEL, {"taskId": task_id})

    async def wait_task(
        self,
        task_id: str,
        statuses: Collection[str] = TERMINAL,
        *,
        within_s: float = 30.0,
        every_s: float = POLL_S,
    ) -> Answer:
        """Poll until the task has one of `statuses`; AssertionError if it ends otherwise or too late."""

        def arrived(answer: Answer) -> bool:
            status = answer.result["status"]
            assert status in statuses or status not in TERMINAL, f"ended: {answer.raw[:500]!r}"
            return status in statuses

        what = f"task {task_id} is one of {sorted(statuses)}"
        return await asked_until(
            lambda: self.get_task(task_id), arrived, what, within_s=within_s, every_s=every_s
        )

    @asynccontextmanager
    async def listen(self, **notifications: Any) -> AsyncIterator[Listening]:
        """Open a `subscriptions/listen` stream for a filter (`taskIds=[...]`, `toolsListChanged=True`)."""
        params = {"notifications": notifications}
        async with self._post(names.SUBSCRIPTIONS_LISTEN, params, None, None, None) as (asked, response):
            assert response.content_type == EVENT_STREAM, f"{response.status} {await response.text()}"
            stream = Listening(asked, response)
            try:
                yield stream
            finally:
                await stream.aclose()

    @asynccontextmanager
    async def _post(
        self,
        method: str,
        params: Mapping[str, Any],
        request_id: int | str | None,
        meta: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
    ) -> AsyncIterator[tuple[Any, aiohttp.ClientResponse]]:
        asked = next(self._ids) if request_id is None else request_id
        sent = {**params, names.META: {**self._meta(), **(meta or {})}}
        body = {"jsonrpc": "2.0", "id": asked, "method": method, "params": sent}
        all_headers = {**_headers(method, params), **self._headers, **(headers or {})}
        async with self._http.post(self.url, json=body, headers=all_headers) as response:
            yield asked, response

    def _meta(self) -> dict[str, Any]:
        capabilities = dict(self.capabilities)
        if self.tasks:
            capabilities["extensions"] = {names.TASKS_EXTENSION: {}}
        return {
            names.META_PROTOCOL_VERSION: names.LATEST_MODERN,
            names.META_CLIENT_INFO: {"name": "raw-modern-client", "version": "1"},
            names.META_CLIENT_CAPABILITIES: capabilities,
        }


def _headers(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    headers = {
        "Accept": f"application/json, {EVENT_STREAM}",
        names.H_PROTOCOL_VERSION: names.LATEST_MODERN,
        names.H_METHOD: method,
    }
    if (member := names.NAME_MEMBER.get(method)) is not None:
        headers[names.H_NAME] = str(params[member])
    return headers


async def _event_data(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The data of each event of a stream of ours: LF line ends, comments in between."""
    data: list[bytes] = []
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line.removeprefix(b"data:").strip())
            elif not line.strip() and data:
                yield b"\n".join(data)
                data = []
