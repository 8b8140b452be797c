"""What an upstream answered, made fit for a modern client.

Above: `conversion`, whose clients get it, and `following`, which stores only what can be served. Below:
`eras.to_modern`. An upstream's error is an answer, not a fault of ours. Contract section 3, "Results".
"""

from __future__ import annotations

from http import HTTPStatus

from proxy.eras.era import Era
from proxy.eras.to_modern import MODERN_CODES, ServerInfo, error_code, lift_error, lift_result
from proxy.errors import HTTP_STATUS, ErrorCode, UpstreamProtocolError
from proxy.protocol import names
from proxy.protocol.envelope import splice
from proxy.routing.base import Answer, ErrorAnswer, ResultAnswer
from proxy.upstream.base import Failure, Outcome, Result


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


def with_server_info(result: bytes, server_info: bytes | None) -> bytes:
    """A result of our own that names the server in its `_meta`."""
    if server_info is None:
        return result
    return splice(result, {names.META: splice(b"{}", {names.META_SERVER_INFO: server_info})})
