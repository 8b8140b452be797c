"""JSON-RPC 2.0 messages as MCP uses them: envelope understood, payload kept raw.

Above: every transport and the router. Below: `envelope`. MCP 2026-07-28 "Messages".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from proxy.errors import ErrorCode
from proxy.protocol.envelope import (
    LARGE,
    DuplicateMember,
    JsonError,
    Member,
    RawObject,
    check_json,
    check_text,
    compact_members,
    decode_string,
    dumps,
    joined,
)
from proxy.protocol.outline import Pieces
from proxy.protocol.sketch import Sketch, sketch

_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)\Z")
_SPELT: Final = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z", re.ASCII)
_READ: Final = ("jsonrpc", "id", "method", "params", "result", "error")
MAX_ID_DIGITS: Final = 1_000  # longer integers are refused; the wish to compare them is no real client's


@dataclass(frozen=True, slots=True)
class RequestId:
    """A request id: `raw` is what goes back on the wire, `value` is what tables are keyed by.

    `1` and `"1"` are different ids; an `int` and a `str` are never equal in Python.
    """

    raw: bytes
    value: int | str

    @classmethod
    def parse(cls, raw: bytes) -> RequestId | None:
        """None if `raw` is no string or integer."""
        if raw[:1] == b'"':
            return cls(raw, decode_string(raw))
        if _INTEGER.match(raw) and len(raw) <= MAX_ID_DIGITS:
            return cls(raw, int(raw))
        return None

    @property
    def number(self) -> int | None:
        """The number that it is, or spells: some servers answer `"7"` to 7 (F17). None if there is none that
        would be an id of ours."""
        if isinstance(self.value, int):
            return self.value
        return int(self.value) if _SPELT.match(self.value) else None

    def __repr__(self) -> str:
        return f"<RequestId {self.raw[:80]!r}>"


@dataclass(frozen=True, slots=True)
class Request:
    """A request; `params` is its raw JSON, None if the member is absent. `known`: the same where its members
    are known already, since it is so large that nobody should read it again."""

    id: RequestId
    method: str
    params: bytes | None
    known: RawObject | None = field(default=None, repr=False, compare=False)

    @property
    def readable(self) -> RawObject | bytes | None:
        return self.params if self.known is None else self.known


@dataclass(frozen=True, slots=True)
class Notification:
    """As `Request`."""

    method: str
    params: bytes | None
    known: RawObject | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ResultResponse:
    id: RequestId
    result: bytes


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """`id` is None where the peer could not read ours; `error` is the raw error object."""

    id: RequestId | None
    error: bytes


Message: TypeAlias = Request | Notification | ResultResponse | ErrorResponse
"""One JSON-RPC message."""


class MessageError(ValueError):
    """Not a message. `code` is the JSON-RPC error that answers it, `id` the id if it could be read."""

    def __init__(self, code: ErrorCode, message: str, id: RequestId | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.id = id


def parse(raw: bytes, max_depth: int) -> Message:
    """One message from one JSON text; raises MessageError with -32700 or -32600.

    The members that are read (`jsonrpc`, `id`, `method`, `params`, `result`, `error`) must not stand
    twice; whatever else is in the text is not looked at. A missing id makes a notification, a null id
    is refused (MCP 2026-07-28 "Requests").
    """
    try:
        check_text(raw, max_depth)
        if (call := _compact_call(raw)) is not None:
            return call
        check_json(raw)
    except JsonError as exc:
        raise MessageError(ErrorCode.PARSE_ERROR, f"Parse error: {exc}") from exc
    return parse_checked(raw)


def parse_large(raw: bytes, max_depth: int) -> Message:
    """As `parse`, in steps that are short however large the text is. Not for the event loop: it takes some
    seconds for what may be sent at most."""
    try:
        drawn = sketch(raw, max_depth, _KNOWN_DEPTH)
    except JsonError as exc:
        raise MessageError(ErrorCode.PARSE_ERROR, f"Parse error: {exc}") from exc
    if drawn.text.lstrip()[:1] != b"{":
        return parse_checked(b"[]" if drawn.text.lstrip()[:1] == b"[" else b"0")
    try:
        found = drawn.members()
    except JsonError as exc:
        raise MessageError(ErrorCode.INVALID_REQUEST, f"Invalid request: {exc}") from exc
    fields: dict[str, bytes] = {}
    known = None
    for here, there in found:
        if here.key not in _READ:
            continue
        if here.key in fields:
            raise MessageError(ErrorCode.INVALID_REQUEST, f"Invalid request: {DuplicateMember(here.key)}")
        fields[here.key] = joined(memoryview(raw)[there.value_start : there.end])
        if here.key == "params":
            known = _known(fields["params"], drawn, here, there)
    return _message_of(fields, known)


def with_id(raw: bytes, id: int, max_depth: int) -> bytes:
    """The large request `raw`, which has an id, with another one, as `parse_large`."""
    at = next(there for here, there in sketch(raw, max_depth, 1).members() if here.key == "id")
    text = memoryview(raw)
    return joined(text[: at.value_start], b"%d" % id, text[at.end :])


_KNOWN_DEPTH: Final = 2  # the message, and its params


def _known(params: bytes, drawn: Sketch, here: Member, there: Member) -> RawObject | None:
    """None if it is no object, or of too many members for anybody."""
    try:
        found = drawn.members(here.value_start, here.end)
    except JsonError:
        return None
    return RawObject(params, tuple(member.moved(-there.value_start) for _, member in found))


class _Call(msgspec.Struct):
    """A request or notification as msgspec reads it, whatever else is in it."""

    jsonrpc: str
    method: str
    id: msgspec.Raw = msgspec.Raw()
    params: msgspec.Raw = msgspec.Raw()


_CALL: Final = msgspec.json.Decoder(_Call)
_CALL_LENGTH: Final = len('{"jsonrpc":"2.0","method":""}')


def _compact_call(raw: bytes) -> Request | Notification | None:
    """The call in `raw`, if it is JSON and nothing else is in it, not even white space: in one step of
    msgspec, since nearly every message is such a call. None leaves it to the thorough way.
    """
    try:
        call = _CALL.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    # With each member once, as it is: anything else in the text makes it longer than this.
    id_length, params_length = len(call.id), len(call.params)
    length = _CALL_LENGTH + len(call.method)
    if id_length:
        length += len(',"id":') + id_length
    if params_length:
        length += len(',"params":') + params_length
    if length != len(raw) or call.jsonrpc != "2.0":
        return None
    params = bytes(call.params) if params_length else None
    if not id_length:
        return Notification(call.method, params)
    rid = RequestId.parse(bytes(call.id))
    return Request(rid, call.method, params) if rid is not None else None


def parse_checked(raw: bytes) -> Message:
    """`parse` for a text that has already passed `envelope.check`."""
    try:
        fields = compact_members(raw)
        if fields is None:
            fields = _read_members(raw)
    except JsonError as exc:
        raise MessageError(ErrorCode.INVALID_REQUEST, f"Invalid request: {exc}") from exc
    return _message_of(fields)


def _message_of(fields: Mapping[str, bytes], known: RawObject | None = None) -> Message:
    """The message with these members, none of which stands twice."""
    rid = RequestId.parse(fields["id"]) if "id" in fields else None
    version = fields.get("jsonrpc", b"")
    if version[:1] != b'"' or decode_string(version) != "2.0":
        raise MessageError(ErrorCode.INVALID_REQUEST, 'Invalid request: jsonrpc is not "2.0"', rid)
    if "method" in fields:
        return _parse_call(fields, rid, known)
    return _parse_response(fields, rid)


def _read_members(raw: bytes) -> dict[str, bytes]:
    """The members that are read, however they are written. Raises JsonError, and MessageError for one that
    stands twice."""
    if raw.lstrip()[:1] != b"{":
        kind = "an array (batches are not supported)" if raw.lstrip()[:1] == b"[" else "no object"
        raise MessageError(ErrorCode.INVALID_REQUEST, f"Invalid request: the message is {kind}")
    obj = RawObject.parse(raw)
    try:
        fields = {key: obj.get(key) for key in _READ}
    except DuplicateMember as exc:
        raise MessageError(ErrorCode.INVALID_REQUEST, f"Invalid request: {exc}", _id_of(obj)) from exc
    return {key: value for key, value in fields.items() if value is not None}


def _id_of(obj: RawObject) -> RequestId | None:
    try:
        raw = obj.get("id")
    except DuplicateMember:
        return None
    return RequestId.parse(raw) if raw is not None else None


def _parse_call(fields: Mapping[str, bytes], rid: RequestId | None, known: RawObject | None) -> Message:
    method, params = fields["method"], fields.get("params")
    if method[:1] != b'"':
        raise MessageError(ErrorCode.INVALID_REQUEST, "Invalid request: method is not a string", rid)
    if "result" in fields or "error" in fields:
        raise MessageError(ErrorCode.INVALID_REQUEST, "Invalid request: both a call and a response", rid)
    if "id" not in fields:
        return Notification(decode_string(method), params, known)
    if rid is None:
        raise MessageError(
            ErrorCode.INVALID_REQUEST, "Invalid request: id is neither a string nor an integer"
        )
    return Request(rid, decode_string(method), params, known)


def _parse_response(fields: Mapping[str, bytes], rid: RequestId | None) -> Message:
    result, error = fields.get("result"), fields.get("error")
    if (result is None) == (error is None):
        raise MessageError(ErrorCode.INVALID_REQUEST, "Invalid request: no method, and not a response", rid)
    if error is not None:
        if error[:1] != b"{":
            raise MessageError(ErrorCode.INVALID_REQUEST, "Invalid response: error is not an object", rid)
        return ErrorResponse(rid, error)
    if rid is None or result is None:
        raise MessageError(ErrorCode.INVALID_REQUEST, "Invalid response: no usable id")
    return ResultResponse(rid, result)


def request(rid: RequestId | int, method: str, params: bytes | None) -> bytes:
    """A request; `params` goes in as it is."""
    head = b'{"jsonrpc":"2.0","id":' + _raw_id(rid) + b',"method":' + dumps(method)
    if params is None:
        return head + b"}"
    pieces = (head, b',"params":', params, b"}")
    return b"".join(pieces) if len(params) <= LARGE else joined(*pieces)


def notification(method: str, params: bytes | None = None) -> bytes:
    tail = b"" if params is None else b',"params":' + params
    return b'{"jsonrpc":"2.0","method":' + dumps(method) + tail + b"}"


def result_response(rid: RequestId | int, *result: bytes | memoryview) -> bytes:
    return b"".join(result_pieces(rid, *result))


def result_pieces(rid: RequestId | int, *result: bytes | memoryview) -> Pieces:
    """The response, of which the result is not copied."""
    return (b'{"jsonrpc":"2.0","id":' + _raw_id(rid) + b',"result":', *result, b"}")


def error_response(rid: RequestId | int | None, error: bytes) -> bytes:
    """`rid` None leaves the id out, as MCP asks where it could not be read."""
    head = b"" if rid is None else b'"id":' + _raw_id(rid) + b","
    return b'{"jsonrpc":"2.0",' + head + b'"error":' + error + b"}"


def error_object(code: int, message: str, data: object = None) -> bytes:
    """A raw JSON-RPC error object in our own words."""
    body: dict[str, object] = {"code": int(code), "message": message}
    if data is not None:
        body["data"] = data
    return dumps(body)


def _raw_id(rid: RequestId | int) -> bytes:
    return b"%d" % rid if isinstance(rid, int) else rid.raw
