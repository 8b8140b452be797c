"""A legacy server that says, byte for byte, what the test put into its request. It never parses to write.

What to say stands in the request's `_meta`, which the proxy passes on unread:

    test/before    an array of messages without `jsonrpc`, said first; one with an `id` is a request, whose
                   answer is waited for
    test/progress  the params of a progress notification without its token, said after those
    test/result    or test/error: the answer; without it, and in a retry, the answers that it got itself

    echo RECORD stdio | 'modern stdio' | http PORT | 'modern http' PORT | sse PORT
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.real.upstreams.raw_json import elements, flat, value
from tests.real.upstreams.record import Record

BEFORE: Final = "test/before"
PROGRESS: Final = "test/progress"
RESULT: Final = "test/result"
ERROR: Final = "test/error"

MODERN: Final = b"2026-07-28"
VERSIONS: Final = {
    "stdio": b"2025-06-18",
    "http": b"2025-11-25",
    "sse": b"2024-11-05",
    "modern stdio": MODERN,
    "modern http": MODERN,
}
"""What it speaks, by transport."""

SERVER_INFO: Final = rb'{"name":"echo \u2028","version":"1.10", "x-vendor":[1E400,-0,{"a":1,"a":2}]}'
INSTRUCTIONS: Final = '"Say \\ud83d what you want.\u2028"'.encode()
CAPABILITIES: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b'"tools"', b'{"listChanged":false,"x-vendor":1.10}'),
    (b'"prompts"', b"{}"),
    (b'"resources"', b"{}"),
    (b'"logging"', b"{}"),
    (b'"completions"', b"{}"),
    (b'"x-unknown"', b'{"n":[9007199254740993, 1.0],"n":null}'),
)
INITIALIZED: Final = (
    b'{"protocolVersion":"%s","capabilities":{'
    + b",".join(key + b":" + raw for key, raw in CAPABILITIES)
    + b'},"serverInfo":'
    + SERVER_INFO
    + b',"instructions":'
    + INSTRUCTIONS
    + b',"x-more":1e2}'
)
DISCOVERED: Final = (
    b'{"supportedVersions":["2026-07-28"],"capabilities":{'
    + b",".join(key + b":" + raw for key, raw in CAPABILITIES)
    + b'},"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":'
    + SERVER_INFO
    + b'},"instructions":'
    + INSTRUCTIONS
    + b',"ttlMs":1.0,"x-more":1e2}'
)
TOOLS: Final = (
    b'{"tools":[{"name":"mirrored","inputSchema":{"type":"object","properties":'
    b'{"region":{"type":"string","x-mcp-header":"Region"}}}}]}'
)


def answer_text(rid: bytes, member: bytes, raw: bytes) -> bytes:
    """An answer as this server writes it: oddly spaced, like those of some real ones."""
    return b'{ "jsonrpc" :"2.0",\n"id": ' + rid + b' ,\t"' + member + b'":' + raw + b"}"


def question_text(without_version: bytes) -> bytes:
    """A message of the server's own: the member that the test left out is put first."""
    return b'{"jsonrpc":"2.0",' + without_version[1:]


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the server, during the call of this id. `last`: it is the answer."""

    call: bytes
    text: bytes
    last: bool = False


@dataclass(slots=True)
class _Plan:
    """A request, and what is still to be said before its answer."""

    call: bytes
    method: bytes
    params: bytes
    left: list[bytes]
    answers: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Echo:
    """One session: give it what the client says, it gives what the server says to that."""

    record: Record
    version: bytes
    _waiting: dict[bytes, _Plan] = field(default_factory=dict)

    def take(self, raw: bytes) -> Iterator[Said]:
        self.record.add(raw)
        rid, method = value(raw, "id"), value(raw, "method")
        if rid is None:
            return
        if method is None:
            plan = self._waiting.pop(rid, None)
            if plan is not None:
                plan.answers.append(value(raw, "result") or b"null")
                yield from self._go_on(plan)
            return
        params = value(raw, "params") or b"{}"
        before = value(params, "_meta", BEFORE) or b"[]"
        yield from self._go_on(_Plan(rid, method, params, elements(before)))

    def _go_on(self, plan: _Plan) -> Iterator[Said]:
        while plan.left:
            said = plan.left.pop(0)
            yield Said(plan.call, question_text(said))
            asked = value(said, "id")
            if asked is not None:
                self._waiting[asked] = plan
                return
        progress = value(plan.params, "_meta", PROGRESS)
        if progress is not None:
            token = value(plan.params, "_meta", "progressToken") or b"null"
            params = b'{"progressToken":' + token + b"," + progress[1:]
            yield Said(
                plan.call, b'{"jsonrpc":"2.0","method":"notifications/progress","params":' + params + b"}"
            )
        yield Said(plan.call, self._answer(plan), last=True)

    def _answer(self, plan: _Plan) -> bytes:
        error = value(plan.params, "_meta", ERROR)
        if error is not None:
            return answer_text(plan.call, b"error", error)
        is_retry = value(plan.params, "requestState") is not None
        told = None if is_retry else value(plan.params, "_meta", RESULT)
        result = told or self._usual(plan)
        return answer_text(plan.call, b"result", result)

    def _usual(self, plan: _Plan) -> bytes:
        match plan.method:
            case b'"server/discover"' if self.version == MODERN:
                return DISCOVERED
            case b'"initialize"':
                return INITIALIZED.replace(b"%s", self.version, 1)
            case b'"tools/list"':
                return TOOLS
        answers = value(plan.params, "inputResponses") or b"[" + b",".join(plan.answers) + b"]"
        return b'{"answers":' + answers + (b',"resultType":"complete"}' if self.version == MODERN else b"}")


def serve_stdio(echo: Echo) -> None:
    for line in sys.stdin.buffer:
        for said in echo.take(line.removesuffix(b"\n")):
            sys.stdout.buffer.write(flat(said.text) + b"\n")
            sys.stdout.buffer.flush()


def main(record: str, transport: str, port: str = "0") -> None:
    file, version = Record(Path(record)), VERSIONS[transport]
    if transport in ("stdio", "modern stdio"):
        serve_stdio(Echo(file, version))
        return
    from tests.real.upstreams import echo_http  # brings aiohttp, which a stdio server starts without

    echo_http.serve(lambda: Echo(file, version), transport, int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
