"""Raw JSON: judged as RFC 8259 does, taken apart and spliced without a byte changed (I1, F17 to F19)."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocol import envelope
from proxy.protocol.envelope import (
    DuplicateMember,
    JsonError,
    RawObject,
    check,
    compact_members,
    decode_string,
    dumps,
    elements,
    loads,
    members,
    one_line,
    splice,
)
from tests.protocol.json_texts import (
    NotJson,
    arrays,
    depth_of,
    keys,
    near_texts,
    objects,
    spaces,
    strings,
    texts,
    values,
)

DEPTH = 512
SECONDS = 8.0  # for what takes about one
DEEP: dict[str, Callable[[int], bytes]] = {
    "arrays": lambda n: b"[" * n + b"]" * n,
    "objects": lambda n: b'{"a":' * n + b"1" + b"}" * n,
    "mixed": lambda n: b'[{"]":' * (n // 2) + (b"[]" if n % 2 else b"0") + b"}]" * (n // 2),
    "after a flat part": lambda n: b"[" + b"[],{}," * 1_000 + b"[" * (n - 1) + b"]" * (n - 1) + b"]",
    "many times": lambda n: b"[" + b",".join([b"[" * (n - 1) + b"]" * (n - 1)] * 9) + b"]",
    "with brackets in strings": lambda n: b'["[[[\\"[[[{",' * n + b'"]"' + b"]" * n,
    "with backslashes before quotes": lambda n: b'["\\\\",' * n + b'"\\\\\\"]"' + b"]" * n,
}


def passes(raw: bytes, max_depth: int = DEPTH) -> bool:
    try:
        check(raw, max_depth)
    except JsonError:
        return False
    return True


# -- check ---------------------------------------------------------------------------------------------


@given(texts())
def test_what_is_json_passes(raw: bytes) -> None:
    assert passes(raw)


@given(near_texts(), st.integers(0, 6))
def test_the_verdict_is_that_of_the_grammar(raw: bytes, max_depth: int) -> None:
    try:
        expected = depth_of(raw) <= max_depth
    except NotJson:
        expected = False
    assert passes(raw, max_depth) == expected


@given(texts())
def test_the_depth_is_exact(raw: bytes) -> None:
    depth = depth_of(raw)
    check(raw, depth)
    assert depth == 0 or not passes(raw, depth - 1)


@pytest.mark.parametrize("shape", DEEP)
@pytest.mark.parametrize("depth", [2, 3, 31, 32, 33, 63, 64, 65, 66, 511, 512])
def test_deep_texts_pass_up_to_the_bound(shape: str, depth: int) -> None:
    raw = DEEP[shape](depth)
    check(raw, depth)
    with pytest.raises(JsonError, match=f"nested more than {depth - 1} levels deep"):
        check(raw, depth - 1)
    if raw.startswith(b"["):
        assert elements(b"[1," + raw + b" ]") == [b"1", raw]
    assert RawObject.parse(b'{"x":' + raw + b"}").get("x") == raw


@pytest.mark.parametrize("shape", DEEP)
def test_a_text_deeper_than_any_stack_is_refused(shape: str) -> None:
    assert not passes(DEEP[shape](100_000))
    assert not passes(DEEP[shape](100_000), 200_000)
    assert not passes(DEEP[shape](100_000)[:400_000], 300_000)


@pytest.mark.parametrize(
    "raw",
    [
        b"9" * 5_000,
        b"-0",
        b"1E400",
        b"1.10",
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        '"\u2028"'.encode(),
        b'"\x7f"',
    ],
)
def test_what_parsers_stumble_over_is_json(raw: bytes) -> None:
    assert passes(raw, 0)


@pytest.mark.parametrize(
    "raw, reason",
    [
        (b"", "Expecting value"),
        (b"NaN", "NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b'{"a" 1}', "Expecting ':' delimiter"),
        (b'"\x01"', "control character"),
        (b'"\xc3"', "not valid UTF-8 at byte 1"),
        (b'"\xed\xa0\x80"', "not valid UTF-8 at byte 1"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"{}{}", "Extra data"),
        (b"[" * 9, "nested more than 8 levels deep"),
    ],
)
def test_the_error_says_what_is_wrong(raw: bytes, reason: str) -> None:
    with pytest.raises(JsonError, match=f"(?i){reason}"):
        check(raw, 8)


# -- members and elements ------------------------------------------------------------------------------


@given(objects(values))
def test_members_are_found_in_order_with_their_text(made: tuple[bytes, list[tuple[bytes, bytes]]]) -> None:
    raw, pairs = made
    found = members(raw)
    assert [m.key for m in found] == [json.loads(key.decode()) for key, _ in pairs]
    assert [raw[m.value_start : m.end] for m in found] == [value for _, value in pairs]
    assert all(raw.startswith(key, m.start) for m, (key, _) in zip(found, pairs, strict=True))


@given(objects(values))
def test_compact_members_are_those_of_the_slow_way_or_left_to_it(
    made: tuple[bytes, list[tuple[bytes, bytes]]],
) -> None:
    """Whatever is odd about the text: white space, escapes, keys that stand twice, lone surrogates."""
    raw, _ = made
    compact = compact_members(raw)
    if compact is not None:
        walked = b" " + raw  # not compact
        assert list(compact.items()) == [(m.key, walked[m.value_start : m.end]) for m in members(walked)]


@pytest.mark.parametrize(
    "raw, expected",
    [
        (b'{"a":1.10,"b":{"c": [1]},"":"x\\u00fc"}', {"a": b"1.10", "b": b'{"c": [1]}', "": b'"x\\u00fc"'}),
        (b'{"a":1,"a":2}', None),
        (b'{"a":1,"":"","a":1}', None),
        (b'{"a":1,"\\u0061":1}', None),
        (b'{"a": 1}', None),
        (b'{"a":1} ', None),
        ('{"\u00fc":1}'.encode(), None),
        (b'{"a":"\\ud800"}', None),
        (b"[1]", None),
        (b"1", None),
    ],
)
def test_compact_members_vouch_only_for_text_without_anything_odd(
    raw: bytes, expected: dict[str, bytes] | None
) -> None:
    """A key that stands twice must not be taken for white space, nor the reverse."""
    assert compact_members(raw) == expected


@given(arrays(values), spaces)
def test_elements_are_found_in_order_with_their_text(made: tuple[bytes, list[bytes]], space: bytes) -> None:
    raw, items = made
    assert elements(space + raw + space) == items


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"{}"', b"null", b" "])
def test_what_is_no_object_has_no_members(raw: bytes) -> None:
    with pytest.raises(JsonError, match="not an object"):
        members(raw)


@pytest.mark.parametrize("raw", [b"{}", b"1", b'"[]"', b"null", b" "])
def test_what_is_no_array_has_no_elements(raw: bytes) -> None:
    with pytest.raises(JsonError, match="not an array"):
        elements(raw)


@given(near_texts())
def test_unchecked_text_raises_json_errors_only(raw: bytes) -> None:
    """Some callers read what was checked as part of something larger; a slip there must not hang or crash."""
    for read in (members, elements):
        with suppress(JsonError, UnicodeDecodeError, json.JSONDecodeError):
            read(raw)


@given(strings)
def test_strings_mean_what_the_standard_library_says(raw: bytes) -> None:
    assert decode_string(raw) == json.loads(raw.decode())


def test_a_raw_object_tells_absent_null_and_empty_apart() -> None:
    """F19."""
    obj = RawObject.parse(
        b' {"null": null, "empty": {} , "text":"\\u00fc", "n": -0, "twice":1, "tw\\u0069ce":2} '
    )
    assert (obj.get("absent"), obj.get("null"), obj.get("empty"), obj.get("n")) == (
        None,
        b"null",
        b"{}",
        b"-0",
    )
    assert (obj.text("text"), obj.text("n"), obj.text("absent")) == ("ü", None, None)
    empty = obj.object("empty")
    assert empty is not None
    assert empty.members == ()
    assert (obj.object("null"), obj.object("absent")) == (None, None)
    assert ("null" in obj, "twice" in obj, "absent" in obj) == (True, True, False)
    with pytest.raises(DuplicateMember, match="'twice' is given twice"):
        obj.get("twice")


# -- splice --------------------------------------------------------------------------------------------


@given(objects(values), st.dictionaries(keys, values | st.none(), max_size=4))
def test_splicing_changes_what_it_is_told_and_no_other_byte(
    made: tuple[bytes, list[tuple[bytes, bytes]]], raw_changes: dict[bytes, bytes | None]
) -> None:
    raw, pairs = made
    changes = {json.loads(key.decode()): value for key, value in raw_changes.items()}
    spliced = splice(raw, changes)
    check(spliced, DEPTH)
    kept: list[tuple[str, bytes]] = []
    named: list[tuple[str, bytes]] = []
    for m in members(spliced):
        (named if m.key in changes else kept).append((m.key, spliced[m.value_start : m.end]))
    assert kept == [
        (key, value) for rawkey, value in pairs if (key := json.loads(rawkey.decode())) not in changes
    ]
    assert sorted(named) == sorted((key, value) for key, value in changes.items() if value is not None)


@given(objects(values))
def test_splicing_nothing_keeps_every_member_as_it_is(made: tuple[bytes, list[tuple[bytes, bytes]]]) -> None:
    raw, _ = made
    assert splice(raw, {}) == b"{" + b",".join(raw[m.start : m.end] for m in members(raw)) + b"}"


def test_a_changed_member_keeps_its_place_and_the_spelling_of_its_key() -> None:
    raw = b'{ "a" : 1.10, "i\\u0064" :\t7 , "b":[ 1 ] }'
    assert splice(raw, {"id": b'"x"'}) == b'{"a" : 1.10,"i\\u0064" :\t"x","b":[ 1 ]}'
    assert splice(raw, {"id": None}) == b'{"a" : 1.10,"b":[ 1 ]}'
    assert splice(raw, {"c": b"{}", "d": None}) == b'{"a" : 1.10,"i\\u0064" :\t7,"b":[ 1 ],"c":{}}'


def test_of_a_member_that_stands_twice_one_is_left() -> None:
    raw = b'{"a":1,"b":2,"\\u0061":3}'
    assert splice(raw, {"a": b"9"}) == b'{"a":9,"b":2}'
    assert splice(raw, {"a": None}) == b'{"b":2}'


# -- our own words -------------------------------------------------------------------------------------


@given(texts())
def test_one_line_is_the_same_json_on_one_line(raw: bytes) -> None:
    """STDIO-001."""
    line = one_line(raw)
    assert not {b"\n"[0], b"\r"[0]} & set(line)
    assert len(line) == len(raw)
    check(line, DEPTH)
    if raw.strip()[:1] == b"{":
        before, after = members(raw), members(line)
        assert [m.key for m in before] == [m.key for m in after]


def test_text_without_line_ends_is_not_copied() -> None:
    raw = '{"a":"\u2028"}'.encode()
    assert one_line(raw) is raw


def test_our_own_json_is_compact_ascii_and_never_not_a_number() -> None:
    assert dumps({"a": ["ü\u2028", 1, None]}) == b'{"a":["\\u00fc\\u2028",1,null]}'
    assert dumps("\ud800") == b'"\\ud800"'
    assert loads(dumps({"a": 1.5})) == {"a": 1.5}
    with pytest.raises(ValueError, match="Out of range float values"):
        dumps(float("nan"))


# -- long texts ----------------------------------------------------------------------------------------


def long_text(item: bytes, size: int) -> bytes:
    return b'{"result":{"content":[' + b",".join([item] * (size // (len(item) + 1))) + b"]}}"


@pytest.mark.parametrize(
    "item",
    [
        b'"' + b"x" * 1_000_000 + b'"',
        b'"\\\\\\"\\n"',
        b'{"name":"x","value":-1.5e3,"ok":[true]}',
        b"[]",
        b'"["',
        b"[" * 40 + b"]" * 40,
        b"[" * 500 + b"]" * 500,
    ],
    ids=["one string", "escapes", "objects", "brackets", "bracket strings", "40 deep", "500 deep"],
)
def test_long_texts_take_time_in_proportion(item: bytes) -> None:
    """I6: all of it happens in the event loop."""
    raw = long_text(item, 2_000_000)
    start = time.process_time()
    check(raw, DEPTH)
    result = RawObject.parse(raw).get("result")
    assert time.process_time() - start < SECONDS
    assert result == raw[len(b'{"result":') : -1]


# -- bounds ---------------------------------------------------------------------------------------------


def is_refused_by(judge: Callable[[bytes], None], raw: bytes) -> bool:
    try:
        judge(raw)
    except JsonError:
        return True
    return False


@given(texts() | near_texts())
def test_what_msgspec_refuses_is_judged_alike_whether_it_is_large_or_small(raw: bytes) -> None:
    """SEC-003: the standard library's verdict, without an object of every value."""
    with suppress(UnicodeDecodeError):
        raw.decode()
        small, large = envelope._check_slowly, envelope._check_without_surrogates
        assert is_refused_by(small, raw) == is_refused_by(large, raw)


