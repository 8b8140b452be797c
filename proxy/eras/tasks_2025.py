"""What sessions of 2025-11-25 say of tasks: the capability, the marks of tools, the wish of a call.

PURE. Above: `routing`, which serves such sessions. The additions to what the upstream said are these and no
others, spliced into its own text. MCP 2025-11-25, "Tasks"; contract section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from proxy.eras.capabilities import ANY_CAPABILITIES, ClientCapabilities
from proxy.errors import ClientProtocolError, ErrorCode
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, elements, loads, splice

VERSION: Final = "2025-11-25"
"""The one revision that has these tasks."""

_EMPTY: Final = b"{}"


class TaskSupport(StrEnum):
    """`execution.taskSupport` of a tool."""

    FORBIDDEN = "forbidden"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class UpstreamTasks:
    """Which 2025 tasks the upstream serves itself: `tools` by `tools/call`, `list` by `tasks/list`."""

    tools: bool = False
    list: bool = False

    @property
    def any(self) -> bool:
        return self.tools or self.list

    @classmethod
    def declared(cls, capabilities: RawObject) -> UpstreamTasks:
        """What stands twice counts as not declared."""
        try:
            tasks = capabilities.object("tasks")
            requests = tasks.object("requests") if tasks is not None else None
            tools = requests.object("tools") if requests is not None else None
            return cls(
                tools=tools is not None and "call" in tools,
                list=tasks is not None and "list" in tasks,
            )
        except DuplicateMember:
            return cls()


NO_TASKS: Final = UpstreamTasks()


@dataclass(frozen=True, slots=True)
class Granted:
    """A session that has 2025 tasks: `result` is what the client is told, the rest what upstream said."""

    result: bytes
    upstream_version: str
    upstream: UpstreamTasks


def asked_version(initialize_params: bytes | None) -> str | None:
    """The version that a client asks for in `initialize`."""
    try:
        return (
            None if initialize_params is None else RawObject.parse(initialize_params).text("protocolVersion")
        )
    except (JsonError, DuplicateMember):
        return None


def declared_by(initialize_params: bytes | None) -> ClientCapabilities:
    """What a client can be asked, by the capabilities in its `initialize`; any where that cannot be read."""
    try:
        declared = RawObject.parse(initialize_params or b"{}").get("capabilities")
        return ANY_CAPABILITIES if declared is None else ClientCapabilities.parse(declared)
    except (JsonError, DuplicateMember, ClientProtocolError):
        return ANY_CAPABILITIES


def grant(asked: str | None, initialize_result: bytes, *, lists: bool) -> Granted | None:
    """The upstream's `initialize` result with our tasks in it; None where there are none: it passes as it is.

    Only clients that ask for 2025-11-25 have them, and only before servers with tools. A server that answers
    an older version keeps it; towards the client we hold 2025-11-25 (contract section 5). `lists`: whether
    `tasks/list` is served from our store, as it is where the owner is known.
    """
    if asked != VERSION:
        return None
    try:
        result = RawObject.parse(initialize_result)
        version, capabilities = result.text("protocolVersion"), result.object("capabilities")
        if version not in names.LEGACY_VERSIONS or capabilities is None or "tools" not in capabilities:
            return None
        is_old = version != VERSION
        upstream = UpstreamTasks() if is_old else UpstreamTasks.declared(capabilities)
        said = None if is_old else capabilities.object("tasks")
        changed = splice(capabilities.raw, {"tasks": _merged(said, lists=lists)})
    except (JsonError, DuplicateMember):
        return None
    changes = {"capabilities": changed}
    if is_old:
        changes["protocolVersion"] = dumps(VERSION)
    return Granted(splice(initialize_result, changes), version, upstream)


def _merged(said: RawObject | None, *, lists: bool) -> bytes:
    """Upstream's own tasks capability, and what we serve beside it."""
    tasks = said if said is not None else RawObject.parse(_EMPTY)
    requests = tasks.object("requests") or RawObject.parse(_EMPTY)
    tools = requests.object("tools") or RawObject.parse(_EMPTY)
    changes: dict[str, bytes] = {}
    if lists and "list" not in tasks:
        changes["list"] = _EMPTY
    if "cancel" not in tasks:
        changes["cancel"] = _EMPTY
    if "call" not in tools:
        changes["requests"] = splice(requests.raw, {"tools": splice(tools.raw, {"call": _EMPTY})})
    return splice(tasks.raw, changes)


