"""stdio towards a client: who a message belongs to, what is said to it, and how it all ends.

The router is a script, the writer keeps what it is given, and a legacy client's server is a fake transport.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, cast

import anyio
import pytest
from anyio.streams.memory import MemoryObjectSendStream
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.downstream.exchange import MAX_QUEUED
from proxy.downstream.pipes import LineWriter
from proxy.downstream.stdio import LOCAL_USER, StdioEndpoint, StdioSettings
from proxy.eras.attribution import AskingTools
from proxy.errors import UpstreamClosed
from proxy.metrics import Metrics
from proxy.protocol import names
from proxy.routing.base import Answer, ClientRequest, ResultAnswer, Sink
from proxy.routing.own_server import Client as LegacyClient
from proxy.routing.passthrough import Passthrough
from proxy.routing.router import Router
from proxy.upstream.health import Health
from tests.manual_clock import ManualClock
from tests.scrape import Scraped
from tests.upstream.fake_transport import FakeTransport, initialize_result, settle, until

pytestmark = pytest.mark.anyio

MAX_BYTES: Final = 4_096
MODERN: Final[Mapping[str, Any]] = {
    names.META_PROTOCOL_VERSION: names.LATEST_MODERN,
    names.META_CLIENT_CAPABILITIES: {},
}
HANDSHAKE: Final[Mapping[str, Any]] = {
    "protocolVersion": names.LATEST_LEGACY,
    "capabilities": {},
    "clientInfo": {"name": "old", "version": "1"},
}


class Paper(LineWriter):
    """Keeps what is sent; a client that has read it all."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.said: list[dict[str, Any]] = []
        self.somebody_reads = True
        self.is_read = anyio.Event()
        self.is_read.set()

    def send(self, message: bytes) -> None:
        self.said.append(json.loads(message))
        self.wrote = True

    async def room(self) -> None:
        """There is."""

    async def written(self) -> None:
        await self.is_read.wait()

    def has_reader(self) -> bool:
        return self.somebody_reads

    def close(self) -> None:
        self.done.set()

    async def run(self) -> None:
        await self.done.wait()


@dataclass(eq=False)
class Handled:
    """A request on its way through the router."""

    request: ClientRequest
    sink: Sink
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer | Exception | None = None
    cancelled: bool = False

    def finish(self, answer: bytes | Exception = b"{}") -> None:
        self.answer = ResultAnswer(answer) if isinstance(answer, bytes) else answer
        self.answered.set()


@dataclass(eq=False)
class ScriptedRouter:
    """The test says what becomes of each request."""

    handled: dict[int | str, Handled] = field(default_factory=dict)

    async def handle(self, request: ClientRequest, sink: Sink) -> Answer:
        one = self.handled[request.id.value] = Handled(request, sink)
        try:
            await one.answered.wait()
        except anyio.get_cancelled_exc_class():
            one.cancelled = True
            raise
        if isinstance(one.answer, Exception):
            raise one.answer
        assert one.answer is not None
        return one.answer


@dataclass(eq=False)
class Client:
    """The client at the other end of the pipes, and what stands behind the endpoint."""

    endpoint: StdioEndpoint
    router: ScriptedRouter
    paper: Paper
    servers: list[FakeTransport]
    stdin: MemoryObjectSendStream[bytes]
    metrics: Metrics
    served: anyio.Event = field(default_factory=anyio.Event)

    @property
    def said(self) -> list[dict[str, Any]]:
        return self.paper.said

    @property
    def server(self) -> FakeTransport:
        return self.servers[-1]

    async def write(self, text: bytes) -> None:
        await self.stdin.send(text)
        await settle()

    async def send(self, *messages: Mapping[str, Any]) -> None:
        """In one chunk."""
        await self.write(b"".join(json.dumps({"jsonrpc": "2.0", **m}).encode() + b"\n" for m in messages))

    async def ask(self, id: int | str, method: str = names.TOOLS_CALL) -> Handled:
        """A modern request; returns when the router has it."""
        await self.send(modern(id, method))
        await until(lambda: id in self.router.handled)
        return self.router.handled[id]

    async def shake_hands(self, version: str = names.LATEST_LEGACY) -> FakeTransport:
        """The legacy handshake, with what was said for it taken off the paper."""
        await self.send(legacy(0, names.INITIALIZE, HANDSHAKE))
        await until(lambda: self.servers)
        self.server.answer(await self.server.asked(names.INITIALIZE), initialize_result(version))
        await self.send({"method": names.INITIALIZED})
        await self.server.asked(names.INITIALIZED)
        assert self.said.pop()["id"] == 0
        return self.server

    async def hang_up(self) -> None:
        await self.stdin.aclose()
        with anyio.fail_after(5):
            await self.served.wait()

    def answers_to(self, id: int | str | None) -> list[dict[str, Any]]:
        return [m for m in self.said if "method" not in m and m.get("id") == id]

    def error_codes(self) -> list[int]:
        return [m["error"]["code"] for m in self.said]


