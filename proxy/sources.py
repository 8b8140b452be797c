"""Where settings come from: defaults, then the file, the environment, the flags; the later one wins.

Above: `cli`. Below: `config`, whose models judge the values, and `complaints`, which words what they
refuse. Contract section 11.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from proxy.complaints import did_you_mean, is_section, one_line
from proxy.config import Config, ToolRule, UpstreamConfig
from proxy.errors import ConfigError
from proxy.files import UnusableFile, read_regular, within_bound
from proxy.secrecy import MASK, KeyPath
from proxy.units import WRITTEN_BY_PEOPLE

PREFIX: Final = "MCP_TASKPROXY_"
FILE_VARIABLE: Final = "MCP_TASKPROXY_CONFIG"
FILE_MAX_BYTES: Final = 1 << 20

FLAGS: Final[Mapping[str, KeyPath]] = {
    "--listen": ("listen",),
    "--upstream": ("upstream", "url"),
    "--threshold": ("tasks", "threshold"),
    "--store": ("store", "url"),
    "--log-level": ("log", "level"),
    "--log-format": ("log", "format"),
    "command": ("upstream", "command"),
}
"""What the command line can set. `command` is what follows `--`."""

_NEVER_EMPTY: Final = ("MCP_TASKPROXY_AUTH", "MCP_TASKPROXY_STORE__ENCRYPTION")
"""Where that is most likely the work of what was not found, and nobody would notice what it turns off."""

_OF_THE_OTHER_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "command": ("url", "endpoint_prefix"),
    "url": ("command", "env", "cwd"),
}

# What Kubernetes puts into a pod beside a Service that bears our name; nobody set it for us.
_SERVICE_LINK: Final = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?")

_UNQUOTED: Final = re.compile(r"""(?:[^'"]|'.'|"'"|'<[a-z ]+>'|'\\\w{1,9}')*""")

_NULL: Final = re.compile(r"(?:~|null|Null|NULL|)\Z")


_DEEPEST: Final = 8  # no setting lies half as deep
_MOST: Final = 100_000  # values; a few lines of aliases to aliases make as many as anybody likes


@dataclass(frozen=True, slots=True)
class Setting:
    """One value from one source; `origin` is the source's name for its operator."""

    path: KeyPath
    value: Any
    origin: str


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    """The configuration in force. Raises ConfigError, of one line, if there is none.

    `flags` gives values by the names in `FLAGS`; None is not given. Without a file, and without
    `listen`, the client is on stdio; the store is then `state_directory`, unless one is given.
    """
    try:
        return _loaded(file, environ, flags)
    except ConfigError:
        raise
    except Exception as exc:  # whatever odd settings make a library stumble over: they are the operator's
        fault = f"{file or 'the settings'}: they cannot be understood ({type(exc).__name__})"
        raise ConfigError(fault) from exc


def _loaded(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> Config:
    given = (list(islice(_from_environment(environ), _MOST + 1)), list(_from_flags(flags)))
    if file is None and not any(given):
        raise ConfigError(
            "nothing to serve: put the server's command after --, or add --upstream URL or --config FILE"
        )
    first = list(islice(_from_file(file), _MOST + 1)) if file else [Setting(("listen",), "stdio", "")]
    merged: dict[str, Any] = {"upstream": {}}
    origins: dict[KeyPath, str] = {}
    if len(first) + sum(map(len, given)) > _MOST:
        raise ConfigError(f"{file or 'the settings'}: more than {_MOST} values")
    for layer in (first, *given):
        _forget_the_other_kind(merged, layer)
        for setting in layer:
            _refuse_what_no_setting_has(setting)
            _put(merged, setting)
            origins[setting.path] = setting.origin
    try:
        config = Config.model_validate(merged, context=WRITTEN_BY_PEOPLE)
        if not config.is_stdio or ("store", "url") in origins:
            return config
        _put(merged, Setting(("store", "url"), f"disk:{state_directory(config.upstream, environ)}", ""))
        return Config.model_validate(merged, context=WRITTEN_BY_PEOPLE)
    except ValidationError as exc:
        raise ConfigError(one_line(exc.errors(), origins, all_keys(Config))) from exc


def state_directory(upstream: UpstreamConfig, environ: Mapping[str, str]) -> Path:
    """Where tasks live by default if the client is on stdio: one directory for each upstream command.

    Not the working directory, which may be shared, read-only or `/` (contract section 11).
    """
    state_home = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "~", ".local", "state"))
    words = [*upstream.command] if upstream.command is not None else [upstream.url]
    digest = hashlib.sha256(json.dumps([words, upstream.cwd]).encode()).hexdigest()
    return Path(state_home, "mcp-taskproxy", digest[:16])


