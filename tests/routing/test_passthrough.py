"""One legacy client, one server after the other, nothing changed on the way. Servers are fakes.

Holds F16, F17, F18, F19, F38 and the row "upstream process dies" of the contract's section 9.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.eras.attribution import AskingTools
from proxy.errors import (
    ProxyError,
    ServerGone,
    SessionLost,
    UpstreamClosed,
    UpstreamError,
    UpstreamUnavailable,
)
from proxy.protocol import jsonrpc, names
from proxy.protocol.envelope import splice
from proxy.protocol.jsonrpc import RequestId
from proxy.routing import passthrough as module
from proxy.routing.offers import Channel
from proxy.routing.own_server import with_values
from proxy.routing.passthrough import BACK_OFF_S, DEAD_SERVERS, SETTINGS_S, STABLE_S, Passthrough
from proxy.upstream.base import NO_HEADERS, Headers
from proxy.upstream.health import OK, Health
from tests.manual_clock import ManualClock
from tests.protocol.json_texts import objects, values
from tests.upstream.fake_transport import FakeTransport, Sent, initialize_result, settle, until

pytestmark = pytest.mark.anyio

LISTS: Final[Mapping[str, Any]] = {
    "tools": {"listChanged": True},
    "prompts": {},
    "resources": {"listChanged": True},
}
HANDSHAKE: Final = b'{"protocolVersion": "2025-11-25", "x-vendor": [1.10], "capabilities": {"roots": {}}}'


@dataclass(eq=False)
class Server(FakeTransport):
    """Also keeps the very bytes."""

    raw: list[bytes] = field(default_factory=list)

    @property
    def receives(self) -> bool:
        """Whether what it says is still heard."""
        return self._receiver is not None

    async def send(self, message: bytes, *, call: int | None = None, headers: Headers = NO_HEADERS) -> None:
        self.raw.append(message)
        await super().send(message, call=call)
        if not self.receives:
            raise UpstreamUnavailable("it ended before it took the message")

    def lose_all(self, error: UpstreamError) -> None:
        super().lose_all(error)
        if self.reads is not None:
            self.reads.set()


@dataclass(eq=False)
class Client:
    """A legacy client, and what it was told."""

    passthrough: Passthrough
    clock: ManualClock
    servers: list[Server]
    lines: list[bytes]
    health: Health

    @property
    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def server(self) -> Server:
        return self.servers[-1]

    async def write(self, *lines: bytes) -> None:
        for line in lines:
            self.passthrough.from_client(jsonrpc.parse(line, 64), line)
        await settle()

    async def ask(self, id: Any, method: str, params: Any = None) -> Sent:
        """Returns when the server has the request."""
        before = len(self.server.of(method)) if self.servers else 0
        nth = 1 if not self.servers or self.server.ended else before + 1
        body = {
            "jsonrpc": "2.0",
            "id": id,
            "method": method,
            **({} if params is None else {"params": params}),
        }
        await self.write(json.dumps(body).encode())
        await until(lambda: self.servers)
        return await self.server.asked(method, nth)

    async def accept(self, id: Any, method: str, params: Any = None) -> None:
        """The server answers the request; forget what was said."""
        self.server.answer(await self.ask(id, method, params))
        assert self.said[-1]["id"] == id
        self.lines.clear()

    async def shake_hands(self, version: str = "2025-11-25") -> Server:
        await self.write(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":' + HANDSHAKE + b"}")
        await until(lambda: self.servers)
        self.server.answer(await self.server.asked(names.INITIALIZE), initialize_result(version, **LISTS))
        await self.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        self.lines.clear()
        return self.server

    async def new_server(self, after: Server) -> Server:
        """The server that comes after this one, its handshake answered."""
        await until(lambda: self.server is not after)
        server = self.server
        server.answer(await server.asked(names.INITIALIZE), initialize_result(**LISTS))
        await server.asked(names.INITIALIZED)
        return server

    def answers_to(self, id: Any) -> list[dict[str, Any]]:
        return [m for m in self.said if "method" not in m and m["id"] == id]


class Lines(list[bytes]):
    """Also keeps which request of the client a message belongs to: one for each line."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int | str | None] = []

    def answer(self, rid: RequestId | None, message: bytes) -> None:
        self._take(message, rid)

    def fail(self, rid: RequestId, fault: ProxyError) -> None:
        error = jsonrpc.error_object(fault.code, fault.message, fault.data)
        self._take(jsonrpc.error_response(rid, error), rid)

    def sends_on(self, rid: RequestId) -> None:
        """It may always."""

    def ask(self, request: jsonrpc.Request, message: bytes, call: RequestId | None) -> None:
        self._take(message, call)

    def tell(self, notification: jsonrpc.Notification, message: bytes, call: RequestId | None) -> None:
        self._take(message, call)

    def channel(self, call: RequestId | None) -> Channel | None:
        """Nothing is said here but what the server says."""
        return None

    def _take(self, message: bytes, call: RequestId | None) -> None:
        self.append(message)
        self.calls.append(None if call is None else call.value)


