"""Legacy clients before a modern server: the handshake, what is answered here, questions, and every end.

Contract section 7.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.errors import UpstreamClosed, UpstreamUnavailable
from proxy.protocol import names
from tests.upstream.fake_transport import settle, until
from tests.upstream.lowered_bench import (
    ANSWER,
    CLIENT,
    FORM,
    SERVER,
    TASKS,
    asks,
    discovered,
    greeted,
    lowered,
    text,
)

pytestmark = pytest.mark.anyio


# -- the handshake ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked, granted",
    [
        *((version, version) for version in names.LEGACY_VERSIONS),
        ("2099-01-01", "2025-11-25"),
        ("1.0", "2025-11-25"),
    ],
)
async def test_initialize_is_made_from_discovery(asked: str, granted: str) -> None:
    """VER-007, VER-012: the server hears no `initialize`, and the client nothing of the Tasks extension."""
    async with lowered() as at:
        said = {"logging": {}, "extensions": {**TASKS["extensions"], "com.example/x": {"a": 1}}}
        result = await at.greet(asked, **said)
        assert result == {
            "protocolVersion": granted,
            "capabilities": {"tools": {}, "logging": {}, "extensions": {"com.example/x": {"a": 1}}},
            "serverInfo": SERVER,
            "instructions": "be kind",
        }
        assert at.server.of(names.INITIALIZE) == []


async def test_each_request_says_exactly_what_the_client_declared() -> None:
    """HTTP-041, T25-CAP-007: its name and capabilities, but tasks it would host; and no extension unless the
    server has it."""
    declared = {"elicitation": {"form": {}}, "roots": {"listChanged": True}, "tasks": {"list": {}}}
    async with greeted(declared=declared) as at:
        _, sent = await at.call(_meta={"mine": 1, "progressToken": "p"})
        assert sent.body["params"]["_meta"] == {
            "mine": 1,
            "progressToken": sent.id,
            names.META_PROTOCOL_VERSION: "2026-07-28",
            names.META_CLIENT_INFO: CLIENT,
            names.META_CLIENT_CAPABILITIES: {"elicitation": {"form": {}}, "roots": {}},
        }


async def test_the_extension_is_declared_where_the_server_has_it() -> None:
    """TX-CAP-015."""
    async with greeted(declared={}, **TASKS) as at:
        _, sent = await at.call()
        assert sent.body["params"]["_meta"][names.META_CLIENT_CAPABILITIES] == TASKS


async def test_a_second_handshake_is_refused_also_while_the_first_is_on_its_way() -> None:
    async with lowered() as at:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
        first, second = [await at.send(names.INITIALIZE, params) for _ in range(2)]
        assert (await at.error(second))["code"] == -32600
        at.server.answer(await at.server.asked(names.DISCOVER), discovered())
        assert (await at.result(first))["serverInfo"] == SERVER
        third = await at.send(names.INITIALIZE, params)
        assert (await at.error(third))["code"] == -32600
        assert len(at.server.of(names.DISCOVER)) == 1


@pytest.mark.parametrize(
    "params",
    [
        b"[]",
        b'{"capabilities":[]}',
        b'{"capabilities":{"roots":1}}',
        b'{"capabilities":{"roots":{},"roots":{}}}',
    ],
)
async def test_a_handshake_that_cannot_be_read_is_refused_and_may_come_again(params: bytes) -> None:
    async with lowered() as at:
        call = await at.send(names.INITIALIZE, params)
        assert (await at.error(call))["code"] == -32602
        assert (await at.greet())["serverInfo"] == SERVER


async def test_a_server_that_cannot_be_reached_fails_the_handshake_alone() -> None:
    async with lowered() as at:
        at.server.unavailable = UpstreamUnavailable("no route")
        call = await at.send(names.INITIALIZE, {"protocolVersion": "2025-11-25", "capabilities": {}})
        assert await at.lost(call) == "no route"
        at.server.unavailable = None
        assert (await at.greet())["serverInfo"] == SERVER


async def test_a_server_that_has_become_legacy_is_asked_again_what_it_is() -> None:
    """VER-009: the next session probes."""
    async with lowered() as at:
        call = await at.send(names.INITIALIZE, {"protocolVersion": "2025-11-25", "capabilities": {}})
        refusal = {"code": -32601, "message": "Method not found"}
        at.server.answer(await at.server.asked(names.DISCOVER), error=refusal)
        assert "refused server/discover" in await at.lost(call)
        assert at.era.known is None


async def test_before_the_handshake_a_request_is_refused() -> None:
    async with lowered() as at:
        assert (await at.error(await at.send(names.TOOLS_LIST)))["code"] == -32600
        assert await at.result(await at.send(names.PING)) == {}


# -- what is answered here, and what passes -----------------------------------------------------------


async def test_ping_is_answered_here_and_notifications_end_here() -> None:
    """HTTP-046: nor does any response go to the server."""
    async with greeted() as at:
        await at.transport.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        await at.transport.send(b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}')
        await at.transport.send(b'{"jsonrpc":"2.0","id":"never-asked","result":{}}')
        assert await at.result(await at.send(names.PING)) == {}
        assert [m.method for m in at.server.sent] == [names.DISCOVER]


async def test_the_log_level_goes_with_each_request() -> None:
    async with greeted(logging={}) as at:
        _, before = await at.call()
        assert names.META_LOG_LEVEL not in before.body["params"]["_meta"]
        assert await at.result(await at.send(names.LOGGING_SET_LEVEL, {"level": "warning"})) == {}
        _, after = await at.call()
        assert after.body["params"]["_meta"][names.META_LOG_LEVEL] == "warning"
        refused = await at.send(names.LOGGING_SET_LEVEL, {"level": "loud"})
        assert (await at.error(refused))["code"] == -32602
        assert at.server.of(names.LOGGING_SET_LEVEL) == []


@pytest.mark.parametrize("params", [None, b"null", b"{}"])
async def test_no_params_and_null_are_none(params: bytes | None) -> None:
    """F19."""
    async with greeted() as at:
        call = await at.send(names.TOOLS_LIST, params)
        sent = await at.server.asked(names.TOOLS_LIST)
        assert sent.body["params"].keys() == {"_meta"}
        at.server.answer(sent, {"tools": []})
        assert await at.result(call) == {"tools": []}


@pytest.mark.parametrize(
    "params",
    [b"[]", b"0", b'{"_meta":{},"_meta":{}}', b'{"_meta":{"a":1,"progressToken":1,"progressToken":2}}'],
)
async def test_params_that_cannot_be_used_end_their_request_alone(params: bytes) -> None:
    """F19: never silence, and the session goes on."""
    async with greeted() as at:
        call = await at.send(names.TOOLS_LIST, params)
        await until(lambda: at.got(call) or at.server.of(names.TOOLS_LIST))
        if at.got(call):
            assert (await at.error(call))["code"] == -32602
        assert await at.result(await at.send(names.PING)) == {}


async def test_what_only_the_modern_era_knows_is_taken_off() -> None:
    async with greeted() as at:
        call = await at.send(names.TOOLS_LIST)
        meta = {names.META_SERVER_INFO: SERVER}
        listed = {"resultType": "complete", "ttlMs": 5, "cacheScope": "public", "_meta": meta, "more": [1.0]}
        at.server.answer(await at.server.asked(names.TOOLS_LIST), {"tools": [], **listed})
        assert await at.result(call) == {"tools": [], "more": [1.0]}
        called, sent = await at.call()
        at.server.answer(sent, {"content": [], "ttlMs": 5, "_meta": {**meta, "own": 1}})
        assert await at.result(called) == {"content": [], "ttlMs": 5, "_meta": {"own": 1}}


async def test_progress_and_logs_come_on_the_stream_of_their_call_with_the_clients_token() -> None:
    async with greeted() as at:
        call, sent = await at.call(_meta={"progressToken": "mine"})
        plain, other = await at.call()
        assert "progressToken" not in other.body["params"]["_meta"]
        at.server.notify(names.PROGRESS, {"progressToken": sent.id, "progress": 1})
        at.server.notify(names.LOG_MESSAGE, {"level": "info", "data": "x"}, on=other.id)
        at.server.answer(sent, text("done"))
        await at.answer(call)
        [progress, _] = at.got(call)
        assert progress["params"] == {"progressToken": "mine", "progress": 1}
        [log] = at.got(plain)
        assert log["params"] == {"level": "info", "data": "x"}


async def test_a_log_line_on_stdio_reaches_the_client_with_its_call_or_else_with_none() -> None:
    """SUB-009: an open listen stream has no part in it."""
    async with greeted(logging={}, tools={"listChanged": True}) as at:
        await at.server.asked(names.SUBSCRIPTIONS_LISTEN)
        one, sent = await at.call()
        line = {"level": "info", "data": "x"}
        at.server.notify(names.LOG_MESSAGE, line)
        assert [m["params"] for m in at.got(one)] == [line]
        two, _ = await at.call()
        at.server.notify(names.LOG_MESSAGE, {**line, "data": "whose?"})
        assert [m["params"]["data"] for m in at.got()] == ["whose?"]
        at.server.answer(sent, text("done"))
        await at.answer(one)
        at.server.notify(names.LOG_MESSAGE, line)
        assert [m["params"] for m in at.got(two)] == [line]


# -- questions ----------------------------------------------------------------------------------------


async def test_a_question_is_a_request_to_the_client_and_its_answer_the_next_round() -> None:
    """MRTR-017, MRTR-018: the exact state, a new id, the server's own keys."""
    async with greeted() as at:
        call, first = await at.call(arguments={"n": 1})
        at.server.answer(first, asks("state", who="elicitation/create", what="sampling/createMessage"))
        who, what = sorted(await at.questions(call, 2), key=lambda q: str(q["method"]))
        assert who["params"] == FORM
        await at.reply(what, result={"role": "assistant"})
        await settle()
        assert len(at.server.of(names.TOOLS_CALL)) == 1, "inputs are gathered before the retry (MRTR-019)"
        await at.reply(who, result=ANSWER)
        second = await at.server.asked(names.TOOLS_CALL, 2)
        assert second.id != first.id
        waited, over = at.told.waiting
        assert over is None
        assert waited is not None
        named = {json.loads(rid): key for rid, key in waited.questions}
        assert named == {who["id"]: "who", what["id"]: "what"}
        assert (json.loads(waited.params)["arguments"], waited.state) == ({"n": 1}, b'"state"')
        assert json.loads(waited.offered).keys() == {"elicitation", "sampling", "roots"}
        sent = second.body["params"]
        assert (sent["name"], sent["arguments"], sent["requestState"]) == ("tool", {"n": 1}, "state")
        assert list(sent["inputResponses"].items()) == [("who", ANSWER), ("what", {"role": "assistant"})]
        at.server.answer(second, asks("later", again="roots/list"))
        again = (await at.questions(call, 3))[2]
        await at.reply(again, result={"roots": []})
        third = await at.server.asked(names.TOOLS_CALL, 3)
        assert third.body["params"]["inputResponses"] == {"again": {"roots": []}}
        assert third.body["params"]["requestState"] == "later"
        at.server.answer(third, text("done"))
        assert (await at.result(call))["content"][0]["text"] == "done"
        assert at.withdrawn(call) == []


