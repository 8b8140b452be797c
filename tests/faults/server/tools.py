"""One session of the server: messages in, messages out, and the calls in between.

Every tool does the same, as its arguments say: works for `seconds`, tells `steps` of progress, asks
`questions`, and ends with a result of `size` bytes or with an error. A call goes on when the connection
breaks, as 2025-11-25 has it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from tests.faults.journal import Event, Journal, digest
from tests.faults.plan import TOOLS, WORK, Ending
from tests.real.upstreams.raw_json import value

VERSION: Final = "2025-11-25"
INITIALIZED: Final = {
    "protocolVersion": VERSION,
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "journalled", "version": "1"},
}
_METHOD_NOT_FOUND: Final = -32601

Say = Callable[[str, bytes, bool], None]
"""Sends a message in the call of this id; the last one is its answer."""


@dataclass(eq=False)
class _Question:
    label: str
    nonce: str
    answered: anyio.Event = field(default_factory=anyio.Event)


class Session:
    """One client. `take` what it says; calls run in `group`, and what they say goes to `say`."""

    def __init__(self, journal: Journal, group: TaskGroup, say: Say) -> None:
        self._journal = journal
        self._group = group
        self._say = say
        self._calls: dict[str, anyio.CancelScope] = {}
        self._questions: dict[str, _Question] = {}

    def take(self, raw: bytes) -> None:
        message = json.loads(raw)
        rid, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case None:
                self._answered(str(rid), message)
            case "initialize":
                self._reply(rid, {"result": INITIALIZED})
            case "ping":
                self._reply(rid, {"result": {}})
            case "tools/list":
                tools = [{"name": t, "inputSchema": {"type": "object"}} for t in (WORK, *TOOLS.values())]
                self._reply(rid, {"result": {"tools": tools}})
            case "tools/call":
                self._group.start_soon(self._call, str(rid), value(raw, "id") or b"", params)
            case "notifications/cancelled":
                if (scope := self._calls.get(str(params.get("requestId")))) is not None:
                    scope.cancel()
            case _ if rid is not None:
                unknown = {"code": _METHOD_NOT_FOUND, "message": "Method not found"}
                self._reply(rid, {"error": unknown})

    def end(self) -> None:
        """The client does not want it any more, and nothing of what runs in it."""
        for scope in self._calls.values():
            scope.cancel()

    def _reply(self, rid: Any, body: dict[str, Any]) -> None:
        self._say(str(rid), json.dumps({"jsonrpc": "2.0", "id": rid, **body}).encode(), True)

    # -- a call ---------------------------------------------------------------------------------------

    async def _call(self, call: str, rid: bytes, params: dict[str, Any]) -> None:
        arguments, token = params["arguments"], params.get("_meta", {}).get("progressToken")
        label = arguments["label"]
        self._journal.add(Event.START, label)
        ended = False
        scope = self._calls[call] = anyio.CancelScope()
        try:
            with scope:
                await self._work(call, label, arguments, token)
                self._end(call, rid, label, arguments)
                ended = True
        finally:
            if not ended:
                self._journal.add(Event.CANCELLED, label)
            del self._calls[call]

    async def _work(self, call: str, label: str, arguments: dict[str, Any], token: Any) -> None:
        parts = arguments["questions"] + 1
        for part in range(parts):
            await self._pass(call, arguments["seconds"] / parts, arguments["steps"] // parts, token)
            if part < arguments["questions"]:
                await self._ask(call, label, part)

    async def _pass(self, call: str, seconds: float, steps: int, token: Any) -> None:
        for step in range(steps):
            await anyio.sleep(seconds / (steps + 1))
            told = {"progressToken": token, "progress": step + 1, "total": steps, "message": "working"}
            if token is not None:
                self._tell(call, {"method": "notifications/progress", "params": told})
        await anyio.sleep(seconds / (steps + 1))

    async def _ask(self, call: str, label: str, part: int) -> None:
        nonce = f"{label}/{part}"
        rid, question = f"{nonce}/{os.getpid()}", _Question(label, nonce)
        self._questions[rid] = question
        schema = {"type": "object", "properties": {"nonce": {"type": "string"}}, "required": ["nonce"]}
        params = {"message": nonce, "requestedSchema": schema}
        self._tell(call, {"id": rid, "method": "elicitation/create", "params": params})
        await question.answered.wait()

    def _tell(self, call: str, message: dict[str, Any]) -> None:
        self._say(call, json.dumps({"jsonrpc": "2.0", **message}).encode(), False)

    def _answered(self, rid: str, message: dict[str, Any]) -> None:
        question = self._questions.get(rid)
        if question is None or question.answered.is_set():
            return  # the asker drops the second one
        given = (message.get("result") or {}).get("content", {}).get("nonce", question.nonce)
        event = Event.ANSWERED if given == question.nonce else Event.CROSSED
        self._journal.add(event, question.label)
        question.answered.set()

    def _end(self, call: str, rid: bytes, label: str, arguments: dict[str, Any]) -> None:
        ending = Ending(arguments["ending"])
        text = answer_text(label, arguments["size"], ending)
        member, event = (b"error", Event.ERROR) if ending is Ending.ERROR else (b"result", Event.RESULT)
        self._journal.add(event, label, digest(text))
        self._say(call, b'{"jsonrpc":"2.0", "id": ' + rid + b' ,"' + member + b'":' + text + b"}", True)


def answer_text(label: str, size: int, ending: Ending) -> bytes:
    """The result or error object, oddly spelt, as a proxy must keep it; `size` bytes of it are text.

    Every other label has a `_meta` of the server's own.
    """
    mark = hashlib.sha256(label.encode()).hexdigest()
    text = f"{label} {(mark * (size // len(mark) + 1))[:size]}".encode()
    if ending is Ending.ERROR:
        return b'{"code":1234 ,"message":"%s","data":{"n":[1.0, 1E400,-0]}}' % text
    meta = b',"_meta":{"x/label": "%s"}' % label.encode() if mark < "8" else b""
    wrong = b"true" if ending is Ending.TOOL_ERROR else b"false"
    content = b'[{"type":"text","text":"%s","x":[1.0, 1E400,-0,{"b":1,"a":2,"a":3}]}]' % text
    return b'{"x-n":1.10, "content": ' + content + meta + b',"isError": ' + wrong + b',"x-s":"\\ud83d"}'
