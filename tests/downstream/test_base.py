"""Answers and faults as JSON-RPC messages."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from proxy import errors
from proxy.downstream.base import headers_of_fault, message_of, message_of_fault, pieces_of
from proxy.errors import ErrorCode, LimitReached, ProxyError, TaskNotFound, UpstreamRefused
from proxy.protocol.jsonrpc import RequestId
from proxy.routing.base import ErrorAnswer, ResultAnswer

ID = RequestId(b'"\\u0061"', "a")


def test_an_answer_keeps_its_bytes_and_the_spelling_of_the_id() -> None:
    """BASE-003, I1."""
    raw, status = message_of(ID, ResultAnswer(b'{ "b":1.0}'))
    assert (raw, status) == (b'{"jsonrpc":"2.0","id":"\\u0061","result":{ "b":1.0}}', HTTPStatus.OK)
    raw, status = message_of(ID, ErrorAnswer(b'{"code": 1}', HTTPStatus.NOT_FOUND))
    assert (raw, status) == (b'{"jsonrpc":"2.0","id":"\\u0061","error":{"code": 1}}', HTTPStatus.NOT_FOUND)


def test_an_answer_in_pieces_is_the_same_answer_and_is_not_copied() -> None:
    large = b'{"a":"' + b"x" * 1_000_000 + b'"'
    answer = ResultAnswer(memoryview(large), b',"b":1', b"}")
    assert answer.result == large + b',"b":1}'
    match answer:
        case ResultAnswer(result):
            assert result == answer.result
    assert message_of(ID, answer) == message_of(ID, ResultAnswer(answer.result))
    pieces, status = pieces_of(ID, answer)
    assert (b"".join(pieces), status) == message_of(ID, answer)
    assert [piece.obj for piece in pieces if isinstance(piece, memoryview)] == [large]
    assert answer.result is not large
    assert ResultAnswer(large).result is large


def test_a_fault_says_what_it_is_with_data_where_it_has_some() -> None:
    """BASE-009: no id where none could be read."""
    assert json.loads(message_of_fault(None, TaskNotFound())) == {
        "jsonrpc": "2.0",
        "error": {"code": -32602, "message": TaskNotFound.MESSAGE},
    }
    answer = json.loads(message_of_fault(ID, ProxyError("no", data={"why": 1})))
    assert (answer["id"], answer["error"]) == ("a", {"code": -32603, "message": "no", "data": {"why": 1}})


def test_our_own_words_are_ascii_whatever_a_peer_put_into_them() -> None:
    said = "caf\u00e9 \udce9"
    raw = message_of_fault(None, ProxyError(said))
    assert raw.isascii()
    assert json.loads(raw)["error"]["message"] == said


def test_no_fault_of_ours_has_a_code_that_others_use() -> None:
    """BASE-010, BASE-011."""
    for name in vars(errors):
        fault = getattr(errors, name)
        if isinstance(fault, type) and issubclass(fault, ProxyError):
            assert fault.code in ErrorCode
    assert not [code for code in ErrorCode if -32019 <= code <= -32000]


@pytest.mark.parametrize(
    "fault, headers",
    [
        (ProxyError("no"), []),
        (LimitReached("no", retry_after_s=3), [("Retry-After", "3")]),
        (
            UpstreamRefused("no", status=HTTPStatus.UNAUTHORIZED, challenges=("Bearer", "Basic")),
            [("WWW-Authenticate", "Bearer"), ("WWW-Authenticate", "Basic")],
        ),
    ],
)
def test_some_faults_have_headers(fault: ProxyError, headers: list[tuple[str, str]]) -> None:
    assert headers_of_fault(fault) == headers
