"""Params of modern requests as legacy servers get them, and what makes two calls the same call."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.eras.to_legacy import (
    call_digest,
    cancelled_params,
    lower_name,
    lower_params,
    with_progress_token,
)
from proxy.protocol import names
from proxy.protocol.envelope import LARGE, RawObject, loads, members

CALL: Final = "tools/call"
MODERN: Final = (
    b'"io.modelcontextprotocol/protocolVersion":"2026-07-28"',
    b'"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"}',
    b'"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}',
    b'"io.modelcontextprotocol/logLevel":"debug"',
)


def with_meta(*members: bytes, rest: bytes = b"") -> bytes:
    return b'{"_meta":{' + b",".join(members) + b"}" + rest + b"}"


# What is taken off, what stays.


def test_what_only_the_modern_era_knows_is_taken_off() -> None:
    """Contract section 3: an empty `_meta` goes with it."""
    params = with_meta(*MODERN, rest=b',"name":"x","arguments":{}')
    assert lower_params(CALL, params, None) == b'{"name":"x","arguments":{}}'


def test_vendor_keys_and_trace_context_stay_byte_for_byte() -> None:
    """BASE-023."""
    trace = b'"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"'
    others = (trace, b'"tracestate": "a=1"', b'"baggage":"k=v"', b'"com.example/x":{"n" :1.10,"n":2}')
    lowered = lower_params(CALL, with_meta(*MODERN, *others, rest=b',"name":"x"'), None)
    assert lowered == with_meta(*others, rest=b',"name":"x"')


def test_arguments_keep_their_bytes() -> None:
    """Contract section 1, I1: order, spelling of numbers, duplicates, escapes, nulls (F19)."""
    arguments = b'{"z":1.10, "a" : [1e2,-0],"q":null,"a":"\\ud83d", "deep":{"_meta":{"progressToken":1}}}'
    lowered = lower_params(CALL, with_meta(MODERN[0], rest=b',"arguments":' + arguments + b',"x-y":[ ]'), 7)
    assert lowered is not None
    assert b'"arguments":' + arguments + b',"x-y":[ ]' in lowered


@pytest.mark.parametrize(
    "rest", [b'"name":"x"', b'"name":"x","arguments":{}', b'"name":"x","arguments":null', b'"cursor":""']
)
def test_missing_stays_missing_and_empty_stays_empty(rest: bytes) -> None:
    """F19, PAGE-001: nothing is added."""
    assert lower_params("tools/list", with_meta(*MODERN, rest=b"," + rest), None) == b"{" + rest + b"}"


@pytest.mark.parametrize("token", [b'"p-1"', b"7", b'""'])
def test_the_clients_progress_token_is_replaced_by_ours_or_taken_off(token: bytes) -> None:
    """PROG-002: two clients may use the same one."""
    params = with_meta(b'"progressToken":' + token, MODERN[0])
    assert lower_params(CALL, params, 42) == b'{"_meta":{"progressToken":42}}'
    assert lower_params(CALL, params, None) == b"{}"


def test_our_progress_token_is_added_where_there_is_no_meta() -> None:
    assert lower_params(CALL, None, 42) == b'{"_meta":{"progressToken":42}}'
    assert loads(lower_params(CALL, b'{"name":"x"}', 42) or b"") == {
        "name": "x",
        "_meta": {"progressToken": 42},
    }
    assert lower_params(CALL, None, None) is None


ROUND: Final = b',"inputResponses":{"input-1":{}},"requestState":"s","task":{"ttl":1},"name":"x"'


@pytest.mark.parametrize(
    "method, left",
    [
        ("tools/call", {"name": "x"}),
        ("prompts/get", {"name": "x", "task": {"ttl": 1}}),
        ("resources/read", {"name": "x", "task": {"ttl": 1}}),
    ],
)
def test_members_of_a_retry_are_ours_where_a_retry_can_be(method: str, left: object) -> None:
    """The `task` of a tools/call is not sent either."""
    assert loads(lower_params(method, with_meta(MODERN[0], rest=ROUND), None) or b"") == left


def test_to_another_method_those_members_are_unknown_ones_and_stay() -> None:
    """Contract section 1, I1."""
    lowered = lower_params("foo/bar", with_meta(MODERN[0], rest=ROUND), None)
    assert loads(lowered or b"").keys() == {"inputResponses", "requestState", "task", "name"}


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=5))
def test_whatever_else_is_in_params_comes_through(others: dict[str, object]) -> None:
    """BASE-023."""
    ours = {"_meta", "task", "inputResponses", "requestState"}
    others = {key: value for key, value in others.items() if key not in ours}
    params = {**others, "_meta": json.loads(b"{" + b",".join(MODERN) + b"}")}
    assert loads(lower_params(CALL, json.dumps(params).encode(), None) or b"") == others


# The same call.

SAME: Final = (
    b'{"name":"x","arguments":{"a":1,"b":[true,null,"s"]}}',
    b' { "arguments" : {"b":[true, null, "\\u0073"],"a":1}, "name":"x" } ',
    b'{"name":"x","arguments":{"a":1,"b":[true,null,"s"]},"_meta":{"progressToken":1}}',
    b'{"name":"x","arguments":{"a":1,"b":[true,null,"s"]},"requestState":"s","inputResponses":{"k":{}}}',
    b'{"name":"x","arguments":{"a":1,"b":[true,null,"s"]},"task":{"ttl":5}}',
)
OTHER: Final = (
    None,
    b"{}",
    b'{"name":"x"}',
    b'{"name":"x","arguments":{}}',
    b'{"name":"x","arguments":null}',
    b'{"name":"y","arguments":{"a":1}}',
    b'{"name":"x","arguments":{"a":1}}',
    b'{"name":"x","arguments":{"a":1.0}}',
    b'{"name":"x","arguments":{"a":1e0}}',
    b'{"name":"x","arguments":{"a":"1"}}',
    b'{"name":"x","arguments":{"a":true}}',
    b'{"name":"x","arguments":{"a":"true"}}',
    b'{"name":"x","arguments":{"a":null}}',
    b'{"name":"x","arguments":{"a":[1]}}',
    b'{"name":"x","arguments":{"a":[1,2]}}',
    b'{"name":"x","arguments":{"a":[2,1]}}',
    b'{"name":"x","arguments":{"a":"\\ud83d"}}',
    b'{"name":"x","arguments":{"a":-0}}',
    b'{"name":"x","arguments":{"a":0}}',
    b'{"name":"x","arguments":{"a":1},"extra":1}',
)


def test_a_retry_that_was_written_anew_is_the_same_call() -> None:
    """MRTR-009: order, spacing, escapes, `_meta` and the round's own members do not count."""
    assert len({call_digest(CALL, params) for params in SAME}) == 1


