"""Valid messages of both eras, and what a hostile or broken client makes of them, by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.protocol import names

TASKS: Final[dict[str, Any]] = {names.TASKS_EXTENSION: {}}
CAPABILITIES: Final[dict[str, Any]] = {"elicitation": {}, "sampling": {}, "roots": {}, "extensions": TASKS}
META: Final[dict[str, Any]] = {
    names.META_PROTOCOL_VERSION: names.LATEST_MODERN,
    names.META_CLIENT_INFO: {"name": "fuzz", "version": "1"},
    names.META_CLIENT_CAPABILITIES: CAPABILITIES,
    names.META_LOG_LEVEL: "debug",
    names.META_PROGRESS_TOKEN: "p-1",
}
TASK: Final = "tpx-" + "A" * 32
NAP: Final[dict[str, Any]] = {"name": "nap", "arguments": {"seconds": 0, "secret": "x"}}
MODERN: Final[Sequence[tuple[str, dict[str, Any]]]] = (
    (names.DISCOVER, {}),
    (names.TOOLS_LIST, {"cursor": "c"}),
    (names.TOOLS_LIST, {}),
    (names.TOOLS_CALL, NAP),
    (names.TOOLS_CALL, {**NAP, "arguments": {"seconds": 0.2}}),
    (names.TOOLS_CALL, {"name": "ask", "arguments": {}}),
    (
        names.TOOLS_CALL,
        {"name": "ask", "requestState": "AAAA", "inputResponses": {"input-1": {"action": "accept"}}},
    ),
    (names.TOOLS_CALL, {"name": "ask_task", "arguments": {"secret": "ü"}}),
    (names.PROMPTS_GET, {"name": "p", "arguments": {"a": "b"}}),
    (names.RESOURCES_READ, {"uri": "file:///a"}),
    (names.TASKS_GET, {"taskId": TASK}),
    (
        names.TASKS_UPDATE,
        {"taskId": TASK, "inputResponses": {"input-1": {"action": "accept", "content": {}}}},
    ),
    (names.TASKS_CANCEL, {"taskId": TASK}),
    (names.SUBSCRIPTIONS_LISTEN, {"notifications": {"taskIds": [TASK], "toolsListChanged": True}}),
    ("vendor/unknown", {"a": [1, 2.5, None, True, {"b": "c"}]}),
)
LEGACY: Final[Sequence[tuple[str, dict[str, Any] | None]]] = (
    (names.TOOLS_LIST, None),
    (names.TOOLS_CALL, NAP),
    (names.TOOLS_CALL, {**NAP, "task": {"ttl": 1_000}}),
    (names.TOOLS_CALL, {"name": "ask_task", "arguments": {}, "task": {}, "_meta": {"progressToken": 1}}),
    (names.TASKS_GET, {"taskId": TASK}),
    (names.TASKS_RESULT, {"taskId": TASK}),
    (names.TASKS_CANCEL, {"taskId": TASK}),
    (names.TASKS_LIST, {"cursor": "AAAA"}),
    (names.PING, None),
    (names.LOGGING_SET_LEVEL, {"level": "debug"}),
)
INITIALIZE: Final[dict[str, Any]] = {
    "protocolVersion": names.LATEST_LEGACY,
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "fuzz", "version": "1"},
}
UNANSWERED: Final[Sequence[dict[str, Any]]] = (
    {"method": names.INITIALIZED},
    {"method": names.CANCELLED, "params": {"requestId": 1, "reason": "x"}},
    {"method": names.PROGRESS, "params": {"progressToken": 1, "progress": 1}},
    {"id": "question-1", "result": {"action": "accept", "content": {"name": "x"}}},
    {"id": 1, "error": {"code": -32603, "message": "no"}},
)

_DEEP: Final = 700
HOSTILE: Final[Sequence[bytes]] = (
    *(
        b"null",
        b"true",
        b"-1",
        b"0",
        b"1e999",
        b"-0.0",
        b"9" * 400,
        b"1" + b"0" * 30,
        b"1.5",
        b"NaN",
        b"Infinity",
    ),
    *(b'""', b'"\\ud800"', b'"\\u0000"', b'"\xff"', b'"\xed\xa0\x80"', b'"' + b"A" * 5_000 + b'"'),
    *(b"[]", b"{}", b"[[]]", b"[" * _DEEP + b"]" * _DEEP, b'{"a":' * _DEEP + b"1" + b"}" * _DEEP),
    *(
        b'{"jsonrpc":"2.0"}',
        b'{"__proto__":{}}',
        b"tpx-",
        b"../../etc/passwd",
        b"%s%n%x",
        b"${jndi:x}",
        b"\r\n\r\n",
    ),
    *(
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
        b"//",
        b"/*",
        b",",
        b":",
        b'"',
        b"\\",
        b"{",
        b"}",
    ),
)
VALUES: Final[Sequence[bytes]] = (
    *(b"null", b"true", b"false", b"-1", b"0", b"1", b"-0.0", b"1.5", b"1e999", b"9" * 400, b"1e-400"),
    *(
        b'""',
        b'"x"',
        b'"\\ud800"',
        b'"\\u0000"',
        b'"' + b"A" * 5_000 + b'"',
        b'"tpx-"',
        b'"question-1"',
        b'"1"',
    ),
    *(
        b"[]",
        b"{}",
        b"[[]]",
        b"[1,2]",
        b'{"a":1,"a":2}',
        b'{"":""}',
        b"[" * 50 + b"]" * 50,
        b"[" + b"1," * 2_000 + b"1]",
    ),
    *(
        b'"2025-11-25"',
        b'"2026-07-28"',
        b'"tools/call"',
        b'"tasks/get"',
        b'"initialize"',
        b'"debug"',
        b'"cancel"',
    ),
)
"""JSON, at least, so that what is behind the parser is met."""

HEADERS: Final[Sequence[bytes]] = (
    b"Content-Encoding: gzip",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Expect: 100-continue",
    b"Upgrade: websocket\r\nConnection: Upgrade",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings",
    b"Connection: close",
    b"Accept: application/json",
    b"Accept: text/event-stream",
    b"Accept: image/png",
    b"Origin: https://evil.example",
    b"Origin: http://localhost",
    b"Host: evil.example",
    b"Authorization: Bearer \xff\xfe",
    b"Authorization: Basic",
    b"MCP-Protocol-Version: 1900-01-01",
    b"Mcp-Session-Id: \xc3\xa9",
    b"Mcp-Session-Id: " + b"s" * 3_000,
    b"Mcp-Name: =?base64?AAAA?=",
    b"Mcp-Param-X: =?base64?%%%?=",
    b"Last-Event-ID: aaaaaaaaaaaa-0-1",
    b"Last-Event-ID: 000000000000-0-999999999999999",
    b"X-Forwarded-For: 1.2.3.4, what",
    b"Cookie: a=b",
    b"X: " + b"y" * 70_000,
    b"\r\n".join(b"X-%d: y" % n for n in range(200)),
)
PATHS: Final = (
    b"/mcp",
    b"/mcp/",
    b"/",
    b"/healthz",
    b"/readyz",
    b"/metrics",
    b"/.well-known/oauth-protected-resource",
)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Before it is bytes. `length` is what it says of its body, whatever it has."""

    method: bytes
    path: bytes
    headers: tuple[bytes, ...]
    body: bytes
    length: int | None = None

    def raw(self) -> bytes:
        length = len(self.body) if self.length is None else self.length
        lines = [self.method + b" " + self.path + b" HTTP/1.1", b"Host: 127.0.0.1", *self.headers]
        return b"\r\n".join([*lines, b"Content-Length: %d" % length, b"", self.body])


