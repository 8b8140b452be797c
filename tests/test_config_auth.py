"""The section `auth`: what fits together, and what is said where it does not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from proxy.cli import effective
from proxy.config import Config
from proxy.errors import ConfigError
from proxy.sources import load

URL = {"url": "http://127.0.0.1:9/mcp"}
COMMAND = {"command": ["server"]}
JWT = {"issuer": "https://i.example", "jwks_url": "https://i.example/jwks", "audience": ["a"]}
GATEWAY = {"header": "X-User", "trusted": ["10.0.0.0/8"]}
CLIENT = {"token_url": "https://i.example/token", "client_id": "c", "client_secret": "hunter2"}
PUBLIC = "https://p.example/mcp"


def config(auth: Any, upstream: Any = None, **more: Any) -> Config:
    return Config.model_validate({"upstream": upstream or URL, "auth": auth, **more})


def test_by_default_everybody_is_let_in_and_the_server_decides() -> None:
    auth = config({}).auth
    assert not auth.authenticates
    assert not auth.is_own_resource
    assert not auth.upstream.is_given


@pytest.mark.parametrize(
    "auth, more",
    [
        ({"jwt": JWT}, {}),
        ({"jwt": {**JWT, "audience": []}}, {"public_url": PUBLIC}),
        ({"jwt": {**JWT, "jwks_url": "http://127.0.0.1:1/jwks"}}, {}),
        ({"jwt": {"issuer": "i", "jwks_file": "keys.json", "audience": ["a"], "algorithms": ["PS512"]}}, {}),
        ({"gateway": GATEWAY}, {}),
        ({"mode": "own_resource", "jwt": JWT}, {"public_url": PUBLIC}),
        ({"mode": "own_resource", "gateway": GATEWAY}, {}),
        ({"mode": "own_resource", "gateway": GATEWAY, "upstream": CLIENT}, {}),
        ({"mode": "own_resource", "gateway": GATEWAY}, {"upstream": COMMAND}),
        ({"upstream": {"headers": {"Authorization": "Bearer a"}}}, {"listen": "stdio"}),
        ({"mode": "own_resource", "jwt": JWT, "upstream": CLIENT}, {"public_url": PUBLIC}),
    ],
    ids=str,
)
def test_what_fits_together_is_taken(auth: Any, more: dict[str, Any]) -> None:
    config(auth, **more)


@pytest.mark.parametrize(
    "auth, more, words",
    [
        ({"jwt": {"jwks_url": "https://i.example/jwks"}}, {}, "issuer is missing"),
        ({"jwt": {"issuer": "i"}}, {}, "jwks_url or jwks_file"),
        ({"jwt": {**JWT, "jwks_file": "f"}}, {}, "one of them"),
        ({"jwt": {**JWT, "jwks_url": "http://i.example/jwks"}}, {}, "https:// is needed"),
        ({"jwt": {**JWT, "algorithms": ["HS256"]}}, {}, "RS256"),
        ({"jwt": {**JWT, "algorithms": ["none"]}}, {}, "RS256"),
        ({"jwt": {**JWT, "algorithms": []}}, {}, "at least 1"),
        ({"jwt": {**JWT, "audience": []}}, {}, "auth.jwt.audience is missing"),
        ({"jwt": JWT}, {"listen": "stdio"}, "listen is stdio"),
        ({"gateway": {"header": "X-User"}}, {}, "go together"),
        ({"gateway": {"trusted": ["10.0.0.1"]}}, {}, "go together"),
        ({"gateway": {**GATEWAY, "trusted": ["gateway.example"]}}, {}, "an IP address or a network"),
        ({"gateway": {**GATEWAY, "header": "Host"}}, {}, "a header of your own"),
        ({"gateway": {**GATEWAY, "header": "X User"}}, {}, "a header of your own"),
        ({"gateway": GATEWAY}, {"listen": "stdio"}, "listen is stdio"),
        ({"gateway": GATEWAY, "jwt": JWT}, {}, "use one of them"),
        ({"mode": "own_resource"}, {}, "needs jwt or gateway"),
        ({"mode": "own_resource", "jwt": JWT}, {}, "public_url is missing"),
        ({"upstream": CLIENT}, {}, "mode own_resource"),
        (
            {"mode": "own_resource", "gateway": GATEWAY, "upstream": CLIENT},
            {"upstream": COMMAND},
            "upstream.env",
        ),
        ({"upstream": {"client_id": "c"}}, {}, "go together"),
        ({"upstream": {"scopes": ["a"]}}, {}, "for a token_url"),
        ({"scopes": ["a b"]}, {}, "a scope is a word"),
        ({"scopes": ['a"']}, {}, "a scope is a word"),
        ({"upstream": {**CLIENT, "token_url": "http://i.example/t"}}, {}, "https:// is needed"),
        ({"upstream": {**CLIENT, "headers": {"authorization": "a"}}}, {}, "another one"),
        ({"upstream": {"headers": {"Mcp-Session-Id": "a"}}}, {}, "a header of your own"),
        ({"upstream": {"headers": {"X-Key": "a\r\nb"}}}, {}, "visible ASCII"),
    ],
    ids=str,
)
def test_what_does_not_is_told_in_plain_words(auth: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        config(auth, **more)


def test_the_audience_is_what_clients_call_us_unless_told_otherwise() -> None:
    ours = {"jwt": {**JWT, "audience": []}}
    assert config(ours, public_url=PUBLIC).audiences == (PUBLIC, f"{PUBLIC}/")
    assert config(ours, public_url=f"{PUBLIC}/").audiences == (PUBLIC, f"{PUBLIC}/")
    assert config(ours, public_url=f"{PUBLIC}//").audiences == (f"{PUBLIC}/", f"{PUBLIC}//")
    assert config({"jwt": JWT}, public_url=PUBLIC).audiences == ("a",)
    assert config({"jwt": {**JWT, "audience": ["https://a/"]}}).audiences == ("https://a/",)


def test_who_is_authenticated_is_no_stranger() -> None:
    """Contract section 8: loud where it is open without authentication."""
    assert config({}, listen="0.0.0.0:80").is_open
    closed = config({"jwt": JWT}, listen="0.0.0.0:80")
    assert not closed.is_open
    assert closed.describe()["to"] == "the network, whoever is authenticated"
    assert config({"jwt": JWT}).describe()["to"] == "this machine only"


@pytest.mark.parametrize(
    "networks, are_all",
    [
        (["0.0.0.0/0"], True),
        (["::/0"], True),
        (["10.0.0.1", "0.0.0.0/1", "128.0.0.0/1"], True),
        (["10.0.0.0/8", "::1"], False),
        (["0.0.0.0/1", "8000::/1"], False),
        (["0.0.0.0"], False),
    ],
)
def test_a_gateway_that_may_be_anywhere_is_nobodys_word(networks: list[str], are_all: bool) -> None:
    """Whoever reaches the port names itself."""
    gateway = config({"gateway": {"header": "X-User", "trusted": networks}}, listen="0.0.0.0:80")
    assert gateway.trust_everybody == (("auth.gateway.trusted",) if are_all else ())
    assert gateway.is_open is are_all
    assert ("NETWORK" in gateway.describe()["to"]) is are_all
    proxies = config({"jwt": JWT}, listen="0.0.0.0:80", trusted_proxies=networks)
    assert proxies.trust_everybody == (("trusted_proxies",) if are_all else ())
    assert not proxies.is_open


SECRETS = {"headers": {"X-Key": "hunter2"}, **CLIENT}


def test_what_is_in_force_is_shown_without_secrets() -> None:
    """AUTH-007."""
    shown = effective(config({"mode": "own_resource", "gateway": GATEWAY, "upstream": SECRETS}))
    assert "hunter2" not in shown
    assert yaml.safe_load(shown)["auth"]["upstream"]["client_secret"] == "***"


@pytest.mark.parametrize("value", ['{X-Key: "hunter2\\x01"}', "hunter2", "{X-Key: [hunter2]}"])
def test_a_secret_that_cannot_be_used_is_not_repeated(value: str) -> None:
    """AUTH-007."""
    name = "MCP_TASKPROXY_AUTH__UPSTREAM__HEADERS"
    with pytest.raises(ConfigError) as caught:
        load(None, {name: value, "MCP_TASKPROXY_UPSTREAM__URL": "https://u.example/mcp"}, {})
    assert "hunter2" not in caught.value.message
    assert name in caught.value.message


def test_secrets_come_from_the_environment() -> None:
    environ = {
        "MCP_TASKPROXY_UPSTREAM__URL": "https://u.example/mcp",
        "MCP_TASKPROXY_AUTH__UPSTREAM__HEADERS": "{X-Api-Key: k-1}",
    }
    assert load(None, environ, {}).auth.upstream.headers == {"X-Api-Key": "k-1"}
