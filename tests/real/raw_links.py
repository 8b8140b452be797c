"""Clients that send a text and get texts: nothing in them reads a message to write one.

One posts to the proxy's HTTP endpoint, one writes to the stdin of a proxy. Both are for one message at a
time: `send` it, then `receive` what is said until the answer has come.
"""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import anyio
from anyio.abc import ByteReceiveStream, Process

from proxy.protocol import names
from tests.real.modern_client import EVENT_STREAM
from tests.real.upstreams.raw_json import flat, meaning, value
from tests.setup_tools import TESTS

ANSWER_BOUND_S: Final = 40.0
END_BOUND_S: Final = 15.0


class Link(Protocol):
    """Towards the proxy."""

    one_line: bool
    """Whether a message must stand on one line."""

    async def send(self, message: bytes) -> None: ...

    async def receive(self) -> bytes:
        """The next message of the proxy."""
        ...


class HttpLink:
    """Modern messages, each a POST of its own."""

    one_line = False

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self._url = url
        self._client = client
        self._received: deque[bytes] = deque()
        self.status = 0

    async def send(self, message: bytes) -> None:
        with anyio.fail_after(ANSWER_BOUND_S):
            async with self._client.post(self._url, data=message, headers=_headers(message)) as response:
                self.status = response.status
                body = await response.read()
        if response.content_type == EVENT_STREAM:
            self._received += _events(body)
        elif body:
            self._received.append(body)

    async def receive(self) -> bytes:
        return self._received.popleft()


def _headers(message: bytes) -> dict[str, str]:
    method = meaning(value(message, "method") or b'""')
    headers = {
        "Accept": f"application/json, {EVENT_STREAM}",
        "Content-Type": "application/json",
        names.H_PROTOCOL_VERSION: names.LATEST_MODERN,
        names.H_METHOD: method,
    }
    if (member := names.NAME_MEMBER.get(method)) is not None:
        headers[names.H_NAME] = meaning(value(message, "params", member) or b'""')
    return headers


def _events(body: bytes) -> list[bytes]:
    """The data of each event; one line each, as we promise to write them (F21)."""
    assert b"\r" not in body
    blocks = [block.split(b"\n") for block in body.removesuffix(b"\n\n").split(b"\n\n")]
    data = [[line for line in block if line.startswith(b"data:")] for block in blocks]
    assert all(len(lines) <= 1 for lines in data)
    return [lines[0].removeprefix(b"data: ") for lines in data if lines]


class StdioLink:
    """Messages of either era, on the pipes of one process."""

    one_line = True

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout: ByteReceiveStream = process.stdout
        self._rest = b""
        self._lines: deque[bytes] = deque()

    async def send(self, message: bytes) -> None:
        with anyio.fail_after(ANSWER_BOUND_S):
            await self._stdin.send(flat(message) + b"\n")

    async def receive(self) -> bytes:
        with anyio.fail_after(ANSWER_BOUND_S):
            while not self._lines:
                *lines, self._rest = (self._rest + await self._stdout.receive()).split(b"\n")
                self._lines += lines
        return self._lines.popleft()

    async def aclose(self) -> None:
        await self._stdin.aclose()


@asynccontextmanager
async def http_link(url: str) -> AsyncIterator[HttpLink]:
    async with aiohttp.ClientSession() as client:
        yield HttpLink(url, client)


@asynccontextmanager
async def stdio_link(command: Sequence[str], log: Path) -> AsyncIterator[StdioLink]:
    """Start a proxy; afterwards its stdin is closed, and it must end."""
    with log.open("ab") as stderr:
        async with await anyio.open_process(
            command, stderr=stderr, stdout=subprocess.PIPE, cwd=TESTS.parent, env=os.environ
        ) as process:
            link = StdioLink(process)
            try:
                yield link
            finally:
                await link.aclose()
                with anyio.move_on_after(END_BOUND_S, shield=True):
                    await process.wait()
