"""What a legacy server says, made fit for modern clients: results, errors, questions, discovery."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from proxy.eras.to_modern import (
    CACHEABLE,
    ServerInfo,
    discover_result,
    error_code,
    error_message,
    lift_error,
    lift_question,
    lift_result,
    url_elicitations,
    with_progress_token,
    with_subscription_id,
)
from proxy.errors import UpstreamProtocolError
from proxy.protocol.envelope import loads

SERVER: Final = b'{"name":"trainer","version" : "1.0"}'
SERVER_KEY: Final = "io.modelcontextprotocol/serverInfo"
TASKS: Final = "io.modelcontextprotocol/tasks"
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
HINTS: Final = {"ttlMs", "cacheScope"}
CALL: Final = "tools/call"
ELICIT: Final = "elicitation/create"


def info(**said: object) -> ServerInfo:
    return ServerInfo.parse(json.dumps({"protocolVersion": "2025-06-18", **said}).encode())


# Results.


@pytest.mark.parametrize("stray", [b"", b'"resultType":"task",', b'"resultType":null,', b'"resultType":7,'])
def test_every_result_is_complete_whatever_the_server_called_it(stray: bytes) -> None:
    """BASE-006, TX-RES-002: a legacy server knows no result types."""
    lifted = lift_result(CALL, b"{" + stray + b'"content":[]}', None)
    assert loads(lifted) == {"resultType": "complete", "content": []}
    assert lifted.count(b"resultType") == 1


def test_a_result_keeps_its_bytes() -> None:
    """Contract section 1, I1: unknown members, spelling of numbers, duplicates, escapes (F18)."""
    kept = b'"n":1.10,"content" : [{"type": "hologram", "x":1e2}],"n":2,"structuredContent":{"\\ud83d":-0}'
    assert lift_result(CALL, b"{" + kept + b"}", None) == b"{" + kept + b',"resultType":"complete"}'


def test_the_server_is_named_beside_the_other_keys_of_meta() -> None:
    """BASE-022, BASE-023."""
    lifted = lift_result(CALL, b'{"_meta":{"com.example/x":{"a" :1},"traceparent":"00-ab"}}', SERVER)
    assert b'"com.example/x":{"a" :1},"traceparent":"00-ab"' in lifted
    assert loads(lifted)["_meta"][SERVER_KEY] == {"name": "trainer", "version": "1.0"}
    assert SERVER in lifted


@pytest.mark.parametrize("meta", [b"", b'"_meta":{}', b'"_meta":null', b'"_meta":[1]'])
def test_the_server_is_named_where_there_is_no_usable_meta(meta: bytes) -> None:
    """BASE-022."""
    assert loads(lift_result(CALL, b"{" + meta + b"}", SERVER))["_meta"].keys() == {SERVER_KEY}


def test_an_unknown_server_is_not_named() -> None:
    assert b"_meta" not in lift_result(CALL, b"{}", None)


@pytest.mark.parametrize(
    "method",
    [
        "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list",
        "resources/read",
    ],
)  # fmt: skip
def test_cacheable_results_carry_hints(method: str) -> None:
    """CACHE-001, CACHE-002: the same scope on every page."""
    body = loads(lift_result(method, b'{"nextCursor":"","ttlMs":-5,"cacheScope":"public"}', None))
    assert (body["ttlMs"], body["cacheScope"], body["nextCursor"]) == (0, "private", "")


@pytest.mark.parametrize("method", [CALL, "prompts/get", "completion/complete", "foo/bar"])
def test_other_results_carry_none(method: str) -> None:
    """CACHE-001."""
    assert method not in CACHEABLE
    assert not HINTS & loads(lift_result(method, b"{}", None)).keys()


TOOL: Final = (
    b'{"name":"a", "title":"A","execution" : {"taskSupport":"required"},"x-vendor":{"n":[1]},'
    b'"inputSchema":{"$defs":{"d":{}},"properties":{"execution":{"type":"string"}}}}'
)


def test_tools_lose_their_task_marks_and_nothing_else() -> None:
    """TX-CAP-011, F18."""
    lifted = lift_result("tools/list", b'{"tools":[' + TOOL + b',{"name":"b"},7],"nextCursor":"n"}', None)
    tools = loads(lifted)["tools"]
    expected = loads(TOOL)
    del expected["execution"]
    assert tools == [expected, {"name": "b"}, 7]
    assert b'"inputSchema":{"$defs":{"d":{}},"properties":{"execution":{"type":"string"}}}' in lifted


def test_tools_without_marks_keep_their_bytes() -> None:
    tools = b'[ {"name" : "a"} ,{"name":"b"}]'
    assert b'"tools":' + tools in lift_result("tools/list", b'{"tools":' + tools + b"}", None)


@pytest.mark.parametrize("tools", [b'"execution"', b"null", b'{"execution":1}'])
def test_tools_that_are_no_list_are_the_servers_affair(tools: bytes) -> None:
    body = loads(lift_result("tools/list", b'{"tools":' + tools + b',"x":"\\"execution\\""}', None))
    assert body["tools"] == loads(tools)


def test_another_method_keeps_a_member_of_that_name() -> None:
    raw = b'{"tools":[{"execution":1}]}'
    assert loads(lift_result(CALL, raw, None))["tools"] == [{"execution": 1}]


@pytest.mark.parametrize("result", [b"null", b"[]", b'"done"', b"7", b'{"_meta":{},"_meta":{}}'])
def test_a_result_that_is_none_is_the_servers_fault(result: bytes) -> None:
    with pytest.raises(UpstreamProtocolError, match="the result of tools/call cannot be used"):
        lift_result(CALL, result, SERVER)


# Errors.


@pytest.mark.parametrize(
    "code, seen",
    [
        (-32700, -32700), (-32600, -32600), (-32601, -32601), (-32602, -32602), (-32603, -32603),
        (-32000, -32000), (-32001, -32001), (-32003, -32003), (-32019, -32019), (-32100, -32100),
        (0, 0), (1, 1), (-1, -1), (404, 404), (10**20, 10**20),
        (-32002, -32602),
        (-32020, -32603), (-32021, -32603), (-32022, -32603), (-32042, -32603), (-32050, -32603),
        (-32099, -32603),
    ],
)  # fmt: skip
def test_codes_that_a_modern_client_must_not_see_are_translated(code: int, seen: int) -> None:
    """BASE-010, BASE-012, BASE-013: message kept, the original whole in `data`."""
    error = b'{"message":"no such thing", "code": %d,"data":{"uri" :"x"},"more":1.10}' % code
    lifted = lift_error(error)
    body = loads(lifted)
    assert (body["code"], body["message"]) == (seen, "no such thing")
    if code == seen:
        assert lifted == error
    elif seen == -32602:
        assert body["data"] == {"uri": "x"}
    else:
        assert b'"upstreamError":' + error in lifted


@pytest.mark.parametrize(
    "error",
    [
        b"{}",
        b'{"code":-32000}',
        b'{"message":"no code"}',
        b'{"code":"-32000","message":"x"}',
        b'{"code":-32000.0,"message":"x"}',
        b'{"code":1e3,"message":"x"}',
        b'{"code":true,"message":"x"}',
        b'{"code":null,"message":"x"}',
        b'{"code":1,"message":null}',
        b'{"code":1,"message":["x"]}',
        b'{"code":1,"code":2,"message":"x"}',
        b'{"code":1,"message":"x","message":"y"}',
        b'{"code":' + b"7" * 5_000 + b',"message":"x"}',
    ],
)
def test_an_error_that_is_none_is_said_to_be_malformed_and_shown_whole(error: bytes) -> None:
    """BASE-009: an integer code and a message, whatever the server sent."""
    lifted = lift_error(error)
    body = json.loads(lifted, parse_int=lambda digits: digits if len(digits) > 4_000 else int(digits))
    assert body["code"] == -32603
    assert body["message"] == "the upstream sent a malformed error"
    assert b'"upstreamError":' + error in lifted


def test_an_empty_message_is_a_message() -> None:
    assert lift_error(b'{"code":5,"message":""}') == b'{"code":5,"message":""}'
    assert loads(lift_error(b'{"code":-32050,"message":""}'))["message"]


@pytest.mark.parametrize(
    "error, code, message",
    [
        (b'{"code":-32042,"message":"x"}', -32042, "x"),
        (b'{"code":-32042.0,"message":7}', None, None),
        (b'{"code":1,"code":1,"message":"a","message":"b"}', None, None),
        (b"{}", None, None),
    ],
)
def test_code_and_message_are_read_without_a_fault_of_ours(
    error: bytes, code: int | None, message: str | None
) -> None:
    assert (error_code(error), error_message(error)) == (code, message)


# Questions.


def test_a_question_loses_what_is_between_the_server_and_us() -> None:
    """ELIC-003, ELIC-004: `elicitationId`; everything else keeps its bytes."""
    lifted = lift_question(ELICIT, b'{"mode":"url","elicitationId":"e-1","url" : "https://x/?a=1"}')
    assert lifted == b'{"mode":"url","url" : "https://x/?a=1"}'


@pytest.mark.parametrize(
    "method, params",
    [
        (ELICIT, b'{"message" : "ok?", "requestedSchema":{"n":1.0}}'),
        (ELICIT, b'{"message" : "elicitationId?","requestedSchema":{ "n":1.0}}'),
        (ELICIT, None),
        (ELICIT, b'["elicitationId"]'),
        (ELICIT, b'"elicitationId"'),
        ("sampling/createMessage", b'{"elicitationId":"x"}'),
        ("roots/list", None),
    ],
)
def test_every_other_question_keeps_its_bytes(method: str, params: bytes | None) -> None:
    """TX-SEC-003, ELIC-002: also params that no server should send."""
    assert lift_question(method, params) == params


def test_a_url_error_lists_its_elicitations_as_questions() -> None:
    """ELIC-003: one each, in order, without `elicitationId`, always in url mode."""
    error = (
        b'{"code":-32042,"message":"visit","data":{"elicitations":['
        b'{"mode":"url","elicitationId":"1","url":"https://a","message":"A"},'
        b'{"url":"https://b","message":"B"},7]}}'
    )
    assert [loads(question) for question in url_elicitations(error)] == [
        {"mode": "url", "url": "https://a", "message": "A"},
        {"mode": "url", "url": "https://b", "message": "B"},
    ]


@pytest.mark.parametrize(
    "error",
    [
        b"{}",
        b'{"data":null}',
        b'{"data":[]}',
        b'{"data":{}}',
        b'{"data":{"elicitations":{}}}',
        b'{"data":{"elicitations":[]}}',
        b'{"data":{"elicitations":["x"]}}',
        b'{"data":{},"data":{}}',
    ],
)
def test_a_url_error_that_lists_none_asks_nothing(error: bytes) -> None:
    assert url_elicitations(error) == []


# Discovery.


def test_discovery_is_made_from_what_initialize_said() -> None:
    """DISC-002, DISC-003, DISC-004, TX-CAP-001, TX-CAP-011."""
    said = info(
        capabilities={"tools": {"listChanged": True}, "tasks": {"list": {}}, "experimental": {"x": 1}},
        serverInfo={"name": "trainer", "version": "1.0"},
        instructions="Be \u00e9xact.",
    )
    body = loads(discover_result(said, ("2026-07-28",)))
    assert body == {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {
            "tools": {"listChanged": True},
            "experimental": {"x": 1},
            "extensions": {TASKS: {}},
        },
        "instructions": "Be \u00e9xact.",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_KEY: {"name": "trainer", "version": "1.0"}},
    }


def test_extensions_of_the_server_are_kept_beside_ours() -> None:
    """DISC-007, TX-CAP-001: ours is exactly an empty object."""
    said = info(capabilities={"extensions": {"com.example/ui": {"a": 1}, TASKS: {"thresholdMs": 1}}})
    body = loads(discover_result(said, ("2026-07-28",)))
    assert body["capabilities"]["extensions"] == {"com.example/ui": {"a": 1}, TASKS: {}}


@pytest.mark.parametrize("extra", [{}, {"instructions": None}, {"instructions": 7}])
def test_instructions_that_are_none_are_left_out(extra: dict[str, Any]) -> None:
    """DISC-002: strict clients refuse a discovery with null in it."""
    assert "instructions" not in loads(discover_result(info(**extra), ("2026-07-28",)))


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_every_legacy_version_is_understood(version: str) -> None:
    """VER-016."""
    assert info(protocolVersion=version).version == version


def test_capabilities_and_server_info_may_be_missing() -> None:
    said = ServerInfo.parse(b'{"protocolVersion":"2025-11-25","capabilities":null,"serverInfo":"x"}')
    assert (said.capabilities, said.server_info, said.instructions) == (b"{}", None, None)


@pytest.mark.parametrize(
    "result, named",
    [
        (b"null", "not an object"),
        (b"[]", "not an object"),
        (b"{}", "None"),
        (b'{"protocolVersion":"2026-07-28"}', "2026-07-28"),
        (b'{"protocolVersion":"1.0","capabilities":{}}', "1.0"),
        (b'{"protocolVersion":20251125}', "None"),
        (b'{"protocolVersion":"2025-11-25","protocolVersion":"2025-06-18"}', "protocolVersion"),
        (b'{"protocolVersion":"2025-11-25","capabilities":{},"capabilities":{}}', "capabilities"),
        (b'{"protocolVersion":"2025-11-25","serverInfo":{},"serverInfo":{}}', "serverInfo"),
        (b'{"protocolVersion":"2025-11-25","instructions":"a","instructions":"b"}', "instructions"),
    ],
)
def test_an_answer_to_initialize_that_cannot_be_used_says_why(result: bytes, named: str) -> None:
    """VER-016."""
    with pytest.raises(UpstreamProtocolError, match="initialize") as fault:
        ServerInfo.parse(result)
    assert named in fault.value.message


@pytest.mark.parametrize(
    "group, member, declares",
    [
        ("tools", None, True),
        ("tools", "listChanged", True),
        ("resources", None, True),
        ("resources", "listChanged", False),
        ("resources", "subscribe", False),
        ("prompts", None, False),
        ("prompts", "listChanged", False),
        ("logging", None, False),
    ],
)
def test_a_group_is_declared_by_an_object_and_a_member_by_true(
    group: str, member: str | None, declares: bool
) -> None:
    said = info(
        capabilities={
            "tools": {"listChanged": True},
            "resources": {"listChanged": False, "subscribe": "true"},
            "logging": None,
        }
    )
    assert said.declares(group, member) is declares


# Notifications.


def test_progress_gets_the_clients_own_token_with_its_type() -> None:
    """PROG-001 (F02)."""
    params = b'{"progressToken":42,"progress":1.50,"total":10}'
    assert with_progress_token(params, b'"p-1"') == b'{"progressToken":"p-1","progress":1.50,"total":10}'


@pytest.mark.parametrize("listen_id", [b"7", b'"7"', b'"l-\\u00e9"'])
def test_a_notification_names_its_subscription(listen_id: bytes) -> None:
    """The id of the listen request, with its type and spelling."""
    tagged = with_subscription_id(b'{"uri" : "x","_meta":{"a" :1}}', listen_id)
    assert b'"uri" : "x"' in tagged
    assert b'"a" :1' in tagged
    assert b'"' + SUBSCRIPTION.encode() + b'":' + listen_id in tagged


@pytest.mark.parametrize(
    "params", [None, b"null", b"[]", b'"x"', b"{}", b'{"_meta":null}', b'{"_meta":{},"_meta":{"a":1}}']
)
def test_whatever_a_server_sends_with_a_notification_it_can_be_tagged(params: bytes | None) -> None:
    assert loads(with_subscription_id(params, b"7")) == {"_meta": {SUBSCRIPTION: 7}}