@dataclass
class Mutants:
    """`session` is the id of a legacy session that is open."""

    rng: random.Random
    session: str = ""
    _count: int = field(default=0, init=False)

    # -- valid ones -----------------------------------------------------------------------------------

    def modern(self) -> tuple[bytes, tuple[bytes, ...]]:
        """A request and the headers that belong to it."""
        method, params = self.rng.choice(MODERN)
        body = self._message({"method": method, "params": {**params, names.META: META}})
        headers = [f"{names.H_PROTOCOL_VERSION}: {names.LATEST_MODERN}", f"{names.H_METHOD}: {method}"]
        if (member := names.NAME_MEMBER.get(method)) is not None:
            headers.append(f"{names.H_NAME}: {params[member]}")
        return body, tuple(header.encode() for header in headers)

    def legacy(self) -> tuple[bytes, tuple[bytes, ...]]:
        """As `modern`."""
        session = (
            f"{names.H_SESSION_ID}: {self.session}".encode(),
            f"{names.H_PROTOCOL_VERSION}: {names.LATEST_LEGACY}".encode(),
        )
        match self.rng.randrange(12):
            case 0:
                return self._message({"method": names.INITIALIZE, "params": INITIALIZE}), ()
            case 1:
                return b"[" + b",".join(self._legacy_request() for _ in range(2)) + b"]", session
            case 2 | 3:
                return json.dumps({"jsonrpc": "2.0", **self.rng.choice(UNANSWERED)}).encode(), session
            case _:
                return self._legacy_request(), session

    def _legacy_request(self) -> bytes:
        method, params = self.rng.choice(LEGACY)
        return self._message({"method": method} if params is None else {"method": method, "params": params})

    def _message(self, members: dict[str, Any]) -> bytes:
        self._count += 1
        rid: Any = self.rng.choice((self._count, f"r-{self._count}"))
        return json.dumps({"jsonrpc": "2.0", "id": rid, **members}).encode()

    # -- what becomes of them -------------------------------------------------------------------------

    def http(self) -> bytes:
        """A mutated HTTP request."""
        body, headers = self.rng.choice((self.modern, self.modern, self.legacy))()
        accept = b"Accept: application/json, text/event-stream"
        request = HttpRequest(b"POST", b"/mcp", (*headers, b"Content-Type: application/json", accept), body)
        match self.rng.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                request = HttpRequest(b"POST", b"/mcp", request.headers, self.message(body))
            case 5 | 6:
                request = self._other_head(request)
            case 7:
                request = HttpRequest(
                    *self._parts(request), length=max(0, len(body) + self.rng.randint(-9, 9))
                )
            case 8:
                return self.change(request.raw())
            case _:
                request = self._other_head(HttpRequest(b"POST", b"/mcp", request.headers, self.message(body)))
        return request.raw()

    @staticmethod
    def _parts(request: HttpRequest) -> tuple[bytes, bytes, tuple[bytes, ...], bytes]:
        return request.method, request.path, request.headers, request.body

    def _other_head(self, request: HttpRequest) -> HttpRequest:
        method, path, headers, body = self._parts(request)
        if self.rng.random() < 0.3:
            method = self.rng.choice(
                (b"GET", b"DELETE", b"HEAD", b"OPTIONS", b"PUT", b"PATCH", b"CONNECT", b"x")
            )
        if self.rng.random() < 0.2:
            path = self.rng.choice(PATHS) + self.rng.choice((b"", b"?a=%ff", b"%2e%2e/", b"#x", b"//"))
        more = [self.rng.choice(HEADERS) for _ in range(self.rng.randint(0, 2))]
        kept = [header for header in headers if self.rng.random() < 0.9]
        changed = [self.change(header) if self.rng.random() < 0.1 else header for header in kept]
        return HttpRequest(method, path, (*changed, *more), body)

    def line(self) -> bytes:
        """A mutated message for stdin, which may be several, or part of one."""
        body, _ = self.rng.choice((self.modern, self.legacy))()
        return self.message(body)

    def message(self, text: bytes) -> bytes:
        """Some changes of its bytes or of what they mean."""
        for _ in range(self.rng.choice((1, 1, 1, 2, 3, 6))):
            text = self.rng.choice((self.change, *[self.structure] * 5))(text)
        return text

    def change(self, text: bytes) -> bytes:
        """One change of bytes."""
        at, rng = self.rng.randrange(len(text) + 1), self.rng
        to = min(len(text), at + rng.choice((1, 1, 2, 8, 64)))
        match rng.randrange(7):
            case 0:
                return text[:at] + bytes([rng.randrange(256)]) + text[to:]
            case 1:
                return text[:at] + text[to:]
            case 2:
                return text[:at] + text[at:to] * rng.choice((2, 3, 50)) + text[to:]
            case 3:
                return text[:at] + rng.choice(HOSTILE) + text[at:]
            case 4:
                return text[:at] + rng.choice(HOSTILE) + text[to:]
            case 5:
                return text[:at]
            case _:
                other, _ = rng.choice((self.modern, self.legacy))()
                return text[:at] + other[rng.randrange(len(other)) :]

    def structure(self, text: bytes) -> bytes:
        """One member or element replaced, left out, doubled or moved; of what is no JSON the bytes change."""
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError):
            return self.change(text)
        places = list(_places(tree))
        if not places:
            return self.change(text)
        holder, key = self.rng.choice(places)
        kind = self.rng.randrange(8)
        if kind == 0:
            del holder[key]
            return json.dumps(tree).encode()
        kept, mark = holder[key], "\x00mark"
        holder[key] = mark
        value = json.dumps(kept).encode()
        match kind:
            case 1:
                new = self.change(value)
            case 2:
                name = json.dumps(key).encode() + b":" if isinstance(holder, dict) else b""
                new = value + b"," + name + value
            case 3:
                new = self.rng.choice(HOSTILE)
            case _:
                new = self.rng.choice(VALUES)
        return json.dumps(tree).encode().replace(json.dumps(mark).encode(), new, 1)


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Each holder and key in a tree of JSON."""
    found: list[tuple[Any, Any]] = []
    left: list[Any] = [tree]
    while left:
        one = left.pop()
        items: list[tuple[Any, Any]] = []
        if isinstance(one, dict):
            items = list(one.items())
        elif isinstance(one, list):
            items = list(enumerate(one))
        found += [(one, key) for key, _ in items]
        left += [value for _, value in items]
    return found
