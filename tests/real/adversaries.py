"""Owners who try each other's things: each has a token or none, and keeps all that it was ever told."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import anyio

from proxy.protocol import names
from tests.real.session_client import BOTH, SessionClient

BOUND_S: Final = 20.0
RID: Final = 7
"""The id of each request, so that answers can be compared byte by byte."""

TASKS: Final[Mapping[str, Any]] = {"extensions": {names.TASKS_EXTENSION: {}}}
ASKABLE: Final[Mapping[str, Any]] = {"elicitation": {}}
YES: Final = {"action": "accept", "content": {"name": "Mallory"}}


@dataclass(frozen=True)
class Told:
    """One whole answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        """JSON, or the last event of a stream."""
        data = [line[5:] for line in self.body.split(b"\n") if line.startswith(b"data:") and line[5:].strip()]
        found: dict[str, Any] = json.loads(data[-1] if data else self.body)
        return found

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = self.message["result"]
        return found


class Party:
    """`open_session` first, for what it says in the legacy dialect."""

    def __init__(self, name: str, url: str, http: aiohttp.ClientSession, *, is_anonymous: bool) -> None:
        self.name = name
        self.url = url
        self.credential = {} if is_anonymous else {"Authorization": f"Bearer {name}"}
        self.secret = f"secret-of-{name}"
        self.heard: list[bytes] = []
        self.session_id = ""
        self._http = http

    async def open_session(self) -> None:
        """Of 2025-11-25."""
        client = SessionClient(self.url, self._http, self.credential)
        await client.initialize(**ASKABLE)
        assert client.session_id is not None
        self.session_id = client.session_id

    # -- one request, one answer --------------------------------------------------------------------

    async def say(self, method: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Told:
        """Read to its end, which must come."""
        with anyio.fail_after(BOUND_S):
            async with self._request(method, body, headers or {}) as response:
                told = Told(response.status, _compared(response), await response.read())
        self.heard.append(repr(told.headers).encode() + told.body)
        return told

    @asynccontextmanager
    async def _request(
        self, method: str, body: Any, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        said = {"Accept": BOTH, "Content-Type": "application/json", **self.credential, **headers}
        data = None if body is None else json.dumps(body).encode()
        async with self._http.request(method, self.url, data=data, headers=said) as response:
            yield response

    async def modern(
        self, method: str, params: Mapping[str, Any], capabilities: Mapping[str, Any] = TASKS
    ) -> Told:
        body, headers = _modern(method, params, capabilities)
        return await self.say("POST", body, headers)

    async def legacy(self, method: str, params: Any = None, session: str | None = None) -> Told:
        """In its own session, or in this one."""
        body = {
            "jsonrpc": "2.0",
            "id": RID,
            "method": method,
            **({} if params is None else {"params": params}),
        }
        return await self.say("POST", body, self.in_session(session))

    async def tell(self, message: Mapping[str, Any], session: str | None = None) -> Told:
        """What is not answered."""
        return await self.say("POST", {"jsonrpc": "2.0", **message}, self.in_session(session))

    def in_session(self, session: str | None = None, **more: str) -> dict[str, str]:
        said = {
            names.H_SESSION_ID: self.session_id if session is None else session,
            names.H_PROTOCOL_VERSION: names.LATEST_LEGACY,
        }
        return {**said, **{key.replace("_", "-"): value for key, value in more.items()}}

    # -- streams ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def events(
        self, method: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[EventsOf]:
        async with self._request(method, body, headers or {}) as response:
            yield EventsOf(self, response)

    @asynccontextmanager
    async def listening(self, *task_ids: str) -> AsyncIterator[EventsOf]:
        """`subscriptions/listen` for tasks."""
        body, headers = _modern(names.SUBSCRIPTIONS_LISTEN, {"notifications": {"taskIds": task_ids}}, TASKS)
        async with self.events("POST", body, headers) as events:
            yield events

    # -- things of its own ----------------------------------------------------------------------------

    def arguments(self, **more: Any) -> dict[str, Any]:
        return {"secret": self.secret, **more}

    async def task(self, tool: str = "nap", **arguments: Any) -> str:
        """Of a modern call that takes longer than its threshold, or asks."""
        params = {"name": tool, "arguments": self.arguments(**arguments)}
        told = await self.modern(names.TOOLS_CALL, params, {**TASKS, **ASKABLE})
        task_id: str = told.result["taskId"]
        return task_id

    async def task_2025(self, tool: str = "nap", ttl: int | None = None, **arguments: Any) -> str:
        wish = {} if ttl is None else {"ttl": ttl}
        params = {"name": tool, "arguments": self.arguments(**arguments), "task": wish}
        task_id: str = (await self.legacy(names.TOOLS_CALL, params)).result["task"]["taskId"]
        return task_id

    async def state_of(self, task_id: str) -> dict[str, Any]:
        """What the owner sees, without what time alone changes."""
        task = (await self.modern(names.TASKS_GET, {"taskId": task_id})).result
        return {key: value for key, value in task.items() if key not in ("ttlMs", "pollIntervalMs")}


class EventsOf:
    """The messages of an open stream, and the ids of its events."""

    def __init__(self, party: Party, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.ids: list[str] = []
        self._party = party
        self._response = response

    async def next(self) -> dict[str, Any]:
        with anyio.fail_after(BOUND_S):
            while True:
                line = (await self._response.content.readline()).strip()
                assert line or not self._response.content.at_eof(), "the stream has ended"
                self._party.heard.append(line)
                if line.startswith(b"id:"):
                    self.ids.append(line[3:].strip().decode())
                if line.startswith(b"data:") and line[5:].strip():
                    found: dict[str, Any] = json.loads(line[5:])
                    return found

    async def until(self, method: str) -> dict[str, Any]:
        while (message := await self.next()).get("method") != method:
            pass
        return message


def _modern(
    method: str, params: Mapping[str, Any], capabilities: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    meta = {
        names.META_PROTOCOL_VERSION: names.LATEST_MODERN,
        names.META_CLIENT_CAPABILITIES: capabilities,
    }
    headers = {names.H_PROTOCOL_VERSION: names.LATEST_MODERN, names.H_METHOD: method}
    if (member := names.NAME_MEMBER.get(method)) is not None:
        headers[names.H_NAME] = params[member]
    return {"jsonrpc": "2.0", "id": RID, "method": method, "params": {**params, names.META: meta}}, headers


def _compared(response: aiohttp.ClientResponse) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key.lower(), value) for key, value in response.headers.items() if key != "Date"))


# -- what an attacker can do with an id ---------------------------------------------------------------

Probe = Callable[[Party, str], Awaitable[Told]]
"""An attacker names something, its own or not."""


def unknown_task() -> str:
    return "tpx-" + secrets.token_urlsafe(24)


def modern_probe(method: str, **params: Any) -> Probe:
    async def probe(attacker: Party, task_id: str) -> Told:
        return await attacker.modern(method, {"taskId": task_id, **params})

    return probe


def legacy_probe(method: str) -> Probe:
    async def probe(attacker: Party, task_id: str) -> Told:
        return await attacker.legacy(method, {"taskId": task_id})

    return probe


async def listen_probe(attacker: Party, task_id: str) -> Told:
    """The acknowledgement is all there is to compare."""
    async with attacker.listening(task_id) as events:
        return Told(events.status, (), str(await events.next()).encode())


TASK_PROBES: Final[Mapping[str, Probe]] = {
    "tasks/get": modern_probe(names.TASKS_GET),
    "tasks/update": modern_probe(names.TASKS_UPDATE, inputResponses={"input-1": YES}),
    "tasks/update, malformed": modern_probe(names.TASKS_UPDATE),
    "tasks/cancel": modern_probe(names.TASKS_CANCEL),
    "subscriptions/listen": listen_probe,
    "tasks/get of 2025": legacy_probe(names.TASKS_GET),
    "tasks/result of 2025": legacy_probe(names.TASKS_RESULT),
    "tasks/cancel of 2025": legacy_probe(names.TASKS_CANCEL),
}
