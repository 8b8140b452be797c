"""A server that has 2025 tasks for some of its tools: what is announced is what is served, to each client in
its own way. F12 of the field reports; contract section 2, "Tasks that upstream offers itself".
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from proxy.protocol import names
from proxy.tasks.task import is_task_id
from tests.real.callers import ModernOverStdio
from tests.real.modern_client import tool_text
from tests.real.stdio_process import StdioProcess, proxied
from tests.real.waiting import asked_until

pytestmark = pytest.mark.anyio

SERVER: Final = [sys.executable, "-m", "tests.real.upstreams.marked"]
TOOLS: Final = ("must", "may", "never", "unmarked")
ITS_OWN: Final = ("must", "may")
THRESHOLD: Final = "100ms"


@pytest.fixture(scope="module")
async def process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StdioProcess]:
    """One proxy, whose client speaks both eras."""
    command = proxied(SERVER, "--threshold", THRESHOLD)
    async with StdioProcess(command, tmp_path_factory.mktemp("marked")) as made:
        await made.initialize()
        yield made


async def test_each_client_is_told_what_it_gets(process: StdioProcess) -> None:
    """T25-CAP-001, TX-CAP-011: the server's own marks are kept, and the other tools get our tasks."""
    listed = (await process.ask(names.TOOLS_LIST))["result"]["tools"]
    marks = {tool["name"]: tool["execution"]["taskSupport"] for tool in listed}
    assert marks == {"must": "required", "may": "optional", "never": "optional", "unmarked": "optional"}
    modern = (await process.ask_modern(names.TOOLS_LIST))["result"]["tools"]
    assert [tool["name"] for tool in modern] == list(TOOLS)
    assert not any("execution" in tool for tool in modern)


async def test_a_modern_client_gets_tasks_of_ours_alone(process: StdioProcess) -> None:
    """T25-TOOL-005, T25-TOOL-006: however the server runs the tool, which it does in its own way where it
    can; nothing of its task is seen."""
    for tool in TOOLS:
        handle = (await process.call_modern(tool))["result"]
        assert is_task_id(handle["taskId"])
        ended = await ModernOverStdio(process).end_of(handle["taskId"])
        how = "task" if tool in ITS_OWN else "call"
        assert tool_text(ended["result"]) == f"{tool} as a {how}"
        assert names.META_RELATED_TASK not in ended["result"].get("_meta", {})


async def test_a_modern_client_without_tasks_gets_results(process: StdioProcess) -> None:
    """Also of the tool that the server runs as a task only: nobody is left waiting."""
    for tool in TOOLS:
        params: dict[str, Any] = {"name": tool, "arguments": {}}
        result = (await process.ask_modern(names.TOOLS_CALL, params, tasks=False))["result"]
        how = "task" if tool == "must" else "call"
        assert (result["resultType"], tool_text(result)) == (names.COMPLETE, f"{tool} as a {how}")


async def test_a_legacy_client_gets_the_servers_own_tasks_untouched_and_ours_for_the_rest(
    process: StdioProcess,
) -> None:
    """T25-NEW-008."""
    for tool in TOOLS:
        params: dict[str, Any] = {"name": tool, "arguments": {}, "task": {"ttl": 60_000}}
        task = (await process.ask(names.TOOLS_CALL, params))["result"]["task"]["taskId"]
        assert is_task_id(task) is (tool not in ITS_OWN)

        async def ask(named: str = task) -> str:
            status: str = (await process.ask(names.TASKS_GET, {"taskId": named}))["result"]["status"]
            return status

        await asked_until(ask, lambda status: status == "completed", f"{tool} has ended", every_s=0.05)
        result = (await process.ask(names.TASKS_RESULT, {"taskId": task}))["result"]
        assert tool_text(result) == f"{tool} as a {'task' if tool in ITS_OWN else 'call'}"
        assert result["_meta"][names.META_RELATED_TASK]["taskId"] == task


async def test_a_legacy_client_without_tasks_hears_the_server(process: StdioProcess) -> None:
    """As without us: the server's own refusal too."""
    for tool in TOOLS:
        answer = await process.call(tool)
        if tool == "must":
            assert answer["error"] == {"code": -32601, "message": "must is run as a task only"}
        else:
            assert tool_text(answer["result"]) == f"{tool} as a call"
