"""The command: what it runs, what it prints, and the one line it says when it cannot."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from proxy import __version__
from proxy.assembly import open_store
from proxy.cli import run
from proxy.config import Config
from proxy.ending import Deadline
from proxy.errors import ConfigError
from proxy.metrics import Metrics
from proxy.sources import load
from tests.manual_clock import ManualClock
from tests.restored_logging import restored_logging

PYTHON = sys.executable
LISTEN = ("--listen", "127.0.0.1:0")
BOUND_AT = "http://127.0.0.1:4711/mcp"


class Shell:
    """Runs the command line in this process; `proxy.app` is replaced by `served`."""

    def __init__(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capfd = capfd
        self.environ: dict[str, str] = {}
        self.configs: list[Config] = []
        self.fault: BaseException | None = None
        self.out = self.err = ""
        app = ModuleType("proxy.app")
        app.serve = self._serve  # type: ignore[attr-defined]
        app.deadline_of = lambda config: Deadline(1.0, lambda: None)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "proxy.app", app)

    async def _serve(self, config: Config, deadline: Deadline, *, ready: Callable[[str], None]) -> None:
        self.configs.append(config)
        if self.fault:
            raise self.fault
        ready(BOUND_AT)

    def __call__(self, *arguments: str) -> int:
        code = run(arguments, self.environ)
        self.out, self.err = self._capfd.readouterr()
        return code

    @property
    def config(self) -> Config:
        (config,) = self.configs
        return config

    def complaint(self, *arguments: str) -> str:
        """The one line on stderr of a command that ends with exit code 2."""
        assert self(*arguments) == 2
        assert self.out == ""
        assert self.configs == []
        (line,) = self.err.splitlines()
        assert line.startswith("mcp-taskproxy: error: ")
        return line.removeprefix("mcp-taskproxy: error: ")


@pytest.fixture
def shell(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    with restored_logging():
        yield Shell(capfd, monkeypatch)


# What is run.


def test_the_command_behind_the_dashes_keeps_its_own_flags(shell: Shell) -> None:
    theirs = (PYTHON, "--config", "x", "--help", "--", "check-config", "--listen=1")
    assert shell(*LISTEN, "--", *theirs) == 0
    assert shell.config.upstream.command == theirs
    assert shell.config.listen == "127.0.0.1:0"


def test_every_flag_reaches_its_setting(shell: Shell) -> None:
    flags = ("--threshold", "5s", "--store=memory:", "--log-level", "debug", "--log-format", "json")
    assert shell(*LISTEN, "--upstream", "http://h/mcp", *flags) == 0
    config = shell.config
    assert config.upstream.url == "http://h/mcp"
    assert config.tasks.threshold == 5.0
    assert config.store.url == "memory:"
    assert (config.log.level, config.log.format) == ("debug", "json")


def test_flags_win_over_the_environment_and_that_over_the_file(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("{listen: '127.0.0.1:1', drain: 1s, path: /x, upstream: {url: 'http://file/mcp'}}")
    shell.environ = {
        "MCP_TASKPROXY_CONFIG": str(file),
        "MCP_TASKPROXY_LISTEN": "127.0.0.1:2",
        "MCP_TASKPROXY_DRAIN": "2s",
    }
    assert shell(*LISTEN) == 0
    assert (shell.config.listen, shell.config.drain, shell.config.path) == ("127.0.0.1:0", 2.0, "/x")


def test_the_start_up_line_says_what_is_served_where_to_whom_with_which_store(shell: Shell) -> None:
    assert shell(*LISTEN, "--store", "memory:", "--upstream", "http://h/mcp") == 0
    (line,) = shell.err.splitlines()
    assert shell.out == ""
    assert line.split(" ", 1)[1] == (
        f"info    proxy_started upstream=h from=http://h/mcp at={BOUND_AT}"
        ' to="this machine only" store="memory: results do not survive a restart"'
    )


def test_an_open_bind_is_announced_loudly(shell: Shell) -> None:
    """HTTP-004, T25-SEC-003: without authentication, an open bind is said so."""
    assert shell("--listen", "0.0.0.0:0", "--upstream", "http://h/mcp") == 0
    lines = shell.err.splitlines()
    assert 'to="the NETWORK, without authentication"' in lines[0]
    assert "warning open_without_authentication" in lines[1]


def test_trust_in_everybody_is_announced_loudly(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    gateway = "{gateway: {header: X-User, trusted: [0.0.0.0/0]}}"
    file.write_text(f"{{upstream: {{url: 'http://h'}}, trusted_proxies: ['::/0'], auth: {gateway}}}")
    assert shell("--config", str(file)) == 0
    warnings = [line for line in shell.err.splitlines() if "warning everybody_is_trusted" in line]
    assert ["setting=auth.gateway.trusted" in line for line in warnings] == [True, False]
    assert ["setting=trusted_proxies" in line for line in warnings] == [False, True]


# What is printed.


def test_check_config_prints_settings_that_can_be_loaded_again(shell: Shell, tmp_path: Path) -> None:
    flags = (*LISTEN, "--threshold", "250ms")
    assert shell("check-config", *flags, "--", "no-such-program", "-y") == 0
    assert (shell.err, shell.configs) == ("", [])
    printed = tmp_path / "printed.yaml"
    printed.write_text(shell.out)
    expected = {"--listen": "127.0.0.1:0", "--threshold": "250ms", "command": ["no-such-program", "-y"]}
    assert load(printed, {}, {}) == load(None, {}, expected)


def test_check_config_leaves_out_what_is_off(shell: Shell, tmp_path: Path) -> None:
    """An empty section would be an error."""
    file = tmp_path / "f.yaml"
    file.write_text("upstream: {command: [x]}\nauth: {gateway: {header: X-User, trusted: [10.0.0.1]}}")
    assert shell("check-config", "--config", str(file)) == 0
    printed = yaml.safe_load(shell.out)
    assert ("jwt" in printed["auth"], "encryption" in printed["store"]) == (False, False)
    file.write_text(shell.out)
    assert load(file, {}, {}).auth.gateway.header == "X-User"


def test_check_config_may_stand_after_the_flags(shell: Shell) -> None:
    assert shell(*LISTEN, "check-config", "--", "x") == 0
    assert yaml.safe_load(shell.out)["upstream"]["command"] == ["x"]


def test_check_config_hides_what_may_be_secret(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("upstream: {command: [x], env: {API_KEY: s3cret}}")
    assert shell("check-config", "--config", str(file)) == 0
    assert yaml.safe_load(shell.out)["upstream"]["env"] == {"API_KEY": "***"}
    assert shell("check-config", *LISTEN, "--upstream", "http://h/mcp?key=s3cret") == 0
    assert yaml.safe_load(shell.out)["upstream"]["url"] == "http://h/mcp?***"
    words = ("x", "-y", "--api-key", "s3cret", "--api-key=s3cret", "-ks3cret", "API_KEY=s3cret", "s3cret")
    assert shell("check-config", *LISTEN, "--", *words) == 0
    shown = ["x", "-y", "--api-key", "***", "--api-key=***", "***", "***", "***"]
    assert yaml.safe_load(shell.out)["upstream"]["command"] == shown


def test_check_config_complains_as_a_start_would(shell: Shell) -> None:
    assert shell.complaint("check-config", *LISTEN, "--threshold", "2", "--", "x").startswith(
        "--threshold: tasks.threshold: found '2'; a duration with its unit is needed"
    )


def test_help_fits_one_screen_and_shows_the_forms(shell: Shell) -> None:
    assert shell("--help") == 0
    lines = shell.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    for form in (
        "mcp-taskproxy -- CMD ARGS…",
        "mcp-taskproxy --listen 127.0.0.1:8080 -- CMD ARGS…",
        "mcp-taskproxy --listen 127.0.0.1:8080 --upstream URL",
        "mcp-taskproxy --config FILE",
    ):
        assert f"  {form} " in shell.out


def test_the_version(shell: Shell) -> None:
    assert shell("--version") == 0
    assert shell.out == f"mcp-taskproxy {__version__}\n"


# What the operator gets wrong.


@pytest.mark.parametrize(
    "arguments, line",
    [
        (("--treshold", "2s"), "No such option '--treshold'. Did you mean '--threshold'?"),
        (("--listen",), "Option '--listen' requires an argument."),
        (("npx", "-y", "server"), "unexpected 'npx': the server's command goes after --"),
        ((*LISTEN, "server"), "unexpected 'server': the server's command goes after --"),
        ((), "nothing to serve: put the server's command after --, or add --upstream URL or --config FILE"),
        ((*LISTEN, "--"), "command: upstream.command: the command has no words"),
        (
            (*LISTEN, "--upstream", "http://h", "--", "x"),
            "--upstream and command: upstream: command and url are both given; an upstream has one of them",
        ),
        (
            (*LISTEN, "--", "no-such-program"),
            "upstream.command: no program 'no-such-program' that can be run",
        ),
        ((*LISTEN, "--", "/dev/null"), "upstream.command: no program '/dev/null' that can be run"),
        ((*LISTEN, "--", ""), "command: upstream.command: the command's first word, the program, is empty"),
        (("--config", "/no/such/file"), "/no/such/file: cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(shell: Shell, arguments: tuple[str, ...], line: str) -> None:
    assert shell.complaint(*arguments) == line


def test_the_program_is_looked_up_where_it_will_run(shell: Shell, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "server"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for settings in (
        {"command": ["server"], "env": {"PATH": str(program.parent)}},
        {"command": ["./bin/server"], "cwd": str(tmp_path)},
        {"command": [str(program)]},
    ):
        file = tmp_path / "f.yaml"
        file.write_text(yaml.safe_dump({"upstream": settings}))
        assert shell("--config", str(file)) == 0, shell.err
    file.write_text(yaml.safe_dump({"upstream": {"command": ["sh"], "cwd": "/no/such"}}))
    shell.configs.clear()
    assert shell.complaint("--config", str(file)) == "upstream.cwd: no directory '/no/such'"


@pytest.mark.parametrize(
    "settings, line",
    [
        ("store: {url: 'disk:DIR/store', encryption: {key_file: DIR/none}}", "none cannot be read: No such"),
        (
            "store: {url: 'disk:DIR/store', encryption: {key_file: DIR/bad}}",
            "bad, line 1: a key is 32",
        ),
        (
            "store: {url: 'disk:DIR/store', encryption: {key_file: DIR/store/key}}",
            "is in the store directory",
        ),
        ("store: {url: 'disk:DIR/store', encryption: {key_file: DIR/fifo}}", "fifo is no regular file"),
        ("store: {url: 'disk:DIR/store', encryption: {key_file: /dev/zero}}", "zero is no regular file"),
        ("store: {url: 'disk:DIR/store', encryption: {key_file: DIR/large}}", "large is over 65536 bytes"),
        ("store: {url: 'disk:DIR/store', encryption: {key_file: DIR}}", "is no regular file"),
        ("JWT {jwks_file: DIR/fifo, ", "auth.jwt.jwks_file: DIR/fifo is no regular file"),
        ("JWT {jwks_file: /dev/zero, ", "auth.jwt.jwks_file: /dev/zero is no regular file"),
        ("JWT {jwks_file: DIR/large, ", "auth.jwt.jwks_file: DIR/large is over 262144 bytes"),
        ("upstream: {command: [sh], cwd: DIR/none}", "upstream.cwd: no directory 'DIR/none'"),
        ("upstream: {command: [sh], cwd: DIR/bad}", "upstream.cwd: no directory 'DIR/bad'"),
    ],
)
@pytest.mark.parametrize("start", [True, False], ids=["start", "check"])
def test_a_file_that_cannot_be_used_is_found_before_the_first_call(
    shell: Shell, tmp_path: Path, settings: str, line: str, start: bool
) -> None:
    """By check-config, too."""
    (tmp_path / "store").mkdir()
    for name, text in {"bad": "s3cret", "store/key": base64.b64encode(bytes(32)).decode()}.items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(300_000)
    os.mkfifo(tmp_path / "fifo")
    jwt = "auth: {jwt: {issuer: i, audience: [a], "
    settings = settings.replace("JWT {", jwt).replace("DIR", str(tmp_path))
    settings += "}}" if settings.startswith(jwt) else ""
    file_ = tmp_path / "f.yaml"
    upstream = "" if "upstream" in settings else "\nupstream: {command: [sh]}"
    file_.write_text(f"listen: 127.0.0.1:0\n{settings}{upstream}")
    if start and "key_file" in settings:  # where the store is opened, which is not done here
        with pytest.raises(ConfigError) as caught:
            open_store(load(file_, {}, {}), ManualClock(), Metrics())
        said = caught.value.message
    else:
        said = shell.complaint(*([] if start else ["check-config"]), "--config", str(file_))
    assert line.replace("DIR", str(tmp_path)) in said
    assert "s3cret" not in said


def test_the_keys_of_an_issuer_may_come_later(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    jwt = f"{{issuer: i, audience: [a], jwks_file: {tmp_path}/none}}"
    file.write_text(f"{{listen: '127.0.0.1:0', upstream: {{command: [sh]}}, auth: {{jwt: {jwt}}}}}")
    assert shell("check-config", "--config", str(file)) == 0
    assert shell("--config", str(file)) == 0


@pytest.mark.parametrize("file", ["/dev/zero", "FIFO", "/dev", "LARGE"])
def test_a_configuration_that_is_no_regular_file_or_too_large_is_named(
    shell: Shell, tmp_path: Path, file: str
) -> None:
    os.mkfifo(tmp_path / "FIFO")
    with (tmp_path / "LARGE").open("wb") as made:
        made.truncate((1 << 20) + 1)
    path = str(tmp_path / file)
    fault = "is over 1048576 bytes" if file == "LARGE" else "is no regular file"
    assert shell.complaint("--config", path) == f"{path}: {fault}"


# What goes wrong while it serves.


@pytest.mark.parametrize(
    "fault", [ConfigError("port 1 is\nin use"), ExceptionGroup("g", [ConfigError("port 1 is in use")])]
)
def test_an_operators_fault_at_the_start_is_one_line(shell: Shell, fault: Exception) -> None:
    shell.fault = fault
    assert shell(*LISTEN, "--upstream", "http://h") == 2
    assert shell.err == "mcp-taskproxy: error: port 1 is in use\n"


def test_a_fault_of_ours_is_one_line(shell: Shell) -> None:
    shell.fault = ExceptionGroup("g", [KeyError("x")])
    assert shell(*LISTEN, "--upstream", "http://h") == 1
    assert shell.err == "mcp-taskproxy: error: KeyError: 'x'\n"


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_at_debug_a_fault_of_ours_has_its_traceback(shell: Shell, by: str) -> None:
    shell.fault = KeyError("x")
    flags = ("--log-level", "debug") if by == "flag" else ()
    shell.environ = {} if by == "flag" else {"MCP_TASKPROXY_LOG__LEVEL": "debug"}
    assert shell(*LISTEN, *flags, "--upstream", "http://h") == 1
    assert "Traceback" in shell.err
    assert shell.err.endswith("mcp-taskproxy: error: KeyError: 'x'\n")


def test_an_interrupt_ends_quietly(shell: Shell) -> None:
    shell.fault = KeyboardInterrupt()
    assert shell(*LISTEN, "--upstream", "http://h") == 130
    assert shell.err == ""


# The same from outside.


def outside(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-m", "proxy", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, env=environ)


def test_as_a_process() -> None:
    wrong = outside(*LISTEN, "--", "no-such-program")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert (
        wrong.stderr
        == "mcp-taskproxy: error: upstream.command: no program 'no-such-program' that can be run\n"
    )
    right = outside("check-config", *LISTEN, "--", "x")
    assert (right.returncode, right.stderr) == (0, "")
    assert yaml.safe_load(right.stdout)["listen"] == "127.0.0.1:0"
