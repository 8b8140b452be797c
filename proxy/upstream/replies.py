"""What a text that an HTTP upstream sent says about one call of ours.

PURE. Above: the HTTP transport, which must know whether the answer has come; below: `protocol.jsonrpc`.
The session parses the same texts by the same rules, so that both agree on what is an answer.
Streamable HTTP 2025-03-26 ... 2025-11-25, "Sending Messages to the Server".
"""

from __future__ import annotations

import codecs
from contextlib import suppress
from typing import Final

from proxy.errors import ErrorCode
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, check, elements
from proxy.protocol.jsonrpc import ErrorResponse, MessageError, ResultResponse, parse

_MODERN_CODES: Final = (
    ErrorCode.HEADER_MISMATCH,
    ErrorCode.MISSING_CLIENT_CAPABILITY,
    ErrorCode.UNSUPPORTED_PROTOCOL_VERSION,
)


def messages(raw: bytes, max_depth: int) -> list[bytes]:
    """A batch of answers (2025-03-26) taken apart; everything else as it is, for the receiver to judge."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if raw.lstrip()[:1] == b"[":
        with suppress(JsonError):
            check(raw, max_depth)
            return elements(raw)
    return [raw]


def response_in(message: bytes, max_depth: int) -> ResultResponse | ErrorResponse | None:
    """What `message` is, if it is a response to anything."""
    try:
        parsed = parse(message, max_depth)
    except MessageError:
        return None
    return parsed if isinstance(parsed, ResultResponse | ErrorResponse) else None


def answers(message: bytes, call: int, max_depth: int) -> bool:
    """Whether `message` is the response to `call`."""
    reply = response_in(message, max_depth)
    return reply is not None and is_for(reply, call)


def is_for(reply: ResultResponse | ErrorResponse, call: int) -> bool:
    """Some servers echo every id as a string."""
    return reply.id is not None and reply.id.number == call


def error_in(body: bytes, max_depth: int) -> ErrorResponse | None:
    """The JSON-RPC error that came with an HTTP error, if there is one; its id may be made up."""
    reply = response_in(body.removeprefix(codecs.BOM_UTF8), max_depth)
    return reply if isinstance(reply, ErrorResponse) else None


def is_method_not_found(reply: ErrorResponse) -> bool:
    return _has_code(reply, ErrorCode.METHOD_NOT_FOUND)


def is_modern(reply: ErrorResponse) -> bool:
    """Whether only a server of the modern era says this. MCP 2026-07-28, "Backward Compatibility"."""
    return any(_has_code(reply, code) for code in _MODERN_CODES)


def _has_code(reply: ErrorResponse, code: ErrorCode) -> bool:
    with suppress(DuplicateMember):
        return RawObject.parse(reply.error).get("code") == b"%d" % code
    return False


def text_of(reply: ErrorResponse) -> bytes:
    """The upstream's own words."""
    with suppress(DuplicateMember):
        return (RawObject.parse(reply.error).text("message") or "").encode("utf-8", "replace")
    return b""
