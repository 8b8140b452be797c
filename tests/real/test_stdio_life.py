"""The proxy as a sidecar: started by a client, ended in every way there is, and never left behind.

Holds F36 and F41 of the field reports, and AUTH-008: what one life began, the next one knows.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from proxy.protocol import jsonrpc, names
from tests.real.legacy import Legacy
from tests.real.modern_client import tool_text
from tests.real.stdio_process import SMALL_SERVER, StdioProcess, meta, proxied
from tests.real.waiting import asked_until, until
from tests.real.wiretap import messages, wiretapped

pytestmark = pytest.mark.anyio

NOW: Final = ("--threshold", "0s")
EXIT_S: Final = 8.0  # from the client's end to that of the last process
LEFT_S: Final = 2.0  # from the end of the proxy to that; it has waited, but the system may bury them later
DRAIN: Final = "MCP_TASKPROXY_DRAIN"


def small(*flags: str) -> list[str]:
    return proxied(SMALL_SERVER, *flags)


def napping(seconds: float) -> dict[str, Any]:
    return {"name": "nap", "arguments": {"seconds": seconds}}


async def ended(it: StdioProcess, *, within_s: float = EXIT_S) -> None:
    """It ended by itself, in order, and nothing is left."""
    assert await it.exit_code(within_s=within_s) == 0, it.log()
    await it.nothing_is_left(within_s=LEFT_S)


async def task_of(it: StdioProcess, seconds: float) -> str:
    handle = await it.call_modern("nap", seconds=seconds)
    return str(handle["result"]["taskId"])


async def task(it: StdioProcess, task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await it.ask_modern(names.TASKS_GET, {"taskId": task_id}))["result"]
    return found


# --------------------------------------------------------------------------------- the end of stdin


async def test_the_end_of_stdin_cancels_blocking_calls_upstream_and_ends_all(tmp_path: Path) -> None:
    """STDIO-008, STDIO-007."""
    record = tmp_path / "sent"
    async with StdioProcess(proxied(wiretapped(record, SMALL_SERVER)), tmp_path) as it:
        await it.ask_modern(names.TOOLS_LIST)
        await it.request(names.TOOLS_CALL, {**napping(300), names.META: meta(tasks=False)})
        await until(lambda: record.exists() and b"tools/call" in record.read_bytes(), "the call is upstream")
        it.close_stdin()
        await ended(it)
    [call] = [m for m in messages(record) if m.get("method") == names.TOOLS_CALL]
    [cancelled] = [m for m in messages(record) if m.get("method") == names.CANCELLED]
    assert cancelled["params"]["requestId"] == call["id"]


async def test_a_task_has_the_drain_time_after_the_end_of_stdin_and_the_next_life_knows_it(
    tmp_path: Path,
) -> None:
    """AUTH-008; contract section 9."""
    async with StdioProcess(small(*NOW), tmp_path, **{DRAIN: "10s"}) as it:
        first = await task_of(it, 0)
        await asked_until(lambda: task(it, first), lambda t: t["status"] == "completed", "the first ends")
        second = await task_of(it, 1)
        it.close_stdin()
        await ended(it, within_s=2 * EXIT_S)
    async with StdioProcess(small(*NOW), tmp_path) as it:
        for task_id in (first, second):
            found = await task(it, task_id)
            assert found["status"] == "completed"
            assert tool_text(found["result"]).startswith("slept")


async def test_a_task_that_outlasts_the_drain_has_failed_in_the_next_life(tmp_path: Path) -> None:
    async with StdioProcess(small(*NOW), tmp_path, **{DRAIN: "200ms"}) as it:
        lost = await task_of(it, 300)
        it.close_stdin()
        await ended(it)
    async with StdioProcess(small(*NOW), tmp_path) as it:
        await asked_until(lambda: task(it, lost), lambda t: t["status"] == "failed", "it has failed")


async def test_sigterm_after_the_end_of_stdin_does_not_wait_for_tasks(tmp_path: Path) -> None:
    """As clients do that do not see it end: stdin closed, then SIGTERM."""
    async with StdioProcess(small(*NOW), tmp_path, **{DRAIN: "60s"}) as it:
        lost = await task_of(it, 300)
        it.close_stdin()
        await until(lambda: "client_closed_stdin" in it.log(), "it has seen the end")
        it.send_signal(signal.SIGTERM)
        await ended(it)
    async with StdioProcess(small(*NOW), tmp_path) as it:
        await asked_until(lambda: task(it, lost), lambda t: t["status"] == "failed", "it has failed")


async def test_messages_in_a_file_are_answered(tmp_path: Path) -> None:
    file = tmp_path / "messages.jsonl"
    requests = [
        jsonrpc.request(n, method, json.dumps({**params, names.META: meta(tasks=False)}).encode())
        for n, method, params in [(1, names.DISCOVER, {}), (2, names.TOOLS_CALL, napping(0.3))]
    ]
    file.write_bytes(b"\r\n".join(requests))
    with file.open("rb") as stdin:
        process = await anyio.run_process(small("--store", "memory:"), stdin=stdin)
    said = [json.loads(line) for line in process.stdout.splitlines()]
    assert {m["id"] for m in said if "result" in m} == {1, 2}


# ------------------------------------------------------------------------------------------ SIGTERM


def is_of(subscription: object, notification: dict[str, Any]) -> bool:
    """Those of another subscription may come in between."""
    return bool(notification["params"][names.META][names.META_SUBSCRIPTION_ID] == subscription)


async def test_sigterm_ends_listening_in_both_ways_and_all_processes(tmp_path: Path) -> None:
    """SUB-006, SUB-007, TX-NOT-001: each listen is told by its cancellation and its result."""
    async with StdioProcess(small(*NOW), tmp_path, **{DRAIN: "500ms"}) as it:
        running = await task_of(it, 300)
        for rid, wanted in (("a", {"taskIds": [running]}), (7, {"toolsListChanged": True})):
            await it.request(
                names.SUBSCRIPTIONS_LISTEN, {"notifications": wanted, names.META: meta()}, rid=rid
            )
            first = await it.message_where(partial(is_of, rid))
            assert first["method"] == names.SUBSCRIPTIONS_ACKNOWLEDGED
        seen = len(it.lines)
        it.send_signal(signal.SIGTERM)
        await it.read_to_end()
        await ended(it)
    last = [json.loads(line) for line in it.lines[seen:]]
    for rid in ("a", 7):
        about = [m for m in last if m.get("id") == rid or m.get("params", {}).get("requestId") == rid]
        assert [m.get("method") for m in about] == [names.CANCELLED, None]
        assert about[1]["result"]["resultType"] == "complete"
        assert about[1]["result"][names.META][names.META_SUBSCRIPTION_ID] == rid


async def test_sigterm_in_a_legacy_session_ends_it_and_its_server(tmp_path: Path) -> None:
    async with StdioProcess(small(), tmp_path) as it:
        await it.initialize()
        rid = await it.request(names.TOOLS_CALL, napping(300))
        await it.ask("tools/list")
        it.send_signal(signal.SIGTERM)
        assert (await it.answer(rid))["error"]["code"] == -32603
        await ended(it)


async def test_a_server_that_will_not_go_is_made_to(tmp_path: Path) -> None:
    """STDIO-009, F36."""
    async with StdioProcess(proxied([*SMALL_SERVER, "--stubborn"]), tmp_path) as it:
        await it.ask_modern(names.TOOLS_LIST)
        it.close_stdin()
        await ended(it, within_s=2 * EXIT_S)


# --------------------------------------------------------------------- clients that read no more


async def test_a_client_that_reads_nothing_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    legacy = Legacy("stdio", tmp_path)
    async with StdioProcess(proxied(legacy.command("stdio")), tmp_path) as it:
        await it.initialize()
        for _ in range(4):
            await it.request(names.TOOLS_CALL, {"name": "return_large_text", "arguments": {"kib": 1_000}})
        await it.ask_modern(names.TOOLS_CALL, {"name": "greet", "arguments": {"name": "x"}})
        for _ in range(4):
            await it.request(names.TOOLS_CALL, {"name": "return_large_text", "arguments": {"kib": 1_000}})
        it.close_stdin()
        assert await it.exit_code(within_s=2 * EXIT_S) == 0
        await it.nothing_is_left(within_s=LEFT_S)


async def test_a_client_that_closed_stdout_alone_is_gone_with_the_first_message(tmp_path: Path) -> None:
    async with StdioProcess(small(), tmp_path) as it:
        await it.initialize()
        await it.ask_modern(names.TOOLS_LIST)
        it.close_stdout()
        await it.request("tools/list")
        await ended(it)


# ------------------------------------------------------------------------- nothing but messages


PRINTER: Final = """
import atexit, os, threading
start = threading.Thread.start
def noisy_start(self):
    if self.name != "log-writer":
        print("noise: a thread is started", flush=True)
        os.write(1, b"noise: raw\\n")
    start(self)
