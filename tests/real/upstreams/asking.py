"""A legacy stdio server of few lines with two tools: `nap`, which sleeps, and `ask…`, which asks its user.

Both repeat their argument `secret`: in the question, and in the result. A cancelled call is not answered.
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
    secret = arguments.get("secret", "")
    if tool == "nap":
        if cancelled.wait(arguments.get("seconds", 0)):
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


def serve() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        rid, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case "initialize":
                say({"id": rid, "result": INITIALIZED})
            case "tools/list":
                say(
                    {
                        "id": rid,
                        "result": {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in NAMES]},
                    }
                )
            case "tools/call":
                left[rid] = threading.Event()
                call = rid, str(params.get("name")), params.get("arguments") or {}, left[rid]
                threading.Thread(target=work, args=call, daemon=True).start()
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
