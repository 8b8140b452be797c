"""From legacy to modern: results, errors, questions and discovery made from what a legacy server says.

Spliced, never re-serialised. Contract section 3, "Discovery" and "Results".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from proxy.eras.era import Era
from proxy.eras.tasks_2025 import without_related_task
from proxy.errors import ErrorCode, UpstreamProtocolError
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, elements, loads, splice
from proxy.protocol.jsonrpc import error_object
from proxy.protocol.outline import Outline, spliced, whole

CACHEABLE: Final = frozenset(
    {
        names.DISCOVER,
        names.TOOLS_LIST,
        names.PROMPTS_LIST,
        names.RESOURCES_LIST,
        names.RESOURCES_TEMPLATES_LIST,
        names.RESOURCES_READ,
    }
)
"""Methods whose complete results carry caching hints (2026-07-28, "Caching")."""

MODERN_CODES: Final = frozenset(
    {
        ErrorCode.HEADER_MISMATCH,
        ErrorCode.MISSING_CLIENT_CAPABILITY,
        ErrorCode.UNSUPPORTED_PROTOCOL_VERSION,
    }
)
OF_ANOTHER_ERA: Final = MODERN_CODES | {
    ErrorCode.INVALID_REQUEST,
    ErrorCode.METHOD_NOT_FOUND,
    ErrorCode.INVALID_PARAMS,
}
"""What a server says to requests of an era that it does not speak; others say it, too."""

_RESERVED_CODES: Final = range(-32099, -32019)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server said of itself: a legacy one in its `initialize` result, a modern one in `discovered`.

    All but the version is raw JSON.
    """

    version: str
    capabilities: bytes
    server_info: bytes | None
    instructions: bytes | None
    discovered: bytes | None = None

    @property
    def era(self) -> Era:
        return Era.LEGACY if self.discovered is None else Era.MODERN

    @property
    def has_tasks(self) -> bool:
        """Whether this is a modern server with the Tasks extension of its own."""
        extensions = RawObject.parse(self.capabilities).object("extensions")
        return self.era is Era.MODERN and extensions is not None and names.TASKS_EXTENSION in extensions

    @classmethod
    def parse_discovered(cls, result: bytes) -> ServerInfo:
        """What a modern server said in its DiscoverResult. Raises UpstreamProtocolError."""
        try:
            obj = RawObject.parse(result)
            versions = loads(obj.get("supportedVersions") or b"null")
            capabilities, meta = obj.object("capabilities"), obj.object(names.META)
            server_info = meta.object(names.META_SERVER_INFO) if meta is not None else None
        except ValueError as exc:
            raise UpstreamProtocolError(f"the discover result cannot be used: {exc}") from exc
        common = [v for v in names.MODERN_VERSIONS if isinstance(versions, list) and v in versions]
        if not common or capabilities is None:
            raise UpstreamProtocolError(
                f"the server speaks none of {', '.join(names.MODERN_VERSIONS)}; it says {versions}"
            )
        info = server_info.raw if server_info is not None else None
        return cls(common[-1], capabilities.raw, info, obj.get("instructions"), result)

    @classmethod
    def parse(cls, initialize_result: bytes) -> ServerInfo:
        """Raises UpstreamProtocolError naming what is missing or wrong."""
        try:
            obj = RawObject.parse(initialize_result)
            version, capabilities = obj.text("protocolVersion"), obj.object("capabilities")
            server_info, instructions = obj.object("serverInfo"), obj.text("instructions")
        except ValueError as exc:
            raise UpstreamProtocolError(f"the initialize result cannot be used: {exc}") from exc
        if version not in names.LEGACY_VERSIONS:
            raise UpstreamProtocolError(
                f"the server answered initialize with protocol version {version!r}, which is none of "
                f"{', '.join(names.LEGACY_VERSIONS)}"
            )
        return cls(
            version,
            capabilities.raw if capabilities else b"{}",
            server_info.raw if server_info else None,
            obj.get("instructions") if instructions is not None else None,
        )

    def declares(self, group: str, member: str | None = None) -> bool:
        """Whether the server declared a capability, and (if named) that member of it as true.

        What stands twice counts as declared, but for no member.
        """
        try:
            value = RawObject.parse(self.capabilities).object(group)
            if value is None or member is None:
                return value is not None
            return value.get(member) == b"true"
        except DuplicateMember:
            return member is None


def discover_result(info: ServerInfo, supported: tuple[str, ...]) -> bytes:
    """DiscoverResult: the server's capabilities without the 2025 tasks slot, with the extension.

    A modern server's own result is kept but for the extension and the versions that we serve.
    """
    capabilities = RawObject.parse(info.capabilities)
    extensions = capabilities.object("extensions")
    merged = splice(extensions.raw if extensions else b"{}", {names.TASKS_EXTENSION: b"{}"})
    if info.discovered is not None:
        changed = splice(capabilities.raw, {"extensions": merged})
        versions = dumps(list(supported))
        return splice(info.discovered, {"supportedVersions": versions, "capabilities": changed})
    body = {
        "supportedVersions": dumps(list(supported)),
        "capabilities": splice(capabilities.raw, {"tasks": None, "extensions": merged}),
        "instructions": info.instructions,
    }
    return lift_result(names.DISCOVER, splice(b"{}", body), info.server_info)


