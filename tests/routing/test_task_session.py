"""Which messages of a 2025 session are ours, what the upstream's own tasks are, and the merged list.

Contract sections 2 and 5; MCP 2025-11-25, "Tasks", "Pagination".
"""

from __future__ import annotations

import json
from typing import Any, Final

import anyio
import pytest

from proxy.eras.tasks_2025 import NO_TASKS, TaskSupport, UpstreamTasks
from proxy.errors import UpstreamUnavailable
from proxy.protocol import names
from proxy.routing import tasks_2025
from tests.routing.bench import ADA, BOB
from tests.routing.bench_2025 import UNKNOWN, Bench2025, bench_2025
from tests.routing.fake_server import TEXT, FakeServer

pytestmark = pytest.mark.anyio

BOTH: Final = UpstreamTasks(tools=True, list=True)
OURS: Final = "tpx-" + "a" * 32
THEIRS: Final = {"taskId": "786512e2", "status": "working", "x": 1}
INVALID_CURSOR: Final = (-32602, "Invalid params: the cursor is not valid")


def server_with_tasks(*lists: Any) -> FakeServer:
    """`own` is its task tool, `plain` none; `lists` are the pages of `tasks/list`."""
    server = FakeServer()
    server.answers["tools/list"] = {
        "tools": [
            {"name": "own", "execution": {"taskSupport": "required"}},
            {"name": "may", "execution": {"taskSupport": "optional"}},
            {"name": "plain"},
        ]
    }
    if lists:
        server.answers["tasks/list"] = lists[0]
    return server


# -- what is ours -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "upstream", "is_ours"),
    [
        ("tools/call", {"name": "a"}, NO_TASKS, False),
        ("tools/call", {"name": "a", "task": {}}, NO_TASKS, True),
        ("tools/call", {"name": "a", "task": None}, NO_TASKS, False),
        ("tools/call", {"name": "a", "arguments": {"task": {}}}, NO_TASKS, False),
        ("tools/call", {"name": "required_a"}, NO_TASKS, True),
        ("tools/call", {"name": "a", "task": {}}, BOTH, True),
        ("tools/call", None, NO_TASKS, False),
        ("prompts/get", {"name": "a", "task": {}}, NO_TASKS, False),
        ("resources/read", {"uri": "a", "task": {}}, NO_TASKS, False),
        ("tasks/get", {"taskId": OURS}, NO_TASKS, True),
        ("tasks/get", {"taskId": "786512e2"}, NO_TASKS, True),
        ("tasks/get", {}, NO_TASKS, True),
        ("tasks/get", {"taskId": OURS}, BOTH, True),
        ("tasks/get", {"taskId": "786512e2"}, BOTH, False),
        ("tasks/result", {"taskId": "786512e2"}, BOTH, False),
        ("tasks/cancel", {"taskId": "786512e2"}, BOTH, False),
        ("tasks/cancel", {}, BOTH, False),
        ("tasks/list", None, NO_TASKS, True),
        ("tasks/list", None, BOTH, True),
        ("tasks/update", {"taskId": OURS}, NO_TASKS, False),
        ("server/discover", {}, NO_TASKS, False),
    ],
)
async def test_what_is_answered_here(
    method: str, params: dict[str, Any] | None, upstream: UpstreamTasks, is_ours: bool
) -> None:
    """Contract section 2: ids of our form here, every other upstream where upstream has tasks. T25-CAP-003:
    what is no `tools/call` is no task, whatever it carries."""
    async with bench_2025() as it:
        assert it.client(upstream=upstream).claims(method, params) is is_ours


@pytest.mark.parametrize(
    "params",
    [
        b'{"name":"a","\\u0074ask":{}}',
        b'{"name":"a","task" : {} }',
        b'{"task":{},"name":"a","task":{}}',
    ],
)
async def test_however_task_is_spelled_it_is_seen(params: bytes) -> None:
    async with bench_2025() as it:
        client = it.client()
        sent = client.start(names.TOOLS_CALL, params)
        if params.count(b'"task"') == 2:
            assert (await sent.refused())[0] == -32602
            assert it.rig.server.calls_seen == 0
        else:
            assert "task" in await sent.result()
            assert "task" not in (await it.rig.server.next_call()).params


