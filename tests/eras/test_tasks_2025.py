"""What sessions of 2025-11-25 say of tasks, spliced into the server's own words.

Contract section 5. Holds T25-CAP-001, T25-CAP-002, T25-CAP-004, T25-TOOL-001, VER-004.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.eras.tasks_2025 import (
    NO_TASKS,
    VERSION,
    Granted,
    TaskSupport,
    UpstreamTasks,
    asked_version,
    declared_by,
    grant,
    support_of,
    wished_ttl_ms,
    with_marks,
    with_related_task,
    without_related_task,
)
from proxy.errors import ClientProtocolError, ErrorCode
from proxy.protocol.envelope import RawObject, dumps

FULL: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
TOOLS = b'{"tools":{"listChanged": true}}'


def initialized(capabilities: bytes = TOOLS, version: str = VERSION) -> bytes:
    return (
        b'{"serverInfo": {"name":"s", "n": 1.10}, "capabilities": '
        + capabilities
        + b',"protocolVersion":"'
        + version.encode()
        + b'" ,"x":[1E2]}'
    )


def granted(result: bytes, *, lists: bool = True) -> Granted:
    found = grant(VERSION, result, lists=lists)
    assert found is not None
    return found


def capability(capabilities: bytes, *, lists: bool = True) -> Any:
    """What is said of tasks to the client."""
    return json.loads(granted(initialized(capabilities), lists=lists).result)["capabilities"]["tasks"]


# -- initialize ---------------------------------------------------------------------------------------


def test_the_capability_is_added_and_nothing_else_changes() -> None:
    """I1, T25-CAP-001, T25-CAP-002."""
    found = granted(initialized())
    added = b'"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}'
    assert found.result == (
        b'{"serverInfo": {"name":"s", "n": 1.10},"capabilities": {"tools":{"listChanged": true},'
        + added
        + b'},"protocolVersion":"2025-11-25","x":[1E2]}'
    )
    assert (found.upstream_version, found.upstream) == (VERSION, NO_TASKS)


def test_without_an_owner_who_is_known_list_is_not_declared() -> None:
    """T25-LST-006."""
    assert capability(TOOLS, lists=False) == {"cancel": {}, "requests": {"tools": {"call": {}}}}


@pytest.mark.parametrize(
    ("said", "shown", "tasks"),
    [
        ({}, FULL, UpstreamTasks()),
        ({"list": {"x": 1}}, {**FULL, "list": {"x": 1}}, UpstreamTasks(list=True)),
        ({"list": {}, "cancel": {}, "x": 2}, {**FULL, "x": 2}, UpstreamTasks(list=True)),
        ({"requests": {"tools": {"call": {}}}}, FULL, UpstreamTasks(tools=True)),
        (
            {"requests": {"x": {}, "tools": {"y": 1}}},
            {**FULL, "requests": {"x": {}, "tools": {"y": 1, "call": {}}}},
            UpstreamTasks(),
        ),
        ({"requests": None, "list": None}, {**FULL, "list": None}, UpstreamTasks(list=True)),
    ],
)
def test_what_the_server_declares_itself_stays_and_is_known(
    said: Any, shown: Any, tasks: UpstreamTasks
) -> None:
    """T25-CAP-001, T25-CAP-002: also where it has tasks of its own."""
    capabilities = dumps({"tools": {}, "tasks": said})
    assert capability(capabilities) == shown
    assert granted(initialized(capabilities)).upstream == tasks


def test_list_stays_where_the_server_declares_it_though_ours_are_not_listed() -> None:
    """T25-LST-006."""
    assert "list" in capability(b'{"tools":{},"tasks":{"list":{}}}', lists=False)


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
def test_before_an_older_server_the_version_is_held(version: str) -> None:
    """VER-004. What an older version calls `tasks` is none of these."""
    found = granted(initialized(b'{"tools":{},"tasks":{"odd":1}}', version))
    told = json.loads(found.result)
    assert told["protocolVersion"] == VERSION
    assert told["capabilities"]["tasks"] == FULL
    assert (found.upstream_version, found.upstream) == (version, NO_TASKS)


@pytest.mark.parametrize(
    ("asked", "result"),
    [
        ("2025-06-18", initialized()),
        (None, initialized()),
        ("2026-07-28", initialized()),
        (VERSION, initialized(b'{"prompts":{}}')),
        (VERSION, initialized(b'{"prompts":{}}', "2025-06-18")),
        (VERSION, initialized(TOOLS, "2099-01-01")),
        (VERSION, b"[]"),
        (VERSION, b'{"protocolVersion":"2025-11-25"}'),
        (VERSION, b'{"protocolVersion":"2025-11-25","capabilities":null}'),
    ],
)
def test_no_tasks_where_they_cannot_be(asked: str | None, result: bytes) -> None:
    """T25-CAP-004: other versions, servers without tools, what is malformed: all pass as they are."""
    assert grant(asked, result, lists=True) is None


@pytest.mark.parametrize(
    "tasks",
    [
        b'"tasks":{"requests":{"tools":{"call":{}}}},"tasks":{}',
        b'"tasks":{"requests":{"tools":{"call":{}}},"requests":{}}',
        b'"tasks":{"requests":{"tools":{"call":{}},"tools":{}}}',
    ],
)
def test_what_stands_twice_counts_as_not_declared_and_passes_as_it_is(tasks: bytes) -> None:
    capabilities = b'{"tools":{},' + tasks + b"}"
    assert UpstreamTasks.declared(RawObject.parse(capabilities)) == NO_TASKS
    assert grant(VERSION, initialized(capabilities), lists=True) is None


@pytest.mark.parametrize(
    ("params", "version"),
    [
        (b'{"protocolVersion":"2025-11-25"}', VERSION),
        (b'{"protocolVersion":5}', None),
        (b"{}", None),
        (b"[]", None),
        (None, None),
        (b'{"protocolVersion":"a","protocolVersion":"b"}', None),
    ],
)
def test_the_version_a_client_asks_for(params: bytes | None, version: str | None) -> None:
    assert asked_version(params) == version


@pytest.mark.parametrize(
    ("params", "can_be_asked"),
    [
        (b'{"capabilities":{}}', False),
        (b'{"capabilities":{"elicitation":{}}}', True),
        (b'{"capabilities":{"sampling":{}}}', False),
        (b"{}", True),
        (b'{"capabilities":5}', True),
        (b'{"capabilities":{"elicitation":5}}', True),
        (b'{"capabilities":{},"capabilities":{}}', True),
        (b"[]", True),
        (None, True),
    ],
)
def test_what_a_client_can_be_asked(params: bytes | None, can_be_asked: bool) -> None:
    """F15; where it cannot be read, the client itself will say."""
    missing = declared_by(params).missing_for("elicitation/create", b'{"message":"m"}')
    assert (missing is None) is can_be_asked


# -- tools/list ---------------------------------------------------------------------------------------


def all_optional(tool: str, said: TaskSupport | None) -> TaskSupport:
    return said if said is TaskSupport.REQUIRED else TaskSupport.OPTIONAL


def test_marks_are_put_in_and_nothing_else_changes() -> None:
    """I1, T25-TOOL-001."""
    tools = (
        b'{"name": "a", "inputSchema":{ "n":1.10 }}',
        b'{"name": "b" , "execution": {"x":1 ,"taskSupport":"forbidden"} }',
        b'{"execution":{"taskSupport" : "required"}, "name":"c"}',
        b'{"name":"d","execution":{"taskSupport":"optional"} }',
        b'{"name":"e","execution":null}',
        b'{"name":"f","execution":{"taskSupport":"sometimes"}}',
    )
    marked = (
        b'{"name": "a","inputSchema":{ "n":1.10 },"execution":{"taskSupport":"optional"}}',
        b'{"name": "b","execution": {"x":1,"taskSupport":"optional"}}',
        b'{"execution":{"taskSupport" : "required"}, "name":"c"}',
        b'{"name":"d","execution":{"taskSupport":"optional"} }',
        b'{"name":"e","execution":{"taskSupport":"optional"}}',
        b'{"name":"f","execution":{"taskSupport":"optional"}}',
    )
    result = b'{"nextCursor": "n","tools": [' + b" , ".join(tools) + b"]}"
    assert with_marks(result, all_optional) == (b'{"nextCursor": "n","tools": [' + b",".join(marked) + b"]}")


@pytest.mark.parametrize(
    "result",
    [b"[]", b"{}", b'{"tools":5}', b'{"tools":null}', b'{"tools":[],"tools":[]}'],
)
def test_a_list_that_is_none_passes_as_it_is(result: bytes) -> None:
    assert with_marks(result, all_optional) == result


@pytest.mark.parametrize("tool", [b"5", b"{}", b'{"name":5}', b'{"name":"a","name":"b"}'])
def test_a_tool_that_is_none_passes_beside_the_others(tool: bytes) -> None:
    result = with_marks(b'{"tools":[' + tool + b',{"name":"a"}]}', all_optional)
    assert result == b'{"tools":[' + tool + b',{"name":"a","execution":{"taskSupport":"optional"}}]}'


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (b'{"execution":{"taskSupport":"optional"}}', TaskSupport.OPTIONAL),
        (b'{"execution":{"taskSupport":"forbidden"}}', TaskSupport.FORBIDDEN),
        (b'{"execution":{"taskSupport":"x"}}', None),
        (b'{"execution":{"taskSupport":5}}', None),
        (b'{"execution":[]}', None),
        (b"{}", None),
    ],
)
def test_what_a_tool_says_of_tasks(tool: bytes, said: TaskSupport | None) -> None:
    assert support_of(RawObject.parse(tool)) is said


# -- the wish of a call -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "retention_ms"),
    [
        (b"{}", 50),
        (b'{"ttl":null}', 100),
        (b'{"ttl":0}', 10),
        (b'{"ttl":1}', 10),
        (b'{"ttl":-5}', 10),
        (b'{"ttl":42}', 42),
        (b'{"ttl":42.9}', 42),
        (b'{"ttl":1000000000000}', 100),
        (b'{"ttl":1E400}', 100),
        (b'{"x":1,"ttl":60}', 60),
    ],
)
def test_the_wished_ttl_is_clamped(task: bytes, retention_ms: int) -> None:
    """T25-NEW-006, T25-SEC-006."""
    assert wished_ttl_ms(task, default_ms=50, least_ms=10, most_ms=100) == retention_ms


@pytest.mark.parametrize(
    "task",
    [
        b"null",
        b"5",
        b"[]",
        b'{"ttl":"60000"}',
        b'{"ttl":true}',
        b'{"ttl":{}}',
        b'{"ttl":1,"ttl":2}',
        b'{"ttl":' + b"9" * 5_000 + b"}",
    ],
)
def test_a_wish_that_is_none_is_refused(task: bytes) -> None:
    with pytest.raises(ClientProtocolError) as refused:
        wished_ttl_ms(task, default_ms=50, least_ms=10, most_ms=100)
    assert refused.value.code is ErrorCode.INVALID_PARAMS


# -- related-task -------------------------------------------------------------------------------------

RELATED = b'"io.modelcontextprotocol/related-task":{"taskId":"t"}'
META = b'"_meta":{' + RELATED + b"}"


@pytest.mark.parametrize(
    ("told", "related"),
    [
        (None, b"{" + META + b"}"),
        (b"{}", b"{" + META + b"}"),
        (b'{"a": 1.0 , "b":2}', b'{"a": 1.0,"b":2,' + META + b"}"),
        (b'{"_meta": {"k": 1}}', b'{"_meta": {"k": 1,' + RELATED + b"}}"),
        (b'{"_meta":{' + RELATED.replace(b'"t"', b'"other"') + b"}}", b"{" + META + b"}"),
        (b'{"_meta":null,"a":1}', b'{"_meta":{' + RELATED + b'},"a":1}'),
        (b'{"_meta":{"k":1},"_meta":{},"a":1}', b'{"_meta":{' + RELATED + b'},"a":1}'),
        (b"5", b"{" + META + b"}"),
        (b"null", b"{" + META + b"}"),
    ],
)
def test_whose_message_it_is_is_put_in(told: bytes | None, related: bytes) -> None:
    """T25-REL-001, T25-INP-002, T25-RES-004: other keys of `_meta` stay."""
    assert with_related_task(told, "t") == related


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        (b'{"action": "accept"}', b'{"action": "accept"}'),
        (b'{"action":"accept",' + META + b"}", b'{"action":"accept"}'),
        (b'{"_meta":{"k":1,' + RELATED + b'},"a": 1.0}', b'{"_meta":{"k":1},"a": 1.0}'),
        (b'"io.modelcontextprotocol/related-task"', b'"io.modelcontextprotocol/related-task"'),
        (b'{"x":' + META[8:] + b"}", b'{"x":' + META[8:] + b"}"),
        (b"{" + META + b"," + META + b"}", b"{" + META + b"," + META + b"}"),
    ],
)
def test_a_server_without_tasks_is_not_told_of_them_in_an_answer(answer: bytes, passed: bytes) -> None:
    assert without_related_task(answer) == passed