@asynccontextmanager
async def client(*servers: Server) -> AsyncIterator[Client]:
    """Its servers are these, and further ones as needed."""
    lines, clock, planned, made = Lines(), ManualClock(), list(servers), list[Server]()
    health = Health(clock)

    def make_transport() -> Server:
        made.append(planned.pop(0) if planned else Server())
        return made[-1]

    passthrough = Passthrough(
        make_transport,
        lines,
        name="fake",
        clock=clock,
        max_depth=64,
        start_timeout_s=5,
        asking=AskingTools(lambda tool: tool == "confirm"),
        health=health,
    )
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(passthrough.run)
            yield Client(passthrough, clock, made, lines, health)
            tasks.cancel_scope.cancel()


DIED: Final = UpstreamClosed("upstream 'fake' exited with code 3")


# ----------------------------------------------------------------------------------------- unchanged


SPELLINGS: Final = [
    b"0",
    b"-1",
    b'"1"',
    b'""',
    b'"\\u00fcn\\u00ef"',
    b"9007199254740993",
    b'"' + b"x" * 10_000 + b'"',
]


@pytest.mark.parametrize("rid", SPELLINGS)
async def test_nothing_but_the_id_changes_and_it_comes_back_as_it_was(rid: bytes) -> None:
    """F17, F18, I1: spacing, order, unknown members and number spelling stay."""
    async with client() as it:
        server = await it.shake_hands()
        await it.write(
            b'{ "x":[1E400, 1.10] ,"id" :\t' + rid + b', "params": null,"method":"a/b", "jsonrpc":"2.0" }'
        )
        ours = server.sent[-1].id
        assert isinstance(ours, int)
        tail = b', "params": null,"method":"a/b", "jsonrpc":"2.0" }'
        assert server.raw[-1] == b'{ "x":[1E400, 1.10] ,"id" :\t%d' % ours + tail
        server.deliver(b'{"result": {"n":-0 , "n":1},  "id":%d ,"jsonrpc":"2.0", "y":"\\ud800"}' % ours)
        assert it.lines == [
            b'{"result": {"n":-0 , "n":1},  "id":' + rid + b' ,"jsonrpc":"2.0", "y":"\\ud800"}'
        ]


@pytest.mark.parametrize("params", [b"", b',"params":{}', b',"params":null', b',"params":[]', b',"params":0'])
async def test_missing_null_and_empty_params_stay_what_they_are(params: bytes) -> None:
    """F19."""
    async with client() as it:
        server = await it.shake_hands()
        await it.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"' + params + b"}")
        assert server.raw[-1].endswith(b'"method":"tools/list"' + params + b"}")


