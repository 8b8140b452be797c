"""A legacy stdio server of few lines with two tools: `nap`, which sleeps, and `ask…`, which asks its user.

Both repeat their argument `secret`: in the question, and in the result. A cancelled call is not answered.
What it cannot make anything of it answers with an error.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

NAMES = ("nap", "ask", "ask_task")
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "asking", "version": "1"},
}
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
said = threading.Lock()
left: dict[Any, threading.Event] = {}
answers: dict[str, tuple[threading.Event, list[Any]]] = {}


def say(message: dict[str, Any]) -> None:
    with said:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def work(rid: Any, tool: str, arguments: dict[str, Any], cancelled: threading.Event) -> None:
    secret, seconds = arguments.get("secret", ""), arguments.get("seconds", 0)
    if tool == "nap":
        if cancelled.wait(min(float(seconds), threading.TIMEOUT_MAX)):
            return
        text = f"slept, {secret}"
    else:
        answered, values = answers[f"question-{rid}"] = threading.Event(), []
        params = {"message": f"who are you, {secret}?", "requestedSchema": FORM}
        say({"id": f"question-{rid}", "method": "elicitation/create", "params": params})
        answered.wait()
        text = f"{json.dumps(values)}, {secret}"
    if not cancelled.is_set():
        say({"id": rid, "result": {"content": [{"type": "text", "text": text}], "isError": False}})


def try_to_work(rid: Any, *call: Any) -> None:
    try:
        work(rid, *call)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        say({"id": rid, "error": {"code": -32602, "message": str(exc)}})


def serve() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        try:
            take(message)
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            if "method" in message and "id" in message:
                say({"id": message["id"], "error": {"code": -32602, "message": str(exc)}})


def take(message: dict[str, Any]) -> None:
    rid, params = message.get("id"), message.get("params") or {}
    match message.get("method"):
        case "initialize":
            say({"id": rid, "result": INITIALIZED})
        case "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
            say({"id": rid, "result": {"tools": tools}})
        case "tools/call":
            left[rid] = threading.Event()
            call = rid, str(params.get("name")), params.get("arguments") or {}, left[rid]
            threading.Thread(target=try_to_work, args=call, daemon=True).start()
        case "notifications/cancelled" if params.get("requestId") in left:
            left[params["requestId"]].set()
        case None if rid in answers:
            answered, values = answers[rid]
            values.append(message.get("result"))
            answered.set()
        case _ if rid is not None:
            say({"id": rid, "error": {"code": -32601, "message": "unknown method"}})


if __name__ == "__main__":
    serve()
