"""Five hundred slow calls at once, twice: every one ends with its own label, and nothing is left over.

Holds F39 and F40 of the field reports, and the load line of the first issue.
"""

from __future__ import annotations

import resource
from typing import Any, Final

import anyio
import pytest

from tests.real.bench import Bench
from tests.real.legacy import Transport
from tests.real.modern_client import ALL_INPUT, ModernClient
from tests.real.proxy_process import ProxyProcess
from tests.real.waiting import together, until

pytestmark = pytest.mark.anyio

SETTINGS: Final[dict[str, Any]] = {"tasks": {"threshold": "500ms"}}
CALLS: Final = 500
WORK_S: Final = 3
ROUND_BOUND_S: Final = 120
POLL_S: Final = 1.0
SETTLE_S: Final = 15.0  # idle upstream connections are dropped after 3 s
GROWTH: Final = 1.10

KINDS: Final = [(tasks, given) for tasks in (True, False) for given in ({}, ALL_INPUT)]
"""What clients declare: tasks or not, input or not."""


@pytest.fixture(autouse=True)
def _descriptors() -> None:
    """One connection a call: more than the usual soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))


async def label_of(client: ModernClient, label: str) -> str:
    """Call, wait for the task if it became one, and say the label that the result names."""
    answer = await client.call_tool("slow_compute", {"seconds": WORK_S, "label": label})
    if client.tasks:
        answer = await client.wait_task(answer.task_id, within_s=ROUND_BOUND_S, every_s=POLL_S)
    return answer.text.removeprefix("computed ").removesuffix(f" in {WORK_S} s")


async def one_round(proxy: ProxyProcess, number: int) -> None:
    """All calls at once, by one client of each kind in turn."""
    clients = [ModernClient(proxy.url, tasks=tasks, capabilities=given) for tasks, given in KINDS]
    labels = [f"round-{number}-call-{n}" for n in range(CALLS)]
    async with clients[0], clients[1], clients[2], clients[3]:
        with anyio.fail_after(ROUND_BOUND_S):
            said = await together(
                label_of(clients[n % len(clients)], label) for n, label in enumerate(labels)
            )
    assert said == labels


async def test_500_slow_calls_at_once_all_end_and_leave_nothing(bench: Bench, transport: Transport) -> None:
    legacy = await bench.legacy(transport)
    proxy = await bench.proxy(legacy.upstream, SETTINGS)
    for tasks, given in KINDS:
        client = await bench.client(proxy, tasks=tasks, capabilities=given)
        await client.call_tool("greet", {"name": "warm-up"})
    held, children = proxy.descriptors(), proxy.children()

    async def settled() -> None:
        await until(lambda: proxy.descriptors() <= held, "descriptors are given back", within_s=SETTLE_S)
        assert proxy.children() == children

    await one_round(proxy, 1)
    await settled()
    first_kib = proxy.rss_kib()
    await one_round(proxy, 2)
    await settled()

    assert proxy.rss_kib() <= first_kib * GROWTH
    started = legacy.labels("start")
    assert len(started) == 2 * CALLS
    assert set(started.values()) == {1}
