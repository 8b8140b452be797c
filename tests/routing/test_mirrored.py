"""What goes as headers beside a modern client's call to a modern server over HTTP.

Holds F32 of the field reports on our way out; Streamable HTTP 2026-07-28, "Custom Headers from Tool
Parameters".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from proxy.eras.era import Era
from proxy.protocol import names
from proxy.upstream.base import Headers
from proxy.upstream.probe import UpstreamEra
from tests.routing.bench import Bench, bench
from tests.routing.fake_server import TEXT, Call

pytestmark = pytest.mark.anyio

DISCOVERED: Final[dict[str, Any]] = {
    "resultType": "complete",
    "supportedVersions": [names.LATEST_MODERN],
    "capabilities": {"tools": {}},
}
DONE: Final = {**TEXT, "resultType": "complete"}


@asynccontextmanager
async def before_a_modern_server(**mirrored: str) -> AsyncIterator[Bench]:
    """Its tool `slow` wants these arguments as headers, too: argument -> header."""
    async with bench() as rig:
        rig.era, rig.has_headers = UpstreamEra(Era.MODERN), True
        rig.server.answers[names.DISCOVER] = DISCOVERED
        marks(rig, **mirrored)
        yield rig


def marks(rig: Bench, **mirrored: str) -> None:
    properties = {name: {"type": "string", "x-mcp-header": header} for name, header in mirrored.items()}
    schema = {"type": "object", "properties": properties}
    rig.server.answers[names.TOOLS_LIST] = {"tools": [{"name": "slow", "inputSchema": schema}]}


def headers(call: Call) -> Headers:
    return call.wire.headers[call.id]


def listed(rig: Bench) -> int:
    return sum(m.get("method") == names.TOOLS_LIST for wire in rig.server.wires for m in wire.heard)


async def test_a_client_on_stdio_has_none_so_they_are_built_from_the_arguments() -> None:
    """HTTP-042: nothing for what is absent or null."""
    async with before_a_modern_server(region="Region", zone="Zone", shelf="Shelf") as rig:
        sent = rig.client().call("slow", region="eu", zone=None)
        call = await rig.server.next_call()
        assert headers(call) == {"Mcp-Param-Region": "eu"}
        call.answer(DONE)
        await sent.result()


async def test_those_of_a_client_over_http_pass_for_the_server_to_judge() -> None:
    """HTTP-025: also wrong ones, and such as no tool asks for; the tool is not even looked up."""
    async with before_a_modern_server(region="Region") as rig:
        params = {"name": "slow", "arguments": {"region": "eu"}}
        given = {"mcp-param-region": "us", "mcp-param-other": "x"}
        sent = rig.client().start(names.TOOLS_CALL, params, headers=given)
        call = await rig.server.next_call()
        assert headers(call) == {"Mcp-Param-region": "us", "Mcp-Param-other": "x"}
        call.fail(-32020, "Header mismatch")
        status, error = await sent.error()
        assert (status, error["code"]) == (400, -32020)
        assert listed(rig) == 0
        assert rig.server.calls_seen == 1


async def test_what_the_server_refuses_is_built_anew_once_from_its_new_list() -> None:
    """HTTP-044, I2: it has not run."""
    async with before_a_modern_server(region="Region") as rig:
        sent = rig.client().call("slow", region="eu")
        first = await rig.server.next_call()
        marks(rig, region="Area")
        first.fail(-32020, "Header mismatch")
        second = await rig.server.next_call()
        assert headers(second) == {"Mcp-Param-Area": "eu"}
        second.fail(-32020, "Header mismatch")
        status, error = await sent.error()
        assert (status, error["code"]) == (400, -32020)
        assert rig.server.calls_seen == 2
