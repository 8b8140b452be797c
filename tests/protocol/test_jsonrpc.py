"""JSON-RPC messages: what is one, what it says, and what is answered to the rest (F17, F19, F20)."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ErrorCode
from proxy.protocol.jsonrpc import (
    MAX_ID_DIGITS,
    ErrorResponse,
    Message,
    MessageError,
    Notification,
    Request,
    RequestId,
    ResultResponse,
    error_object,
    error_response,
    notification,
    parse,
    parse_checked,
    request,
    result_response,
)
from tests.protocol.json_texts import near_texts, numbers, spaces, strings, values

DEPTH = 64
GOOD_IDS = [
    b"0",
    b"-0",
    b"-1",
    b"1",
    b'"1"',
    b'""',
    b'"0"',
    b"1774232524389",
    b"9007199254740993",
    b"123456789012345678901234567890",
    '"ünï"'.encode(),
    b'"\\u00fcn\\u00ef"',
    b'"\\ud800"',
    b'"' + b"x" * 10_000 + b'"',
    b"9" * MAX_ID_DIGITS,
]
BAD_IDS = [b"null", b"1.5", b"1.0", b"1e2", b"true", b"[]", b"{}", b"9" * (MAX_ID_DIGITS + 1)]

ids = st.one_of(strings, st.integers().map(lambda n: b"%d" % n))
members = st.lists(st.tuples(strings.map(lambda key: b'"x' + key[1:]), values), max_size=3)


def refusal(raw: bytes) -> MessageError:
    with pytest.raises(MessageError) as caught:
        parse(raw, DEPTH)
    return caught.value


def verdict(raw: bytes) -> type | ErrorCode:
    """What kind of message it is, or the code of its refusal."""
    try:
        return type(parse(raw, DEPTH))
    except MessageError as exc:
        return exc.code


@st.composite
def messages(draw: st.DrawFn, /, **fields: st.SearchStrategy[bytes]) -> tuple[bytes, dict[str, bytes]]:
    """A message with these members, in any order, among unknown ones, with odd white space."""
    known = {name: draw(made) for name, made in fields.items()}
    pairs = [(b'"%s"' % name.encode(), value) for name, value in known.items()]
    pairs += [(b'"jsonrpc"', b'"2.0"'), *draw(members)]
    padded = [
        draw(spaces) + key + draw(spaces) + b":" + draw(spaces) + value
        for key, value in draw(st.permutations(pairs))
    ]
    return draw(spaces) + b"{" + b",".join(padded) + draw(spaces) + b"}", known


# -- ids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", GOOD_IDS, ids=lambda raw: raw[:12].decode())
def test_an_id_comes_back_byte_for_byte(raw: bytes) -> None:
    """F17."""
    message = parse(b'{"jsonrpc":"2.0","id":' + raw + b',"method":"m"}', DEPTH)
    assert isinstance(message, Request)
    assert message.id.raw == raw
    assert message.id.value == json.loads(raw)
    assert result_response(message.id, b"{}") == b'{"jsonrpc":"2.0","id":' + raw + b',"result":{}}'
    assert parse(error_response(message.id, b"{}"), DEPTH) == ErrorResponse(message.id, b"{}")


@pytest.mark.parametrize("raw", BAD_IDS, ids=lambda raw: raw[:12].decode())
def test_an_id_that_is_no_string_or_integer_is_refused(raw: bytes) -> None:
    """F17: a null id makes no notification."""
    assert RequestId.parse(raw) is None
    error = refusal(b'{"jsonrpc":"2.0","id":' + raw + b',"method":"m"}')
    assert (error.code, error.id) == (ErrorCode.INVALID_REQUEST, None)
    assert "id is neither a string nor an integer" in error.message


def test_ids_of_two_types_are_two_ids() -> None:
    one, text = RequestId.parse(b"1"), RequestId.parse(b'"1"')
    assert one is not None
    assert text is not None
    assert one.value != text.value
    assert len({one.value: "int", text.value: "str"}) == 2


def test_the_spelling_of_an_id_does_not_matter_to_tables() -> None:
    plain, escaped = RequestId.parse(b'"a"'), RequestId.parse(b'"\\u0061"')
    assert plain is not None
    assert escaped is not None
    assert plain.value == escaped.value


def test_a_long_id_is_cut_in_logs_only() -> None:
    assert len(repr(RequestId.parse(b'"' + b"x" * 10_000 + b'"'))) < 120


# -- requests and notifications ----------------------------------------------------------------------------


@given(messages(id=ids, method=strings, params=values))
def test_a_request_keeps_its_id_and_params_as_text(made: tuple[bytes, dict[str, bytes]]) -> None:
    raw, known = made
    assert parse(raw, DEPTH) == Request(
        RequestId(known["id"], json.loads(known["id"].decode())),
        json.loads(known["method"].decode()),
        known["params"],
    )


@given(messages(method=strings, params=values))
def test_without_an_id_it_is_a_notification(made: tuple[bytes, dict[str, bytes]]) -> None:
    raw, known = made
    assert parse(raw, DEPTH) == Notification(json.loads(known["method"].decode()), known["params"])


@given(
    st.lists(
        st.sampled_from(
            [
                *(
                    b'"jsonrpc":"2.0"',
                    b'"jsonrpc":"2.\\u0030"',
                    b'"jsonrpc":2',
                    b'"id":1',
                    b'"id":"x"',
                    b'"id":null',
                ),
                *(
                    b'"method":"m"',
                    b'"m\\u0065thod":"m"',
                    '"method":"\u00fc"'.encode(),
                    b'"params":{"a": [1]}',
                ),
                *(b'"params":"\\ud800"', b'"result":{}', b'"x":1', b'"":1'),
            ]
        ),
        max_size=5,
    )
)
def test_what_is_read_in_one_step_is_read_as_by_the_thorough_way(found: list[bytes]) -> None:
    """A space makes a text that is not compact."""
    raw = b"{" + b",".join(found) + b"}"
    verdicts: list[object] = []
    for text in (raw, b" " + raw):
        try:
            verdicts.append(parse(text, DEPTH))
        except MessageError as exc:
            verdicts.append((exc.code, exc.message, exc.id))
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("params", [b"{}", b"null", b"[]", b"0", b'""', b' { "q" : null } '])
def test_absent_null_and_empty_params_are_told_apart(params: bytes) -> None:
    """F19."""
    head = b'{"jsonrpc":"2.0","id":1,"method":"m"'
    assert parse(head + b',"params":' + params + b"}", DEPTH) == Request(
        RequestId(b"1", 1), "m", params.strip()
    )
    assert parse(head + b"}", DEPTH) == Request(RequestId(b"1", 1), "m", None)


@pytest.mark.parametrize("method", [b"null", b"1", b"{}", b'["m"]'])
def test_a_method_is_a_string(method: bytes) -> None:
    error = refusal(b'{"jsonrpc":"2.0","id":7,"method":' + method + b"}")
    assert (error.code, error.id) == (ErrorCode.INVALID_REQUEST, RequestId(b"7", 7))


@pytest.mark.parametrize("version", [b"", b'"jsonrpc":"1.0",', b'"jsonrpc":2.0,', b'"jsonrpc":null,'])
def test_only_version_2_is_spoken(version: bytes) -> None:
    error = refusal(b"{" + version + b'"id":"a","method":"m"}')
    assert (error.code, error.id) == (ErrorCode.INVALID_REQUEST, RequestId(b'"a"', "a"))


def test_names_may_be_written_with_escapes() -> None:
    raw = b'{"json\\u0072pc":"2\\u002e0","\\u0069d":1,"m\\u0065thod":"tools\\/list"}'
    assert parse(raw, DEPTH) == Request(RequestId(b"1", 1), "tools/list", None)


@pytest.mark.parametrize("name", ["jsonrpc", "method", "params", "result", "error"])
def test_a_member_that_is_read_stands_once(name: str) -> None:
    value = b'"2.0"' if name == "jsonrpc" else b"{}"
    twice = b'"%s":%s,' % (name.encode(), value) * 2
    rest = b'"id":7' if name == "jsonrpc" else b'"jsonrpc":"2.0","id":7'
    error = refusal(b"{" + twice + rest + b"}")
    assert (error.code, error.id) == (ErrorCode.INVALID_REQUEST, RequestId(b"7", 7))
    assert f"'{name}' is given twice" in error.message


def test_an_id_that_stands_twice_is_no_id() -> None:
    error = refusal(b'{"jsonrpc":"2.0","id":1,"method":"m","i\\u0064":2}')
    assert (error.code, error.id) == (ErrorCode.INVALID_REQUEST, None)


def test_other_members_may_stand_twice() -> None:
    raw = b'{"x":1,"jsonrpc":"2.0","method":"m","x":2,"params":{"method":1,"method":2}}'
    assert parse(raw, DEPTH) == Notification("m", b'{"method":1,"method":2}')


# -- responses ---------------------------------------------------------------------------------------------


@given(messages(id=ids, result=values))
def test_a_result_is_any_json(made: tuple[bytes, dict[str, bytes]]) -> None:
    raw, known = made
    rid = RequestId(known["id"], json.loads(known["id"].decode()))
    assert parse(raw, DEPTH) == ResultResponse(rid, known["result"])


@pytest.mark.parametrize("rid", [b"", b'"id":null,'])
def test_an_error_needs_no_id_but_a_result_does(rid: bytes) -> None:
    assert parse(b'{"jsonrpc":"2.0",' + rid + b'"error":{"code":1}}', DEPTH) == ErrorResponse(
        None, b'{"code":1}'
    )
    assert verdict(b'{"jsonrpc":"2.0",' + rid + b'"result":{}}') is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b',"result":{},"error":{}',
        b',"result":{},"error":null',
        b',"error":null',
        b',"error":"broken"',
        b',"error":[]',
        b',"method":"m","result":{}',
        b',"method":"m","error":{}',
    ],
)
def test_what_is_neither_a_call_nor_one_answer_is_refused_by_its_id(body: bytes) -> None:
    """The id is told, so that the call it names need not wait for ever."""
    error = refusal(b'{"jsonrpc":"2.0","id":7' + body + b"}")
    assert (error.code, error.id) == (ErrorCode.INVALID_REQUEST, RequestId(b"7", 7))


# -- no messages at all --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw, kind",
    [(b"[]", "batches"), (b" [1]", "batches"), (b'[{"jsonrpc":"2.0","method":"m"}]', "batches")]
    + [(raw, "no object") for raw in (b"1", b'"{}"', b"null", b"\n true")],
)
def test_only_an_object_is_a_message(raw: bytes, kind: str) -> None:
    """F20."""
    error = refusal(raw)
    assert (error.code, error.id) == (ErrorCode.INVALID_REQUEST, None)
    assert kind in error.message


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"{}{}", b'{"a":NaN}', b'{"a":"\xff"}', b'{"a":' + b"[" * DEPTH + b"]" * DEPTH + b"}"],
    ids=["nothing", "half", "two", "no number", "no UTF-8", "too deep"],
)
def test_what_is_no_json_is_a_parse_error(raw: bytes) -> None:
    error = refusal(raw)
    assert (error.code, error.id) == (ErrorCode.PARSE_ERROR, None)


@given(near_texts())
def test_anything_is_a_message_or_is_refused(raw: bytes) -> None:
    assert verdict(raw) in (ErrorCode.PARSE_ERROR, ErrorCode.INVALID_REQUEST, *get_args(Message))


_field = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"])
_value = st.sampled_from([b'"2.0"', b"null", b"1", b'"m"', b"{}", b"[]"]) | numbers


@given(st.lists(st.tuples(_field, _value), max_size=6))
def test_the_verdict_is_that_of_the_specification(pairs: list[tuple[str, bytes]]) -> None:
    raw = b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in pairs) + b"}"
    assert verdict(raw) == _expected(pairs)


def _expected(pairs: list[tuple[str, bytes]]) -> type | ErrorCode:
    """What a message with these members is, said another way than `jsonrpc` does."""
    names = sorted(name for name, _ in pairs if name not in ("x", "params"))
    fields = dict(pairs)
    doubled = len(set(names)) < len(names) or [name for name, _ in pairs].count("params") > 1
    rid = fields.get("id", b"")
    named = rid.startswith(b'"') or (rid.lstrip(b"-").isdigit() and len(rid) <= MAX_ID_DIGITS)
    if doubled or fields.get("jsonrpc") != b'"2.0"':
        return ErrorCode.INVALID_REQUEST
    match [name for name in names if name != "jsonrpc"]:
        case ["id", "method"] if named and fields["method"].startswith(b'"'):
            return Request
        case ["method"] if fields["method"].startswith(b'"'):
            return Notification
        case ["id", "result"] if named:
            return ResultResponse
        case ["error", "id"] | ["error"] if fields["error"] == b"{}":
            return ErrorResponse
    return ErrorCode.INVALID_REQUEST


# -- what we write -----------------------------------------------------------------------------------------


def test_messages_are_compact() -> None:
    assert request(7, "tools/call", b'{"a": 1.10}') == (
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a": 1.10}}'
    )
    assert request(RequestId(b'"x"', "x"), "m", None) == b'{"jsonrpc":"2.0","id":"x","method":"m"}'
    assert notification("n") == b'{"jsonrpc":"2.0","method":"n"}'
    assert error_response(None, b"{}") == b'{"jsonrpc":"2.0","error":{}}'
    assert error_response(0, error_object(ErrorCode.INTERNAL_ERROR, "ü", [1])) == (
        b'{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"\\u00fc","data":[1]}}'
    )
    assert error_object(-1, "m") == b'{"code":-1,"message":"m"}'


@given(ids, st.text(st.characters(exclude_categories=())), values)
def test_what_we_write_reads_back(raw_id: bytes, method: str, payload: bytes) -> None:
    rid = RequestId.parse(raw_id)
    assert rid is not None
    assert parse(request(rid, method, payload), DEPTH) == Request(rid, method, payload)
    assert parse(request(rid, method, None), DEPTH) == Request(rid, method, None)
    assert parse(notification(method, payload), DEPTH) == Notification(method, payload)
    assert parse(result_response(rid, payload), DEPTH) == ResultResponse(rid, payload)
    error = error_object(1, method, payload.decode())
    assert parse_checked(error_response(rid, error)) == ErrorResponse(rid, error)