@settings(max_examples=200, deadline=None)
@given(made=objects(values), key=st.sampled_from(["a", "b", "_meta"]))
def test_with_values_changes_no_other_byte(made: tuple[bytes, list[tuple[bytes, bytes]]], key: str) -> None:
    """Twice the same key: both get the value."""
    text, pairs = made
    here = [raw for raw, _ in pairs if json.loads(raw) == key]
    changed = with_values(text, {key: b"<>"})
    if not here:
        assert changed == splice(text, {key: b"<>"})
        return
    parts = changed.split(b"<>")
    assert len(parts) == len(here) + 1
    at = 0
    for part in parts:  # they stand in the text, in their order, and between them is nothing but a value
        at = text.index(part, at) + len(part)


async def test_notifications_and_progress_pass_in_both_directions_as_they_are() -> None:
    async with client() as it:
        server = await it.shake_hands()
        up = b'{"jsonrpc":"2.0", "method":"notifications/x", "params":{"progressToken": 7}}'
        down = b'{ "method":"notifications/progress","params":{"progressToken":"t","progress":1.0} }'
        down = down.replace(b"{ ", b'{ "jsonrpc":"2.0" , ')
        await it.write(up)
        server.deliver(down)
        assert server.raw[-1] == up
        assert it.lines == [down]


async def test_the_servers_questions_and_their_answers_pass_as_they_are() -> None:
    async with client() as it:
        server = await it.shake_hands()
        question = b'{"jsonrpc":"2.0", "id":0, "method":"elicitation/create","params":{"message":"\\u2028"}}'
        answer = b'{"id":0, "jsonrpc":"2.0","result":{"action":"accept"}}'
        server.deliver(question)
        await it.write(answer)
        assert it.lines == [question]
        assert server.raw[-1] == answer


@pytest.mark.parametrize(
    "answer", [b'{"jsonrpc":"2.0","id":"q","result":{}}', b'{"jsonrpc":"2.0","id":"q","error":{"code":-1}}']
)
async def test_an_answer_goes_to_who_asked_and_only_once(answer: bytes) -> None:
    """F16."""
    async with client() as it:
        server = await it.shake_hands()
        await it.write(answer)
        server.ask("q", "roots/list")
        await it.write(answer, answer)
        assert server.raw.count(answer) == 1


async def test_the_order_of_what_the_client_says_is_kept() -> None:
    reads = anyio.Event()
    async with client() as it:
        server = await it.shake_hands()
        server.reads = reads
        server.ask("q", "roots/list")
        await it.write(
            b'{"jsonrpc":"2.0","id":1,"method":"a"}',
            b'{"jsonrpc":"2.0","method":"notifications/b"}',
            b'{"jsonrpc":"2.0","id":"q","result":{}}',
            b'{"jsonrpc":"2.0","id":2,"method":"c"}',
        )
        reads.set()
        await server.asked("c")
    assert [m.method for m in server.sent[-4:]] == ["a", "notifications/b", None, "c"]


async def test_an_id_that_the_server_made_a_string_of_is_understood() -> None:
    """F17."""
    async with client() as it:
        server = await it.shake_hands()
        ours = (await it.ask("mine", "a")).id
        server.deliver({"jsonrpc": "2.0", "id": str(ours), "result": {}})
    assert it.said == [{"jsonrpc": "2.0", "id": "mine", "result": {}}]


async def test_two_requests_with_one_id_are_both_answered() -> None:
    async with client() as it:
        server = await it.shake_hands()
        first, second = await it.ask(1, "a"), await it.ask(1, "a")
        server.answer(second, {"n": 2})
        server.answer(first, {"n": 1})
    assert [m["result"]["n"] for m in it.answers_to(1)] == [2, 1]


