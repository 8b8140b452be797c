"""A client that asks for one task again and again, without pause, and says at the end what it got.

It is a process of its own at low priority, so that reading does not hold up the one who measures. Each
answer is read to its end; 200 and 429 are counted, anything else ends it.

    python -m benchmarks.rig.greedy_client PORT TOKEN TASK_ID SECONDS
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections import Counter
from http import HTTPStatus
from typing import Final

from benchmarks.rig.load import modern_request
from proxy.protocol import names

LOW_PRIORITY: Final = 10
EXPECTED: Final = (HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS)


def run(port: int, token: str, task_id: str, seconds: float) -> dict[str, int]:
    """How many answers there were of each status, and how many bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers, body = modern_request(names.TASKS_GET, {"taskId": task_id})
    buffer = bytearray(1024 * 1024)
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.request("POST", "/mcp", body, {**headers, "Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        assert response.status in EXPECTED, f"{response.status} {response.read(500)!r}"
        seen[str(response.status)] += 1
        while received := response.readinto(buffer):
            seen["bytes"] += received
    return dict(seen)


if __name__ == "__main__":
    os.nice(LOW_PRIORITY)
    print(json.dumps(run(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))))
