"""What a client declared: what upstream is told of it, and which questions it can answer."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from proxy.eras.capabilities import (
    TASKS_REQUIRED,
    ClientCapabilities,
    initialize_params,
    missing_capability,
)
from proxy.errors import ClientProtocolError, ErrorCode
from proxy.protocol.envelope import DuplicateMember, loads

TASKS: Final = "io.modelcontextprotocol/tasks"
ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"


def declared(value: object) -> ClientCapabilities:
    return ClientCapabilities.parse(json.dumps(value).encode())


def offered(value: object) -> Any:
    return json.loads(declared(value).offered)


# What upstream is told.


@pytest.mark.parametrize(
    "given, told",
    [
        ({}, {}),
        ({"elicitation": {}}, {"elicitation": {}}),
        ({"elicitation": {"form": {}, "url": {}}}, {"elicitation": {"form": {}, "url": {}}}),
        ({"sampling": {"tools": {}, "context": {}}}, {"sampling": {"tools": {}, "context": {}}}),
        ({"roots": {"listChanged": True}}, {"roots": {}}),
        ({"roots": {"listChanged": False, "x": 1}}, {"roots": {"x": 1}}),
        ({"tasks": {"requests": {"elicitation": {"create": {}}}}}, {}),
        ({"extensions": {TASKS: {}}}, {}),
        ({"extensions": {}}, {}),
        ({"extensions": {TASKS: {}, "com.example/ui": [1]}}, {"extensions": {"com.example/ui": [1]}}),
        ({"experimental": {"x": {}}, "com.example": 7}, {"experimental": {"x": {}}, "com.example": 7}),
    ],
)  # fmt: skip
def test_upstream_is_told_exactly_the_declared_set_without_tasks(given: object, told: object) -> None:
    """VER-018, BASE-026, TX-CAP-009: the 2025 slot and the extension are taken off, the rest stays."""
    assert offered(given) == told


@pytest.mark.parametrize(
    "given, tasks",
    [
        ({"extensions": {TASKS: {}}}, True),
        ({"extensions": {TASKS: {"future": 1}}}, True),
        ({"extensions": {"com.example/tasks": {}}}, False),
        ({"tasks": {}}, False),
        ({TASKS: {}}, False),
        ({"experimental": {TASKS: {}}}, False),
        ({}, False),
    ],
)
def test_tasks_are_declared_by_the_extension_and_by_nothing_else(given: object, tasks: bool) -> None:
    """TX-CAP-009."""
    assert declared(given).tasks is tasks


def test_equal_sets_are_equal_values_however_they_were_written() -> None:
    """Contract section 3: sessions are pooled by the declared set."""
    one = ClientCapabilities.parse(b'{"sampling":{},"elicitation":{"url":{},"form":{}}}')
    two = ClientCapabilities.parse(b'{ "elicitation": {"form":{}, "url":{}},\n "sampling": {} }')
    assert one == two
    assert hash(one) == hash(two)
    assert one != declared({"sampling": {}})


def test_the_extension_makes_no_other_session() -> None:
    """A client that declares tasks on some requests only has one session all the same."""
    assert declared({"extensions": {TASKS: {}}}).offered == declared({}).offered


@pytest.mark.parametrize(
    "raw",
    [
        b"null", b"[]", b'"x"', b"7", b"true",
        b'{"elicitation":true}', b'{"elicitation":null}', b'{"elicitation":[]}',
        b'{"sampling":1}', b'{"roots":"all"}', b'{"extensions":[]}', b'{"experimental":false}',
        b'{"extensions":{"io.modelcontextprotocol/tasks":true}}',
        b'{"extensions":{"io.modelcontextprotocol/tasks":null}}',
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused_by_name(raw: bytes) -> None:
    """BASE-019."""
    with pytest.raises(ClientProtocolError, match="is not an object") as fault:
        ClientCapabilities.parse(raw)
    assert fault.value.code is ErrorCode.INVALID_PARAMS


@pytest.mark.parametrize(
    "raw", [b'{"x":1E400}', b'{"x":' + b"7" * 5_000 + b"}", b'{"x":' + b"[" * 890 + b"]" * 890 + b"}"]
)
def test_what_our_parser_cannot_hold_is_handed_on_or_refused_clearly(raw: bytes) -> None:
    """SEC-003: never a fault of ours."""
    codes: list[ErrorCode] = []
    try:
        assert loads(initialize_params(ClientCapabilities.parse(raw), "proxy", "1"))
    except ClientProtocolError as fault:
        codes.append(fault.code)
    assert codes in ([], [ErrorCode.INVALID_PARAMS])


@pytest.mark.parametrize(
    "raw",
    [
        b'{"elicitation":{},"elicitation":{"url":{}}}',
        b'{"extensions":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}',
        b'{"extensions":{"io.modelcontextprotocol/tasks":{},"io.modelcontextprotocol/tasks":{}}}',
    ],
)
def test_a_capability_that_is_given_twice_is_no_declaration(raw: bytes) -> None:
    """BASE-001."""
    with pytest.raises(DuplicateMember):
        ClientCapabilities.parse(raw)


def test_initialize_offers_the_newest_legacy_version() -> None:
    """VER-016, VER-018."""
    body = loads(initialize_params(declared({"roots": {"listChanged": True}}), "proxy", "1.2"))
    assert body == {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}},
        "clientInfo": {"name": "proxy", "version": "1.2"},
    }


def test_a_server_may_ask_where_anything_that_asks_was_declared() -> None:
    assert all(declared({name: {}}).may_be_asked for name in ("elicitation", "sampling", "roots"))
    assert not any(declared({name: {}}).may_be_asked for name in ("experimental", "tasks", "extensions"))


# Which questions a client can answer.

NOT_FOUND, INVALID = ErrorCode.METHOD_NOT_FOUND, ErrorCode.INVALID_PARAMS


@pytest.mark.parametrize(
    "given, method, params, required, refusal",
    [
        ({}, ELICIT, b'{"message":"?"}', {"elicitation": {}}, NOT_FOUND),
        ({}, ELICIT, b'{"mode":"form"}', {"elicitation": {}}, NOT_FOUND),
        ({}, ELICIT, None, {"elicitation": {}}, NOT_FOUND),
        ({}, ELICIT, b'{"mode":"url"}', {"elicitation": {"url": {}}}, NOT_FOUND),
        ({"elicitation": {}}, ELICIT, b'{"mode":"url"}', {"elicitation": {"url": {}}}, INVALID),
        ({"elicitation": {"form": {}}}, ELICIT, b'{"mode":"url"}', {"elicitation": {"url": {}}}, INVALID),
        ({"elicitation": {"url": {}}}, ELICIT, b'{"message":"?"}', {"elicitation": {"form": {}}}, INVALID),
        ({"elicitation": {"url": {}}}, ELICIT, b'{"mode":"form"}', {"elicitation": {"form": {}}}, INVALID),
        ({"elicitation": {}}, ELICIT, b'{"mode":"voice"}', {"elicitation": {"voice": {}}}, INVALID),
        ({"sampling": {}}, ELICIT, b"{}", {"elicitation": {}}, NOT_FOUND),
        ({}, SAMPLE, b'{"messages":[]}', {"sampling": {}}, NOT_FOUND),
        ({}, SAMPLE, b'{"tools":[]}', {"sampling": {}}, NOT_FOUND),
        ({"sampling": {}}, SAMPLE, b'{"tools":[]}', {"sampling": {"tools": {}}}, INVALID),
        ({"sampling": {}}, SAMPLE, b'{"toolChoice":{"mode":"none"}}', {"sampling": {"tools": {}}}, INVALID),
        ({"sampling": {"context": {}}}, SAMPLE, b'{"tools":null}', {"sampling": {"tools": {}}}, INVALID),
        ({}, ROOTS, None, {"roots": {}}, NOT_FOUND),
        ({"elicitation": {}, "sampling": {}, "roots": {}}, "tools/list", b"{}", {}, NOT_FOUND),
        ({"elicitation": {}, "sampling": {}, "roots": {}}, "foo/ask", b"{}", {}, NOT_FOUND),
    ],
)
def test_a_question_that_was_not_declared_is_missed_by_name(
    given: object, method: str, params: bytes | None, required: object, refusal: ErrorCode
) -> None:
    """ELIC-001, ELIC-010, ELIC-011: what the client's -32021 names, and the code that the asker gets."""
    missing = declared(given).missing_for(method, params)
    assert missing is not None
    assert missing.required == required
    assert missing.refusal_code is refusal
    error = loads(missing.refusal(method))
    assert error["code"] == refusal
    assert method in error["message"]