async def test_a_question_in_url_mode_has_the_id_that_legacy_clients_want() -> None:
    async with greeted() as at:
        call, sent = await at.call()
        asked = asks(who="elicitation/create")
        asked["inputRequests"]["who"]["params"] = {"mode": "url", "url": "https://x", "message": "Go"}
        at.server.answer(sent, asked)
        [question] = await at.questions(call)
        assert question["params"]["elicitationId"]
        assert question["params"]["url"] == "https://x"


async def test_what_the_client_did_not_declare_is_not_asked() -> None:
    """ELIC-001: the call cannot go on, and says so."""
    async with greeted(declared={"roots": {}}) as at:
        call, sent = await at.call()
        at.server.answer(sent, asks(a="elicitation/create"))
        error = await at.error(call)
        assert error["code"] == -32603, "the method of the client's request is there"
        assert "did not declare" in error["message"]
        assert len(at.got(call)) == 1


async def test_a_refused_question_fails_its_call_and_withdraws_the_others() -> None:
    """A modern server takes results alone."""
    async with greeted() as at:
        call, sent = await at.call()
        at.server.answer(sent, asks(a="elicitation/create", b="roots/list"))
        one, other = await at.questions(call, 2)
        await at.reply(one, error={"code": -32603, "message": "no user"})
        assert await at.error(call) == {"code": -32603, "message": "no user"}
        assert at.withdrawn(call) == [other["id"]]
        assert len(at.server.of(names.TOOLS_CALL)) == 1


