"""Real clients of 2025 tasks before servers that have none, and before one that has its own.

The Python SDK 1.x, npm @modelcontextprotocol/sdk 1.x, and npm @modelcontextprotocol/ext-tasks in its 2025
mode; as an HTTP client before an HTTP server and before a stdio server, and as a stdio client before a stdio
server. Each client in one shape for what all claim, and in another for what few do: every pair costs seconds.
The proxy has its default settings. What each client does is in tests/real/clients.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import pytest

from proxy.protocol import names
from proxy.tasks.task import is_task_id
from tests.real.legacy import Legacy, Transport
from tests.real.plain_calls import COUNTED, TOOLS, plain_calls
from tests.real.processes import Program, accepts, free_port
from tests.real.proxy_process import ProxyProcess
from tests.real.stdio_process import proxied
from tests.real.task_client import Kind, Refused, Target, TaskClient, agreeable, form, task_client
from tests.real.waiting import asked_until, until
from tests.setup_tools import EVERYTHING, node, npm_module

pytestmark = pytest.mark.anyio

Shape = Literal["http-http", "http-stdio", "stdio-stdio"]
"""How the client is connected, and how the server is."""

SCENES: Final[tuple[tuple[Shape, Kind], ...]] = (
    ("stdio-stdio", "sdk1"),
    ("http-stdio", "npm1"),
    ("http-http", "ext"),
)
AT_ONCE: Final = ("--pre-delay", "0", "--post-delay", "0")
CAPABILITY: Final[dict[str, Any]] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
START_BOUND_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Server:
    """Where the clients of one shape go, and what is behind it."""

    shape: Shape
    legacy: Legacy
    url: str | None

    def target(self, owner: str) -> Target:
        """With the credentials of `owner`, where the shape has such a thing."""
        if self.url is not None:
            return {"url": self.url, "headers": {"Authorization": f"Bearer {owner}"}}
        return {"command": proxied(self.legacy.command("stdio"))}


@dataclass(frozen=True, slots=True)
class Scene:
    kind: Kind
    server: Server
    client: TaskClient
    welcome: dict[str, Any]
    """What the client was told when it connected first."""

    def label(self, what: str) -> str:
        """A label for the journal that no other client of this server uses."""
        return f"{what} of {self.kind}"


@asynccontextmanager
async def serving(shape: Shape, home: Path, *switches: str) -> AsyncIterator[Server]:
    """A legacy server, and over HTTP a proxy before it; on stdio each client starts its own."""
    async with AsyncExitStack() as stack:
        behind: Transport = "http" if shape == "http-http" else "stdio"
        legacy = Legacy(behind, home, *switches)
        stack.push_async_callback(legacy.stop)
        await legacy.start()
        if shape == "stdio-stdio":
            yield Server(shape, legacy, None)
            return
        proxy = ProxyProcess(home, legacy.upstream)
        stack.push_async_callback(proxy.stop)
        await proxy.start()
        yield Server(shape, legacy, proxy.url)
        print(f"--- {proxy.log}\n{proxy.program.tail()}")


@pytest.fixture(scope="module", params=SCENES, ids="-".join)
async def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    shape: Shape
    kind: Kind
    shape, kind = request.param
    home = tmp_path_factory.mktemp(f"{shape}-{kind}")
    async with (
        serving(shape, home, *AT_ONCE) as server,
        task_client(kind, server.target(kind), home) as client,
    ):
        welcome = await client.connect()
        if server.url is not None:
            what = "the client has opened its GET stream"
            await asked_until(lambda: hears(client), bool, what, within_s=START_BOUND_S)
        yield Scene(kind, server, client, welcome)
        await client.close()


async def hears(client: TaskClient) -> bool:
    """Whether it gets messages beside its answers; over HTTP on a stream that it opens when it likes."""
    await client.run("progress_job", steps=1, delay=0.05)
    return bool(client.events("progress"))


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> None:
    """Each test looks at what its own steps brought."""
    if "scene" in request.fixturenames:
        client: TaskClient = request.getfixturevalue("scene").client
        client.said.clear()
        client.answerer = agreeable


def text(result: dict[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"])


def tasks_in(events: Sequence[dict[str, Any]]) -> set[str]:
    return {event["task"]["taskId"] for event in events}


def statuses(client: TaskClient, event: str, task: str) -> list[str]:
    return [said["task"]["status"] for said in client.events(event) if said["task"]["taskId"] == task]


# -- what is offered ----------------------------------------------------------------------------------


async def test_a_server_without_tasks_is_seen_to_have_them(scene: Scene) -> None:
    """T25-CAP-001, T25-CAP-002, T25-TOOL-001."""
    assert scene.welcome["version"] == names.LATEST_LEGACY
    assert scene.welcome["capabilities"]["tasks"] == CAPABILITY
    marks = Counter((tool.get("execution") or {}).get("taskSupport") for tool in await scene.client.tools())
    assert set(marks) == {"optional"}


# -- a task's life ------------------------------------------------------------------------------------


async def test_slow_calls_run_as_tasks_to_their_ends(scene: Scene) -> None:
    """T25-NEW-001, T25-NEW-003, T25-RES-001, T25-RES-004, T25-STA-003, T25-STA-004, T25-NOT-001."""
    client, label = scene.client, scene.label("slow")
    ends: dict[str, Any] = {}

    async def run(tool: str, **arguments: Any) -> None:
        try:
            ends[tool] = await client.run(tool, **arguments)
        except Refused as exc:
            ends[tool] = exc

    async with anyio.create_task_group() as running:
        running.start_soon(lambda: run("slow_compute", seconds=1, label=label))
        running.start_soon(run, "failing_job")
        running.start_soon(run, "protocol_error_job")

    done = ends["slow_compute"]
    assert text(done) == f"computed {label} in 1 s"
    task = done["_meta"][names.META_RELATED_TASK]["taskId"]
    assert is_task_id(task)
    assert statuses(client, "polled", task)[0] == "working"
    assert statuses(client, "polled", task)[-1] == "completed"
    assert statuses(client, "notified", task) == ["completed"]
    assert scene.server.legacy.labels("start")[label] == 1

    listed = await client.list()
    assert tasks_in(client.events("created")) <= set(listed)
    assert Counter(listed[it]["status"] for it in tasks_in(client.events("created"))) == {
        "completed": 1,
        "failed": 2,
    }
    if scene.kind == "sdk1":  # it asks for the result of a failed task; the others only say that it failed
        assert text(ends["failing_job"]) == "the job failed, as it always does"
        assert ends["failing_job"]["isError"]
        assert (ends["protocol_error_job"].code, str(ends["protocol_error_job"])) == (
            -32603,
            "the server broke",
        )
    else:
        assert isinstance(ends["failing_job"], Refused)
        assert isinstance(ends["protocol_error_job"], Refused)


async def test_progress_keeps_coming_while_the_task_runs(scene: Scene) -> None:
    """T25-PRG-001, T25-REL-001."""
    result = await scene.client.run("progress_job", steps=3, delay=0.15)

    assert text(result) == "3 steps, token=yes"
    task = result["_meta"][names.META_RELATED_TASK]["taskId"]
    seen = scene.client.events("progress")
    assert [tick["progress"] for tick in seen] == [0, 1, 2, 3]
    if scene.kind != "npm1":  # it hands its caller the numbers alone
        assert {tick["_meta"][names.META_RELATED_TASK]["taskId"] for tick in seen} == {task}


async def test_what_a_task_asks_reaches_the_user(scene: Scene) -> None:
    """T25-INP-001 to T25-INP-004: also a question that comes as soon as there is a task."""
    client, label = scene.client, scene.label("file")
    polled = anyio.Event()

    async def hesitant(method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answers once the task was seen to wait, where the client can see that before it has the answer."""
        if scene.kind != "sdk1":
            await client.saw(lambda said: said.get("task", {}).get("status") == "input_required")
        polled.set()
        return {"action": "accept", "content": form(params["requestedSchema"])}

    client.answerer = hesitant
    assert text(await client.run("confirm_delete", filename=label)) == f"deleted {label}"
    client.answerer = agreeable
    assert polled.is_set()
    assert text(await client.run("sample_llm", prompt="6 * 7")) == "model said: 42"
    assert text(await client.run("list_roots")) == '["file:///home"]'
    answered = json.loads(text(await client.run("multi_input")))
    assert answered == {"first": ["accept", "Ada"], "second": ["accept", "Ada"]}
    assert json.loads(text(await client.run("wizard", pause=0))) == ["Ada", "Ada"]

    assert Counter(said["method"] for said in client.asked()) == {
        names.ELICITATION_CREATE: 5,
        names.SAMPLING_CREATE_MESSAGE: 1,
        names.ROOTS_LIST: 1,
    }
    assert scene.server.legacy.labels("start")[label] == 1
    assert not [said for said in client.events("complained") if "correlation" in said["message"]]


