"""Legacy clients over HTTP before servers that have no HTTP sessions of their own: stdio, and HTTP+SSE.

Holds F02, F04, F05, F16, F24, F25, F38, F40 on a real wire, the rows "upstream process dies" and "proxy
killed" of the contract's section 9, HTTP-060 to HTTP-071, PING-001, PING-002, VER-006 and VER-019.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from proxy.protocol import names
from tests.real.bench import Bench
from tests.real.idle_relay import idle_relay
from tests.real.legacy import Legacy
from tests.real.processes import Program, accepts
from tests.real.proxy_process import EXIT_BOUND_S, ProxyProcess
from tests.real.session_client import CAN, STREAM, SessionClient, connected, text
from tests.real.soak import soak
from tests.real.task_client import Kind, task_client
from tests.real.test_conformance import verdicts
from tests.real.waiting import together, until
from tests.setup_tools import TESTS

pytestmark = pytest.mark.anyio

SMALL: Final = [sys.executable, str(TESTS / "real" / "small_server.py")]
PINGING: Final = [sys.executable, str(TESTS / "real" / "upstreams" / "pinging.py")]
AT_ONCE_S: Final = 3.0
MANY: Final = 40
SLOW_READER_KIB: Final = 50 * 1024


async def before_sse(bench: Bench, *switches: str) -> tuple[ProxyProcess, Legacy]:
    """A proxy before the fixture over HTTP+SSE, which it has to find out."""
    legacy = Legacy("stdio", bench.home, "--pre-delay", "0", *switches)
    server = Program([*legacy.command("sse"), "--port", str(legacy.port)], log=bench.home / "legacy.log")
    bench.stack.push_async_callback(server.stop)
    await until(lambda: accepts(legacy.port), "the server listens", within_s=20)
    return await bench.proxy(f"http://127.0.0.1:{legacy.port}/sse"), legacy


@asynccontextmanager
async def session(proxy: ProxyProcess, version: str = names.LATEST_LEGACY) -> AsyncIterator[SessionClient]:
    async with connected(proxy.url) as client:
        await client.initialize(version, **CAN)
        yield client


# ------------------------------------------------------------------------------------- the suite


REVISION: Final = "2025-11-25"
SCENARIOS: Final = 33
"""Of the newest revision; those of 2025-06-18 are among them, and each starts a server, for a second or so.
`test_http_legacy` runs both, where no server has to be started."""


async def test_the_conformance_suite_passes_before_a_stdio_server(bench: Bench) -> None:
    """Meanwhile a call is quiet for longer than what stands in the middle bears (F03)."""
    legacy = await bench.legacy("stdio")
    proxy = await bench.proxy(legacy.upstream)
    async with anyio.create_task_group() as group:
        for revision in ("2025-06-18", REVISION):
            group.start_soon(quiet_call, proxy, revision)

        found = await verdicts(proxy.url, bench.home, f"core-{REVISION}")

    assert (found["FAIL"], found["SKIP"]) == ([], [])
    assert len(found["PASS"]) == SCENARIOS


async def quiet_call(proxy: ProxyProcess, version: str) -> None:
    async with (
        idle_relay(proxy.port, patience_s=20) as port,
        connected(f"http://127.0.0.1:{port}/mcp") as client,
    ):
        await client.initialize(version)
        slow = {"name": "slow_compute", "arguments": {"seconds": 26, "label": "quiet"}}
        async with client.listening() as get, client.asking(names.TOOLS_CALL, slow) as call:
            assert text(await call.all(within_s=60)) == "computed quiet in 26 s"
            assert call.is_stream
            await client.call("test_trigger_tool_change")
            await get.until(names.TOOLS_LIST_CHANGED, within_s=AT_ONCE_S)


# ---------------------------------------------------------------------------------- real clients


async def plain_client(kind: Kind, url: str, home: Path) -> None:
    """What a client does that knows nothing of tasks; the proxy must not be noticed."""
    async with task_client(kind, {"url": url}, home) as client:
        assert (await client.connect())["version"] in names.LEGACY_VERSIONS
        assert {"greet", "confirm_delete"} <= {tool["name"] for tool in await client.tools()}
        greeted = await client.call("greet", name="Ada")
        assert greeted["content"][0]["text"] == "Hello, Ada!"
        deleted = await client.call("confirm_delete", filename="f")
        assert deleted["content"][0]["text"] == "deleted f"
        assert (await client.call("sample_llm", prompt="x"))["content"][0]["text"].endswith("42")
        assert "file:///home" in (await client.call("list_roots"))["content"][0]["text"]
        assert "file:///home" in (await client.call("list_roots", related=False))["content"][0]["text"]
        await client.call("log_messages", count=3, delay=0.01)
        await client.call("progress_job", steps=3, delay=0.01)
        assert client.events("complained") == []
        await client.close()
        assert len(client.events("logged")) == 3
        assert [event["progress"] for event in client.events("progress")] == (
            [0, 1, 2, 3] if kind == "npm1" else []
        )


@pytest.mark.parametrize("kind", ["sdk1", "npm1"])
async def test_plain_clients_are_served_before_stdio_and_leave_nothing(bench: Bench, kind: Kind) -> None:
    legacy = await bench.legacy("stdio", "--pre-delay", "0")
    proxy = await bench.proxy(legacy.upstream)
    await plain_client(kind, proxy.url, bench.home)
    await proxy.children_end(within_s=AT_ONCE_S)


@pytest.mark.parametrize("kind", ["sdk1", "npm1"])
async def test_plain_clients_are_served_before_http_sse(bench: Bench, kind: Kind) -> None:
    """The proxy finds out at the first handshake that the server is an old one."""
    proxy, _ = await before_sse(bench, "--max-protocol", "2024-11-05")
    await plain_client(kind, proxy.url, bench.home)


# -------------------------------------------------------------------------------------- sessions


async def test_a_session_from_its_handshake_to_its_end(bench: Bench) -> None:
    """HTTP-060, HTTP-061, HTTP-070, HTTP-071, VER-006, VER-019, PING-002, F25."""
    proxy = await bench.proxy((await bench.legacy("stdio")).upstream)
    async with connected(proxy.url) as client:
        assert await client.status_of("POST") == 400
        assert await client.status_of("GET", Accept=STREAM) == 400
        assert await client.status_of("DELETE") == 400
        assert (await client.initialize())["serverInfo"]["name"] == "legacy-fixture"
        assert client.session_id is not None
        assert client.session_id.isascii()
        assert client.session_id.isprintable()
        assert (await client.request(names.PING))[-1]["result"] == {}
        assert await client.status_of("GET", Accept="application/json") == 406
        assert await client.status_of("POST", MCP_Protocol_Version="2024-01-01") == 400
        assert await client.status_of("POST", MCP_Protocol_Version="2025-06-18") == 200
        assert await client.status_of("POST", Authorization="Bearer of-somebody-else") == 404
        assert await client.status_of("PUT") == 405
        await client.tell({"id": "never asked", "result": {}}, {"method": names.CANCELLED, "params": {}})
        assert len(proxy.children()) == 1
        assert await client.status_of("DELETE") == 200
        for method in ("POST", "GET", "DELETE"):
            assert await client.status_of(method, Accept=STREAM) == 404
        await proxy.children_end(within_s=AT_ONCE_S)
        assert text(await again(client)) == "Hello, again!"


async def again(client: SessionClient) -> list[dict[str, Any]]:
    await client.initialize()
    return await client.call("greet", name="again")


async def test_two_sessions_are_two_servers_whose_ids_tokens_and_cancellations_stay_apart(
    bench: Bench,
) -> None:
    """F02, F04, F05."""
    legacy = await bench.legacy("stdio", "--pre-delay", "0")
    proxy = await bench.proxy(legacy.upstream)
    async with session(proxy) as a, session(proxy, "2025-06-18") as b:
        slow = {"name": "cancellable_job", "arguments": {"seconds": 60, "label": "a"}}
        steps = {"steps": 3, "delay": 0.05}
        async with a.asking(names.TOOLS_CALL, slow, rid=101) as job:
            await legacy.happened("start", "a")
            progress = {"name": "progress_job", "arguments": steps, "_meta": {"progressToken": "p-1"}}
            ticks = await b.request(names.TOOLS_CALL, progress, rid=101)
            unasked = await b.request(names.TOOLS_CALL, {"name": "progress_job", "arguments": steps}, rid=102)
            await a.tell({"method": names.CANCELLED, "params": {"requestId": 101}})
            [ended] = await job.all(within_s=AT_ONCE_S)
        await until(lambda: legacy.labels("cancelled") == {"a": 1}, "the server was told")
    assert [m["params"]["progressToken"] for m in ticks[:-1]] == ["p-1"] * 4
    assert [m["params"]["progress"] for m in ticks[:-1]] == [0, 1, 2, 3]
    assert ticks[-1]["id"] == ended["id"] == 101
    assert "error" in ended
    assert [m["id"] for m in unasked] == [102]


async def test_a_client_that_loses_its_socket_comes_back_for_the_rest(bench: Bench) -> None:
    """F24, HTTP-063: before any event, after the first, and after the answer was written but not read."""
    legacy = await bench.legacy("stdio", "--pre-delay", "0")
    proxy = await bench.proxy(legacy.upstream)
    job = {
        "name": "progress_job",
        "arguments": {"steps": 3, "delay": 0.2},
        "_meta": {"progressToken": "t"},
    }
    async with session(proxy) as client, session(proxy) as other:

        async def cut(seen: int) -> str:
            """Drop the socket after so many events; the id of the last one of them."""
            async with client.asking(names.TOOLS_CALL, job) as lost:
                assert lost.is_stream
                while len(lost.events) < seen:
                    await lost.message()
                return lost.events[seen - 1].id or ""

        async def rest(event_id: str) -> list[Any]:
            async with client.listening(event_id) as resumed:
                return [m.get("params", {}).get("progress", "answer") for m in await resumed.all()]

        async with client.asking(names.TOOLS_CALL, job) as whole:
            heard = await whole.all()
            ids = [event.id for event in whole.events]
        assert len(heard) == 5
        assert await rest(ids[0] or "") == [0, 1, 2, 3, "answer"]
        assert await rest(ids[-2] or "") == ["answer"]
        assert await rest(ids[-1] or "") == []
        assert await rest(await cut(1)) == [0, 1, 2, 3, "answer"]
        assert await rest(await cut(2)) == [1, 2, 3, "answer"]
        assert [e.retry_ms for e in whole.events[:2]] == [1_000, None]
        assert whole.events[0].data == b""
        for event_id in ("garbage", ids[1]):
            teller = client if event_id == "garbage" else other
            async with teller.exchange("GET", Accept=STREAM, Last_Event_ID=event_id) as refused:
                assert refused.status == 400
    assert legacy.labels("cancelled") == {}


async def test_list_changes_updates_and_logs_reach_who_listens_and_a_new_server_knows_what_the_old_one_knew(
    bench: Bench,
) -> None:
    """F38, and "upstream process dies": the call is answered at once, the session goes on."""
    legacy = await bench.legacy("stdio", "--pre-delay", "0")
    proxy = await bench.proxy(legacy.upstream)
    async with session(proxy) as client, client.listening() as get:
        await client.request("resources/subscribe", {"uri": "test://watched-resource"})
        await client.request("logging/setLevel", {"level": "warning"})
        for tool, method in [
            ("test_trigger_tool_change", names.TOOLS_LIST_CHANGED),
            ("test_trigger_prompt_change", names.PROMPTS_LIST_CHANGED),
            ("touch_resource", names.RESOURCES_UPDATED),
        ]:
            await client.call(tool)
            await get.until(method, within_s=AT_ONCE_S)
        [old] = proxy.children()
        slow = {"name": "slow_compute", "arguments": {"seconds": 60, "label": "lost"}}
        async with client.asking(names.TOOLS_CALL, slow) as call:
            await legacy.happened("start", "lost")
            with anyio.fail_after(AT_ONCE_S):
                os.kill(old, signal.SIGKILL)
                [answer] = await call.all()
        assert answer["error"]["code"] == -32603
        assert "SIGKILL" in answer["error"]["message"]

        touched = text(await client.call("touch_resource"))
        assert touched == "touched test://watched-resource (subscribers: 1)"
        for method in (names.TOOLS_LIST_CHANGED, names.RESOURCES_UPDATED):
            await get.until(method, within_s=AT_ONCE_S)
        logged = await client.call("log_messages", count=1, level="info", delay=0)
        assert [m.get("method") for m in logged] == [None], "the level is the client's"
        assert legacy.labels("start")["lost"] == 1
        [new] = proxy.children()
        assert new != old


async def test_a_server_that_pings_is_answered_with_and_without_a_client(bench: Bench) -> None:
    """F16, PING-001: it hangs up on whoever does not answer within a second."""
    proxy = await bench.proxy(PINGING)
    async with session(proxy) as client:
        async with client.listening():
            await client.call("count", after=0.5)
        before = int(text(await client.call("count", after=0.5)))
        after = int(text(await client.call("count", after=0.5)))
        assert after > before > 0


async def test_a_proxy_that_was_killed_says_404_and_the_client_begins_anew(bench: Bench) -> None:
    """Contract section 9: sessions that we hold are gone; nothing of them is left."""
    proxy = await bench.proxy((await bench.legacy("stdio")).upstream)
    async with session(proxy) as client:
        async with client.listening() as get:
            event_id = get.last_id if get.events else "x-0-0"
            await proxy.kill9()
        await proxy.children_end(within_s=EXIT_BOUND_S)
        await proxy.restart()
        for method in ("POST", "GET", "DELETE"):
            assert await client.status_of(method, Accept=STREAM, Last_Event_ID=event_id) == 404
        assert text(await again(client)) == "Hello, again!"


async def test_sigterm_ends_streams_and_servers_and_lets_a_call_finish(bench: Bench) -> None:
    """F41."""
    proxy = await bench.proxy(SMALL)
    async with session(proxy) as client, session(proxy) as other, AsyncExitStack() as stack:
        get = await stack.enter_async_context(client.listening())
        ends = await stack.enter_async_context(
            client.asking(names.TOOLS_CALL, {"name": "nap", "arguments": {"seconds": 0.5}})
        )
        lasts = await stack.enter_async_context(
            other.asking(names.TOOLS_CALL, {"name": "nap", "arguments": {"seconds": 300}})
        )
        with anyio.fail_after(EXIT_BOUND_S + 1):
            async with anyio.create_task_group() as group:
                group.start_soon(proxy.terminate)
                assert await get.all() == []
                assert [m["result"]["isError"] for m in await ends.all()] == [False]
                [cut_off] = await lasts.all()
                assert "shutting down" in cut_off["error"]["message"]
    assert proxy.children() == []


# ---------------------------------------------------------------------------------------- bounds


async def test_many_clients_with_open_streams_all_get_their_answers(bench: Bench) -> None:
    """F40: also health is reachable; and one client's 200 streams are one."""
    proxy = await bench.proxy(SMALL, {"limits": {"sessions": MANY, "listens": MANY + 20}})
    async with AsyncExitStack() as stack:

        async def one() -> SessionClient:
            client = await stack.enter_async_context(connected(proxy.url))
            await client.initialize()
            await stack.enter_async_context(client.listening())
            return client

        clients = await together(one() for _ in range(MANY))
        with anyio.fail_after(20):
            await together(client.call("nap", seconds=0.1) for client in clients)
        assert len(proxy.children()) == MANY
        assert proxy.is_ready()
        async with clients[0].exchange(
            "POST", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}, Mcp_Session_Id=None
        ) as refused:
            assert refused.status == 503
            assert int(refused.headers["Retry-After"]) > 0
        for _ in range(200):
            await stack.enter_async_context(clients[0].listening())
        await stack.enter_async_context(clients[1].listening())


async def test_a_client_that_stops_reading_a_large_answer_does_not_hold_up_others(bench: Bench) -> None:
    """F40."""
    legacy = await bench.legacy("stdio")
    proxy = await bench.proxy(legacy.upstream)
    async with session(proxy) as client, session(proxy) as other:
        large = {"name": "return_large_text", "arguments": {"kib": SLOW_READER_KIB}}
        async with client.asking(names.TOOLS_CALL, large):
            with anyio.fail_after(AT_ONCE_S):
                assert text(await other.call("greet", name="Bob")) == "Hello, Bob!"
        assert text(await client.call("greet", name="Ada")) == "Hello, Ada!"


async def test_sessions_that_clients_just_leave_are_given_back(tmp_path: Path) -> None:
    """F39, in short: `python -m tests.real.soak` is the long one."""
    assert (await soak(tmp_path, rounds=3, sessions=24)).faults() == []