async def test_an_error_on_the_stream_of_a_request_is_its_answer_even_without_an_id() -> None:
    async with client() as it:
        server = await it.shake_hands()
        call = await it.ask(1, "a")
        error = {"code": -32700, "message": "what?"}
        server.deliver({"jsonrpc": "2.0", "id": None, "error": error}, on=call.call)
        assert it.said == [{"jsonrpc": "2.0", "id": 1, "error": error}]
        server.deliver(b'{"jsonrpc":"2.0","id":null,"error":{"code":1}}')
        assert it.lines[-1] == b'{"jsonrpc":"2.0","id":null,"error":{"code":1}}'


async def test_what_is_no_message_reaches_nobody_but_a_broken_answer_ends_its_request() -> None:
    """F34."""
    async with client() as it:
        server = await it.shake_hands()
        ours = (await it.ask("mine", "a")).id
        server.deliver(b"{}")
        server.deliver(b'{"jsonrpc":"2.0","id":%d,"method":1}' % ours)
        server.deliver(b"{ broken")
        assert it.said == []
        server.deliver(b'{"jsonrpc":"2.0","id":%d,"error":"no object"}' % ours)
        server.deliver(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % ours)
    assert [m["error"]["code"] for m in it.answers_to("mine")] == [-32603]


async def test_an_array_of_the_server_is_taken_apart() -> None:
    """F20."""
    async with client() as it:
        server = await it.shake_hands()
        ours = (await it.ask("mine", "a")).id
        server.deliver(
            b'[{"jsonrpc":"2.0","method":"x"}, [[]], {"jsonrpc":"2.0","id":%d,"result":{}}]' % ours
        )
        server.deliver(b"[" * 60 + b"]" * 60)
    assert it.lines == [b'{"jsonrpc":"2.0","method":"x"}', b'{"jsonrpc":"2.0","id":"mine","result":{}}']


# -------------------------------------------------------------------------------------- cancellation


async def test_a_cancellation_is_translated_and_else_the_same() -> None:
    """CANC-006."""
    async with client() as it:
        server = await it.shake_hands()
        call = await it.ask("mine", names.TOOLS_CALL)
        head, tail = (
            b'{"params": {"reason":"\\u00fc", "requestId" : ',
            b'}, "jsonrpc":"2.0","method":"notifications/cancelled"}',
        )
        await it.write(head + b'"mine"' + tail)
        assert server.raw[-1] == head + b"%d" % call.id + tail
        server.answer(call, error={"code": 0, "message": "Request cancelled"})
        assert it.said == [
            {"jsonrpc": "2.0", "id": "mine", "error": {"code": 0, "message": "Request cancelled"}}
        ]


@pytest.mark.parametrize(
    "params",
    [b"null", b"[]", b"{}", b'{"requestId":1.5}', b'{"requestId":7}', b'{"requestId":1,"requestId":1}'],
)
async def test_a_cancellation_that_names_nothing_is_not_sent_on(params: bytes) -> None:
    """CANC-002."""
    async with client() as it:
        server = await it.shake_hands()
        await it.ask(1, "a")
        before = len(server.sent)
        await it.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":' + params + b"}")
        assert len(server.sent) == before
        assert it.said == []


async def test_a_cancelled_request_is_not_answered_when_the_server_dies() -> None:
    async with client() as it:
        server = await it.shake_hands()
        await it.ask(1, "a")
        await it.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}')
        server.die(DIED)
    assert it.said == []


# ------------------------------------------------------------------------------ servers come and go


async def test_when_the_server_dies_every_request_is_answered_at_once_and_once() -> None:
    """Contract section 9."""
    async with client() as it:
        server = await it.shake_hands()
        calls = [await it.ask(rid, "a") for rid in (1, "two")]
        server.lose_all(DIED)
        assert [m["error"] for m in it.said] == [{"code": -32603, "message": DIED.message}] * 2
        assert [m["id"] for m in it.said] == [1, "two"]
        server.end()
        await settle()
        assert len(it.said) == len(calls)


