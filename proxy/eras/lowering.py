"""From modern to legacy: what a modern server says, as a legacy client expects it, and the way back for
requests.

PURE. Above: `upstream.lowered`. Beside: `to_modern` and `to_legacy`, the two directions for a modern
client before a legacy server. Spliced, never re-serialised. Contract section 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.eras.to_modern import CACHEABLE, MODERN_CODES, ServerInfo, error_code, error_message
from proxy.errors import ErrorCode
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, elements, loads, splice
from proxy.protocol.jsonrpc import error_object
from proxy.protocol.param_headers import has_invalid_headers

_EMPTY: Final = b"{}"


def initialize_result(info: ServerInfo, asked: str | None) -> bytes:
    """InitializeResult from what a modern server said in discovery: at the version that was asked for, if
    there is such a legacy one, else at the newest; without the Tasks extension, which no legacy client
    knows."""
    capabilities = RawObject.parse(info.capabilities)
    extensions = capabilities.object("extensions")
    left = None if extensions is None else splice(extensions.raw, {names.TASKS_EXTENSION: None})
    lowered = splice(capabilities.raw, {"extensions": None if left == _EMPTY else left, "tasks": None})
    body = {
        "protocolVersion": dumps(asked if asked in names.LEGACY_VERSIONS else names.LATEST_LEGACY),
        "capabilities": lowered,
        "serverInfo": info.server_info or dumps({"name": "unknown", "version": "0"}),
        "instructions": info.instructions,
    }
    return splice(_EMPTY, body)


def modern_params(params: bytes | None, meta: Mapping[str, Any]) -> bytes:
    """The params of a legacy request with the `_meta` that a modern server wants of each. What the client put
    there stays, but for its progress token, which is given by whoever sends."""
    obj = RawObject.parse(params if params not in (None, b"null") else _EMPTY)
    given = obj.object(names.META)
    changes: dict[str, bytes | None] = {key: dumps(value) for key, value in meta.items()}
    changes[names.META_PROGRESS_TOKEN] = None
    merged = splice(given.raw if given is not None else _EMPTY, changes)
    return splice(obj.raw, {names.META: merged})


def lowered_result(method: str, result: bytes) -> bytes:
    """A complete result without what only the modern era knows. Raises JsonError if it is no object.

    Structured content that is no object goes, too: legacy clients refuse the whole result for it, and what it
    says stands in `content`.
    """
    obj = RawObject.parse(result)
    changes: dict[str, bytes | None] = {"resultType": None}
    if method in CACHEABLE:
        changes |= {"ttlMs": None, "cacheScope": None}
    structured = obj.get("structuredContent") if method == names.TOOLS_CALL else None
    if structured is not None and structured[:1] != b"{":
        changes["structuredContent"] = None
    meta = obj.object(names.META)
    if meta is not None and names.META_SERVER_INFO in meta:
        left = splice(meta.raw, {names.META_SERVER_INFO: None})
        changes[names.META] = None if left == _EMPTY else left
    return splice(result, changes)


def with_elicitation_id(params: bytes | None, elicitation_id: str) -> bytes | None:
    """The params of a question, which in URL mode has an id with legacy clients, and none with modern
    servers (2025-11-25, "URL Mode Elicitation Requests")."""
    if params is None or b'"url"' not in params:
        return params
    question = RawObject.parse(params)
    if question.text("mode") != "url" or "elicitationId" in question:
        return params
    return splice(params, {"elicitationId": dumps(elicitation_id)})


def without_unusable_tools(result: bytes) -> tuple[bytes, Sequence[str]]:
    """A `tools/list` result without the tools whose `x-mcp-header` nobody can follow, and their names
    (HTTP-043)."""
    try:
        tools = RawObject.parse(result).get("tools")
        parts = elements(tools) if tools is not None else []
    except (JsonError, DuplicateMember):
        return result, ()
    unusable = {part: name for part in parts if (name := _unusable(part)) is not None}
    if not unusable:
        return result, ()
    left = b"[" + b",".join(part for part in parts if part not in unusable) + b"]"
    return splice(result, {"tools": left}), tuple(unusable.values())


def _unusable(tool: bytes) -> str | None:
    """The name of a tool with such an annotation."""
    if b"x-mcp-header" not in tool:
        return None
    try:
        value = loads(tool)
    except ValueError:
        return None
    if not isinstance(value, dict) or not has_invalid_headers(value.get("inputSchema")):
        return None
    return str(value.get("name"))


def with_legacy_schemas(result: bytes) -> bytes:
    """A `tools/list` result whose output schemas are of objects: legacy clients refuse the whole list for any
    other."""
    if b'"outputSchema"' not in result:
        return result
    try:
        tools = RawObject.parse(result).get("tools")
        parts = elements(tools) if tools is not None else []
        lowered = [_with_legacy_schema(part) for part in parts]
    except (JsonError, DuplicateMember):
        return result
    return result if lowered == parts else splice(result, {"tools": b"[" + b",".join(lowered) + b"]"})


def _with_legacy_schema(tool: bytes) -> bytes:
    schema = RawObject.parse(tool).get("outputSchema")
    if schema is None or (schema[:1] == b"{" and RawObject.parse(schema).text("type") == "object"):
        return tool
    return splice(tool, {"outputSchema": None})


def lowered_error(method: str, error: bytes) -> bytes:
    """An error of a modern server with a code that a legacy client may see, and expects."""
    code = error_code(error)
    if method == names.RESOURCES_READ and code == ErrorCode.INVALID_PARAMS and b'"uri"' in error:
        return splice(error, {"code": b"%d" % names.LEGACY_RESOURCE_NOT_FOUND})
    if code not in MODERN_CODES:
        return error
    shell = error_object(ErrorCode.INTERNAL_ERROR, error_message(error) or "upstream error")
    return splice(shell, {"data": b'{"upstreamError":' + error + b"}"})
