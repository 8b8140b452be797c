"""The pages for the first five minutes, held against the program: what they show is accepted by it."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from proxy.cli import EXIT_OPERATOR, run
from proxy.config import Config, UpstreamConfig
from proxy.downstream.http import QUIET_S
from proxy.metrics import PREFIX as METRICS_PREFIX
from proxy.metrics import TABLE, Metric
from proxy.sources import PREFIX, all_keys, load
from tests.documents import (
    CLIENTS,
    COMMAND,
    DEPLOYMENT,
    METRICS,
    PAGES,
    ROOT,
    SECURITY,
    Entry,
    command_lines,
    entries,
    headings,
    prose,
    snippets,
)

EXAMPLE: Final = ROOT / "config.example.yaml"
NGINX: Final = (ROOT / "deploy" / "nginx.conf").read_text("utf-8")
UNIT: Final = (ROOT / "deploy" / "mcp-taskproxy.service").read_text("utf-8")
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text("utf-8")

CONFIG: Final = Config(upstream=UpstreamConfig(url="http://localhost/mcp"))

AFTER: Final[list[Entry]] = [entry for entry in entries(CLIENTS) if entry.command == COMMAND]
BEFORE: Final[list[Entry]] = [entry for entry in entries(CLIENTS) if entry.command != COMMAND]
OWN_COMMANDS: Final = [
    (page, words)
    for page in PAGES
    for words in command_lines(page)
    if words[0] == COMMAND or words[:2] == ["docker", "run"]
]

SYSTEMD: Final[Mapping[str, str]] = {
    "Unit": "Description Wants After",
    "Service": """
        Type ExecStart Environment EnvironmentFile DynamicUser StateDirectory StateDirectoryMode
        WorkingDirectory KillMode KillSignal TimeoutStopSec Restart RestartSec RestartPreventExitStatus
        LimitNOFILE UMask
        NoNewPrivileges ProtectSystem ProtectHome PrivateTmp PrivateDevices ProtectClock ProtectControlGroups
        ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectProc
        CapabilityBoundingSet LockPersonality RestrictAddressFamilies RestrictNamespaces RestrictRealtime
        RestrictSUIDSGID SystemCallArchitectures SystemCallFilter""",
    "Install": "WantedBy",
}
"""The keys that we use, as systemd 252 knows them; one that it does not know it ignores."""


# -- what is shown -----------------------------------------------------------------------------------


PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {"json": json.loads, "yaml": yaml.safe_load}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_snippet_parses(page: Path) -> None:
    for snippet in snippets(page, *PARSERS):
        assert PARSERS[snippet.language](snippet.text), snippet


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", prose(page)):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in {slug(heading) for heading in headings(file)}, target


def slug(heading: str) -> str:
    """The anchor that a heading gets where Markdown is shown."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# -- what is typed -----------------------------------------------------------------------------------


def docker_environment() -> dict[str, str]:
    """The settings that the image has."""
    return dict(re.findall(rf"({PREFIX}\w+)=(\S+)", DOCKERFILE))