def _forget_the_other_kind(merged: dict[str, Any], layer: list[Setting]) -> None:
    """A later source that gives the URL replaces an earlier one's command and what belongs to that, and the
    other way round."""
    given = {s.path[1] for s in layer if s.path[0] == "upstream" and len(s.path) == 2 and s.value is not None}
    kinds = given & _OF_THE_OTHER_KIND.keys()
    if len(kinds) == 1 and isinstance(merged["upstream"], dict):
        for key in _OF_THE_OTHER_KIND[kinds.pop()]:
            merged["upstream"].pop(key, None)


def _put(merged: dict[str, Any], setting: Setting) -> None:
    section = merged
    for key in setting.path[:-1]:
        below = section.get(key)
        if not isinstance(below, dict):
            below = section[key] = {}
        section = below
    last = setting.path[-1]
    if setting.value in (None, {}) and isinstance(section.get(last), dict):
        return  # a section with nothing in it takes nothing away
    section[last] = setting.value


def _refuse_what_no_setting_has(setting: Setting) -> None:
    """No path, word, header or URL has a zero byte or half a character in it. Raises ConfigError."""
    known = all_keys(Config)
    parts = range(1, len(setting.path) + 1)
    name = ".".join(setting.path[n - 1] if setting.path[:n] in known else MASK for n in parts)
    texts = [*setting.path, *islice(_texts(setting.value, _DEEPEST), _MOST + 1)]
    if len(texts) > _MOST:
        raise ConfigError(f"{setting.origin}: {name}: more than {_MOST} values")
    for text in texts:
        if "\0" in text:
            raise ConfigError(f"{setting.origin}: {name}: a zero byte is in it")
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ConfigError(f"{setting.origin}: {name}: what is in it is no text in UTF-8")


def _texts(value: Any, depth: int) -> Iterator[str]:
    """All that is in a value; of a list that contains itself, enough."""
    yield ""  # each value counts
    match value:
        case str():
            yield value
        case list() | tuple() if depth:
            for part in value:
                yield from _texts(part, depth - 1)
        case dict() if depth:
            yield from _texts([*value.keys(), *value.values()], depth - 1)


def _leaves(path: KeyPath, value: Any, origin: str) -> Iterator[Setting]:
    if len(path) > _DEEPEST:  # also what contains itself, by an alias
        raise ConfigError(f"{origin}: nested too deeply")
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves((*path, str(key)), inner, origin)
    elif path:
        yield Setting(path, value, origin)


class _Loader(yaml.SafeLoader):
    """YAML in which a value that is not of the kind that it seems to be (`!!int x`) is its writer's fault."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except _ODD_VALUES as exc:
            fault = "a value that is not what it seems to be; put it in quotes"
            raise yaml.constructor.ConstructorError(None, None, fault, node.start_mark) from exc


_ODD_VALUES: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What its constructors stumble over: a 13th month, a number without digits."""


