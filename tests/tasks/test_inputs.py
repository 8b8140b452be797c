"""Answers of clients: what has the shape of an answer, and what is refused."""

from __future__ import annotations

import time
from typing import Final

import pytest

from proxy.errors import ClientProtocolError, ErrorCode
from proxy.tasks.inputs import QUESTION_METHODS, check_answer, parse_responses

ELICIT, SAMPLE, ROOTS = "elicitation/create", "sampling/createMessage", "roots/list"

GOOD: Final = [
    (ELICIT, b'{"action":"accept","content":{"name":"octocat"}}'),
    (ELICIT, b'{"action":"accept"}'),
    (ELICIT, b'{"action":"accept","content":{"breaks":["the","schema"]}}'),
    (ELICIT, b'{"action":"decline"}'),
    (ELICIT, b'{"action":"cancel","_meta":{"x":1},"more":null}'),
    (SAMPLE, b'{"role":"assistant","content":{"type":"text","text":"Paris"},"model":"m"}'),
    (SAMPLE, b'{"role":"assistant","content":[],"model":"m","stopReason":"toolUse"}'),
    (ROOTS, b'{"roots":[]}'),
    (ROOTS, b'{"roots":[{"uri":"file:///a","name":"a"},{"uri":"file:///b"}]}'),
]
BAD: Final = [
    (ELICIT, b"{}"),
    (ELICIT, b'{"action":"maybe"}'),
    (ELICIT, b'{"action":null}'),
    (ELICIT, b'{"action":["accept"]}'),
    (ELICIT, b'{"action":"accept","content":"yes"}'),
    (ELICIT, b'{"action":"accept","content":null}'),
    (ELICIT, b'{"action":"accept","action":"decline"}'),
    (ELICIT, b'{"content":{"name":"octocat"}}'),
    (SAMPLE, b'{"content":{"type":"text","text":"Paris"}}'),
    (SAMPLE, b'{"role":"assistant"}'),
    (SAMPLE, b'{"role":"assistant","content":"Paris"}'),
    (SAMPLE, b'{"role":1,"content":{}}'),
    (ROOTS, b"{}"),
    (ROOTS, b'{"roots":"file:///a"}'),
    (ROOTS, b'{"roots":["file:///a"]}'),
    (ROOTS, b'{"roots":[{"name":"a"}]}'),
    (ROOTS, b'{"roots":[{"uri":7}]}'),
    *((method, value) for method in (ELICIT, SAMPLE, ROOTS) for value in (b"null", b"[]", b'"yes"', b"7")),
]


def code_of(fault: pytest.ExceptionInfo[ClientProtocolError]) -> ErrorCode:
    return fault.value.code


@pytest.mark.parametrize("method, value", GOOD)
def test_an_answer_of_its_kind_passes_whatever_its_content(method: str, value: bytes) -> None:
    """TX-UPD-012: `requestedSchema` is the server's business."""
    check_answer("input-1", method, value)


@pytest.mark.parametrize("method, value", BAD)
def test_what_is_no_answer_of_its_kind_is_refused_by_name(method: str, value: bytes) -> None:
    """TX-UPD-012, MRTR-016: -32602, naming the key and the question."""
    with pytest.raises(ClientProtocolError, match=f"input-1.*{method}") as fault:
        check_answer("input-1", method, value)
    assert code_of(fault) is ErrorCode.INVALID_PARAMS


def test_every_question_has_its_kind_of_answer() -> None:
    """Contract section 4: three kinds, and no other reaches a client."""
    assert {ELICIT, SAMPLE, ROOTS} == QUESTION_METHODS


@pytest.mark.parametrize("params", [None, b"{}", b'{"taskId":"x"}', b'{"inputResponse":{}}'])
def test_a_missing_map_is_told_from_an_empty_one(params: bytes | None) -> None:
    assert parse_responses(params) is None
    assert parse_responses(b'{"inputResponses":{}}') == {}


def test_answers_are_kept_as_the_text_they_came_in() -> None:
    """Contract section 1, I1: spacing, spelling of numbers and unknown members stay."""
    accepted = b'{"action" :"accept", "content":{"n":1.10}}'
    raw = b'{"inputResponses": {"input-1" : ' + accepted + b',\n"b":null}, "taskId":"x"}'
    assert parse_responses(raw) == {"input-1": accepted, "b": b"null"}


@pytest.mark.parametrize(
    "params",
    [
        b'{"inputResponses":null}',
        b'{"inputResponses":[]}',
        b'{"inputResponses":"{}"}',
        b'{"inputResponses":0}',
        b'{"inputResponses":{"a":{},"a":{}}}',
        b'{"inputResponses":{"a":{},"\\u0061":{}}}',
        b'{"inputResponses":{},"inputResponses":{}}',
        b"[]",
    ],
)
def test_what_is_no_map_of_answers_is_refused(params: bytes) -> None:
    """TX-UPD-012, MRTR-016: another type, or a key given twice."""
    with pytest.raises(ClientProtocolError, match="inputResponses") as fault:
        parse_responses(params)
    assert code_of(fault) is ErrorCode.INVALID_PARAMS


def test_very_many_answers_are_read_in_one_pass() -> None:
    """SEC-003: as many keys as a message holds do not hold up everybody else."""
    count = 100_000
    raw = b'{"inputResponses":{' + b",".join(b'"k%d":{}' % n for n in range(count)) + b"}}"
    began = time.process_time()
    responses = parse_responses(raw)
    assert responses is not None
    assert len(responses) == count
    assert time.process_time() - began < 5  # a pass for each key would take an hour
