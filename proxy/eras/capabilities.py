"""What a client declared, what we may therefore offer upstream, and which questions it can answer.

A modern client declares its capabilities on each request; a legacy session fixes them once. So each
distinct set gets a session of its own, initialized with exactly that set minus tasks, and no server is
led to ask for what the client behind it cannot answer. Contract section 3, "Upstream sessions".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from proxy.errors import ClientProtocolError, ErrorCode
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, dumps, loads
from proxy.protocol.jsonrpc import error_object

TASKS_REQUIRED: Final[Mapping[str, Any]] = {"extensions": {names.TASKS_EXTENSION: {}}}
"""`requiredCapabilities` where the Tasks extension is missing."""

_ASKING: Final = ("elicitation", "sampling", "roots")
_FORM: Final = "form"  # the mode of an elicitation that names none


@dataclass(frozen=True, slots=True)
class ClientCapabilities:
    """The declared set of one request.

    `offered` is what `initialize` says upstream, as canonical JSON text, so that equal sets are equal
    values; `tasks` whether the Tasks extension was declared.
    """

    offered: str
    tasks: bool

    @classmethod
    def parse(cls, raw: bytes) -> ClientCapabilities:
        """From the raw `clientCapabilities` of a modern request.

        Raises ClientProtocolError -32602 if it, or a capability that we read, is not an object, and
        DuplicateMember if one of them is given twice.
        """
        if raw[:1] != b"{":
            raise _invalid("the value is not an object")
        given = RawObject.parse(raw)
        for name in (*_ASKING, "extensions", "experimental"):
            _require_object(given, name)
        extensions = given.object("extensions")
        tasks = extensions is not None and _require_object(extensions, names.TASKS_EXTENSION)
        try:
            return cls(_canonical(_offered(loads(raw))), tasks)
        except (ValueError, RecursionError) as exc:  # a number of Python's limits, or nested too deeply
            raise _invalid(f"a value cannot be handed on: {exc}") from exc

    @property
    def may_be_asked(self) -> bool:
        """Whether a server that was told this set may send questions."""
        return any(name in self._set for name in _ASKING)

    @property
    def _set(self) -> dict[str, Any]:
        value = json.loads(self.offered)
        assert isinstance(value, dict)
        return value

    def missing_for(self, method: str, params: bytes | None) -> Missing | None:
        """What the client lacks to answer this question of the upstream; None if it can."""
        declared = self._set
        match method:
            case names.ELICITATION_CREATE:
                return _missing_elicitation(declared.get("elicitation"), _mode(_object(params)))
            case names.SAMPLING_CREATE_MESSAGE:
                return _missing_sampling(declared.get("sampling"), _object(params))
            case names.ROOTS_LIST:
                return None if "roots" in declared else Missing({"roots": {}}, ErrorCode.METHOD_NOT_FOUND)
            case _:
                return Missing({}, ErrorCode.METHOD_NOT_FOUND)


class _Any(ClientCapabilities):
    """See ANY_CAPABILITIES."""

    __slots__ = ()

    def missing_for(self, method: str, params: bytes | None) -> Missing | None:
        return None


def any_capabilities(offered: str) -> ClientCapabilities:
    """Of a legacy client: the server was told by the client itself what it can, and asks for nothing else.
    `offered` is that, for another session with the server."""
    return _Any(offered, tasks=True)


ANY_CAPABILITIES: Final = any_capabilities("{}")
"""Of a legacy client of whom it is not known what the server was told."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A capability that would be needed: for the client's -32021, and the code of the asker's refusal."""

    required: Mapping[str, Any]
    refusal_code: ErrorCode

    def refusal(self, method: str, code: ErrorCode | None = None) -> bytes:
        """The error object that answers the upstream's question; with a `code` of its own, one for the call
        that cannot go on."""
        lacking = json.dumps(self.required)
        words = f"the client cannot answer {method}: it did not declare {lacking}"
        return error_object(code or self.refusal_code, words)


def missing_capability(required: Mapping[str, Any], why: str) -> ClientProtocolError:
    """-32021 with `requiredCapabilities`."""
    return ClientProtocolError(
        ErrorCode.MISSING_CLIENT_CAPABILITY,
        f"Missing required client capability: {why}",
        data={"requiredCapabilities": required},
    )


def _missing_elicitation(declared: Any, mode: str) -> Missing | None:
    # An elicitation capability that names no mode means form (2025-11-25 and 2026-07-28, "Elicitation").
    if declared is not None and (mode in declared or (mode == _FORM and "url" not in declared)):
        return None
    needed: dict[str, Any] = {} if declared is None and mode == _FORM else {mode: {}}
    code = ErrorCode.METHOD_NOT_FOUND if declared is None else ErrorCode.INVALID_PARAMS
    return Missing({"elicitation": needed}, code)


def _missing_sampling(declared: Any, params: RawObject) -> Missing | None:
    if declared is None:
        return Missing({"sampling": {}}, ErrorCode.METHOD_NOT_FOUND)
    if ("tools" in params or "toolChoice" in params) and "tools" not in declared:
        return Missing({"sampling": {"tools": {}}}, ErrorCode.INVALID_PARAMS)
    return None


def _object(params: bytes | None) -> RawObject:
    try:
        return RawObject.parse(params if params is not None else b"{}")
    except JsonError:
        return RawObject.parse(b"{}")


def _mode(params: RawObject) -> str:
    """The mode of an elicitation; one that is no text, or given twice, is no mode that anybody declared."""
    try:
        return _FORM if "mode" not in params else params.text("mode") or ""
    except DuplicateMember:
        return ""


def _require_object(declared: RawObject, name: str) -> bool:
    """Whether the capability is declared. Raises ClientProtocolError if it is no object."""
    value = declared.get(name)
    if value is not None and value[:1] != b"{":
        raise _invalid(f"{name} is not an object")
    return value is not None


def _offered(declared: dict[str, Any]) -> dict[str, Any]:
    """What upstream is told: the declared set without tasks, of either generation."""
    extensions = {k: v for k, v in declared.pop("extensions", {}).items() if k != names.TASKS_EXTENSION}
    declared.pop("tasks", None)  # the 2025 slot: no meaning in the modern era, ours is no requestor
    if extensions:
        declared["extensions"] = extensions
    if "roots" in declared:  # a modern client never announces changes of its roots
        declared["roots"] = {k: v for k, v in declared["roots"].items() if k != "listChanged"}
    return declared


def _canonical(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _invalid(what: str) -> ClientProtocolError:
    return ClientProtocolError(
        ErrorCode.INVALID_PARAMS, f"Invalid params: {names.META_CLIENT_CAPABILITIES}: {what}"
    )


def request_meta(capabilities: ClientCapabilities, client_name: str, client_version: str) -> dict[str, Any]:
    """The `_meta` of a request of our own to a modern server."""
    return {
        names.META_PROTOCOL_VERSION: names.LATEST_MODERN,
        names.META_CLIENT_INFO: {"name": client_name, "version": client_version},
        names.META_CLIENT_CAPABILITIES: json.loads(capabilities.offered),
    }


def initialize_params(capabilities: ClientCapabilities, client_name: str, client_version: str) -> bytes:
    """The params of our `initialize` for sessions with these capabilities, offering the newest version."""
    return dumps(
        {
            "protocolVersion": names.LATEST_LEGACY,
            "capabilities": json.loads(capabilities.offered),
            "clientInfo": {"name": client_name, "version": client_version},
        }
    )
