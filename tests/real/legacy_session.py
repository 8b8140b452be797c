"""A session with a legacy stdio server and nothing in between: what upstream says by itself."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from subprocess import DEVNULL
from typing import Any, Final

import anyio
from anyio.abc import ByteReceiveStream, Process

from proxy.protocol import names

Asked = tuple[str, dict[str, Any]]
"""A method and its params."""

CLIENT: Final = {"name": "direct-legacy-client", "version": "1"}


async def answers(command: Sequence[str], requests: Sequence[Asked]) -> list[bytes]:
    """The raw response message to each request, all asked at once by a client that declares nothing."""
    async with await anyio.open_process(command, stderr=DEVNULL) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        found: dict[int, bytes] = {}
        lines = _lines(server.stdout)
        handshake = {"protocolVersion": names.LATEST_LEGACY, "capabilities": {}, "clientInfo": CLIENT}
        await _send(server, {"id": 0, "method": names.INITIALIZE, "params": handshake})
        await anext(lines)
        await _send(server, {"method": names.INITIALIZED})
        for number, (method, params) in enumerate(requests, start=1):
            await _send(server, {"id": number, "method": method, "params": params})
        async for line in lines:
            message = json.loads(line)
            if "id" in message and "method" not in message:
                found[message["id"]] = line
            if len(found) == len(requests):
                break
        await lines.aclose()
        await server.stdin.aclose()
    return [found[number] for number in range(1, len(requests) + 1)]


async def _send(server: Process, message: dict[str, Any]) -> None:
    assert server.stdin is not None
    await server.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


async def _lines(stream: ByteReceiveStream) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
