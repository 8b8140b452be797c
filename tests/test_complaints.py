"""What the operator reads: one line with source, key, what was found, what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.errors import ConfigError
from proxy.sources import load


def complaint(
    folder: Path,
    settings: object,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> str:
    """The line about `settings` (YAML, or what becomes YAML), with a good command unless flags are given."""
    file = folder / "f.yaml"
    file.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, COMMAND if flags is None else flags)
    assert "\n" not in caught.value.message
    return caught.value.message.replace(str(file), "f.yaml")


COMMAND = {"command": ["server"]}
NEED_DURATION = "a duration with its unit is needed, such as 500ms, 2s, 10m, 1h, or 0"
NEED_TEXT = "text is needed; put it in quotes if it is meant so"
NEED_SECTION = "a section is needed: the keys that belong here, each with its value"


@pytest.mark.parametrize(
    "text, line",
    [
        ("tasks: {treshold: 2s}", "tasks.treshold: unknown key, did you mean 'threshold'?"),
        ("threshold: 2s", "threshold: unknown key, did you mean 'tasks.threshold'?"),
        ("tasks: {tools: [{mach: x}]}", "tasks.tools[0].mach: unknown key, did you mean 'match'?"),
        ("xyzzy: 1", "xyzzy: unknown key"),
        ("1: 2", "1: unknown key"),
        ("tasks: {threshold: 2}", f"tasks.threshold: found 2; {NEED_DURATION}"),
        ("tasks: {threshold: 1:30}", f"tasks.threshold: found 90; {NEED_DURATION}"),
        ("tasks: {threshold: soon}", f"tasks.threshold: found 'soon'; {NEED_DURATION}"),
        ("tasks: {threshold: null}", f"tasks.threshold: found null; {NEED_DURATION}"),
        ("tasks: {retention: 0}", "tasks.retention: found 0; a duration above zero is needed"),
        ("tasks: {poll_interval: {first: 9s}}", "tasks.poll_interval: first (9s) is longer than last (5s)"),
        ("tasks: {tools: [{mode: never}]}", "tasks.tools[0].match: is missing"),
        ("tasks: {tools: [{match: on}]}", f"tasks.tools[0].match: found true; {NEED_TEXT}"),
        ("tasks: {tools: [{match: ''}]}", "tasks.tools[0].match: found ''; it must not be empty"),
        (
            "tasks: {tools: [{match: x, mode: always}]}",
            "tasks.tools[0].mode: found 'always'; allowed: 'auto', 'never' or 'required'",
        ),
        ("tasks: {tools: {match: x}}", "tasks.tools: found a mapping; a list is needed"),
        ("tasks: 5", f"tasks: found 5; {NEED_SECTION}"),
        ("tasks: {legacy_2025: maybe}", "tasks.legacy_2025: found 'maybe'; true or false is needed"),
        ("limits: {depth: 5000}", "limits.depth: found 5000; at most 900 is allowed"),
        ("limits: {calls: 0}", "limits.calls: found 0; at least 1 is needed"),
        ("limits: {calls: 1.5}", "limits.calls: found 1.5; a whole number is needed"),
        ("limits: {calls: many}", "limits.calls: found 'many'; a whole number is needed"),
        ("limits: {calls: yes}", "limits.calls: found true; a whole number is needed"),
        ("listen: 8080", f"listen: found 8080; {NEED_TEXT}"),
        ("listen: localhost", "listen: found 'localhost'; HOST:PORT is needed, such as 127.0.0.1:8080"),
        ("listen: 'h:99999'", "listen: found 'h:99999'; HOST:PORT is needed, such as 127.0.0.1:8080"),
        (
            "listen: ':8080'",
            "listen: found ':8080'; say which host:"
            " 127.0.0.1:8080 for this machine, 0.0.0.0:8080 for the network",
        ),
        ("listen: '::1:80'", "listen: found '::1:80'; an IPv6 address goes in brackets, such as [::1]:8080"),
        ("path: mcp", "path: found 'mcp'; a path is needed, such as /mcp"),
        ("path: /healthz/", "path: found '/healthz/'; that path is taken by the health checks"),
        ("public_url: mcp.example", "public_url: found 'mcp.example'; an http:// or https:// URL is needed"),
        ("public_url: 'http://h:x/'", "public_url: found 'http://h:x/'; that is not a URL"),
        ("public_url: 'http://h/?a'", "public_url: found 'http://h/?***'; a URL without ? is needed"),
        ("public_url: 'http://h/#a'", "public_url: found 'http://h/#***'; a URL without # is needed"),
        (
            "allowed_origins: ['https://a.example/x']",
            "allowed_origins[0]: found 'https://a.example/x';"
            " an origin is needed, such as https://app.example.com: no path",
        ),
        ("allowed_origins: ['*']", "allowed_origins[0]: found '*'; an http:// or https:// URL is needed"),
        (
            "allowed_hosts: ['https://a']",
            "allowed_hosts[0]: found 'https://a';"
            " a host name is needed, with or without port, such as mcp.example.com",
        ),
        ("allowed_hosts: a.example", "allowed_hosts: found 'a.example'; a list is needed"),
        (
            "store: {url: 'sqlite:x'}",
            "store.url: found str; memory: or disk:DIR is needed, such as disk:./taskproxy-data",
        ),
        (
            "store: {url: 'disk://x'}",
            "store.url: found str; a directory follows disk: at once, such as disk:/data",
        ),
        (
            "store: {url: 'redis://h'}",
            "store.url: a Redis store comes in a later release; now: memory: or disk:DIR",
        ),
        ("store: {durability: disk}", "store.durability: found 'disk'; allowed: 'power' or 'process'"),
        ("upstream: {era: old}", "upstream.era: found 'old'; allowed: 'auto', 'legacy' or 'modern'"),
        ("upstream: {env: {A: 1}}", f"upstream.env.A: found int; {NEED_TEXT}"),
        ("upstream: {env: [A]}", "upstream.env: found list; a mapping of names to values is needed"),
        ("log: {level: loud}", "log.level: found 'loud'; allowed: 'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_the_line_names_file_key_value_and_cure(tmp_path: Path, text: str, line: str) -> None:
    assert complaint(tmp_path, text) == f"f.yaml: {line}"


@pytest.mark.parametrize(
    "upstream, line",
    [
        (
            {"command": "npx some-server"},
            "upstream.command: found str; the command is a list of its words, such as [npx, -y, some-server]",
        ),
        (5, f"upstream: found int; {NEED_SECTION}"),
        ({"command": []}, "upstream.command: the command has no words"),
        ({"command": [1]}, f"upstream.command[0]: found int; {NEED_TEXT}"),
        (
            {"command": ["x"], "url": "http://h"},
            "upstream: command and url are both given; an upstream has one of them",
        ),
        ({"url": "http://h", "cwd": "/"}, "upstream: env and cwd are for a command; this upstream has a url"),
        ({"url": "ftp://h"}, "upstream.url: found str; an http:// or https:// URL is needed"),
    ],
)
def test_the_line_about_an_upstream(tmp_path: Path, upstream: object, line: str) -> None:
    assert complaint(tmp_path, {"upstream": upstream}, flags={}) == f"f.yaml: {line}"


def test_the_line_names_the_flag_or_the_variable(tmp_path: Path) -> None:
    assert complaint(tmp_path, "", None, {**COMMAND, "--threshold": "2"}) == (
        f"--threshold: tasks.threshold: found '2'; {NEED_DURATION}"
    )
    assert complaint(tmp_path, "", {"MCP_TASKPROXY_TASKS__THRESHOLD": "2"}) == (
        f"MCP_TASKPROXY_TASKS__THRESHOLD: tasks.threshold: found '2'; {NEED_DURATION}"
    )
    assert complaint(
        tmp_path, "", {"MCP_TASKPROXY_TASKS__TOOLS": "[{match: x}, {match: y, input: tsk}]"}
    ) == ("MCP_TASKPROXY_TASKS__TOOLS: tasks.tools[1].input: found 'tsk'; allowed: 'auto' or 'task'")


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    assert len(complaint(tmp_path, {"path": "x" * 5000})) < 150
