"""The server does what its arguments say, writes it down first, and drops what comes twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tests.faults.journal import Event, Journal, digest
from tests.faults.plan import Ending
from tests.faults.server.tools import Session, answer_text
from tests.real.upstreams.raw_json import value

pytestmark = pytest.mark.anyio

CALL: Final[dict[str, Any]] = {
    "label": "0.0", "seconds": 0.0, "steps": 0, "questions": 0, "size": 40, "ending": "result",
}  # fmt: skip


class Client:
    """The other side of a session."""

    def __init__(self, file: Path) -> None:
        self.journal = Journal(file)
        self.said: list[bytes] = []
        self._changed = anyio.Event()
        self.session: Session

    def hear(self, call: str, text: bytes, last: bool) -> None:
        self.said.append(text)
        self._changed.set()
        self._changed = anyio.Event()

    async def heard(self, count: int) -> dict[str, Any]:
        """The `count`th message."""
        while len(self.said) < count:
            await self._changed.wait()
        message: dict[str, Any] = json.loads(self.said[count - 1])
        return message

    def says(self, **message: Any) -> None:
        self.session.take(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def calls(self, **arguments: Any) -> None:
        params = {"name": "work", "arguments": {**CALL, **arguments}, "_meta": {"progressToken": 9}}
        self.says(id=1, method="tools/call", params=params)

    def events(self) -> list[Event]:
        return [row.event for row in self.journal.new()]


@asynccontextmanager
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    one = Client(tmp_path / "journal")
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            one.session = Session(one.journal, group, one.hear)
            yield one
            group.cancel_scope.cancel()


@pytest.mark.parametrize("ending", Ending)
async def test_a_call_ends_as_it_says_and_its_digest_is_written(tmp_path: Path, ending: Ending) -> None:
    async with client(tmp_path) as one:
        one.calls(ending=ending.value, steps=2)
        answer = await one.heard(3)
        assert answer["id"] == 1
        member = "error" if ending is Ending.ERROR else "result"
        assert value(one.said[2], member) == answer_text("0.0", 40, ending)
        [_, row] = one.journal.new()
        assert row.digest == digest(answer_text("0.0", 40, ending))
        assert [json.loads(said)["params"]["progressToken"] for said in one.said[:2]] == [9, 9]


async def test_a_question_is_asked_and_its_second_answer_dropped(tmp_path: Path) -> None:
    async with client(tmp_path) as one:
        one.calls(questions=1)
        question = await one.heard(1)
        accepted = {"action": "accept", "content": {"nonce": question["params"]["message"]}}
        one.says(id=question["id"], result=accepted)
        one.says(id=question["id"], result=accepted)
        await one.heard(2)
        assert one.events() == [Event.START, Event.ANSWERED, Event.RESULT]


async def test_an_answer_to_another_question_is_written_down(tmp_path: Path) -> None:
    async with client(tmp_path) as one:
        one.calls(questions=1)
        question = await one.heard(1)
        one.says(id=question["id"], result={"action": "accept", "content": {"nonce": "9.9/0"}})
        await one.heard(2)
        assert one.events() == [Event.START, Event.CROSSED, Event.RESULT]


async def test_a_cancelled_call_is_not_answered(tmp_path: Path) -> None:
    async with client(tmp_path) as one:
        one.calls(questions=1)
        await one.heard(1)
        one.says(method="notifications/cancelled", params={"requestId": 1})
        one.says(id=2, method="ping")
        assert (await one.heard(2))["id"] == 2
        await anyio.wait_all_tasks_blocked()
        assert one.events() == [Event.START, Event.CANCELLED]
