"""What the operator reads when a setting cannot be used: one line that names source, key, value, cure.

Above: `sources`. Below: pydantic's verdicts, and the sentences of `config` and `units` inside them.
Nothing that may be secret is repeated. Contract section 11.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeGuard, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from proxy.config import Config, NotYet
from proxy.secrecy import MASK, KeyPath, holds_secrets, is_of_secrets, masked_url, may_be_secret, shown_name

Location: TypeAlias = tuple[int | str, ...]

_SHOWN_CHARS: Final = 60  # the line must stay one

_NEED: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "value_error": lambda ctx: str(ctx["error"]),
    "literal_error": lambda ctx: f"allowed: {ctx['expected']}",
    "greater_than_equal": lambda ctx: f"at least {ctx['ge']} is needed",
    "less_than_equal": lambda ctx: f"at most {ctx['le']} is allowed",
    "string_type": lambda _: "text is needed; put it in quotes if it is meant so",
    "int_type": lambda _: "a whole number is needed",
    "int_parsing": lambda _: "a whole number is needed",
    "int_from_float": lambda _: "a whole number is needed",
    "bool_type": lambda _: "true or false is needed",
    "bool_parsing": lambda _: "true or false is needed",
    "tuple_type": lambda _: "a list is needed",
    "dict_type": lambda _: "a mapping of names to values is needed",
    "model_type": lambda _: "a section is needed: the keys that belong here, each with its value",
    "string_too_short": lambda _: "it must not be empty",
}


def one_line(errors: Iterable[ErrorDetails], origins: Mapping[KeyPath, str], known: Iterable[KeyPath]) -> str:
    """The first of `errors`, misspelt keys before what they leave missing, in one line.

    `origins` tells which source gave which key; `known` are all keys there are.
    """
    error = min(errors, key=lambda e: e["type"] != "extra_forbidden")
    if error["type"] == "extra_forbidden":
        loc, fault = _unknown_key(error, known)
    else:
        loc, fault = _shown(error), _bad_value(error)
    return ": ".join(part for part in (_origin(_names(error["loc"]), origins), _dotted(loc), fault) if part)


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """A clause to append, empty if nothing is near."""
    near = difflib.get_close_matches(word, list(candidates), n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def shown(value: object) -> str:
    """`value` as the operator wrote it, if it is short and no secret."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str() if "@" in value:  # a URL may hold credentials
            return "text with an @ in it"
        case str():
            text = masked_url(value)
            return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")
        case list() | tuple():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return f"a {type(value).__name__}"


def _bad_value(error: ErrorDetails) -> str:
    if error["type"] == "missing":
        return "is missing"
    word = _NEED.get(error["type"])
    need = word(error.get("ctx", {})) if word else error["msg"]
    about_the_whole = error["type"] == "value_error" and isinstance(error["input"], dict | list | tuple)
    if about_the_whole or isinstance(error.get("ctx", {}).get("error"), NotYet):
        return need
    secret = may_be_secret(_names(error["loc"]))
    return f"found {type(error['input']).__name__ if secret else shown(error['input'])}; {need}"


def _unknown_key(error: ErrorDetails, known: Iterable[KeyPath]) -> tuple[Location, str]:
    """Where it is, and what is wrong. `{headers: X-Key, abc}` and `client_secret:abc` make a key of what may
    be a secret: so it is named only where there are no secrets, with a value, or if it is a name of ours."""
    *above, word = error["loc"]
    ours = _section_at(above).model_fields
    hint = did_you_mean(str(word), ours)
    elsewhere = next((key for key in known if key[-1] == word), None)
    if not hint and elsewhere:
        return error["loc"], f"unknown key, did you mean {_dotted(elsewhere)!r}?"
    is_named = elsewhere or (error["input"] is not None and not holds_secrets(_names(tuple(above))))
    shown_word = shown_name(str(word)) if is_named else MASK
    if not hint and not is_named:
        hint = f"; known are {', '.join(ours)}"
    return (*above, shown_word), f"unknown key{hint}"


def _section_at(loc: Iterable[int | str]) -> type[BaseModel]:
    section: type[BaseModel] = Config
    for name in loc:
        if isinstance(name, str):
            annotation = section.model_fields[name].annotation
            section = next(part for part in (annotation, *get_args(annotation)) if is_section(part))
    return section


def is_section(annotation: object) -> TypeGuard[type[BaseModel]]:
    """Whether a field of this type is a section, with keys of its own."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _origin(path: KeyPath, origins: Mapping[KeyPath, str]) -> str:
    """The source of the value at `path`, or of the list that holds it, or the sources of what is inside."""
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    inside = (origin for key, origin in origins.items() if key[: len(path)] == path)
    return " and ".join(dict.fromkeys(inside))


def _shown(error: ErrorDetails) -> Location:
    """Where the fault is. `{X-Key:abc}`, without a space, is a key that has no value in YAML."""
    loc = tuple(part if isinstance(part, int) else shown_name(part) for part in error["loc"])
    is_bare = error["input"] is None and error["type"] != "missing"
    return (*loc[:-1], MASK) if is_bare and is_of_secrets(_names(error["loc"])) else loc


def _names(loc: Location) -> KeyPath:
    return tuple(part for part in loc if isinstance(part, str))


def _dotted(loc: Location) -> str:
    """`tasks.tools[0].match`"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