async def test_a_cancelled_task_stays_cancelled(scene: Scene) -> None:
    """T25-CAN-001 to T25-CAN-004, T25-RES-006."""
    client, label = scene.client, scene.label("job")
    task = await client.start("cancellable_job", seconds=60, label=label)
    await scene.server.legacy.happened("start", label)

    await client.cancel(task)

    assert (await client.get(task))["status"] == "cancelled"
    await scene.server.legacy.happened("cancelled", label)
    with pytest.raises(Refused) as refused:
        await client.cancel(task)
    assert refused.value.code == -32602
    with pytest.raises(Refused) as refused:
        await client.result(task)
    assert scene.kind == "ext" or refused.value.code == -32603
    assert (await client.get(task))["status"] == "cancelled"
    assert (await client.list())[task]["status"] == "cancelled"
    assert text(await client.call("greet", name="Ada")) == "Hello, Ada!"


async def test_a_task_is_found_again_in_a_new_session(scene: Scene) -> None:
    """T25-SEC-001, T25-LST-003, F06. Also: who has left is told nothing more; the Python SDK breaks when a
    message comes after it has closed the server's stdin, as news of a task might."""
    client, left = scene.client, scene.label("left")
    done = await client.run("slow_compute", seconds=0, label=scene.label("found"))
    ended = done["_meta"][names.META_RELATED_TASK]["taskId"]
    seconds = 1.5 if scene.server.url is not None else 60
    running = await client.start("cancellable_job", seconds=seconds, label=left)
    ending = await client.start("slow_compute", seconds=0.3, label=scene.label("ending"))
    await scene.server.legacy.happened("start", left)

    await client.close()
    await client.connect()

    if scene.server.url is None:
        assert not client.events("complained")
    assert {ended, running, ending} <= set(await client.list())
    assert await client.finish(ended) == done
    if scene.server.url is not None:
        assert text(await client.finish(running)) == f"finished {left}"
    else:  # the session was a process, and the server's process with it
        lost = await client.get(running)
        assert lost["status"] == "failed"
        assert "outcome unknown" in lost["statusMessage"]
    assert scene.server.legacy.labels("start")[left] == 1


