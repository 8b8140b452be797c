"""What a POST carries, one message or a batch, and which era that is of.

Contract section 2, "Client's era, per message"; field report F20.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.downstream.posted import MAX_BATCH, Posted, header_era, read_posted
from proxy.downstream.validation import Rejection
from proxy.eras.era import Era
from proxy.protocol import names
from proxy.protocol.envelope import MAX_PARTS
from proxy.protocol.jsonrpc import ErrorResponse, Notification, Request, ResultResponse

MAX_DEPTH = 64
MODERN = names.LATEST_MODERN
BATCHES = "2025-03-26"
LEGACY = pytest.mark.parametrize("version", names.LEGACY_VERSIONS)


def call(id: Any = 1, method: str = "tools/call", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


NOTE: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/x"}
ANSWER: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "result": {}}
MODERN_CALL = call(_meta={names.META_PROTOCOL_VERSION: MODERN})


def read(message: Any, *versions: str) -> Posted:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return read_posted(body, versions, MAX_DEPTH)


def refused(message: Any, *versions: str) -> tuple[int, int]:
    """Status and code; nothing of what was read gets any further."""
    with pytest.raises(Rejection) as caught:
        read(message, *versions)
    return caught.value.fault.http_status, caught.value.fault.code


# -- the era ------------------------------------------------------------------------------------------


@LEGACY
@pytest.mark.parametrize("message", [call(), NOTE, ANSWER, call(method="initialize", protocolVersion="x")])
def test_a_message_without_modern_meta_is_legacy_at_a_legacy_version(
    message: dict[str, Any], version: str
) -> None:
    """VER-006, VER-020: also without the header."""
    assert read(message, version).era is Era.LEGACY
    assert read(message).era is Era.LEGACY


@LEGACY
def test_modern_meta_wins_over_a_legacy_header(version: str) -> None:
    """VER-005: on any message, whatever the value."""
    values: tuple[Any, ...] = (MODERN, "2025-11-25", "", None, 7, {})
    for value in values:
        meta = {names.META_PROTOCOL_VERSION: value}
        for message in (
            call(_meta=meta),
            call(method="initialize", _meta=meta),
            {**NOTE, "params": {"_meta": meta}},
        ):
            assert read(message, version).era is Era.MODERN


def test_modern_meta_is_seen_however_it_is_written() -> None:
    key = names.META_PROTOCOL_VERSION
    for written in (key, key.replace("/", "\\/"), "\\u0069" + key[1:]):
        assert read(
            b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"%s":1}}}' % written.encode()
        ).era is (Era.MODERN)


@pytest.mark.parametrize("place", ["arguments", "x"])
def test_the_key_elsewhere_makes_no_message_modern(place: str) -> None:
    params: dict[str, Any] = {place: {names.META_PROTOCOL_VERSION: MODERN}}
    assert read(call(**params)).era is Era.LEGACY
    assert read(call(_meta={"a": names.META_PROTOCOL_VERSION})).era is Era.LEGACY


@pytest.mark.parametrize("version", [MODERN, "1900-01-01", "2099-01-01", "", "x", "2025-11-25, 2025-11-25"])
def test_a_version_header_that_is_not_legacy_is_for_modern_rules_to_judge(version: str) -> None:
    """VER-019: they refuse what they do not know with 400."""
    for message in (call(), NOTE, ANSWER):
        assert read(message, version).era is Era.MODERN
    assert header_era([version]) is Era.MODERN
    assert header_era([names.LATEST_LEGACY, version]) is Era.MODERN


def test_a_version_header_may_have_blanks_around_it_and_stand_twice() -> None:
    assert header_era([" 2025-11-25\t", "2025-11-25"]) is Era.LEGACY
    assert header_era([]) is Era.LEGACY


# -- one message --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message, kind, rid",
    [
        (call(1), Request, 1),
        (call("1"), Request, "1"),
        (NOTE, Notification, None),
        (ANSWER, ResultResponse, None),
    ],
)
def test_one_message_is_read_with_the_id_that_an_error_about_it_has(
    message: dict[str, Any], kind: type, rid: int | str | None
) -> None:
    posted = read(message)
    [parsed] = posted.messages
    assert isinstance(parsed, kind)
    assert not posted.is_batch
    assert (posted.rid.value if posted.rid is not None else None) == rid


def test_an_error_without_an_id_is_an_answer_all_the_same() -> None:
    [parsed] = read({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": ""}}).messages
    assert isinstance(parsed, ErrorResponse)


@pytest.mark.parametrize("id", [None, True, False, 1.5, [], {}])
def test_an_id_that_is_none_is_refused_and_not_swallowed(id: Any) -> None:
    """F17, F19."""
    assert refused(call(id)) == (400, -32600)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b"\xff", b'{"a":NaN}', b"[" * 65 + b"]" * 65, b"[1,"]
)
def test_what_is_no_json_is_a_parse_error(body: bytes) -> None:
    """HTTP-079, F19."""
    assert refused(body) == (400, -32700)


@pytest.mark.parametrize("body", [b"1", b'"x"', b"null", b"{}", b'{"jsonrpc":"1.0","method":"x"}'])
def test_json_that_is_no_message_is_refused(body: bytes) -> None:
    assert refused(body) == (400, -32600)


@pytest.mark.parametrize("params", [b"null", b"{}", b"[]", b"0"])
def test_params_of_any_kind_are_the_servers_to_judge(params: bytes) -> None:
    """F19."""
    assert read(b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":%s}' % params).era is Era.LEGACY


# -- batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", [(), (BATCHES,), (BATCHES, " " + BATCHES)])
def test_a_batch_is_read_in_the_one_revision_that_has_them(versions: tuple[str, ...]) -> None:
    """HTTP-078, VER-020, F20."""
    posted = read([call(1), NOTE, call("b"), ANSWER], *versions)
    assert [type(message) for message in posted.messages] == [Request, Notification, Request, ResultResponse]
    assert (posted.era, posted.is_batch, posted.rid) == (Era.LEGACY, True, None)


def test_a_batch_of_one_is_a_batch() -> None:
    posted = read(b" \r\n\t" + json.dumps([call()]).encode())
    assert (len(posted.messages), posted.is_batch, posted.rid) == (1, True, None)


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25", MODERN, "x"])
def test_a_batch_is_refused_in_any_other_revision(version: str) -> None:
    """F20, HTTP-005."""
    assert refused([call()], version) == (400, -32600)
    assert refused([call()], BATCHES, version) == (400, -32600)


@pytest.mark.parametrize(
    "batch",
    [[], [1], [call(), []], [call(), {}], [call(None)], [call(), MODERN_CALL], [{"jsonrpc": "2.0", "id": 5}]],
)
def test_a_batch_with_nothing_or_anything_else_in_it_is_refused_as_a_whole(batch: list[Any]) -> None:
    """F20."""
    with pytest.raises(Rejection) as caught:
        read(batch, BATCHES)
    assert (caught.value.fault.http_status, caught.value.fault.code, caught.value.rid) == (400, -32600, None)


def test_a_batch_of_very_many_is_refused_as_a_whole() -> None:
    """SEC-003."""
    assert len(read([NOTE] * MAX_BATCH).messages) == MAX_BATCH
    assert refused([NOTE] * (MAX_BATCH + 1)) == (400, -32600)
    assert refused(b"[" + b"{}," * MAX_PARTS + b"{}]") == (400, -32600)


@pytest.mark.parametrize("place", ["top", "params", "meta"])
def test_a_message_with_very_many_members_is_refused_or_left_to_who_takes_it_apart(place: str) -> None:
    """SEC-003: never a fault of ours."""
    many = {f"k{n}": 0 for n in range(MAX_PARTS + 1)}
    message = call(_meta={names.META_PROTOCOL_VERSION: MODERN})
    match place:
        case "top":
            assert refused({**message, **many}) == (400, -32600)
        case "params":
            message["params"] |= many
            assert read(message, MODERN).era is Era.MODERN  # by its header alone: the rest is not found
        case _:
            message["params"][names.META] |= many
            assert read(message).era is Era.MODERN