threading.Thread.start = noisy_start
atexit.register(print, "noise: the end")
"""


async def test_stdout_holds_nothing_but_messages(tmp_path: Path) -> None:
    """STDIO-001, STDIO-002: with debug logging, and a library that prints."""
    noisy = tmp_path / "noisy"
    noisy.mkdir()
    (noisy / "sitecustomize.py").write_text(PRINTER)
    async with StdioProcess(small("--log-level", "debug", *NOW), tmp_path, PYTHONPATH=str(noisy)) as it:
        await it.initialize()
        await task(it, await task_of(it, 0))
        it.close_stdin()
        await it.read_to_end()
        await ended(it)
    assert it.lines
    for line in it.lines:
        jsonrpc.parse(line, 64)
    assert "noise: a thread is started" in it.log()
    assert "noise: the end" in it.log()


# ------------------------------------------------------------------------------- a second process


@pytest.mark.alone
async def test_a_second_process_is_quick_has_a_store_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    """AUTH-008: some clients start one just to ask `server/discover`; the first notices nothing, and the next
    start takes over what the second began."""
    async with StdioProcess(small(*NOW), tmp_path) as first:
        mine = await task_of(first, 300)
        began = time.monotonic()
        async with StdioProcess(small(*NOW), tmp_path) as probe:
            assert "result" in await probe.ask_modern(names.DISCOVER)
            took_s = time.monotonic() - began
            its = await task_of(probe, 0)
            await asked_until(lambda: task(probe, its), lambda t: t["status"] == "completed", "it ends")
            assert "error" in await probe.ask_modern(names.TASKS_GET, {"taskId": mine})
            probe.close_stdin()
            await ended(probe)
        print(f"server/discover was answered {took_s:.2f} s after the start")
        assert took_s < 5
        assert (await task(first, mine))["status"] == "working"
        await first.ask_modern(names.TASKS_CANCEL, {"taskId": mine})
        first.close_stdin()
        await ended(first)
    async with StdioProcess(small(*NOW), tmp_path) as later:
        assert (await task(later, mine))["status"] == "cancelled"
        assert (await task(later, its))["status"] == "completed"


@pytest.mark.alone
async def test_a_probe_that_is_ended_as_npm_clients_do_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM and the end of stdin at the same time; a second later comes SIGKILL. Not even a server that
    neither of the two makes go is left."""
    async with StdioProcess(small(), tmp_path) as first:
        await first.initialize()
        for _ in range(2):
            async with StdioProcess(proxied([*SMALL_SERVER, "--stubborn"]), tmp_path) as probe:
                await probe.ask_modern(names.DISCOVER)
                probe.send_signal(signal.SIGTERM)
                probe.close_stdin()
                assert await probe.exit_code(within_s=1) == 0
                await probe.nothing_is_left(within_s=LEFT_S)
        await first.ask("tools/list")


