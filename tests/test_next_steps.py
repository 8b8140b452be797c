"""What `make run` tells people to paste: the lines are run by a shell, with a `curl` that only looks."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.protocol import names

TEXT: Final = (Path(__file__).parent.parent / "examples" / "next_steps.txt").read_text()
TASK_ID: Final = "tpx-" + "aB3_-xyz" * 4

LOOK: Final = """
import json, sys
print(json.dumps(sys.argv[1:]), file=open(sys.argv[0] + ".said", "a"))
print('{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"%s","status":"working"}}')
"""


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The arguments of each `curl` that the pasted lines run."""
    look = tmp_path_factory.mktemp("curl") / "look.py"
    look.write_text(LOOK % TASK_ID)
    pasted = "\n".join(line for line in TEXT.splitlines() if line.startswith("  "))
    curl = f'curl() {{ {shlex.quote(sys.executable)} {shlex.quote(str(look))} "$@"; }}'
    subprocess.run(["sh", "-euc", f"{curl}\n{pasted}"], check=True, timeout=20, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in Path(f"{look}.said").read_text().splitlines()]


def headers_of(request: list[str]) -> dict[str, str]:
    given = [value for flag, value in pairwise(request) if flag == "-H"]
    return {name: value for name, _, value in (line.partition(": ") for line in given)}


def body_of(request: list[str]) -> dict[str, Any]:
    body = json.loads(request[request.index("-d") + 1])
    assert isinstance(body, dict)
    return body


def test_the_call_and_the_poll_have_every_header_that_is_required(requests: list[list[str]]) -> None:
    call, poll = requests
    for request, method, name in ((call, names.TOOLS_CALL, "count_slowly"), (poll, names.TASKS_GET, TASK_ID)):
        headers = headers_of(request)
        assert headers[names.H_PROTOCOL_VERSION] == names.LATEST_MODERN
        assert headers[names.H_METHOD] == method
        assert headers[names.H_NAME] == name
        assert headers["Accept"] == "application/json, text/event-stream"
        assert headers["Content-Type"] == "application/json"


def test_the_call_declares_tasks_and_the_poll_names_the_task(requests: list[list[str]]) -> None:
    call, poll = map(body_of, requests)
    assert (call["method"], call["params"]["name"]) == (names.TOOLS_CALL, "count_slowly")
    assert (poll["method"], poll["params"]["taskId"]) == (names.TASKS_GET, TASK_ID)
    for body in (call, poll):
        capabilities = body["params"][names.META][names.META_CLIENT_CAPABILITIES]
        assert capabilities["extensions"] == {names.TASKS_EXTENSION: {}}
        assert body["params"][names.META][names.META_PROTOCOL_VERSION] == names.LATEST_MODERN