def own_part(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Our arguments and settings in a command line: our own, or a `docker run` of the image."""
    at = words.index(COMMAND)
    variables = dict(word.split("=", 1) for word in words[:at] if word.startswith(PREFIX))
    return words[at + 1 :], {**(docker_environment() if at else {}), **variables}


def existing_file(page: Path, name: str, folder: Path) -> Path:
    """A configuration to be had under a name: the YAML that the page shows, else the example's."""
    shown = [snippet.text for snippet in snippets(page, "yaml")]
    file = folder / Path(name).name
    file.write_text(shown[0] if shown else EXAMPLE.read_text("utf-8"))
    return file


@pytest.mark.parametrize("page, words", OWN_COMMANDS, ids=[shlex.join(words) for _, words in OWN_COMMANDS])
def test_every_command_of_ours_is_accepted(
    page: Path, words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments, environ = own_part(words)
    if "--config" in arguments:
        at = arguments.index("--config") + 1
        arguments[at] = str(existing_file(page, arguments[at], tmp_path))
    code = run(["check-config", *(word for word in arguments if word != "check-config")], environ)
    assert code == 0, capfd.readouterr().err


def test_the_pages_show_commands_of_ours() -> None:
    assert {page.name for page, _ in OWN_COMMANDS} == {"README.md", "clients.md", "deployment.md"}


# -- the clients' entries ----------------------------------------------------------------------------


@pytest.mark.parametrize("entry", AFTER, ids=str)
def test_every_entry_is_accepted(entry: Entry, capfd: pytest.CaptureFixture[str]) -> None:
    code = run(["check-config", *entry.args], {"HOME": "/home/user", **entry.env})
    printed = capfd.readouterr()
    assert code == 0, printed.err
    assert yaml.safe_load(printed.out)["listen"] == "stdio"


def test_after_is_before_behind_our_command() -> None:
    pairs = {entry.client: entry for entry in BEFORE}
    assert list(pairs) == ["Claude Code", "Claude Desktop", "VS Code", "Cursor", "MCP Inspector"]
    for entry in AFTER:
        if before := pairs.pop(entry.client, None):
            assert entry.args == ("--", before.command, *before.args)
            assert entry.env == before.env
    assert pairs == {}


def test_the_flag_and_the_variable_say_the_same() -> None:
    by_flag, by_variable = (entry for entry in AFTER if entry.env)
    flags = {"--threshold": by_flag.args[1], "command": by_flag.args[3:]}
    assert load(None, {}, flags).tasks == load(None, by_variable.env, {"command": ["x"]}).tasks
    assert load(None, {}, flags).tasks != CONFIG.tasks


def test_the_urls_are_those_of_the_command() -> None:
    (command,) = (words for page, words in OWN_COMMANDS if page == CLIENTS)
    listen = command[command.index("--listen") + 1]
    urls = re.findall(r'"url": "([^"]+)"', CLIENTS.read_text("utf-8"))
    assert urls
    assert set(urls) == {f"http://{listen}/mcp"}


# -- the settings ------------------------------------------------------------------------------------


LOG_EVENTS: Final = frozenset({"task_created", "task_completed"})


def named_settings(page: Path) -> set[str]:
    """The words in backticks that look like one: `a.b` below a section, `two_words`, `word: value`."""
    sections = {path[0] for path in all_keys(Config) if len(path) > 1}
    words = re.findall(r"`([a-z][a-z0-9_.]*)(: [^`]+)?`", prose(page))
    likely = {w for w, value in words if value or "_" in w or ("." in w and w.partition(".")[0] in sections)}
    return likely - LOG_EVENTS


@pytest.mark.parametrize("page", [CLIENTS, DEPLOYMENT], ids=lambda page: page.name)
def test_every_setting_that_is_named_is_in_the_example(page: Path) -> None:
    paths = all_keys(Config)
    known = {".".join(path) for path in paths} | {path[-1] for path in paths}
    assert named_settings(page) <= known
    for name in named_settings(page):
        key = name.rpartition(".")[2]
        assert re.search(rf"^ *{key}:", EXAMPLE.read_text("utf-8"), re.MULTILINE), name


def test_settings_are_found_on_the_pages() -> None:
    assert {"allowed_hosts", "calls_per_process", "limits.message"} <= named_settings(DEPLOYMENT)


@pytest.mark.parametrize(
    "text", [*(page.read_text("utf-8") for page in PAGES), UNIT, DOCKERFILE], ids=lambda _: "page"
)
def test_every_variable_that_is_named_exists(text: str) -> None:
    known = {PREFIX + "__".join(path).upper() for path in all_keys(Config)} | {f"{PREFIX}CONFIG"}
    for variable in re.findall(rf"{PREFIX}\w+", text):
        assert variable in known or variable.startswith(f"{PREFIX}UPSTREAM__ENV__"), variable


def test_the_configuration_shown_is_in_force_as_written(tmp_path: Path) -> None:
    config = load(existing_file(DEPLOYMENT, "mcp-proxy.yaml", tmp_path), {}, {})
    assert config.is_loopback
    assert config.allowed_hosts == ("mcp.example.com",)


# -- what stands in front and around -----------------------------------------------------------------


def directive(name: str) -> str:
    (value,) = re.findall(rf"^ *{name} ([^;]+);$", NGINX, re.MULTILINE)
    return str(value)


def test_nginx_waits_longer_and_takes_more_than_its_defaults() -> None:
    assert int(directive("proxy_read_timeout").removesuffix("h")) * 3600 > QUIET_S
    assert int(directive("client_max_body_size").removesuffix("m")) << 20 >= CONFIG.limits.message
    assert (
        int(directive("large_client_header_buffers").split()[1].removesuffix("k")) << 10
        >= CONFIG.limits.header
    )


def test_the_excerpt_shown_is_in_the_file() -> None:
    (excerpt,) = snippets(DEPLOYMENT, "nginx")
    lines = {line.strip() for line in NGINX.splitlines()}
    assert {line for line in excerpt.text.splitlines() if line} <= lines


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign] # keys keep their case
    parser.read_string(UNIT)
    return parser


def test_the_unit_has_known_keys_alone() -> None:
    found = unit()
    assert found.sections() == list(SYSTEMD)
    for section, known in SYSTEMD.items():
        assert found[section].keys() <= set(known.split())


def test_the_unit_stops_it_as_it_wants_to_be_stopped() -> None:
    service = unit()["Service"]
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    assert float(service["TimeoutStopSec"]) > CONFIG.drain * 2
    assert int(service["RestartPreventExitStatus"]) == EXIT_OPERATOR


def test_the_unit_lets_it_write_where_its_tasks_are() -> None:
    service = unit()["Service"]
    assert service["StateDirectoryMode"] == "0700"
    assert service["WorkingDirectory"] == f"%S/{service['StateDirectory']}"
    assert not Path(CONFIG.store.url.removeprefix("disk:")).is_absolute()


def test_the_unit_starts_a_command_that_is_accepted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = shlex.split(unit()["Service"]["ExecStart"])
    assert Path(program).name == COMMAND
    arguments[-1] = str(existing_file(DEPLOYMENT, arguments[-1], tmp_path))
    assert run(["check-config", *arguments], {}) == 0, capfd.readouterr().err


def test_the_image_keeps_its_tasks_in_its_volume() -> None:
    config = load(None, docker_environment(), {"--upstream": "http://host:3001/mcp"})
    (volume,) = re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)
    assert config.store.directory is not None
    assert config.store.directory.is_relative_to(volume)
    assert f"EXPOSE {config.listen_port}\n" in DOCKERFILE


