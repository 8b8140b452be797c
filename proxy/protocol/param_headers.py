"""`x-mcp-header`: which arguments of a tool are mirrored to `Mcp-Param-*` headers, and whether they match.

Above: the bridge (checks what clients send), and `routing.mirrored`, for a modern server (builds them).
Streamable HTTP 2026-07-28, "Custom Headers from Tool Parameters". Schemas are walked along `properties` only
and nothing is ever dereferenced (BASE-024, BASE-025).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any, Final, TypeAlias

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_VISIBLE: Final = re.compile(r"[\x21-\x7e\x20\t]*\Z")
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.0+)?\Z")
_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=\Z", re.DOTALL)
_MIRRORED_TYPES: Final = ("string", "integer", "boolean")
MAX_MIRRORED: Final = 1_000  # of one tool; no HTTP server takes that many headers
_MAX_DIGITS: Final = 1_000  # of an integer; no header of that size can be sent

_Path: TypeAlias = "tuple[_Path, str] | None"
"""Names from a property up to the root: a step costs the same at any depth."""


class HeaderValueError(ValueError):
    """A header value with characters it must not have, or base64 that is none."""


@dataclass(frozen=True, slots=True)
class MirroredParam:
    """The argument at `path` is mirrored to `Mcp-Param-<header>`."""

    header: str
    path: tuple[str, ...]


def mirrored_params(input_schema: Any) -> tuple[MirroredParam, ...]:
    """The annotations of a tool's input schema that follow the rules; the others are not recognised.

    Of annotations that name one header, none can be followed. Not more than MAX_MIRRORED are looked at.
    """
    found = [MirroredParam(h, _names(path)) for h, path in islice(_annotations(input_schema), MAX_MIRRORED)]
    spellings = Counter(param.header.lower() for param in found)
    return tuple(param for param in found if spellings[param.header.lower()] == 1)


def _annotations(input_schema: Any) -> Iterator[tuple[str, _Path]]:
    stack: list[tuple[_Path, Any]] = [(None, input_schema)]
    while stack:
        path, schema = stack.pop()
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(properties, dict):
            continue
        for name, sub in properties.items():
            if not isinstance(sub, dict):
                continue
            header = sub.get("x-mcp-header")
            if isinstance(header, str) and _TOKEN.match(header) and sub.get("type") in _MIRRORED_TYPES:
                yield header, (path, name)
            stack.append(((path, name), sub))


def _names(path: _Path) -> tuple[str, ...]:
    names: list[str] = []
    while path is not None:
        path, name = path
        names.append(name)
    return tuple(reversed(names))


def decode_value(value: str) -> str:
    """A header value with its base64 sentinel undone; the markers are case-sensitive.

    Raises HeaderValueError on characters that a header must not carry, and on bad base64 or UTF-8.
    """
    value = value.strip(" \t")
    if not _VISIBLE.match(value):
        raise HeaderValueError("has characters outside visible ASCII")
    wrapped = _SENTINEL.match(value)
    if wrapped is None:
        return value
    try:
        return base64.b64decode(wrapped.group(1), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError) as exc:
        raise HeaderValueError("is not base64 of UTF-8 text") from exc


def encode_value(value: str) -> str:
    """`value` as a header can carry it: as it is, or as base64 between the sentinel's marks."""
    plain = _VISIBLE.match(value) and value == value.strip(" \t") and not _SENTINEL.match(value)
    if plain:
        return value
    return "=?base64?" + base64.b64encode(value.encode("utf-8", "surrogatepass")).decode("ascii") + "?="


def has_invalid_headers(input_schema: Any) -> bool:
    """Whether a tool's schema has an annotation that breaks the rules: then a client over HTTP must not
    use it."""
    annotated = sum(1 for _ in islice(_all_annotations(input_schema), MAX_MIRRORED))
    return annotated != len(mirrored_params(input_schema))


def _all_annotations(input_schema: Any) -> Iterator[Any]:
    """Of whatever form."""
    stack: list[Any] = [input_schema]
    while stack:
        schema = stack.pop()
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(properties, dict):
            continue
        for sub in properties.values():
            if isinstance(sub, dict):
                if "x-mcp-header" in sub:
                    yield sub["x-mcp-header"]
                stack.append(sub)


def read_arguments(raw: bytes) -> Any:
    """The arguments of a call, to be mirrored or compared. Integers past Python's limit stay text."""
    return json.loads(raw, parse_int=lambda text: int(text) if len(text) <= _MAX_DIGITS else text)


def headers_for(params: tuple[MirroredParam, ...], arguments: Any) -> dict[str, str]:
    """The `Mcp-Param-*` headers of a call with these arguments; those that are not given have none."""
    found: dict[str, str] = {}
    for param in params:
        value = _expected(arguments, param.path)
        if isinstance(value, bool):
            found[f"Mcp-Param-{param.header}"] = "true" if value else "false"
        elif isinstance(value, int | str):
            found[f"Mcp-Param-{param.header}"] = encode_value(str(value))
        elif isinstance(value, float) and value.is_integer():  # to a schema an integer, too
            found[f"Mcp-Param-{param.header}"] = str(int(value))
    return found


def mismatch(params: tuple[MirroredParam, ...], headers: Mapping[str, str], arguments: Any) -> str | None:
    """What is wrong with the `Mcp-Param-*` headers of a call, None if nothing is.

    `headers` maps the part after `Mcp-Param-`, in lower case, to the value as received. Unrecognised ones
    are ignored (HTTP-025).
    """
    for param in params:
        expected = _expected(arguments, param.path)
        given = headers.get(param.header.lower())
        name = f"Mcp-Param-{param.header}"
        if given is None:
            if expected is not None:
                return f"{name} is missing, but argument {'.'.join(param.path)!r} is given"
            continue
        try:
            decoded = decode_value(given)
        except HeaderValueError as exc:
            return f"{name} {exc}"
        if expected is None or not _equal(decoded, expected):
            return f"{name} does not match argument {'.'.join(param.path)!r}"
    return None


def _expected(arguments: Any, path: tuple[str, ...]) -> Any:
    value = arguments
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def _equal(header: str, value: Any) -> bool:
    if isinstance(value, bool):
        return header == ("true" if value else "false")
    if isinstance(value, int | float):
        return bool(_NUMBER.match(header)) and Decimal(header) == Decimal(value)  # exact at any size
    return isinstance(value, str) and header == value