def modern(
    id: int | str, method: str = names.TOOLS_CALL, params: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return legacy(id, method, {"name": "train", **(params or {}), names.META: MODERN})


def legacy(id: int | str, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"id": id, "method": method, **({} if params is None else {"params": params})}


def cancel(id: Any) -> dict[str, Any]:
    return {"method": names.CANCELLED, "params": {"requestId": id}}


@asynccontextmanager
async def client(*, max_in_flight: int = 100, starts: anyio.Event | None = None) -> AsyncIterator[Client]:
    """One that is served until the end of the context at the latest. `starts`: a legacy server takes until
    then."""
    router, paper, servers, metrics = ScriptedRouter(), Paper(), list[FakeTransport](), Metrics()

    def make_transport() -> FakeTransport:
        servers.append(FakeTransport(starts=starts))
        return servers[-1]

    def make_passthrough(lines: LegacyClient) -> Passthrough:
        return Passthrough(
            make_transport,
            lines,
            name="fake",
            clock=ManualClock(),
            max_depth=64,
            start_timeout_s=5,
            asking=AskingTools(lambda tool: False),
            health=Health(ManualClock()),
        )

    limits = StdioSettings(MAX_BYTES, 64, lambda: names.MODERN_VERSIONS, max_in_flight)
    endpoint = StdioEndpoint(cast(Router, router), make_passthrough, paper, limits, ManualClock(), metrics)
    stdin, chunks = anyio.create_memory_object_stream[bytes](100)
    it = Client(endpoint, router, paper, servers, stdin, metrics)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                async with chunks:
                    await endpoint.serve(chunks, endpoint.wait_idle)  # as `app` does
                it.served.set()

            tasks.start_soon(serve)
            yield it
            await stdin.aclose()
            endpoint.drain()
            await it.served.wait()


# ------------------------------------------------------------------------------------ modern requests


async def test_requests_run_at_the_same_time_and_are_answered_as_they_end() -> None:
    async with client() as it:
        first, second = await it.ask(1), await it.ask("1")
        second.finish(b'{"n":2}')
        await until(lambda: it.said)
        first.finish(b'{"n":1}')
        await until(lambda: len(it.said) == 2)
    assert [(m["id"], m["result"]["n"]) for m in it.said] == [("1", 2), (1, 1)]


async def test_the_owner_is_the_local_user() -> None:
    """AUTH-008."""
    async with client() as it:
        assert (await it.ask(1)).request.owner == LOCAL_USER


async def test_an_id_in_flight_is_refused_and_its_request_goes_on() -> None:
    async with client() as it:
        first = await it.ask(1)
        await it.send(modern(1))
        assert it.error_codes() == [-32600]
        first.finish()
        await until(lambda: len(it.said) == 2)
        (await it.ask(1)).finish()
        await until(lambda: len(it.said) == 3)
    assert [m["result"] for m in it.said[1:]] == [{}, {}]


async def test_notifications_of_a_request_come_before_its_answer() -> None:
    async with client() as it:
        one = await it.ask(1)
        one.sink.notify(names.PROGRESS, b'{"progress":1}')
        await until(lambda: it.said)
        one.sink.notify(names.PROGRESS, b'{"progress":2}')
        one.finish()
        await until(lambda: len(it.said) == 3)
    assert [m.get("params", {}).get("progress") for m in it.said] == [1, 2, None]


async def test_a_fault_of_ours_in_one_request_leaves_the_others_alone() -> None:
    async with client() as it:
        broken, fine = await it.ask(1), await it.ask(2)
        broken.finish(ValueError("a bug"))
        await until(lambda: it.said)
        fine.finish()
        await until(lambda: len(it.said) == 2)
    assert it.said[0]["error"] == {"code": -32603, "message": "internal error of the proxy"}
    assert it.said[1]["result"] == {}


async def test_more_requests_than_the_limit_are_refused() -> None:
    async with client(max_in_flight=2) as it:
        await it.ask(1)
        await it.ask(2)
        await it.send(modern(3))
        assert it.said[0]["id"] == 3
        assert "limits.requests" in it.said[0]["error"]["message"]


async def test_requests_of_both_eras_count_towards_the_limit_until_they_are_answered_or_cancelled() -> None:
    """I6: a legacy client, too, can have only so many at the server."""
    async with client(max_in_flight=3) as it:
        server = await it.shake_hands()
        await it.ask("m")
        await it.send(legacy(1, names.TOOLS_CALL), legacy(2, names.TOOLS_CALL))
        first = await server.asked(names.TOOLS_CALL)
        await server.asked(names.TOOLS_CALL, 2)
        await it.send(legacy(3, names.TOOLS_CALL), modern(4))
        refused = [(m["id"], "limits.requests" in m["error"]["message"]) for m in it.said]
        assert refused == [(3, True), (4, True)]
        server.answer(first)
        await it.send(cancel(2), legacy(5, names.TOOLS_CALL), legacy(6, names.TOOLS_CALL))
        await server.asked(names.TOOLS_CALL, 4)
        assert len(server.of(names.TOOLS_CALL)) == 4


async def test_a_request_ends_with_the_answer_that_its_stream_was_read_too_slowly() -> None:
    """I6: what it held is free again, its id and its share of limits.requests too."""
    async with client(max_in_flight=1) as it:
        listening = await it.ask(1, names.SUBSCRIPTIONS_LISTEN)
        for _ in range(MAX_QUEUED + 1):
            listening.sink.notify(names.RESOURCES_UPDATED, b"{}")
        await until(lambda: listening.cancelled)
        assert "too slowly" in it.answers_to(1)[0]["error"]["message"]
        (await it.ask(1)).finish()
        await until(lambda: len(it.answers_to(1)) == 2)


async def test_initialize_with_modern_meta_is_a_modern_request() -> None:
    """VER-005: the router says that there is no such method."""
    async with client() as it:
        await it.send(modern(1, names.INITIALIZE, HANDSHAKE))
        assert it.router.handled[1].request.method == names.INITIALIZE
        assert not it.servers


async def test_a_version_that_is_not_served_is_refused_with_those_that_are() -> None:
    async with client() as it:
        meta = {**MODERN, names.META_PROTOCOL_VERSION: "2030-01-01"}
        await it.send(legacy(1, "x", {names.META: meta}))
    assert it.said[0]["error"]["code"] == -32022
    assert it.said[0]["error"]["data"]["supported"] == list(names.MODERN_VERSIONS)


# -------------------------------------------------------------------------------------- cancellation


async def test_a_cancelled_request_is_stopped_and_nothing_more_is_said_of_it() -> None:
    """STDIO-006."""
    async with client() as it:
        one, other = await it.ask(1), await it.ask(2)
        await it.send(cancel(1))
        assert one.cancelled
        one.sink.notify(names.PROGRESS, b'{"progress":1}')
        other.finish()
        await until(lambda: it.said)
        (await it.ask(1)).finish(b'{"again":true}')
        await until(lambda: len(it.said) == 2)
    assert [m["id"] for m in it.said] == [2, 1]
    assert it.said[1]["result"] == {"again": True}


async def test_a_cancellation_right_behind_its_request_stops_it() -> None:
    async with client() as it:
        await it.send(modern(1), cancel(1))
        assert 1 not in it.router.handled or it.router.handled[1].cancelled
    assert it.said == []


async def test_a_cancellation_that_comes_with_the_answer_is_harmless() -> None:
    """CANC-001: one answer or none."""
    async with client() as it:
        one = await it.ask(1)
        it.stdin.send_nowait(json.dumps({"jsonrpc": "2.0", **cancel(1)}).encode() + b"\n")
        one.finish()
        await settle()
    assert len(it.said) <= 1


async def test_a_cancellation_after_the_answer_changes_nothing() -> None:
    """CANC-002, TX-CAN-005: the answer may have been a task's handle; the task goes on."""
    async with client() as it:
        one = await it.ask(1)
        one.finish(b'{"resultType":"task"}')
        await until(lambda: it.said)
        await it.send(cancel(1))
    assert not one.cancelled
    assert len(it.said) == 1


@pytest.mark.parametrize("with_legacy", [False, True])
@pytest.mark.parametrize(
    "params",
    [
        b"",
        b',"params":null',
        b',"params":[1]',
        b',"params":{}',
        b',"params":{"requestId":null}',
        b',"params":{"requestId":1.0}',
        b',"params":{"requestId":{"id":1}}',
        b',"params":{"requestId":1,"requestId":1}',
        b',"params":{"requestId":"1"}',
        b',"params":{"requestId":99}',
    ],
)
async def test_a_cancellation_that_names_nothing_is_ignored(params: bytes, with_legacy: bool) -> None:
    """CANC-002."""
    async with client() as it:
        if with_legacy:
            await it.shake_hands()
        one = await it.ask(1)
        await it.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled"' + params + b"}\n")
        assert not one.cancelled
        if with_legacy:
            assert it.server.of(names.CANCELLED) == []
    assert it.said == []