# ---------------------------------------------------------------------------------- fifty lives


LIVES: Final = 50
AT_A_TIME: Final = 2


async def live_once(home: Path, end: str, during: str) -> None:
    """One start, something to do, one end; afterwards nothing is left."""
    async with StdioProcess(small(*NOW), home, **{DRAIN: "200ms"}) as it:
        match during:
            case "idle":
                await it.ask_modern(names.DISCOVER)
            case "blocking call":
                await it.ask_modern(names.DISCOVER)
                await it.request(names.TOOLS_CALL, {**napping(300), names.META: meta(tasks=False)})
            case "task":
                await task_of(it, 300)
            case "legacy call":
                await it.initialize()
                await it.request(names.TOOLS_CALL, napping(300))
            case "starting":
                await it.request(names.DISCOVER, {names.META: meta()})
        match end:
            case "stdin closed":
                it.close_stdin()
                await it.exit_code(within_s=3 * EXIT_S)
            case "client killed":
                it.close_stdout()
                it.close_stdin()
                await it.exit_code(within_s=3 * EXIT_S)
            case "proxy killed":
                it.send_signal(signal.SIGKILL)
            case "SIGTERM":
                it.send_signal(signal.SIGTERM)
                await it.exit_code(within_s=3 * EXIT_S)
        await it.nothing_is_left(within_s=EXIT_S)


