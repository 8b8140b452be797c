"""Stored results by their outline: in either era exactly what the direct answer would have been."""

from __future__ import annotations

import pytest

from proxy.eras.stored import lift_stored, relate_stored
from proxy.eras.tasks_2025 import with_related_task
from proxy.eras.to_modern import lift_result
from proxy.errors import UpstreamProtocolError
from proxy.protocol.envelope import RawObject, loads
from proxy.protocol.outline import Outline, whole

CALL = "tools/call"
SERVER = b'{"name": "trainer", "version":"1.0"}'
TASK_ID = "tpx-" + "a" * 32
RELATED = "io.modelcontextprotocol/related-task"

RESULTS = [
    b"{}",
    b'{"content": [{"type":"text","text":"caf\\u00e9"}] , "n": 1.0 }',
    b'{"resultType":"task","content":[]}',
    b'{"content":[], "_meta" : {"com.example/x": 1.0} ,"isError":true}',
    b'{"_meta":null,"resultType":7}',
    b'{"_meta":{"io.modelcontextprotocol/serverInfo":0,"io.modelcontextprotocol/related-task":0}}',
    b'{"resultType":1,"content":[],"resultType":2}',
]


def outline(result: bytes) -> Outline:
    return Outline.of(RawObject.parse(result))


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("server_info", [SERVER, None])
def test_a_stored_result_is_the_blocking_answer_byte_for_byte(
    result: bytes, server_info: bytes | None
) -> None:
    """TX-GET-004: with an outline, and without one, as earlier versions stored it."""
    direct = lift_result(CALL, result, server_info)
    assert whole(lift_stored(CALL, result, outline(result), server_info)) == direct
    assert whole(lift_stored(CALL, result, None, server_info)) == direct


def test_a_cacheable_result_would_have_its_hints() -> None:
    result = b'{"contents":[]}'
    lifted = whole(lift_stored("resources/read", result, outline(result), SERVER))
    assert lifted == lift_result("resources/read", result, SERVER)
    assert b"ttlMs" in lifted


@pytest.mark.parametrize("result", RESULTS)
def test_a_stored_result_says_which_task_it_belongs_to(result: bytes) -> None:
    """T25-RES-004: and is otherwise what the call would have returned."""
    related, direct = (
        relate_stored(CALL, result, outline(result), SERVER, TASK_ID),
        with_related_task(result, TASK_ID),
    )
    assert loads(whole(related)) == loads(direct)
    assert loads(whole(related))["_meta"][RELATED] == {"taskId": TASK_ID}
    assert whole(relate_stored(CALL, result, None, SERVER, TASK_ID)) == direct


def test_a_meta_that_stands_twice_cannot_be_added_to() -> None:
    result = b'{"_meta":{"a":1},"_meta":{"b":2}}'
    with pytest.raises(UpstreamProtocolError, match="'_meta' is given twice"):
        lift_stored(CALL, result, outline(result), SERVER)
    assert loads(whole(lift_stored(CALL, result, outline(result), None)))["_meta"] == {"b": 2}
    assert whole(relate_stored(CALL, result, outline(result), SERVER, TASK_ID)) == with_related_task(
        result, TASK_ID
    )


def test_nothing_of_a_large_result_is_copied() -> None:
    result = b'{"content":[{"type":"text","text":"' + b"x" * 1_000_000 + b'"}]}'
    for pieces in (
        lift_stored(CALL, result, outline(result), SERVER),
        relate_stored(CALL, result, outline(result), SERVER, TASK_ID),
    ):
        assert sum(len(piece) for piece in pieces if isinstance(piece, bytes)) < 300
        assert all(piece.obj is result for piece in pieces if isinstance(piece, memoryview))


def test_what_a_modern_server_said_is_lowered_for_a_2025_client() -> None:
    """Contract sections 5 and 7: of whichever era the client was that made the task."""
    meta = b'{"io.modelcontextprotocol/serverInfo":{"name":"new"},"own":1.0}'
    result = b'{"resultType":"complete","content":[],"structuredContent":[1],"_meta":' + meta + b"}"
    related = whole(relate_stored(CALL, result, outline(result), None, TASK_ID))
    assert loads(related) == {"content": [], "_meta": {"own": 1.0, RELATED: {"taskId": TASK_ID}}}
    assert b'"own":1.0' in related