# ----------------------------------------------------------------------------------------- listening


async def test_each_listen_is_told_its_end_in_both_ways_and_nothing_else_is() -> None:
    """SUB-005, SUB-006, SUB-007."""
    async with client() as it:
        first, second = [await it.ask(rid, names.SUBSCRIPTIONS_LISTEN) for rid in ("a", 1)]
        call = await it.ask(2)
        first.sink.notify(names.SUBSCRIPTIONS_ACKNOWLEDGED, b'{"n":"a"}')
        second.sink.notify(names.SUBSCRIPTIONS_ACKNOWLEDGED, b'{"n":1}')
        call.finish()
        await until(lambda: len(it.said) == 3)
        assert not [m for m in it.said if m.get("method") == names.CANCELLED]
        it.endpoint.drain()
        first.finish(b'{"resultType":"complete"}')
        second.finish(b'{"resultType":"complete"}')
        with anyio.fail_after(5):
            await it.endpoint.wait_idle()
    for rid in ("a", 1):
        about = [m for m in it.said if m.get("id") == rid or m.get("params", {}).get("requestId") == rid]
        assert [m.get("method") for m in about] == [names.CANCELLED, None]
        assert about[1]["result"] == {"resultType": "complete"}


async def test_a_listen_that_fails_is_told_once() -> None:
    async with client() as it:
        (await it.ask(1, names.SUBSCRIPTIONS_LISTEN)).finish(UpstreamClosed("gone"))
        await until(lambda: it.said)
    assert it.error_codes() == [-32603]