@pytest.mark.parametrize(
    "requests",
    [
        {"a": 1},
        {"a": {"method": "tools/call"}},
        {"a": {"params": {}}},
    ],
)
async def test_what_is_no_question_fails_its_call_alone(requests: dict[str, Any]) -> None:
    async with greeted() as at:
        call, sent = await at.call()
        at.server.answer(sent, {"resultType": "input_required", "inputRequests": requests})
        assert "is no question" in await at.lost(call)
        assert await at.result(await at.send(names.PING)) == {}


@pytest.mark.parametrize(
    "result",
    [
        b'{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list","method":"x"}}}',
        b'{"resultType":"complete","resultType":"task"}',
        b'{"resultType":"complete","_meta":{},"_meta":{}}',
        b"[]",
    ],
)
async def test_a_result_that_cannot_be_read_fails_its_call_alone(result: bytes) -> None:
    """F34."""
    async with greeted() as at:
        call, sent = await at.call()
        at.server.deliver(b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (sent.id, result))
        await at.lost(call)
        assert await at.result(await at.send(names.PING)) == {}


async def test_two_answers_to_one_question_are_one() -> None:
    async with greeted() as at:
        call, sent = await at.call()
        at.server.answer(sent, asks(a="roots/list"))
        [question] = await at.questions(call)
        for roots in ([], ["late"]):
            await at.reply(question, result={"roots": roots})
        second = await at.server.asked(names.TOOLS_CALL, 2)
        assert second.body["params"]["inputResponses"] == {"a": {"roots": []}}
        await settle()
        assert len(at.server.of(names.TOOLS_CALL)) == 2


