"""The configuration: every setting, its type, its default. What is wrong with a value is said here.

Above: whoever is configured; fields are read as plain attributes, durations in seconds, sizes in
bytes, rates in events per second. Below: `units` and `addresses` read the values, which `sources`
brings from file, environment and flags. Contract section 11; `config.example.yaml` documents each field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from proxy.addresses import (
    STDIO,
    HostName,
    HostPort,
    HttpUrl,
    ListenAddress,
    Network,
    Origin,
    PlainUrl,
    UrlPath,
    are_all_addresses,
    are_in_conflict,
    file_path,
    is_loopback_name,
)
from proxy.config_auth import AuthConfig, check_auth
from proxy.config_encryption import EncryptionConfig
from proxy.config_limits import LimitsConfig
from proxy.secrecy import masked_program, masked_url
from proxy.sections import AtLeastOne, Section
from proxy.units import Seconds, SomeSeconds, format_seconds

_LAUNCHER: Final = re.compile(r"npx|uvx?|pipx|node|bunx?|deno|run|python[\d.]*|-y|--yes|-m|-u")
_PLAIN_PATH: Final = re.compile(r"(@?[\w.~][\w.~+-]*)?(/[\w.~+-]+)*")


class NotYet(ValueError):
    """A value that the contract knows and this release does not serve."""


def _command(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("the command is a list of its words, such as [npx, -y, some-server]")
    if value in ([], ()):
        raise ValueError("the command has no words")
    if isinstance(value, list | tuple) and value[0] == "":
        raise ValueError("the command's first word, the program, is empty")
    return value


def _store_url(value: str) -> str:
    if value.startswith(("redis:", "rediss:", "unix:")):
        raise NotYet("a Redis store comes in a later release; now: memory: or disk:DIR")
    if value != "memory:" and not (value.startswith("disk:") and value != "disk:"):
        raise ValueError("memory: or disk:DIR is needed, such as disk:./taskproxy-data")
    if value.startswith("disk://"):
        raise ValueError("a directory follows disk: at once, such as disk:/data")
    file_path(value.removeprefix("disk:"))
    return value


def _variable(value: str) -> str:
    if not value or "=" in value:
        raise ValueError("the name of a variable is needed, such as API_KEY, with its value behind a colon")
    return value


class AdminConfig(Section):
    """Where `/metrics` is served; nowhere by default."""

    listen: HostPort | None = None


def _derived_name(upstream: Mapping[str, Any]) -> str:
    """A short name for logs: the server's host, or its package or script if a launcher starts it.

    Never what may be the value of an option, since that may be secret.
    """
    if url := upstream.get("url"):
        return str(urlsplit(url).netloc)
    words = upstream.get("command") or ()
    for word in words:
        name = PurePosixPath(word).name
        if not _PLAIN_PATH.fullmatch(word) and not _LAUNCHER.fullmatch(word):
            break
        if not _LAUNCHER.fullmatch(name):
            return name.removesuffix(".py").removesuffix(".js")
    return PurePosixPath(masked_program(words[0])).name if words else "upstream"


class UpstreamConfig(Section):
    """The server that we stand in front of: a command to start, or a URL."""

    command: Annotated[tuple[str, ...] | None, BeforeValidator(_command)] = None
    url: HttpUrl | None = None
    name: str = Field(default_factory=_derived_name, min_length=1)
    era: Literal["auto", "legacy", "modern"] = "auto"
    processes: AtLeastOne = 16
    share: bool = False
    calls_per_process: AtLeastOne | None = None
    env: Mapping[Annotated[str, AfterValidator(_variable)], str] = Field(default_factory=dict)
    cwd: str | None = None
    endpoint_prefix: UrlPath | None = None
    start_timeout: SomeSeconds = 60.0
    idle_timeout: SomeSeconds | None = 600.0
    wait: Seconds = 600.0

    @model_validator(mode="after")
    def _command_or_url(self) -> UpstreamConfig:
        if self.command is None and self.url is None:
            raise ValueError("none given; put its command after --, or add --upstream URL or --config FILE")
        if self.command is not None and self.url is not None:
            raise ValueError("command and url are both given; an upstream has one of them")
        if self.url is not None and (self.env or self.cwd is not None):
            raise ValueError("env and cwd are for a command; this upstream has a url")
        if self.command is not None and self.endpoint_prefix is not None:
            raise ValueError("endpoint_prefix is for a url; this upstream has a command")
        return self

    @property
    def place(self) -> str:
        """For logs: the program or the URL, without arguments and query, which may hold secrets."""
        if self.url is not None:
            return masked_url(self.url)
        return f"command {masked_program(self.command[0])}" if self.command else ""


class PollInterval(Section):
    """The advice on polling: `first` for a young task, growing to `last`."""

    first: SomeSeconds = 0.3
    last: SomeSeconds = 5.0

    @model_validator(mode="after")
    def _grows(self) -> PollInterval:
        if self.first > self.last:
            first, last = format_seconds(self.first), format_seconds(self.last)
            raise ValueError(f"first ({first}) is longer than last ({last})")
        return self


class ToolRule(Section):
    """What holds for the tools whose whole name matches the glob. The first rule that matches wins."""

    match: str = Field(min_length=1)
    threshold: Seconds | None = None
    mode: Literal["auto", "never", "required"] = "auto"
    input: Literal["auto", "task"] = "auto"
    repeatable: bool = False


class TtlRange(Section):
    """What a 2025 client may wish for: how long a task is kept after its end."""

    least: SomeSeconds = 10.0
    most: SomeSeconds = 86_400.0

    @model_validator(mode="after")
    def _is_a_range(self) -> TtlRange:
        if self.least > self.most:
            least, most = format_seconds(self.least), format_seconds(self.most)
            raise ValueError(f"least ({least}) is longer than most ({most})")
        return self


class TasksConfig(Section):
    """When a call becomes a task, and how long everything may take."""

    threshold: Seconds = 2.0
    retention: SomeSeconds = 3_600.0
    runtime_limit: SomeSeconds = 86_400.0
    input_limit: SomeSeconds = 86_400.0
    mrtr_wait: SomeSeconds = 600.0
    poll_interval: PollInterval = Field(default_factory=PollInterval)
    legacy_2025: bool = True
    ttl: TtlRange = Field(default_factory=TtlRange)
    tools: tuple[ToolRule, ...] = Field(default_factory=tuple)

    @property
    def longest(self) -> float:
        """Seconds after which a record that did not change is of no use to anybody."""
        return max(self.retention, self.ttl.most, self.runtime_limit, self.input_limit)


class StoreConfig(Section):
    """Where tasks live, what a commit survives, and who can read it."""

    url: Annotated[str, AfterValidator(_store_url)] = "disk:./taskproxy-data"
    durability: Literal["power", "process"] = "power"
    encryption: EncryptionConfig = EncryptionConfig.model_construct()

    @property
    def directory(self) -> Path | None:
        """The directory of a disk store, None for a memory store."""
        return Path(self.url.removeprefix("disk:")).expanduser() if self.url.startswith("disk:") else None


class LogConfig(Section):
    """What is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Config(Section):
    """Everything an operator can set."""

    listen: ListenAddress = "127.0.0.1:8080"
    path: UrlPath = "/mcp"
    public_url: PlainUrl | None = None
    allowed_hosts: tuple[HostName, ...] = Field(default_factory=tuple)
    allowed_origins: tuple[Origin, ...] = Field(default_factory=tuple)
    trusted_proxies: tuple[Network, ...] = Field(default_factory=tuple)
    admin: AdminConfig = Field(default_factory=AdminConfig)
    auth: AuthConfig = Field(default_factory=AuthConfig)
    upstream: UpstreamConfig
    tasks: TasksConfig = Field(default_factory=TasksConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    drain: Seconds = 5.0
    store: StoreConfig = Field(default_factory=StoreConfig)
    log: LogConfig = Field(default_factory=LogConfig)

    @model_validator(mode="after")
    def _listens_twice(self) -> Config:
        if (
            self.admin.listen is not None
            and not self.is_stdio
            and are_in_conflict(self.listen, self.admin.listen)
        ):
            raise ValueError(f"listen and admin.listen are both {self.admin.listen}; they need two ports")
        return self

    @model_validator(mode="after")
    def _auth_fits(self) -> Config:
        has_url, has_public_url = self.upstream.url is not None, self.public_url is not None
        check_auth(self.auth, is_stdio=self.is_stdio, has_url=has_url, has_public_url=has_public_url)
        return self

    @property
    def is_stdio(self) -> bool:
        """Whether the client is at our stdin and stdout."""
        return self.listen == STDIO

    @property
    def listen_host(self) -> str:
        """The host to bind, without the brackets of an IPv6 address."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def listen_port(self) -> int:
        """The port to bind; 0 lets the system choose."""
        return int(self.listen.rpartition(":")[2])

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach us."""
        return self.is_stdio or is_loopback_name(self.listen_host)

    @property
    def faces_network(self) -> bool:
        """Whether strangers may reach us: on an open address, or by a public name of ours."""
        names = [*self.allowed_hosts, *([self.public_url] if self.public_url is not None else [])]
        return not self.is_loopback or any(not is_loopback_name(name) for name in names)

    @property
    def audiences(self) -> tuple[str, ...]:
        """What tokens that are verified here may be for; our public URL, unless told otherwise."""
        if self.auth.jwt.audience or self.public_url is None:
            return self.auth.jwt.audience
        plain = self.public_url.removesuffix("/")
        return (plain, f"{plain}/")  # people take the two for one, and clients send either

    @property
    def trust_everybody(self) -> tuple[str, ...]:
        """The settings that believe whoever comes, since they name all addresses there are."""
        named = {"auth.gateway.trusted": self.auth.gateway.trusted, "trusted_proxies": self.trusted_proxies}
        return tuple(setting for setting, networks in named.items() if are_all_addresses(networks))

    @property
    def is_open(self) -> bool:
        """Whether strangers may call the server's tools through us, unless it refuses them itself."""
        is_closed = self.auth.authenticates and "auth.gateway.trusted" not in self.trust_everybody
        return self.faces_network and not is_closed

    def describe(self, url: str | None = None) -> dict[str, str]:
        """The facts of the start-up line: what is served, where, to whom, with which store.

        `url` is where we really listen, if that is known.
        """
        encrypted = ", encrypted" if self.store.encryption.is_on else ""
        store = f"{self.store.url} (durability: {self.store.durability}{encrypted})"
        if self.store.directory is None:
            store = "memory: results do not survive a restart"
        to = "the NETWORK, without authentication" if self.is_open else "this machine only"
        if self.faces_network and not self.is_open:
            to = "the network, whoever is authenticated"
        return {
            "upstream": self.upstream.name,
            "from": self.upstream.place,
            "at": "stdin and stdout" if self.is_stdio else url or f"http://{self.listen}{self.path}",
            "to": "the program that started it" if self.is_stdio else to,
            "store": store,
        }
