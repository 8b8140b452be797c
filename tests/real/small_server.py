"""A legacy stdio server of few lines that starts in some 50 ms: one tool, `nap`, which sleeps.

    small_server.py [--slow-start SECONDS] [--stubborn]

Calls run at the same time; a cancelled one is not answered. `--stubborn`: neither the end of its stdin nor
SIGTERM makes it go.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from typing import Any

TOOL = {"name": "nap", "inputSchema": {"type": "object", "properties": {"seconds": {"type": "number"}}}}
INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "small", "version": "1"},
}
said = threading.Lock()


def say(message: dict[str, Any]) -> None:
    with said:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def nap(rid: Any, seconds: float, cancelled: threading.Event) -> None:
    if not cancelled.wait(seconds):
        text = f"slept {seconds} s"
        say({"id": rid, "result": {"content": [{"type": "text", "text": text}], "isError": False}})


def serve() -> None:
    naps: dict[Any, threading.Event] = {}
    for line in sys.stdin:
        message = json.loads(line)
        rid, params = message.get("id"), message.get("params", {})
        match message.get("method"):
            case "initialize":
                say({"id": rid, "result": INITIALIZED})
            case "tools/list":
                say({"id": rid, "result": {"tools": [TOOL]}})
            case "tools/call":
                naps[rid] = threading.Event()
                seconds = params.get("arguments", {}).get("seconds", 0)
                threading.Thread(target=nap, args=(rid, seconds, naps[rid]), daemon=True).start()
            case "notifications/cancelled" if params.get("requestId") in naps:
                naps[params["requestId"]].set()
            case _ if rid is not None:
                say({"id": rid, "error": {"code": -32601, "message": "unknown method"}})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow-start", type=float, default=0)
    parser.add_argument("--stubborn", action="store_true")
    options = parser.parse_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(options.slow_start)
    serve()
    while options.stubborn:
        time.sleep(60)


if __name__ == "__main__":
    main()