# -- ends ---------------------------------------------------------------------------------------------


async def test_a_cancelled_call_is_cancelled_at_the_server_and_answered_by_nobody() -> None:
    """HTTP-045: and its stream is given up."""
    async with greeted() as at:
        call, sent = await at.call()
        await at.cancel(call)
        notice = await at.server.asked(names.CANCELLED)
        assert notice.body["params"]["requestId"] == sent.id
        assert sent.id in at.server.abandoned
        at.server.answer(sent, text("late"))
        await settle()
        assert at.got(call) == []
        assert at.told.losses == []


async def test_a_call_that_is_cancelled_while_its_user_is_asked_withdraws_the_question() -> None:
    async with greeted() as at:
        call, sent = await at.call()
        at.server.answer(sent, asks(a="roots/list"))
        [question] = await at.questions(call)
        await at.cancel(call)
        await until(lambda: at.withdrawn(call) == [question["id"]])
        await at.reply(question, result={"roots": []})
        await settle()
        assert len(at.server.of(names.TOOLS_CALL)) == 1


async def test_cancelling_what_nobody_knows_changes_nothing() -> None:
    async with greeted() as at:
        call, sent = await at.call()
        for params in (b"{}", b'{"requestId":"x"}', b'{"requestId":99}', b"[]"):
            await at.transport.send(
                b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":' + params + b"}"
            )
        at.server.answer(sent, text("done"))
        assert (await at.result(call))["content"][0]["text"] == "done"


async def test_the_death_of_the_server_ends_every_call_also_one_whose_user_is_asked() -> None:
    """Contract section 9: at once, though the clean-up takes its time."""
    async with greeted() as at:
        at.server.ends_when_closed = False
        working, _ = await at.call()
        asking, sent = await at.call()
        at.server.answer(sent, asks(a="roots/list"))
        [question] = await at.questions(asking)
        at.server.lose_all(UpstreamClosed("it died"))
        assert await at.lost(working) == "it died"
        assert await at.lost(asking) == "it died"
        assert at.withdrawn(asking) == [question["id"]]
        at.server.end()
        assert await at.lost(None) == "it died"


async def test_after_the_end_nothing_is_taken() -> None:
    async with greeted() as at:
        at.server.die(UpstreamClosed("it died"))
        await at.lost(None)
        with pytest.raises(UpstreamClosed, match="nothing was sent"):
            await at.send(names.TOOLS_LIST)


async def test_a_client_that_goes_while_it_waits_leaves_nothing() -> None:
    async with greeted() as at:
        call, sent = await at.call()
        asking, asked = await at.call()
        at.server.answer(asked, asks(a="roots/list"))
        await at.questions(asking)
        at.transport.close()
        await at.lost(None)
        assert at.server.ended
        assert at.told.loss_of(call) is None
        assert sent.id in at.server.abandoned


async def test_a_client_that_goes_during_its_handshake_leaves_nothing() -> None:
    async with lowered() as at:
        await at.send(names.INITIALIZE, {"protocolVersion": "2025-11-25", "capabilities": {}})
        await at.server.asked(names.DISCOVER)
        at.transport.close()
        await at.lost(None)
        assert at.server.ended