def is_discover_result(response: bytes) -> bool:
    """Whether a JSON-RPC response carries a DiscoverResult."""
    try:
        result = RawObject.parse(response).object("result")
        return result is not None and is_discovered(result.raw)
    except ValueError:
        return False


def is_discovered(result: bytes) -> bool:
    """Whether a raw result is a DiscoverResult."""
    try:
        return (RawObject.parse(result).get("supportedVersions") or b"")[:1] == b"["
    except ValueError:
        return False


def supported_versions(response: bytes) -> frozenset[str]:
    """The versions that a JSON-RPC response with a DiscoverResult names; none for anything else."""
    try:
        result = RawObject.parse(response).object("result")
        versions = loads(result.get("supportedVersions") or b"[]") if result is not None else []
    except ValueError:
        return frozenset()
    return frozenset(v for v in versions if isinstance(v, str)) if isinstance(versions, list) else frozenset()


def is_modern_error(response: bytes) -> bool:
    """Whether a JSON-RPC response carries an error that only modern servers send (VER-011)."""
    try:
        error = RawObject.parse(response).get("error")
    except ValueError:
        return False
    return error is not None and error_code(error) in MODERN_CODES


def lift_result(method: str, result: bytes, server_info: bytes | None) -> bytes:
    """A legacy result with what the modern era requires of it.

    Raises UpstreamProtocolError if it is no object.
    """
    try:
        obj = RawObject.parse(result)
        changes = {"resultType": dumps(names.COMPLETE)}
        if server_info is not None:
            meta = obj.object(names.META)
            changes[names.META] = splice(meta.raw if meta else b"{}", {names.META_SERVER_INFO: server_info})
        if method not in CACHEABLE:
            return whole(spliced(result, Outline.of(obj), changes))
        hints: dict[str, bytes | None] = {"ttlMs": b"0", "cacheScope": b'"private"'}
        if method == names.TOOLS_LIST and b'"execution"' in result:
            hints["tools"] = _without_execution(obj.get("tools"))
        return splice(result, changes | hints)
    except ValueError as exc:
        raise UpstreamProtocolError(f"the result of {method} cannot be used: {exc}") from exc


def _without_execution(tools: bytes | None) -> bytes | None:
    """Task marks of single tools are a matter of the 2025 sessions (TX-CAP-011)."""
    if tools is None:
        return None
    try:
        parts = elements(tools)
    except JsonError:
        return tools
    kept = (splice(t, {"execution": None}) if t[:1] == b"{" and b'"execution"' in t else t for t in parts)
    return b"[" + b",".join(kept) + b"]"


def error_code(error: bytes) -> int | None:
    """The code of a raw error object, None if it is no integer."""
    try:
        raw = RawObject.parse(error).get("code")
        code = loads(raw) if raw is not None else None
    except ValueError:
        return None
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def error_message(error: bytes) -> str | None:
    """The message of a raw error object, None if it has none, or not one."""
    try:
        return RawObject.parse(error).text("message")
    except ValueError:
        return None


def lift_error(error: bytes) -> bytes:
    """A legacy error object with a code that a modern client may see (BASE-010, BASE-012, BASE-013)."""
    code, message = error_code(error), error_message(error)
    if code is None or message is None:
        return _wrapped(error, "the upstream sent a malformed error")
    if code == names.LEGACY_RESOURCE_NOT_FOUND:
        return splice(error, {"code": b"%d" % ErrorCode.INVALID_PARAMS})
    if code in _RESERVED_CODES:
        return _wrapped(error, message or "upstream error")
    return error


def _wrapped(error: bytes, message: str) -> bytes:
    shell = error_object(ErrorCode.INTERNAL_ERROR, message)
    return splice(shell, {"data": b'{"upstreamError":' + error + b"}"})


def lift_question(method: str, params: bytes | None) -> bytes | None:
    """The params of a question as an input request has them: `elicitationId`, and the upstream's own task,
    are between upstream and us."""
    if params is None or params[:1] != b"{":
        return params
    changes: dict[str, bytes | None] = {}
    if method == names.ELICITATION_CREATE and b"elicitationId" in params:
        changes["elicitationId"] = None
    lifted = splice(params, changes) if changes else params
    return without_related_task(lifted)


def url_elicitations(error: bytes) -> list[bytes]:
    """The elicitations that a -32042 error lists, each as raw params of `elicitation/create`."""
    try:
        data = RawObject.parse(error).object("data")
        listed = data.get("elicitations") if data else None
        found = [e for e in elements(listed) if e[:1] == b"{"] if listed is not None else []
    except ValueError:
        return []
    return [splice(e, {"mode": b'"url"', "elicitationId": None}) for e in found]


def with_progress_token(params: bytes, token: bytes) -> bytes:
    """Progress params with the client's own token (raw JSON)."""
    return splice(params, {names.META_PROGRESS_TOKEN: token})


def with_subscription_id(params: bytes | None, subscription_id: bytes) -> bytes:
    """Notification params that say which subscription they belong to (2026-07-28, "Subscriptions")."""
    told = params if params is not None and params[:1] == b"{" else b"{}"
    try:
        meta = RawObject.parse(told).object(names.META)
    except DuplicateMember:
        meta = None
    tagged = splice(meta.raw if meta else b"{}", {names.META_SUBSCRIPTION_ID: subscription_id})
    return splice(told, {names.META: tagged})
