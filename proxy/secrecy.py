"""What of the settings may be secret, and what is shown in its place: the one rule for all that repeats them.

Above: `cli` (check-config), `sources` and `complaints` (errors), `config` (the start-up line). Contract
section 8; AUTH-007.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

KeyPath: TypeAlias = tuple[str, ...]

MASK: Final = "***"

_WHOLLY: Final[tuple[KeyPath, ...]] = (
    ("upstream", "env"),
    ("auth", "upstream", "headers"),
    ("auth", "upstream", "client_secret"),
    ("store", "encryption", "keys"),
)
_PARTLY: Final[tuple[KeyPath, ...]] = (
    ("upstream", "command"),
    ("upstream", "url"),
    ("auth", "jwt", "jwks_url"),
    ("auth", "upstream", "token_url"),
    ("auth", "upstream", "resource"),
    ("store", "url"),
    ("store", "encryption", "key_file"),  # into which a key itself is easily put
)
"""Of these, something can be shown once they are known to be right."""

_OF_SECRETS: Final[tuple[KeyPath, ...]] = (("auth", "upstream"), ("auth", "jwt"), ("store", "encryption"))
"""Sections in which a secret is easily put a line too high or too low."""

_SECRET_URLS: Final[tuple[KeyPath, ...]] = (
    ("upstream", "url"),
    ("auth", "jwt", "jwks_url"),
    ("auth", "upstream", "token_url"),
    ("auth", "upstream", "resource"),
)
"""Whose path may be secret, too, as that of many hosted servers. The others are told to everybody."""

_USER: Final = re.compile(r"(?<=://)[^/?#]*@")
_PATH: Final = re.compile(r"(?<=://)([^/?#]*)(/[^?#]*)")
_PLAIN_PATH: Final = re.compile(r"(/([a-z]{1,8}|v\d{1,2}|streamable-http)){0,3}/?")
_QUERY: Final = re.compile(r"([?#]).+", re.DOTALL)
_OPTION: Final = re.compile(r"-\w|--\w[\w-]*", re.ASCII)
_NAME: Final = re.compile(r"\w[\w-]{0,29}", re.ASCII)


def may_be_secret(path: KeyPath) -> bool:
    """Whether a value there must not be repeated as long as nobody knows what it is: what stands in the place
    of a section may be what belongs into it."""
    places = _WHOLLY + _PARTLY + _OF_SECRETS
    return any(path[: len(one)] == one or one[: len(path)] == path for one in places)


def holds_secrets(section: KeyPath) -> bool:
    """Whether a key there that is none of ours may be a secret that belongs to the line before it."""
    return bool(section) and any(one[: len(section)] == section for one in _WHOLLY + _PARTLY)


def is_of_secrets(path: KeyPath) -> bool:
    """Whether the last name is of a mapping of names to secrets, and so no name of ours."""
    return path[:-1] in _WHOLLY


def masked(settings: Any, path: KeyPath = ()) -> Any:
    """Settings that are right, as they may be shown."""
    match settings:
        case dict():
            return {key: masked(value, (*path, key)) for key, value in settings.items()}
        case list() if path == ("upstream", "command"):
            return masked_command(settings)
        case list():
            return [masked(value, path) for value in settings]
        case str() if any(path[: len(one)] == one for one in _WHOLLY):
            return MASK
        case str() if "://" in settings:
            return masked_url(settings) if path in _SECRET_URLS else _without_user_and_query(settings)
        case _:
            return settings


def masked_url(url: str) -> str:
    """Without what is secret in many: user, query, fragment; and the path, unless it is a plain one, such as
    `/mcp`: of three words at most, of up to eight small letters each, or versions such as `v1`."""
    return _PATH.sub(_masked_path, _without_user_and_query(url))


def _masked_path(match: re.Match[str]) -> str:
    return match[0] if _PLAIN_PATH.fullmatch(match[2]) else f"{match[1]}/{MASK}"


def _without_user_and_query(url: str) -> str:
    return _QUERY.sub(rf"\1{MASK}", _USER.sub(f"{MASK}@", url))


def masked_command(words: Sequence[str]) -> list[str]:
    """The program, and the names of options: what else stands there may be their values."""
    return [masked_program(words[0]), *map(_masked_argument, words[1:])]


def masked_program(word: str) -> str:
    """Without what a shell would take for arguments and variables."""
    first, *arguments = word.split() or [word]
    name, gives_value, _ = first.partition("=")
    shown = f"{name}={MASK}" if gives_value and "://" not in name else masked_url(first)
    return f"{shown} {MASK}" if arguments else shown


def _masked_argument(word: str) -> str:
    option, gives_value, _ = word.partition("=")
    if not _OPTION.fullmatch(option):
        return MASK
    return f"{option}={MASK}" if gives_value else option


def shown_name(name: str) -> str:
    """A key that somebody wrote: where it is none, it may be what should have stood behind one."""
    return name if _NAME.fullmatch(name) else MASK