# -- plain calls --------------------------------------------------------------------------------------

Direct = Callable[[Kind], Awaitable[dict[str, Any]]]


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Direct:
    """What a client has of the fixture with nothing in between: its tools, and plain calls of them."""
    found: dict[Kind, dict[str, Any]] = {}

    async def ask(kind: Kind) -> dict[str, Any]:
        if kind not in found:
            home = tmp_path_factory.mktemp(f"direct-{kind}")
            target = {"command": Legacy("stdio", home, *AT_ONCE).command("stdio")}
            async with task_client(kind, target, home) as client:
                await client.connect()
                found[kind] = {"tools": await client.tools(), "calls": await plain_calls(client)}
                await client.close()
        return found[kind]

    return ask


async def test_plain_calls_of_all_tools_are_as_without_the_proxy(scene: Scene, direct: Direct) -> None:
    """T25-TOOL-003, T25-NEW-008."""
    without = await direct(scene.kind)
    assert {tool["name"] for tool in without["tools"]} == TOOLS

    tools = [tool for tool in await scene.client.tools() if not COUNTED.match(tool["name"])]
    unmarked = [{key: value for key, value in tool.items() if key != "execution"} for tool in tools]
    assert unmarked == without["tools"]
    assert await plain_calls(scene.client) == without["calls"]


# -- a server with tasks of its own -------------------------------------------------------------------

RESEARCH: Final = "simulate-research-query"
LONG: Final = "trigger-long-running-operation"


