"""What is treated specially, and what has no row and goes upstream."""

from __future__ import annotations

import pytest

from tests.routing.bench import bench

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "method",
    [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/result",
        "tasks/list",
    ],
)
async def test_methods_of_older_revisions_are_unknown(method: str) -> None:
    """HTTP-018, TX-CAP-013, VER-005."""
    async with bench() as rig:
        status, error = await rig.client().start(method).error()
        assert (status, error["code"]) == (404, -32601)
        assert not rig.server.wires


async def test_a_method_invented_next_year_goes_upstream() -> None:
    async with bench() as rig:
        sent = rig.client().start("next/year", {"a": 1})
        call = await rig.server.next_call()
        assert (call.method, call.params) == ("next/year", {"a": 1})
        call.answer({"b": 2})
        assert (await sent.result())["b"] == 2