@pytest.mark.parametrize(
    "given, method, params",
    [
        ({"elicitation": {}}, ELICIT, b'{"message":"?"}'),
        ({"elicitation": {}}, ELICIT, b'{"mode":"form"}'),
        ({"elicitation": {"form": {}}}, ELICIT, b"{}"),
        ({"elicitation": {"form": {}, "url": {}}}, ELICIT, b"{}"),
        ({"elicitation": {"form": {}, "url": {}}}, ELICIT, b'{"mode":"url"}'),
        ({"elicitation": {"url": {}}}, ELICIT, b'{"mode":"url"}'),
        ({"elicitation": {"voice": {}}}, ELICIT, b'{"mode":"voice"}'),
        ({"sampling": {}}, SAMPLE, b'{"messages":[]}'),
        ({"sampling": {"tools": {}}}, SAMPLE, b'{"tools":[],"toolChoice":{}}'),
        ({"roots": {}}, ROOTS, None),
    ],
)
def test_a_question_that_was_declared_is_not_missed(given: object, method: str, params: bytes | None) -> None:
    """ELIC-001: an empty elicitation capability means form (F15)."""
    assert declared(given).missing_for(method, params) is None


@pytest.mark.parametrize("params", [b'{"mode":"url","mode":"form"}', b'{"mode":7}', b'{"mode":null}'])
def test_a_mode_that_cannot_be_told_is_not_asked(params: bytes) -> None:
    """ELIC-001: a client might read the other of two modes."""
    assert declared({"elicitation": {}}).missing_for(ELICIT, params) is not None


@pytest.mark.parametrize("params", [b"[]", b"null", b'"x"', b"7"])
def test_params_that_are_no_object_are_no_fault_of_ours(params: bytes) -> None:
    everything = declared({"elicitation": {}, "sampling": {}, "roots": {}})
    assert all(everything.missing_for(method, params) is None for method in (ELICIT, SAMPLE, ROOTS))


def test_the_clients_error_lists_required_capabilities_as_an_object() -> None:
    """BASE-021: -32021."""
    fault = missing_capability(TASKS_REQUIRED, "tool 'x' is served as a task only")
    assert fault.code == -32021
    assert fault.http_status == 400
    assert fault.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
