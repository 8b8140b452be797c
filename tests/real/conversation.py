"""A stdio client that writes the messages itself: it starts a command as a client's configuration says it."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import ByteReceiveStream, Process

from proxy.protocol import names

END_BOUND_S: Final = 15.0
CLIENT: Final = {"name": "stdio-client", "version": "1"}
META: Final[Mapping[str, Any]] = {
    names.META_PROTOCOL_VERSION: names.LATEST_MODERN,
    names.META_CLIENT_INFO: CLIENT,
    names.META_CLIENT_CAPABILITIES: {},
}


class Conversation:
    """With one process. It declares no capabilities; what the server asks or tells of itself is left out."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to = process.stdin
        self._lines = _lines(process.stdout)
        self._ids = itertools.count(1)

    async def ask(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The response message, a result or an error. Raises StopAsyncIteration if stdout ends before."""
        asked = next(self._ids)
        await self._send({"id": asked, "method": method, "params": dict(params or {})})
        while (message := json.loads(await anext(self._lines))).get("id") != asked or "method" in message:
            pass
        return dict(message)

    async def ask_modern(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """As `ask`, for a request of 2026-07-28."""
        return await self.ask(method, {**(params or {}), names.META: META})

    async def initialize(self) -> dict[str, Any]:
        """The handshake of 2025-11-25; the response to its first half."""
        params = {"protocolVersion": names.LATEST_LEGACY, "capabilities": {}, "clientInfo": CLIENT}
        answer = await self.ask(names.INITIALIZE, params)
        await self._send({"method": names.INITIALIZED})
        return answer

    async def _send(self, message: Mapping[str, Any]) -> None:
        await self._to.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def aclose(self) -> None:
        await self._lines.aclose()
        await self._to.aclose()


async def _lines(stream: ByteReceiveStream) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _said(log: Path) -> str:
    return log.read_text(errors="replace")


@asynccontextmanager
async def conversation(
    command: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: str = "/"
) -> AsyncIterator[Conversation]:
    """Start the command with this environment and no other; afterwards close its stdin, and it must end.

    Its stderr goes to `log`.
    """
    with log.open("ab") as stderr:
        async with await anyio.open_process(command, env=env, cwd=cwd, stderr=stderr) as process:
            talk = Conversation(process)
            yield talk
            await talk.aclose()
            with anyio.fail_after(END_BOUND_S):
                assert await process.wait() == 0, _said(log)
