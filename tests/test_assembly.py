"""Which bounds the parts share, by the configuration. Contract sections 8 and 11."""

from __future__ import annotations

from typing import Final

import pytest

from proxy.assembly import assemble, policy_of
from proxy.config import Config
from proxy.downstream.pipes import LineWriter
from proxy.metrics import Metrics
from proxy.owners import Owner
from proxy.stores.memory import MemoryStore
from proxy.upstream.http import make_client
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

ADA: Final = Owner("ada")
BOUNDS: Final = {"calls": 7, "requests": 5, "listens": 3}


async def test_all_that_runs_calls_shares_one_bound_and_all_http_requests_another() -> None:
    """SEC-003: nobody gets the bound twice, by way of a session beside tasks; the metrics show both."""
    config = Config.model_validate({"upstream": {"command": ["true"]}, "limits": BOUNDS})
    clock, metrics = ManualClock(), Metrics()
    store = MemoryStore(clock)
    async with make_client() as client:
        parts = await assemble(config, policy_of(config), store, client, clock, metrics)
        layer = parts.legacy.session_layer()
        endpoint = parts.http_endpoint(layer)
        assert layer._calls is parts.runner._bound
        assert layer._requests is endpoint._requests is not layer._calls
        for _ in range(2):
            layer._calls.count(ADA)
        layer._requests.count(ADA)
        shown = metrics.text().decode().splitlines()
        assert {"mcp_taskproxy_calls_in_flight 2.0", "mcp_taskproxy_http_requests 1.0"} <= set(shown)
        stdio = parts.stdio_endpoint(LineWriter(1))
        assert stdio._settings.max_in_flight == BOUNDS["requests"]