@pytest.mark.parametrize("params", [b"5", b"[]", b"null", b'"x"'])
@pytest.mark.parametrize(
    "method", [names.TASKS_GET, names.TASKS_RESULT, names.TASKS_CANCEL, names.TASKS_LIST]
)
async def test_params_that_are_no_object_are_refused(method: str, params: bytes) -> None:
    """F19, T25-ERR-001."""
    async with bench_2025() as it:
        assert (await it.client().start(method, params).refused())[0] == -32602


async def test_an_id_that_is_given_twice_is_none() -> None:
    async with bench_2025() as it:
        client = it.client()
        task, _ = await client.task()
        params = b'{"taskId":"%s","taskId":"%s"}' % (task.encode(), task.encode())
        for method in (names.TASKS_GET, names.TASKS_RESULT, names.TASKS_CANCEL):
            assert (await client.start(method, params).refused())[0] == -32602
        assert (await client.get(task))["status"] == "working"


# -- tools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "said", "upstream", "mark"),
    [
        ("a", None, NO_TASKS, "optional"),
        ("a", "forbidden", NO_TASKS, "optional"),
        ("a", "optional", NO_TASKS, "optional"),
        ("never_a", None, NO_TASKS, "forbidden"),
        ("never_a", "optional", NO_TASKS, "forbidden"),
        ("required_a", None, NO_TASKS, "required"),
        ("required_a", "forbidden", NO_TASKS, "required"),
        ("a", None, BOTH, "optional"),
        ("a", "optional", BOTH, "optional"),
        ("a", "required", BOTH, "required"),
        ("never_a", "required", BOTH, "required"),
        ("never_a", "forbidden", BOTH, "forbidden"),
        ("required_a", "optional", BOTH, "optional"),
    ],
)
async def test_the_mark_of_a_tool(tool: str, said: str | None, upstream: UpstreamTasks, mark: str) -> None:
    """T25-TOOL-001: what the upstream runs as its own task stays as it says."""
    async with bench_2025() as it:
        session = it.client(upstream=upstream).session
        assert session.mark(tool, None if said is None else TaskSupport(said)) == mark


async def test_a_tool_that_is_never_a_task_refuses_to_be_one() -> None:
    """T25-TOOL-002: the server sees nothing of it."""
    async with bench_2025() as it:
        code, words = await it.client().call("never_a").refused()
        assert (code, "'never_a'" in words) == (-32601, True)
        assert it.rig.server.wires == []


async def test_a_tool_that_must_be_a_task_refuses_to_be_none() -> None:
    """T25-TOOL-004, T25-CAP-005: the server sees nothing of it; as a task it runs."""
    async with bench_2025() as it:
        client = it.client()
        code, words = await client.start(names.TOOLS_CALL, {"name": "required_a"}).refused()
        assert (code, "'required_a'" in words) == (-32601, True)
        assert it.rig.server.wires == []
        assert (await client.task("required_a"))[1].name == "required_a"


async def test_tasks_of_the_upstreams_own_tools_are_left_to_it() -> None:
    """Contract section 2: tool by tool; the others get ours."""
    async with bench_2025(server_with_tasks()) as it:
        client = it.client(upstream=BOTH)
        for tool in ("own", "may"):
            sent = client.call(tool)
            await it.rig.settle()
            assert sent.passed
        assert it.rig.server.calls_seen == 0
        task, _ = await client.task("plain")
        assert (await client.get(task))["status"] == "working"


async def test_where_the_upstream_serves_no_task_calls_its_marks_mean_nothing() -> None:
    async with bench_2025(server_with_tasks()) as it:
        task, call = await it.client().task("own")
        assert "task" not in call.params
        assert task.startswith("tpx-")


async def test_a_call_whose_server_does_not_say_what_its_tools_are_is_an_error() -> None:
    """Contract section 2: the tool may be one that the server runs as a task of its own."""
    async with bench_2025() as it:
        it.rig.server.answers["tools/list"] = (-32603, "no")
        code, words = await it.client(upstream=BOTH).call("own").refused()
        assert (code, "tools/list failed" in words) == (-32603, True)
        assert it.rig.server.calls_seen == it.rig.store.writes["create"] == 0