@pytest.mark.parametrize("one, two", [pair for pair in combinations(OTHER, 2) if pair != (None, b"{}")])
def test_other_arguments_are_another_call(one: bytes | None, two: bytes | None) -> None:
    """MRTR-009: numbers count by their spelling."""
    assert call_digest(CALL, one) != call_digest(CALL, two)


def test_another_method_is_another_call() -> None:
    """MRTR-009."""
    params = b'{"name":"x"}'
    assert call_digest(CALL, params) != call_digest("prompts/get", params)


@pytest.mark.parametrize("number", [b"7" * 5_000, b"1E400", b"0." + b"3" * 5_000])
def test_numbers_beyond_any_limit_are_told_apart_by_their_spelling(number: bytes) -> None:
    assert call_digest(CALL, b'{"a":' + number + b"}") != call_digest(CALL, b'{"a":' + number + b"1}")


# Small things.


@pytest.mark.parametrize(
    "params, name",
    [
        (None, None),
        (b"{}", None),
        (b'{"name":"x"}', "x"),
        (b'{"name":7}', None),
        (b'{"name":"\\u00e9"}', "é"),
    ],
)
def test_the_name_of_what_is_called(params: bytes | None, name: str | None) -> None:
    assert lower_name(params, "name") == name


def test_a_cancellation_names_our_id() -> None:
    """CANC-006."""
    assert loads(cancelled_params(7, "no longer needed")) == {"requestId": 7, "reason": "no longer needed"}


def test_large_params_are_lowered_and_told_apart_from_what_is_known_of_them() -> None:
    """BASE-023, MRTR-012: without being read again, which would hold up everybody."""
    pad = b'"' + b"y" * LARGE + b'"'
    text = b'{"_meta":{"k":1},"name":"t","arguments":{"x":' + pad + b'},"requestState":"s"}'
    small = RawObject.parse(text)
    large = RawObject(text, tuple(members(text)))
    assert lower_params(names.TOOLS_CALL, large, 5) == lower_params(names.TOOLS_CALL, text, 5)
    assert with_progress_token(large, 5) == with_progress_token(text, 5)
    retry = RawObject.parse(text.replace(b'"s"', b'"another"').replace(b'"k":1', b'"k":2'))
    assert call_digest(names.TOOLS_CALL, large) == call_digest(names.TOOLS_CALL, retry)
    other = RawObject.parse(text.replace(b"yyy", b"yyz", 1))
    assert call_digest(names.TOOLS_CALL, small) != call_digest(names.TOOLS_CALL, other)
