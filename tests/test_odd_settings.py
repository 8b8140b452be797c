"""Whatever stands in a setting, the proxy says in one line why it does not start (exit code 2).

Contract section 11: "one clear line".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from proxy import sources
from proxy.cli import effective, run
from proxy.config import Config
from proxy.errors import ConfigError
from proxy.sources import all_keys, load
from tests.test_secrecy import around

KEYS: Final = list(all_keys(Config))
ODD: Final[list[Any]] = [
    *("a\0s3cret", "s3cret\ud800", "\udcffs3cret", "~no-such-user/s3cret", "[s3cret", "http://[s3cret"),
    *("//[", "x" * 5000, "http://h:99999999999999999999", "9" * 5000, "\u0665s", "http://\uff0f@s3cret/"),
    *(-1, 10**400, 1e308, float("nan"), float("inf"), True, None, b"s3cret", {"s3cret"}, {1: {2: 3}}),
    *([[["s3cret"]]], {"": "s3cret"}, {"a=s3cret": "x"}, {"a\0": "x"}, {"\ud800": "x"}, {"a": "\0"}, ["\0"]),
    *([""], [{}], [None], [[]], {None: None}, {1.5: []}, {"a": {"b": ["\0"]}}),
]


def complaint(file: Path, environ: Mapping[str, str]) -> str:
    """Empty where there is none."""
    try:
        config = load(file, environ, {})
        effective(config)
        config.describe()
    except ConfigError as exc:
        return exc.message
    return ""


def configured(text: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """What is said of it, and nothing is but that."""
    file = folder / "f.yaml"
    file.write_text(text, "utf-8")
    code = run(["check-config", "--config", str(file)], {})
    out, err = capfd.readouterr()
    assert (code, out) == (2, ""), (text[:200], out, err)
    assert err.count("\n") == 1
    return err.removeprefix("mcp-taskproxy: error: ").replace(str(file), "f.yaml").strip()


@pytest.mark.parametrize("key", KEYS, ids=".".join)
def test_no_odd_value_is_a_fault_of_ours(
    key: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file, as YAML may bring it, or in a variable of the environment."""
    file = tmp_path / "f.yaml"
    file.touch()
    brought: dict[str, Any] = {}
    monkeypatch.setattr(yaml, "load", lambda text, **_: brought)
    monkeypatch.setattr(sources, "within_bound", lambda name, call: call())
    variable = "MCP_TASKPROXY_" + "__".join(key).upper()
    for value in ODD:
        brought = around(key, value)
        said = complaint(file, {})
        assert "\n" not in said
        assert "cannot be understood" not in said, (value, said)
    monkeypatch.undo()
    file.write_text(yaml.dump(around(key, "x")))
    for value in ("~no-such-user/s3cret", "[s3cret", "//["):
        assert "cannot be understood" not in complaint(file, {variable: value})


@pytest.mark.parametrize(
    "text, line",
    [
        ("auth: &a {mode: *a}", "f.yaml: nested too deeply"),
        ("&a {upstream: *a}", "f.yaml: nested too deeply"),
        ("auth: &a [*a]", "f.yaml: auth: found list; a section is needed"),
        ("upstream: {command: &a [x, *a]}", "f.yaml: upstream.command[1]: found list; text is needed"),
        ("upstream: {command: [x], env: &a {X: *a}}", "f.yaml: nested too deeply"),
        ("&a {<<: *a, listen: x}", "f.yaml: "),
        ("upstream: {command: [x]}\ntasks: {tools: &a [*a]}", "tasks.tools[0]: found a list; a section is"),
        ("{[a, b]: c}", "f.yaml: line 1, column 2: found unhashable key"),
        ('upstream: {command: [x, "a\\0b"]}', "f.yaml: upstream.command: a zero byte is in it"),
        ('upstream: {command: [x], env: {A: "a\\0"}}', "f.yaml: upstream.env.***: a zero byte is in it"),
        ('upstream: {command: [x], env: {"A\\0": a}}', "f.yaml: upstream.env.***: a zero byte is in it"),
        (
            'upstream: {command: [x], cwd: "\\uD83D"}',
            "f.yaml: upstream.cwd: what is in it is no text in UTF-8",
        ),
        ("upstream: {command: ['']}", "f.yaml: upstream.command: the command's first word, the program, is"),
        ("upstream: {command: [x], env: {'': a}}", "the name of a variable is needed"),
        ("upstream: {command: [x], env: {'A=s3cret': a}}", "the name of a variable is needed"),
        ("{upstream: {command: [x]}, allowed_hosts: ['[h']}", "allowed_hosts[0]: found '[h'; a host name"),
        (
            "{upstream: {command: [x]}, store: {url: 'disk:~no-such-user/x'}}",
            "the home of a user that there is not",
        ),
    ],
)
def test_the_line_says_what_is_odd(
    text: str, line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = configured(text, tmp_path, capfd)
    assert line in said
    assert "s3cret" not in said


@pytest.mark.parametrize("around", ["upstream: %s", "upstream: {command: [x, %s]}", "tasks: {tools: [%s]}"])
@pytest.mark.parametrize("kind", ["mapping", "list"])
def test_aliases_to_aliases_cost_a_moment(
    kind: str, around: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Eight lines that stand for 10^15 values ("billion laughs")."""
    lines = ["a0: &a0 {x: y}" if kind == "mapping" else "a0: &a0 [x]"]
    for number in range(1, 8):
        each = [f"*a{number - 1}"] * 50
        inner = (
            ", ".join(f"k{i}: {one}" for i, one in enumerate(each)) if kind == "mapping" else ", ".join(each)
        )
        lines.append(f"a{number}: &a{number} " + (f"{{{inner}}}" if kind == "mapping" else f"[{inner}]"))
    configured("\n".join([*lines, around % "*a7"]), tmp_path, capfd)


@pytest.mark.parametrize(
    "listen, admin, conflict",
    [
        ("127.0.0.1:8080", "127.0.0.1:8080", True),
        ("127.0.0.1:8080", "localhost:8080", True),
        ("0.0.0.0:8080", "127.0.0.1:8080", True),
        ("[::]:8080", "[::1]:8080", True),
        ("h.example:8080", "h.example:8080", True),
        ("[::]:8080", "127.0.0.1:8080", False),
        ("127.0.0.1:8080", "127.0.0.2:8080", False),
        ("127.0.0.1:8080", "127.0.0.1:9090", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("stdio", "127.0.0.1:8080", False),
    ],
)
def test_two_servers_need_two_ports(listen: str, admin: str, conflict: bool, tmp_path: Path) -> None:
    environ: Mapping[str, Any] = {"MCP_TASKPROXY_LISTEN": listen, "MCP_TASKPROXY_ADMIN__LISTEN": admin}
    if not conflict:
        assert load(None, environ, {"command": ["x"]}).admin.listen == admin
        return
    with pytest.raises(ConfigError, match=f"listen and admin.listen are both {admin}".replace("[", r"\[")):
        load(None, environ, {"command": ["x"]})
