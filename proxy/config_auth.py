"""The section `auth`: who clients are, and in whose name requests go to the server.

Above: `config`. Contract section 8; Authorization 2026-07-28.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from proxy.addresses import FilePath, HttpUrl, Network, PlainUrl, is_loopback_name
from proxy.sections import Section
from proxy.units import Seconds

Algorithm: TypeAlias = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"
]
"""Signatures by a key pair. Never `none`, and none by a shared secret: the keys are public."""

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_SCOPE: Final = re.compile(r"[!#-\[\]-~]+\Z")
_HEADER_VALUE: Final = re.compile(r"[!-~](?:[ \t!-~]*[!-~])?\Z")
_OF_EACH_MESSAGE: Final = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type"),
        *("expect", "host", "last-event-id", "origin", "referer", "te", "transfer-encoding", "upgrade"),
    }
)


def _not_eavesdropped(value: str) -> str:
    """What keys and secrets are fetched from. Authorization 2026-07-28, "Communication Security"."""
    if urlsplit(value).scheme != "https" and not is_loopback_name(value):
        raise ValueError("https:// is needed: whoever can change what is sent there decides who is let in")
    return value


def _issuer(value: str) -> str:
    """Any text is an issuer's name; of a URL nothing may be secret, since clients are told of it."""
    if "://" not in value:
        return value
    try:
        parts = urlsplit(value)
    except ValueError:
        raise ValueError("that is not a URL") from None
    if "@" in parts.netloc:
        raise ValueError("credentials do not belong in a URL: they would be published")
    return value


def _header_name(value: str) -> str:
    name = value.lower()
    if not _HEADER_NAME.match(value) or name in _OF_EACH_MESSAGE or name.startswith("mcp-"):
        raise ValueError("the name of a header of your own is needed, such as X-User")
    return value


def _header_value(value: str) -> str:
    if not _HEADER_VALUE.match(value):
        raise ValueError("the value of a header is visible ASCII, without space at its ends")
    return value


def _scope(value: str) -> str:
    if not _SCOPE.match(value):
        raise ValueError("a scope is a word of visible ASCII, without quotes and backslashes")
    return value


HeaderName: TypeAlias = Annotated[str, AfterValidator(_header_name)]
HeaderValue: TypeAlias = Annotated[str, AfterValidator(_header_value)]
SafeUrl: TypeAlias = Annotated[HttpUrl, AfterValidator(_not_eavesdropped)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Scope: TypeAlias = Annotated[str, AfterValidator(_scope)]


class JwtConfig(Section):
    """Tokens that are verified here: off without this section, and never by a section that is empty."""

    issuer: Annotated[Text, AfterValidator(_issuer)] | None = None
    audience: tuple[Text, ...] = Field(default_factory=tuple)
    jwks_url: SafeUrl | None = None
    jwks_file: Annotated[FilePath, Field(min_length=1)] | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256", "EdDSA", "Ed25519")
    leeway: Seconds = 10.0

    @model_validator(mode="after")
    def _is_whole(self) -> JwtConfig:
        if self.issuer is None:
            raise ValueError(
                "issuer is missing: whose tokens are they? Without this section none is verified"
            )
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("the issuer's keys are needed: jwks_url or jwks_file, one of them")
        return self

    @property
    def is_on(self) -> bool:
        return self.issuer is not None


class GatewayConfig(Section):
    """A gateway in front that knows who the user is, and says it in a header: off without this section."""

    header: HeaderName | None = None
    trusted: tuple[Network, ...] = Field(default_factory=tuple)

    @model_validator(mode="after")
    def _is_whole(self) -> GatewayConfig:
        if self.header is None or not self.trusted:
            raise ValueError(
                "header and trusted go together: the header is believed from those addresses alone"
            )
        return self

    @property
    def is_on(self) -> bool:
        return self.header is not None


class UpstreamAuthConfig(Section):
    """The proxy's own credential towards the server: fixed headers, or a token by client credentials."""

    headers: Mapping[HeaderName, HeaderValue] = Field(default_factory=dict)
    token_url: SafeUrl | None = None
    client_id: Text | None = None
    client_secret: Text | None = None
    client_auth: Literal["basic", "post"] = "basic"
    scopes: tuple[Scope, ...] = Field(default_factory=tuple)
    resource: PlainUrl | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> UpstreamAuthConfig:
        given = [
            name for name in ("token_url", "client_id", "client_secret") if getattr(self, name) is not None
        ]
        if 0 < len(given) < 3:
            raise ValueError("token_url, client_id and client_secret go together")
        if not given and (self.scopes or self.resource is not None):
            raise ValueError("scopes and resource are for a token_url")
        if given and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("headers has an Authorization, and token_url would make another one")
        return self

    @property
    def is_given(self) -> bool:
        return bool(self.headers) or self.token_url is not None


class AuthConfig(Section):
    """Without a word about it, `Authorization` goes to the server unchanged, and its hash is the owner."""

    mode: Literal["stand_in", "own_resource"] = "stand_in"
    jwt: JwtConfig = JwtConfig.model_construct()
    gateway: GatewayConfig = GatewayConfig.model_construct()
    scopes: tuple[Scope, ...] = Field(default_factory=tuple)
    upstream: UpstreamAuthConfig = Field(default_factory=UpstreamAuthConfig)

    @model_validator(mode="after")
    def _is_one_thing(self) -> AuthConfig:
        if self.jwt.is_on and self.gateway.is_on:
            raise ValueError("jwt and gateway both say who a client is; use one of them")
        if self.is_own_resource and not self.authenticates:
            raise ValueError("mode own_resource needs jwt or gateway: who else would check the clients?")
        return self

    @property
    def is_own_resource(self) -> bool:
        """Whether tokens are for us, so that the server gets a credential of ours, if any."""
        return self.mode == "own_resource"

    @property
    def authenticates(self) -> bool:
        """Whether nobody is let in whose name is not known for sure."""
        return self.jwt.is_on or self.gateway.is_on


def check_auth(auth: AuthConfig, *, is_stdio: bool, has_url: bool, has_public_url: bool) -> None:
    """What depends on settings elsewhere. Raises ValueError."""
    if auth.upstream.is_given and not has_url:
        raise ValueError(
            "auth.upstream is for a server with a url; a command gets its secrets by upstream.env"
        )
    if is_stdio:
        if auth.authenticates:
            raise ValueError("auth.jwt and auth.gateway are for clients over HTTP; listen is stdio")
        return
    if auth.upstream.is_given and not auth.is_own_resource:
        raise ValueError(
            "auth.upstream is for auth.mode own_resource: in stand_in the server gets what the client sends"
        )
    if auth.is_own_resource and auth.jwt.is_on and not has_public_url:
        raise ValueError(
            "public_url is missing: auth.mode own_resource needs it, as the name of the resource"
        )
    if auth.jwt.is_on and not auth.jwt.audience and not has_public_url:
        raise ValueError("auth.jwt.audience is missing, and public_url, which would stand for it")
