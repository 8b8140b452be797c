"""Mirrored parameters: which are recognised, how their values are written, and when they match."""

from __future__ import annotations

import base64
import time
from typing import Any, Final

import pytest

from proxy.protocol.param_headers import (
    MAX_MIRRORED,
    HeaderValueError,
    MirroredParam,
    decode_value,
    headers_for,
    mirrored_params,
    mismatch,
    read_arguments,
)

NO_STALL_S: Final = 5.0  # of the processor, for what takes less than one; quadratic work takes far more


def encoded(text: str) -> str:
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def a_property(header: object = "Region", type: object = "string", **more: object) -> dict[str, object]:
    return {"type": type, "x-mcp-header": header, **more}


def schema(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties}


# Values ("Value Encoding").


@pytest.mark.parametrize(
    "written, value",
    [
        ("us-west1", "us-west1"),
        ("", ""),
        ("a b\tc", "a b\tc"),
        (" us-west1\t", "us-west1"),
        ("=?base64?SGVsbG8sIOS4lueVjA==?=", "Hello, 世界"),
        ("=?base64?IHBhZGRlZCA=?=", " padded "),
        ("=?base64?bGluZTEKbGluZTI=?=", "line1\nline2"),
        ("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=", "=?base64?literal?="),
        ("=?base64??=", ""),
        ("  =?base64?YQ==?= ", "a"),
        ("=?BASE64?YQ==?=", "=?BASE64?YQ==?="),
        ("=?Base64?YQ==?=", "=?Base64?YQ==?="),
        ("=?base64?YQ==", "=?base64?YQ=="),
        ("x=?base64?YQ==?=", "x=?base64?YQ==?="),
        ("=?base64?YQ==?=x", "=?base64?YQ==?=x"),
        ("=?base64?=", "=?base64?="),
        ("=?utf-8?B?YQ==?=", "=?utf-8?B?YQ==?="),
    ],
)
def test_a_value_is_plain_or_wrapped_in_the_exact_markers(written: str, value: str) -> None:
    """HTTP-021: the specification's examples; the markers are case-sensitive."""
    assert decode_value(written) == value


@pytest.mark.parametrize(
    "written",
    [
        "ü",
        "\udcfc",
        "a\nb",
        "a\rb",
        "a\0b",
        "\x7f",
        "=?base64?\udcfc?=",
        "=?base64?YQ?=",
        "=?base64?Y?=",
        "=?base64?Y Q==?=",
        "=?base64?-_8=?=",
        "=?base64?YQ==YQ==?=",
        "=?base64?/w==?=",
        "=?base64?7aCA?=",
    ],
)
def test_forbidden_characters_and_bad_base64_are_refused(written: str) -> None:
    """HTTP-021: base64 of what is no UTF-8 too."""
    with pytest.raises(HeaderValueError):
        decode_value(written)


# Recognition ("Schema Extension").


def test_annotations_are_found_along_properties_at_any_depth() -> None:
    inner = schema(zone=a_property("Zone", "integer"), plain={"type": "string"})
    found = mirrored_params(
        schema(region=a_property("Region"), where=inner, dry=a_property("Dry", "boolean"))
    )
    assert sorted(found, key=lambda param: param.header) == [
        MirroredParam("Dry", ("dry",)),
        MirroredParam("Region", ("region",)),
        MirroredParam("Zone", ("where", "zone")),
    ]


@pytest.mark.parametrize(
    "annotated",
    [
        a_property(""),
        a_property("a b"),
        a_property("a:b"),
        a_property("a\r\nb"),
        a_property("ü"),
        a_property("Region\n"),
        a_property(7),
        a_property(None),
        a_property(type="number"),
        a_property(type="object"),
        a_property(type="array"),
        a_property(type="null"),
        a_property(type=["string", "null"]),
        a_property(type={"x": 1}),
        a_property(type=None),
        {"x-mcp-header": "Region"},
        {"$ref": "https://evil.example/schema"},
        "string",
        True,
        None,
        ["x-mcp-header"],
    ],
)
def test_an_annotation_that_breaks_the_rules_is_not_recognised(annotated: object) -> None:
    """BASE-024: nothing is fetched, nothing is a fault of ours."""
    assert mirrored_params(schema(region=annotated)) == ()