async def test_a_call_whose_server_cannot_be_asked_what_its_tools_are_is_an_error() -> None:
    async with bench_2025() as it:
        it.start_fault = UpstreamUnavailable("upstream 'fake' could not be started")
        client = it.client(upstream=BOTH)
        assert await client.call("own").refused() == (-32603, "upstream 'fake' could not be started")
        assert it.rig.store.writes["create"] == 0


async def test_a_client_that_leaves_before_its_task_is_stored_leaves_nothing() -> None:
    """I2: it is not known yet whose tool it is."""
    server = server_with_tasks()
    tools = server.answers.pop("tools/list")
    async with bench_2025(server) as it:
        sent = it.client(upstream=BOTH).call("plain")
        listing = await server.next_call()
        sent.hang_up()
        await it.rig.settle()
        listing.answer(tools)
        await it.rig.settle()
        assert it.rig.store.writes["create"] == server.calls_seen == 0


# -- the list -----------------------------------------------------------------------------------------


async def tasks_made(it: Bench2025, count: int, owner: Any = ADA) -> list[str]:
    """Ended, so that they do not count as calls."""
    client, made = it.client(owner), []
    for _ in range(count):
        task, call = await client.task()
        call.answer()
        await it.rig.pass_time(0.002)
        made.append(task)
    return made


