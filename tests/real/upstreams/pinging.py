"""A legacy stdio server that pings its client ten times a second, and hangs up when a ping is not answered.

One tool, `count`: how many pings were answered so far, said after `after` seconds.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from typing import Any, Final

EVERY_S: Final = 0.1
PATIENCE_S: Final = 1.0
INITIALIZED: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "pinging", "version": "1"},
}

said = threading.Lock()
sent: dict[int, float] = {}
answered = 0


def say(message: dict[str, Any]) -> None:
    with said:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ping() -> None:
    for number in itertools.count():
        if any(time.monotonic() - at > PATIENCE_S for at in list(sent.values())):
            os._exit(3)
        sent[number] = time.monotonic()
        say({"id": number, "method": "ping"})
        time.sleep(EVERY_S)


def count(rid: Any, after: float) -> None:
    time.sleep(after)
    say({"id": rid, "result": {"content": [{"type": "text", "text": str(answered)}], "isError": False}})


def main() -> None:
    global answered
    for line in sys.stdin:
        message = json.loads(line)
        rid = message.get("id")
        match message.get("method"):
            case "initialize":
                say({"id": rid, "result": INITIALIZED})
            case "notifications/initialized":
                threading.Thread(target=ping, daemon=True).start()
            case "tools/call":
                after = message["params"]["arguments"]["after"]
                threading.Thread(target=count, args=(rid, after), daemon=True).start()
            case None if message.get("result") == {}:
                answered += sent.pop(rid, None) is not None


if __name__ == "__main__":
    main()