async def test_a_cancelled_listen_ends_in_silence() -> None:
    """SUB-008."""
    async with client() as it:
        one = await it.ask(1, names.SUBSCRIPTIONS_LISTEN)
        await it.send(cancel(1))
        assert one.cancelled
    assert it.said == []


# ------------------------------------------------------------------------------------------- framing


CONVERSATION: Final = (
    b"\n \r\n"
    + json.dumps({"jsonrpc": "2.0", **modern(1)}, ensure_ascii=False).encode()
    + b"\r\n{ broken\n\xff\xfe\n[]\n"
    + b'[{"jsonrpc":"2.0","id":8,"method":"ping"}]\n'
    + b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n'
    + b'{"jsonrpc":"2.0",\n"id":9,"method":"ping"}\n'
    + b"x" * (MAX_BYTES + 10)
    + b"\n"
    + json.dumps({"jsonrpc": "2.0", **modern(2, "\u2028\x0c")}, ensure_ascii=False).encode()
)
"""Ends without a line end."""

PARSE, INVALID = -32700, -32600
COMPLAINTS: Final = [PARSE, PARSE, INVALID, INVALID, INVALID, PARSE, PARSE, INVALID]


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, len(CONVERSATION)), max_size=12))
async def test_messages_are_the_same_wherever_the_chunks_are_cut(cuts: list[int]) -> None:
    """STDIO-001, BASE-001, F20: what is no message is refused, what follows it is served."""
    async with client() as it:
        edges = [0, *sorted(cuts), len(CONVERSATION)]
        for start, end in pairwise(edges):
            await it.stdin.send(CONVERSATION[start:end])
        await it.stdin.aclose()
        await until(lambda: {1, 2} <= it.router.handled.keys())
        assert it.error_codes() == COMPLAINTS
        assert all("id" not in m for m in it.said)


