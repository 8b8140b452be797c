"""Whether a message is a modern request that we serve, in the contract's order of judgement.

Above: the transports, which bring the body and (HTTP) the headers. Below: `protocol`. Nothing in here
waits. Contract section 3, "Validation"; Streamable HTTP 2026-07-28, "Server Validation".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from proxy.eras.capabilities import ClientCapabilities
from proxy.eras.era import Era, client_era
from proxy.errors import ClientProtocolError, ErrorCode, ProxyError
from proxy.owners import Owner
from proxy.protocol import names
from proxy.protocol.envelope import LARGE, DuplicateMember, JsonError, RawObject, decode_string
from proxy.protocol.jsonrpc import Message, Notification, Request, RequestId
from proxy.protocol.param_headers import HeaderValueError, decode_value
from proxy.routing.base import ClientRequest

_ANSWERS: Final = ("inputResponses", "requestState")
_READ_OF_PARAMS: Final[Mapping[str, Sequence[str]]] = {
    names.TOOLS_CALL: ("name", "arguments", *_ANSWERS),
    names.PROMPTS_GET: ("name", *_ANSWERS),
    names.RESOURCES_READ: ("uri", *_ANSWERS),
    names.TASKS_GET: ("taskId",),
    names.TASKS_UPDATE: ("taskId", "inputResponses"),
    names.TASKS_CANCEL: ("taskId",),
    names.SUBSCRIPTIONS_LISTEN: ("notifications",),
}
"""The members of params that something here or below reads; they must not stand twice (BASE-001)."""

_VERSION_KEY: Final = names.META_PROTOCOL_VERSION.encode()

_READ_OF_META: Final = (
    names.META_PROTOCOL_VERSION,
    names.META_CLIENT_CAPABILITIES,
    names.META_LOG_LEVEL,
    names.META_PROGRESS_TOKEN,
)


class Rejection(Exception):
    """The message is refused: with which fault, and with the id that could be read."""

    def __init__(self, rid: RequestId | None, fault: ProxyError) -> None:
        super().__init__(fault.message)
        self.rid = rid
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Headers:
    """The MCP headers of one HTTP message, by lower-case name; a name may stand several times."""

    values: Sequence[tuple[str, str]]

    def get(self, name: str) -> str | None:
        """The value of a header that stands once. Raises ClientProtocolError if it stands twice."""
        found = [value.strip(" \t") for key, value in self.values if key == name.lower()]
        if len(set(found)) > 1:
            raise _mismatch(f"{name} is given more than once")
        return found[0] if found else None

    def params(self) -> dict[str, str]:
        """`Mcp-Param-*` by what stands after the prefix, in lower case.

        Different values of one name are one list (RFC 9110, "Field Lines and Combined Field Value").
        """
        prefix = names.H_PARAM_PREFIX.lower()
        found: dict[str, dict[str, None]] = {}
        for key, value in self.values:
            if key.startswith(prefix):
                found.setdefault(key.removeprefix(prefix), {})[value.strip(" \t")] = None
        return {name: ", ".join(values) for name, values in found.items()}


def read_message(
    message: Message, headers: Headers, owner: Owner, supported: Sequence[str]
) -> ClientRequest | Notification:
    """The modern request that a POST carries; a Notification needs no answer. Raises Rejection."""
    if isinstance(message, Notification):
        return message
    if not isinstance(message, Request):
        fault = "Invalid request: a client posts requests and notifications, not responses"
        raise Rejection(message.id, ClientProtocolError(ErrorCode.INVALID_REQUEST, fault))
    return read_modern(message, headers, owner, supported)


def said_version(message: Request | Notification) -> bytes | None:
    """The raw value of the version key in `_meta`: whatever it is, its presence makes a message modern."""
    raw = message.params
    if raw is None or (message.known is None and _VERSION_KEY not in raw and b"\\" not in raw):
        return None  # however it is written, it is not in there
    params = message.known or _object(raw)
    try:
        meta = _meta_of(params) if params is not None else None
        return meta.get(names.META_PROTOCOL_VERSION) if meta is not None else None
    except (DuplicateMember, JsonError):
        return (
            b"null"  # given twice, or too large, or among too many: modern all the same, and refused as such
        )


def _meta_of(params: RawObject) -> RawObject | None:
    """Raises JsonError for one that nobody would send, which it would take long to read."""
    meta = params.get(names.META)
    if meta is not None and len(meta) > LARGE:
        raise JsonError(f"params.{names.META} is over {LARGE} bytes")
    return RawObject.parse(meta) if meta is not None and meta[:1] == b"{" else None


def read_modern(
    message: Request, headers: Headers | None, owner: Owner, supported: Sequence[str]
) -> ClientRequest:
    """The modern request that a message is. `headers` None: the transport has none. Raises Rejection."""
    try:
        return _modern_request(message, headers, owner, supported)
    except ProxyError as exc:
        raise Rejection(message.id, exc) from exc
    except (DuplicateMember, JsonError) as exc:  # the latter: too many members
        fault = f"Invalid request: {exc}"
        raise Rejection(message.id, ClientProtocolError(ErrorCode.INVALID_REQUEST, fault)) from exc


def _modern_request(
    message: Request, headers: Headers | None, owner: Owner, supported: Sequence[str]
) -> ClientRequest:
    params = message.known or _object(message.params)
    meta = _meta_of(params) if params is not None else None
    has_version = meta is not None and names.META_PROTOCOL_VERSION in meta
    hint = headers.get(names.H_PROTOCOL_VERSION) if headers is not None and not has_version else None
    if client_era(has_meta_version=has_version, version_header=hint) is Era.LEGACY:
        raise _unsupported(_legacy_version(message.method, params, hint), supported)
    if params is not None:
        _refuse_duplicates(params, _READ_OF_PARAMS.get(message.method, ()))
    if params is None or meta is None:
        raise _malformed(f"params.{names.META} is missing")
    _refuse_duplicates(meta, _READ_OF_META)
    version, capabilities = _required_meta(meta)
    if headers is not None:
        _check_version_header(headers.get(names.H_PROTOCOL_VERSION), version)
    if version not in names.MODERN_VERSIONS:
        raise _unsupported(version, supported)
    if headers is not None:
        _check_standard_headers(message.method, params, headers)
    return ClientRequest(
        id=message.id,
        method=message.method,
        params=params,
        owner=owner,
        capabilities=capabilities,
        progress_token=_progress_token(meta),
        log_level=_log_level(meta),
        param_headers=headers.params() if headers is not None else None,
    )


def _refuse_duplicates(obj: RawObject, read: Sequence[str]) -> None:
    """A fault of the envelope, whatever else is wrong. Raises DuplicateMember."""
    obj.refuse_twice(*read)


def _check_version_header(header: str | None, version: str) -> None:
    if header is None:
        raise _mismatch(f"{names.H_PROTOCOL_VERSION} is missing")
    if header != version:
        raise _mismatch(
            f"{names.H_PROTOCOL_VERSION} {header!r} does not match {version!r} in params.{names.META}"
        )


def _required_meta(meta: RawObject) -> tuple[str, ClientCapabilities]:
    """2026-07-28 "Per-request protocol fields": -32602 and 400 where one is missing or of a wrong type."""
    version = meta.text(names.META_PROTOCOL_VERSION)
    if version is None:
        raise _malformed(f"{names.META_PROTOCOL_VERSION} is missing or not a string")
    declared = meta.get(names.META_CLIENT_CAPABILITIES)
    if declared is None:
        raise _malformed(f"{names.META_CLIENT_CAPABILITIES} is missing")
    try:
        return version, ClientCapabilities.parse(declared)
    except ClientProtocolError as exc:
        raise ClientProtocolError(exc.code, exc.message, status=HTTPStatus.BAD_REQUEST) from exc


def _check_standard_headers(method: str, params: RawObject, headers: Headers) -> None:
    """`Mcp-Method`, and `Mcp-Name` where the method has a name and the body gives one.

    `Mcp-Name` may be absent on the three task methods alone, where contract and TX-HDR-001 want it: no
    FastMCP 4 sends it there, and would have no tasks at all. One that differs is refused everywhere.
    """
    given = headers.get(names.H_METHOD)
    if given is None:
        raise _mismatch(f"{names.H_METHOD} is missing")
    if given != method:
        raise _mismatch(f"{names.H_METHOD} {given!r} does not match method {method!r}")
    member = names.NAME_MEMBER.get(method)
    name = params.text(member) if member is not None else None
    if name is None:
        return
    header = headers.get(names.H_NAME)
    if header is None:
        if method in names.TASK_METHODS:
            return
        raise _mismatch(f"{names.H_NAME} is missing")
    try:
        decoded = decode_value(header)
    except HeaderValueError as exc:
        raise _mismatch(f"{names.H_NAME} {exc}") from exc
    if decoded != name:
        raise _mismatch(f"{names.H_NAME} does not match params.{member}")


def _progress_token(meta: RawObject) -> bytes | None:
    raw = meta.get(names.META_PROGRESS_TOKEN)
    if raw is not None and RequestId.parse(raw) is None:  # a token has the same types as an id
        raise ClientProtocolError(
            ErrorCode.INVALID_PARAMS, "Invalid params: progressToken is neither a string nor an integer"
        )
    return raw


def _log_level(meta: RawObject) -> str | None:
    raw = meta.get(names.META_LOG_LEVEL)
    if raw is None:
        return None
    level = decode_string(raw) if raw[:1] == b'"' else None
    if level not in names.LOG_LEVELS:
        known = ", ".join(names.LOG_LEVELS)
        raise ClientProtocolError(ErrorCode.INVALID_PARAMS, f"Invalid params: logLevel is none of {known}")
    return level


def _object(raw: bytes | None) -> RawObject | None:
    """params if it is an object; missing, null and other values are told apart by nobody here (F19)."""
    try:
        return RawObject.parse(raw) if raw is not None else None
    except JsonError:
        return None


def _legacy_version(method: str, params: RawObject | None, header: str | None) -> str:
    """The version that a legacy client asks for, as far as it says."""
    asked = params.text("protocolVersion") if method == names.INITIALIZE and params is not None else None
    return asked or header or "2025-03-26"  # VER-020: assumed where nothing names one


def _malformed(what: str) -> ClientProtocolError:
    fault = f"Invalid params: {what}"
    return ClientProtocolError(ErrorCode.INVALID_PARAMS, fault, status=HTTPStatus.BAD_REQUEST)


def _mismatch(what: str) -> ClientProtocolError:
    return ClientProtocolError(ErrorCode.HEADER_MISMATCH, f"Header mismatch: {what}")


def _unsupported(requested: str, supported: Sequence[str]) -> ClientProtocolError:
    return ClientProtocolError(
        ErrorCode.UNSUPPORTED_PROTOCOL_VERSION,
        f"Unsupported protocol version {requested!r}; this server speaks {', '.join(supported)}",
        data={"supported": list(supported), "requested": requested},
    )