@asynccontextmanager
async def everything(shape: Shape, home: Path) -> AsyncIterator[Target]:
    """Server-everything behind the proxy."""
    command = [str(node()), str(npm_module(EVERYTHING))]
    if shape == "stdio-stdio":
        yield {"command": proxied([*command, "stdio"])}
        return
    port = free_port()
    server = Program([*command, "streamableHttp"], log=home / "everything.log", env={"PORT": str(port)})
    proxy = ProxyProcess(home, f"http://127.0.0.1:{port}/mcp")
    try:
        await until(lambda: accepts(port), "server-everything listens", within_s=START_BOUND_S)
        await proxy.start()
        yield {"url": proxy.url, "headers": {"Authorization": "Bearer ada"}}
        print(f"--- {proxy.log}\n{proxy.program.tail()}")
    finally:
        await proxy.stop()
        await server.stop()


@pytest.mark.parametrize("shape, kind", [("stdio-stdio", "npm1"), ("http-http", "sdk1")])
async def test_tasks_of_the_server_and_ours_live_in_one_session(
    tmp_path: Path, shape: Shape, kind: Kind
) -> None:
    """T25-LST-003, T25-CAP-001, T25-TOOL-005."""
    async with everything(shape, tmp_path) as target, task_client(kind, target, tmp_path) as client:
        welcome = await client.connect()
        assert welcome["capabilities"]["tasks"] == CAPABILITY
        marks = {tool["name"]: tool["execution"]["taskSupport"] for tool in await client.tools()}
        assert marks.pop(RESEARCH) == "required"
        assert set(marks.values()) == {"optional"}

        reports: dict[str, str] = {}

        async def run(tool: str, **arguments: Any) -> None:
            reports[tool] = text(await client.run(tool, **arguments))

        async with anyio.create_task_group() as running:
            running.start_soon(lambda: run(RESEARCH, topic="python", ambiguous=True))
            running.start_soon(lambda: run(LONG, duration=2, steps=2))
            gone = await client.start(RESEARCH, topic="gone")
            await client.cancel(gone)
        kept = {
            said["task"]["taskId"]: is_task_id(said["task"]["taskId"]) for said in client.events("created")
        }
        listed = await client.list()
        await client.close()

    assert reports[RESEARCH].startswith("# Research Report: python (programming)")
    assert reports[LONG] == "Long running operation completed. Duration: 2 seconds, Steps: 2."
    asked = [said["method"] for said in client.asked() if said["method"] != names.ROOTS_LIST]
    assert asked == [names.ELICITATION_CREATE]
    assert [tick["progress"] for tick in client.events("progress")] == [1, 2]
    assert Counter(kept.values()) == {True: 1, False: 1}
    assert {task: listed[task]["status"] for task in kept} == dict.fromkeys(kept, "completed")
    assert not is_task_id(gone)
    assert listed[gone]["status"] == "cancelled"


# -- a server older than tasks ------------------------------------------------------------------------


@pytest.mark.parametrize("shape, kind", [("stdio-stdio", "ext"), ("http-http", "npm1")])
async def test_a_server_of_2025_06_18_has_tasks_for_a_client_of_2025_11_25(
    tmp_path: Path, shape: Shape, kind: Kind
) -> None:
    """VER-004: the newer version is held with the client, the older one with the server."""
    async with (
        serving(shape, tmp_path, *AT_ONCE, "--max-protocol", "2025-06-18") as server,
        task_client(kind, server.target("ada"), tmp_path) as client,
    ):
        welcome = await client.connect()
        assert welcome["version"] == names.LATEST_LEGACY
        assert welcome["capabilities"]["tasks"] == CAPABILITY
        result = await client.run("slow_compute", seconds=0.5, label="old")
        assert text(result) == "computed old in 0.5 s"
        assert is_task_id(result["_meta"][names.META_RELATED_TASK]["taskId"])
        assert text(await client.run("confirm_delete", filename="f")) == "deleted f"
        seen = (await client.call("echo_request"))["structuredContent"]
        await client.close()

    if server.legacy.transport == "http":
        assert seen["headers"]["mcp-protocol-version"] == "2025-06-18"
    assert server.legacy.labels("start")["old"] == 1
