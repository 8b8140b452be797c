"""The tools of a session as far as we must know them, from a server whose list is long, odd or missing."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from proxy.errors import UpstreamClosed, UpstreamTimeout
from proxy.protocol.param_headers import MirroredParam
from proxy.upstream import catalogue as catalogue_module
from proxy.upstream.catalogue import KEEP_FAILURE_S, KEEP_S, Catalogue
from tests.manual_clock import ManualClock
from tests.upstream.fake_ask import FakeUpstream
from tests.upstream.fake_transport import settle

pytestmark = pytest.mark.anyio

REGION = (MirroredParam("Region", ("region",)),)


def tool(name: Any, header: str | None = None) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": header}}}
    return {"name": name, "inputSchema": schema if header else {"type": "object"}}


class Bench:
    """A catalogue, its upstream, and somebody who looks a tool up."""

    def __init__(self) -> None:
        self.upstream = FakeUpstream()
        self.clock = ManualClock()
        self.catalogue = Catalogue(self.upstream.ask, self.clock)

    async def look_up(self, name: str, *pages: Any, first: int = 1) -> tuple[MirroredParam, ...]:
        """What is known of the tool, after the upstream has answered with these pages, if it is asked."""
        found: list[tuple[MirroredParam, ...]] = []

        async def look() -> None:
            found.append(await self.catalogue.mirrored(name))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(look)
                for n, page in enumerate(pages, first):
                    (await self.upstream.nth(n)).answer(page)
        return found[0]


async def test_every_page_is_walked() -> None:
    """F37: cursors are opaque, and the empty one is one."""
    bench = Bench()
    pages = [
        {"tools": [tool("a")], "nextCursor": "a/b=="},
        {"tools": [tool("b")], "nextCursor": ""},
        {"tools": [tool("c", "Region")]},
    ]
    assert await bench.look_up("c", *pages) == REGION
    assert [params for _, params in bench.upstream.said] == [None, {"cursor": "a/b=="}, {"cursor": ""}]
    assert await bench.look_up("a") == ()
    assert await bench.look_up("unknown") == ()


async def test_a_cursor_that_comes_again_ends_the_walk() -> None:
    """F37."""
    bench = Bench()
    page = {"tools": [tool("a", "Region")], "nextCursor": "0"}
    with capture_logs() as logs:
        assert await bench.look_up("a", page, page) == REGION
    assert [e["event"] for e in logs] == ["tools_list_cursor_repeated"]
    assert len(bench.upstream.asked) == 2


async def test_pages_without_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "MAX_PAGES", 3)
    bench = Bench()
    pages = [{"tools": [tool(f"t{n}", "Region")], "nextCursor": str(n)} for n in range(3)]
    assert await bench.look_up("t2", *pages) == REGION


async def test_it_is_kept_for_a_while() -> None:
    bench = Bench()
    assert await bench.look_up("a", {"tools": [tool("a", "Region")]}) == REGION
    bench.clock.jump(KEEP_S - 1)
    assert await bench.look_up("a") == REGION
    bench.clock.jump(1)
    assert await bench.look_up("a", {"tools": [tool("a")]}, first=2) == ()


async def test_a_change_makes_it_stale_at_once() -> None:
    bench = Bench()
    assert await bench.look_up("a", {"tools": [tool("a", "Region")]}) == REGION
    bench.catalogue.forget()
    assert await bench.look_up("a", {"tools": [tool("a")]}, first=2) == ()


async def test_a_change_while_it_is_loaded_makes_that_stale() -> None:
    """Pages before and after the change may contradict each other."""
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.catalogue.mirrored, "a")
        first = await bench.upstream.nth(1)
        bench.catalogue.forget()
        first.answer({"tools": [tool("a")]})
    assert await bench.look_up("a", {"tools": [tool("a", "Region")]}, first=2) == REGION


async def test_one_load_serves_all_who_wait_for_it() -> None:
    bench = Bench()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(bench.catalogue.mirrored, "a")
            (await bench.upstream.nth(1)).answer({"tools": []})
    assert len(bench.upstream.asked) == 1


async def test_whoever_goes_away_while_loading_leaves_nothing_wrong_behind() -> None:
    """The next one loads; an empty list must not count as known."""
    bench = Bench()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.catalogue.mirrored, "a")
            await bench.upstream.nth(1)
            tasks.cancel_scope.cancel()
    assert await bench.look_up("a", {"tools": [tool("a", "Region")]}, first=2) == REGION


@pytest.mark.parametrize("how", ["refused", "timed out", "died", "number"])
async def test_a_list_that_cannot_be_had_holds_up_one_call_only(how: str) -> None:
    """What was known before still counts."""
    bench = Bench()
    assert await bench.look_up("a", {"tools": [tool("a", "Region")]}) == REGION
    bench.catalogue.forget()
    with anyio.fail_after(5), capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.catalogue.mirrored, "a")
            request = await bench.upstream.nth(2)
            match how:
                case "refused":
                    request.refuse()
                case "number":
                    request.answer_raw(b'{"tools":[],"n":' + b"9" * 5_000 + b"}")
                case "died":
                    request.fail(UpstreamClosed("died"))
                case _:
                    request.fail(UpstreamTimeout("in time"))
    assert [e["event"] for e in logs] == ["tools_list_failed"]
    assert await bench.look_up("a") == REGION
    bench.clock.jump(KEEP_FAILURE_S)
    assert await bench.look_up("a", {"tools": []}, first=3) == ()


async def test_a_server_that_ignores_the_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6: also one that answers page after page, each just in time."""
    monkeypatch.setattr(catalogue_module, "LOAD_TIMEOUT_S", 0.02)
    bench = Bench()
    with anyio.fail_after(5), capture_logs() as logs:
        assert await bench.catalogue.mirrored("a") == ()
        assert await bench.catalogue.mirrored("a") == ()
    assert bench.upstream.asked[0].cancelled
    assert len(bench.upstream.asked) == 1
    assert [e["event"] for e in logs] == ["tools_list_failed"]
    await settle()


@pytest.mark.parametrize(
    "page",
    [
        *([], "x", None, 7, {}, {"tools": None}, {"tools": {}}, {"tools": [], "nextCursor": 3}),
        {"tools": [None, 1, "x", [], {}, {"name": 7}, {"name": "a"}, {"name": "a", "inputSchema": 1}]},
    ],
)
async def test_odd_lists_are_survived(page: Any) -> None:
    bench = Bench()
    assert await bench.look_up("a", page) == ()