# -- metrics -----------------------------------------------------------------------------------------


def documented(metric: Metric) -> str:
    """Its row in the table of the page."""
    named = {label: values for label, values in metric.labels.items() if label != "version"}
    labels = ", ".join(f"`{label}`: {' '.join(values)}" for label, values in named.items())
    shown = labels or ("`version`" if metric.labels else "")
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {shown} | {metric.meaning} |"


@pytest.mark.parametrize("page", ["README.md", "docs/deployment.md"])
def test_what_guards_the_tasks_of_nobody_in_particular_is_said(page: str) -> None:
    """T25-SEC-003."""
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert "whose tasks are guarded by their unguessable ids alone" in text


def test_the_page_shows_every_metric_as_the_code_declares_it() -> None:
    text = METRICS.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [documented(metric) for metric in TABLE]
    assert f"`{METRICS_PREFIX}`" in text


def test_the_page_names_no_metric_that_does_not_exist() -> None:
    text = prose(METRICS)
    used = set(re.findall(r"`([a-z_]+_(?:total|seconds))[{`]", text)) - {"process_cpu_seconds_total"}
    assert used <= {metric.name for metric in TABLE}


# -- security ----------------------------------------------------------------------------------------


def test_the_tests_that_answer_an_advisory_are_there() -> None:
    named = re.findall(r"`(tests/\S+\.py)`,\s+`(test_\w+)`", SECURITY.read_text("utf-8"))
    assert named
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text("utf-8")


def test_the_settings_of_encryption_are_settings(tmp_path: Path) -> None:
    encryption = ROOT / "docs" / "encryption.md"
    config = load(existing_file(encryption, "c.yaml", tmp_path), {}, {"command": ["x"]})
    assert config.store.encryption.key_file is not None
    assert prose(encryption).count("MCP_TASKPROXY_STORE__ENCRYPTION__KEYS") == 1
    assert ("store", "encryption", "keys") in all_keys(Config)
