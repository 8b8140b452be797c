"""Large texts are judged piece by piece as they would be whole, and taken apart at the same places."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from proxy.protocol import sketch as module
from proxy.protocol.envelope import JsonError, RawObject, check, members
from proxy.protocol.jsonrpc import MessageError, Notification, Request, parse, parse_large, with_id
from proxy.protocol.sketch import sketch

DEPTH = 12
STRINGS = [
    "",
    "a",
    'q"uote',
    "back\\slash",
    "[",
    "]}",
    "ü",
    "€uro",
    "\U0001f600",
    "x" * 70,
    "\\\\",
    ",",
    "::",
]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small texts are cut everywhere."""
    monkeypatch.setattr(module, "_WINDOW", 11)


def some_value(rand: random.Random, depth: int) -> Any:
    kind = rand.randrange(8 if depth else 4)
    match kind:
        case 0:
            return rand.choice(STRINGS) * rand.randrange(3)
        case 1:
            return rand.choice([0, -1, 1.5, 10**40, 1e-7])
        case 2:
            return rand.choice([True, False, None])
        case 3:
            return rand.choice([[], {}, ""])
        case 4 | 5:
            return [some_value(rand, depth - 1) for _ in range(rand.randrange(6))]
        case _:
            return {rand.choice(STRINGS): some_value(rand, depth - 1) for _ in range(rand.randrange(6))}


def some_text(rand: random.Random) -> bytes:
    value = some_value(rand, 5)
    ascii_only, indent = rand.random() < 0.5, rand.choice([None, None, 1, 20])
    separators = rand.choice([None, (",", ":")])
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators).encode()


def damaged(rand: random.Random, text: bytes) -> bytes:
    at = rand.randrange(len(text) + 1)
    end = at + rand.randrange(3)
    put = rand.choice(
        [b"", b",", b"[", b"]", b"{", b"}", b'"', b"\\", b":", b"0", b" ", b"\xff", b"\\ud83d", b"e"]
    )
    return text[:at] + put + text[end:]


def is_json(text: bytes) -> bool:
    try:
        check(text, DEPTH)
    except JsonError:
        return False
    return True


def is_sketched(text: bytes) -> bool:
    try:
        sketch(text, DEPTH, 2)
    except JsonError:
        return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_pieces_are_judged_as_the_whole_is(seed: int) -> None:
    rand = random.Random(seed)
    verdicts = set()
    for _ in range(80):
        text = some_text(rand)
        for candidate in (text, *(damaged(rand, text) for _ in range(4))):
            verdict = is_json(candidate)
            assert is_sketched(candidate) is verdict, candidate
            verdicts.add(verdict)
    assert verdicts == {True, False}


@pytest.mark.parametrize("seed", range(8))
def test_members_stand_where_they_stand_in_the_whole(seed: int) -> None:
    rand = random.Random(100 + seed)
    for _ in range(60):
        inner = {f"k{i}": some_value(rand, 4) for i in range(rand.randrange(5))}
        whole = json.dumps(
            {"a": 1, "params": inner, "z": some_value(rand, 3)}, indent=rand.choice([None, 2])
        ).encode()
        drawn = sketch(whole, DEPTH, 2)
        found = drawn.members()
        assert [there for _, there in found] == members(whole)
        here, there = found[1]
        value = whole[there.value_start : there.end]
        assert [m.moved(-there.value_start) for _, m in drawn.members(here.value_start, here.end)] == members(
            value
        )


def test_what_lies_deep_is_left_out_and_what_is_long_too() -> None:
    deep = (
        b'{"a":{"b":{"c":[' + b"1,[2],{}," * 500 + b'0]}},"s":"' + b"y" * 500 + b'","w":1' + b" " * 500 + b"}"
    )
    assert len(sketch(deep, DEPTH, 2).text) < 200


@pytest.mark.parametrize(
    "text", [b"[" * 13 + b"]" * 13, b'{"a":' * 6 + b"[1," * 7 + b"1" + b"]" * 7 + b"}" * 6]
)
def test_depth_is_counted_across_pieces(text: bytes) -> None:
    with pytest.raises(JsonError, match="nested more than 12"):
        sketch(text, DEPTH, 2)


@pytest.mark.parametrize(
    "text",
    [
        b"1,2",
        b"[1,]",
        b'{"a":1,}',
        b"[1,2}",
        b"",
        b" ",
        b'"abc',
        b'["' + b"x" * 50,
        b"00" + b"0" * 50,
        b"1" + b" " * 40 + b"2",
    ],
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(JsonError):
        sketch(text, DEPTH, 2)


def test_a_large_message_is_read_as_any_other() -> None:
    """BASE-001: and of its params it is known where each member stands."""
    params = b'{"_meta":{"v":"1"},"name":"t","arguments":{"x":[' + b'{"a":[1,"]"]},' * 30 + b"0]}}"
    raw = b' {"jsonrpc":"2.0", "x":[1,2,[3]], "id":"\\u0041","method":"tools/call","params":' + params + b"}"
    large = parse_large(raw, DEPTH)
    assert large == parse(raw, DEPTH)
    assert isinstance(large, Request)
    assert large.known is not None
    assert large.readable is large.known
    assert list(large.known.members) == members(params)
    assert large.known.get("arguments") == RawObject.parse(params).get("arguments")
    assert with_id(raw, 7, DEPTH) == raw.replace(b'"\\u0041"', b"7")
    note = parse_large(b'{"jsonrpc":"2.0","method":"n","params":{"a":1}}', DEPTH)
    assert isinstance(note, Notification)
    assert note.known is not None


@pytest.mark.parametrize(
    "raw",
    [
        b"[1,2]",
        b"7",
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}',
        b'{"jsonrpc":"1.0","id":1,"method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[}}',
    ],
)
def test_a_large_message_is_refused_as_any_other(raw: bytes) -> None:
    with pytest.raises(MessageError) as plain:
        parse(raw, DEPTH)
    with pytest.raises(MessageError) as large:
        parse_large(raw, DEPTH)
    assert large.value.code is plain.value.code


def test_params_that_are_no_object_are_known_to_nobody() -> None:
    large = parse_large(b'{"jsonrpc":"2.0","id":1,"method":"m","params":[1,2]}', DEPTH)
    assert isinstance(large, Request)
    assert large.known is None
    assert large.readable == b"[1,2]"
