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
SECRET: Final = {
    *("upstream.command", "upstream.url", "upstream.env"),
    *("auth.jwt.jwks_url", "auth.upstream.headers", "auth.upstream.token_url"),
    *("auth.upstream.client_secret", "auth.upstream.resource"),
    *("store.url", "store.encryption.keys", "store.encryption.key_file"),
}
"""What may be a secret whatever it looks like. Others may be repeated, URLs masked."""


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
    is_secret = ".".join(key) in SECRET and key[-1] != "key_file"  # the name of a file may be repeated
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
        ("http://h/@scope/x#y", "http://h/@scope/x#***"),
    ],
)
def test_a_url_is_shown_without_what_is_secret_in_many(url: str, shown: str) -> None:
    assert masked_url(url) == shown
    assert masked_command([url]) == [shown]


def test_a_program_is_shown_without_what_a_shell_would_pass_it() -> None:
    assert masked_program("A=s3cret server --key s3cret") == "A=*** ***"
    assert masked_program("/bin/server") == "/bin/server"
    assert masked_program("") == ""
