"""A server of 2025-11-25 over stdio that has tasks of its own for some of its tools, as it marks them.

Each tool takes SECONDS and says how it was run. The server is strict: `must` without `task`, and any other
than `must` and `may` with it, are refused.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from typing import Any

MARKS = {"must": "required", "may": "optional", "never": "forbidden", "unmarked": None}
SECONDS = 0.3
NO_METHOD = -32601
NO_PARAMS = -32602
TASKS: dict[str, Any] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "tasks": TASKS},
    "serverInfo": {"name": "marked", "version": "1"},
}

Json = dict[str, Any]
said = threading.Lock()


def say(rid: Any, **outcome: Any) -> None:
    with said:
        print(json.dumps({"jsonrpc": "2.0", "id": rid, **outcome}), flush=True)


def refuse(rid: Any, code: int, message: str) -> None:
    say(rid, error={"code": code, "message": message})


def described(name: str, mark: str | None) -> Json:
    tool: Json = {"name": name, "inputSchema": {"type": "object"}}
    return tool if mark is None else {**tool, "execution": {"taskSupport": mark}}


def text(words: str, **more: Any) -> Json:
    return {"content": [{"type": "text", "text": words}], **more}


class Task:
    def __init__(self, tool: str) -> None:
        self.id = f"theirs-{uuid.uuid4().hex}"
        self.tool = tool
        self.ends = time.monotonic() + SECONDS

    @property
    def shown(self) -> Json:
        status = "completed" if time.monotonic() >= self.ends else "working"
        at = "2026-01-01T00:00:00Z"
        times = {"createdAt": at, "lastUpdatedAt": at, "ttl": 60_000, "pollInterval": 100}
        return {"taskId": self.id, "status": status, **times}

    def give_result(self, rid: Any) -> None:
        time.sleep(max(0.0, self.ends - time.monotonic()))
        related = {"io.modelcontextprotocol/related-task": {"taskId": self.id}}
        say(rid, result=text(f"{self.tool} as a task", _meta=related))


tasks: dict[str, Task] = {}


def call(rid: Any, name: str, wants_task: bool) -> None:
    mark = MARKS[name]
    if wants_task and mark not in ("required", "optional"):
        refuse(rid, NO_METHOD, f"{name} is not run as a task")
    elif not wants_task and mark == "required":
        refuse(rid, NO_METHOD, f"{name} is run as a task only")
    elif wants_task:
        task = Task(name)
        tasks[task.id] = task
        say(rid, result={"task": task.shown})
    else:
        time.sleep(SECONDS)
        say(rid, result=text(f"{name} as a call"))


def serve(message: Json) -> None:
    rid, params = message["id"], message.get("params", {})
    match message["method"]:
        case "initialize":
            say(rid, result=INITIALIZED)
        case "tools/list":
            say(rid, result={"tools": [described(name, mark) for name, mark in MARKS.items()]})
        case "tools/call":
            call(rid, params["name"], "task" in params)
        case "tasks/get" | "tasks/result" if params["taskId"] not in tasks:
            refuse(rid, NO_PARAMS, "no such task")
        case "tasks/get":
            say(rid, result=tasks[params["taskId"]].shown)
        case "tasks/result":
            tasks[params["taskId"]].give_result(rid)
        case _:
            refuse(rid, NO_METHOD, "unknown method")


if __name__ == "__main__":
    for line in sys.stdin:
        heard = json.loads(line)
        if "id" in heard and "method" in heard:
            threading.Thread(target=serve, args=(heard,), daemon=True).start()
