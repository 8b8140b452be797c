"""What an upstream answered: made fit for a modern client, and, of a tool that failed, in words.

Above: `conversion`, whose clients get it, and `following`, which stores only what can be served. Below:
`eras.to_modern`. An upstream's error is an answer, not a fault of ours. Contract section 3, "Results".
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from proxy.eras.era import Era
from proxy.eras.stored import lift_stored
from proxy.eras.to_modern import MODERN_CODES, ServerInfo, error_code, error_message, lift_error, lift_result
from proxy.errors import HTTP_STATUS, ErrorCode, UpstreamProtocolError
from proxy.protocol import names
from proxy.protocol.envelope import DuplicateMember, JsonError, RawObject, elements, splice
from proxy.protocol.jsonrpc import error_object
from proxy.protocol.outline import Outline
from proxy.routing.base import Answer, ErrorAnswer, ResultAnswer
from proxy.routing.progress import shortened
from proxy.upstream.base import Failure, Outcome, Result

TOOL_ERROR: Final = "The tool reported an error."
NO_MESSAGE: Final = "The upstream answered with an error."
ERROR_MAX_BYTES: Final = 256 * 1024  # unlike results, errors of all tasks are in memory until they expire


def answer_of(method: str, outcome: Outcome, info: ServerInfo | None) -> Answer:
    """Raises UpstreamProtocolError if the result cannot be used. A modern server's passes as it is."""
    if info is not None and info.era is Era.MODERN:
        return _modern_answer(outcome)
    match outcome:
        case Result(raw):
            return ResultAnswer(lift_result(method, raw, info.server_info if info is not None else None))
        case Failure(error):
            return error_answer(error)


def error_answer(error: bytes) -> ErrorAnswer:
    """Over HTTP an unknown method is 404, whatever else the upstream refused 200."""
    lifted = lift_error(error)
    unknown = error_code(lifted) == ErrorCode.METHOD_NOT_FOUND
    return ErrorAnswer(lifted, HTTPStatus.NOT_FOUND if unknown else HTTPStatus.OK)


def kept_error(error: bytes, limit: int) -> bytes:
    """All of a task's error up to `limit` and ERROR_MAX_BYTES; of a larger one its code and words."""
    limit = min(limit, ERROR_MAX_BYTES)
    if len(error) <= limit:
        return error
    code, words = error_code(error), shortened(error_message(error) or NO_MESSAGE)
    dropped = f"{words} (the error had {len(error)} bytes, over the limit of {limit}; its data are left out)"
    return error_object(ErrorCode.INTERNAL_ERROR if code is None else code, dropped)


def _modern_answer(outcome: Outcome) -> Answer:
    match outcome:
        case Result(raw):
            if raw[:1] != b"{":
                raise UpstreamProtocolError("the upstream answered with a result that is not an object")
            return ResultAnswer(raw)
        case Failure(error):
            code = error_code(error)
            if code in MODERN_CODES:
                return ErrorAnswer(error, HTTP_STATUS[ErrorCode(code)])
            return error_answer(error)  # the codes that nobody may use are no better from a modern server


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What is kept of a result beside its text, so that nobody has to read it again: see `Task`."""

    outline: Outline
    tool_error: str | None


def read_result(method: str, result: bytes, info: ServerInfo | None) -> ReadResult:
    """Raises UpstreamProtocolError where `answer_of` does."""
    try:
        obj = RawObject.parse(result)
    except JsonError as exc:
        raise UpstreamProtocolError(f"the result of {method} cannot be used: {exc}") from exc
    outline = Outline.of(obj)
    lift_stored(method, result, outline, legacy_server_info(info))
    return ReadResult(outline, _tool_error(obj))


def legacy_server_info(info: ServerInfo | None) -> bytes | None:
    """What results say of their server, where it does not do so itself."""
    return info.server_info if info is not None and info.era is Era.LEGACY else None


def _tool_error(result: RawObject) -> str | None:
    """What a result says of the tool's failure, shortened; None unless its `isError` is true.

    An `isError` that stands twice says nothing. Tools 2025-11-25, "Error Handling".
    """
    try:
        if result.get("isError") != b"true":
            return None
    except DuplicateMember:
        return None
    return shortened(_first_text(result) or TOOL_ERROR)


def _first_text(result: RawObject) -> str | None:
    """The first text among its content that is more than white space."""
    try:
        for raw in elements(result.get("content") or b"[]"):
            if raw[:1] == b"{" and (text := _text(RawObject.parse(raw))):
                return text
    except ValueError:
        pass  # no list, or a member twice: that it failed is known all the same
    return None


def _text(block: RawObject) -> str | None:
    text = block.text("text") if block.text("type") == "text" else None
    return text.strip() if text is not None else None


def with_server_info(result: bytes, server_info: bytes | None) -> bytes:
    """A result of our own that names the server in its `_meta`."""
    if server_info is None:
        return result
    return splice(result, {names.META: splice(b"{}", {names.META_SERVER_INFO: server_info})})
