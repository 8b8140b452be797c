"""Real clients of 2025 tasks, told what to do by a test, step by step.

The programs are tests/real/clients/tasks_*. One line of JSON each way at a time:

    {"n": 1, "do": "run", "name": ..., ...}     the test: do this
    {"n": 1, "done": ...}, {"n": 1, "error"}    the program: done, or what the client made of it
    {"asked": 1, "method", "params"}            the program: the server asks
    {"answer": 1, "result"}                     the test: what to answer
    {"event": ..., ...}                         the program: what the client saw meanwhile

Events are `created` and `polled` (a task, in `run` and `finish`), `notified` (a task), `progress`, `logged`,
and `complained` (the client found a message that it could not use).
"""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import anyio
from anyio.abc import Process, TaskGroup

from proxy.protocol import names
from tests.real.processes import MARKER, marked_processes
from tests.real.waiting import until
from tests.setup_tools import NPM, TESTS, node, npm_module, venv_python

Kind = Literal["sdk1", "npm1", "ext"]
Target = Mapping[str, Any]
"""`{"url", "headers"}`, or `{"command"}`."""

KINDS: Final[tuple[Kind, ...]] = ("sdk1", "npm1", "ext")
CLIENTS: Final = TESTS / "real" / "clients"
PACKAGES: Final[dict[str, str]] = {
    "npm1": "@modelcontextprotocol/sdk/package.json",
    "ext": "@modelcontextprotocol/ext-tasks/package.json",
}

BOUND_S: Final = 60.0
END_BOUND_S: Final = 20.0
TTL_MS: Final = 60_000

Answerer = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class Refused(Exception):
    """What the client reports instead of a result. `code` is JSON-RPC's, where the client keeps it."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__(said["message"])
        self.code = said.get("code")


def form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An answer that fits the schema of a question."""
    return {name: _field(field) for name, field in schema.get("properties", {}).items()}


def _field(field: Mapping[str, Any]) -> Any:
    choices = [one["const"] for one in field.get("oneOf", field.get("anyOf", []))] or field.get("enum")
    if choices:
        return choices[0]
    match field.get("type"):
        case "boolean":
            return True
        case "integer" | "number":
            return 7
        case "array":
            return [_field(field["items"])]
    return "Ada"


