#!/usr/bin/env python3
"""A small MCP server whose tools take their time and which has never heard of tasks.

It speaks the protocol of 2024-11-05 to 2025-11-25 over stdio and needs nothing but Python. `make run` puts
it behind mcp-taskproxy:

    mcp-taskproxy --listen 127.0.0.1:8080 -- python examples/demo_server.py

Tools: `hello` answers at once; `count_slowly` counts seconds and reports progress; `fail_late` works and
then fails; `book_table` asks its user a question and then works. Every request runs in a thread of its own.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
RESOURCE_NOT_FOUND = -32002

TABLE_BOOKING_S = 5.0
LONGEST_S = 3600.0

Json = dict[str, Any]


class RpcError(Exception):
    """The request is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Cancelled(Exception):
    """The client no longer wants the answer; nothing is sent."""


class Connection:
    """The client at the other end of stdin and stdout."""

    def __init__(self, pace: float) -> None:
        self.pace = pace
        self.client_capabilities: Json = {}
        self._write_lock = threading.Lock()
        self._question_ids = itertools.count(1)
        self._calls: dict[str | int, Call] = {}
        self._asking: dict[object, Call] = {}

    def send(self, message: Json) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message})
        with self._write_lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def ask(self, call: Call, method: str, params: Json) -> Json:
        """Send a request to the client and wait for its result."""
        question_id = next(self._question_ids)
        self._asking[question_id] = call
        self.send({"id": question_id, "method": method, "params": params})
        response = call.inbox.get()
        self._asking.pop(question_id, None)
        if response is None:
            raise Cancelled
        if "error" in response:
            raise RpcError(response["error"]["code"], response["error"]["message"])
        return dict(response["result"])

    def receive(self, line: str) -> None:
        try:
            message = json.loads(line)
        except json.JSONDecodeError:
            self._refuse(PARSE_ERROR, "that is not JSON")
            return
        if not isinstance(message, dict) or not isinstance(message.get("params", {}), dict):
            self._refuse(INVALID_REQUEST, "that is not a request")
        elif "method" not in message:
            if asking := self._asking.pop(message.get("id"), None):
                asking.inbox.put(message)
        elif message["method"] == "notifications/cancelled":
            self._cancel(message.get("params", {}).get("requestId"))
        elif isinstance(message.get("id"), str | int):
            call = self._calls[message["id"]] = Call(self, message)
            threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _refuse(self, code: int, why: str) -> None:
        self.send({"id": None, "error": {"code": code, "message": why}})

    def _cancel(self, request_id: Any) -> None:
        call = self._calls.get(request_id)
        if call is not None:
            call.cancelled.set()
            call.inbox.put(None)

    def _run(self, call: Call) -> None:
        try:
            self.send({"id": call.id, "result": call.answer()})
        except RpcError as error:
            self.send({"id": call.id, "error": {"code": error.code, "message": str(error)}})
        except Cancelled:
            pass
        finally:
            self._calls.pop(call.id, None)


class Call:
    """One request of the client's. `inbox` gets the answer to what it asks; None when it is cancelled."""

    def __init__(self, connection: Connection, message: Json) -> None:
        self.connection = connection
        self.id: str | int = message["id"]
        self.method: str = message["method"]
        self.params: Json = message.get("params", {})
        self.cancelled = threading.Event()
        self.inbox: queue.SimpleQueue[Json | None] = queue.SimpleQueue()

    def answer(self) -> Json:
        handler = METHODS.get(self.method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"unknown method {self.method}")
        return handler(self)

    def work(self, seconds: float) -> None:
        """Be busy for so long, unless the call is cancelled."""
        if self.cancelled.wait(seconds * self.connection.pace):
            raise Cancelled

    def report(self, progress: float, total: float, message: str) -> None:
        """Send progress, if the client gave a token for it."""
        token = self.params.get("_meta", {}).get("progressToken")
        if token is not None:
            params = {"progressToken": token, "progress": progress, "total": total, "message": message}
            self.connection.send({"method": "notifications/progress", "params": params})

    def argument(self, name: str, kinds: tuple[type, ...], default: Any) -> Any:
        value = self.params.get("arguments", {}).get(name, default)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise RpcError(INVALID_PARAMS, f"{name} has the wrong type")
        return value

    def seconds(self) -> float:
        seconds: float = self.argument("seconds", (int, float), 10)
        if not 0 <= seconds <= LONGEST_S:
            raise RpcError(INVALID_PARAMS, f"seconds must be from 0 to {LONGEST_S:.0f}")
        return seconds