async def test_a_request_that_the_dying_server_does_not_take_is_answered_once() -> None:
    async with client() as it:
        server = await it.shake_hands()
        server.reads = anyio.Event()
        await it.ask(1, "a")
        server.die(DIED)
        await settle()
        assert len(it.answers_to(1)) == 1


async def test_the_next_request_gets_a_server_that_stands_where_the_old_one_stood() -> None:
    """F38: the handshake in the client's own words, level, subscriptions, and one hint per list."""
    async with client() as it:
        old = await it.shake_hands()
        await it.accept(1, names.LOGGING_SET_LEVEL, {"level": "info"})
        await it.accept(2, names.LOGGING_SET_LEVEL, {"level": "debug"})
        for uri in ("r:1", "r:2", "r:3"):
            await it.accept(3, names.RESOURCES_SUBSCRIBE, {"uri": uri})
        await it.accept(4, names.RESOURCES_UNSUBSCRIBE, {"uri": "r:2"})
        refused = await it.ask(5, names.RESOURCES_SUBSCRIBE, {"uri": "r:4"})
        old.answer(refused, error={"code": -32602, "message": "no"})
        it.lines.clear()
        old.die(DIED)
        await it.write(b'{"jsonrpc":"2.0","id":6,"method":"tools/list"}')

        new = await it.new_server(old)
        assert new.raw[0].endswith(b'"params":' + HANDSHAKE + b"}")
        assert new.version == "2025-11-25"
        told = await new.asked(names.LOGGING_SET_LEVEL)
        assert told.body["params"] == {"level": "debug"}
        new.answer(told)
        for nth, uri in enumerate(["r:1", "r:3"], start=1):
            told = await new.asked(names.RESOURCES_SUBSCRIBE, nth)
            assert told.body["params"] == {"uri": uri}
            new.answer(told)
        new.answer(await new.asked("tools/list"), {"tools": []})
        assert len(new.sent) == 6
    assert [m.get("method", m.get("id")) for m in it.said] == [
        names.TOOLS_LIST_CHANGED,
        names.RESOURCES_LIST_CHANGED,
        6,
    ]


async def test_what_the_old_server_asked_is_not_answered_to_the_new_one() -> None:
    async with client() as it:
        old = await it.shake_hands()
        old.ask("q", "roots/list")
        old.die(DIED)
        await it.write(b'{"jsonrpc":"2.0","id":6,"method":"a"}')
        new = await it.new_server(old)
        await it.write(b'{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}')
        assert new.answers_to("q") == []


async def test_an_old_server_that_takes_long_to_go_leaves_the_new_one_alone() -> None:
    """It closed its stdout, say, and is still being ended when the next one serves."""
    async with client() as it:
        old = await it.shake_hands()
        old.lose_all(DIED)
        await it.write(b'{"jsonrpc":"2.0","id":1,"method":"a"}')
        new = await it.new_server(old)
        call = await new.asked("a")
        old.end()
        await settle()
        new.answer(call)
        assert it.answers_to(1) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
        await it.ask(2, "b")
        assert it.server is new


async def test_a_notification_without_a_server_starts_none() -> None:
    async with client() as it:
        server = await it.shake_hands()
        server.die(DIED)
        await it.write(b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}')
        assert len(it.servers) == 1


async def test_initialize_itself_is_not_told_twice_to_a_new_server() -> None:
    async with client() as it:
        old = await it.shake_hands()
        old.die(DIED)
        await it.write(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}')
        assert [m.method for m in it.server.sent] == [names.INITIALIZE]
        it.server.answer(it.server.sent[0], initialize_result("2025-03-26"))
        assert it.passthrough.has_batches
        assert it.server.version == "2025-03-26"


async def test_a_server_that_cannot_be_started_is_an_error_and_is_tried_again() -> None:
    broken = Server(unavailable=UpstreamUnavailable("upstream 'fake' could not be started"))
    async with client(broken) as it:
        await it.write(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}')
        assert [m["error"]["message"] for m in it.answers_to(1)] == ["upstream 'fake' could not be started"]
        await it.write(b'{"jsonrpc":"2.0","id":2,"method":"initialize"}')
        assert it.server.of(names.INITIALIZE)