async def agreeable(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """A user who says yes, a model that knows the answer, and one root."""
    if method == names.ELICITATION_CREATE:
        content = {"content": form(params["requestedSchema"])} if "requestedSchema" in params else {}
        return {"action": "accept", **content}
    if method == names.SAMPLING_CREATE_MESSAGE:
        return {"role": "assistant", "content": {"type": "text", "text": "42"}, "model": "m"}
    return {"roots": [{"uri": "file:///home"}]}


class TaskClient:
    """A running client program. What the server asks is answered by `answerer`."""

    def __init__(self, process: Process, doing: TaskGroup, answerer: Answerer) -> None:
        self.answerer = answerer
        self.said: list[dict[str, Any]] = []
        """Its questions and events so far."""
        self._process = process
        self._doing = doing
        self._numbers = itertools.count(1)
        self._done: dict[int, dict[str, Any]] = {}
        self._changed = anyio.Event()

    # -- what it can do -----------------------------------------------------------------------------

    async def connect(self) -> dict[str, Any]:
        """`version` and the server's `capabilities`; again after `close` for a further session."""
        found: dict[str, Any] = await self._do("connect")
        return found

    async def close(self) -> None:
        """Leave the session the way the client does; over HTTP that includes the DELETE."""
        await self._do("close")

    async def tools(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._do("tools")
        return found

    async def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """A plain call; its result."""
        found: dict[str, Any] = await self._do("call", name=name, arguments=arguments)
        return found

    async def run(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """A call as a task, to its end; its result."""
        found: dict[str, Any] = await self._do("run", name=name, arguments=arguments, ttl=TTL_MS)
        return found

    async def start(self, name: str, /, **arguments: Any) -> str:
        """A call as a task, which is then left alone; the id of the task."""
        made = await self._do("start", name=name, arguments=arguments, ttl=TTL_MS)
        task: str = made["task"]["taskId"]
        return task

    async def finish(self, task: str) -> dict[str, Any]:
        """Take up a task that was left, and go with it to its end; its result."""
        found: dict[str, Any] = await self._do("finish", task=task)
        return found

    async def result(self, task: str) -> dict[str, Any]:
        """`tasks/result`; ext-tasks first waits for the end by polling."""
        found: dict[str, Any] = await self._do("result", task=task)
        return found

    async def get(self, task: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._do("get", task=task)
        return found

    async def cancel(self, task: str) -> None:
        await self._do("cancel", task=task)

    async def list(self) -> dict[str, dict[str, Any]]:
        """All tasks on all pages, by id."""
        return {task["taskId"]: task for task in await self._do("list")}

    # -- what it saw --------------------------------------------------------------------------------

    def events(self, event: str) -> Sequence[dict[str, Any]]:
        """All of one kind, oldest first."""
        return [said for said in self.said if said.get("event") == event]

    def asked(self) -> Sequence[dict[str, Any]]:
        """All that the server asked, oldest first."""
        return [said for said in self.said if "asked" in said]

    async def saw(
        self, wanted: Callable[[dict[str, Any]], bool], *, within_s: float = 10.0
    ) -> dict[str, Any]:
        """The first event or question that is wanted, now or later."""
        with anyio.fail_after(within_s):
            while not (found := [said for said in self.said if wanted(said)]):
                await self._changed.wait()
        return found[0]

    # -- lines --------------------------------------------------------------------------------------

    async def _do(self, what: str, **details: Any) -> Any:
        n = next(self._numbers)
        await self._tell({"n": n, "do": what, **details})
        with anyio.fail_after(BOUND_S):
            while n not in self._done:
                await self._changed.wait()
        answer = self._done.pop(n)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["done"]

    async def _tell(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(json.dumps(line).encode() + b"\n")

    async def listen(self) -> None:
        """Take in what it says until it ends; run once, beside everything else."""
        assert self._process.stdout is not None
        rest = b""
        async for chunk in self._process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._heard(json.loads(line))

    def _heard(self, said: dict[str, Any]) -> None:
        if "n" in said:
            self._done[said["n"]] = said
        else:
            self.said.append(said)
            if "asked" in said:
                self._doing.start_soon(self._answer, said)
        self._changed.set()
        self._changed = anyio.Event()

    async def _answer(self, question: Mapping[str, Any]) -> None:
        result = await self.answerer(question["method"], question["params"])
        await self._tell({"answer": question["asked"], "result": result})


def command(kind: Kind, target: Target) -> list[str]:
    """How to start the program of this kind."""
    if kind == "sdk1":
        return [str(venv_python("sdk1")), str(CLIENTS / "tasks_sdk1.py"), json.dumps(target)]
    npm_module(PACKAGES[kind])
    modules = str(NPM / "node_modules")
    return [str(node()), str(CLIENTS / f"tasks_{kind}.mjs"), modules, json.dumps(target)]


@asynccontextmanager
async def task_client(
    kind: Kind, target: Target, home: Path, answerer: Answerer = agreeable
) -> AsyncIterator[TaskClient]:
    """A client program, not yet connected. Afterwards it has ended by itself, with all that it started."""
    marker = uuid.uuid4().hex
    env = {**os.environ, MARKER: marker, "XDG_STATE_HOME": str(home / "state")}
    log = home / f"{kind}.log"
    with log.open("ab") as stderr:
        process = await anyio.open_process(command(kind, target), env=env, cwd=TESTS.parent, stderr=stderr)
    client: TaskClient | None = None
    try:
        async with anyio.create_task_group() as doing:
            client = TaskClient(process, doing, answerer)
            doing.start_soon(client.listen)
            yield client
            assert process.stdin is not None
            await process.stdin.aclose()
            with anyio.fail_after(END_BOUND_S):
                assert await process.wait() == 0
            doing.cancel_scope.cancel()
        await until(lambda: not marked_processes(marker), "nothing is left", within_s=END_BOUND_S)
    finally:
        for pid in marked_processes(marker):
            os.kill(pid, 9)
        with anyio.CancelScope(shield=True):
            await process.aclose()
        said = [] if client is None else client.said
        print(f"--- {kind}: {chr(10).join(map(json.dumps, said))[-6_000:]}\n{log.read_text()[-6_000:]}")