@pytest.mark.parametrize("place", ["items", "anyOf", "oneOf", "allOf", "not", "if", "then", "$defs"])
def test_an_annotation_off_the_chain_of_properties_is_not_recognised(place: str) -> None:
    """BASE-024: nor is a `$ref` to it."""
    hidden: Any = schema(region=a_property())
    found = mirrored_params({**schema(a={"type": "string"}), place: [hidden] if "Of" in place else hidden})
    assert found == ()


def test_of_annotations_that_name_one_header_none_is_recognised() -> None:
    """Without regard to case: a client could send one value only."""
    found = mirrored_params(
        schema(a=a_property("Region"), b=schema(c=a_property("REGION")), d=a_property("Zone"))
    )
    assert found == (MirroredParam("Zone", ("d",)),)


@pytest.mark.parametrize(
    "input_schema", [None, [], "x", 7, True, {}, {"properties": []}, {"properties": None}]
)
def test_a_schema_that_is_none_mirrors_nothing(input_schema: object) -> None:
    assert mirrored_params(input_schema) == ()


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    assert mirrored_params(schema(properties=schema(properties=a_property()))) == (
        MirroredParam("Region", ("properties", "properties")),
    )


# Size (BASE-025).


def nested(depth: int, leaf: object) -> object:
    for _ in range(depth):
        leaf = schema(a=leaf)
    return leaf


def test_a_hundred_thousand_properties_are_no_stall() -> None:
    """BASE-025."""
    wide = schema(**{f"p{n}": {"type": "string"} for n in range(100_000)}, region=a_property())
    began = time.process_time()
    assert mirrored_params(wide) == (MirroredParam("Region", ("region",)),)
    assert time.process_time() - began < NO_STALL_S


def test_a_very_deep_schema_is_no_stall() -> None:
    """BASE-025: deeper than any message, and than Python's own stack."""
    began = time.process_time()
    (param,) = mirrored_params(nested(100_000, a_property()))
    assert len(param.path) == 100_000
    assert time.process_time() - began < NO_STALL_S


def test_deep_and_wide_together_are_no_stall() -> None:
    """BASE-025: the path of a property is not written out where nothing is annotated."""
    leaf = schema(**{f"p{n}": schema(x={"type": "string"}) for n in range(50_000)})
    began = time.process_time()
    assert mirrored_params(nested(500, leaf)) == ()
    assert time.process_time() - began < NO_STALL_S


def test_more_annotations_than_headers_can_be_are_not_looked_at() -> None:
    """BASE-025."""
    many = schema(**{f"p{n}": a_property(f"H{n}") for n in range(20_000)})
    assert len(mirrored_params(nested(500, many))) == MAX_MIRRORED


# Matching ("Server Behavior for Custom Headers").

REGION: Final = (MirroredParam("Region", ("region",)),)
NESTED: Final = (MirroredParam("Zone", ("where", "zone")),)


def fits(value: object, header: str | None) -> bool:
    headers = {} if header is None else {"region": header}
    return mismatch(REGION, headers, {"region": value}) is None


@pytest.mark.parametrize(
    "value, header",
    [
        ("us-west1", "us-west1"),
        ("us-west1", encoded("us-west1")),
        ("Hello, 世界", encoded("Hello, 世界")),
        (" padded ", encoded(" padded ")),
        ("=?base64?literal?=", encoded("=?base64?literal?=")),
        ("", ""),
        ("true", "true"),
        (42, "42"),
        (42, "42.0"),
        (42, "42.000"),
        (42, "0042"),
        (42, encoded("42")),
        (42.0, "42"),
        (-7, "-7"),
        (0, "-0"),
        (2**53 + 1, str(2**53 + 1)),
        (10**400, str(10**400)),
        (True, "true"),
        (False, "false"),
        (True, encoded("true")),
    ],
)
def test_a_header_that_says_what_the_body_says_passes(value: object, header: str) -> None:
    """HTTP-021, HTTP-023."""
    assert fits(value, header)