async def test_the_list_is_paged_and_holds_each_task_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """T25-LST-001, T25-LST-002, T25-LST-003: oldest first; the last page has no cursor."""
    monkeypatch.setattr(tasks_2025, "PAGE", 3)
    async with bench_2025() as it:
        for count in (0, 1, 3, 4, 7):
            owner = type(ADA)(f"owner-{count}")
            made = await tasks_made(it, count, owner)
            pages = await it.client(owner).pages()
            assert [task["taskId"] for page in pages for task in page["tasks"]] == made
            assert all(len(page["tasks"]) == 3 for page in pages[:-1])
            assert len(pages) == max(1, -(-count // 3))


def test_a_page_is_bounded() -> None:
    """T25-LST-001."""
    assert tasks_2025.PAGE == 100


async def test_an_owner_sees_its_own_tasks_of_whatever_dialect() -> None:
    """T25-LST-003, T25-LST-004, I5."""
    async with bench_2025() as it:
        task, _ = await it.client().task()
        modern, _ = await it.rig.task(it.rig.client(owner=ADA))
        [other] = await tasks_made(it, 1, BOB)
        assert sorted(await it.client().listed()) == sorted([task, modern])
        assert await it.client(BOB).listed() == [other]


async def test_a_cursor_is_its_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """T25-LST-005: what is broken, another's, or no string, is one answer."""
    monkeypatch.setattr(tasks_2025, "PAGE", 1)
    async with bench_2025() as it:
        await tasks_made(it, 2)
        await tasks_made(it, 2, BOB)
        cursor = (await it.client().pages())[0]["nextCursor"]
        for stranger, wrong in [
            (BOB, cursor),
            (ADA, "x"),
            (ADA, ""),
            (ADA, 5),
            (ADA, None),
            (ADA, cursor[:-1]),
        ]:
            sent = it.client(stranger).start(names.TASKS_LIST, {"cursor": wrong})
            assert await sent.refused() == INVALID_CURSOR


async def test_a_cursor_to_a_task_that_has_expired_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """T25-LST-005."""
    monkeypatch.setattr(tasks_2025, "PAGE", 1)
    async with bench_2025() as it:
        await tasks_made(it, 1)
        await it.rig.pass_time(30)
        [kept] = await tasks_made(it, 1)
        cursor = (await it.client().pages())[0]["nextCursor"]
        await it.rig.pass_time(40)
        assert await it.client().listed() == [kept]
        sent = it.client().start(names.TASKS_LIST, {"cursor": cursor})
        assert await sent.refused() == INVALID_CURSOR


async def test_the_upstreams_own_tasks_follow_ours_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """T25-LST-003: its cursors are in ours, and lead on from there."""
    monkeypatch.setattr(tasks_2025, "PAGE", 2)
    server = server_with_tasks()
    async with bench_2025(server) as it:
        made = await tasks_made(it, 3)
        client = it.client(upstream=BOTH)

        async def play() -> None:
            first = await server.next_call()
            assert "cursor" not in first.params
            first.answer({"tasks": [THEIRS, {"taskId": "b"}], "nextCursor": "their/2="})
            second = await server.next_call()
            assert second.params["cursor"] == "their/2="
            second.answer({"tasks": [{"taskId": "c"}]})

        async with anyio.create_task_group() as playing:
            playing.start_soon(play)
            pages = await client.pages()
        listed = [[task["taskId"] for task in page["tasks"]] for page in pages]
        assert listed == [made[:2], [made[2], "786512e2", "b"], ["c"]]
        assert pages[1]["tasks"][1] == THEIRS
        stranger = it.client(BOB, upstream=BOTH)
        sent = stranger.start(names.TASKS_LIST, {"cursor": pages[1]["nextCursor"]})
        assert await sent.refused() == INVALID_CURSOR


async def test_where_the_upstream_lists_none_ours_are_all() -> None:
    async with bench_2025(server_with_tasks()) as it:
        client = it.client(upstream=UpstreamTasks(tools=True))
        assert await client.pages() == [{"tasks": []}]
        assert server_heard(it) == []


def server_heard(it: Bench2025) -> list[Any]:
    return it.rig.server.heard(names.TASKS_LIST)


async def test_without_a_known_owner_there_is_no_list_of_ours() -> None:
    """T25-LST-006, T25-CAP-002: not declared and not served; with the upstream's own, it answers alone."""
    async with bench_2025() as it:
        client = it.client(lists=False)
        assert (await client.start(names.TASKS_LIST).refused())[0] == -32601
        assert not it.client(lists=False, upstream=BOTH).claims(names.TASKS_LIST)


async def test_an_error_of_the_upstreams_list_is_told_as_it_came() -> None:
    async with bench_2025(server_with_tasks((-32602, "Invalid cursor"))) as it:
        sent = it.client(upstream=BOTH).start(names.TASKS_LIST)
        assert await sent.refused() == (-32602, "Invalid cursor")


@pytest.mark.parametrize("page", [{}, {"tasks": None}, {"tasks": {}}, [], 5, "x"])
async def test_an_upstreams_list_that_is_none_is_the_upstreams_fault(page: Any) -> None:
    """F34: not the client's, and no list without its tasks."""
    server = server_with_tasks()
    async with bench_2025(server) as it:
        sent = it.client(upstream=BOTH).start(names.TASKS_LIST)
        (await server.next_call()).answer_raw(json.dumps(page).encode())
        assert await sent.refused() == (-32603, "the upstream's answer to tasks/list cannot be used")


async def test_a_member_that_stands_twice_in_the_upstreams_list_is_its_fault_too() -> None:
    server = server_with_tasks()
    async with bench_2025(server) as it:
        sent = it.client(upstream=BOTH).start(names.TASKS_LIST)
        (await server.next_call()).answer_raw(b'{"tasks":[],"tasks":[]}')
        assert (await sent.refused())[0] == -32603


# -- whose session ------------------------------------------------------------------------------------


async def test_a_session_that_has_ended_reaches_nobody_and_its_tasks_go_on() -> None:
    async with bench_2025() as it:
        client = it.client()
        task, call = await client.task()
        client.session.end()
        call.elicit()
        await it.rig.settle()
        assert client.session.channel is None
        assert client.channel.said == []
        call.answer()
        await it.rig.settle()
        assert (await it.client().result(task).result())["content"] == TEXT["content"]


async def test_ids_of_our_form_that_nobody_was_given_are_answered_here_where_upstream_has_tasks() -> None:
    """Contract section 2."""
    async with bench_2025(server_with_tasks()) as it:
        client = it.client(upstream=BOTH)
        for sent in (client.read(UNKNOWN), client.result(UNKNOWN), client.cancel(UNKNOWN)):
            assert (await sent.refused())[0] == -32602
        assert it.rig.server.wires == []