BIG: Final = b'"params":{"text":"' + b"x" * MAX_BYTES + b'","id":5}'


@pytest.mark.parametrize(
    "line, rid",
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"m",' + BIG + b"}", 7),
        (b' { "id" : "a-7" , "method":"m",' + BIG + b',"jsonrpc":"2.0"}', "a-7"),
        (b'{"method":"m",' + BIG + b',"jsonrpc":"2.0","id":-7}\r', -7),
        (b'{"jsonrpc": "2.0", "method": "m", ' + BIG + b', "id": "7", "jsonrpc": "2.0"}', "7"),
        (b'{"jsonrpc":"2.0","id":7,"result":{' + BIG + b"}}", None),
        (b'{"jsonrpc":"2.0","method":"m",' + BIG + b"}", None),
        (b'{"jsonrpc":"2.0","method":"m","id":1.5,' + BIG + b"}", None),
    ],
)
async def test_a_request_that_is_too_long_is_refused_under_its_id(line: bytes, rid: int | str | None) -> None:
    """BASE-001, F33: where the id can be read; the answer to a question of the server has another's."""
    async with client() as it:
        await it.write(line[:-10])
        await it.write(line[-10:] + b"\n")
        (await it.ask("next")).finish()
        await until(lambda: it.answers_to("next"))
        assert it.said[0].get("id") == rid
        assert it.said[0]["error"]["code"] == INVALID
        assert "limits.message" in it.said[0]["error"]["message"]


# ---------------------------------------------------------------------------------------- both eras


@pytest.mark.parametrize("method", ["tools/list", "ping", "notifications/x", "x/y"])
async def test_a_request_before_initialize_is_refused(method: str) -> None:
    async with client() as it:
        await it.send(legacy(1, method, {}))
        assert it.error_codes() == [-32602]
        assert not it.servers


async def test_what_needs_no_answer_is_ignored_before_initialize() -> None:
    async with client() as it:
        await it.send({"method": names.INITIALIZED}, {"id": 1, "result": {}}, {"id": 1, "error": {"code": 1}})
        assert not it.servers
    assert it.said == []


async def test_both_eras_are_served_interleaved() -> None:
    """VER-004, VER-006."""
    async with client() as it:
        server = await it.shake_hands()
        call = await it.ask(1)
        await it.send(legacy(2, "tools/list"))
        server.answer(await server.asked("tools/list"), {"tools": []})
        await until(lambda: it.said)
        call.finish(b'{"resultType":"complete"}')
        await until(lambda: len(it.said) == 2)
        server.ask("q", "roots/list")
        await it.send({"id": "q", "result": {"roots": []}})
        await server.told("q")
    assert it.said == [
        {"jsonrpc": "2.0", "id": 2, "result": {"tools": []}},
        {"jsonrpc": "2.0", "id": 1, "result": {"resultType": "complete"}},
        {"jsonrpc": "2.0", "id": "q", "method": "roots/list"},
    ]


async def test_a_cancellation_follows_the_request_that_it_names() -> None:
    async with client() as it:
        server = await it.shake_hands()
        call = await it.ask(1)
        await it.send(legacy(2, names.TOOLS_CALL, {"name": "x"}), cancel(2))
        sent, cancelled = await server.asked(names.TOOLS_CALL), await server.asked(names.CANCELLED)
        assert cancelled.body["params"]["requestId"] == sent.id
        assert not call.cancelled
        await it.send(cancel(1))
        assert call.cancelled
        assert len(server.of(names.CANCELLED)) == 1