async def test_a_fault_of_ours_in_a_server_ends_that_server_alone() -> None:
    class Buggy(Server):
        async def run(self, *args: Any, **options: Any) -> None:
            raise ValueError("a bug")

    async with client(Buggy()) as it:
        await it.write(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}')
        assert "internal error" in it.answers_to(1)[0]["error"]["message"]
        await it.write(b'{"jsonrpc":"2.0","id":2,"method":"initialize"}')
        assert it.server.of(names.INITIALIZE)


async def test_a_new_server_that_refuses_the_handshake_is_ended_and_the_request_told() -> None:
    async with client() as it:
        old = await it.shake_hands()
        old.die(DIED)
        await it.write(b'{"jsonrpc":"2.0","id":1,"method":"a"}')
        await until(lambda: it.server is not old)
        refusing = it.server
        refusing.answer(await refusing.asked(names.INITIALIZE), error={"code": -32600, "message": "no"})
        await until(lambda: it.answers_to(1))
        await until(lambda: refusing.ended)
        assert refusing.of("a") == []
        await it.clock.advance(BACK_OFF_S[2])
        await it.write(b'{"jsonrpc":"2.0","id":2,"method":"b"}')
        await it.clock.advance(BACK_OFF_S[2])
        new = await it.new_server(refusing)
        await new.asked("b")


async def test_a_new_server_that_dies_in_the_handshake_is_an_error() -> None:
    async with client() as it:
        old = await it.shake_hands()
        old.die(DIED)
        await it.write(b'{"jsonrpc":"2.0","id":1,"method":"a"}')
        await until(lambda: it.server is not old)
        await it.server.asked(names.INITIALIZE)
        it.server.die(DIED)
        await until(lambda: it.answers_to(1))
    assert len(it.said) == 1


async def test_settings_that_a_new_server_refuses_or_ignores_hold_nothing_up_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert SETTINGS_S <= 10
    monkeypatch.setattr(module, "SETTINGS_S", 0.05)
    async with client() as it:
        old = await it.shake_hands()
        await it.accept(1, names.LOGGING_SET_LEVEL, {"level": "info"})
        await it.accept(2, names.RESOURCES_SUBSCRIBE, {"uri": "r:1"})
        old.die(DIED)
        await it.write(b'{"jsonrpc":"2.0","id":3,"method":"a"}')
        new = await it.new_server(old)
        new.answer(await new.asked(names.LOGGING_SET_LEVEL), error={"code": 1, "message": "no"})
        await new.asked(names.RESOURCES_SUBSCRIBE)
        await new.asked("a")


async def test_what_starts_come_to_is_seen() -> None:
    """F41: for `/readyz`. A server that dies later has been seen to work."""
    async with client(Server(unavailable=UpstreamUnavailable("no such file"))) as it:
        assert it.health.words() == OK
        await it.write(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":' + HANDSHAKE + b"}")
        await until(lambda: it.said)
        assert it.health.words() == "could not be started or reached"
        server = await it.shake_hands()
        assert it.health.words() == OK
        server.die(DIED)
        assert it.health.words() == OK
        await it.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')
        await it.clock.advance(BACK_OFF_S[2])
        await it.server.asked(names.INITIALIZE)
        it.server.die(DIED)
        assert it.health.words() == "ended, or broke the connection, when it was started"


async def test_starts_in_a_row_wait_longer_and_longer_until_a_server_lives() -> None:
    async with client() as it:
        for wait_s in BACK_OFF_S:
            await it.write(b'{"jsonrpc":"2.0","id":1,"method":"initialize"}')
            count = len(it.servers)
            if wait_s:
                await it.clock.advance(wait_s - 0.01)
                assert len(it.servers) == count
                await it.clock.advance(0.01)
            await until(lambda: it.servers and not it.server.ended)
            it.server.die(DIED)
            await until(lambda: it.answers_to(1))
            it.lines.clear()
        await it.clock.advance(STABLE_S)
        await it.ask(2, "initialize")
    assert sum(BACK_OFF_S) > 60


