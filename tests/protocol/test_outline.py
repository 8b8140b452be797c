"""Splicing by an outline: the same object as by `splice`, with nothing else changed, and nothing copied."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol.envelope import RawObject, loads, splice
from proxy.protocol.outline import OUTLINED, Outline, Pieces, spliced

NEW = {"resultType": b'"complete"', "_meta": b'{"a":1}'}


def change(raw: bytes, **changes: bytes) -> Pieces:
    return spliced(raw, Outline.of(RawObject.parse(raw)), changes)


@pytest.mark.parametrize(
    "raw, made",
    [
        (b"{}", b'{"resultType":"complete"}'),
        (b" { } ", b' {"resultType":"complete" } '),
        (b'{"n" : 1.0 }', b'{"n" : 1.0,"resultType":"complete" }'),
        (b'{"resultType" : "x" }', b'{"resultType" : "complete" }'),
        (b'{ "a":1, "resultType":[1,{}] ,"b":2}', b'{ "a":1, "resultType":"complete" ,"b":2}'),
        (b'{"result\\u0054ype":1}', b'{"result\\u0054ype":"complete"}'),
        (b'{"a":{"resultType":1}}', b'{"a":{"resultType":1},"resultType":"complete"}'),
        (b'{"a":"}","b":"{"}', b'{"a":"}","b":"{","resultType":"complete"}'),
        (b'{"resultType":1,"a":2,"resultType":3}', b'{"resultType":"complete","a":2}'),
    ],
)
def test_one_member_is_set_and_all_else_keeps_its_bytes(raw: bytes, made: bytes) -> None:
    assert b"".join(change(raw, resultType=b'"complete"')) == made


@pytest.mark.parametrize(
    "raw, made",
    [
        (b'{"_meta":0,"resultType":0}', b'{"_meta":{"a":1},"resultType":"complete"}'),
        (b'{"resultType":0, "_meta":0}', b'{"resultType":"complete", "_meta":{"a":1}}'),
        (b'{"x":0, "_meta":0 }', b'{"x":0, "_meta":{"a":1},"resultType":"complete" }'),
        (b"{}", b'{"resultType":"complete","_meta":{"a":1}}'),
    ],
)
def test_several_are_set_at_once(raw: bytes, made: bytes) -> None:
    assert b"".join(change(raw, **NEW)) == made


def test_nothing_to_change_is_the_text_itself() -> None:
    assert b"".join(change(b' {"_meta" : 1} ')) == b' {"_meta" : 1} '


def test_the_large_parts_are_views_of_the_text() -> None:
    raw = b'{"content":"' + b"x" * 1_000_000 + b'","_meta":{},"more":"' + b"y" * 1_000_000 + b'"}'
    pieces = change(raw, **NEW)
    assert sum(len(piece) for piece in pieces if isinstance(piece, bytes)) < 100
    assert all(piece.obj is raw for piece in pieces if isinstance(piece, memoryview))


def test_the_known_members_can_be_read_from_the_outline() -> None:
    raw = b'{"content":[],"_meta":{"a": 1}}'
    part = Outline.of(RawObject.parse(raw)).part(raw)
    assert part.get("_meta") == b'{"a": 1}'
    assert part.get("resultType") is None


KEYS = st.sampled_from(["_meta", "resultType", "content", "a", "\u2603"])
VALUES: st.SearchStrategy[Any] = st.sampled_from([None, 1, "}", {"_meta": 1}, [[], {}]])
OBJECTS = st.lists(st.tuples(KEYS, VALUES), max_size=6)


@given(OBJECTS, st.sampled_from(["", " ", "\n\t "]), st.sets(st.sampled_from(sorted(OUTLINED))))
def test_whatever_the_object_it_is_what_splice_makes_of_it(
    found: list[tuple[str, Any]], space: str, keys: set[str]
) -> None:
    inside = f"{space},{space}".join(f"{json.dumps(key)}{space}:{json.dumps(v)}" for key, v in found)
    raw = f"{{{space}{inside}{space}}}".encode()
    changes = {key: NEW[key] for key in sorted(keys)}
    made = b"".join(spliced(raw, Outline.of(RawObject.parse(raw)), changes))
    read = json.JSONDecoder(object_pairs_hook=list).decode
    assert read(made.decode()) == read(splice(raw, changes).decode())
    if not changes:
        assert made == raw
    assert isinstance(loads(made), dict)
