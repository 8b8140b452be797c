"""Whatever repeats a setting, or a file that was taken for settings, keeps quiet about what may be secret.

Contract section 8; AUTH-007.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from proxy.cli import effective, run
from proxy.complaints import is_section
from proxy.config import Config
from proxy.errors import ConfigError
from proxy.secrecy import masked_command, masked_program, masked_url, may_be_secret
from proxy.sources import all_keys, load

KEY: Final = "czNjcmV0" * 5 + "czM="  # 32 bytes in base64, as a key of the store
URL: Final = "https://me:s3cret@h.example/p?k=s3cret#s3cret"
SECTIONS: Final = [key for key, kind in all_keys(Config).items() if is_section(kind)]
LEAVES: Final = [key for key, kind in all_keys(Config).items() if not is_section(kind)]
SECTIONS_OF_SECRETS: Final = [("auth", "upstream"), ("auth", "jwt"), ("store", "encryption")]
SECRET: Final = {
    *("upstream.command", "upstream.url", "upstream.env", "store.url"),
    *(".".join(key) for key in LEAVES if key[:2] in SECTIONS_OF_SECRETS),
}
"""What may be a secret whatever it looks like. Others may be repeated, URLs masked."""

SHOWN_IF_RIGHT: Final = {
    *("auth.jwt.issuer", "auth.jwt.audience", "auth.jwt.jwks_file", "auth.upstream.client_id"),
    *("auth.upstream.scopes", "store.encryption.key_file"),
}
"""Of these, what is right of any text is no secret."""


def told(settings: Any, environ: Mapping[str, str], file: Path) -> str:
    """All that is said about these settings: by a complaint, or by check-config and the start-up line."""
    file.write_text(settings if isinstance(settings, str) else json.dumps(settings))
    try:
        config = load(file, environ, {})
    except ConfigError as exc:
        return exc.message
    return effective(config) + str({**config.describe(), "upstream": ""})


def around(key: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Settings in which all else is right."""
    given: dict[str, Any] = {"upstream": {"url": "https://h.example/mcp"}, "public_url": "https://p.example"}
    if key[0] == "auth":
        given["auth"] = {"mode": "own_resource", "gateway": {"header": "X-User", "trusted": ["10.0.0.1"]}}
    if key[:2] == ("auth", "upstream"):
        given["auth"]["upstream"] = {"token_url": "https://i", "client_id": "c", "client_secret": "s3cret"}
    if key[:2] == ("auth", "jwt"):
        given["auth"] = {"jwt": {"issuer": "https://i.example", "jwks_url": "https://i.example/jwks"}}
    if key in (("upstream", "command"), ("upstream", "env"), ("upstream", "cwd")):
        given["upstream"] = {"command": ["server"]}
    section = given
    for name in key[:-1]:
        section = section.setdefault(name, {})
    section[key[-1]] = value
    return given


def test_these_settings_may_be_secret() -> None:
    assert {".".join(key) for key in LEAVES if may_be_secret(key)} == SECRET


@pytest.mark.parametrize("key", LEAVES, ids=".".join)
def test_no_setting_is_told_with_a_secret_in_it(key: tuple[str, ...], tmp_path: Path) -> None:
    """Right or wrong, of its kind or of another, from the file or the environment."""
    variable = "MCP_TASKPROXY_" + "__".join(key).upper()
    is_secret = ".".join(key) in SECRET - SHOWN_IF_RIGHT
    words = ["htps://s3cret@h", "server --k=s3cret"] if is_secret else []
    for word in ["https://h.example/p?k=s3cret", *words]:
        for value in (word, [word], ["server", f"--k={word}"], {"N": word}, {word: None}):
            assert "s3cret" not in told(around(key, value), {}, tmp_path / "f.yaml"), value
        assert "s3cret" not in told(around(key, word), {variable: word}, tmp_path / "f.yaml"), word
    assert "s3cret" not in told(around(key, URL), {}, tmp_path / "f.yaml")


@pytest.mark.parametrize("key", SECTIONS, ids=".".join)
def test_what_stands_in_the_place_of_a_section_is_not_repeated(key: tuple[str, ...], tmp_path: Path) -> None:
    """A key, for one, in the place of `store.encryption`."""
    word = "s3cret" if may_be_secret(key) else URL
    variable = "MCP_TASKPROXY_" + "__".join(key).upper()
    assert "s3cret" not in told(around(key, word), {}, tmp_path / "f.yaml")
    assert "s3cret" not in told(around(key, [word]), {}, tmp_path / "f.yaml")
    assert "s3cret" not in told(around(key, {}), {variable: word}, tmp_path / "f.yaml")


