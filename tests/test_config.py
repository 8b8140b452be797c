"""The settings: their defaults, their properties, and the file that documents them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from proxy.config import Config, TasksConfig, ToolRule, UpstreamConfig
from proxy.sources import all_keys, load

EXAMPLE = Path(__file__).parent.parent / "config.example.yaml"


def config(**settings: Any) -> Config:
    return Config.model_validate({"upstream": {"command": ["server"]}, **settings})


# The file that documents every setting.


def test_the_example_equals_the_defaults() -> None:
    upstream = UpstreamConfig(command=("npx", "-y", "some-server", "stdio"))
    assert load(EXAMPLE, {}, {}) == Config(upstream=upstream)


def example_with(*sections: str) -> Any:
    """The example with some of its sections that are comments, since without them something is off."""
    text = EXAMPLE.read_text()
    for name in sections:
        (found,) = re.findall(rf"^  # {name}:\n(?:  #.*\n)+", text, re.MULTILINE)
        text = text.replace(found, re.sub(r"^  # ?", "  ", found, flags=re.MULTILINE))
    return yaml.safe_load(text)


@pytest.mark.parametrize("key", list(all_keys(Config)), ids=".".join)
def test_the_example_gives_every_setting(key: tuple[str, ...]) -> None:
    section = example_with("jwt", "gateway", "encryption")
    for name in key:
        assert name in section
        section = section[name]


@pytest.mark.parametrize("name", ["jwt", "gateway", "encryption"])
def test_the_sections_that_are_comments_can_be_used_as_they_are(name: str) -> None:
    given = example_with(name)
    changed = Config.model_validate({**given, "public_url": "https://p.example/mcp"})
    section = getattr(changed.store if name == "encryption" else changed.auth, name)
    assert section.is_on
    for setting, field in type(section).model_fields.items():
        is_example = setting in ("issuer", "jwks_url", "header", "trusted", "key_file")
        assert is_example or getattr(section, setting) == field.get_default(call_default_factory=True)


@pytest.mark.parametrize("field", list(ToolRule.model_fields))
def test_the_example_explains_every_part_of_a_tool_rule(field: str) -> None:
    assert re.search(rf"^  #   {field} ", EXAMPLE.read_text(), re.MULTILINE)


def test_the_rules_of_the_example_are_rules() -> None:
    rules = re.findall(r"# - (\{match.*\})", EXAMPLE.read_text())
    assert len([ToolRule.model_validate(yaml.safe_load(rule)) for rule in rules]) == 4


def test_every_setting_of_the_example_has_its_explanation() -> None:
    lines = EXAMPLE.read_text().splitlines()
    for number, line in enumerate(lines):
        if re.match(r" *[a-z_0-9]+: [^#]", line) and line.strip() != "last: 5s":
            above = lines[number - 1].strip()
            assert above.startswith("#") or above == "poll_interval:", line


# What a setting is to those who read it.


def test_values_are_plain_seconds_and_bytes() -> None:
    c = config(tasks={"threshold": "250ms"}, limits={"message": "1MiB", "polls_per_task": "30/m"})
    assert c.tasks.threshold == 0.25
    assert c.limits.message == 1 << 20
    assert c.limits.polls_per_task == 0.5


def test_a_program_builds_a_configuration_from_plain_values() -> None:
    c = Config(upstream=UpstreamConfig(url="http://h/mcp"), tasks=TasksConfig(threshold=0.25))
    assert c.tasks.threshold == 0.25


def test_a_body_may_be_as_large_as_a_message_unless_said_otherwise() -> None:
    assert config(limits={"message": "8MiB"}).limits.body == 8 << 20
    assert config(limits={"message": "8MiB", "body": "1MiB"}).limits.body == 1 << 20


def test_nothing_can_be_set_later() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().listen = "127.0.0.1:1"


@pytest.mark.parametrize("key", [(), *(k for k, kind in all_keys(Config).items() if isinstance(kind, type))])
def test_every_section_is_closed(key: tuple[str, ...]) -> None:
    if key and not issubclass(all_keys(Config)[key], BaseModel):
        return
    wrong: Any = {"no_such_key": 1}
    for name in reversed(key):
        wrong = {name: wrong}
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"upstream": {"command": ["x"]}} | wrong)
    assert "extra_forbidden" in [error["type"] for error in caught.value.errors()]


def test_without_a_word_it_listens_on_loopback_alone() -> None:
    """HTTP-003."""
    c = config()
    assert (c.listen_host, c.is_loopback, c.faces_network) == ("127.0.0.1", True, False)


@pytest.mark.parametrize(
    "listen, host, port, loopback",
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, True),
        ("127.8.9.1:1", "127.8.9.1", 1, True),
        ("localhost:0", "localhost", 0, True),
        ("[::1]:8080", "::1", 8080, True),
        ("0.0.0.0:8080", "0.0.0.0", 8080, False),
        ("[::]:8080", "::", 8080, False),
        ("192.0.2.7:80", "192.0.2.7", 80, False),
        ("gateway.example:80", "gateway.example", 80, False),
    ],
)
def test_the_address_to_listen_on_and_who_reaches_it(
    listen: str, host: str, port: int, loopback: bool
) -> None:
    c = config(listen=listen)
    assert (c.listen_host, c.listen_port, c.is_loopback) == (host, port, loopback)


@pytest.mark.parametrize(
    "command, name",
    [
        (["some-server"], "some-server"),
        (["/opt/x/some-server", "--token", "s3cret"], "some-server"),
        (["npx", "-y", "@modelcontextprotocol/server-everything", "stdio"], "server-everything"),
        (["python3.12", "-m", "pack.age"], "pack.age"),
        (["python", "/srv/server.py"], "server"),
        (["uv", "run", "server.py"], "server"),
        (["uvx", "--with", "s3cret", "server"], "uvx"),
        (["python", "-c", "import s3cret"], "python"),
        (["node"], "node"),
        (["npx", "--userconfig=https://h/s3cret", "server"], "npx"),
        (["npx", "https://h/s3cret"], "npx"),
        (["env", "KEY=x/s3cret", "server"], "env"),
        (["KEY=s3cret server"], "KEY=*** ***"),
    ],
)
def test_an_upstream_is_called_after_its_server_and_never_after_an_option(
    command: list[str], name: str
) -> None:
    assert config(upstream={"command": command}).upstream.name == name


def test_an_upstream_with_a_url_is_called_after_its_host() -> None:
    upstream = config(upstream={"url": "https://h.example:8443/mcp?key=s3cret"}).upstream
    assert upstream.name == "h.example:8443"
    assert upstream.place == "https://h.example:8443/mcp?***"


def test_a_given_name_is_kept_and_null_is_the_default() -> None:
    assert config(upstream={"command": ["x"], "name": "y"}).upstream.name == "y"
    assert config(upstream={"command": ["x"], "name": None}).upstream.name == "x"


def test_the_path_loses_its_last_slash_since_both_spellings_are_served() -> None:
    assert config(path="/mcp/").path == "/mcp"
    assert config(path="/").path == "/"


def test_origins_read_as_browsers_send_them() -> None:
    c = config(allowed_origins=["HTTPS://App.Example:443", "http://[::1]:3000"])
    assert c.allowed_origins == ("https://app.example", "http://[::1]:3000")


def test_the_directory_of_a_store() -> None:
    assert config(store={"url": "disk:/data"}).store.directory == Path("/data")
    assert config(store={"url": "disk:~/tasks"}).store.directory == Path.home() / "tasks"
    assert config(store={"url": "memory:"}).store.directory is None


# What the start-up line says.


def test_the_start_up_facts_name_server_address_reach_and_store() -> None:
    facts = config(upstream={"command": ["npx", "-y", "some-server", "s3cret"]}).describe()
    assert facts == {
        "upstream": "some-server",
        "from": "command npx",
        "at": "http://127.0.0.1:8080/mcp",
        "to": "this machine only",
        "store": "disk:./taskproxy-data (durability: power)",
    }


def test_the_start_up_facts_admit_an_open_bind_and_a_store_that_forgets() -> None:
    """HTTP-004, T25-SEC-003: open operation is announced. Contract I3: so is `memory:`."""
    facts = config(listen="0.0.0.0:8080", store={"url": "memory:"}).describe("http://0.0.0.0:8080/mcp")
    assert facts["to"] == "the NETWORK, without authentication"
    assert facts["store"] == "memory: results do not survive a restart"


@pytest.mark.parametrize(
    "settings, faces_network",
    [
        ({}, False),
        ({"listen": "stdio"}, False),
        ({"listen": "0.0.0.0:8080"}, True),
        ({"allowed_hosts": ["localhost", "127.0.0.1:8080", "[::1]:1"]}, False),
        ({"allowed_hosts": ["mcp.example.com"]}, True),
        ({"public_url": "https://mcp.example.com/team/mcp"}, True),
        ({"public_url": "http://localhost:8080/mcp"}, False),
    ],
)
def test_a_public_name_makes_a_loopback_bind_face_the_network(
    settings: dict[str, object], faces_network: bool
) -> None:
    """Behind a gateway strangers reach us on 127.0.0.1; they must not share a process that may ask."""
    config = Config.model_validate({"upstream": {"command": ["x"]}, **settings})
    assert config.faces_network is faces_network