class _FileLoader(_Loader):
    """YAML in which a key that stands twice is an error, not the loss of the first one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    name = f"the key {key.value}" if key.value in _OUR_NAMES else "a key"
                    fault = f"{name} stands twice"
                    raise yaml.constructor.ConstructorError(None, None, fault, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _from_file(file: Path) -> Iterator[Setting]:
    try:
        text = within_bound(str(file), partial(read_regular, file, FILE_MAX_BYTES)).content.decode("utf-8")
        found = yaml.load(text, Loader=_FileLoader)  # noqa: S506 - it is a SafeLoader
    except UnusableFile as exc:
        raise ConfigError(f"{file}: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{file}: not UTF-8 at byte {exc.start}") from exc
    except (yaml.YAMLError, RecursionError) as exc:
        raise ConfigError(f"{file}: {_yaml_fault(exc)}") from exc
    if found is not None and not isinstance(found, dict):
        raise ConfigError(f"{file}: found {type(found).__name__}; a mapping of settings is needed")
    yield from _leaves((), found, str(file))


class _TextLoader(_Loader):
    """YAML whose scalars stay text, but for null: the models know which of them are numbers."""


_TextLoader.yaml_implicit_resolvers = {c: [("tag:yaml.org,2002:null", _NULL)] for c in ("~", "n", "N", "")}


def _from_environment(environ: Mapping[str, str]) -> Iterator[Setting]:
    for variable, text in sorted(environ.items()):
        rest = variable.removeprefix(PREFIX)
        if rest == variable or variable == FILE_VARIABLE or _SERVICE_LINK.fullmatch(rest):
            continue
        head, found, name = rest.partition("UPSTREAM__ENV__")
        if found and not head:
            yield Setting(("upstream", "env", name), text, variable)
        elif variable.startswith(_NEVER_EMPTY) and not text.strip():
            raise ConfigError(f"{variable}: it is empty; give it a value, or take the variable away")
        elif text:  # an empty variable is a variable that is not set
            path, annotation = _known_variable(variable, rest)
            yield from _leaves(path, _environment_value(variable, text, annotation), variable)


def _known_variable(variable: str, rest: str) -> tuple[KeyPath, Any]:
    known = all_keys(Config)
    path = tuple(rest.lower().split("__"))
    if path not in known:
        names = [PREFIX + "__".join(key).upper() for key in known]
        raise ConfigError(f"{variable}: unknown variable{did_you_mean(variable, names)}")
    return path, known[path]


def _environment_value(variable: str, text: str, annotation: Any) -> Any:
    """Lists and sections are YAML, `[npx, -y, some-server]`; anything else is the text as it stands."""
    if not _holds_several(annotation):
        return None if _NULL.match(text) else text
    try:
        return yaml.load(text, Loader=_TextLoader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, RecursionError) as exc:
        raise ConfigError(f"{variable}: {_yaml_fault(exc)}") from exc


def _from_flags(flags: Mapping[str, Any]) -> Iterator[Setting]:
    for name, value in flags.items():
        if value is not None:
            yield Setting(FLAGS[name], value, name)


def all_keys(model: type[BaseModel], above: KeyPath = ()) -> dict[KeyPath, Any]:
    """Every key that may be set outside of lists, sections included, with the type of its value."""
    keys: dict[KeyPath, Any] = {}
    for name, field in model.model_fields.items():
        keys[(*above, name)] = field.annotation
        if is_section(field.annotation):
            keys |= all_keys(field.annotation, (*above, name))
    return keys


_OUR_NAMES: Final = frozenset({*ToolRule.model_fields, *(name for key in all_keys(Config) for name in key)})


def _holds_several(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(_holds_several(part) for part in get_args(annotation))
    return get_origin(annotation) in (tuple, Mapping) or is_section(annotation)


def _yaml_fault(exc: Exception) -> str:
    """Where it is and what it is, without the text that stands there: a wrong file may be a secret one."""
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        mark, problem = exc.problem_mark, exc.problem or exc.context or ""
        return f"line {mark.line + 1}, column {mark.column + 1}: {_told(problem)}"
    if isinstance(exc, yaml.reader.ReaderError):
        return f"not YAML: character {exc.position + 1} is none of a text"
    return "nested too deeply" if isinstance(exc, RecursionError) else "not YAML"


def _told(problem: str) -> str:
    """Up to the first quoted text that is neither one character nor a word of YAML's grammar."""
    found = _UNQUOTED.match(problem)
    return found[0].rstrip() if found else ""
