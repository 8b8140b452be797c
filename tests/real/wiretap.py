"""Records what the proxy says to an untouched upstream; that is how a test sees that a cancel arrived.

As a program it stands between the proxy and a stdio server, `wiretap.py RECORD CMD...`, and copies the
proxy's bytes to RECORD; the server's answers go past it. For HTTP, `relay` does the same for connections.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketStream, TaskStatus

CHUNK: Final = 65536
MESSAGE: Final = re.compile(rb'\{[^\n\r]*"jsonrpc"[^\n\r]*\}')


def wiretapped(record: Path, command: list[str]) -> list[str]:
    """The command that runs `command` with what is written to its stdin recorded."""
    return [sys.executable, __file__, str(record), *command]


def messages(record: Path) -> Iterator[dict[str, Any]]:
    """The JSON-RPC messages that the proxy sent, in order."""
    for found in MESSAGE.finditer(record.read_bytes()):
        yield json.loads(found.group())


async def relay(
    record: Path, to_port: int, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Forward connections to `to_port` until cancelled; started with the port it listens on."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def connected(client: SocketStream) -> None:
        server = await anyio.connect_tcp("127.0.0.1", to_port)
        async with client, server, anyio.create_task_group() as both:
            both.start_soon(_pump, client, server, record)
            await _pump(server, client, None)
            both.cancel_scope.cancel()

    async with listener:
        port: int = listener.extra(anyio.abc.SocketAttribute.local_port)
        task_status.started(port)
        await listener.serve(connected)


async def _pump(source: ByteReceiveStream, sink: ByteSendStream, record: Path | None) -> None:
    try:
        async for chunk in source:
            if record is not None:
                with record.open("ab") as file:
                    file.write(chunk)
            await sink.send(chunk)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # either side may hang up at any time


def main(record: str, command: list[str]) -> int:
    with subprocess.Popen(command, stdin=subprocess.PIPE) as server, open(record, "ab", buffering=0) as file:
        assert server.stdin is not None
        while chunk := os.read(sys.stdin.fileno(), CHUNK):
            file.write(chunk)
            server.stdin.write(chunk)
            server.stdin.flush()
        server.stdin.close()
        return server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