@pytest.mark.parametrize(
    "escape", [rb"\ud800", rb"\uDFFF", rb"\\ud800", rb"\\\ud800", rb"\udc00\ud800", rb"\uD83D\uDE00"]
)
def test_a_large_text_may_have_any_surrogate_escape(escape: bytes) -> None:
    raw = b'["' + escape + b'",' + b"0," * 40_000 + b"0]"
    check(raw, DEPTH)
    with pytest.raises(JsonError):
        check(raw[:-1], DEPTH)


@pytest.mark.parametrize("raw", [b"[" + b"[]," * 5_000_000, b'["\\ud800",' + b"[]," * 5_000_000 + b"[]]"])
def test_a_text_of_very_many_values_takes_little_memory_and_time(raw: bytes) -> None:
    """SEC-003: what is no JSON at its end, and what msgspec refuses, would be some gigabytes of objects."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    passes(raw)
    assert time.process_time() - began < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 12 * len(raw)


def test_a_long_string_of_escapes_takes_no_memory_beside_its_own() -> None:
    raw = b'{ "text" : "' + rb"x\n" * 6_000_000 + b'" }'
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert [member.key for member in members(raw)] == ["text"]
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 4 * len(raw)


@pytest.mark.parametrize("spaced", [b":", b" : "], ids=["compact", "spaced"])
def test_an_object_is_taken_apart_up_to_so_many_members(
    spaced: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-003: whoever takes it apart; those below it do not count."""
    monkeypatch.setattr(envelope, "MAX_PARTS", 50)

    def text(count: int, value: bytes = b"0") -> bytes:
        return b"{" + b",".join(b'"%d"%b%b' % (n, spaced, value) for n in range(count)) + b"}"

    below = text(40)
    whole = text(50, below)
    assert len(members(whole)) == len(RawObject.parse(whole).members) == 50
    assert RawObject.parse(whole).get("49") == below
    for take_apart in (members, RawObject.parse, lambda raw: splice(raw, {"a": b"1"})):
        with pytest.raises(JsonError, match="more than 50 members"):
            take_apart(text(51))