async def test_fifty_lives_leave_nothing_behind_and_a_store_that_can_be_used(tmp_path: Path) -> None:
    """F36. Of a client that is killed with -9, the proxy sees that both pipes are closed."""
    ends = ["stdin closed", "client killed", "proxy killed", "SIGTERM"]
    doings = ["nothing", "starting", "idle", "blocking call", "task", "legacy call"]
    lives = [(end, during) for end in ends for during in doings] * 3
    chosen = random.Random(0).sample(lives, LIVES)
    turns = anyio.CapacityLimiter(AT_A_TIME)
    async with StdioProcess(small(*NOW), tmp_path) as it:
        kept = await task_of(it, 0)
        await asked_until(lambda: task(it, kept), lambda t: t["status"] == "completed", "it ends")
        it.close_stdin()
        await ended(it)

    async def live(end: str, during: str) -> None:
        async with turns:
            await live_once(tmp_path, end, during)

    async with anyio.create_task_group() as group:
        for end, during in chosen:
            group.start_soon(live, end, during)

    async with StdioProcess(small(*NOW), tmp_path) as it:
        assert (await task(it, kept))["status"] == "completed"
        assert "Traceback" not in it.log()


KILLED_CLIENT: Final = """
import subprocess, sys, time
proxy = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in sys.stdin.buffer:
    proxy.stdin.write(line)
    proxy.stdin.flush()
    sys.stdout.buffer.write(proxy.stdout.readline())
    sys.stdout.flush()
"""


@pytest.mark.parametrize("during", ["idle", "call"])
async def test_a_client_that_is_killed_takes_the_proxy_with_it(tmp_path: Path, during: str) -> None:
    """F36: a real one, killed with -9."""
    command = [sys.executable, "-c", KILLED_CLIENT, *small()]
    async with StdioProcess(command, tmp_path) as it:
        await it.ask_modern(names.DISCOVER)
        if during == "call":
            await it.request(names.TOOLS_CALL, {**napping(300), names.META: meta(tasks=False)})
            await until(lambda: len(it.left()) >= 3, "client, proxy and server run")
        os.kill(it.pid, signal.SIGKILL)
        await it.exit_code(within_s=EXIT_S)
        await it.nothing_is_left(within_s=EXIT_S)