async def test_one_request_that_is_lost_leaves_the_server_in_use() -> None:
    async with client() as it:
        server = await it.shake_hands()
        call = await it.ask(1, "a")
        assert call.call is not None
        server.lose(call.call, UpstreamClosed("the stream broke"))
        assert [m["error"]["message"] for m in it.said] == ["the stream broke"]
        await it.ask(2, "b")
        assert it.server is server


@pytest.mark.parametrize("found_by", ["a request", "a notification"])
async def test_a_session_that_the_server_forgot_is_replaced(found_by: str) -> None:
    async with client() as it:
        old = await it.shake_hands()
        if found_by == "a request":
            call = await it.ask(1, "a")
            assert call.call is not None
            old.lose(call.call, SessionLost("404"))
        else:
            old.refusal = SessionLost("404")
            await it.write(b'{"jsonrpc":"2.0","method":"notifications/x"}')
        await it.write(b'{"jsonrpc":"2.0","id":2,"method":"b"}')
        new = await it.new_server(old)
        await new.asked("b")
        assert old.closed
        assert len(it.answers_to(1)) == (found_by == "a request")


async def test_a_request_that_finds_its_server_dead_goes_to_the_next_one() -> None:
    """Contract section 9; what was in flight on the dead one is lost."""
    async with client() as it:
        old = await it.shake_hands()
        old.ends_when_closed = False
        await it.ask(1, "a")
        old.refusal = ServerGone("upstream 'fake' is not running")
        await it.write(b'{"jsonrpc":"2.0","id":2,"method":"b"}')
        new = await it.new_server(old)
        await new.asked("b")
        assert it.answers_to(1) == []
        old.die(DIED)
        await until(lambda: it.answers_to(1))
        assert it.answers_to(2) == []


async def test_a_request_that_finds_one_dead_server_after_the_other_is_refused() -> None:
    async with client() as it:
        server = await it.shake_hands()
        server.refusal = ServerGone("upstream 'fake' is not running")
        await it.write(b'{"jsonrpc":"2.0","id":2,"method":"b"}')
        for pause_s in BACK_OFF_S[1:DEAD_SERVERS]:
            await it.clock.advance(pause_s)
            server = it.server
            initialize = await server.asked(names.INITIALIZE)
            server.refusal = ServerGone("upstream 'fake' is not running")
            server.answer(initialize, initialize_result())
        await until(lambda: it.answers_to(2))
        assert "nothing was sent" in it.answers_to(2)[0]["error"]["message"]


# ------------------------------------------------------------------------------------ bounds and end


async def test_messages_that_a_server_does_not_take_are_refused_at_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 1_000)
    starts = anyio.Event()
    async with client(Server(starts=starts)) as it:
        big = b'{"jsonrpc":"2.0","id":%d,"method":"initialize","params":"' + b"x" * 2_000 + b'"}'
        await it.write(big % 1)
        await it.write(big % 2, big % 3, b'{"jsonrpc":"2.0","method":"x"}')
        assert [m["id"] for m in it.said] == [3]
        assert "does not read" in it.said[0]["error"]["message"]
        starts.set()
        await it.server.asked("initialize", 2)


async def test_the_end_closes_the_server_after_all_that_was_said() -> None:
    async with client() as it:
        server = await it.shake_hands()
        line = b'{"jsonrpc":"2.0","method":"notifications/last"}'
        it.passthrough.from_client(jsonrpc.parse(line, 64), line)
        await it.passthrough.close()
        assert server.raw[-1] == line
        assert server.ended
        await it.passthrough.close()


