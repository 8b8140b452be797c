"""Small `tools/call` requests, many at once, every answer checked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import anyio

from benchmarks.rig.upstream import session_id, tool_result
from proxy.protocol import names

EVENT_STREAM: Final = "text/event-stream"
BODY_BYTES: Final = 200  # of a legacy call


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of call: which revision its client speaks, and how the server answers."""

    version: str
    tool: str

    @property
    def is_legacy(self) -> bool:
        return self.version in names.LEGACY_VERSIONS

    @property
    def media_type(self) -> str:
        """Of the answer. Modern clients get JSON where there is nothing but the result."""
        return EVENT_STREAM if self.is_legacy and self.tool == "answer_events" else "application/json"

    def __str__(self) -> str:
        return f"{self.version} {self.tool.removeprefix('answer_')}"

    def request(self, number: int, label: str) -> tuple[dict[str, str], bytes]:
        """Headers and body of one call."""
        params: dict[str, Any] = {"name": self.tool, "arguments": {"label": label}}
        if not self.is_legacy:
            return modern_request(names.TOOLS_CALL, params, number)
        headers = {
            **_COMMON_HEADERS,
            names.H_PROTOCOL_VERSION: self.version,
            names.H_SESSION_ID: session_id(self.version),
        }
        short = _message(names.TOOLS_CALL, params, number)
        params["arguments"]["padding"] = "x" * (BODY_BYTES - len(short) - len(',"padding":""'))
        return headers, _message(names.TOOLS_CALL, params, number)


def modern_request(method: str, params: Mapping[str, Any], number: int = 1) -> tuple[dict[str, str], bytes]:
    """Headers and body of one request of a modern client that has tasks."""
    headers = {
        **_COMMON_HEADERS,
        names.H_PROTOCOL_VERSION: names.LATEST_MODERN,
        names.H_METHOD: method,
        names.H_NAME: str(params[names.NAME_MEMBER[method]]),
    }
    return headers, _message(method, {**params, names.META: _META}, number)


def _message(method: str, params: Mapping[str, Any], number: int) -> bytes:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message, separators=(",", ":")).encode()


_COMMON_HEADERS: Final = {"Accept": f"application/json, {EVENT_STREAM}", "Content-Type": "application/json"}
_CLIENT: Final = {"name": "benchmark", "version": "1"}
_INITIALIZED: Final = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
_META: Final[Mapping[str, Any]] = {
    names.META_PROTOCOL_VERSION: names.LATEST_MODERN,
    names.META_CLIENT_INFO: _CLIENT,
    names.META_CLIENT_CAPABILITIES: {"extensions": {names.TASKS_EXTENSION: {}}},
}


class Load:
    """A client of one server with `at_once` connections; use it as an async context manager."""

    def __init__(self, url: str, at_once: int) -> None:
        self._url = url
        self._at_once = at_once
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=self._at_once))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def begin(self, version: str) -> None:
        """Open the legacy session of this version, as clients do."""
        asked = {"protocolVersion": version, "capabilities": {}, "clientInfo": _CLIENT}
        headers = {**_COMMON_HEADERS, names.H_PROTOCOL_VERSION: version}
        initialize = _message(names.INITIALIZE, asked, next(self._numbers))
        async with self._http.post(self._url, data=initialize, headers=headers) as response:
            assert response.status == HTTPStatus.OK, await response.text()
            assert response.headers.get(names.H_SESSION_ID) == session_id(version), response.headers
        headers[names.H_SESSION_ID] = session_id(version)
        async with self._http.post(self._url, data=_INITIALIZED, headers=headers) as response:
            assert response.status == HTTPStatus.ACCEPTED, await response.text()

    async def run(self, kind: Kind, calls: int) -> None:
        """Make so many calls, and check every answer. Raises AssertionError for the first wrong one."""
        left = iter(range(calls))

        async def one_after_the_other() -> None:
            for _ in left:
                await self._call(kind)

        async with anyio.create_task_group() as group:
            for _ in range(self._at_once):
                group.start_soon(one_after_the_other)

    async def _call(self, kind: Kind) -> None:
        number = next(self._numbers)
        label = f"call-{number}"
        headers, body = kind.request(number, label)
        async with self._http.post(self._url, data=body, headers=headers) as response:
            raw = await response.read()
            assert response.status == HTTPStatus.OK, f"{response.status} {raw[:500]!r}"
            assert response.content_type == kind.media_type, response.headers
            if kind.is_legacy:
                session = response.headers.get(names.H_SESSION_ID)
                assert session == session_id(kind.version), response.headers
        if kind.media_type == EVENT_STREAM:
            (raw,) = [line.removeprefix(b"data:") for line in raw.splitlines() if line.startswith(b"data:")]
        answer = json.loads(raw)
        assert answer["id"] == number, f"{number} was answered with {raw[:500]!r}"
        expected = json.loads(tool_result(label))["content"]
        assert answer.get("result", {}).get("content") == expected, f"{label} was answered with {raw[:500]!r}"