@given(objects(values), spaces)
def test_the_members_of_a_large_object_are_those_of_a_small_one(
    made: tuple[bytes, list[tuple[bytes, bytes]]], space: bytes
) -> None:
    """However it is written, whatever stands twice in it."""
    raw, expected = made
    small = members(space + raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "_JUDGED_WHOLE", 0)
        patch.setattr(envelope, "_compact", lambda raw: None)
        assert members(space + raw) == small
    assert len(small) == len(expected)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":[1],"a":[1,2]}',
        b'{"a":1,"a":12}',
        b'{"a":12,"a":1}',
        b'{"a" : 1 , "a" : 1 }',
        b'{"\\ud800":1,"A":2}',
        b'{"\\ud800":"\\ud800","x":"\\\\ud800"}',
        b'{"a":"\\ud83d\\ude00","b":{}}',
        b'{"a":{"a":1},"a":{"a":1}}',
    ],
)
def test_what_could_mislead_the_lengths_does_not(raw: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "_compact", lambda raw: None)
        small = members(raw)
        patch.setattr(envelope, "_JUDGED_WHOLE", 0)
        assert members(raw) == small


@pytest.mark.parametrize("name", [b'"nap"', b'"\\ud800"', b'"x","\\ud800":1', b'"x","name":"y"'])
def test_a_large_object_that_is_not_compact_is_taken_apart_in_time(name: bytes) -> None:
    """SEC-003: also where one key stands very often, and its last value is large."""
    rows = b"[" + b'{"id": 1, "tags": ["a"]},' * 400_000 + b"{}]"
    began = time.process_time()
    found = members(b'{"name": ' + name + b', "arguments": ' + rows + b', "a": 1}')
    assert found[-2].key == "arguments"
    often = members(b"{" + b'"a": 1,' * 50_000 + b'"a": ' + rows + b"}")
    assert len(often) == 50_001
    assert time.process_time() - began < SECONDS


def test_an_array_is_taken_apart_up_to_so_many_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-003."""
    monkeypatch.setattr(envelope, "MAX_PARTS", 50)
    assert len(elements(b"[" + b"{}," * 49 + b"{}]")) == 50
    with pytest.raises(JsonError, match="more than 50 elements"):
        elements(b"[" + b"{}," * 50 + b"{}]")
