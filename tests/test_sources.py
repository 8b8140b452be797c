"""File, environment and flags: which wins, and what none of them may hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from proxy.config import Config
from proxy.errors import ConfigError
from proxy.sources import load

COMMAND = {"command": ["server"]}
HERE = {"MCP_TASKPROXY_LISTEN": "127.0.0.1:8080"}


class Operator:
    """Writes a file, sets variables, gives flags."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "proxy.yaml"

    def load(
        self,
        text: str | None = None,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> Config:
        if text is not None:
            self.file.write_text(text)
        return load(None if text is None else self.file, environ or {}, flags or {})

    def fault(self, *said: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            self.load(*said)
        assert "\n" not in caught.value.message
        return caught.value.message


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


def test_each_later_source_wins(operator: Operator) -> None:
    file = "upstream: {command: [server]}\ntasks: {threshold: 1s, retention: 2h, runtime_limit: 3h}"
    environ = {"MCP_TASKPROXY_TASKS__THRESHOLD": "4s", "MCP_TASKPROXY_TASKS__RETENTION": "5h"}
    tasks = operator.load(file, environ, {"--threshold": "6s"}).tasks
    assert tasks.threshold == 6.0
    assert tasks.retention == 5 * 3600.0
    assert tasks.runtime_limit == 3 * 3600.0
    assert tasks.input_limit == 24 * 3600.0


def test_a_flag_that_was_not_given_changes_nothing(operator: Operator) -> None:
    assert operator.load("upstream: {command: [server]}\ndrain: 9s", {}, {"--listen": None}).drain == 9.0


@pytest.mark.parametrize("section", ["auth", "tasks", "upstream"])
@pytest.mark.parametrize("nothing", ["null", "{}"])
def test_a_variable_with_nothing_in_it_takes_nothing_away(
    operator: Operator, section: str, nothing: str
) -> None:
    file = "upstream: {command: [x], era: legacy}\nauth: {gateway: {header: X-User, trusted: [10.0.0.1]}}"
    given = operator.load(file, {f"MCP_TASKPROXY_{section.upper()}": nothing})
    assert given == operator.load(file)
    assert given.auth.authenticates


@pytest.mark.parametrize(
    "text", ["tasks:", "tasks: {}", "limits:\nadmin:\nallowed_hosts:", "upstream: {env: }"]
)
def test_an_empty_section_is_its_defaults(operator: Operator, text: str) -> None:
    assert operator.load(text, {}, COMMAND) == operator.load("", {}, COMMAND)


def test_an_empty_section_takes_nothing_from_the_environment(operator: Operator) -> None:
    environ = {"MCP_TASKPROXY_TASKS__THRESHOLD": "4s", "MCP_TASKPROXY_TASKS": "null"}
    assert operator.load("tasks:", environ, COMMAND).tasks.threshold == 4.0


def test_a_later_upstream_replaces_one_of_the_other_kind(operator: Operator) -> None:
    by_flag = operator.load("upstream: {command: [server], processes: 3}", {}, {"--upstream": "http://h/mcp"})
    assert (by_flag.upstream.command, by_flag.upstream.url) == (None, "http://h/mcp")
    assert by_flag.upstream.processes == 3
    by_variable = operator.load(
        "upstream: {url: 'http://h/mcp'}", {"MCP_TASKPROXY_UPSTREAM__COMMAND": "[a, b]"}
    )
    assert (by_variable.upstream.command, by_variable.upstream.url) == (("a", "b"), None)


def test_what_belongs_to_the_other_kind_goes_with_it(operator: Operator) -> None:
    """Contract section 11: the flags win."""
    of_command = "upstream: {command: [server], env: {A: b}, cwd: /, era: legacy}"
    by_flag = operator.load(of_command, HERE, {"--upstream": "http://h/mcp"}).upstream
    assert (by_flag.url, by_flag.env, by_flag.cwd, by_flag.era) == ("http://h/mcp", {}, None, "legacy")
    of_url = "upstream: {url: 'http://h/mcp', endpoint_prefix: /x}"
    assert operator.load(of_url, {}, COMMAND).upstream.endpoint_prefix is None
    assert operator.load("upstream: {env: {A: b}}", {}, COMMAND).upstream.env == {"A": "b"}
    assert "env and cwd" in operator.fault("upstream: {url: 'http://h/mcp', env: {A: b}}", {}, {})


def test_two_upstreams_from_one_source_are_refused(operator: Operator) -> None:
    assert "both given" in operator.fault(None, HERE, {**COMMAND, "--upstream": "http://h/mcp"})


# The environment.


def test_variables_hold_text_and_lists_and_sections(operator: Operator) -> None:
    environ = {
        "MCP_TASKPROXY_LISTEN": "[::1]:8080",
        "MCP_TASKPROXY_UPSTREAM__COMMAND": "[npx, -p, 8080, on]",
        "MCP_TASKPROXY_UPSTREAM__PROCESSES": "3",
        "MCP_TASKPROXY_UPSTREAM__SHARE": "true",
        "MCP_TASKPROXY_UPSTREAM__IDLE_TIMEOUT": "null",
        "MCP_TASKPROXY_UPSTREAM__NAME": "1.10",
        "MCP_TASKPROXY_TASKS__POLL_INTERVAL__FIRST": "1s",
        "MCP_TASKPROXY_TASKS__TOOLS": "[{match: 'a*', threshold: 0s, repeatable: true}]",
        "MCP_TASKPROXY_LIMITS": "{depth: 7, body: null}",
    }
    c = operator.load(None, environ)
    assert c.listen == "[::1]:8080"
    assert c.upstream.command == ("npx", "-p", "8080", "on")
    assert (c.upstream.processes, c.upstream.share, c.upstream.idle_timeout) == (3, True, None)
    assert c.upstream.name == "1.10"
    assert c.tasks.poll_interval.first == 1.0
    assert c.tasks.tools[0].repeatable
    assert (c.limits.depth, c.limits.body) == (7, 64 << 20)


def test_variables_for_the_server_keep_their_names_and_values(operator: Operator) -> None:
    environ = {
        **HERE,
        "MCP_TASKPROXY_UPSTREAM__ENV__API_KEY": "[not: yaml",
        "MCP_TASKPROXY_UPSTREAM__ENV__App__Level": "null",
        "MCP_TASKPROXY_UPSTREAM__ENV__EMPTY": "",
    }
    c = operator.load("upstream: {env: {HOME: /x}}", environ, COMMAND)
    assert c.upstream.env == {"HOME": "/x", "API_KEY": "[not: yaml", "App__Level": "null", "EMPTY": ""}


def test_an_empty_variable_is_not_set(operator: Operator) -> None:
    assert operator.load(None, {**HERE, "MCP_TASKPROXY_TASKS__THRESHOLD": ""}, COMMAND).tasks.threshold == 2.0


def test_other_programs_variables_are_none_of_ours(operator: Operator) -> None:
    environ = {
        **HERE,
        "PATH": "/bin",
        "MCP_TASKPROXY_CONFIG": "/x.yaml",
        "MCP_TASKPROXY_SERVICE_HOST": "10.0.0.1",
        "MCP_TASKPROXY_SERVICE_PORT_HTTP": "8080",
        "MCP_TASKPROXY_PORT": "tcp://10.0.0.1:8080",
        "MCP_TASKPROXY_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert operator.load(None, environ, COMMAND) == operator.load("", {}, COMMAND)


def test_a_misspelt_variable_is_an_error_that_names_the_nearest(operator: Operator) -> None:
    assert operator.fault(None, {**HERE, "MCP_TASKPROXY_TASKS__TRESHOLD": "3s"}, COMMAND) == (
        "MCP_TASKPROXY_TASKS__TRESHOLD: unknown variable, did you mean 'MCP_TASKPROXY_TASKS__THRESHOLD'?"
    )


def test_a_list_that_is_no_yaml_is_an_error(operator: Operator) -> None:
    assert operator.fault(None, {**HERE, "MCP_TASKPROXY_ALLOWED_HOSTS": "[a"}, COMMAND).startswith(
        "MCP_TASKPROXY_ALLOWED_HOSTS: line 1, column 3: "
    )
    words = "[server, *s3cret]"  # an alias, of which YAML's words would tell the name
    fault = operator.fault(None, {**HERE, "MCP_TASKPROXY_UPSTREAM__COMMAND": words})
    assert fault == "MCP_TASKPROXY_UPSTREAM__COMMAND: line 1, column 10: found undefined alias"


# What protects, and is empty. A template whose value was not found must not turn it off unnoticed.


@pytest.mark.parametrize(
    "text",
    [
        *(
            "auth: {jwt: }",
            "auth: {jwt: {}}",
            "auth: {jwt: {issuer: }}",
            "auth: {jwt: {issuer: '', jwks_file: f}}",
        ),
        *("auth: {jwt: {issuer: , audience: , jwks_url: }}", "auth: {jwt: {audience: []}}"),
        "auth: {jwt: {issuer: i, jwks_file: f, audience: [a], algorithms: []}}",
        "auth: {jwt: {issuer: i, jwks_file: f, audience: [a], algorithms: }}",
        "auth: {jwt: {issuer: i, jwks_file: f, audience: ['']}}",
        "auth: {jwt: {issuer: i, jwks_file: '', audience: [a]}}",
        "auth: {jwt: {issuer: i, jwks_file: f, audience: []}}",
        *("auth: {gateway: }", "auth: {gateway: {}}", "auth: {gateway: {header: , trusted: []}}"),
        *(
            "auth: {gateway: {header: X-User, trusted: }}",
            "auth: {gateway: {header: '', trusted: [10.0.0.1]}}",
        ),
        *("auth: {gateway: {header: X-User, trusted: ['']}}", "auth: {mode: }"),
        *("store: {encryption: }", "store: {encryption: {}}", "store: {encryption: {keys: []}}"),
        *(
            "store: {encryption: {keys: }}",
            "store: {encryption: {keys: ''}}",
            "store: {encryption: {keys: ['']}}",
        ),
        *("store: {encryption: {key_file: }}", "store: {encryption: {key_file: ''}}"),
        "store: {encryption: {keys: [], key_file: null}}",
    ],
)
def test_what_protects_is_not_turned_off_by_being_empty(operator: Operator, text: str) -> None:
    assert operator.fault(text, {}, {"--upstream": "http://h/mcp"}).startswith(str(operator.file))


@pytest.mark.parametrize("text", ["", " ", "[]", "null", "{}", "~"])
@pytest.mark.parametrize(
    "name",
    [
        *("STORE__ENCRYPTION", "STORE__ENCRYPTION__KEYS", "STORE__ENCRYPTION__KEY_FILE"),
        *("AUTH__JWT", "AUTH__JWT__ISSUER", "AUTH__JWT__JWKS_URL", "AUTH__GATEWAY", "AUTH__GATEWAY__HEADER"),
        *("AUTH__GATEWAY__TRUSTED", "AUTH__MODE"),
    ],
)
def test_nor_is_it_by_an_empty_variable(operator: Operator, name: str, text: str) -> None:
    variable = f"MCP_TASKPROXY_{name}"
    if name.endswith("KEY_FILE") and text in ("[]", "{}"):
        return  # so a file may be called
    fault = operator.fault(None, {**HERE, variable: text}, {"--upstream": "http://h/mcp"})
    assert fault.startswith(f"{variable}: ")


# The file.


@pytest.mark.parametrize(
    "text, fault",
    [
        ("- a", "found list; a mapping of settings is needed"),
        ("listen: a: b", "line 1, column 10: mapping values are not allowed here"),
        ("drain: 1s\ndrain: 2s", "line 2, column 1: the key drain stands twice"),
        ("tasks: {threshold: 1s, threshold: 2s}", "line 1, column 24: the key threshold stands twice"),
        (
            "\0",
            "not YAML: character 1 is none of a text",
        ),
        ("!!python/object:os.system {}", "line 1, column 1: could not determine a constructor"),
        ("[a", "line 1, column 3: expected ',' or ']', but got '<stream end>'"),
        ("a: 2026-13-13", "line 1, column 4: a value that is not what it seems to be; put it in quotes"),
        ("[" * 500, "nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_understood(operator: Operator, text: str, fault: str) -> None:
    assert operator.fault(text).startswith(f"{operator.file}: {fault}")


def test_a_file_that_cannot_be_read(operator: Operator, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"proxy\.yaml: cannot be read: No such file"):
        load(operator.file, {}, {})
    with pytest.raises(ConfigError, match="is no regular file"):
        load(tmp_path, {}, {})
    operator.file.write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 6"):
        load(operator.file, {}, {})


def test_anchors_and_merge_keys_work(operator: Operator) -> None:
    text = "tasks: &t {threshold: 3s}\nupstream: {command: [x]}"
    assert operator.load(text).tasks.threshold == 3.0
    merged = "tasks: {tools: [&a {match: a, input: task}, {<<: *a, match: b}]}\nupstream: {command: [x]}"
    assert [rule.match for rule in operator.load(merged).tasks.tools] == ["a", "b"]


# What is missing.


def test_with_nothing_said_the_answer_tells_what_to_say(operator: Operator) -> None:
    assert operator.fault() == (
        "nothing to serve: put the server's command after --, or add --upstream URL or --config FILE"
    )


def test_without_listen_the_client_is_on_stdio(operator: Operator) -> None:
    assert operator.load(None, {}, COMMAND).is_stdio
    assert operator.load("listen: stdio", {}, COMMAND).is_stdio


def test_on_stdio_each_upstream_has_a_store_of_its_own_below_the_state_directory(operator: Operator) -> None:
    """AUTH-008: the next run of the same user before the same command finds the tasks of the last one."""
    state = {"XDG_STATE_HOME": "/state", "HOME": "/home/ada"}
    first, again = (operator.load(None, state, COMMAND).store.directory for _ in range(2))
    other = operator.load(None, state, {"command": ["another", "server"]}).store.directory
    assert first == again != other
    assert first is not None
    assert first.parent == Path("/state/mcp-taskproxy")
    at_home = operator.load(None, {"HOME": "/home/ada"}, COMMAND).store.directory
    assert at_home == Path("/home/ada/.local/state/mcp-taskproxy", first.name)


def test_on_stdio_a_store_that_was_given_is_used(operator: Operator) -> None:
    assert operator.load(None, {"MCP_TASKPROXY_STORE__URL": "memory:"}, COMMAND).store.directory is None


def test_with_a_file_listen_has_its_default(operator: Operator) -> None:
    assert operator.load("", {}, COMMAND).listen == "127.0.0.1:8080"


def test_an_upstream_is_required(operator: Operator) -> None:
    line = "upstream: none given; put its command after --, or add --upstream URL or --config FILE"
    assert operator.fault("drain: 1s") == line
    assert operator.fault(None, HERE) == line