def text(words: str, *, is_error: bool = False) -> Json:
    return {"content": [{"type": "text", "text": words}], "isError": is_error}


# The tools.


def hello(call: Call) -> Json:
    """Greets at once."""
    return text(f"Hello, {call.argument('name', (str,), 'world')}!")


def count_slowly(call: Call) -> Json:
    """Counts seconds and reports each of them as progress."""
    seconds = call.seconds()
    for second in range(1, int(seconds) + 1):
        call.work(1)
        call.report(second, seconds, f"counted to {second}")
    call.work(seconds % 1)
    return text(f"Counted {seconds:g} seconds.")


def fail_late(call: Call) -> Json:
    """Works for a while and then fails."""
    call.work(call.seconds())
    return text("The oven is broken.", is_error=True)


def book_table(call: Call) -> Json:
    """Asks for a name and a time, then books a table, which takes some seconds."""
    guests = call.argument("guests", (int,), 2)
    if "elicitation" not in call.connection.client_capabilities:
        return text("I have to ask you something, and your client cannot be asked.", is_error=True)
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Your name"},
            "time": {"type": "string", "title": "When", "description": "such as 19:30"},
        },
        "required": ["name", "time"],
    }
    question = {"message": f"A table for {guests}: under which name, and when?", "requestedSchema": schema}
    answer = call.connection.ask(call, "elicitation/create", question)
    if answer["action"] != "accept":
        return text("No table was booked.")
    call.work(TABLE_BOOKING_S)
    given = answer["content"]
    return text(f"A table for {guests} is booked at {given['time']} for {given['name']}.")


def tool(
    run: Callable[[Call], Json], argument: str, kind: str, meaning: str
) -> tuple[Callable[[Call], Json], Json]:
    schema = {"type": "object", "properties": {argument: {"type": kind, "description": meaning}}}
    return run, {"name": run.__name__, "description": run.__doc__, "inputSchema": schema}


TOOLS = {
    described["name"]: (run, described)
    for run, described in (
        tool(hello, "name", "string", "whom to greet"),
        tool(count_slowly, "seconds", "number", "how far to count (10)"),
        tool(fail_late, "seconds", "number", "how long to work before (10)"),
        tool(book_table, "guests", "integer", "how many people (2)"),
    )
}


# The methods.


def initialize(call: Call) -> Json:
    asked = call.params.get("protocolVersion")
    call.connection.client_capabilities = call.params.get("capabilities", {})
    return {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
        "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
        "serverInfo": {"name": "demo-server", "version": "1.0.0"},
        "instructions": "A demonstration: try count_slowly with 20 seconds.",
    }


def call_tool(call: Call) -> Json:
    name = call.params.get("name")
    if name not in TOOLS:
        raise RpcError(INVALID_PARAMS, f"unknown tool {name}")
    run, _ = TOOLS[name]
    return run(call)


def get_prompt(call: Call) -> Json:
    if call.params.get("name") != PROMPT["name"]:
        raise RpcError(INVALID_PARAMS, f"unknown prompt {call.params.get('name')}")
    seconds = call.params.get("arguments", {}).get("seconds", "20")
    words = f"Please count slowly to {seconds} and tell me when you are done."
    return {"messages": [{"role": "user", "content": {"type": "text", "text": words}}]}


def read_resource(call: Call) -> Json:
    uri = call.params.get("uri")
    if uri != RESOURCE["uri"]:
        raise RpcError(RESOURCE_NOT_FOUND, f"unknown resource {uri}")
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": "Soup of the day: tomato.\n"}]}


PROMPT = {
    "name": "patience",
    "description": "Asks for something that takes long.",
    "arguments": [{"name": "seconds", "description": "how long", "required": False}],
}
RESOURCE = {"uri": "demo://menu", "name": "menu", "mimeType": "text/plain"}

METHODS: dict[str, Callable[[Call], Json]] = {
    "initialize": initialize,
    "ping": lambda _: {},
    "tools/list": lambda _: {"tools": [described for _, described in TOOLS.values()]},
    "tools/call": call_tool,
    "prompts/list": lambda _: {"prompts": [PROMPT]},
    "prompts/get": get_prompt,
    "resources/list": lambda _: {"resources": [RESOURCE]},
    "resources/read": read_resource,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="A demonstration MCP server on stdio.")
    parser.add_argument("--pace", type=float, default=1.0, help="how long a second takes, in seconds")
    connection = Connection(parser.parse_args().pace)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    for line in sys.stdin:
        if line.strip():
            connection.receive(line)


if __name__ == "__main__":
    main()
