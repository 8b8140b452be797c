"""What counts as the answer to a call, by the rules that the session has."""

from __future__ import annotations

import pytest

from proxy.upstream.replies import answers, error_in, is_method_not_found, is_modern, messages, text_of

DEPTH = 20


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":5,"result":{}}',
        b'{"jsonrpc":"2.0","id":"5","result":null}',
        b' {"error":{"code":0,"message":""},"id":5,"jsonrpc":"2.0"} ',
    ],
)
def test_a_response_with_the_id_of_the_call_answers_it(text: bytes) -> None:
    """F17."""
    assert answers(text, 5, DEPTH)


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":6,"result":{}}',
        b'{"jsonrpc":"2.0","id":5.0,"result":{}}',
        b'{"jsonrpc":"2.0","id":5,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":5,"id":5,"result":{}}',
        b'{"jsonrpc":"2.0","id":5,"result":{},"error":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/x"}',
        b'{"jsonrpc":"2.0","id":5,"result":' + b"[" * DEPTH + b"]" * DEPTH + b"}",
        b'{"jsonrpc":"2.0","id":5,"result":"\xff"}',
        b'{"type":"heartbeat"}',
        b"5",
        b"",
    ],
)
def test_what_the_session_would_not_take_for_the_answer_is_none(text: bytes) -> None:
    """Else the call would wait for an answer that was thrown away (I6)."""
    assert not answers(text, 5, DEPTH)


def test_an_array_is_taken_apart_and_all_else_left_as_it_is() -> None:
    """F20."""
    assert messages(b' [{"a":1} ,\n[2]]', DEPTH) == [b'{"a":1}', b"[2]"]
    assert messages(b"[]", DEPTH) == []
    for text in (b"[1,", b"[" * 30 + b"]" * 30, b"not json", b' {"a": 1}'):
        assert messages(text, DEPTH) == [text]


def test_a_byte_order_mark_before_a_body_is_dropped() -> None:
    assert messages(b"\xef\xbb\xbf{}", DEPTH) == [b"{}"]
    assert error_in(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"error":{}}', DEPTH) is not None


def test_an_error_is_found_in_a_body_and_says_what_it_says() -> None:
    reply = error_in(
        b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32601,"message":"n\\u00f6"}}', DEPTH
    )
    assert reply is not None
    assert is_method_not_found(reply)
    assert text_of(reply) == "nö".encode()


@pytest.mark.parametrize(
    "error", [b"{}", b'{"code":-32600,"message":5}', b'{"code":1,"code":2,"message":"","message":""}']
)
def test_an_error_without_code_and_words_is_an_error_all_the_same(error: bytes) -> None:
    reply = error_in(b'{"jsonrpc":"2.0","error":' + error + b"}", DEPTH)
    assert reply is not None
    assert not is_method_not_found(reply)
    assert not is_modern(reply)
    assert text_of(reply) == b""


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"error":"x"}'])
def test_other_bodies_hold_no_error(body: bytes) -> None:
    assert error_in(body, DEPTH) is None


@pytest.mark.parametrize(
    ("code", "modern"),
    [(-32020, True), (-32021, True), (-32022, True), (-32023, False), (-32601, False), (32022, False)],
)
def test_three_codes_are_said_by_modern_servers_alone(code: int, modern: bool) -> None:
    """VER-013."""
    reply = error_in(b'{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":""}}' % code, DEPTH)
    assert reply is not None
    assert is_modern(reply) == modern