async def test_a_modern_notification_is_not_given_to_the_legacy_server() -> None:
    async with client() as it:
        server = await it.shake_hands()
        before = len(server.sent)
        await it.send({"method": "notifications/roots/list_changed", "params": {names.META: MODERN}})
        assert len(server.sent) == before


async def test_a_legacy_server_that_starts_slowly_holds_up_no_modern_request() -> None:
    starts = anyio.Event()
    async with client(max_in_flight=1_000, starts=starts) as it:
        await it.send(legacy(0, names.INITIALIZE, HANDSHAKE), *(legacy(n, "x") for n in range(1, 500)))
        (await it.ask("modern")).finish()
        await until(lambda: it.answers_to("modern"))
        assert it.server.sent == []
        starts.set()
        await it.server.asked("x", 499)


async def test_a_session_of_the_revision_that_has_batches_may_send_them() -> None:
    """F20: each message of the array is served; an empty or nested one is refused."""
    async with client() as it:
        server = await it.shake_hands("2025-03-26")
        call = await it.ask(7)
        messages = [{"jsonrpc": "2.0", **m} for m in (legacy(1, "a"), cancel(7), legacy(2, "b"))]
        await it.write(json.dumps([*messages, [], 1]).encode() + b"\n[]\n")
        assert [m.method for m in server.sent[-2:]] == ["a", "b"]
        assert call.cancelled
        assert it.error_codes() == [INVALID] * 3


async def test_other_sessions_may_not_send_batches() -> None:
    async with client() as it:
        server = await it.shake_hands("2025-06-18")
        before = len(server.sent)
        await it.write(b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]\n')
        assert len(server.sent) == before
        assert it.error_codes() == [INVALID]


# ------------------------------------------------------------------------------------------- the end


async def test_the_end_of_stdin_cancels_what_the_client_waits_for() -> None:
    """STDIO-008."""
    async with client() as it:
        (await it.ask(0)).finish()
        await until(lambda: it.said)
        call, listen = await it.ask(1), await it.ask(2, names.SUBSCRIPTIONS_LISTEN)
        await it.hang_up()
        assert call.cancelled
        assert listen.cancelled
    assert len(it.said) == 1


async def test_messages_that_were_piped_in_are_answered_after_the_end_of_stdin() -> None:
    async with client() as it:
        call, listen = await it.ask(1), await it.ask(2, names.SUBSCRIPTIONS_LISTEN)
        await it.stdin.aclose()
        await settle()
        assert listen.cancelled
        call.finish()
        with anyio.fail_after(5):
            await it.served.wait()
    assert [m["id"] for m in it.said] == [1]


@pytest.mark.parametrize("end", ["it has read all", "SIGTERM"])
async def test_what_was_answered_to_piped_messages_is_read_to_its_end_first(end: str) -> None:
    """A large answer takes a slow reader a while."""
    async with client() as it:
        it.paper.is_read = anyio.Event()
        (await it.ask(1)).finish()
        it.paper.wrote = False  # it is still at it
        await it.stdin.aclose()
        await settle()
        assert not it.paper.done.is_set()
        if end == "SIGTERM":
            it.endpoint.drain()
        else:
            it.paper.is_read.set()
        with anyio.fail_after(4):
            await it.served.wait()


async def test_piped_messages_of_a_legacy_client_are_answered_too() -> None:
    async with client() as it:
        await it.send(legacy(0, names.INITIALIZE, HANDSHAKE), legacy(1, "tools/list"))
        await it.stdin.aclose()
        await settle()
        it.server.answer(await it.server.asked(names.INITIALIZE), initialize_result())
        await settle()
        assert not it.server.closed
        it.server.answer(await it.server.asked("tools/list"), {"tools": []})
        with anyio.fail_after(5):
            await it.served.wait()
        assert it.server.closed
    assert [m["id"] for m in it.said] == [0, 1]