FOREIGN: Final = [
    "s3cret",
    "me:s3cret",
    "API_KEY=s3cret\nOTHER=s3cret",
    "password: s3cret",
    "{password: [s3cret]}",
    "- [s3cret]",
    "-----BEGIN PRIVATE KEY-----\ns3cretMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n",
    "-----BEGIN KEY-----\nProc-Type: 4,ENCRYPTED\n\ns3cret==\n",
    f"{KEY}s3cretczNjcmV0:",
    "a: *s3cret",
    "a: &s3cret 1\nb: &s3cret 2\nc: *s3cret",
    "a: !s3cret x",
    "a: !s3cret!x y",
    "%s3cret x",
    "%TAG !s3cret! a\n%TAG !s3cret! b\n--- a",
    "a: !!int s3cret",
    "a: !!bool s3cret",
    "a: !!float s3cret",
    "a: !!timestamp s3cret",
    "a: !!binary s3cr\u00e9t",
    "a: !!set s3cret",
    "a: |s3cret\n",
    "s3cret with spaces: a\ns3cret with spaces: b",
    "a: 's3cret",
    '"\\s3cret"',
    "a: s3cret: b",
    "a: `s3cret`",
    "a: @s3cret",
    "\0s3cret",
]


@pytest.mark.parametrize("text", FOREIGN)
def test_a_file_that_is_none_of_ours_is_not_repeated(text: str, tmp_path: Path) -> None:
    """Such as a key file, given by mistake."""
    file = tmp_path / "f.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {"command": ["server"]})
    assert caught.value.message.startswith(str(file))
    assert "s3cret" not in caught.value.message
    for key in ("UPSTREAM__COMMAND", "UPSTREAM", "AUTH__UPSTREAM__HEADERS", "STORE__ENCRYPTION__KEYS"):
        assert "s3cret" not in told({"upstream": {"command": ["x"]}}, {f"MCP_TASKPROXY_{key}": text}, file), (
            key
        )


def test_a_binary_file_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"s3cret\xff\x00")
    with pytest.raises(ConfigError, match=r"not UTF-8 at byte 6$"):
        load(file, {}, {})


@pytest.mark.parametrize("name", ["{X-Key:s3cret}", "{s3cret}", "{'Authorization: Bearer s3cret': a}"])
@pytest.mark.parametrize(
    "where", ["{auth: {mode: own_resource, upstream: {headers: %s}}}", "{upstream: {env: %s}}"]
)
def test_a_name_that_is_half_a_secret_is_not_repeated(where: str, name: str, tmp_path: Path) -> None:
    """Without the space behind its colon, YAML takes both for a key."""
    assert "s3cret" not in told(where % name, {}, tmp_path / "f.yaml").replace("env: {}", "")


WORD: Final = "s3cretKEY1234567"  # letters and digits, as a name may be

MISPLACED: Final = [
    "auth: {upstream: {headers: X-Key, %s}}",
    "auth: {upstream: {headers: {X-Key: a}}, %s}",
    "auth: {upstream: {client_secret: a, %s: b}}",
    "auth:\n  upstream:\n    client_id: a\n    %s: b",
    "auth:\n  upstream:\n    client_secret:%s: \n",
    "auth:\n  upstream:\n    client_secret=%s: \n",
    "auth: {upstream: {client_secret%s: a}}",
    "{auth:%s, upstream: {command: [x]}}",
    "auth: {upstream: {client_auth: %s}}",
    "auth: {upstream: {headers: {%s: a, %s: b}}}",
    "auth: {upstream: {headers: {%s: }}}",
    "auth: {upstream: {scopes: %s}}",
    "auth: {jwt: {audience: %s}}",
    "auth: {jwt: {algorithms: [%s]}}",
    "auth: {jwt: {leeway: %s}}",
    "auth: {jwt: {issuer: 'https://u:%s@h', jwks_url: 'https://h/j', audience: [x]}}",
    "auth: {jwt: {issuer: 'https://%s@h', jwks_url: 'https://h/j', audience: [x]}}",
    "auth: {jwt: {issuer: 'https://h', jwks_url: 'https://h/%s', audience: [x]}}",
    "store: {encryption: {keys: a, %s}}",
    "store: {encryption: {keys: a}, %s}",
    "store: {encryption: {%s: a}}",
    "upstream: {env: A, %s}",
    "upstream: {env: {%s: a, %s: b}}",
    "upstream: {env: {'A=%s': b}}",
    "upstream: {%s: a}",
    "upstream: {command: [x], %s}",
    "%s, a",
    "{drain: 1s, %s}",
    "{%s: a, %s: b}",
    "upstream: {url: 'https://h.example/%s/mcp'}",
    "upstream: {url: 'https://h.example/api/mcp/s/%s'}",
]