@pytest.mark.parametrize(
    "value, header",
    [
        ("us-west1", "us-west2"),
        ("us-west1", "US-WEST1"),
        ("us-west1", ""),
        ("us-west1", encoded("us-west1 ")),
        ("us-west1", "=?BASE64?dXMtd2VzdDE=?="),
        ("us-west1", "us-west1, us-west1"),
        ("42", "42.0"),
        (42, "43"),
        (42, ""),
        (42, "+42"),
        (42, "4_2"),
        (42, "42.5"),
        (42, "42e0"),
        (42, "0x2a"),
        (42, "٤٢"),
        (42, "inf"),
        (2**53, str(2**53 + 1)),
        (10**400, "1"),
        (10**400, "inf"),
        (float("inf"), "1" * 400),
        (True, "True"),
        (True, "1"),
        (1, "true"),
        (False, ""),
        (["us-west1"], "us-west1"),
        ({}, "{}"),
    ],
)
def test_a_header_that_says_something_else_is_refused_by_name(value: object, header: str) -> None:
    """HTTP-023: values with case, numbers exactly."""
    fault = mismatch(REGION, {"region": header}, {"region": value})
    assert fault is not None
    assert "Mcp-Param-Region" in fault


@pytest.mark.parametrize(
    "raw, header",
    [
        (b"42", "42"),
        (b"-0", "0"),
        (b"5.0", "5"),
        (b"1e3", "1000"),
        (b"true", "true"),
        (b'"x"', "x"),
        (b"5.5", None),
        (b"1e400", None),
        (b"null", None),
        (b"[1]", None),
    ],
)
def test_a_value_is_written_as_a_header_that_matches_it(raw: bytes, header: str | None) -> None:
    """HTTP-042: a float that is whole is an integer to a schema, and many programs write it so."""
    arguments = read_arguments(b'{"region":' + raw + b"}")
    written = headers_for(REGION, arguments)
    assert written == ({} if header is None else {"Mcp-Param-Region": header})
    if header is not None:
        assert mismatch(REGION, {"region": header}, arguments) is None


def test_a_missing_header_for_a_given_value_is_refused() -> None:
    assert "is missing" in (mismatch(REGION, {}, {"region": "x"}) or "")
    assert "'where.zone'" in (mismatch(NESTED, {}, {"where": {"zone": 0}}) or "")


@pytest.mark.parametrize(
    "arguments",
    [{}, {"region": None}, {"other": "x"}, None, [], "region", {"where": None}, {"where": ["zone"]}],
)
def test_no_header_is_expected_for_null_or_nothing(arguments: object) -> None:
    """And one that comes all the same does not match."""
    assert mismatch(REGION + NESTED, {}, arguments) is None
    assert mismatch(REGION, {"region": "x"}, arguments) is not None


def test_forbidden_characters_are_refused_before_anything_is_compared() -> None:
    assert "visible ASCII" in (mismatch(REGION, {"region": "\udcfc"}, {"region": "\udcfc"}) or "")
    assert "base64" in (mismatch(REGION, {"region": "=?base64?!?="}, {"region": "!"}) or "")


def test_headers_that_mirror_nothing_are_ignored() -> None:
    """Whatever they hold."""
    assert mismatch(REGION, {"region": "x", "unknown": "\udcfc"}, {"region": "x"}) is None
    assert mismatch((), {"region": "x"}, {}) is None


def test_header_names_compare_without_case() -> None:
    param = (MirroredParam("ReGiOn", ("region",)),)
    assert mismatch(param, {"region": "x"}, {"region": "x"}) is None


def test_every_parameter_is_checked() -> None:
    both = REGION + NESTED
    arguments = {"region": "x", "where": {"zone": 7}}
    assert mismatch(both, {"region": "x", "zone": "7"}, arguments) is None
    assert "Zone" in (mismatch(both, {"region": "x", "zone": "8"}, arguments) or "")
