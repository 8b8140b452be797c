"""A legacy client in front of a modern server, both played by the test: `LoweredTransport` is in between.

The client's messages go in by `send`; what it gets is written down by `Told`. The server is a
`FakeTransport` below the real session.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from proxy.eras.capabilities import ClientCapabilities
from proxy.eras.era import Era
from proxy.protocol import names
from proxy.protocol.envelope import dumps
from proxy.upstream.lowered import LoweredTransport
from proxy.upstream.pending import AskingTools
from proxy.upstream.probe import UpstreamEra
from proxy.upstream.session import ChangeListener, LegacySession
from tests.manual_clock import ManualClock
from tests.upstream.fake_transport import MAX_DEPTH, FakeTransport, Sent, until
from tests.upstream.told import Told

CLIENT: Final = {"name": "old", "version": "7"}
SERVER: Final = {"name": "new", "version": "9"}
DECLARED: Final[dict[str, Any]] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
FORM: Final = {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}
ANSWER: Final = {"action": "accept", "content": {"name": "Ada"}}
TASKS: Final[dict[str, Any]] = {"extensions": {names.TASKS_EXTENSION: {}}}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"resultType": "complete", "content": [{"type": "text", "text": words}], **more}


def asks(state: str | None = None, **requests: str) -> dict[str, Any]:
    """An InputRequiredResult: key -> method."""
    questions = {key: {"method": method, "params": FORM} for key, method in requests.items()}
    more = {} if state is None else {"requestState": state}
    return {"resultType": "input_required", "inputRequests": questions, **more}


@dataclass
class Lowered:
    """What the client sends and gets, and the server behind."""

    server: FakeTransport
    transport: LoweredTransport
    clock: ManualClock
    era: UpstreamEra
    told: Told = field(default_factory=Told)
    _last: int = 0

    async def send(self, method: str, params: Any = None) -> int:
        """A request of the client; our id of it. `params` are raw if they are bytes."""
        self._last += 1
        raw = params if isinstance(params, bytes) else None if params is None else dumps(params)
        tail = b"" if raw is None else b',"params":' + raw
        message = b'{"jsonrpc":"2.0","id":%d,"method":%s%s}' % (self._last, dumps(method), tail)
        await self.transport.send(message, call=self._last)
        return self._last

    async def call(self, tool: str = "tool", **more: Any) -> tuple[int, Sent]:
        """A tool is called, and the server has the call."""
        before = len(self.server.of(names.TOOLS_CALL))
        call = await self.send(names.TOOLS_CALL, {"name": tool, **more})
        return call, await self.server.asked(names.TOOLS_CALL, before + 1)

    async def cancel(self, call: int) -> None:
        await self.transport.send(
            dumps({"jsonrpc": "2.0", "method": names.CANCELLED, "params": {"requestId": call}})
        )

    async def reply(self, question: Mapping[str, Any], **tail: Any) -> None:
        """The client answers what it was asked."""
        await self.transport.send(dumps({"jsonrpc": "2.0", "id": question["id"], **tail}))

    def got(self, call: int | None = None) -> list[dict[str, Any]]:
        """What the client got, of one request or besides all of them."""
        return [json.loads(m) for m in self.told.of(call)]

    async def questions(self, call: int, number: int = 1) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            return [m for m in self.got(call) if "method" in m and "id" in m]

        await until(lambda: len(found()) >= number)
        return found()

    def withdrawn(self, call: int) -> list[Any]:
        told = [m["params"]["requestId"] for m in self.got(call) if m.get("method") == names.CANCELLED]
        return sorted(told)

    async def answer(self, call: int) -> dict[str, Any]:
        """The response to a request of the client."""

        def found() -> list[dict[str, Any]]:
            return [m for m in self.got(call) if m.get("id") == call and "method" not in m]

        await until(found)
        [answer] = found()
        return answer

    async def result(self, call: int) -> dict[str, Any]:
        answer = await self.answer(call)
        assert "result" in answer, answer
        return dict(answer["result"])

    async def error(self, call: int) -> dict[str, Any]:
        return dict((await self.answer(call))["error"])

    async def lost(self, call: int | None) -> str:
        await until(lambda: self.told.loss_of(call))
        return str(self.told.loss_of(call))

    async def greet(self, version: str = "2025-11-25", *, declared: Any = None, **said: Any) -> Any:
        """The client's handshake; `said` is what the server declares."""
        params = {
            "protocolVersion": version,
            "capabilities": DECLARED if declared is None else declared,
            "clientInfo": CLIENT,
        }
        call = await self.send(names.INITIALIZE, params)
        discovery = await self.server.asked(names.DISCOVER)
        self.server.answer(discovery, discovered(**said))
        return await self.result(call)


def discovered(**capabilities: Any) -> dict[str, Any]:
    return {
        "resultType": "complete",
        "supportedVersions": [names.LATEST_MODERN],
        "capabilities": {"tools": {}, **capabilities},
        "instructions": "be kind",
        "ttlMs": 1,
        "cacheScope": "public",
        "_meta": {names.META_SERVER_INFO: SERVER},
    }


@asynccontextmanager
async def lowered(*, has_headers: bool = False) -> AsyncIterator[Lowered]:
    """A started transport, not yet greeted; closed in order at the end, when all was told once."""
    server, clock, era = FakeTransport(), ManualClock(), UpstreamEra()
    era.found(Era.MODERN)

    def make_session(capabilities: ClientCapabilities, on_stray: ChangeListener) -> LegacySession:
        return LegacySession(
            server,
            name="fake",
            capabilities=capabilities,
            client_version="0",
            asking=AskingTools(lambda tool: False),
            clock=clock,
            max_depth=MAX_DEPTH,
            start_timeout_s=5.0,
            on_change=lambda method, params: None,
            era=era,
            has_headers=has_headers,
            on_stray=on_stray,
        )

    transport = LoweredTransport(make_session, name="fake", clock=clock, max_depth=MAX_DEPTH)
    scene = Lowered(server, transport, clock, era)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            await tasks.start(transport.run, scene.told)
            yield scene
            transport.close()
    assert [call for call, _ in scene.told.losses].count(None) == 1


@asynccontextmanager
async def greeted(*, has_headers: bool = False, declared: Any = None, **said: Any) -> AsyncIterator[Lowered]:
    """After the client's handshake with a server that declares `said`."""
    async with lowered(has_headers=has_headers) as scene:
        await scene.greet(declared=declared, **said)
        yield scene