@pytest.mark.parametrize("end", ["nobody reads", "SIGTERM"])
async def test_answers_are_not_waited_for_in_vain(end: str) -> None:
    async with client() as it:
        call = await it.ask(1)
        it.paper.somebody_reads = end != "nobody reads"
        await it.stdin.aclose()
        if end == "SIGTERM":
            await settle()
            assert not call.cancelled
            it.endpoint.drain()
        with anyio.fail_after(5):
            await it.served.wait()
        assert call.cancelled
    assert it.said == []


async def test_the_end_of_stdin_ends_the_legacy_server_once_it_has_all_that_was_said() -> None:
    async with client() as it:
        server = await it.shake_hands()
        it.stdin.send_nowait(json.dumps({"jsonrpc": "2.0", "method": "notifications/x"}).encode() + b"\n")
        await it.hang_up()
        assert server.sent[-1].method == "notifications/x"
        assert server.ended


async def test_a_legacy_client_that_has_gone_keeps_nobody_waiting_for_its_answers() -> None:
    """STDIO-008: its server is told as it would be without us."""
    async with client() as it:
        server = await it.shake_hands()
        await it.send(legacy(1, names.TOOLS_CALL, {"name": "slow"}))
        await server.asked(names.TOOLS_CALL)
        await it.hang_up()
        assert server.ended


async def test_a_client_that_stops_reading_is_given_up() -> None:
    async with client() as it:
        server = await it.shake_hands()
        call = await it.ask(1)
        it.paper.broken.set()
        with anyio.fail_after(5):
            await it.served.wait()
        assert call.cancelled
        assert server.ended


@pytest.mark.parametrize("request_", [modern(5), legacy(5, "tools/list")])
async def test_new_requests_are_refused_while_the_proxy_drains(request_: dict[str, Any]) -> None:
    async with client() as it:
        server = await it.shake_hands()
        call = await it.ask(1)
        before = len(server.sent)
        it.endpoint.drain()
        await it.send(request_)
        assert (it.said[0]["id"], it.error_codes()) == (5, [-32603])
        assert len(server.sent) == before
        call.finish()
        with anyio.fail_after(5):
            await it.endpoint.wait_idle()
    assert it.answers_to(1)[0]["result"] == {}


async def test_the_end_answers_what_legacy_requests_are_left() -> None:
    async with client() as it:
        server = await it.shake_hands()
        await it.send(legacy(3, names.TOOLS_CALL, {"name": "x"}))
        await server.asked(names.TOOLS_CALL)
        with anyio.fail_after(5):
            await it.endpoint.end()
        assert server.ended
    assert it.answers_to(3)[0]["error"]["code"] == -32603


# ------------------------------------------------------------------------------------ what is counted


async def test_legacy_requests_count_when_they_end_however_that_is() -> None:
    async with client() as it:
        server = await it.shake_hands()
        before = Scraped.of(it.metrics)
        for number in (1, 2, 3):
            await it.send(legacy(number, names.TOOLS_CALL, {"name": "x"}))
        calls = [await server.asked(names.TOOLS_CALL, nth) for nth in (1, 2, 3)]
        assert Scraped.of(it.metrics).changed_since(before) == set()
        server.answer(calls[0], {})
        await it.send(cancel(2), cancel(2), cancel("nothing"))
        server.die(UpstreamClosed("died"))
        await settle()
        scraped = Scraped.of(it.metrics)

        def count(outcome: str) -> float:
            return scraped.value("requests_total", era="legacy", method="tools_call", outcome=outcome)

        assert [count(outcome) for outcome in ("result", "hung_up", "upstream_failed")] == [1, 1, 1]
        assert scraped.value("request_duration_seconds_count", method="tools_call") == 3


async def test_what_is_refused_before_it_is_a_request_counts_by_its_reason() -> None:
    async with client(max_in_flight=1) as it:
        await it.write(b"{}\n")
        await it.ask(1)
        await it.send(modern(2))
        it.endpoint.drain()
        await it.send(modern(3))
        scraped = Scraped.of(it.metrics)
        reasons = ("invalid", "limit", "shutting_down")
        assert [scraped.value("refusals_total", reason=reason) for reason in reasons] == [1, 1, 1]