Mark = Callable[[str, TaskSupport | None], TaskSupport]
"""The mark that a tool of this name shows, given what the upstream itself says of it."""


def with_marks(tools_list_result: bytes, mark: Mark) -> bytes:
    """A `tools/list` result whose tools say whether they run as tasks. What is malformed passes as it is."""
    try:
        tools = RawObject.parse(tools_list_result).get("tools")
        if tools is None:
            return tools_list_result
        marked = b",".join(_marked(tool, mark) for tool in elements(tools))
        return splice(tools_list_result, {"tools": b"[" + marked + b"]"})
    except (JsonError, DuplicateMember):
        return tools_list_result


def _marked(tool: bytes, mark: Mark) -> bytes:
    try:
        obj = RawObject.parse(tool)
        name, said = obj.text("name"), support_of(obj)
        if name is None or (shown := mark(name, said)) is said:
            return tool
        execution = obj.object("execution")
        changed = splice(execution.raw if execution is not None else _EMPTY, {"taskSupport": dumps(shown)})
        return splice(tool, {"execution": changed})
    except (JsonError, DuplicateMember):
        return tool


def support_of(tool: RawObject) -> TaskSupport | None:
    """What a tool definition says; None where it says nothing that the revision knows."""
    execution = tool.object("execution")
    said = execution.text("taskSupport") if execution is not None else None
    try:
        return TaskSupport(said) if said is not None else None
    except ValueError:
        return None


def wished_ttl_ms(task: bytes, *, default_ms: int, least_ms: int, most_ms: int) -> int:
    """How long the client wishes its task kept after the end, clamped (contract section 5, `ttl`).

    `task` is the raw `task` member of a call. Absent: the default; null: as long as may be. Raises
    ClientProtocolError -32602 where the member, or the wish, is of no type that means anything.
    """
    try:
        raw = RawObject.parse(task).get("ttl")
        wish = most_ms if raw == b"null" else default_ms if raw is None else loads(raw)
    except ValueError as exc:  # no object, or given twice, or a number that Python will not take
        raise _invalid(f"task: {exc}") from exc
    if isinstance(wish, bool) or not isinstance(wish, int | float):
        raise _invalid("task.ttl is not a number of milliseconds")
    return int(min(max(wish, least_ms), most_ms))


def _invalid(what: str) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.INVALID_PARAMS, f"Invalid params: {what}")


def with_related_task(obj: bytes | None, task_id: str) -> bytes:
    """Params or a result that say which task they belong to; `obj` None or no object counts as empty."""
    try:
        told = RawObject.parse(obj if obj is not None else _EMPTY)
        meta = told.object(names.META)
    except JsonError:
        told, meta = RawObject.parse(_EMPTY), None
    except DuplicateMember:
        meta = None
    related = {names.META_RELATED_TASK: dumps({"taskId": task_id})}
    return splice(told.raw, {names.META: splice(meta.raw if meta is not None else _EMPTY, related)})


def related_task(obj: bytes | None) -> str | None:
    """The id of the task that params or a result say they belong to; None if they say nothing."""
    if obj is None or names.META_RELATED_TASK.encode() not in obj:
        return None
    try:
        meta = RawObject.parse(obj).object(names.META)
        related = meta.object(names.META_RELATED_TASK) if meta is not None else None
        return related.text("taskId") if related is not None else None
    except (JsonError, DuplicateMember):
        return None


def without_related_task(obj: bytes) -> bytes:
    """A client's answer to a question of one of our tasks, as an upstream that knows no tasks is told it."""
    if names.META_RELATED_TASK.encode() not in obj:
        return obj
    try:
        meta = RawObject.parse(obj).object(names.META)
    except (JsonError, DuplicateMember):
        return obj
    if meta is None:
        return obj
    left = splice(meta.raw, {names.META_RELATED_TASK: None})
    return splice(obj, {names.META: None if left == _EMPTY else left})