@pytest.mark.parametrize("text", MISPLACED)
def test_what_may_be_a_secret_in_the_wrong_place_is_not_repeated(text: str, tmp_path: Path) -> None:
    """Such as what stands behind a comma where there are no braces around it."""
    said = told(text.replace("%s", WORD), {}, tmp_path / "f.yaml")
    assert said
    assert WORD not in said
    assert WORD.lower() not in said


def test_an_unknown_key_is_named_where_it_helps(tmp_path: Path) -> None:
    """Near one of ours, or far from all secrets; else those are listed that belong there."""
    for text, line in {
        "auth: {upstream: {client_secrets: a}}": "upstream.***: unknown key, did you mean 'client_secret'?",
        "tasks: {xyzzy: 1}": "tasks.xyzzy: unknown key",
        f"store: {{encryption: {{{WORD}: a}}}}": "encryption.***: unknown key; known are keys, key_file",
        "drain: 1s\ndrain: 2s": "the key drain stands twice",
        f"{WORD}: 1s\n{WORD}: 2s": "a key stands twice",
    }.items():
        assert line in told(text, {}, tmp_path / "f.yaml")


def test_a_key_in_the_place_of_the_file_that_holds_it_is_refused(tmp_path: Path) -> None:
    for key in (KEY, KEY[3:]):
        said = told(around(("store", "encryption", "key_file"), key), {}, tmp_path / "f.yaml")
        assert "key_file: found str; that is a key" in said
        assert key not in said


@pytest.mark.parametrize(
    "words",
    [
        [URL],
        ["--upstream", "htps://h/s3cret"],
        ["--listen", URL, "--", "x"],
        ["--api-key=s3cret"],
        ["--store", "redis://:s3cret@h"],
        ["--", URL],
        ["--", "KEY=s3cret server"],
        ["--", "no-such-server --key=s3cret"],
        ["check-config", "--", "KEY=s3cret", "server"],
        ["check-config", "--", "env", "KEY=x/s3cret", "npx", "https://h/s3cret"],
    ],
)
def test_a_command_line_is_not_repeated(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    run(words, {})
    out, err = capfd.readouterr()
    assert out + err
    assert "s3cret" not in out + err


@pytest.mark.parametrize(
    "url, shown",
    [
        ("https://h/mcp", "https://h/mcp"),
        (URL, "https://***@h.example/p?***"),
        ("http://h?a=b?c", "http://h?***"),
        ("http://h/@scope/x#y", "http://h/***#***"),
        ("https://h.example:8443/api/v1/mcp/", "https://h.example:8443/api/v1/mcp/"),
        ("https://h/streamable-http", "https://h/streamable-http"),
        ("https://h/s3cret/mcp", "https://h/***"),
        ("https://h/mcp/abcdefghi", "https://h/***"),
        ("https://h/mcp/1234", "https://h/***"),
        ("https://h/a/b/c/d", "https://h/***"),
        ("https://h/mcp;s3cret", "https://h/***"),
        ("https://h//s3cret?k=s3cret", "https://h/***?***"),
    ],
)
def test_a_url_is_shown_without_what_is_secret_in_many(url: str, shown: str) -> None:
    assert masked_url(url) == shown
    assert masked_command([url]) == [shown]


def test_a_program_is_shown_without_what_a_shell_would_pass_it() -> None:
    assert masked_program("A=s3cret server --key s3cret") == "A=*** ***"
    assert masked_program("/bin/server") == "/bin/server"
    assert masked_program("") == ""