async def test_what_the_server_says_while_it_ends_is_passed_on() -> None:
    async with client() as it:
        server = await it.shake_hands()
        server.ends_when_closed = False
        call = await it.ask(1, "a")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.passthrough.close)
            await until(lambda: server.closed)
            server.answer(call)
            server.end()
    assert it.said == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


async def test_the_end_waits_neither_for_a_server_that_starts_nor_for_one_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LAST_MESSAGES_S", 0.01)
    async with client(Server(starts=anyio.Event())) as it:
        await it.write(
            b'{"jsonrpc":"2.0","id":1,"method":"initialize"}', b'{"jsonrpc":"2.0","id":2,"method":"a"}'
        )
        await it.passthrough.close()
        assert {m["id"] for m in it.said} == {1, 2}
    async with client(Server(reads=anyio.Event())) as it:
        await it.write(
            b'{"jsonrpc":"2.0","id":1,"method":"initialize"}', b'{"jsonrpc":"2.0","id":2,"method":"a"}'
        )
        await it.passthrough.close()
        assert {m["id"] for m in it.said} == {1, 2}
        assert it.server.ended


async def test_who_waits_for_all_answers_is_told_when_they_are_there() -> None:
    done = anyio.Event()
    async with client() as it, anyio.create_task_group() as tasks:
        server = await it.shake_hands()
        call, cancelled = await it.ask(1, "a"), await it.ask(2, "a")

        async def wait() -> None:
            await it.passthrough.wait_answered()
            done.set()

        tasks.start_soon(wait)
        await it.write(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}')
        assert not done.is_set()
        server.answer(call)
        await done.wait()
    assert cancelled.id not in it.answers_to(2)


ACTIONS: Final = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("answer"), st.integers(0, 20)),
        st.tuples(st.just("lose"), st.integers(0, 20)),
        st.tuples(st.sampled_from(["die", "close stdout", "forget", "stop reading", "wait"]), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(actions=ACTIONS)
async def test_whatever_happens_each_request_is_answered_once(actions: list[tuple[str, int]]) -> None:
    """CANC-001, I6: or at most once if the client cancelled it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LAST_MESSAGES_S", 0.01)
        await live_through(actions)


async def live_through(actions: list[tuple[str, int]]) -> None:
    asked, cancelled = 0, set[int]()
    async with client() as it:
        await it.shake_hands()
        for action, number in actions:
            server = it.server
            pending = [m for m in server.sent if m.call is not None]
            match action:
                case "ask":
                    asked += 1
                    line = b'{"jsonrpc":"2.0","id":%d,"method":"m"}' % asked
                    it.passthrough.from_client(jsonrpc.parse(line, 64), line)
                    for _ in range(number):
                        await settle()
                case "cancel":
                    cancelled.add(number)
                    line = (
                        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}'
                        % number
                    )
                    it.passthrough.from_client(jsonrpc.parse(line, 64), line)
                case "answer" if pending and server.receives:
                    server.answer(pending[number % len(pending)], initialize_result(**LISTS))
                case "lose" if pending and server.receives:
                    server.lose(pending[number % len(pending)].id, DIED)
                case "forget" if pending and server.receives:
                    server.lose(pending[-1].id, SessionLost("404"))
                case "die":
                    server.die(DIED)
                case "close stdout":
                    server.lose_all(DIED)
                case "stop reading":
                    server.reads = anyio.Event()
                case _:
                    await it.clock.advance(1)
        for server in it.servers:
            server.end()
        await it.clock.advance(60)
        for server in it.servers:
            server.end()
        await it.passthrough.close()
        assert not any(server.receives for server in it.servers)
    answers = Counter(m["id"] for m in it.said if "method" not in m)
    answers.subtract(range(1, asked + 1))
    assert all(0 >= count >= (-1 if rid in cancelled else 0) for rid, count in answers.items() if rid > 0), (
        answers
    )
