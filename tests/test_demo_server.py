"""The bundled server: an ordinary legacy server, spoken to as a legacy client would."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

DEMO: Final = Path(__file__).parent.parent / "examples" / "demo_server.py"
BOUND_S: Final = 20.0
Json = dict[str, Any]


class Client:
    """One server process. A call is `send` and then `received`, in whatever order things come."""

    def __init__(self, pace: float = 0.01) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(DEMO), "--pace", str(pace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._bound = threading.Timer(BOUND_S, self._process.kill)
        self._bound.start()

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}))

    def call(self, tool: str, call_id: int = 1, token: str | None = None, **arguments: Any) -> None:
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        self.send(id=call_id, method="tools/call", params={"name": tool, "arguments": arguments, **meta})

    def received(self) -> Json:
        assert self._process.stdout is not None
        message = json.loads(self._process.stdout.readline())
        assert message.pop("jsonrpc") == "2.0"
        assert isinstance(message, dict)
        return message

    def result(self, method: str, **params: Any) -> Json:
        self.send(id="r", method=method, params=params)
        answer = self.received()
        assert answer["id"] == "r"
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    def error(self, method: str, **params: Any) -> int:
        self.send(id="r", method=method, params=params)
        return int(self.received()["error"]["code"])

    def initialize(self, version: str = "2025-11-25", **capabilities: Any) -> Json:
        info = {"name": "test", "version": "0"}
        result = self.result(
            "initialize", protocolVersion=version, capabilities=capabilities, clientInfo=info
        )
        self.send(method="notifications/initialized")
        return result

    def end(self) -> int:
        """Close its stdin, as a client does that goes; returns its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        code = self._process.wait(BOUND_S)
        self._process.stdout.close()
        self._bound.cancel()
        return code


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    assert client.end() == 0


def words(answer: Json) -> str:
    return str(answer["result"]["content"][0]["text"])


@pytest.mark.parametrize(
    "asked, given",
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ],
)
def test_it_speaks_the_legacy_versions(client: Client, asked: str, given: str) -> None:
    result = client.initialize(asked)
    assert result["protocolVersion"] == given
    assert "tasks" not in result["capabilities"]


def test_it_offers_four_tools_a_prompt_and_a_resource(client: Client) -> None:
    client.initialize()
    tools = client.result("tools/list")["tools"]
    assert [tool["name"] for tool in tools] == ["hello", "count_slowly", "fail_late", "book_table"]
    assert all(tool["inputSchema"]["type"] == "object" and "execution" not in tool for tool in tools)
    prompt = client.result("prompts/list")["prompts"][0]["name"]
    assert (
        "7"
        in client.result("prompts/get", name=prompt, arguments={"seconds": "7"})["messages"][0]["content"][
            "text"
        ]
    )
    uri = client.result("resources/list")["resources"][0]["uri"]
    assert client.result("resources/read", uri=uri)["contents"][0]["uri"] == uri
    assert client.result("ping") == {}


def test_a_fast_tool_answers_while_a_slow_one_counts(client: Client) -> None:
    client.initialize()
    client.call("count_slowly", 1, token="t", seconds=3)
    progress = client.received()
    client.call("hello", 2, name="Ünï")
    others = [client.received() for _ in range(4)]
    assert progress["params"] == {"progressToken": "t", "progress": 1, "total": 3, "message": "counted to 1"}
    answers = {message["id"]: words(message) for message in others if "id" in message}
    assert answers == {1: "Counted 3 seconds.", 2: "Hello, Ünï!"}
    assert [m["params"]["progress"] for m in others if "method" in m] == [2, 3]


def test_without_a_token_there_is_no_progress(client: Client) -> None:
    client.initialize()
    client.call("count_slowly", seconds=2)
    assert words(client.received()) == "Counted 2 seconds."


def test_a_cancelled_call_is_never_answered(client: Client) -> None:
    client.initialize()
    client.call("count_slowly", 1, token="t", seconds=3600)
    client.received()
    client.send(method="notifications/cancelled", params={"requestId": 1})
    client.send(id=2, method="ping")
    while "method" in (message := client.received()):  # progress that was on its way
        pass
    assert message == {"id": 2, "result": {}}


def test_a_table_is_booked_after_its_question_was_answered(client: Client) -> None:
    client.initialize(elicitation={})
    client.call("book_table", guests=4)
    question = client.received()
    assert question["method"] == "elicitation/create"
    assert question["params"]["requestedSchema"]["required"] == ["name", "time"]
    client.send(id=question["id"], result={"action": "accept", "content": {"name": "Ada", "time": "19:30"}})
    assert words(client.received()) == "A table for 4 is booked at 19:30 for Ada."


def test_no_table_is_booked_against_the_users_will(client: Client) -> None:
    client.initialize(elicitation={})
    client.call("book_table")
    client.send(id=client.received()["id"], result={"action": "decline"})
    assert words(client.received()) == "No table was booked."
    client.call("book_table")
    client.send(id=client.received()["id"], error={"code": -32601, "message": "cannot ask"})
    assert client.received()["error"] == {"code": -32601, "message": "cannot ask"}


def test_a_call_that_is_cancelled_while_it_asks_is_never_answered(client: Client) -> None:
    client.initialize(elicitation={})
    client.call("book_table", 1)
    question = client.received()
    client.send(method="notifications/cancelled", params={"requestId": 1})
    client.send(id=question["id"], result={"action": "decline"})
    client.send(id=2, method="ping")
    assert client.received() == {"id": 2, "result": {}}


def test_a_client_that_cannot_be_asked_is_told_so(client: Client) -> None:
    client.initialize()
    client.call("book_table")
    assert client.received()["result"]["isError"]


def test_it_fails_late(client: Client) -> None:
    client.initialize()
    client.call("fail_late", seconds=0.5)
    assert client.received()["result"]["isError"]


def test_what_is_wrong_is_answered_with_the_error_for_it(client: Client) -> None:
    client.initialize()
    assert client.error("tasks/get", taskId="x") == -32601
    assert client.error("tools/call", name="no_such") == -32602
    assert client.error("tools/call", name="count_slowly", arguments={"seconds": "ten"}) == -32602
    assert client.error("tools/call", name="count_slowly", arguments={"seconds": -1}) == -32602
    assert client.error("prompts/get", name="no_such") == -32602
    assert client.error("resources/read", uri="no:such") == -32002


@pytest.mark.parametrize(
    "line, code", [("{", -32700), ("[]", -32600), ("1", -32600), ('{"params": 1}', -32600)]
)
def test_a_line_that_is_no_message_is_answered_and_survived(client: Client, line: str, code: int) -> None:
    client.write(line)
    answer = client.received()
    assert (answer["id"], answer["error"]["code"]) == (None, code)
    assert client.result("ping") == {}


def test_it_ends_with_its_client_whatever_it_is_doing(client: Client) -> None:
    client.initialize(elicitation={})
    client.call("count_slowly", 1, seconds=3600)
    client.call("book_table", 2)
